"""Cached decoding gives the logits of the full pass: any map, plan and family, unequal prompts, any split."""

import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from hybridlab.attention.belief import Belief
from hybridlab.attention.kinds import Full, Window
from hybridlab.attention.slots import KeyValues, has_step
from hybridlab.errors import UserError
from hybridlab.models import blocks
from hybridlab.models import generate as generation
from hybridlab.models.build import build_model
from hybridlab.models.cache import KVCache, VisitCache
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.models.generate import Sampling
from hybridlab.models.ledger.parameters import kv_bytes
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from tests.combinations import combinations
from tests.models import cached_logits, padding_mask, random_ids

FAMILIES = {
    "llama": {"family": "llama"},
    "qwen3": {"family": "qwen3"},
    "neox": {"family": "neox", "rotary_fraction": 0.5},
    "gpt2": {"family": "gpt2", "max_positions": 64},
    "olmo2": {"family": "olmo2"},
}
CAPPED = {"gemma2": {"family": "gemma2", "score_cap": 0.5, "score_width": 3, "logit_cap": 2.0}}
VOCAB = 61
MASKS = [[0, 1], [1, 1], [0, 0]]


def build(family="qwen3", window=5, plan=lambda p: p, masks=MASKS, seed=0, kinds=None):
    """kinds: of all KV heads, layer by layer, instead of masks."""
    layers = len(masks if kinds is None else kinds)
    shape = Shape(
        layers=layers,
        width=24,
        heads=4,
        kv_heads=2,
        head_width=8,
        ffn_width=40,
        vocab=VOCAB,
        init={"std": 0.2},
        **(FAMILIES | CAPPED)[family],
    )
    attention_map = AttentionMap.from_masks(masks, window) if kinds is None else AttentionMap(kinds)
    made = Decoder(Structure(shape, plan(Plan.plain(layers, shape.traits.parallel)), attention_map))
    draw_weights(made, seed)
    return made.double()


def prompts(lengths):
    """Token ids of rows with these lengths, and their mask."""
    return random_ids(max(lengths), rows=len(lengths), vocab=VOCAB), padding_mask(lengths)


PLANS = {
    "plain": lambda p: p,
    "head loop": lambda p: p.loop_heads(1, (0, 3), 2),
    "one head of a group": lambda p: p.loop_heads(0, (1,), 1).loop_heads(2, (0, 1, 2), 1),
    "swapped": lambda p: p.swap(0, 2).skip(1),
    "dropped heads": lambda p: p.drop_heads(0, (1,), 4),
}


HIGH, LOW, ELEMMUL = Belief("high", 1.0), Belief("low", 0.5), Belief("elemmul")
REFINED = {
    "high": ((HIGH, HIGH),) * 3,
    "elemmul": ((ELEMMUL, ELEMMUL),) * 3,
    "mixed": ((LOW, Window(5)), (HIGH, ELEMMUL), (Full(), HIGH)),
    "scaled": ((Belief("high", 2.0, length_ref=6),) * 2,) * 3,
}


CUTS = [(), (1,), (4, 5, 6, 20), tuple(range(1, 23))]


@combinations("family, plan, cuts", [*FAMILIES, *CAPPED], PLANS.keys(), CUTS)
def test_cached_equals_full(family, plan, cuts):
    model = build(family, plan=PLANS[plan])
    ids, mask = prompts([23, 9, 16])
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        cached, _ = cached_logits(model, ids, mask, cuts)
    torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-8)


def stepped(model, ids, lengths, step=Decoder.step):
    """Rows of logits of one token at a time after prompts of these lengths, to the end of the longest row."""
    cache, at, rows = KVCache(model.structure, len(ids), 32), torch.tensor(lengths), torch.arange(len(ids))
    model(ids[:, : max(lengths)], attention_mask=padding_mask(lengths), cache=cache)
    found = []
    while int(at.max()) < ids.shape[1]:
        found.append(step(model, ids[rows, at][:, None], cache, at)[:, 0])
        at = at + 1
    return torch.stack(found, 1)


def wanted_of(model, ids, lengths):
    """`stepped`, from one full pass."""
    count = ids.shape[1] - max(lengths)
    return torch.stack([row[start : start + count] for row, start in zip(model(ids).logits, lengths, strict=True)])


