"""Claims about loops: two layers of four heads, chunks of 4, 2 and 1."""

import numpy as np

from tests.unit.verdicts.building import NOISE, around, case, measured, record, says

LOW, HIGH = around(3.0), around(3.1, (0.0,) * 3)
STEADY = np.array([[0.01, -0.01, 0.02, -0.02], [0.0, 0.01, -0.01, 0.0]])
"""How heads differ, by layer."""


def loops(by_chunk, heads=STEADY, chunks=(4, 2, 1), fresh=(0.5, 0.5, 0.5), dynamic=None, local_dynamic=None):
    """by_chunk: the mean of each iteration after training. Heads add a part of their own to each iteration's mean."""
    values = [np.full((2, 4), 0.5) + mean + (t + 1) * heads for t, mean in enumerate(by_chunk)]
    before = [np.full((2, 4), level) for level in fresh]
    flags = np.ones((2, 4), bool) if dynamic is None else np.array(dynamic, bool)
    local = flags if local_dynamic is None else np.array(local_dynamic, bool)
    probe = {
        "chunks": list(chunks),
        "entropy": {"values": np.array(values).tolist(), "dynamic": flags.tolist()},
        "local_mass": {"values": np.array(values).tolist(), "dynamic": local.tolist()},
        "fresh": {"entropy": np.array(before).tolist(), "local_mass": np.array(before).tolist()},
    }
    return record(probes={"loops": probe})


def seeds(by_chunk, noise=NOISE, **changes):
    """Three seeds: their iterations' means differ a little from these."""
    return [loops([mean + by * t for t, mean in enumerate(by_chunk)], **changes) for by in noise[:3]]


a = {"cell": "a"}
FALLS = "entropy-by-resolution[a][1] < [a][0] and [a][2] < [a][1]"
RISES = "local-mass-by-resolution[a][1] > [a][0] and [a][2] > [a][1]"
down, up = [0.3, 0.2, 0.0], [0.0, 0.2, 0.3]
says(
    True,
    FALLS,
    measured(a=seeds(down)),
    (
        "^a[1] − a[0], entropy by resolution, dynamic heads = -0.0993",
        "a[2] − a[1], entropy by resolution, dynamic heads = -0.1993",
    ),
)
says(
    True, FALLS, measured(a=seeds(up, chunks=(1, 2, 4))), "a[2] − a[1], entropy by resolution, dynamic heads = -0.2007"
)
says(False, FALLS, measured(a=seeds(up)))
says(False, FALLS, measured(a=seeds([0.3, 0.1, 0.2])))
says(None, FALLS, measured(a=[loops(down), loops(down), loops(up)]))
says(True, RISES, measured(a=seeds(up)), "a[1] − a[0], local mass by resolution, dynamic heads = +0.2007")
says(False, RISES, measured(a=seeds(down)))
says("not run", RISES, {}, "not run: a")
says("not run", FALLS, measured(a=[3.0]), "not measured: results.probes.loops.entropy.values")
# The paper's quantity decides, not how it differs from that of fresh weights.
all_of_it = seeds(down, fresh=(0.9, 0.7, 0.3))
says(True, FALLS, measured(a=all_of_it), "a[1] − a[0], entropy by resolution, dynamic heads = -0.0993")
# Only the first layer's heads are dynamic, and only there it falls.
first_layer = np.array([[0.0, 0.01, 0.0, 0.01], [0.9, 0.8, 0.7, 0.9]])
one_falls = seeds(down, heads=first_layer, dynamic=[[1, 1, 1, 1], [0, 0, 0, 0]])
says(True, FALLS, measured(a=one_falls), "dynamic heads")
says(False, "entropy-by-resolution-of-all[a][1] < [a][0] and [a][2] < [a][1]", measured(a=one_falls), "all heads")
turned = seeds(up, chunks=(1, 2, 4))
says(
    True,
    "local-mass-by-resolution-of-all[a][1] < [a][0]",
    measured(a=turned),
    "local mass by resolution, all heads = -0.1",
)

small, large = seeds([0.2, 0.5, 0.3]), seeds([0.1, 0.0, 0.5], NOISE[2:])
says(
    True,
    "entropy-shift[a] < [b]",
    measured(a=small, b=large),
    ("^a − b, size of the change of entropy over the loops = -0.29"),
)
says(False, "entropy-shift[a] < [b]", measured(a=large, b=small))
says(None, "entropy-shift[a] < [b]", measured(a=small, b=[small[1], large[0], small[0]]))
says("not run", "entropy-shift[a] < [b]", measured(a=small), "not run: b")
drifting = seeds([0.2, 0.5, 0.3], fresh=(0.1, 0.5, 0.9))
says(True, "entropy-shift[a] < [b]", measured(a=drifting, b=large), "= -0.29")
says(True, "local-mass-shift[a] < [b]", measured(a=small, b=large), "size of the change of local mass")

