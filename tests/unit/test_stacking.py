"""Growth without torch: MIDAS and LIDAS against lists of blocks and layers, written anew from the paper; controls."""

import math
import random
from dataclasses import replace

import pytest

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import identity, resolve, run_hash
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.methods.depth import copied_layers, grown, order_after, stages
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.lineage import (
    Origin,
    first_lineage,
    grown_lineage,
    growth_steps,
    lineage_from_json,
    lineage_to_json,
    numbers_of,
)
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from tests.conftest import SMALL_SHAPE

BLOCKS = range(1, 9)


def midas(layers, b):
    """Eq. 1 and 2: a list of layers, cut into blocks, with the middle block twice."""
    blocks = [layers[i : i + b] for i in range(0, len(layers), b)]
    middle = math.ceil(len(blocks) / 2) - 1
    return sum([*blocks[: middle + 1], list(blocks[middle]), *blocks[middle + 1 :]], [])


def lidas(layers, b):
    """Figure 2: take layers from around the middle until there are b, and put the copies behind the last of them.

    The middle is ⌈L / 2⌉ layers from the start; half of the layers lie before it, one more for an odd block."""
    middle = math.ceil(len(layers) / 2)
    before, after = math.ceil(b / 2), b // 2
    new = layers[middle - before : middle + after]
    assert len(new) == b
    return layers[: middle + after] + new + layers[middle + after :]


@pytest.mark.parametrize("b", BLOCKS)
@pytest.mark.parametrize("method, written", [("midas", midas), ("lidas", lidas)])
def test_operators_equal_lists_of_blocks_at_any_depth(method, written, b):
    for n in range(1, 14):
        names = [f"layer {i}" for i in range(n * b)]
        assert [names[i] for i in order_after(method, n * b, b)] == written(names, b)


def test_random_depths_and_blocks():
    draw = random.Random(3)
    for _ in range(300):
        b, n = draw.randint(1, 8), draw.randint(1, 40)
        for method, written in (("midas", midas), ("lidas", lidas)):
            assert list(order_after(method, n * b, b)) == written(list(range(n * b)), b)


@pytest.mark.parametrize("b", BLOCKS)
def test_both_copy_the_same_layers_of_an_odd_number_of_blocks_only(b):
    for n in range(1, 14):
        same = copied_layers("midas", n * b, b) == copied_layers("lidas", n * b, b)
        # A block of one layer has no half to move by: there LIDAS takes the layer before the middle, as MIDAS does.
        assert same == (n % 2 == 1 or b == 1)


def test_figure_2_an_even_number_of_blocks_of_four():
    """MIDAS copies the block before the middle; LIDAS its last two layers and the first two of the next."""
    assert list(copied_layers("midas", 8, 4)) == [0, 1, 2, 3]
    assert list(copied_layers("lidas", 8, 4)) == [2, 3, 4, 5]
    assert order_after("lidas", 8, 4) == (0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7)
    # Two blocks of two, as in `tiny`.
    assert order_after("midas", 4, 2) == (0, 1, 0, 1, 2, 3) and order_after("lidas", 4, 2) == (0, 1, 2, 1, 2, 3)


def test_top_puts_copies_of_the_last_block_on_the_model():
    for b in BLOCKS:
        for n in range(1, 9):
            layers = list(range(n * b))
            assert list(order_after("top", n * b, b)) == layers + layers[-b:]
            assert copied_layers("top", n * b, b) == range((n - 1) * b, n * b)


def test_random_copies_one_whole_block_that_seed_draw_and_depth_choose():
    for b in (1, 2, 4):
        for n in range(1, 9):
            for draw in ((0, 0), (1, 0), (0, 1)):
                copied = copied_layers("random", n * b, b, draw)
                assert copied.start % b == 0 and len(copied) == b and copied.stop <= n * b
                assert copied == copied_layers("random", n * b, b, draw)
                # The same blocks whatever their size.
                assert copied.start // b == copied_layers("random", n, 1, draw).start
                order = order_after("random", n * b, b, draw)
                assert order == (*range(copied.stop), *copied, *range(copied.stop, n * b))


