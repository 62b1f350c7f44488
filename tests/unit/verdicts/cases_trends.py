"""Claims on differences that last, grow or shrink, on what every run shows, and on entropies over training."""

import numpy as np

from tests.unit.verdicts.building import NOISE, around, case, measured, record, says
from tests.unit.verdicts.cases_sgt import jumping, logged
from tests.unit.verdicts.cases_spiral import loops

TEN = [10.0 * (i + 1) for i in range(10)]


def curves(gaps, noise=NOISE):
    """Seeds whose loss falls, this far above a common curve in each of ten readings."""
    losses = [[4 - 0.1 * i + gap + by for i, gap in enumerate(gaps)] for by in noise[:3]]
    return [record(history={"step": TEN, "loss": loss}) for loss in losses]


FLAT = (0.0,) * 3
BELOW = "loss-20-40|loss-40-60|loss-60-80|loss-80-100[a] < [b]"
level, above, below = curves([0.0] * 10, FLAT), curves([0.1] * 10), curves([-0.1] * 10)
says(True, BELOW, measured(a=below, b=level), "^a − b, training loss, steps 20 to 40 % = -0.0993 ± ")
says(False, BELOW, measured(a=above, b=level))
crossing = curves([-0.1] * 8 + [0.1, 0.1])
says(False, BELOW, measured(a=crossing, b=level), "a − b, training loss, steps 80 to 100 % = +0.1007")
says(True, "loss-20-40|loss-40-60|loss-60-80[a] < [b]", measured(a=crossing, b=level))
# The first fifth, of the warm-up, does not count.
says(True, BELOW, measured(a=curves([0.1] * 2 + [-0.1] * 8), b=level))
says(None, BELOW, measured(a=curves([0.0] * 10, (0.1, -0.1, 0.05)), b=level))
bump = measured(a=curves([0.0] * 4 + [0.1] * 2 + [0.3] * 2 + [0.0] * 2), b=level)
fifths = ("40 to 60 % = +0.1007", "60 to 80 % = +0.3007", "80 to 100 % = +0.0007")
says(None, "loss-40-60|loss-60-80|loss-80-100[a] > [b]", bump, fifths)
sparse = [record(history={"step": [10.0, 50.0, 100.0], "loss": [1.0, 1.0, 1.0]})] * 3
says(None, "loss-20-40[a] < [b]", measured(a=sparse, b=level), "nothing is selected")
says("not run", BELOW, measured(a=below), "not run: b")
says("not run", BELOW, measured(a=below, b=[3.0]), "not measured: history.step")

CLOSE = "abs(loss-20-40|loss-40-60|loss-60-80|loss-80-100[a] - [b]) < 0.02"
says(True, CLOSE, measured(a=curves([0.0] * 10), b=level), ", required -0.02 to +0.02 (n = 3 seeds")
says(False, CLOSE, measured(a=above, b=level))
says(False, CLOSE, measured(a=crossing, b=level))
says(None, CLOSE, measured(a=curves([0.0] * 10, (0.1, -0.1, 0.05)), b=level))
says("not run", CLOSE, {})

gaps = {"pairs": [["a", "b"], ["c", "d"]]}
wide = {"a": around(3.0), "b": around(3.0, FLAT), "c": around(3.3), "d": around(3.1)}
says(True, "loss[c] - [d] > [a] - [b]", measured(**wide), "^c − d − (a − b) = +0.1993")
swapped = {"a": wide["c"], "b": wide["d"], "c": wide["a"], "d": wide["b"]}
says(False, "loss[c] - [d] > [a] - [b]", measured(**swapped))
says(None, "loss[c] - [d] > [a] - [b]", measured(**wide | {"c": [3.1, 3.4, 2.9]}))
spent = {"a": (5, 5, 5), "b": (5, 5, 5), "c": (9, 10, 11), "d": (5, 5, 5)}
by_flops = {name: [record(flops=flops) for flops in seeds] for name, seeds in spent.items()}
says(True, "flops[c] - [d] > [a] - [b]", measured(**by_flops), "= +5.0000")
says("not run", "loss[c] - [d] > [a] - [b]", measured(a=wide["a"], b=wide["b"], c=wide["c"]), "not run: d")


# ---- what every run must show ----


def leaking(*changes):
    runs = [record() for _ in changes]
    return [
        run.model_copy(update={"results": run.results.model_copy(update={"causality": {"largest_change": change}})})
        for run, change in zip(runs, changes, strict=True)
    ]