uneven = [loops(down, heads=(5 + 40 * by) * STEADY) for by in NOISE[:3]]
even = [loops(down, heads=(1 + 40 * by) * STEADY) for by in NOISE[1:4]]
says(
    True,
    "entropy-spread|local-mass-spread[a] < [b]",
    measured(a=even, b=uneven),
    (
        "^a − b, spread over heads of the change of entropy = -0.1",
        "a − b, spread over heads of the change of local mass",
    ),
)
says(False, "entropy-spread|local-mass-spread[a] < [b]", measured(a=uneven, b=even))
says(None, "entropy-spread|local-mass-spread[a] < [b]", measured(a=even, b=[even[1], uneven[0], even[0]]))
says("not run", "entropy-spread|local-mass-spread[a] < [b]", measured(a=even))


def moving(few, fresh_few=False, by=0.0, of="entropy"):
    """Whether few heads hold most of the range of a statistic after training, and with fresh weights."""
    run = loops([0.0, 0.0, 0.0], heads=0 * STEADY)
    probe = run.results.probes["loops"]
    concentrated = [0.01, 0.01, 0.01, 0.9 + by, 0.01, 0.9, 0.01, 0.9]
    for values, one_sided in ((probe[of]["values"], few), (probe["fresh"][of], fresh_few)):
        ranges = concentrated if one_sided else [0.3 + by] * 2 + [0.3] * 6
        for t in range(3):
            values[t] = np.reshape([t * r / 2 for r in ranges], (2, 4)).tolist()
    return run


says(
    True,
    "entropy-concentration[a] > 0",
    measured(a=[moving(True, by=by) for by in NOISE[:3]]),
    "^a: share of the range of entropy in the 40 % of heads that move most, trained − fresh = +0.6",
)
says(False, "entropy-concentration[a] > 0", measured(a=[moving(False, True, by=by) for by in NOISE[:3]]))
says(None, "entropy-concentration[a] > 0", measured(a=[moving(True), moving(False, True), moving(True)]))
says(
    None,
    "entropy-concentration[a] > 0",
    measured(a=[loops([0.0, 0.0, 0.0], heads=0 * STEADY)]),
    "trained − fresh = +0.0000",
)
says("not run", "entropy-concentration[a] > 0", {}, "not run: a")
few_of_mass = [moving(True, by=by, of="local_mass") for by in NOISE[:3]]
says(True, "local-mass-concentration[a] > 0", measured(a=few_of_mass), "fresh = +0.6")
says(None, "entropy-concentration[a] > 0", measured(a=few_of_mass))
even_mass = [moving(False, True, by=by, of="local_mass") for by in NOISE[:3]]
says(False, "local-mass-concentration[a] > 0", measured(a=even_mass), "fresh = -0.6")

left, right = [[1, 1, 1, 1], [0, 0, 0, 0]], [[0, 0, 0, 0], [1, 1, 1, 1]]
one_more = [[0, 0, 0, 1], [1, 1, 1, 0]]


def chosen(*pairs):
    return measured(a=[loops(down, dynamic=one, local_dynamic=other) for one, other in pairs])


# Of four dynamic heads in each metric none or one is shared, or all are.
says(True, "dynamic-shared[a] < 0.7", chosen((left, right), (left, one_more), (left, right)), "have = +0.0833")
says(False, "dynamic-shared[a] < 0.7", chosen(*[(left, left), (right, right)] * 8), "have = +1.0000")
half = [[1, 1, 0, 0], [1, 1, 0, 0]]
says(None, "dynamic-shared[a] < 0.7", chosen((left, half), (half, left), (left, half)))


# ---- losses by ratio and by compute ----


def level(value, noise=0):
    """Three seeds around a loss; another noise gives differences a spread."""
    return around(value, NOISE[noise:] + NOISE[:noise])


four = {"cells": ["a", "b", "c", "d"]}
valley = {"a": level(3.3), "b": level(3.1, 1), "c": level(3.0, 2), "d": level(3.2, 3)}
case("u_shaped", True, four, measured(**valley), ("^c − a = -0.30", "c − d = -0.2", "b − a = -0.2", "c − b = -0.09"))
case("u_shaped", False, four, measured(**valley | {"d": level(2.9, 3)}), "c − d = +0.09")
case("u_shaped", False, four, measured(**valley | {"a": level(2.9, 3)}))
# A zigzag has its lowest point inside and both ends above it, but turns three times.
case(
    "u_shaped", False, four, measured(a=level(3.1), b=level(3.3, 1), c=level(3.0, 2), d=level(3.2, 3)), "b − a = +0.19"
)
case(
    "u_shaped", False, four, measured(a=level(3.3), b=level(3.0, 1), c=level(3.2, 2), d=level(3.1, 3)), "c − d = +0.09"
)
# Steps beside the lowest cell need not be resolved, the ends must be.
case("u_shaped", True, four, measured(**valley | {"b": around(3.005, (0.01, -0.02, 0.015))}))
case("u_shaped", None, four, measured(**valley | {"d": around(3.005, (0.01, -0.02, 0.015))}))
case("u_shaped", None, {"cells": ["a", "b"]}, measured(a=LOW, b=HIGH), "a curve of two points has no shape")
case("u_shaped", True, {"cells": ["a", "b", "c"]}, measured(a=HIGH, b=LOW, c=HIGH), "^b − a = -0.0993")
case("u_shaped", "not run", four, measured(a=LOW, b=LOW), "not run: c")

