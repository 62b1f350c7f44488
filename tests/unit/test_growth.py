"""SGT's growth operator: the schedule, both policies, both directions, the fade, and rules that always hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridlab.methods.sgt import EntropyGrowthConfig, Growth, growable_layers
from hybridlab.plan.plan import Plan

LAYERS, HEADS = 6, 4


def operator(**settings):
    base = {"kind": "entropy-growth", "heads": 1, "start_step": 10, "interval": 10, "fade_steps": 10}
    return Growth(EntropyGrowthConfig(**{**base, **settings}), HEADS, list(range(LAYERS)))


def ranked(order):
    """Entropies whose layers rank as in `order`, the most entropic first; heads rise with their number."""
    means = {layer: 1 - 0.1 * rank for rank, layer in enumerate(order)}
    return [[means.get(layer, 0.1) + 0.001 * head for head in range(HEADS)] for layer in range(LAYERS)]


def drive(growth, steps, entropies):
    """step → events, with the same entropies at every window."""
    return {t: growth.act(t, entropies) for t in range(1, steps + 1) if growth.due(t)}


def kinds(events):
    """step → (kind, layer, passes) of its events."""
    return {t: [(e["kind"], e.get("layer"), e.get("passes")) for e in acts] for t, acts in events.items()}


def test_algorithm_1_deepens_the_newest_layer_then_goes_shallower():
    growth = operator(max_passes=2, max_layers=2)
    events = kinds(drive(growth, 60, ranked([2, 4, 5, 1, 3])))
    assert events == {
        10: [("loop-added", 4, 1)],
        20: [("loop-deepened", 4, 2)],
        30: [("loop-added", 2, 1)],
        40: [("loop-deepened", 2, 2), ("growth-frozen", None, None)],
    }
    assert growth.frozen == "the target is reached" and not growth.due(50)
    assert growth.kept_heads() == {4: (3,), 2: (3,)}


def test_shallow_to_deep_starts_at_the_first_layer_and_low_takes_the_least_entropic_heads():
    growth = operator(max_layers=2, direction="shallow-to-deep", select="low", heads=2)
    events = kinds(drive(growth, 60, ranked([2, 4, 5, 1, 3])))
    assert events == {10: [("loop-added", 2, 1)], 20: [("loop-added", 4, 1), ("growth-frozen", None, None)]}
    assert growth.kept_heads() == {2: (0, 1), 4: (0, 1)}


def test_the_first_layer_never_loops_even_where_it_is_the_most_entropic():
    growth = operator(max_layers=2)
    events = drive(growth, 60, ranked([0, 3, 1, 2]))
    assert [e["layer"] for acts in events.values() for e in acts if "layer" in e] == [3, 1]


def test_without_a_candidate_growth_freezes():
    """After the shallowest candidate there is nothing above it."""
    growth = operator(max_layers=3)
    drive(growth, 10, ranked([1, 2, 3]))  # the pool is {1, 2, 3}: layer 3
    assert growth.act(20, ranked([3, 4, 5]))[0] == {"kind": "growth-frozen", "reason": "no candidate layer is left"}
    assert not growth.due(30)


def test_the_policies_differ_where_a_layer_returns_to_the_pool():
    """A layer that fell out of the pool before it was deep enough: the released code deepens it later."""
    traces = {}
    for policy in ("paper", "released"):
        growth = operator(max_layers=2, max_passes=2, policy=policy)
        actions = [growth.act(10, ranked([4, 3])), growth.act(20, ranked([2, 3])), growth.act(30, ranked([4, 3]))]
        traces[policy] = [(e["kind"], e.get("layer")) for events in actions for e in events]
    assert traces["paper"] == [("loop-added", 4), ("loop-added", 3), ("loop-deepened", 3), ("growth-frozen", None)]
    assert traces["released"] == [("loop-added", 4), ("loop-added", 3), ("loop-deepened", 4)]


def test_algorithm_1_waits_for_its_newest_layer_and_the_released_code_does_not():
    outcomes = {}
    for policy in ("paper", "released"):
        growth = operator(max_layers=1, max_passes=2, policy=policy)
        growth.act(10, ranked([4]))
        outcomes[policy] = (growth.act(20, ranked([2])), growth.frozen is None)
    assert outcomes["paper"] == ([], True)
    assert outcomes["released"][1] is False


def test_fixed_layers_loop_whatever_their_entropy():
    growth = operator(layers=[1, 3], exclude=[])
    events = drive(growth, 40, ranked([5, 4]))
    assert [e["layer"] for acts in events.values() for e in acts if "layer" in e] == [3, 1]


def test_heads_are_chosen_from_the_shortlist_at_the_next_window():
    growth = operator(layers=[2], shortlist=3, heads=1)
    first, second = ranked([2]), ranked([2])
    second[2] = [0.9, 0.1, 0.8, 0.2]  # head 0 is the highest now, but was not on the shortlist
    assert growth.act(10, first)[0]["heads"] == [1, 2, 3]
    events = growth.act(20, second)
    assert [e["kind"] for e in events] == ["heads-chosen", "growth-frozen"] and events[0]["heads"] == [2]
    assert [growth.plan(Plan.plain(LAYERS), t).visits[3].heads for t in (19, 20, 29, 30)] == [
        (0, 1, 2, 3),
        (0, 1, 2, 3),
        (0, 1, 2, 3),
        (2,),
    ]


def test_the_fade_runs_from_one_to_zero_and_ends_in_one_change_of_the_plan():
    growth = operator(max_layers=1)
    growth.act(10, ranked([4]))
    base = Plan.plain(LAYERS)
    (looped,) = growth.looped
    factors = [looped.factors(t, HEADS, 10) for t in range(10, 21)]
    assert [f[0] for f in factors] == pytest.approx([1 - i / 10 for i in range(11)])
    assert all(f[3] == 1 for f in factors)
    plans = [growth.plan(base, t) for t in range(10, 30)]
    assert [p[(5,)].heads for p in plans] == [(0, 1, 2, 3)] * 10 + [(3,)] * 10


def test_without_a_fade_only_the_kept_heads_ever_loop():
    growth = operator(max_layers=1, fade_steps=0)
    growth.act(10, ranked([4]))
    assert growth.plan(Plan.plain(LAYERS), 10)[(5,)].heads == (3,) and not growth.fading(10)


def test_deepening_does_not_start_the_fade_again():
    growth = operator(max_layers=1, max_passes=3, fade_steps=15)
    for t in (10, 20, 30):
        growth.act(t, ranked([4]))
    base = Plan.plain(LAYERS)
    loops = {t: [v.heads for v in growth.plan(base, t).visits if v.part == "attention"][1:] for t in (24, 25)}
    assert loops == {24: [(0, 1, 2, 3)] * 3, 25: [(3,)] * 3}


def test_layers_with_loops_and_split_layers_are_not_grown_again():
    plan = Plan.plain(5).loop_heads(1, (0,)).loop_blocks([3]).skip(4).drop_heads(0, (1,), HEADS)
    assert growable_layers(plan) == [2]


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rules_of_growth_hold_for_random_settings_and_entropies(data):
    draw = data.draw
    deep = draw(st.booleans())
    config = {
        "max_passes": draw(st.integers(1, 3)),
        "max_layers": draw(st.integers(1, 4)),
        "heads": draw(st.integers(1, 2)),
        "policy": draw(st.sampled_from(["paper", "released"])),
        "direction": "deep-to-shallow" if deep else "shallow-to-deep",
        "fade_steps": draw(st.sampled_from([0, 3, 10, 25])),
        "shortlist": draw(st.sampled_from([None, 3])),
        "interval": draw(st.integers(2, 12)),
    }
    growth, again = operator(**config), None
    base, before, chosen, was_frozen = Plan.plain(LAYERS), Plan.plain(LAYERS), [], False
    number = st.floats(0, 1, allow_nan=False)
    for step in range(1, 130):
        if growth.due(step):
            assert not was_frozen, "growth that has frozen never acts again"
            entropies = draw(
                st.lists(st.lists(number, min_size=HEADS, max_size=HEADS), min_size=LAYERS, max_size=LAYERS)
            )
            again = operator(**config)
            again.load_state(growth.state())
            events = growth.act(step, entropies)
            assert again.act(step, entropies) == events and again.state() == growth.state()
            acts = [e for e in events if e["kind"] != "growth-frozen"]
            assert len(acts) <= 1
            chosen += [e["layer"] for e in acts if e["kind"] == "loop-added"]
            was_frozen = growth.frozen is not None
        plan = growth.plan(base, step)
        fading = {loop.layer for loop in growth.fading(step)}
        for loop in growth.looped:
            assert 1 <= loop.passes <= config["max_passes"] and loop.layer != 0
            visits = [v for v in plan.visits if v.layer == loop.layer and v.heads is not None]
            assert len(visits) == loop.passes
            kept = loop.kept(HEADS)
            assert all(v.heads == (tuple(range(HEADS)) if loop.layer in fading else kept) for v in visits)
            assert all(loop.factors(step, HEADS, config["fade_steps"])[h] == 1 for h in kept)
        before = plan
    assert len(chosen) <= config["max_layers"]
    assert chosen == sorted(chosen, reverse=deep) and len(set(chosen)) == len(chosen)
    assert before == growth.plan(base, 10**6) or growth.fading(129)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": [1], "max_layers": 2}, "no effect on fixed layers"),
        ({"layers": [0]}, "both fixed and excluded"),
        ({"layers": []}, "at least one layer"),
        ({"shortlist": 1}, "more than heads"),
        ({"candidates": 2, "max_layers": 3}, "less than the 3 layers"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        operator(**wrong)


def random_heads(seed, layers=(1, 3, 5), **settings):
    """Layer → heads that the operator draws."""
    config = {"kind": "entropy-growth", "heads": 2, "start_step": 10, "interval": 10, "fade_steps": 0}
    config |= {"select": "random", "layers": list(layers), "exclude": []}
    growth = Growth(EntropyGrowthConfig(**{**config, **settings}), 8, list(range(LAYERS)), seed)
    drive(growth, 120, [[0.1 * head for head in range(8)]] * LAYERS)
    return growth.kept_heads()


def test_random_heads_are_drawn_by_seed_and_layer_and_nothing_else():
    drawn = random_heads(0)
    assert drawn == random_heads(0) and {layer: len(heads) for layer, heads in drawn.items()} == {1: 2, 3: 2, 5: 2}
    assert random_heads(0, layers=(3,))[3] == drawn[3]
    shortlisted = random_heads(0, shortlist=4)
    assert shortlisted == drawn
    many = [heads for seed in range(40) for heads in random_heads(seed, layers=range(LAYERS)).values()]
    counts = [sum(head in heads for heads in many) for head in range(8)]
    # 240 draws of 2 of 8 heads: each head 60 times, with a standard deviation of 6.7.
    assert all(33 < count < 87 for count in counts) and len(set(many)) == 28


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropies_of": {"run": "a"}, "entropies": [[0.1]]}, "both given; leave one of them out"),
        ({"entropies_of": {"run": "a"}, "ema_decay": 0.9}, "ema_decay has no effect with entropies_of"),
        ({"select": "most"}, "high"),
    ],
)
def test_settings_of_entropies_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        EntropyGrowthConfig(**{"kind": "entropy-growth", **settings})