@combinations("family, plan", [*FAMILIES, *CAPPED], PLANS.keys())
def test_steps_whose_counts_are_tensors_equal_the_full_pass(family, plan):
    """Windows of five have gone round their rings several times by the end."""
    model, ids = build(family, plan=PLANS[plan]), random_ids(30, rows=3, vocab=VOCAB)
    with torch.no_grad():
        for lengths in ([1, 1, 1], [7, 7, 7], [9, 2, 5]):
            torch.testing.assert_close(
                stepped(model, ids, lengths), wanted_of(model, ids, lengths), atol=1e-10, rtol=1e-8
            )


@combinations("kinds, plan", REFINED.keys(), PLANS.keys())
def test_steps_of_refined_weights_equal_the_full_pass(kinds, plan):
    model, ids = build(plan=PLANS[plan], kinds=REFINED[kinds]), random_ids(24, rows=3, vocab=VOCAB)
    with torch.no_grad():
        found, wanted = stepped(model, ids, [9, 2, 5]), wanted_of(model, ids, [9, 2, 5])
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)


def test_steps_at_other_positions_give_other_logits():
    """Positive control: what a step sees follows from the positions alone."""
    model, ids = build(), random_ids(20, rows=1, vocab=VOCAB)
    with torch.no_grad():
        late = stepped(model, ids, [9], lambda model, tokens, cache, at: model.step(tokens, cache, at + 1))
        assert (late - wanted_of(model, ids, [9])).abs().max() > 1e-3


