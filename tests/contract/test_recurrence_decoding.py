"""Loops over resolutions, decoded with a cache: the logits of the full pass, with the planned work and memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridlab.models.cache import KVCache
from hybridlab.models.ledger.parameters import kv_bytes
from hybridlab.plan.plan import Plan
from tests.contract.test_recurrence import LAYERS, TOPOLOGIES, build, ids, looped
from tests.models import cached_logits, padding_mask


@st.composite
def plans(draw):
    chunks = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    offset = tuple(draw(st.sampled_from(["half", "zero", draw(st.integers(0, g - 1))])) for g in chunks)
    shift = tuple(draw(st.sampled_from(["overlap", "parallel", g - 1 + draw(st.integers(0, 12))])) for g in chunks)
    shared = len(chunks) > 2 or draw(st.booleans())
    size = draw(st.integers(1, 2)) if shared else 1
    plan = Plan.plain(LAYERS).recur(
        1,
        size,
        chunks,
        shared=shared,
        topology=draw(st.sampled_from(TOPOLOGIES)),
        offset=offset,
        shift=shift,
        downscale=draw(st.sampled_from(["aggregate", "mean"])),
        upscale=draw(st.sampled_from(["allocate", "uniform"])),
        positions=draw(st.sampled_from(["chunk", "token"])),
    )
    for _ in range(draw(st.integers(0, 2))):
        heads = sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
        plan = plan.loop_heads(draw(st.integers(0, LAYERS - 1)), heads, draw(st.integers(1, 2)))
    return plan


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_decoding_equals_the_full_pass(data):
    """Any schedule, offset, shift, topology, head loops and windows inside, unequal lengths, any split."""
    draw = data.draw
    masks = draw(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2), min_size=LAYERS, max_size=LAYERS))
    model = build(draw(plans()), masks, draw(st.integers(1, 6)), seed=draw(st.integers(0, 3)))
    lengths = draw(st.lists(st.integers(1, 26), min_size=1, max_size=4))
    longest = max(lengths)
    cuts = sorted(draw(st.sets(st.integers(1, longest - 1), max_size=8))) if longest > 1 else []
    tokens = ids(longest, rows=len(lengths))
    mask = padding_mask(lengths)
    with torch.no_grad():
        wanted = model(tokens, attention_mask=mask).logits
        cached, _ = cached_logits(model, tokens, mask, cuts, draw(st.sampled_from([None, longest, longest + 5])))
        for row, length in enumerate(lengths):
            alone = model(tokens[row : row + 1, :length]).logits[0]
            torch.testing.assert_close(wanted[row, :length], alone, atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("family", ["llama", "qwen3", "neox", "gpt2"])
def test_every_family_generates_the_same_without_the_cache(family):
    model = build(looped((4, 2, 1), topology="mesh"), family=family)
    tokens = ids(17, rows=3)
    arguments = {"max_new_tokens": 15, "lengths": [17, 3, 9]}
    plain = model.generate(tokens, use_cache=False, **arguments)
    assert model.generate(tokens, **arguments).rows() == plain.rows()


def test_reading_the_latent_of_the_next_chunk_gives_other_logits():
    """Positive control: algorithm 2 as printed reads the newest latent, which is wrong for s ≥ g."""
    model = build(looped((4,), topology="anchor", shift=7))
    tokens = ids(21)
    with torch.no_grad():
        wanted = model(tokens).logits
        cache = KVCache(model.structure, 1)
        model(tokens[:, :-1], cache=cache)
        state = cache.loops[1].by_iteration[0]
        state["latents"] = state["latents"].roll(1, dims=1)
        assert (model(tokens[:, -1:], cache=cache).logits - wanted[:, -1:]).abs().max() > 1e-4


def test_bodies_run_once_for_each_complete_chunk_and_the_cache_has_the_planned_bytes():
    plan = looped((8, 4, 2, 1), topology="mesh")
    model, length = build(plan), 37
    (loop,) = plan.loops.values()
    tokens, mask = ids(length), torch.ones(1, length, dtype=torch.bool)
    with torch.no_grad():
        _, cache = cached_logits(model, tokens, mask, tuple(range(1, length)), capacity=length)
    expected = [sum(loop.triggers(t, i) for i in range(length)) for t in range(4)]
    assert cache.loops[1].triggered == expected == [loop.num_chunks(t, length) for t in range(4)]
    planned = kv_bytes(model.structure.changed(plan), length, "fp32")
    assert cache.bytes == 2 * planned
    same_depth = kv_bytes(model.structure.changed(looped((1, 1, 1, 1))), length, "fp32")
    assert planned < 0.7 * same_depth
    assert all(cache.loops[1].by_iteration[:3])


@pytest.mark.parametrize("offset,counts", [("half", [2, 2, 2, 2, 2, 2, 2, 1]), ("zero", [1, 2, 1, 3, 1, 2, 1, 4])])
def test_offsets_of_half_a_chunk_spread_the_work_evenly(offset, counts):
    (loop,) = looped((8, 4, 2, 1), offset=offset).loops.values()
    triggered = [sum(loop.triggers(t, i) for t in range(4)) for i in range(8)]
    assert sorted(triggered) == sorted(counts) and sum(triggered) == 15
