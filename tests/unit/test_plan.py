import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hybridlab.config.edits import PlanEdit, edited_plan
from hybridlab.config.loading import Layer, check
from hybridlab.config.resolve import identity, resolve
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.plan.plan import Plan, Visit, check_heads
from hybridlab.plan.shape import Shape
from tests.conftest import SMALL_SHAPE


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


def test_further_loops_follow_the_passes_that_a_layer_has():
    first, second, attention, mlp = (
        Visit(1, "attention", (0,)),
        Visit(1, "attention", (1,)),
        Visit(1, "attention"),
        Visit(1, "mlp"),
    )
    looped = Plan.plain(2).loop_heads(1, (0,), 2)
    assert looped.loop_heads(1, (1,), 2).visits[1:] == (attention, first, first, second, second, mlp)
    assert looped.loop_blocks([1]).visits[1:] == (attention, first, first, mlp) * 2
    assert Plan.plain(2).loop_blocks([1]).loop_heads(1, (0,)).visits[1:] == (attention, first, mlp) * 2
    parallel = Plan.plain(2, parallel=True).loop_heads(1, (0,), 2).loop_heads(1, (1,), 2)
    assert parallel.visits[1:] == (Visit(1), first, first, second, second)


def test_layers_move_with_their_extra_passes():
    plan = Plan.plain(4).loop_heads(2, (1, 3)).loop_blocks([0])
    assert str(plan.swap(1, 2)) == "L1 → L1 → L3 attention → L3 attention heads 2,4 → L3 mlp → L2 → L4"
    assert str(plan.reverse(0, 3)) == "L3 attention → L3 attention heads 2,4 → L3 mlp → L2 → L1 → L1 → L4"


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
        lambda p: p.skip(0).loop_heads(0, (1,)),
        lambda p: p.skip(0).loop_blocks([0, 1]),
        lambda p: p.drop_heads(0, (7,), 4),
        lambda p: Visit(0, "nonsense"),
        lambda p: Visit(0, "mlp", (1,)),
        lambda p: check_heads(p.loop_heads(0, (9,)), 4),
    ],
)
def test_impossible_edits_are_refused(edit):
    with pytest.raises(UserError):
        edit(Plan.plain(4))


EDITS = TypeAdapter(list[PlanEdit])


def made(*edits, num_layers=4, num_heads=2):
    shape = Shape(**{**SMALL_SHAPE, "layers": num_layers, "heads": num_heads, "kv_heads": 1})
    return edited_plan(shape, EDITS.validate_json(json.dumps(edits), strict=True))


def test_edits_as_data():
    edits = [{"op": "loop_heads", "layer": 1, "heads": [0], "extra_passes": 1}, {"op": "skip", "layers": [0]}]
    assert made(*edits) == Plan.plain(4).loop_heads(1, (0,), 1).skip(0)
    assert layers(made({"op": "swap", "first": 0, "second": 2, "size": 2})) == [2, 3, 0, 1]
    assert layers(made({"op": "swap", "first": 0, "second": 2})) == [2, 1, 0, 3]
    assert layers(made({"op": "reverse", "start": 1, "size": 3})) == [0, 3, 2, 1]
    assert layers(made({"op": "truncate", "layers": 2})) == [0, 1]
    assert made({"op": "drop_heads", "layer": 0, "heads": [1]}).visits[0] == Visit(0, "block", (0,))
    looped = made({"op": "recur", "first": 1, "size": 1, "chunks": [2, 1], "shared": False, "topology": "anchor"})
    assert looped == Plan.plain(4).recur(1, 1, (2, 1), shared=False, topology="anchor")
    assert made({"op": "recur", "first": 1, "size": 1, "chunks": [2]}) == Plan.plain(4).recur(1, 1, (2,))
    assert made({"op": "visits", "visits": looped.to_json()["visits"]}) == looped