@pytest.mark.parametrize("kinds", [None, REFINED["mixed"]], ids=["windows", "refined"])
def test_one_graph_generates_all_tokens_of_several_prompts(kinds, monkeypatch):
    """The graph is run as torch makes it; whatever it cannot hold would be an error. test_compiled_runs compiles."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(
        generation,
        "compiled_form",
        functools.cache(lambda step, in_cuda_graphs: torch.compile(step, fullgraph=True, backend="eager")),
    )
    model = build(masks=MASKS[:2], kinds=kinds and kinds[:2], plan=PLANS["head loop"])
    for lengths in ([9, 2, 5], [3, 8, 8]):
        ids = random_ids(max(lengths), rows=3, vocab=VOCAB)
        asked = {"max_new_tokens": 22 - max(lengths), "lengths": lengths}
        assert model.generate(ids, compiled=True, **asked).rows() == model.generate(ids, **asked).rows()
    assert counters["stats"]["unique_graphs"] == 1
    sampled = {"max_new_tokens": 9, "temperature": 1.0, "top_k": 5, "seed": 3, "stop_token": 4}
    assert model.generate(ids, compiled=True, **sampled).rows() == model.generate(ids, **sampled).rows()


def test_compiled_steps_write_to_the_same_addresses_again(monkeypatch):
    """A CUDA graph that was recorded for other addresses would be recorded once more."""
    monkeypatch.setattr(generation, "compiled_form", lambda step, in_cuda_graphs: step)
    seen, plain = [], KVCache.keep_addresses
    monkeypatch.setattr(KVCache, "keep_addresses", lambda cache: (seen.append(cache), plain(cache)))

    def addresses():
        return [tensor.data_ptr() for visit in seen[-1].visits.values() for tensor in visit.tensors()]

    for kinds in (None, REFINED["mixed"]):
        model, found = build(kinds=kinds, plan=PLANS["head loop"]), []
        for lengths in ([9, 2, 5], [3, 8, 8]):
            ids = random_ids(max(lengths), rows=3, vocab=VOCAB)
            asked = {"max_new_tokens": 22 - max(lengths), "lengths": lengths}
            assert model.generate(ids, compiled=True, **asked).rows() == model.generate(ids, **asked).rows()
            found.append(addresses())
        assert found[0] == found[1] != []
        model.float().generate(ids, 14, compiled=True)
        assert addresses() != found[0], "weights of another type need another cache"
    first = seen[-1]
    model.generate(ids, 14, until=lambda rows: bool(model.generate(ids, 14, compiled=True)), compiled=True)
    assert seen[-2] is first and seen[-1] is not first, "one that is in use is left alone"
    for new, capacity in ((200, 256), (300, 512), (600, 768)):
        model.generate(ids, new, compiled=True, until=lambda rows: len(rows[0]) == 2)
        assert seen[-1].capacity == capacity


@combinations("kinds, plan", [None, *REFINED], PLANS.keys())
def test_decoding_asks_the_device_for_nothing(kinds, plan):
    """A tensor of the device `meta` has no numbers, so that each question is an error."""
    model = build(kinds=kinds and REFINED[kinds], plan=PLANS[plan]).to("meta")
    tokens, at = torch.zeros(3, 7, dtype=torch.long, device="meta"), torch.zeros(3, dtype=torch.long, device="meta")
    cache, generators = KVCache(model.structure, 3, 32), [torch.Generator().manual_seed(row) for row in range(3)]
    with torch.inference_mode():
        for part in (tokens, tokens[:, :1], tokens[:, :2]):
            logits = model(part, cache=cache).logits[:, -1]
        for settings in ({}, {"temperature": 1.0, "top_k": 3, "top_p": 0.5}, {"temperature": 1e-12}):
            picked = Sampling(**settings).pick(logits, generators)
            logits = model.step(picked[:, None], cache, at)[:, 0]
    with pytest.raises(RuntimeError, match="meta"):
        logits.sum().item()  # the control


def test_tokens_that_are_read_later_are_the_same(monkeypatch):
    model, lengths = build(), [9, 2, 5]
    ids, _ = prompts(lengths)

    def made(**others):
        asked = []
        until = lambda rows: asked.append([len(row) for row in rows]) or len(asked) == 8  # noqa: E731
        return model.generate(ids, 20, lengths=lengths, until=until, **others).rows(), asked

    settings = [{}, {"stop_token": 4}, {"temperature": 1.0, "seed": 3}, {"use_cache": False}]
    at_once = [made(**others) for others in settings] + [model.generate(ids, 20, lengths=lengths).rows()]
    for every in (3, 16):
        monkeypatch.setattr(generation, "_READ_EVERY", {"cpu": every})
        later = [made(**others) for others in settings] + [model.generate(ids, 20, lengths=lengths).rows()]
        assert later == at_once


def test_what_cannot_be_one_graph_is_refused():
    ids = random_ids(5, vocab=VOCAB)
    with pytest.raises(UserError, match="compiled steps need the cache; leave out --compile, or --no-cache"):
        build().generate(ids, 3, compiled=True, use_cache=False)
    with pytest.raises(UserError, match="position 68: this model has learned positions 0 to 63 only"):
        build("gpt2").generate(ids, 65, compiled=True)
    assert build("gpt2").generate(ids, 60).lengths == [65, 65], "the last token needs no position"
    spiral = build_model("spiral-b", size="tiny")
    with pytest.raises(
        UserError, match="compute a chunk once it is complete, which one compiled graph for all tokens cannot"
    ):
        spiral.generate(ids, 3, compiled=True)


class Counted(KeyValues):
    """A slot with an attend of its own, and the step of another."""

    def attend(self, *arguments):
        return super().attend(*arguments)


def test_a_step_belongs_to_the_attend_beside_it():
    cache = KVCache(build().structure, 1, 8)
    cache.require_steps()
    heads, slot = cache.visits[(0,)].slots[0]
    cache.visits[(0,)].slots[0] = (heads, Counted(None, capacity=8))
    assert has_step(slot) and not has_step(Counted(None))
    with pytest.raises(UserError, match="the cache slot Counted has no step of its own for compiled generation; write"):
        cache.require_steps()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_maps_windows_lengths_and_splits(data):
    masks = data.draw(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2), min_size=3, max_size=3))
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(lengths) - 1), max_size=6))) if max(lengths) > 1 else []
    capacity = data.draw(st.sampled_from([None, max(lengths), max(lengths) + 7]))
    model = build(window=data.draw(st.integers(1, 12)), masks=masks)
    ids, mask = prompts(lengths)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        cached, _ = cached_logits(model, ids, mask, cuts, capacity)
    torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-8)


def test_kinds_with_scores_of_their_own_are_refused_where_scores_are_capped():
    with pytest.raises(UserError, match="heads of kind belief compute scores of their own, .*score_cap=null"):
        build("gemma2", kinds=REFINED["high"])


@combinations("kinds, family, plan", REFINED.keys(), FAMILIES.keys(), PLANS.keys())
def test_cached_refined_weights_equal_those_of_the_full_pass(kinds, family, plan):
    model = build(family, plan=PLANS[plan], kinds=REFINED[kinds])
    ids, mask = prompts([23, 9, 16])
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        for cuts, capacity in (((), None), ((1,), 23), ((4, 5, 6, 20), None), (tuple(range(1, 23)), 30)):
            cached, _ = cached_logits(model, ids, mask, cuts, capacity)
            torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-8)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_refined_weights_of_random_maps_lengths_and_splits(data):
    kind = st.sampled_from([HIGH, LOW, ELEMMUL, Full(), Window(3)])
    kinds = tuple((data.draw(kind), data.draw(kind)) for _ in range(3))
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(lengths) - 1), max_size=5))) if max(lengths) > 1 else []
    plan = random_plan(data.draw)
    model = build(kinds=kinds, plan=lambda _: plan)
    ids, mask = prompts(lengths)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        cached, cache = cached_logits(model, ids, mask, cuts)
        torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-8)
        if len(set(lengths)) == 1:
            again = model(ids[:, :1], cache=cache.repeated(1)).logits
            torch.testing.assert_close(model(ids[:, :1], cache=cache).logits, again)


def test_a_cache_without_the_sums_of_earlier_rows_gives_other_logits():
    """Positive control: keys and values alone do not give the refined weights."""
    model = build(kinds=REFINED["high"])
    ids, _ = prompts([20])
    with torch.no_grad():
        cache = KVCache(model.structure, 1)
        model(ids[:, :-1], cache=cache)
        for visit in cache.visits.values():
            visit.slots[0][1].sent.zero_()
        assert (model(ids[:, -1:], cache=cache).logits - model(ids).logits[:, -1:]).abs().max() > 1e-3


def test_generation_with_refined_weights_is_the_same_without_the_cache():
    for kinds in REFINED.values():
        model = build(kinds=kinds)
        ids, _ = prompts([17, 3, 9])
        arguments = {"max_new_tokens": 12, "lengths": [17, 3, 9]}
        assert model.generate(ids, **arguments).rows() == model.generate(ids, use_cache=False, **arguments).rows()


def test_a_leaking_decoder_has_no_cache():
    leaking = build(kinds=((Belief("high", send="leaking"),) * 2,) * 3)
    with pytest.raises(UserError, match="send: leaking a token depends on later ones.*decode without a cache"):
        KVCache(leaking.structure, 1)
    ids, _ = prompts([5])
    assert leaking.generate(ids, 3, use_cache=False).lengths == [8]


def random_plan(draw, layers=3, heads=4):
    """Head loops, block loops and other edits, in any order."""
    plan = Plan.plain(layers)
    for _ in range(draw(st.integers(0, 4))):
        layer = draw(st.integers(0, layers - 1))
        chosen = sorted(draw(st.sets(st.integers(0, heads - 1), min_size=1)))
        passes = draw(st.integers(1, 2))
        plan = draw(
            st.sampled_from(
                [
                    plan.loop_heads(layer, chosen, passes),
                    plan.loop_blocks([layer], passes),
                    plan.swap(layer, (layer + 1) % layers),
                    plan.drop_heads(layer, chosen[1:], heads),
                ]
            )
        )
    return plan if len(plan.visits) <= 24 else Plan.plain(layers)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_random_plans_with_fading_heads(data):
    """Before, during and after a fade: every loop of the plan may have factors, 1 and 0 among them."""
    plan = random_plan(data.draw)
    model = build(window=data.draw(st.integers(1, 9)), plan=lambda _: plan)
    loops = {place: len(visit.heads) for place, visit in plan.places() if visit.part == "attention" and visit.heads}
    value = st.sampled_from([0.0, 0.3, 1.0])
    factors = {
        place: torch.tensor(data.draw(st.lists(value, min_size=n, max_size=n)), dtype=torch.double)
        for place, n in loops.items()
        if data.draw(st.booleans())
    }
    model = model.with_plan(factors=factors)
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(lengths) - 1), max_size=5))) if max(lengths) > 1 else []
    ids, mask = prompts(lengths)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        cached, _ = cached_logits(model, ids, mask, cuts)
    torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-8)


def test_a_loop_that_sees_only_the_new_token_gives_other_logits():
    """Positive control: the released code's loop sees only the current token when it decodes."""
    model = build(plan=lambda p: p.loop_heads(1, (0, 3), 2), masks=[[1, 1]] * 3)
    ids, mask = prompts([12])
    with torch.no_grad():
        cache = KVCache(model.structure, 1)
        model(ids[:, :-1], cache=cache)
        serving = model.structure.heads(model.plan[(2,)]).serving
        cache.visits[(2,)] = VisitCache(serving, model.attention_map.layers[1], 1, None)
        broken = model(ids[:, -1:], cache=cache).logits
        assert (broken - model(ids).logits[:, -1:]).abs().max() > 1e-3