def test_random_is_uniform_over_blocks_and_independent_over_growth_steps_seeds_and_draws():
    def chosen(n, seed, draw):
        return copied_layers("random", n, 1, (seed, draw)).start

    times = 2000
    for n in (2, 4, 7):
        for drawn in ([chosen(n, i, 0) for i in range(times)], [chosen(n, 0, i) for i in range(times)]):
            error = math.sqrt(times / n * (1 - 1 / n))
            assert all(abs(drawn.count(block) - times / n) < 4 * error for block in range(n))
    pairs = [(chosen(2, i, 0), chosen(4, i, 0)) for i in range(times)]
    error = math.sqrt(times / 8 * (1 - 1 / 8))
    assert all(abs(pairs.count((a, b)) - times / 8) < 4 * error for a in range(2) for b in range(4))


def test_random_without_a_draw_is_refused():
    with pytest.raises(UserError, match="the method random needs a draw"):
        copied_layers("random", 8, 2)


def resolved(*settings, **controller):
    return resolve("midas", "tiny", layers=[Layer({"controller": controller})], settings=settings)


def test_the_seed_of_a_random_growth_is_the_seed_of_the_run():
    zero, three = resolved(method="random"), resolved("training.seed=3", method="random")
    named, other = resolved("training.seed=3", method="random", seed=0), resolved(method="random", draw=1)
    assert [config.controller.drawn for config in (zero, three, named, other)] == [(0, 0), (3, 0), (0, 0), (0, 1)]
    assert len({run_hash(config) for config in (zero, three, named, other)}) == 4
    assert resolved(method="random", seed=None) == zero == resolved("controller.method=random")
    assert final_structure(named) == final_structure(zero)
    assert len({str(final_structure(config).lineage) for config in (zero, three, other)}) > 1


@pytest.mark.parametrize(
    "controller, message",
    [
        ({"method": "midas", "draw": 1}, "draw has no effect with method midas"),
        ({"method": "top", "seed": 0}, "seed has no effect with method top"),
        ({"method": "random", "draw": -1}, "controller.draw = -1"),
        ({"method": "random", "seed": 2**32}, "controller.seed = 4294967296"),
    ],
)
def test_draws_that_have_no_effect_or_do_not_exist_are_refused(controller, message):
    with pytest.raises(UserError, match=message):
        resolved(**controller)


def test_a_setting_for_controls_changes_no_hash_of_a_run_without():
    assert "draw" not in str(identity(resolved())["controller"]) and "seed" not in identity(resolved())["controller"]
    assert resolve("top", "tiny").controller == resolved(method="top").controller


def test_a_depth_that_is_no_number_of_blocks_is_refused():
    for layers in (0, 3, 6, 10):
        with pytest.raises(UserError, match=f"{layers} layers are no whole number of blocks of 4"):
            copied_layers("lidas", layers, 4)


# ---- lineage ----


METHODS = ["midas", "lidas", "top", "random"]
DRAW = (2, 0)


