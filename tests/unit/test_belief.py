"""Attention refined by belief propagation, against Eq. 11 and 15 of the SAOBP paper written out."""

import math
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from hybridlab.attention.belief import Belief
from hybridlab.attention.belief import blocks as belief_blocks
from hybridlab.attention.belief.blocks import in_blocks
from hybridlab.attention.belief.formula import explicit, matrices
from hybridlab.attention.heads import HeadGroup
from hybridlab.attention.kernels import Visible, eager, sdpa
from hybridlab.attention.kinds import Full, Window
from hybridlab.attention.registry import kind_from_json
from hybridlab.errors import UserError
from tests.combinations import combinations, some
from tests.models import attended
from tests.unit.test_kernels import tensors

HIGH, LOW, ELEMMUL = Belief("high", 0.7), Belief("low", 0.4), Belief("elemmul")
KINDS = [HIGH, LOW, ELEMMUL, Belief("high", 0.3, length_ref=7), Belief("low", 0.3, detach_messages=True)]
KINDS += [Belief("high", 0.5, own_message=True)]
PLACES = [(True, "visible"), (True, "leaking"), (False, "visible"), (False, "all")]


def sent(kind, send):
    return replace(kind, send=send)


def restrictions(length):
    """(valid, segments) of two rows: whole, padded on the right and on the left, packed, and both."""
    valid = torch.arange(length)[None] < torch.tensor([length, max(1, 2 * length // 3)])[:, None]
    cut = min(length, 2)
    segments = torch.tensor([[0] * (length // 2) + [1] * (length - length // 2), [5] * cut + [6] * (length - cut)])
    return [(None, None), (valid, None), (valid.flip(1), None), (None, segments), (valid, segments)]


def by_definition(q, k, visible, kind):
    """The refined weights by loops over receivers, labels and senders: products of M, without logarithms."""
    batch, heads, length, width = q.shape
    seen = visible.mask(torch.arange(length), length).expand(batch, 1, length, length)
    weights = torch.zeros(batch, heads, length, length, dtype=q.dtype)
    for b in range(batch):
        for h in range(heads):
            scores = q[b, h] @ k[b, h // (heads // k.shape[1])].T / width**0.5
            prior = torch.softmax(scores.masked_fill(~seen[b, 0], -math.inf), -1)
            sends = [visible.valid is None or bool(visible.valid[b, i]) for i in range(length)]
            for j in range(length):
                senders = [i for i in range(length) if sends[i] and (i != j or kind.own_message)]
                if visible.causal and kind.send == "visible":
                    senders = [i for i in senders if i <= j]
                weights[b, h, j] = belief_of(prior, j, senders, seen[b, 0], visible, kind)
    return weights


def belief_of(prior, j, senders, seen, visible, kind):
    """Row j by Eq. 11 or, for elemmul, Eq. 15."""
    if kind.factor == "elemmul":
        row = torch.stack([prior[j] @ prior[other] for other in range(len(prior))]) * seen[j]
        return row / row.sum()
    row = prior[j].clone()
    for i in senders:
        strength = kind.strength
        if kind.length_ref:
            keys = int(seen[i].sum())
            strength *= kind.length_ref / (max(keys, kind.length_ref) if visible.causal else keys)
        potential = math.exp(-strength if kind.factor == "low" else strength)
        row = row * (prior[i] + potential * (1 - prior[i]))
    return row / row.sum()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_weights_equal_the_product_of_messages(kind, causal):
    q, k, _ = tensors(length=9)
    for valid, segments in restrictions(9):
        visible = Visible(None, valid, segments, causal=causal)
        wanted = by_definition(q, k, visible, kind)
        torch.testing.assert_close(matrices(q, k, visible, kind)[1], wanted, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("kind", [HIGH, LOW], ids=str)
def test_a_leaking_decoder_gets_messages_from_all_rows(kind):
    q, k, _ = tensors(length=9)
    leaking = sent(kind, "leaking")
    wanted = by_definition(q, k, Visible(), leaking)
    torch.testing.assert_close(matrices(q, k, Visible(), leaking)[1], wanted, atol=1e-12, rtol=1e-9)
    assert (matrices(q, k, Visible(), kind)[1] - wanted).abs().max() > 1e-3


BLOCKS = [(4, 40), (4, 300), (5, 10**6), (64, 10**6)]
"""(rows, scores) at a time: few of them, so that short sequences have many blocks and tiles."""


@combinations("blocks, kind, place, heads", BLOCKS, KINDS, PLACES, [(4, 2), (3, 3), (4, 1)])
def test_blocks_equal_the_plain_formula_forward_and_backward(blocks, kind, place, heads, monkeypatch):
    rows, scores = blocks
    new = {"ROWS": {True: rows, False: rows}, "MOST_SCORES": scores, "FEWEST_ROWS": 2}
    for name, value in new.items():
        monkeypatch.setattr(belief_blocks, name, value)
    causal, send = place
    kind = sent(kind, send)
    for length in (1, 3, 21):
        inputs = tensors(2, *heads, length, 6, grad=True)
        weight = torch.randn_like(inputs[0])
        for valid, segments in restrictions(length):
            visible = Visible(None, valid, segments, causal=causal)
            results = []
            for form in (explicit, in_blocks):
                out = form(*inputs, visible, kind)
                results.append((out, *torch.autograd.grad((out * weight).sum(), inputs)))
            for got, want in zip(*reversed(results), strict=True):
                torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("factor", ["high", "low"])
@pytest.mark.parametrize("strength", [0.0, 0.2, 10.0])
def test_blocks_of_the_usual_sizes_equal_the_plain_formula_at_all_strengths(factor, strength):
    """Several blocks of 32 rows, each of four times eight, and a last one of six."""
    kind, inputs = Belief(factor, strength), tensors(2, 4, 2, 70, 6, grad=True)
    weight = torch.randn_like(inputs[0])
    for causal in (True, False):
        found = [form(*inputs, Visible(causal=causal), kind) for form in (explicit, in_blocks)]
        wanted, got = ((out, *torch.autograd.grad((out * weight).sum(), inputs)) for out in found)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-10)


@pytest.mark.long
@combinations("kind, place", KINDS[:4], PLACES, together=1)
def test_gradients_are_those_of_finite_differences(kind, place, monkeypatch):
    causal, send = place
    monkeypatch.setattr(belief_blocks, "ROWS", {True: 3, False: 3})
    valid = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    inputs = tensors(2, 4, 2, 7, 3, grad=True)
    visible = Visible(None, valid, causal=causal)
    assert torch.autograd.gradcheck(lambda *x: in_blocks(*x, visible, sent(kind, send)), inputs)


@pytest.mark.parametrize("causal", [True, False])
def test_strength_0_is_softmax_attention_to_the_bit(causal):
    q, k, v = (t.float() for t in tensors())
    visible = Visible(causal=causal)
    for factor in ("high", "low"):
        assert torch.equal(explicit(q, k, v, visible, Belief(factor, 0)), eager(q, k, v, visible))
        torch.testing.assert_close(in_blocks(q, k, v, visible, Belief(factor, 0)), eager(q, k, v, visible))


@pytest.mark.parametrize("causal", [True, False])
def test_low_is_high_with_the_opposite_sign(causal, monkeypatch):
    q, k, v = tensors()
    low = explicit(q, k, v, Visible(causal=causal), LOW)
    monkeypatch.setattr(Belief, "exponent", property(lambda self: -self.strength))
    assert torch.equal(explicit(q, k, v, Visible(causal=causal), Belief("high", LOW.strength)), low)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_permuting_the_tokens_of_an_encoder_permutes_its_output(kind):
    q, k, v = tensors()
    order = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(1))
    visible = Visible(causal=False)
    for form in (explicit, in_blocks):
        out = form(q, k, v, visible, kind)
        moved = form(*(t[:, :, order] for t in (q, k, v)), visible, kind)
        torch.testing.assert_close(moved, out[:, :, order], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(("kind", "sign"), [(HIGH, -1), (LOW, 1)], ids=str)
def test_a_key_that_the_others_attend_to_loses_in_high_and_gains_in_low(kind, sign):
    q, k, _ = tensors(1, 1, 1, 12, 4)
    before = matrices(q, k, Visible(causal=False), kind)[1][0, 0, 3]
    raised = q.clone()
    others = [i for i in range(12) if i != 3]
    raised[0, 0, others] += 2 * k[0, 0, 5]
    after = matrices(raised, k, Visible(causal=False), kind)[1][0, 0, 3]
    assert sign * (after[5] - before[5]) > 1e-3


@pytest.mark.parametrize("kind", [HIGH, LOW], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_a_row_reaches_the_others(kind, causal):
    """Algorithm 1 as printed multiplies within a row, so that none does."""
    q, k, v = tensors()
    for form in (explicit, in_blocks):
        out = form(q, k, v, Visible(causal=causal), kind)
        changed = q.clone()
        changed[:, :, 10] += 1
        moved = (form(changed, k, v, Visible(causal=causal), kind) - out).abs().amax((0, 1, 3))
        assert (moved[11:] > 1e-8).all()
        assert (moved[:10] > 1e-8).all() if not causal else (moved[:10] == 0).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_only_a_leaking_decoder_shows_later_tokens(kind):
    q, k, v = tensors()
    changed = [t.clone() for t in (q, k, v)]
    for t in changed:
        t[:, :, 20] += 1
    for form in (explicit, in_blocks):
        for send, leaks in (("visible", False), ("leaking", True)):
            moved = form(*changed, Visible(), sent(kind, send)) - form(q, k, v, Visible(), sent(kind, send))
            assert (bool(moved[:, :, :20].abs().max() > 1e-6)) == leaks


@combinations("kind, place", KINDS, PLACES, together=1)
def test_padding_packing_and_the_rest_of_the_batch_change_nothing(kind, place):
    causal, send = place
    kind = sent(kind, send)
    q, k, v = tensors(length=20)
    for form in (explicit, in_blocks):
        for part in (slice(0, 13), slice(7, 20)):
            valid = torch.zeros(2, 20, dtype=torch.bool)
            valid[:, part] = True
            padded = form(q, k, v, Visible(None, valid, causal=causal), kind)
            for row in range(2):
                alone = form(*(t[row : row + 1, :, part] for t in (q, k, v)), Visible(causal=causal), kind)
                torch.testing.assert_close(padded[row : row + 1, :, part], alone, atol=1e-12, rtol=1e-10)
        segments = torch.tensor([[0] * 8 + [1] * 12] * 2)
        packed = form(q, k, v, Visible(None, None, segments, causal=causal), kind)
        for part in (slice(0, 8), slice(8, 20)):
            alone = form(*(t[:, :, part] for t in (q, k, v)), Visible(causal=causal), kind)
            torch.testing.assert_close(packed[:, :, part], alone, atol=1e-12, rtol=1e-10)


@combinations("factor, strength, causal", ["high", "low"], [0.05, 0.2, 1.0], [True, False], together=1)
def test_it_stays_finite_at_4096_positions_where_one_key_is_in_every_row(factor, strength, causal):
    q, k, v = (t.to(torch.bfloat16) for t in tensors(1, 1, 1, 4096, 8))
    k[:, :, 0], q[:] = 6, q.abs()
    inputs = [t.requires_grad_() for t in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16):
        out = in_blocks(*inputs, Visible(causal=causal), Belief(factor, strength))
    gradients = torch.autograd.grad(out.float().square().sum(), inputs)
    assert out.dtype == torch.bfloat16 and all(bool(t.isfinite().all()) for t in (out, *gradients))


def test_it_computes_in_fp32_under_autocast():
    q, k, v = (t.float() for t in tensors(length=33))
    for kind in KINDS:
        for form in (explicit, in_blocks):
            wanted = form(q, k, v, Visible(), kind)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(form(q, k, v, Visible(), kind), wanted)


# ---- heads ----


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_returned_weights_are_the_refined_ones(kind, causal):
    q, k, v = tensors()
    valid = torch.arange(37)[None] < torch.tensor([37, 20])[:, None]
    full = attended(HeadGroup(q, k, v, "blocks", valid=valid, need="full", causal=causal), [kind, Full()])
    assert full.weights.dtype == torch.float32 and full.keys.shape == (2, 4, 37)
    torch.testing.assert_close(full.weights.sum(-1), torch.ones(2, 4, 37))
    product = full.weights.double() @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(product, full.out, atol=1e-5, rtol=1e-4)
    assert torch.equal(full.others["prior"][:, 2:], full.weights[:, 2:])
    assert not torch.allclose(full.others["prior"][:, :2], full.weights[:, :2])
    last = attended(HeadGroup(q, k, v, "blocks", valid=valid, need="last_row", causal=causal), [kind, Full()])
    for row, end in enumerate((36, 19)):
        torch.testing.assert_close(last.weights[row, :, 0], full.weights[row, :, end])
        torch.testing.assert_close(last.others["prior"][row, :, 0], full.others["prior"][row, :, end])
        assert torch.equal(last.keys[row, :, 0], full.keys[row, :, end])


def test_kinds_are_mixed_within_a_layer():
    q, k, v = tensors(kv_heads=4, heads=8)
    kinds = [HIGH, Window(3), ELEMMUL, HIGH]
    out = attended(HeadGroup(q, k, v, "eager"), kinds).out
    for head, kind in enumerate(kinds):
        rows = slice(2 * head, 2 * head + 2)
        alone = attended(HeadGroup(q[:, rows], k[:, [head]], v[:, [head]], "eager"), [kind]).out
        torch.testing.assert_close(out[:, rows], alone)


def test_kernels_that_have_no_weights_to_refine():
    assert [HIGH.own_kernel(kernel, 4096, True) for kernel in ("auto", "sdpa", "banded", "blocks", "eager")] == [
        *["blocks"] * 4,
        "eager",
    ]
    assert HIGH.own_kernel("auto", 64, True) == HIGH.own_kernel("auto", 256, causal=False) == "eager"
    for kernel in ("flex", "xformers"):
        with pytest.raises(UserError, match=f"kernel {kernel} cannot refine its weights.*use auto, blocks or eager"):
            attended(HeadGroup(*tensors(), kernel), [HIGH, HIGH])


# ---- memory ----


def peak_bytes(attention, length, heads=8, width=64):
    """The most bytes that are allocated at once in a forward and a backward pass, copies of q, k and v among them."""
    inputs = [torch.randn(1, heads, length, width) for _ in range(3)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        copies = [t.clone().requires_grad_() for t in inputs]
        attention(*copies).sum().backward()
    changes = [event for event in measured.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("longest", some([2048, 4096], 2048, rest=pytest.mark.full))
@combinations("kind, causal", [HIGH, ELEMMUL], [True, False], together=1)
def test_peak_memory_is_linear_in_the_length_and_near_that_of_sdpa(kind, causal, longest):
    """The plain formula is the positive control."""
    visible = Visible(causal=causal)
    peaks = {length: peak_bytes(lambda *x: in_blocks(*x, visible, kind), length) for length in (1024, longest)}
    assert peaks[longest] <= 1.5 * peak_bytes(lambda *x: sdpa(*x, visible), longest)
    assert all(peak <= 1.02 * length / 1024 * peaks[1024] for length, peak in peaks.items())
    matrix = 4 * 8 * 1024**2
    assert peak_bytes(lambda *x: explicit(*x, visible, kind), 1024) > 2 * matrix > peaks[1024]


# ---- settings ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "it takes factor, strength, send"),
        ({"factor": "hig"}, "factor 'hig' is unknown; did you mean 'high'"),
        ({"factor": "high", "strength": -0.1}, "strength -0.1 must be a number from 0 to 10"),
        ({"factor": "high", "strength": math.nan}, "strength nan must be"),
        ({"factor": "high", "strength": math.inf}, "strength inf must be"),
        ({"factor": "low", "strength": "0.2"}, "strength '0.2' must be"),
        ({"factor": "low", "strength": True}, "strength True must be"),
        ({"factor": "elemmul", "strength": 0.2}, "strength has no effect on factor elemmul"),
        ({"factor": "elemmul", "length_ref": 128}, "length_ref has no effect on factor elemmul"),
        ({"factor": "elemmul", "detach_messages": True}, "detach_messages has no effect on factor elemmul"),
        ({"factor": "high", "send": "everything"}, "send 'everything' is unknown; known: visible, all, leaking"),
        ({"factor": "high", "length_ref": 0}, "length_ref 0 must be a whole number of 1 or more"),
        ({"factor": "high", "length_ref": 12.5}, "length_ref 12.5 must be"),
        ({"factor": "high", "detach_messages": 1}, "detach_messages 1 must be true or false"),
        ({"factor": "elemmul", "own_message": True}, "own_message has no effect on factor elemmul"),
        ({"factor": "high", "own_message": 1}, "own_message 1 must be true or false"),
        ({"factor": "high", "lambda": 1}, "it takes factor"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        kind_from_json({"kind": "belief", **settings})


def test_a_kind_has_one_form_whether_its_default_is_written_or_not():
    assert kind_from_json({"kind": "belief", "factor": "high"}) == Belief("high", 0.2)
    assert Belief("high", 1).to_json() == Belief("high", 1.0).to_json()
    for kind in KINDS:
        assert kind_from_json(kind.to_json()) == kind
    assert str(Belief("low", 0.05, "leaking")) == "belief(low, 0.05, leaking)" and str(ELEMMUL) == "belief(elemmul)"


def test_own_messages_are_not_for_the_kernel_triton():
    kind = Belief("high", own_message=True)
    with pytest.raises(UserError, match="not those of belief\\(high, 0.2, own message\\)"):
        kind.own_kernel("triton", 128, True)
    assert kind.kernel_for("auto", "cuda", 64) == "auto" and kind.own_kernel("auto", 2048, True) == "blocks"