def test_factors_must_have_one_value_for_each_head_of_their_visit():
    model = build(plan=lambda p: p.loop_heads(1, (0, 3), 1))
    with pytest.raises(UserError, match=r"visit at \(2,\) has 2 heads"):
        model.with_plan(factors={(2,): torch.ones(4)})
    faded = model.with_plan(factors={(2,): torch.zeros(2)})
    assert faded.with_plan(Plan.plain(3)).factors == {} and faded.with_plan().factors == faded.factors


def test_heads_that_still_run_keep_their_factors_in_another_plan():
    """With factors of 1 and 0, every edit must give what it gives of a loop of the heads with 1."""
    model = build(plan=lambda p: p.loop_heads(1, range(4), 2))
    faded = model.with_plan(factors={place: torch.tensor([1.0, 0.0, 0.0, 1.0]) for place in ((2,), (3,))})
    clean = model.with_plan(Plan.plain(3).loop_heads(1, (0, 3), 2))
    ids, _ = prompts([12])
    edits = [
        lambda plan: plan.skip(0),
        lambda plan: plan.reverse(0, 2),
        lambda plan: plan.drop_heads(1, (0,), 4),
        lambda plan: plan.drop_heads(1, (1,), 4),
        lambda plan: plan.drop_heads(1, (0, 3), 4),
        lambda plan: plan.without_repeats(4),
    ]
    with torch.no_grad():
        for edit in edits:
            found, wanted = (it.with_plan(edit(it.plan))(ids).logits for it in (faded, clean))
            torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-8)