fine, leaks = leaking(1e-7, 3e-7), leaking(1e-7, 0.2)
says(
    True,
    "every(causality.largest_change[a, b] <= 0.0001)",
    measured(a=fine, b=fine),
    "^counted: causality largest_change of a, b (1e-07 to 3e-07) <= 0.0001$",
)
says(False, "every(causality.largest_change[a, b] <= 0.0001)", measured(a=fine, b=leaks), "of a, b (1e-07 to 0.2) <=")
says(True, "every(causality.largest_change[a, b] <= 0.2)", measured(a=fine, b=leaks))
says("not run", "every(causality.largest_change[a, b] <= 0.0001)", measured(a=fine), "not run: b")
both = leaking(0.3, 0.2)
says(
    True,
    "every(causality.largest_change[a, b] > 0.0001)",
    measured(a=both, b=both),
    "^counted: causality largest_change of a, b (0.2 to 0.3) > 0.0001$",
)
says(
    False,
    "every(causality.largest_change[a, b] > 0.0001)",
    measured(a=both, b=leaks),
    "of a, b (1e-07 to 0.3) > 0.0001",
)
says(False, "every(causality.largest_change[a, b] > 0.2)", measured(a=both, b=both))
says("not run", "every(causality.largest_change[a, b] > 0.0001)", measured(a=both), "not run: b")


def grown(*layers, direction="deep-to-shallow"):
    events = [{"kind": "loop-added", "layer": layer} for layer in layers]
    settings = {"controller": {"direction": direction} if direction else None}
    return record(events=[{"kind": "loop-deepened", "layer": 7}, *events], config=settings)


def reverse(*layers):
    return grown(*layers, direction="shallow-to-deep")


up, deeper = {"cells": ["a"], "to": "shallower"}, {"cells": ["a"], "to": "deeper"}
case(
    "growth_goes",
    True,
    up,
    measured(a=[grown(7, 4, 2), grown(5, 3)]),
    ("^fixed by the settings (deep-to-shallow), whatever the entropies;", "a, seed 0: 8, 5, 3; a, seed 1: 6, 4$"),
)
case("growth_goes", True, up, measured(a=[grown(7, 4, 2), grown(6)]))
case("growth_goes", False, up, measured(a=[grown(7, 4, 2), reverse(3, 5)]), "(deep-to-shallow, shallow-to-deep)")
case("growth_goes", False, up, measured(a=[grown(7, 4, 4)]))
case("growth_goes", False, up, measured(a=[reverse(4, 7, 5)]))
case("growth_goes", True, deeper, measured(a=[reverse(3, 5, 4)]))
case("growth_goes", False, deeper, measured(a=[reverse(3, 5, 2)]))
case("growth_goes", None, up, measured(a=[grown(7)]), "no run has a second layer")
case("growth_goes", None, deeper, measured(a=[grown()]), "no run has a second layer")
case("growth_goes", None, up, measured(a=[grown(7, 4), grown(7, 4, direction=None)]), "do not fix the direction")
case("growth_goes", "not run", up, {})

says(
    True,
    "every(steps(tokens[a, b]) == 0)",
    measured(a=[3.0, 3.1], b=[3.2]),
    "^counted: steps(tokens of a, b (1,000)) == 0$",
)
says(False, "every(steps(tokens[a, b]) == 0)", measured(a=[3.0], b=[record(tokens=2000)]), "of a, b (1,000 to 2,000)")
says(False, "every(steps(tokens[a]) == 0)", measured(a=[record(tokens=2000), record()]), "of a (1,000 to 2,000)")
says("not run", "every(steps(tokens[a, b]) == 0)", measured(a=[3.0]), "not run: b")

readings = [logged(np.full((2, 1, 2), value)) for value in (0.0, 1.0)]
says(
    True,
    "every(0 <= logged-entropies[a] <= 1)",
    measured(a=readings),
    "^counted: 0 <= entropies of all heads of a (0 to 1) <= 1$",
)
says(False, "every(0.1 <= logged-entropies[a] <= 1)", measured(a=readings))
says(False, "every(0 <= logged-entropies[a] <= 0.9)", measured(a=readings))
says("not run", "every(0 <= logged-entropies[a] <= 1)", measured(a=[3.0]), "not measured: hooks.entropy-log.entropies")


# ---- entropies over training ----


def mean_entropy(*levels, noise=NOISE):
    """Seeds with these mean entropies, one for each tenth of the readings (two readings)."""
    heads = np.array([[0.0, 0.1], [0.05, -0.1]])
    return measured(
        a=[
            logged(
                np.repeat(levels, 2)[:, None, None] + by * np.repeat(np.arange(len(levels)), 2)[:, None, None] + heads
            )
            for by in noise[:3]
        ]
    )


