"""Checks that every architecture preset passes; presets are found in the package, not listed here."""

import pytest
import torch

from hybridlab.attention.kinds import Full, Mixed, Window
from hybridlab.config.loading import load_preset, preset_names
from hybridlab.config.maps import MapConfig, Windowed
from hybridlab.config.types import members
from hybridlab.errors import RunFailed
from hybridlab.evaluation.causality import require_causal, worst_leak
from hybridlab.models.build import build_model
from hybridlab.models.export import load_checkpoint, save_model
from hybridlab.models.taps import Taps
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import FAMILIES
from tests.combinations import combinations
from tests.conftest import SMALL_SHAPE
from tests.models import padding_mask, random_ids

ARCHS = preset_names("arch")
KERNELS = ["eager", "sdpa", "banded", "blocks"]


def own_shape(preset):
    """What the preset of an arch says of the shape, with what its family needs."""
    own = {name: value for name, value in preset.get("shape", {}).items() if name == "family"}
    learned = "family" in own and FAMILIES[own["family"]].learned_positions
    return own | ({"max_positions": 128} if learned else {})


def causal(arch):
    return FAMILIES[own_shape(load_preset("arch", arch).values).get("family", SMALL_SHAPE["family"])].causal


DECODERS, ENCODERS = [arch for arch in ARCHS if causal(arch)], [arch for arch in ARCHS if not causal(arch)]


def build(arch, kernel="eager", **shape):
    """A small model; mixed heads are given masks, as they have after learning."""
    # Architectures that recur divide the layers: of six, four at least are left.
    preset = load_preset("arch", arch).values
    layers = 6 if "recurrence" in preset else 4
    windowed = issubclass(members(MapConfig)[preset.get("map", {}).get("kind", "full")], Windowed)
    window = {"window": 5} if windowed else {}
    shape = {**SMALL_SHAPE, "layers": layers, **own_shape(preset), **shape}
    model = build_model(arch, kernel=kernel, shape=shape, **window)
    if any(isinstance(kind, Mixed) for row in model.attention_map.layers for kind in row):
        return model.with_plan(attention_map=AttentionMap.from_masks([[0, 1], [1, 1], [0, 0], [1, 0]], 5))
    return model


PLANS = {
    "plain": lambda p: p,
    "head loop": lambda p: p.loop_heads(1, (0, 3), 2),
    "skipped and swapped": lambda p: p.skip(2).swap(0, 1),
    "dropped heads": lambda p: p.drop_heads(0, (1,), 4).drop_heads(3, (0, 1), 4),
}


@combinations("arch, kernel, plan", DECODERS, KERNELS, PLANS.keys())
def test_causal_under_every_plan_and_kernel(arch, kernel, plan):
    model = build(arch, kernel)
    model = model.with_plan(PLANS[plan](model.plan))
    assert require_causal(model, 40) < 1e-5


class Leaky(Taps):
    """A layer that adds the mean of the whole sequence to every position, which the causality probe must find."""

    def run_visit(self, place, x, visit, run):
        return x + x.mean(1, keepdim=True) if place == (1,) else run(x)


class LeakyByOne(Taps):
    """The smallest leak there is: one position ahead, faintly."""

    def run_visit(self, place, x, visit, run):
        return x + 0.01 * x.roll(-1, dims=1) if place == (1,) else run(x)


@pytest.mark.parametrize("leak", [Leaky(), LeakyByOne()])
def test_the_causality_probe_finds_a_leak(leak):
    model = build("vanilla")
    assert worst_leak(model, (8, 40), taps=leak).change > 1e-3
    with pytest.raises(RunFailed, match="sees the future"):
        require_causal(model, 40, taps=leak)