def test_a_cache_with_a_window_one_too_wide_gives_other_logits():
    """Positive control: the comparison of logits notices one key too many."""
    model, wide = build(window=5), build(window=6)
    ids, mask = prompts([20])
    with torch.no_grad():
        assert (cached_logits(wide, ids, mask, (7,))[0] - model(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize("kinds", [None, REFINED["mixed"]], ids=["windows", "refined"])
@pytest.mark.parametrize("context", [3, 5, 12, 40])
def test_cache_bytes_equal_the_planned_ones(context, kinds):
    plan = PLANS["head loop"]
    model = build(plan=plan, kinds=kinds).float()
    ids, mask = prompts([context, context])
    with torch.no_grad():
        _, cache = cached_logits(model, ids, mask, (), capacity=context)
    planned = kv_bytes(model.structure, context, "fp32")
    tensors = {t.data_ptr(): t for visit in cache.visits.values() for t in visit.tensors()}
    assert sum(t.numel() * 4 for t in tensors.values()) == cache.bytes == 2 * planned


def test_a_half_windowed_cache_is_half_as_large():
    shape = Shape(family="qwen3", layers=4, width=8, heads=4, kv_heads=4, head_width=2, ffn_width=8, vocab=16)
    plan, context = Plan.plain(4), 32768
    half = AttentionMap.rule(4, 4, "head", 0.5, 512)
    sizes = []
    for attention_map in (half, AttentionMap.uniform(4, 4, Full())):
        model = Decoder(Structure(shape, plan, attention_map))
        draw_weights(model, 0)
        cache = KVCache(model.structure, 1, context)
        with torch.no_grad():
            for _ in range(2):
                model(torch.zeros(1, 700, dtype=torch.long), cache=cache)
        assert cache.bytes == kv_bytes(model.structure, context, "fp32")
        sizes.append(cache.bytes)
    assert sizes[0] / sizes[1] <= 0.52


def test_what_a_cache_cannot_do_is_refused():
    model = build()
    ids, mask = prompts([6])
    cache = KVCache(model.structure, 1, capacity=8)
    model(ids, cache=cache)
    with pytest.raises(UserError, match="9 tokens do not fit into its capacity of 8"):
        model(ids[:, :3], cache=cache)
    for arguments in ({"need": "full"}, {"segment_ids": mask.long()}, {"position_ids": torch.arange(6)}):
        with pytest.raises(UserError, match="cache"):
            model(ids, cache=cache, **arguments)
    with pytest.raises(UserError, match="another batch size or another structure"):
        model(ids.repeat(2, 1), cache=cache)
    with pytest.raises(UserError, match="another structure"):
        model.with_plan(model.plan.skip(0))(ids[:, :1], cache=cache)
    with pytest.raises(UserError, match="mixed heads"):
        KVCache(build_model("consa").structure, 1)
    with pytest.raises(UserError, match="to the right"):
        model(ids, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]]))
    with pytest.raises(UserError, match="learned positions 0 to 63"):
        gpt2 = build("gpt2")
        gpt2(torch.zeros(1, 65, dtype=torch.long))


