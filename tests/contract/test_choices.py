"""Options scored with a shared cache get the log-likelihoods of whole rows, in every architecture."""

import numpy as np
import pytest
import torch

from hybridlab.attention.registry import ATTENTION_KINDS, register_kind
from hybridlab.attention.slots import NotCopied, selected_slot
from hybridlab.data.primitives import PRIMITIVES, items, prompt_with, solved_examples
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.evaluation.choices import has_cache, score_choices, tokenized
from hybridlab.models.build import build_model
from tests.conftest import SMALL_SHAPE
from tests.contract.test_architectures import DECODERS, build
from tests.contract.test_own_attention_kind import KINDS, Average, RunningMean, Sinks

TOKENIZER = make_tokenizer("bpe:300", [item.solved for name in PRIMITIVES for item in items(name, 40, 9)])


def by_hand(model, asked, before):
    """(N, O) without a cache, without batches: one row for each option, one sum of logarithms."""
    scores = []
    for item in asked:
        prompt = "".join(f"{example.prompt} {example.options[example.answer]}\n\n" for example in before) + item.prompt
        first = len(TOKENIZER.encode(prompt).ids)
        row = []
        for option in item.options:
            tokens = TOKENIZER.encode(f"{prompt} {option}").ids
            with torch.no_grad():
                likely = model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
            row.append(sum(float(likely[i - 1, tokens[i]]) for i in range(first, len(tokens))))
        scores.append(row)
    return np.array(scores)


def assert_scored_as_by_hand(model, name, cached=True):
    model = model.double().eval()
    asked, before = items(name, 3, 3), solved_examples(name, 2, 3)
    assert has_cache(model.structure) == cached
    scores = score_choices(model, tokenized(TOKENIZER, asked, before))
    np.testing.assert_allclose(scores, by_hand(model, asked, before), atol=1e-5)
    assert np.ptp(scores, axis=1).min() > 1e-3, "the options differ"


@pytest.mark.parametrize("arch", DECODERS)
def test_shared_examples_give_the_scores_of_whole_rows(arch):
    model = build(arch, init={"std": 0.2})
    name = "assignment-math" if arch == "vanilla" else "copying-random"
    assert_scored_as_by_hand(model, name, cached=not any(loop.literal for loop in model.plan.loops.values()))


PLANS = {
    "head loop": lambda p: p.loop_heads(1, (0, 3), 2),
    "block loop": lambda p: p.loop_blocks((1,), 1),
    "skipped and swapped": lambda p: p.skip(2).swap(0, 1),
    "dropped heads": lambda p: p.drop_heads(0, (1,), 4),
}


@pytest.mark.parametrize("plan", PLANS)
def test_edited_plans(plan):
    model = build("rule-swa", init={"std": 0.2})
    assert_scored_as_by_hand(model.with_plan(PLANS[plan](model.plan)), "copying-real")


@pytest.mark.parametrize("topology", ["anchor", "mesh"])
@pytest.mark.parametrize("chunks", [[4, 2, 1], [3, 1]])
def test_recurrence_over_chunks(chunks, topology):
    recurrence = {"pre": 1, "loop": 2, "post": 1, "chunks": chunks, "topology": topology}
    shape = {**SMALL_SHAPE, "layers": 4, "init": {"std": 0.2}}
    assert_scored_as_by_hand(build_model("looped", shape=shape, recurrence=recurrence), "assignment-basic")


def test_literal_chunks_have_no_cache_and_run_whole():
    recurrence = {"pre": 1, "loop": 2, "post": 1, "chunks": [4, 2, 1], "literal": True}
    shape = {**SMALL_SHAPE, "layers": 4, "init": {"std": 0.2}}
    assert_scored_as_by_hand(build_model("looped", shape=shape, recurrence=recurrence), "copying-random", cached=False)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_kinds_of_plug_ins(kind):
    register_kind(Sinks)
    register_kind(Average)
    try:
        shape = {**SMALL_SHAPE, "init": {"std": 0.2}}
        model = build_model("vanilla", shape=shape, map={"kind": "uniform", "attention": kind.to_json()})
        assert_scored_as_by_hand(model, "copying-random")
    finally:
        ATTENTION_KINDS.remove("sinks")
        ATTENTION_KINDS.remove("average")


def test_a_slot_that_cannot_be_copied_runs_whole(monkeypatch):
    """Its tensors are hidden in a list."""
    monkeypatch.setattr(RunningMean, "tensors", lambda self: [] if self.total is None else [self.total.clone()])
    test_kinds_of_plug_ins(Average())
    with pytest.raises(NotCopied, match="RunningMean cannot be copied"):
        slot = RunningMean()
        slot.total = torch.zeros(1)
        selected_slot(slot, [0, 0])


def test_masks_that_are_being_learned_run_whole():
    model = build_model("consa", shape=SMALL_SHAPE, window=5)
    gates = {layer: torch.full((SMALL_SHAPE["kv_heads"],), 0.5) for layer in range(SMALL_SHAPE["layers"])}
    asked, before = items("copying-real", 4, 0), solved_examples("copying-real", 1, 0)
    assert not has_cache(model.structure)
    scores = score_choices(model, tokenized(TOKENIZER, asked, before), inputs={"gates": gates})
    model.gates = gates
    np.testing.assert_allclose(scores, by_hand(model, asked, before), atol=1e-4)


def test_without_a_cache_all_rows_run_in_one_batch(monkeypatch):
    """Whole rows, and as many as there are different ones, with the scores that a cache gives."""
    model = build("vanilla", init={"std": 0.2}).double()
    other = model.with_plan(model.plan.skip(3))
    asked, before = items("assignment-code", 5, 0), solved_examples("assignment-code", 1, 0)
    questions = tokenized(TOKENIZER, asked, before)
    cached = [score_choices(each, questions) for each in (model, other)]
    calls, forward = [], type(model).forward

    def counting(self, tokens, *args, **kwargs):
        assert kwargs.get("cache") is None
        calls.append(tokens.shape)
        return forward(self, tokens, *args, **kwargs)

    monkeypatch.setattr("hybridlab.evaluation.choices.has_cache", lambda structure: False)
    monkeypatch.setattr(type(model), "forward", counting)
    scores = score_choices(other, questions)
    np.testing.assert_allclose(scores, cached[1], atol=1e-8)
    assert len(calls) == 1 and not np.allclose(scores, cached[0])
    assert calls[0][0] == len({tuple(row) for question in questions for row in question.rows()})


def test_the_examples_run_once_and_the_cache_of_them_stays_as_it_was(monkeypatch):
    model = build("vanilla")
    asked, before = items("copying-random", 30, 0), solved_examples("copying-random", 5, 0)
    seen, forward = [], type(model).forward

    def counting(self, tokens, *args, **kwargs):
        seen.append(tokens.numel())
        return forward(self, tokens, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", counting)
    questions = tokenized(TOKENIZER, asked, before)
    score_choices(model, questions)
    shared = len(TOKENIZER.encode(prompt_with(before, asked[0]).rpartition("\n\n")[0]).ids)
    whole = sum(len(row) for question in questions for row in question.rows())
    assert seen[0] >= shared and sum(seen) < 0.12 * whole
