"""An objective that only this file knows trains, accumulates, resumes and is measured; the engine stays as it is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hybridlab.models.export import load_checkpoint
from hybridlab.training import objective as objective_module
from hybridlab.training.objective import Batch, NextToken, Objective
from hybridlab.training.store.metrics import read_metrics
from tests.training import assert_resumes_exactly, train, weights


class GroupOfLast(Objective):
    """Which of four groups the last token of a row is in, from the logits of the last position; some tokens of the
    inputs are hidden at random, as masked tokens are."""

    name = "group-of-last"

    def source(self, config, corpus):
        return NextToken().source(config, corpus)

    def batch(self, rows, seed, step):
        tokens = torch.from_numpy(rows.tokens)
        hidden = torch.from_numpy(np.random.default_rng((9, seed, step)).random(tokens.shape) < 0.1)
        hidden[:, -1] = False
        inputs = {"input_ids": tokens.masked_fill(hidden, 0)}
        return Batch(inputs, tokens[:, -1:] % 4, torch.ones(len(tokens), 1))

    def losses(self, output, batch):
        return F.cross_entropy(output.logits[:, -1, :4].float(), batch.targets[:, 0], reduction="none")[:, None]


@pytest.fixture(autouse=True)
def own_objective(monkeypatch):
    monkeypatch.setattr(objective_module, "NextToken", GroupOfLast)


def test_an_own_objective_trains_and_is_measured(small, tmp_path, runs_dir):
    config = small(training={"steps": 30, "optimizer": {"lr": 1e-2}})
    record = train(config, tmp_path / "a", runs_dir)
    assert record.history["loss"][0] == pytest.approx(np.log(4), abs=0.1) and record.history["loss"][-1] < 0.7
    assert record.results.validation.loss.n == 8 and len(record.results.validation.windows) == 8
    assert record.results.validation.loss.value == pytest.approx(np.mean(record.results.validation.windows), abs=1e-5)
    assert load_checkpoint(tmp_path / "a").structure.shape == config.shape


@pytest.mark.parametrize("step", [3, 7])
def test_an_own_objective_resumes_to_the_same_bits(small, tmp_path, runs_dir, monkeypatch, step):
    config = small()
    train(config, tmp_path / "whole", runs_dir)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step)


def test_micro_batches_give_the_same_gradient(small, tmp_path, runs_dir):
    for rows in (8, 3):
        train(small(runtime={"micro_batch_rows": rows}), tmp_path / str(rows), runs_dir)
    one, two = (
        [line["loss"] for line in read_metrics(tmp_path / name / "metrics.jsonl") if "loss" in line]
        for name in ("8", "3")
    )
    assert one == pytest.approx(two, rel=1e-4)
    a, b = weights(tmp_path / "8"), weights(tmp_path / "3")
    assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)