says(True, "entropy-gained[a] < 0", mean_entropy(0.9, *[0.8] * 7, 0.5, 0.5), "last fifth − first tenth = -0.3943")
says(False, "entropy-gained[a] < 0", mean_entropy(0.5, *[0.8] * 7, 0.9, 0.9))
says(None, "entropy-gained[a] < 0", mean_entropy(0.9, *[0.2] * 7, 0.9, 0.9))
says("not run", "entropy-gained[a] < 0", {}, "not run: a")
# Of five readings the first and the last count.
few = measured(
    a=[logged(np.array([0.9, 0.2, 0.3, 0.4, 0.5])[:, None, None] * np.ones((5, 2, 2)) - by) for by in NOISE[:3]]
)
says(None, "entropy-gained[a] < 0", few, "= -0.4000 ± 0.0000")


def apart(deep, shallow, noise=NOISE, readings=10):
    """Seeds: by reading, how far the two heads of the last and of the first three of nine layers lie
    apart; the first layer and the middle ones do the opposite of both."""
    runs = []
    for by in noise[:3]:
        half = np.full((readings, 9), 0.3)
        half[:, 0], half[:, 4] = np.linspace(0.5, 0.0, readings), np.linspace(0.0, 0.5, readings)
        half[:, 6:], half[:, 1:4] = np.array(deep)[:, None] + by, np.array(shallow)[:, None] + by
        half *= 1 + by * np.arange(readings)[:, None]
        runs.append(logged(np.stack([0.5 - half, 0.5 + half], axis=2)))
    return measured(a=runs)


surge, steady, flat = [0.0, 0.3, 0.4, 0.3, *[0.25] * 4, 0.1, 0.1], np.linspace(0.0, 0.4, 10), [0.2] * 10
DEEP = "deep-variance-over-time[a][1] > [a][0] and [a][2] < [a][1]"
SHALLOW = "shallow-variance-over-time[a][1] > [a][0] and [a][2] > [a][1]"
says(
    True,
    DEEP,
    apart(surge, flat),
    "^a[1] − a[0], variance of entropies in deep layers, at the start, early, at the end = +0.1141",
)
says(
    False,
    DEEP,
    apart(steady, surge),
    "a[2] − a[1], variance of entropies in deep layers, at the start, early, at the end = +0.1362",
)
says(False, DEEP, apart([0.3, 0.2, 0.1, *[0.0] * 7], surge))
says(True, SHALLOW, apart(flat, steady), "^a[1] − a[0], variance of entropies in shallow layers")
says(True, SHALLOW, apart(flat, steady * 0.5), "at the start, early, at the end = +0.0342")
says(False, SHALLOW, apart(steady, surge))
says(None, DEEP, apart(surge, flat, noise=(0.3, -0.3, 0.1)))
says("not run", DEEP, {})
# Of five readings the first is the start, and the first two are early: (0.4² + 0.2²) / 2 − 0.4² = −0.06.
few = apart([0.4, 0.2, *[0.0] * 3], [0.4, 0.2, *[0.0] * 3], noise=(0.0,) * 3, readings=5)
says(None, "deep-variance-over-time[a][1] < [a][0]", few, "= -0.0600")
says(None, "shallow-variance-over-time[a][1] < [a][0]", few, "= -0.0600")


def ordered(*ends):
    """Seeds: the entropies of six heads at the second reading of twenty, which is 5 % of them, then these; at the first
    one their order is another."""
    first = np.linspace(0.1, 0.6, 6).reshape(1, 3, 2)
    return measured(
        a=[logged(np.concatenate([first[:, ::-1], first, *[np.reshape(end, (1, 3, 2))] * 18])) for end in ends]
    )


rising = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
kept = [rising, [0.2, 0.1, *rising[2:]], [0.1, 0.3, 0.2, *rising[3:]]]
says(True, "head-order-kept[a] > 0.5", ordered(*kept), "at 5 % of training and at its end = +0.9619")
says(False, "head-order-kept[a] > 0.5", ordered(*(end[::-1] for end in kept)))
says(None, "head-order-kept[a] > 0.5", ordered(rising, [0.3, 0.5, 0.1, 0.6, 0.2, 0.4], rising))
says(None, "head-order-kept[a] > 0.5", ordered([0.3] * 6), "all entries of a list are the same")
says("not run", "head-order-kept[a] > 0.5", {})

