"""What every architecture passes without writing a test of its own: presets are found, not listed."""

import pytest
import torch

from hybridlab.config.loading import load_preset, preset_names
from hybridlab.evaluation.causality import require_causal, worst_leak
from hybridlab.models.build import build_model
from hybridlab.models.decoder import Taps
from hybridlab.models.export import load_checkpoint, save_model
from hybridlab.plan.attention_map import AttentionMap, Full, Mixed, Window
from hybridlab.plan.plan import Plan
from tests.conftest import SMALL_SHAPE

ARCHS = preset_names("arch")
KERNELS = ["eager", "sdpa", "banded"]


def build(arch, kernel="eager", **shape):
    """A small model; mixed heads are given masks, as they have after learning."""
    # Architectures that recur divide the layers: of six, four at least are left.
    layers = 6 if "recurrence" in load_preset("arch", arch).values else 4
    model = build_model(arch, kernel=kernel, shape={**SMALL_SHAPE, "layers": layers, **shape}, window=5)
    if any(isinstance(kind, Mixed) for row in model.attention_map.layers for kind in row):
        return model.with_plan(attention_map=AttentionMap.from_masks([[0, 1], [1, 1], [0, 0], [1, 0]], 5))
    return model


def ids(length, rows=2, seed=0, vocab=SMALL_SHAPE["vocab"]):
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


