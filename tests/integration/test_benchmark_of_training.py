"""The benchmark kind `training`: seconds of whole runs, weighted over their structures, in turns."""

import pytest
import torch

from hybridlab.lab.papers import speed
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.speed import run_benchmark
from hybridlab.lab.reporting.table import build_table
from tests.conftest import SMALL_SHAPE

FILE = """
id: own-speed
title: Time of grown runs
paper: own
source: here
columns:
  - {{name: run, title: run, kind: timed, metric: "results.small.{{short}}.2.run.time_ratio", digits: 3}}
rows:
  - {{name: Baseline, short: Baseline, cell: benchmark}}
  - {{name: LIDAS, short: LIDAS, cell: benchmark}}
claims:
  - text: a grown run takes less time
    source: here
    test: {{kind: faster, rows: [LIDAS], over: [Baseline], parts: [run]}}
benchmark:
  kind: training
  models:
    Baseline: {{arch: vanilla, config: &settings {{shape: {shape}, training: {{steps: 100, precision: fp32}}}}}}
    LIDAS: {{arch: lidas, config: *settings}}
  sizes: {{smoke: {{small: tiny}}}}
  batches: [2]
  prompt: 16
  new_tokens: 1
  rounds: 3
  machines: {{smoke: here}}
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "speed.yaml"
    shape = {**SMALL_SHAPE, "layers": 8}
    path.write_text(FILE.format(shape=shape))
    return load_experiment(str(path))


def test_a_run_takes_the_time_of_its_stages(experiment, tmp_path, monkeypatch):
    """With a clock that counts layers, the ratio is that of the ledger's blocks: stages 8, 17, 25 and 50 of 100."""
    order = []

    def seconds(trainer, batch, length, steps):
        order.append(trainer.model.shape.layers)
        return float(trainer.model.shape.layers)

    monkeypatch.setattr(speed._Trainer, "seconds", seconds)
    record = run_benchmark(experiment, "smoke", tmp_path)
    measured = record.results["small"]["LIDAS"]["2"]
    mean = (8 * 2 + 17 * 4 + 25 * 6 + 50 * 8) / 100
    assert measured["run"].seconds == pytest.approx([mean] * 3)
    assert measured["run"].time_ratio.value == pytest.approx(mean / 8, abs=1e-4)
    assert measured["last_step"].time_ratio.value == 1.0
    # In turns, after a round to warm up, and with the other model first in every second round; each structure has a
    # step that is not timed.
    baseline, grown = [8, 8], [2, 2, 4, 4, 6, 6, 8, 8]
    assert order == baseline + grown + baseline + grown + grown + baseline + baseline + grown
    assert run_benchmark(experiment, "smoke", tmp_path) is None


def test_it_times_real_steps(experiment, tmp_path):
    record = run_benchmark(experiment, "smoke", tmp_path)
    for name in ("Baseline", "LIDAS"):
        for part in record.results["small"][name]["2"].values():
            assert len(part.seconds) == 3 and min(part.seconds) > 0
    assert record.dtype == "fp32"


def test_a_step_and_a_forward_pass_of_each_model_are_timed(tmp_path):
    path = tmp_path / "passes.yaml"
    text = FILE.format(shape={**SMALL_SHAPE, "layers": 2}).replace("kind: training", "kind: passes")
    text = text.replace("part: run}", "part: step}").replace("2.run.time", "2.step.time").replace("lidas", "rule-swa")
    claim = "kind: faster, rows: [LIDAS], over: [Baseline], parts: [forward], group: small, batch: 2, times: 50"
    path.write_text(text.replace("benchmark:\n", f"  - {{text: x, source: y, test: {{{claim}}}}}\nbenchmark:\n", 1))
    experiment = load_experiment(str(path))
    record = run_benchmark(experiment, "smoke", tmp_path)
    measured = record.results["small"]["LIDAS"]["2"]
    assert record.dtype == "fp32" and set(measured) == {"step", "forward"}
    assert all(len(part.seconds) == 3 for part in measured.values())
    table = build_table(experiment, "smoke", tmp_path)
    claim = table["claims"][1]
    assert claim["verdict"] in ("holds", "open"), "three rounds on a busy machine may decide nothing"
    assert "required below 3.9" in claim["evidence"], claim["evidence"]


def test_the_stages_of_a_run_share_their_tensors(experiment):
    """Memory of one model: layers, their gradients and what the optimizer keeps of them are the same tensors in all
    structures, and a step of one trains those of the others."""
    choice = experiment.benchmark.models["LIDAS"]
    run = speed._stages(choice, "tiny", torch.device("cpu"))
    first, last = run.stages[0][0], run.stages[-1][0]
    assert [trainer.model.shape.layers for trainer, _ in run.stages] == [2, 4, 6, 8]
    theirs = dict(last.model.named_parameters())
    assert all(parameter is theirs[name] for name, parameter in first.model.named_parameters())
    before = first.model.embedding.weight.clone()
    for trainer, _ in run.stages:
        trainer.seconds(2, 16, 1)
    assert not torch.equal(before, last.model.embedding.weight)
    assert set(last.optimizer.state) == set(theirs.values()) and first.optimizer.state is last.optimizer.state


@pytest.mark.parametrize("form", ["hybridlab", "eager", "compiled"])
def test_shared_tables_stay_tied_in_whatever_form(form):
    """With one of their names only, the head of an earlier structure would be a table of its own."""
    how = {"form": "sdpa", "compiled": True} if form == "compiled" else {"form": form}
    choice = speed.BenchmarkModel(arch="midas", config={"shape": {"layers": 4}}, **how)
    (first, _), (last, _) = speed._stages(choice, "gpt2-tiny", torch.device("cpu")).stages
    own, theirs = (dict(trainer.model.named_parameters()) for trainer in (first, last))
    assert len(own) < len(theirs) and all(parameter is theirs[name] for name, parameter in own.items())
    if form != "hybridlab":
        assert first.model.get_output_embeddings().weight is first.model.get_input_embeddings().weight


@pytest.mark.parametrize("kind", ["passes", "training", "generation"])
def test_settings_of_how_a_model_computes_are_those_of_the_measured_model(experiment, kind):
    """A kernel was ignored once, so that two rows of a table were the same model."""
    spec = experiment.benchmark
    config = {**spec.models["LIDAS"].config, "runtime": {"kernel": "eager", "activation_checkpointing": True}}
    spec = spec.model_copy(
        update={"kind": kind, "models": {"x": spec.models["LIDAS"].model_copy(update={"config": config})}}
    )
    made = speed.make_models(spec, "tiny", torch.device("cpu"))["x"]
    models = [trainer.model for trainer, _ in made.stages] if kind == "training" else [made.model]
    assert {(model.kernel, model.recompute) for model in models} == {("eager", True)}