SAME_PLACE = "abs(argmin(loss[a, b, c]) - argmin([d, e, f])) < 1"


def bowl(at, seeds=6, lowest=3.0):
    """Losses of three cells, the lowest at this one."""
    return [[lowest + 0.1 * abs(i - at)] * seeds for i in range(3)]


def two_bowls(first, second, seeds=6, lowest=2.9):
    """The second one's lowest loss is `lowest`, the first one's 3."""
    return dict(zip("abcdef", bowl(first, seeds) + bowl(second, seeds, lowest), strict=True))


says(
    True,
    SAME_PLACE,
    measured(**two_bowls(1, 1)),
    "^argmin(a and b and c) − argmin(d and e and f) = +0.0000 ± 0.0000, required",
)
says(False, SAME_PLACE, measured(**two_bowls(0, 2, 13)), "= -2.0000 ± 0.0000, required -1 to +1")
says(None, SAME_PLACE, measured(**two_bowls(2, 1)), "= +1.0000")
says(
    None, SAME_PLACE, measured(**two_bowls(1, 1, 4)), "p = 0.0625, the same in every seed, of a number that is -2 to 2"
)
says(True, SAME_PLACE, measured(**two_bowls(1, 1, 5)), "p = 0.0312")
says(None, SAME_PLACE, measured(**two_bowls(1, 1, lowest=3.0)), "both sides read the same numbers")
says("not run", SAME_PLACE, measured(a=LOW, b=HIGH, c=LOW), "not run: d")


def family(level, flops, noise=0):
    """Three seeds of one size."""
    return [record([loss], flops=flops) for loss in around(level, NOISE[noise:] + NOISE[:noise])]


sizes = {"cells": ["a", "b"], "over_cells": ["c", "d"]}
# Over the logarithm of FLOPs the second family falls from 3.2 at 100 to 3.0 at 400, through 3.1 at 200.
theirs = {"c": family(3.2, 100.0), "d": family(3.0, 400.0, 1)}
case(
    "better_frontier",
    True,
    sizes,
    measured(a=family(3.0, 50.0, 2), b=family(2.9, 200.0, 3), **theirs),
    ("^a b − c d at the FLOPs of b = -0.199", "a b − c d at the FLOPs of c = -0.25"),
)
case("better_frontier", False, sizes, measured(a=family(3.4, 50.0, 2), b=family(3.2, 200.0, 3), **theirs))
# Of the metric that it names: with equal losses, the steps that were spent.
quick, slow = (
    [record([3.0], flops=flops, steps=steps + i) for i in range(3)] for flops, steps in ((50.0, 10), (200.0, 4))
)
later = {
    name: [record([3.0], flops=flops, steps=40 + 2 * i) for i in range(3)]
    for name, flops in (("c", 100.0), ("d", 400.0))
}
case("better_frontier", True, {**sizes, "metric": "steps"}, measured(a=quick, b=slow, **later), "at the FLOPs of b = -")
case("better_frontier", None, sizes, measured(a=quick, b=slow, **later))
# Better at its own size and dearer, which is no frontier: at equal FLOPs it is worse.
dear = measured(a=family(3.1, 300.0, 2), b=family(2.95, 600.0, 3), **theirs)
case("better_frontier", False, sizes, dear, ("at the FLOPs of a = +0.0", "at the FLOPs of d = +0.039"))
case(
    "better_frontier",
    None,
    sizes,
    measured(a=family(3.25, 60.0, 2), b=[record([x], flops=200.0) for x in around(3.1, (0.03, -0.02, 0.01))], **theirs),
)
case("better_frontier", "not run", sizes, measured(a=family(3.0, 1.0), b=family(2.9, 2.0), **theirs), "do not overlap")
case(
    "better_frontier",
    None,
    {"cells": ["a"], "over_cells": ["c", "d"]},
    measured(a=family(3.0, 200.0), **theirs),
    "one size is no frontier",
)
# FLOPs are those of the lowest seed, whichever stands first.
late = {cell: {2 - i: run for i, run in enumerate(reversed(runs))} for cell, runs in theirs.items()}
late["c"][2] = record([3.2], flops=900.0)
ours = measured(a=family(3.0, 50.0, 2), b=family(2.9, 200.0, 3))["records"]
case("better_frontier", None, sizes, {"records": {**ours, **late}}, "at the FLOPs of c = ")
case("better_frontier", "not run", sizes, measured(a=LOW), "not run: b, c, d")
