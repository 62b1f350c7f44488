"""What `hybridlab plan --gpus` says of memory, and how it divides a run."""

from __future__ import annotations

import json

import pytest
from torch.profiler import ProfilerActivity, profile, record_function
from typer.testing import CliRunner

from hybridlab.accounting.parameters import count_parameters
from hybridlab.cli.main import app
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.runs.hooks import make_hooks
from hybridlab.runs.needs import Planner, Way
from hybridlab.runs.run import train_run
from hybridlab.store.folders import RunFolder, Runs
from hybridlab.training.engine import Run
from hybridlab.training.machine import Gpu
from hybridlab.training.memory import step_memory

ROWS = 4


def real_peak(config, path, monkeypatch):
    """Bytes of all tensors at the worst moment of the second step of a run."""
    take_step = Run.take_step

    def marked(run):
        with record_function(f"step {run.step}"):
            return take_step(run)

    monkeypatch.setattr(Run, "take_step", marked)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        train_run(config, RunFolder(path / "run"), Runs(path))
    found.export_chrome_trace(str(path / "trace.json"))
    events = json.loads((path / "trace.json").read_text())["traceEvents"]
    (step,) = [event for event in events if event.get("name") == "step 1" and event.get("cat") == "user_annotation"]
    within = [e for e in events if e.get("name") == "[memory]" and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]
    return max(event["args"]["Total Allocated"] for event in within)


@pytest.mark.parametrize(
    ("arch", "size", "more"),
    [
        ("vanilla", "tiny", {}),
        ("vanilla", "tiny", {"runtime": {"micro_batch_rows": 2, "activation_checkpointing": True}}),
        ("spiral-b", "tiny", {"training": {"precision": "bf16"}}),
        ("consa", "tiny", {"runtime": {"micro_batch_rows": 2}}),
        ("saobp-low", "bert-tiny", {"data": {"tokenizer": "bpe+mask:400"}}),
    ],
)
def test_the_counted_memory_is_that_of_a_real_step(arch, size, more, tmp_path, text_file, monkeypatch):
    base = {
        "data": {"source": f"text:{text_file}", "tokenizer": "byte"} | more.get("data", {}),
        "evaluation": {"validation_windows": 1},
    }
    training = {"steps": 2, "tokens_per_step": ROWS * 128, "seq_len": 128, "precision": "fp32"}
    base |= {"training": training | more.get("training", {}), "shape": {"vocab": 8000}}
    base |= {"runtime": {"threads": 1, "kernel": "sdpa"} | more.get("runtime", {})}
    config = resolve(arch, size, layers=[Layer(base)])
    rows, structure, hooks = config.runtime.micro_batch_rows or ROWS, final_structure(config), make_hooks(config)
    precision, again = config.training.precision, config.runtime.activation_checkpointing
    counted = step_memory(config, structure, rows, ROWS // rows, precision, again, hooks)
    assert counted.total == pytest.approx(real_peak(config, tmp_path, monkeypatch), rel=0.02)
    assert counted.weights == 4 * count_parameters(config.shape, final_structure(config).plan).total


PLANNER = Planner(1, Gpu(1, 1), 0.5)
SMALL = {"shape": {"layers": 2}, "training": {"tokens_per_step": 64 * 128, "seq_len": 128, "steps": 100}}


def planned(gb, number=8, **runtime):
    """What a run of 64 rows takes on GPUs of so much memory."""
    PLANNER.number, PLANNER.gpu = number, Gpu(1e15, gb, link=1e9, network=1e8)
    return PLANNER.needs(resolve("vanilla", "tiny", layers=[Layer(SMALL | {"runtime": runtime})]))


def test_the_first_way_that_fits_is_taken():
    """From much memory to little: all rows at once, then the same again with parts of a step, with activations computed
    twice, and of a shared model."""
    ways = [planned(gb).way for gb in (1.0, 0.02, 0.009, 0.007)]
    expected = [(1, "ddp", False), (4, "ddp", False), (8, "ddp", True), (8, "fsdp2", True)]
    assert [(way.passes, way.sharding, way.recompute) for way in ways] == expected
    assert [way.gpus * way.rows * way.passes for way in ways] == [64] * 4


def test_what_fits_nowhere_is_said():
    assert not planned(0.001).fits


def test_settings_of_a_run_are_kept():
    assert planned(1.0, micro_batch_rows=2, sharding="fsdp2", activation_checkpointing=True).way == Way(
        8, 2, 4, "fsdp2", True
    )


def test_hours_and_bytes_are_those_of_the_counts():
    needs = planned(1.0)
    config = resolve("vanilla", "tiny", layers=[Layer(SMALL)])
    parameters = count_parameters(config.shape, final_structure(config).plan).total
    assert needs.sent == 2 * 7 / 8 * 4 * parameters and needs.seconds_sent == needs.sent / 1e9
    assert planned(1.0, number=16).seconds_sent > 9 * needs.seconds_sent  # over the network of two nodes
    assert needs.hours * 3600 * 8 * 1e15 * 0.5 == pytest.approx(needs.flops)
    assert planned(1.0, number=100).way.gpus == 64
    again, back = (planned(1.0, sharding="fsdp2", reshard=reshard).sent for reshard in (True, False))
    assert again == pytest.approx(1.5 * back) == pytest.approx(3 / 2 * needs.sent)


def call(*words):
    return CliRunner().invoke(app, ["plan", *words])


def test_the_command_plans_the_runs_of_entries():
    found = json.loads(call("saobp-fig1", "--gpus", "2", "--json").stdout)
    assert found["gpus"] == 2 and [run["way"]["gpus"] for run in found["runs"]] == [2]
    assert found["gpu_hours"] == pytest.approx(2 * found["hours"])
    table = call("--gpus", "2", "--set", "shape.layers=1").stdout
    assert "vanilla tiny" in table and max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "8", "--gpu", "h10"], "did you mean 'h100'?"),
        (["saobp-fig2", "--arch", "sgt"], "--arch has no effect with saobp-fig2"),
        (["saobp-table4"], "no run is needed at scale paper"),
        (["--scale", "paper"], "name the entries whose runs are planned"),
        (["--gpus", "2", "--seq-len", "64"], "--set training.seq_len=N"),
    ],
)
def test_mistakes_are_explained(words, said):
    done = call(*words)
    assert isinstance(done.exception, UserError) and said in str(done.exception)