# ---- generation ----


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_is_the_same_without_the_cache(family):
    model = build(family)
    ids, _ = prompts([17, 3, 9])
    arguments = {"max_new_tokens": 20, "lengths": [17, 3, 9]}
    cached, plain = model.generate(ids, **arguments), model.generate(ids, use_cache=False, **arguments)
    assert cached.rows() == plain.rows() and cached.lengths == [37, 23, 29]
    single = [model.generate(ids[i : i + 1, :n], 20).rows()[0] for i, n in enumerate([17, 3, 9])]
    assert cached.rows() == single


def test_greedy_takes_the_likeliest():
    model = build()
    ids, _ = prompts([5])
    rows = model.generate(ids, 6).rows()[0]
    with torch.no_grad():
        logits = model(torch.tensor([rows])).logits[0]
    assert rows[5:] == logits[4:-1].argmax(-1).tolist()


def test_sampling_keeps_to_its_limits():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)

    def shares(**settings):
        return (
            torch.bincount(Sampling(temperature=1.0, **settings).pick(logits, [generator] * len(logits)), minlength=4)
            / 4000
        )

    torch.testing.assert_close(shares(), torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03, rtol=0)
    torch.testing.assert_close(shares(top_k=2), torch.tensor([0.625, 0.375, 0, 0]), atol=0.03, rtol=0)
    torch.testing.assert_close(shares(top_p=0.8), torch.tensor([0.625, 0.375, 0, 0]), atol=0.03, rtol=0)
    assert shares(top_p=0.81)[2] > 0 and shares(top_p=1e-6)[0] == 1 and shares(top_k=99)[3] > 0
    assert (Sampling().pick(logits, [generator] * len(logits)) == 0).all()
    for temperature in (1e-4, 1e-40, 1e-50, 1e-300):
        for others in ({}, {"top_k": 2}, {"top_p": 0.8}):
            cold = Sampling(temperature=temperature, **others).pick(logits, [generator] * len(logits))
            assert (cold == 0).all(), temperature


def test_draws_are_those_of_torch_and_their_chances_are_numbers():
    logits, seeds = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)), [5, 6, 7, 5, 6, 7]
    ours, theirs = ([torch.Generator().manual_seed(seed) for seed in seeds] for _ in range(2))
    for _ in range(20):
        picked = Sampling(temperature=0.7).pick(logits, ours)
        chances = (logits / 0.7).softmax(-1)
        drawn = [torch.multinomial(*row[:1], 1, generator=row[1]) for row in zip(chances, theirs, strict=True)]
        assert picked.tolist() == torch.cat(drawn).tolist()
    with pytest.raises(RuntimeError, match="the logits are no finite numbers"):
        Sampling(temperature=0.7).pick(logits.masked_fill(logits > 2, torch.nan), ours)


def test_a_seed_fixes_the_draws_and_a_stop_token_ends_a_row():
    model = build()
    ids, _ = prompts([5, 5])
    draw = {"temperature": 1.0, "top_k": 20}
    assert model.generate(ids, 12, seed=3, **draw).rows() == model.generate(ids, 12, seed=3, **draw).rows()
    assert model.generate(ids, 12, seed=3, **draw).rows() != model.generate(ids, 12, seed=4, **draw).rows()
    free = model.generate(ids, 12).rows()
    stopped = model.generate(ids, 12, stop_token=free[0][7]).rows()
    assert stopped[0] == free[0][: free[0].index(free[0][7], 5) + 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"top_k": 0, "temperature": 1.0},
        {"top_p": 0.0, "temperature": 1.0},
        {"top_p": 1.5, "temperature": 1.0},
        {"top_k": 3},
        {"lengths": [0]},
        {"lengths": [9]},
        {"lengths": [1, 1]},
        {"max_new_tokens": 0},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UserError):
        build().generate(torch.zeros(1, 4, dtype=torch.long), **{"max_new_tokens": 3, **wrong})


