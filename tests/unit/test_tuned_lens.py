"""The tuned lens: what it is before training, what training does, and its exits on unusual plans."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hybridlab.analysis.probes.tuned_lens import (
    Lens,
    Stream,
    divergence,
    exits,
    overlap,
    read_early,
    relative,
    train_lens,
    training_rows,
)
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder
from hybridlab.plan.plan import Plan
from tests.models import random_ids
from tests.unit.test_effects import LAYERS, model_of, without_layer

IDS = random_ids(24, rows=3)


def batches(seed=0, rows=4):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(400, (rows, 16), generator=generator).numpy()


def states_of(model, lens, ids=IDS):
    stream = Stream(lens.exits)
    with torch.no_grad():
        output = model(ids, taps=stream).logits
    return stream.states, output


@pytest.mark.parametrize("cap", [None, 0.5])
def test_a_lens_that_is_zero_is_the_logit_lens(cap):
    model = model_of()
    structure = replace(model.structure, shape=replace(model.shape, logit_cap=cap))
    model = Decoder.from_tensors(structure, dict(model.named_parameters()), model.kernel)
    lens = Lens(model)
    assert [one.name for one in lens.exits] == ["embedding", "L1", "L2", "L3", "L4", "L5"]
    states, output = states_of(model, lens)
    assert len(states) == LAYERS + 1 and torch.equal(states[0], model.embedding(IDS))
    for number, state in enumerate(states):
        assert torch.equal(lens.logits(number, state), model.logits(state))
        cut = model.with_plan(model.plan.truncate(number))(IDS).logits
        assert torch.equal(cut, model.logits(state)) and torch.equal(lens.model(number, model)(IDS).logits, cut)
    assert torch.equal(lens.logits(LAYERS, states[-1]), output) and lens.model(LAYERS, model) is model


def test_a_model_without_any_contribution_predicts_the_same_everywhere():
    model = model_of()
    for layer in range(LAYERS):
        without_layer(model, layer)
    found = read_early(Lens(model), model, IDS)
    assert found["kl"] == [0.0] * 6 and found["overlap"] == [1.0] * 6 and len(set(found["right"])) == 1


def test_training_brings_every_exit_nearer_and_changes_nothing_else():
    model = model_of()
    weights = {name: value.clone() for name, value in model.named_parameters()}
    recipe = {"steps": 60, "lr": 2e-2, "positions": 40, "seed": 0}
    before = read_early(Lens(model), model, IDS)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    lens, losses = train_lens(model, batches(), **recipe)
    assert torch.equal(torch.get_rng_state(), state), "the generator of a run belongs to the run"
    after = read_early(lens, model, IDS)
    assert all(trained < fresh for trained, fresh in zip(after["kl"][:-1], before["kl"][:-1], strict=True))
    assert after["kl"][-1] == 0 and after["overlap"][-1] == 1 and np.mean(losses[-6:]) < np.mean(losses[:6])
    assert all(torch.equal(weights[name], value) for name, value in model.named_parameters())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())
    again, same = train_lens(model, batches(), **recipe)
    assert same == losses
    assert all(torch.equal(a, b) for a, b in zip(lens.parameters(), again.parameters(), strict=True))
    other, _ = train_lens(model, batches(1), **recipe)
    assert not torch.equal(other.translators[0].weight, lens.translators[0].weight)


def test_the_norm_reads_the_translated_state():
    """A translator that scales the stream changes nothing, since the norm divides by its size."""
    model = model_of()
    lens = Lens(model)
    states, _ = states_of(model, lens)
    with torch.no_grad():
        lens.translators[2].weight.copy_(torch.eye(24) * 3.0)
    torch.testing.assert_close(lens.logits(2, states[2]), model.logits(states[2]), atol=1e-4, rtol=1e-4)


def test_an_affine_lens_is_found_where_the_rest_of_the_model_is_affine():
    """After the last layer but one of a model whose last layer adds a constant, the lens becomes that constant."""
    model = model_of(family="neox", layers=3)
    without_layer(model, 2)
    with torch.no_grad():
        model.blocks[2].mlp.down.bias.copy_(torch.linspace(-2, 2, 24))
    before = read_early(Lens(model), model, IDS)["kl"][2]
    lens, _ = train_lens(model, batches(), 200, 3e-2, 64, 0)
    assert read_early(lens, model, IDS)["kl"][2] < 0.02 * before


def test_divergence_and_overlap_in_closed_form():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    assert float(divergence(p.log() + 3, q.log() - 1)) == pytest.approx(0.25 * np.log(2), rel=1e-5)
    assert float(divergence(p.log(), p.log() + 7)) == pytest.approx(0, abs=1e-6)
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(200, 12, generator=generator), torch.randn(200, 12, generator=generator)
    shared = overlap(one, other)
    assert torch.equal(shared, overlap(other, one)) and torch.equal(overlap(one, one), torch.ones(200))
    assert {round(value, 5) for value in shared.tolist()} <= {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}
    assert float(shared.mean()) == pytest.approx(5 / 12, abs=0.05)


def test_exits_of_unusual_plans():
    plan = Plan.plain(4).loop_heads(layer=1, heads=(0, 2), extra_passes=2)
    assert [(one.name, one.items) for one in exits(plan)] == [
        ("embedding", 0),
        ("L1", 1),
        ("L2", 5),
        ("L3", 6),
        ("L4", 7),
    ]
    model = model_of(5, "looped", recurrence={"pre": 1, "loop": 2, "post": 2, "chunks": [2, 1], "topology": "mesh"})
    lens = Lens(model)
    assert [one.name for one in lens.exits] == ["embedding", "L1", "loop 1", "L4", "L5"]
    states, _ = states_of(model, lens)
    for number, state in enumerate(states):
        assert torch.equal(lens.model(number, model)(IDS).logits, model.logits(state))


def test_a_lens_that_diverges_says_so():
    with pytest.raises(UserError, match=r"the lens diverged at step \d+; lower --lr"):
        train_lens(model_of(), batches(), 80, 1e37, 64, 0)


def test_training_rows_are_those_of_the_run_and_its_tasks(small, tmp_path):
    config = small(data={"mix": {"text": 0.5, "retrieval": 0.5}})
    corpus = corpus_for(config.data, tmp_path / "data")
    first, again = (list(itertools.islice(training_rows(config, corpus, 3, 0), 4)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)) and first[0].shape == (3, 32)
    tokens = np.concatenate(list(itertools.islice(training_rows(config, corpus, 3, 1), 30)))
    task = (tokens >= corpus.vocab).any(1)
    assert 0.3 < task.mean() < 0.7 and (tokens[task] >= corpus.vocab).all()
    windows = {bytes(row) for row in np.concatenate(corpus.train)[: len(corpus.train[0]) // 32 * 32].reshape(-1, 32)}
    assert {bytes(row.astype(corpus.train[0].dtype)) for row in tokens[~task]} <= windows


def test_relative_accuracy():
    assert relative([0.0, 0.25, None, 0.5]) == [0.0, 0.5, None, 1.0] and relative([0.3, 0.0]) == [None, None]