PLANS = {
    "plain": lambda p: p,
    "head loop": lambda p: p.loop_heads(1, (0, 3), 2),
    "skipped and swapped": lambda p: p.skip(2).swap(0, 1),
    "dropped heads": lambda p: p.drop_heads(0, (1,), 4).drop_heads(3, (0, 1), 4),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("arch", ARCHS)
def test_causal_under_every_plan_and_kernel(arch, kernel, plan):
    model = build(arch, kernel)
    model = model.with_plan(PLANS[plan](model.plan))
    assert require_causal(model, 40) < 1e-5


class Leaky(Taps):
    """A layer that hands every position the mean of the whole sequence: what the probe must find."""

    def run_visit(self, place, x, visit):
        return x + x.mean(1, keepdim=True) if place == (1,) else None


class LeakyByOne(Taps):
    """The smallest leak there is: one position ahead, faintly."""

    def run_visit(self, place, x, visit):
        return x + 0.01 * x.roll(-1, dims=1) if place == (1,) else None


@pytest.mark.parametrize("leak", [Leaky(), LeakyByOne()])
def test_the_probe_finds_a_leak(leak):
    from hybridlab.errors import RunFailed

    model = build("vanilla")
    assert worst_leak(model, (8, 40), taps=leak).change > 1e-3
    with pytest.raises(RunFailed, match="sees the future"):
        require_causal(model, 40, taps=leak)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("arch", ARCHS)
def test_outputs_do_not_depend_on_the_total_length(arch, kernel):
    model, tokens = build(arch, kernel), ids(50)
    with torch.no_grad():
        whole = model(tokens).logits
        for length in (1, 2, 5, 6, 16, 17, 33, 49):
            torch.testing.assert_close(model(tokens[:, :length]).logits, whole[:, :length], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_agree(arch):
    tokens = ids(50)
    with torch.no_grad():
        wanted = build(arch, "eager")(tokens).logits
        for kernel in ("sdpa", "banded", "auto"):
            torch.testing.assert_close(build(arch, kernel)(tokens).logits, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_parameter_gets_a_gradient(arch):
    model = build(arch)
    model(ids(20)).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("arch", ARCHS)
def test_saving_and_loading_is_the_identity(arch, tmp_path):
    model = build(arch)
    model = model.with_plan(model.plan.loop_heads(2, (1,), 1))
    save_model(tmp_path, model, {"parents": []})
    again = load_checkpoint(tmp_path, kernel="eager")
    assert again.plan == model.plan and again.attention_map == model.attention_map and again.shape == model.shape
    with torch.no_grad():
        assert torch.equal(again(ids(20)).logits, model(ids(20)).logits)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_same_seed_gives_the_same_weights(arch):
    one, two = build(arch), build(arch)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("arch", ARCHS)
def test_right_padding_changes_nothing(arch):
    tokens = ids(30)
    mask = torch.arange(30)[None] < torch.tensor([30, 19])[:, None]
    with torch.no_grad():
        for kernel in KERNELS:
            model = build(arch, kernel)
            padded = model(tokens, attention_mask=mask).logits
            torch.testing.assert_close(padded[1, :19], model(tokens[1:, :19]).logits[0], atol=1e-5, rtol=1e-4)


def test_packed_documents_do_not_see_each_other():
    model, tokens = build("rule-swa"), ids(24, rows=1)
    segments = torch.tensor([[0] * 10 + [1] * 14])
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    with torch.no_grad():
        for kernel in KERNELS:
            model.kernel = kernel
            packed = model(tokens, segment_ids=segments, position_ids=positions).logits
            torch.testing.assert_close(packed[:, 10:], model(tokens[:, 10:]).logits, atol=1e-5, rtol=1e-4)


# ---- reductions ----


def test_an_all_full_map_is_the_host_model():
    host, tokens = build("vanilla"), ids(30)
    wide = host.with_plan(attention_map=AttentionMap.uniform(4, 2, Window(30)))
    with torch.no_grad():
        torch.testing.assert_close(wide(tokens).logits, host(tokens).logits, atol=1e-6, rtol=1e-5)
        assert torch.equal(host.with_plan(host.plan.loop_heads(1, (0,), 0))(tokens).logits, host(tokens).logits)


def test_a_loop_of_all_heads_is_the_attention_branch_again():
    host, tokens = build("vanilla"), ids(30)
    looped = host.with_plan(host.plan.loop_heads(1, range(4), 1))
    plain = Plan(
        (*host.plan.visits[:1], *looped.plan.visits[1:2], *looped.plan.visits[1:2], *looped.plan.visits[3:]), 4
    )
    with torch.no_grad():
        torch.testing.assert_close(looped(tokens).logits, host.with_plan(plain)(tokens).logits, atol=1e-5, rtol=1e-4)


def test_chosen_heads_equal_all_heads_with_the_others_masked():
    """The sliced projections against a copy whose other heads write nothing."""
    model, tokens = build("rule-swa"), ids(30)
    sliced = model.with_plan(model.plan.drop_heads(2, (0, 3), 4))
    masked = build("rule-swa")
    with torch.no_grad():
        columns = masked.blocks[2].attention.o.weight.view(24, 4, 8)
        columns[:, [0, 3]] = 0
        torch.testing.assert_close(sliced(tokens).logits, masked(tokens).logits, atol=1e-5, rtol=1e-4)


def test_gates_at_their_ends_are_the_two_kinds():
    mixed = build_model("consa", kernel="eager", shape={**SMALL_SHAPE, "layers": 4}, window=5)
    tokens = ids(30)
    for value, kind in ((1.0, Full()), (0.0, Window(5))):
        gates = {layer: torch.full((2,), value) for layer in range(4)}
        other = mixed.with_plan(attention_map=AttentionMap.uniform(4, 2, kind))
        with torch.no_grad():
            torch.testing.assert_close(mixed(tokens, gates=gates).logits, other(tokens).logits, atol=1e-6, rtol=1e-5)


def test_taps_see_every_visit_and_add_up():
    class Sum(Taps):
        def __init__(self):
            self.places, self.first, self.total = [], None, 0

        def on_visit(self, place, x, delta):
            self.first = x if self.first is None else self.first
            self.places.append(place)
            self.total = self.total + delta

    model, taps = build("vanilla"), Sum()
    model = model.with_plan(model.plan.loop_heads(0, (1,), 1))
    with torch.no_grad():
        logits = model(ids(9), taps=taps).logits
        torch.testing.assert_close(model.logits(taps.first + taps.total), logits, atol=1e-5, rtol=1e-4)
    assert taps.places == [(i,) for i in range(6)]


def test_weights_are_returned_by_place():
    model = build("rule-swa")
    model = model.with_plan(model.plan.loop_heads(1, (0, 2), 1))
    full = model(ids(12), need="full").attention
    assert set(full) == {(0,), (1,), (2,), (4,), (5,)}
    assert full[(0,)].shape == (2, 4, 12, 12) and full[(2,)].shape == (2, 2, 12, 12)
    last = model(ids(12), need="last_row").attention
    torch.testing.assert_close(last[(4,)][:, :, 0], full[(4,)][:, :, -1])
