import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridlab.errors import UserError
from hybridlab.plan.plan import Plan, Visit, check_heads, edited_plan


def layers(plan):
    return [visit.layer for visit in plan.visits]


def test_plain_visits_every_layer_once():
    assert Plan.plain(3).visits == (Visit(0), Visit(1), Visit(2))
    assert [place for place, _ in Plan.plain(2).places()] == [(0,), (1,)]


def test_loop_heads_runs_between_attention_and_mlp():
    plan = Plan.plain(2).loop_heads(layer=1, heads=(3, 0), extra_passes=2)
    loop = Visit(1, "attention", (0, 3))
    assert plan.visits == (Visit(0), Visit(1, "attention"), loop, loop, Visit(1, "mlp"))
    assert Plan.plain(2).loop_heads(1, (0,), 0) == Plan.plain(2)


def test_edits_move_the_layers_they_name():
    plan = Plan.plain(6)
    assert layers(plan.swap(0, 2, size=2)) == [2, 3, 0, 1, 4, 5]
    assert layers(plan.reverse(1, 4)) == [0, 4, 3, 2, 1, 5]
    assert layers(plan.skip(1, 4)) == [0, 2, 3, 5]
    assert layers(plan.truncate(2)) == [0, 1]
    assert plan.swap(0, 2, 2).swap(0, 2, 2) == plan and plan.reverse(1, 4).reverse(1, 4) == plan


def test_edits_act_on_all_visits_of_a_layer():
    twice = Plan((Visit(0), Visit(1), Visit(0)), 2)
    assert layers(twice.skip(0)) == [1]
    assert layers(twice.swap(0, 1)) == [1, 0, 1]


def test_drop_heads_keeps_the_others():
    plan = Plan.plain(1).drop_heads(0, (1,), num_heads=3)
    assert plan.visits == (Visit(0, "block", (0, 2)),)
    assert Plan.plain(1).drop_heads(0, (0, 1), num_heads=2).visits == (Visit(0, "mlp"),)


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.skip(9),
        lambda p: p.swap(0, 1, size=2),
        lambda p: p.truncate(7),
        lambda p: p.reverse(3, 4),
        lambda p: p.loop_heads(0, (1, 1)),
        lambda p: p.loop_heads(0, ()),
        lambda p: p.loop_heads(0, (0,), -1),
        lambda p: p.drop_heads(0, (7,), 4),
        lambda p: Visit(0, "nonsense"),
        lambda p: Visit(0, "mlp", (1,)),
        lambda p: check_heads(p.loop_heads(0, (9,)), 4),
    ],
)
def test_impossible_edits_are_refused(edit):
    with pytest.raises(UserError):
        edit(Plan.plain(4))


def test_edits_as_data():
    edits = [{"op": "loop_heads", "layer": 1, "heads": [0], "extra_passes": 1}, {"op": "skip", "layers": [0]}]
    assert edited_plan(3, 4, edits) == Plan.plain(3).loop_heads(1, (0,), 1).skip(0)
    for wrong in (
        [{"op": "jump"}],
        [{"op": "swap", "first": 0}],
        [{"op": "skip", "layers": [0], "x": 1}],
        [{"op": "skip", "layers": 3}],
    ):
        with pytest.raises(UserError, match="plan edit 1"):
            edited_plan(3, 4, wrong)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["block", "attention", "mlp"]))))
def test_json_round_trip(visits):
    plan = Plan(tuple(Visit(layer, part) for layer, part in visits), 5)
    assert Plan.from_json(plan.to_json()) == plan


def test_loops_of_blocks():
    plan = Plan.plain(3).loop_blocks([0, 2], 2)
    assert str(plan) == "L1 → L1 → L1 → L2 → L3 → L3 → L3"


def test_edits_name_layers_by_their_place_too():
    def plan(*edits):
        return edited_plan(4, 2, edits)

    assert plan({"op": "loop_blocks", "layers": {"last": 2}}) == Plan.plain(4).loop_blocks([2, 3])
    assert plan({"op": "loop_attention", "layers": [1]}) == Plan.plain(4).loop_heads(1, (0, 1))
    grown = Plan.plain(4).loop_heads(1, (0,), 2)
    assert plan({"op": "visits", "visits": grown.to_json()["visits"]}) == grown
    for wrong, message in [
        ({"op": "loop_blocks", "layers": {"last": 5}}, "last 5 is not between 1 and 4"),
        ({"op": "loop_blocks", "layers": {"last": "x"}}, "neither a list"),
        (
            {"op": "loop_blocks", "layers": {"top_entropy_of": "ab", "step": 1, "n": 1}},
            "known when it has been trained",
        ),
        ({"op": "loop_blocks"}, "'layers' is missing"),
        ({"op": "visits", "visits": [{"layer": 0}]}, "lacks one"),
        ({"op": "visits", "visits": 3}, "wrong type"),
        ({"op": "visits", "visits": [{"layer": 1.5, "part": "block", "heads": None}]}, "whole numbers from 0"),
        ({"op": [1]}, "is unknown"),
        ({"op": "loop_heads", "layer": 1, "heads": [0.5]}, "a list of whole numbers"),
        ({"op": "loop_heads", "layer": True, "heads": [0]}, "a whole number"),
        ({"op": "loop_heads", "layer": 1, "heads": [0], "extra_passes": 2 * 10**9}, "between 0 and 1000"),
        ({"op": "loop_attention", "layers": [1, 1]}, "names a layer twice"),
        ({"op": "truncate", "layers": 1.5}, "a whole number"),
        ({"op": "swap", "first": 0, "second": 1.0}, "a whole number"),
        ({"op": "loop_blocks", "layers": [1], "extra_passes": -1}, "between 0 and 1000"),
    ]:
        with pytest.raises(UserError, match=message):
            plan(wrong)