def histories(method, b, growths, n=1):
    """(list of tags of all layers, lineage) of a model of n blocks after each growth step."""
    layers, lineage = list(range(n * b)), first_lineage(n * b)
    yield layers, lineage
    for _ in range(growths):
        order, copied = order_after(method, len(layers), b, DRAW), copied_layers(method, len(layers), b, DRAW)
        layers, lineage = [layers[i] for i in order], grown_lineage(lineage, copied)
        yield layers, lineage


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("b", BLOCKS)
def test_the_first_ancestor_of_layer_i_has_the_same_place_in_its_block(method, b):
    """REFERENCE.md 5.4: origin(i) mod b = i mod b at every stage. It cannot tell the methods apart."""
    for layers, _ in histories(method, b, 8):
        assert [first % b for first in layers] == [i % b for i in range(len(layers))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("b, n", [(1, 1), (2, 1), (3, 2), (4, 1), (5, 3), (8, 1)])
def test_lineage_holds_the_whole_history(method, b, n):
    orders = []
    for layers, lineage in histories(method, b, 6, n):
        assert list(growth_steps(lineage)) == orders
        assert lineage_from_json(lineage_to_json(lineage)) == lineage
        assert sorted(numbers_of(lineage)) == list(range(len(layers)))
        orders.append(order_after(method, len(layers), b, DRAW))


def test_a_layer_keeps_its_parent_the_parents_index_and_its_stage():
    *_, (_, lineage) = histories("lidas", 2, 2)
    # L1 L2 | copies of both | then copies of the layers at 1 and 2, the second of which is number 2, behind them.
    assert lineage == (
        Origin(None, None, 0),
        Origin(None, None, 0),
        Origin(0, 0, 1),
        Origin(1, 1, 2),
        Origin(2, 2, 2),
        Origin(1, 1, 1),
    )
    assert numbers_of(lineage) == (0, 1, 2, 4, 5, 3)
    *_, (_, other) = histories("midas", 2, 2)
    assert other != lineage and [o.parent for o in other] == [None, None, 0, 1, 0, 1]


# ---- schedule ----


def test_the_largest_exponent_divides_the_steps_of_a_deep_model():
    """Whole exponents exactly, others as floats, of which a model of a thousand layers is far from the largest."""
    for alpha in (31.5, 32.0):
        made = stages(1000, 500, 10**12, alpha=alpha)
        assert made[0].steps == pytest.approx(0.85 * 10**12 / (1 + 2**alpha), abs=1)
        assert sum(stage.steps for stage in made) == 10**12
        assert len(stages(1000, 1, 10**12, start=998, alpha=alpha)) == 3


def test_boundaries_of_the_papers_24_layers():
    """REFERENCE.md 5.2: 200,000 steps, of which 170,000 grow; floor is what table 7's FLOPs need."""
    made = stages(24, 4, 200_000)
    assert [stage.layers for stage in made] == [4, 8, 12, 16, 20, 24]
    ends = [sum(stage.steps for stage in made[: i + 1]) for i in range(len(made))]
    assert ends == [8095, 24285, 48570, 80950, 121426, 200_000]


def test_largest_remainder_of_the_papers_32_layers():
    """T_i = i · 170,000 / 36; the largest remainders get the steps that floor leaves over."""
    made = stages(32, 4, 200_000, rounding="largest-remainder")
    exact = [i * 170_000 / 36 for i in range(1, 9)]
    floors = [math.floor(x) for x in exact]
    left = 170_000 - sum(floors)
    most = sorted(range(8), key=lambda i: floors[i] - exact[i])[:left]
    wanted = [floor + (i in most) for i, floor in enumerate(floors)]
    assert [stage.steps for stage in made[:-1]] == wanted[:-1] and made[-1].steps == wanted[-1] + 30_000


@pytest.mark.parametrize("rounding", ["floor", "largest-remainder"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, 3.7])
def test_steps_add_up_and_follow_prop_alpha(rounding, alpha):
    draw = random.Random(5)
    for _ in range(60):
        b, first, more = draw.randint(1, 8), draw.randint(1, 4), draw.randint(1, 6)
        steps, fraction = draw.randint(20_000, 300_000), draw.choice([0.3, 0.85, 1.0])
        made = stages((first + more) * b, b, steps, first * b, alpha, fraction, rounding)
        assert sum(stage.steps for stage in made) == steps
        assert [stage.layers for stage in made] == [i * b for i in range(first, first + more + 1)]
        total, grow = sum(i**alpha for i in range(first, first + more + 1)), round(fraction * steps)
        for number, stage in zip(range(first, first + more), made, strict=False):
            share = grow * number**alpha / total
            assert share - 1 < stage.steps <= share + (rounding == "largest-remainder") + 1e-9


def test_the_two_roundings_differ_by_a_few_steps_only():
    one, two = (stages(24, 4, 200_000, rounding=r) for r in ("floor", "largest-remainder"))
    assert one != two and all(abs(a.steps - b.steps) <= 4 for a, b in zip(one, two, strict=True))


def test_depths_and_lengths_that_do_not_fit_are_refused():
    for given, problem in (
        ({"final": 9}, "ends with 9 layers, which is no multiple of the block of 2"),
        ({"start": 3}, "starts with 3 layers, which is no multiple of the block of 2"),
        ({"start": 8}, "starts with 8 layers and ends with 8, so that nothing would grow"),
        ({"start": 10}, "starts with 10 layers and ends with 8"),
        ({"steps": 8}, "7 steps of growth are too few for 4 stages: the one with 2 layers"),
        ({"growth_fraction": 0.0}, "0 steps of growth are too few"),
    ):
        with pytest.raises(UserError, match=problem):
            stages(**{"final": 8, "block": 2, "steps": 100, **given})


# ---- plans, maps and structures ----


def structure(plan=lambda plan: plan, layers=4, masks=None):
    shape = Shape(**{**SMALL_SHAPE, "layers": layers})
    rows = masks or [[layer % 2, 1] for layer in range(layers)]
    return Structure(shape, plan(Plan.plain(layers)), AttentionMap.from_masks(rows, 8))


@pytest.mark.parametrize("method", ["midas", "lidas"])
@pytest.mark.parametrize("b, layers", [(1, 5), (2, 4), (2, 6), (3, 6), (3, 9), (4, 8)])
def test_a_copy_takes_its_visits_and_its_row_of_the_map(method, b, layers):
    """Every layer with its own number of head loops, another part, and its own masks."""

    def edited(plan):
        for layer in range(layers):
            plan = plan.loop_heads(layer, (layer % 4,), 1 + layer % 3)
        return plan.loop_blocks([0])

    before = structure(edited, layers, [[layer % 2, (layer // 2) % 2] for layer in range(layers)])
    after, order = grown(before, method, b), order_after(method, layers, b)

    def visits_of(structure, layer):
        return [(visit.part, visit.heads) for visit in structure.plan.each_visit() if visit.layer == layer]

    for layer, source in enumerate(order):
        assert visits_of(after, layer) == visits_of(before, source)
        assert after.map.layers[layer] == before.map.layers[source]
    assert [visit.layer for visit in after.plan.each_visit()] == sorted(v.layer for v in after.plan.each_visit())
    assert after.shape == replace(before.shape, layers=layers + b)
    assert list(growth_steps(after.lineage)) == [order]
    assert Structure.from_json(after.to_json()) == after
    assert "lineage" not in before.to_json() and Structure.from_json(before.to_json()) == before


def test_a_plan_in_another_order_keeps_it():
    """MIDAS copies layers 0 and 1, which run last here: so do their copies."""
    after = grown(structure(lambda plan: plan.swap(0, 2, size=2)), "midas", 2)
    assert str(after.plan) == "L5 → L6 → L1 → L2 → L3 → L4"


def test_a_loop_that_holds_all_copied_layers_gets_the_copies_in_its_body():
    looped = structure(lambda plan: plan.recur(1, 4, (2, 1)), 6)
    after = grown(looped, "lidas", 2)  # copies 2 and 3
    assert str(after.plan) == "L1 → [L2, L3, L4, L5, L6, L7] × {1/2, 1} direct → L8"
    unshared = structure(lambda plan: plan.recur(1, 2, (1, 1), shared=False), 6)
    assert [len(body) for body in grown(unshared, "midas", 1).plan.loops[1].bodies] == [3, 2]


def test_a_loop_before_or_behind_the_copied_layers_stays():
    before = structure(lambda plan: plan.recur(0, 1, (2, 1)), 6)
    assert str(grown(before, "lidas", 2).plan).startswith("[L1] × {1/2, 1} direct → L2 → L3 → L4 → L5")
    behind = structure(lambda plan: plan.recur(4, 2, (2, 1)), 6)
    assert str(grown(behind, "lidas", 2).plan).endswith("L5 → L6 → [L7, L8] × {1/2, 1} direct")


@pytest.mark.parametrize(
    "plan, problem",
    [
        (lambda plan: plan.recur(3, 2, (2, 1)), "some of them in one place and some in another"),
        (lambda plan: plan.recur(2, 1, (2, 1)), "some of them in one place and some in another"),
        (lambda plan: plan.recur(2, 1, (1, 1), shared=False), "some of them in one place and some in another"),
        (lambda plan: plan.swap(3, 5), "the plan runs L6 between them; let them run in a row"),
        (lambda plan: plan.skip(2, 3), r"the plan does not run layer 2 \(L3\); leave out the edit that skips it"),
        (lambda plan: plan.skip(3), r"the plan does not run layer 3 \(L4\)"),
        (lambda plan: plan.recur(2, 2, (2, 1)).skip(2), r"the plan does not run layer 2 \(L3\)"),
    ],
)
def test_a_plan_that_does_not_say_where_copies_run_is_refused(plan, problem):
    with pytest.raises(UserError, match=rf"growth copies layers 2 to 3 \(L3 to L4\), but .*{problem}"):
        grown(structure(plan, 6), "lidas", 2)


def test_a_lineage_of_another_model_is_refused():
    made = grown(structure(), "midas", 2)
    with pytest.raises(UserError, match="lineage: it is of 4 layers, but the model has 6"):
        replace(made, lineage=first_lineage(4))
    data = made.to_json()
    for wrong in ({"parent": -1, "index": 0, "stage": 1}, {"parent": 0, "index": None, "stage": 1}):
        with pytest.raises(ValueError, match="no origin of a layer"):
            Structure.from_json({**data, "lineage": [wrong] * 6})