WRITTEN = [
    {"op": "loop_heads", "layer": 5, "heads": [3]},
    {"op": "loop_heads", "layer": 5, "heads": [3], "extra_passes": 1},
    {"op": "loop_attention", "layers": {"last": 2}},
    {"op": "loop_blocks", "layers": {"top_entropy_of": "ab", "n": 3, "step": 7}},
    {"op": "loop_blocks", "layers": {"top_entropy_of": "ab", "n": 3, "step": 7, "exclude": [0]}, "extra_passes": 1},
    {"op": "recur", "first": 2, "size": 2, "chunks": [4, 1]},
    {"op": "recur", "first": 2, "size": 2, "chunks": [4, 1], "offset": ["half", 0], "shift": 3, "shared": True},
    {"op": "swap", "first": 0, "second": 4},
    {"op": "visits", "visits": [{"layer": 0, "part": "block", "heads": None}]},
    {"op": "visits", "visits": [{"bodies": [[{"layer": 1, "part": "mlp", "heads": None}]], "chunks": [2]}]},
]


@pytest.mark.parametrize("edit", WRITTEN, ids=str)
def test_an_edit_is_stored_with_the_keys_that_were_written(edit):
    """A run's hash covers them: defaults that are added later must not change it."""
    config = check(RunConfig, Layer({**resolve("vanilla", "tiny").model_dump(mode="json"), "plan": [edit]}))
    assert config.model_dump(mode="json")["plan"] == [edit] == identity(config)["plan"]
    assert check(RunConfig, Layer(json.loads(config.model_dump_json()))).plan == config.plan


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["block", "attention", "mlp"]))))
def test_json_round_trip(visits):
    plan = Plan(tuple(Visit(layer, part) for layer, part in visits), 5)
    assert Plan.from_json(plan.to_json()) == plan


def test_loop_blocks_repeats_whole_blocks():
    plan = Plan.plain(3).loop_blocks([0, 2], 2)
    assert str(plan) == "L1 → L1 → L1 → L2 → L3 → L3 → L3"


def test_edits_may_name_the_last_layers():
    assert made({"op": "loop_blocks", "layers": {"last": 2}}) == Plan.plain(4).loop_blocks([2, 3])
    assert made({"op": "loop_attention", "layers": [1]}) == Plan.plain(4).loop_heads(1, (0, 1))
    assert layers(made({"op": "skip", "layers": {"last": 3}})) == [0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"op": "loop_blocks", "layers": {"last": 5}}, "last 5 is not between 1 and 4"),
        ({"op": "loop_blocks", "layers": {"last": 0}}, "last 0 is not between 1 and 4"),
        ({"op": "loop_blocks", "layers": {"top_entropy_of": "ab", "step": 1, "n": 1}}, "known only after its training"),
        ({"op": "loop_attention", "layers": [1, 1]}, "names a layer twice"),
        ({"op": "loop_heads", "layer": 1, "heads": [0], "extra_passes": 2 * 10**9}, "between 0 and 1000"),
        ({"op": "loop_blocks", "layers": [1], "extra_passes": -1}, "between 0 and 1000"),
        ({"op": "loop_heads", "layer": 1, "heads": [2]}, "names head 2, but there are heads 0 to 1"),
        ({"op": "skip", "layers": [-1]}, "layer -1 does not exist"),
        ({"op": "visits", "visits": [{"layer": -1, "part": "mlp", "heads": None}]}, "whole numbers from 0"),
        ({"op": "recur", "first": 1, "size": 1, "chunks": [0]}, "whole numbers of 1 or more"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_with_its_number(edit, message):
    with pytest.raises(UserError, match=message) as caught:
        made({"op": "swap", "first": 0, "second": 1}, edit)
    assert str(caught.value).startswith(f"plan edit 2 ({edit['op']}): ")


def test_how_routers_begin_is_stored_only_where_it_was_set():
    """Plans and hashes of runs without the setting stay as they were."""
    plain, chosen = (
        Plan.plain(4).recur(1, 2, (2, 1), topology="mesh", **extra) for extra in ({}, {"router_init": "anchor"})
    )
    assert "router_init" not in plain.to_json()["visits"][1]
    assert Plan.from_json(chosen.to_json()) == chosen != plain == Plan.from_json(plain.to_json())
    default, anchored = (resolve("looped", "tiny", settings=s) for s in ([], ["recurrence.router_init=anchor"]))
    assert (
        "router_init" not in identity(default)["plan"][0] and identity(anchored)["plan"][0]["router_init"] == "anchor"
    )
    with pytest.raises(UserError, match="no effect with topology anchor, which has no routers"):
        resolve("looped", "tiny", settings=["recurrence.router_init=anchor", "recurrence.topology=anchor"])