def test_a_cache_of_windows_alone_keeps_w_tokens():
    model = build(masks=[[0, 0]] * 3, window=4)
    assert all(kind == Window(4) for row in model.attention_map.layers for kind in row)
    ids, mask = prompts([30])
    with torch.no_grad():
        _, cache = cached_logits(model, ids, mask, (11,))
    assert all(t.shape[2] == 4 for visit in cache.visits.values() for t in visit.tensors())


def test_a_cache_without_a_capacity_doubles_when_it_grows():
    model = build(masks=[[1, 1]] * 3)
    ids, mask = prompts([24])
    cache, sizes = KVCache(model.structure, 1), []
    with torch.no_grad():
        for part in ids.split([3] + [1] * 21, dim=1):
            model(part, cache=cache)
            sizes.append(cache.visits[(0,)].tensors()[0].shape[2])
        assert sizes == [3] + [6] * 3 + [12] * 6 + [24] * 12
        wanted = model(torch.cat((ids, ids[:, :1]), dim=1)).logits[:, -1]
        torch.testing.assert_close(model(ids[:, :1], cache=cache).logits[:, -1], wanted, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("rows", [[9], [9, 9], [9, 4], [9, 6, 4]])
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_large_matrices_generate_the_same_tokens(family, rows, monkeypatch):
    """Matrices beyond the caches of a core are read in halves for one or two tokens, in generation alone."""
    monkeypatch.setattr(blocks, "_STREAMED", 0)
    model, products = build(family).float(), []
    monkeypatch.setattr(torch, "bmm", lambda *pair, of=torch.bmm: products.append(pair) or of(*pair))
    ids, _ = prompts(rows)
    arguments = {"max_new_tokens": 8, "lengths": rows}
    found = model.generate(ids, **arguments).rows()
    assert bool(products) == (len(rows) <= 2)
    products.clear()
    with torch.no_grad():
        ends = [model(torch.tensor([row])).logits[0].argmax(-1).tolist() for row in found]
        assert not products
    assert [row[n:] for row, n in zip(found, rows, strict=True)] == [
        end[n - 1 : -1] for end, n in zip(ends, rows, strict=True)
    ]


def test_a_product_in_halves_is_that_of_the_layer(monkeypatch):
    monkeypatch.setattr(blocks, "_STREAMED", 0)
    for outs, bias, rows in itertools.product((6, 7), (True, False), ((1, 1), (2, 1), (1, 2), (3, 1))):
        layer, x = torch.nn.Linear(5, outs, bias), torch.randn(*rows, 5)
        with torch.inference_mode():
            torch.testing.assert_close(blocks.product(layer, x), layer(x))
        with torch.no_grad():
            assert torch.equal(blocks.product(layer, x), layer(x))


@pytest.mark.parametrize("kinds", [None, REFINED["mixed"]], ids=["windows", "refined"])
def test_a_model_trains_after_it_has_generated(kinds):
    """What is kept between passes is made outside of inference mode."""
    model = build(kinds=kinds, plan=PLANS["head loop"])
    ids, _ = prompts([6, 4])
    model.generate(ids, 3, lengths=[6, 4])
    model(ids).logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_backward_pass_through_cached_passes():
    """With gradients, new keys are not written over what an earlier pass still needs."""
    model, tokens = build_model("vanilla", size="tiny"), torch.arange(1, 9)[None]
    cache = KVCache(model.structure, 1, capacity=16)
    passes = [model(part, cache=cache).logits for part in tokens.split((3, 2, 1, 2), dim=1)]
    torch.cat(passes, dim=1).square().mean().backward()
    found = model.embedding.weight.grad.clone()
    model.zero_grad()
    model(tokens).logits.square().mean().backward()
    torch.testing.assert_close(found, model.embedding.weight.grad, rtol=1e-4, atol=1e-6)