calm, wild = (
    [jumping(15), jumping(), jumping(12)],
    [jumping(*range(11, 18)), jumping(*range(13, 20)), jumping(*range(12, 18))],
)
says(True, "spikes[a] < 0.3", measured(a=calm), "^a: share of changes above 0.05 during selection = +0.0667")
says(False, "spikes[a] < 0.3", measured(a=wild))
small = [jumping(*range(11, 18), by=0.04)] * 6
says(None, "spikes[a] < 0.3", measured(a=small), "= +0.0000", n_needed=11)
says(True, "spikes[a] < 0.3", measured(a=[small[0]] * 11), "= +0.0000")
says(None, "spikes[a] < 0.3", measured(a=[*calm[:2], wild[0]]))
says("not run", "spikes[a] < 0.3", {})

six = [jumping(15)] * 6
says(True, "always(spikes-together[a])", measured(a=six), "^a: 2 heads of a layer change together: yes in 6 of 6")
lonely = logged(0.2 * np.cumsum(np.eye(4), axis=0).reshape(4, 2, 2))
says(False, "always(spikes-together[a])", measured(a=[lonely] * 6), "yes in 0 of 6")
says(False, "always(spikes-together[a])", measured(a=small))
downwards = logged(1 - 0.2 * np.broadcast_to(np.arange(3)[:, None, None], (3, 2, 2)))
says(True, "always(spikes-together[a])", measured(a=[downwards] * 6))
says(None, "always(spikes-together[a])", measured(a=six[:4]))
says("not run", "always(spikes-together[a])", {})


# ---- attention by loop ----


def shifting(*shifts, dynamic=None):
    """Seeds of 2 x 4 heads in two loops: each head moves by its own number, from coarse to fine."""
    return [
        loops([0.0, 0.0], heads=np.array(heads, float).reshape(2, 4), chunks=(2, 1), dynamic=dynamic)
        for heads in shifts
    ]


SAME = ([-0.1] * 8, [-0.2] * 7 + [-0.1], [-0.1] * 7 + [0.01])
MIXED = ([0.1, -0.1] * 4, [0.1, -0.1] * 3 + [0.1, 0.1], [0.1, -0.2] * 4)
mixed, same = shifting(*MIXED), shifting(*SAME)
says(
    True,
    "entropy-agreement[a] < [b]",
    measured(a=mixed, b=same),
    "^a − b, agreement of heads on the change of entropy = -0.7962",
)
says(True, "local-mass-agreement[a] < [b]", measured(a=mixed, b=same), "= -0.7962")
says(False, "entropy-agreement[a] < [b]", measured(a=same, b=mixed))
says(None, "entropy-agreement[a] < [b]", measured(a=mixed, b=shifting(MIXED[1], MIXED[2], MIXED[0])))
says(None, "entropy-agreement[a] < [b]", measured(a=mixed, b=shifting([0.0] * 8)), "is no number here")
says("not run", "entropy-agreement[a] < [b]", measured(a=mixed), "not run: b")

FEW = [[1, 1, 0, 0], [0, 0, 0, 0]]
strong = ([0.5, 0.4] + [0.1] * 6, [0.6, 0.4] + [0.1] * 6, [0.5, 0.5] + [0.0] * 6)
says(
    True,
    "local-mass-dilution[a] < 0",
    measured(a=shifting(*strong, dynamic=FEW)),
    "local mass over all heads − over dynamic ones = -0.3",
)
fallen = [[-value for value in heads] for heads in strong]
says(True, "local-mass-dilution[a] < 0", measured(a=shifting(*fallen, dynamic=FEW)), "= -0.3")
weak = ([0.0, 0.1] + [0.4] * 6, [0.1, 0.1] + [0.4] * 6, [0.0, 0.0] + [0.5] * 6)
says(False, "local-mass-dilution[a] < 0", measured(a=shifting(*weak, dynamic=FEW)))
says(None, "local-mass-dilution[a] < 0", measured(a=shifting(strong[0], weak[0], strong[1], dynamic=FEW)))
says("not run", "local-mass-dilution[a] < 0", {})
says(True, "entropy-dilution[a] < 0", measured(a=shifting(*strong, dynamic=FEW)), "over dynamic ones = -0.3")
# With three loops the last one counts.
there_and_back = [
    loops([0.0, 0.5, 0.0], heads=0 * np.ones((2, 4)) + by, chunks=(4, 2, 1), dynamic=FEW) for by in NOISE[:3]
]
says(None, "local-mass-dilution[a] < 0", measured(a=there_and_back), "= +0.0000")
uneven = [
    loops([0.0, by, 0.0], heads=np.array(heads).reshape(2, 4), chunks=(4, 2, 1))
    for heads, by in zip(MIXED, (0.5, 0.6, 0.7), strict=True)
]
says(True, "entropy-agreement[a] < [b]", measured(a=uneven, b=same), "= -0.7962")
