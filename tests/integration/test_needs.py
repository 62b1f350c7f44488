"""What `hybridlab plan --gpus` says of memory, and how it divides a run."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale
from hybridlab.models import loss
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.models.ledger.summary import training_flops
from hybridlab.runs import needs as needs_module
from hybridlab.runs.budget import with_examples
from hybridlab.runs.hooks import make_hooks
from hybridlab.runs.needs import Planner, Way, gpu_named, of_a_gpu
from hybridlab.runs.run import train_run
from hybridlab.training.engine import Run
from hybridlab.training.machine import Gpu
from hybridlab.training.memory import step_memory
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import PUBLISHED, ROOT
from tests.training import counting, marking

ROWS = 4


def real_peak(config, path, monkeypatch):
    """Bytes of all tensors at the worst moment of the second step of a run."""
    with marking(monkeypatch, Run, "take_step"), counting(path / "trace.json") as peaks:
        train_run(config, RunFolder(path / "run"), Runs(path))
    return peaks()["take_step"][1]


@pytest.mark.parametrize(
    ("arch", "size", "more"),
    [
        pytest.param("vanilla", "tiny", {}, marks=pytest.mark.long),
        ("vanilla", "tiny", {"runtime": {"micro_batch_rows": 2, "activation_checkpointing": True}}),
        ("spiral-b", "tiny", {"training": {"precision": "bf16"}}),
        ("consa", "tiny", {"runtime": {"activation_checkpointing": "selective", "kernel": "auto"}}),
        pytest.param("consa", "tiny", {"runtime": {"micro_batch_rows": 2}}, marks=pytest.mark.long),
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


ON_A_GPU = json.loads((PUBLISHED / "bench" / "h200.json").read_text())["memory"]


@pytest.mark.parametrize("run", ON_A_GPU, ids=lambda run: f"{run['arch']} {run['size']}")
def test_the_memory_counted_for_a_gpu_is_near_what_runs_took_there(run, monkeypatch):
    """`hybridlab pretrain` with these settings and four steps, in bf16: the highest memory_mb of the log. The chunks of
    the loss were smaller then."""
    monkeypatch.setitem(loss.LOGITS_AT_ONCE, "cuda", 2**26)
    training = {"seq_len": run["seq_len"], "tokens_per_step": run["rows"] * run["seq_len"]}
    config = resolve(run["arch"], run["size"], layers=[Layer({"training": training, "runtime": run["runtime"]})])
    again, hooks = config.runtime.activation_checkpointing, make_hooks(config)
    counted = step_memory(config, final_structure(config), run["rows"], 1, "bf16", again, hooks, gpu=True)
    assert 1 <= run["memory_mb"] * 1e6 / counted.total <= 1.06


PLANNER = Planner(1, Gpu(1, 1), 0.5)
SMALL = {"shape": {"layers": 2}, "training": {"tokens_per_step": 64 * 128, "seq_len": 128, "steps": 100}}


def planned(gb, number=8, **runtime):
    """What a run of 64 rows takes on GPUs of so much memory."""
    PLANNER.number, PLANNER.gpu = number, Gpu(1e15, gb, link=1e9, network=1e8)
    return PLANNER.needs(resolve("vanilla", "tiny", layers=[Layer(SMALL | {"runtime": runtime})]))


def test_the_first_way_that_fits_is_taken():
    """From much memory to little: all rows at once, then the same again with parts of a step, with activations computed
    twice, and of a shared model."""
    ways = [planned(gb).way for gb in (1.0, 0.02, 0.009, 0.006)]
    expected = [(1, "ddp", False), (4, "ddp", False), (8, "ddp", True), (8, "fsdp2", True)]
    assert [(way.passes, way.sharding, way.recompute) for way in ways] == expected
    assert [way.gpus * way.rows * way.passes for way in ways] == [64] * 4


def test_what_needs_the_same_is_counted_once(monkeypatch):
    """A model that has grown is one of its full depth; another optimizer keeps something else."""
    counted = []
    monkeypatch.setattr(
        needs_module, "step_memory", lambda *given, **more: counted.append(given) or step_memory(*given, **more)
    )
    planner, ways = Planner(8, gpu_named("h100"), 0.5), 2  # with one row, and with all of them
    arms = (("vanilla", {}), ("vanilla", {"seed": 1}), ("lidas", {}), ("vanilla", {"optimizer": {"kind": "muon"}}))
    for (arch, own), times in zip(arms, (1, 1, 1, 2), strict=True):
        small = {"shape": {"layers": 4}, "training": SMALL["training"] | own}
        planner.needs(resolve(arch, "tiny", layers=[Layer(small)]))
        assert len(counted) == times * ways


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
    assert needs.seconds_computed * 100 * 8 * 1e15 * 0.5 == pytest.approx(needs.flops)
    assert needs.hours * 3600 == pytest.approx(100 * max(needs.seconds_computed, needs.seconds_sent))
    assert planned(1.0, number=100).way.gpus == 64
    again, back = (planned(1.0, sharding="fsdp2", reshard=reshard).sent for reshard in (True, False))
    # In bf16: the blocks once more, with two bytes for each element.
    blocks = count_parameters(config.shape, final_structure(config).plan).block_matrices
    assert again - back == pytest.approx(7 / 8 * 2 * blocks)
    assert back == pytest.approx(7 / 8 * (4 * parameters + 4 * (parameters - blocks) + 2 * blocks))


def call(*words):
    return CliRunner().invoke(app, ["plan", *words])


@pytest.mark.long
def test_the_command_plans_the_runs_of_entries():
    found = json.loads(call("saobp-fig1", "--gpus", "2", "--json").stdout)
    assert found["gpus"] == 2 and [run["way"]["gpus"] for run in found["runs"]] == [2]
    assert found["gpu_hours"] == pytest.approx(2 * found["hours"])
    table = call("--gpus", "2", "--set", "shape.layers=1").stdout
    assert "vanilla tiny" in table and max(map(len, table.splitlines())) <= 80


@pytest.mark.long
def test_the_plan_of_an_entry_says_what_is_there_what_it_costs_and_how_it_starts():
    published = ["--results-dir", str(ROOT / "results")]
    found = json.loads(call("saobp-fig1", "--price", "3", "--json", *published).stdout)
    assert found["gpu_hours_left"] == found["gpu_hours"] > 0 and found["runs"][0]["seconds_here"] is None
    assert found["cost_left"] == pytest.approx(3 * found["gpu_hours"])
    assert found["commands"] == {
        "here": "hybridlab reproduce saobp-fig1 --scale paper --ranks 8",
        "slurm": "hybridlab reproduce saobp-fig1 --scale paper --launcher slurm --gpus-per-node 8",
    }
    many = json.loads(call("saobp-fig1", "--gpus", "20", "--json", *published).stdout)
    assert list(many["commands"]) == ["slurm"] and many["commands"]["slurm"].endswith("--nodes 3 --gpus-per-node 7")
    done = json.loads(call("saobp-fig1", "--scale", "smoke", "--json", *published).stdout)
    assert done["gpu_hours_left"] == 0 and done["runs"][0]["seconds_here"] > 0 and done["cost_left"] is None
    shown = " ".join(call("saobp-fig1", "--scale", "smoke", "--price", "3", *published).stdout.split())
    assert "there already: 1 run, " in shown and "minutes on" in shown and "at 3 for a GPU hour: 0.00" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "8", "--gpu", "h10"], "did you mean 'h100'?"),
        (["saobp-fig2", "--arch", "sgt"], "--arch has no effect with saobp-fig2"),
        (["saobp-table4"], "no run is needed at scale paper"),
        (["--scale", "paper"], "name the entries whose runs are planned"),
        (["--gpus", "2", "--seq-len", "64"], "--set training.seq_len=N"),
        (["--price", "2"], "has no effect without --gpus; add --gpus N"),
    ],
)
def test_mistakes_are_explained(words, said):
    done = call(*words)
    assert isinstance(done.exception, UserError) and said in str(done.exception)


def test_the_table_of_the_documentation_is_that_of_the_command():
    """Tokens and FLOPs of all entries, hours where the network is no limit, and the memory of the largest run."""
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", (ROOT / "docs" / "distributed.md").read_text(), re.MULTILINE)
    assert len(rows) == 5
    for name, cells in rows:
        runs, tokens, flops, eight, *_ = (cell.replace(",", "") for cell in cells.split(" | "))
        found = [config for _, config in ExperimentAtScale(load_experiment(name), "paper").runs().values()]
        spent = sum(training_flops(with_examples(config), of_a_gpu(with_examples(config))) for config in found)
        assert (int(runs), flops) == (len(found), f"{spent:.2e}")
        assert tokens == f"{sum(config.training.steps * config.training.tokens_per_step for config in found) / 1e9:.1f}"
        if name != "saobp-table1":
            assert float(eight.split()[0]) == pytest.approx(spent / (8 * 0.4 * 989e12) / 3600, abs=0.06)
    (largest,) = [
        config
        for name, config in ExperimentAtScale(load_experiment("sgt-table1"), "paper").runs().values()
        if name == "1.2B/block-loop"
    ]
    needs = Planner(8, gpu_named("h100"), 0.4).needs(largest)
    assert f"{needs.memory.total / 1e9:.1f} GB" == dict(rows)["sgt-table1"].split(" | ")[3].split(", ")[1]