@combinations("arch, kernel", DECODERS, KERNELS, together=1)
def test_outputs_do_not_depend_on_the_total_length(arch, kernel):
    model, tokens = build(arch, kernel), random_ids(50)
    with torch.no_grad():
        whole = model(tokens).logits
        for length in (1, 2, 5, 6, 16, 17, 33, 49):
            torch.testing.assert_close(model(tokens[:, :length]).logits, whole[:, :length], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_agree(arch):
    tokens = random_ids(50)
    with torch.no_grad():
        wanted = build(arch, "eager")(tokens).logits
        for kernel in ("sdpa", "banded", "blocks", "auto"):
            torch.testing.assert_close(build(arch, kernel)(tokens).logits, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_parameter_gets_a_gradient(arch):
    model = build(arch)
    model(random_ids(20)).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("arch", ARCHS)
def test_a_saved_model_loads_unchanged(arch, tmp_path):
    model = build(arch)
    model = model.with_plan(model.plan.loop_heads(2, (1,), 1))
    save_model(tmp_path, model, {"parents": []})
    again = load_checkpoint(tmp_path, kernel="eager")
    assert again.plan == model.plan and again.attention_map == model.attention_map and again.shape == model.shape
    with torch.no_grad():
        assert torch.equal(again(random_ids(20)).logits, model(random_ids(20)).logits)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_same_seed_gives_the_same_weights(arch):
    one, two = build(arch), build(arch)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("arch", ARCHS)
def test_right_padding_changes_nothing(arch):
    tokens = random_ids(30)
    mask = padding_mask([30, 19])
    with torch.no_grad():
        for kernel in KERNELS:
            model = build(arch, kernel)
            padded = model(tokens, attention_mask=mask).logits
            torch.testing.assert_close(padded[1, :19], model(tokens[1:, :19]).logits[0], atol=1e-5, rtol=1e-4)


def test_packed_documents_do_not_see_each_other():
    model, tokens = build("rule-swa"), random_ids(24, rows=1)
    segments = torch.tensor([[0] * 10 + [1] * 14])
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    with torch.no_grad():
        for kernel in KERNELS:
            model.kernel = kernel
            packed = model(tokens, segment_ids=segments, position_ids=positions).logits
            torch.testing.assert_close(packed[:, 10:], model(tokens[:, 10:]).logits, atol=1e-5, rtol=1e-4)


# ---- special cases that equal other models ----


def test_windows_as_long_as_the_sequence_and_loops_without_passes_change_nothing():
    host, tokens = build("vanilla"), random_ids(30)
    wide = host.with_plan(attention_map=AttentionMap.uniform(4, 2, Window(30)))
    with torch.no_grad():
        torch.testing.assert_close(wide(tokens).logits, host(tokens).logits, atol=1e-6, rtol=1e-5)
        assert torch.equal(host.with_plan(host.plan.loop_heads(1, (0,), 0))(tokens).logits, host(tokens).logits)


def test_a_loop_of_all_heads_runs_the_attention_twice():
    host, tokens = build("vanilla"), random_ids(30)
    looped = host.with_plan(host.plan.loop_heads(1, range(4), 1))
    plain = Plan(
        (*host.plan.visits[:1], *looped.plan.visits[1:2], *looped.plan.visits[1:2], *looped.plan.visits[3:]), 4
    )
    with torch.no_grad():
        torch.testing.assert_close(looped(tokens).logits, host.with_plan(plain)(tokens).logits, atol=1e-5, rtol=1e-4)


def test_chosen_heads_equal_all_heads_with_the_others_masked():
    """The sliced projections against a copy whose other heads write nothing."""
    model, tokens = build("rule-swa"), random_ids(30)
    sliced = model.with_plan(model.plan.drop_heads(2, (0, 3), 4))
    masked = build("rule-swa")
    with torch.no_grad():
        columns = masked.blocks[2].attention.o.weight.view(24, 4, 8)
        columns[:, [0, 3]] = 0
        torch.testing.assert_close(sliced(tokens).logits, masked(tokens).logits, atol=1e-5, rtol=1e-4)


def test_gates_of_one_and_zero_are_full_and_window_attention():
    mixed = build_model("consa", kernel="eager", shape={**SMALL_SHAPE, "layers": 4}, window=5)
    tokens = random_ids(30)
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
        logits = model(random_ids(9), taps=taps).logits
        torch.testing.assert_close(model.logits(taps.first + taps.total), logits, atol=1e-5, rtol=1e-4)
    assert taps.places == [(i,) for i in range(6)]


def test_a_tap_may_run_the_visit_that_it_replaces_as_often_as_it_wants():
    class Twice(Taps):
        def run_visit(self, place, x, visit, run):
            return run(run(x)) if visit.layer == 1 else run(x)

    class Never(Taps):
        def run_visit(self, place, x, visit, run):
            return x if visit.layer == 2 else run(x)

    model, tokens = build("vanilla"), random_ids(9)
    with torch.no_grad():
        assert torch.equal(
            model(tokens, taps=Twice()).logits, model.with_plan(model.plan.loop_blocks([1]))(tokens).logits
        )
        assert torch.equal(model(tokens, taps=Never()).logits, model.with_plan(model.plan.skip(2))(tokens).logits)
        assert torch.equal(model(tokens, taps=Taps()).logits, model(tokens).logits)


def test_a_tap_may_give_other_embeddings():
    class Shuffled(Taps):
        def on_embeddings(self, x):
            return x.flip(0)

    model, tokens = build("rule-swa"), random_ids(9)
    with torch.no_grad():
        assert torch.equal(model(tokens, taps=Shuffled()).logits, model(tokens.flip(0)).logits)


def test_with_plan_shares_the_parameters():
    model = build("sgt")
    other = model.with_plan(model.plan.loop_heads(1, (0, 2)))
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    with torch.no_grad():
        other.blocks[0].mlp.up.weight.mul_(2)
        assert torch.equal(model(random_ids(5)).logits, model.with_plan(model.plan)(random_ids(5)).logits)


def test_weights_are_returned_by_place():
    model = build("rule-swa")
    model = model.with_plan(model.plan.loop_heads(1, (0, 2), 1))
    full = model(random_ids(12), need="full").attention
    assert set(full) == {(0,), (1,), (2,), (4,), (5,)}
    assert full[(0,)].shape == (2, 4, 12, 12) and full[(2,)].shape == (2, 2, 12, 12)
    last = model(random_ids(12), need="last_row").attention
    torch.testing.assert_close(last[(4,)][:, :, 0], full[(4,)][:, :, -1])
