"""Measuring a model: which text, which rows, and the checks before any number."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hybridlab.attention import kernels
from hybridlab.config.resolve import resolve
from hybridlab.config.structures import structure_of, window_reach
from hybridlab.data.preparing import corpus_for
from hybridlab.data.tasks import NUM_VALUES, make_row
from hybridlab.errors import RunFailed, UserError
from hybridlab.evaluation.causality import require_causal
from hybridlab.evaluation.measure import measure, task_result
from hybridlab.evaluation.results import TaskResult
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.models.build import build_model
from hybridlab.runs.evaluate import evaluate_run
from hybridlab.training.objective import NextToken
from hybridlab.training.store.folders import Runs
from tests.conftest import write_text
from tests.experiments import cell_configs


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_rows_of_consa_table1_have_answers_outside_the_windows_reach(scale):
    config = cell_configs(load_experiment("consa-table1"), scale, 0)["all-window/2"]
    visits = sum(visit.part != "mlp" for _, visit in structure_of(config).plan.places())
    reach = visits * (structure_of(config).map.layers[0][0].width - 1)
    rows = [make_row("retrieval", config.training.seq_len, np.random.default_rng(i)) for i in range(60)]
    assert sum((row.distances > reach).sum() for row in rows) > 60


def test_the_causality_probe_runs_every_kernel_that_is_measured(monkeypatch):
    model = build_model("vanilla")

    def leaky(q, k, v, visible):
        return kernels.sdpa(q, k, v, visible) + v.mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1)

    monkeypatch.setitem(kernels.KERNELS, "eager", leaky)
    assert require_causal(model, 64, ["sdpa"]) < 1e-5
    with pytest.raises(RunFailed, match="kernel eager"):
        require_causal(model, 64, ["eager", "sdpa"])
    assert model.kernel == "auto" and window_reach(model.plan, 9) == 64


def test_own_text_is_measured_on_its_validation_part_and_other_text_whole(trained, tmp_path):
    config, runs = trained
    own = evaluate_run(str(runs / "parent"), Runs(runs), None, [])
    again = evaluate_run(str(runs / "parent"), Runs(runs), config.data.source, [])
    assert again.validation == own.validation
    other = f"text:{write_text(tmp_path / 'other.txt', 50_000, seed=3)}"
    setting = ["evaluation={validation_windows: 100000}"]
    whole = evaluate_run(str(runs / "parent"), Runs(runs), other, setting)
    assert whole.validation.loss.n > 0.9 * 50_000 / config.training.seq_len


class Reader(torch.nn.Module):
    """Looks facts of the task retrieval up to `sight` tokens back, and guesses where the fact is further away."""

    def __init__(self, model, offset, sight):
        super().__init__()
        self.model, self.offset, self.sight = model, offset, sight
        self.shape, self.plan, self.attention_map = model.shape, model.plan, model.attention_map
        self.device = model.device

    def forward(self, tokens, **_):
        logits = torch.zeros(*tokens.shape, self.shape.vocab)
        for row, ids in enumerate((tokens - self.offset).tolist()):
            for place, token in enumerate(ids):
                seen = [t for t in ids[max(0, place - self.sight) : place] if t < 64 and t // NUM_VALUES == token - 64]
                if seen:
                    logits[row, place, self.offset + 72 + seen[-1] % NUM_VALUES] = 40.0
        return SimpleNamespace(logits=logits)


def test_losses_and_accuracies_of_tasks_are_split_by_distance():
    config = resolve("vanilla", "tiny", "recall", settings=["evaluation.task_rows=30", "evaluation.task_window=8"])
    model = build_model("vanilla", shape={"layers": 2})
    text = SimpleNamespace(context=nullcontext(), inputs={}, objective=NextToken())
    near = task_result(Reader(model, 5, 7), config, text, "retrieval", 5, 8)
    assert near.reach == 14 and near.chance == 1 / 8
    assert near.loss.inside.value < 1e-6 and near.inside.value == 1.0
    guess = pytest.approx(math.log(8))
    assert near.loss.far.value == near.loss.outside.value == near.loss.relayed.value == guess
    assert near.far.value < 0.3 and near.loss.all.value == pytest.approx(math.log(8) * near.far.n / near.all.n)
    assert near.far.n == near.relayed.n + near.outside.n == near.loss.far.n and near.relayed.n > 50 < near.outside.n
    assert near.loss.far.stderr < 1e-6 < 0.01 < near.loss.all.stderr
    whole = task_result(Reader(model, 5, 200), config, text, "retrieval", 5, None)
    assert whole.loss.all.value < 1e-6 and whole.loss.far is whole.far is whole.loss.inside is whole.reach is None


def test_a_result_from_before_there_were_losses_can_be_read():
    old = {"chance": 0.125, "window": 8, "reach": 56, "all": {"value": 0.5, "stderr": 0.1, "n": 25}}
    assert TaskResult(**old).loss is None and TaskResult(**old).far is None


def test_measuring_checks_that_the_vocabulary_fits(trained):
    _, runs = trained
    settings = ["data.mix={text: 0.5, retrieval: 0.5, assignment: 0.0}", "data.tokenizer=byte"]
    model = build_model("vanilla", shape={"vocab": 260})
    config = resolve("vanilla", "tiny", settings=[*settings, "shape.vocab=260"])
    corpus = corpus_for(
        resolve("vanilla", "tiny", settings=["data.tokenizer=byte", "data.max_documents=40"]).data, runs
    )
    with pytest.raises(UserError, match="shape.vocab = 260"):
        measure(model, config, corpus, "fp32")
