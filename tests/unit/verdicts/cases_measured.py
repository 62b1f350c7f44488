"""Claims on trained runs that papers share."""

from tests.unit.verdicts.building import NOISE, around, case, measured, measures_of, record, rows_of

LOW, HIGH, NEAR = around(3.0), around(3.1, (0.0,) * 3), around(3.0, (0.01, -0.02, 0.015))
"""Losses of three seeds: HIGH is above LOW in each, NEAR here and there."""
ab = {"pairs": [["a", "b"]]}

# 4, -3, 1 thousandths about -0.1: mean -0.0993, s.e. 0.0020, t = -49 with two degrees of freedom.
case(
    "lower",
    True,
    ab,
    measured(a=LOW, b=HIGH),
    "^a − b = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0004)$",
    n=3,
    n_needed=None,
    note="",
)
case("lower", False, ab, measured(a=HIGH, b=LOW), "a − b = +0.0993")
case("lower", None, ab, measured(a=LOW, b=NEAR), "seeds for 80 % power at the observed effect", n=3, note="")
case("lower", "not run", ab, measured(a=LOW), "^a − b: not run: b$", n=0)
case("lower", "not run", ab, {}, "not run: a, b")
case("lower", "not run", ab, measured(a=[record(results=None)], b=LOW), "not measured: results.validation.loss")
case("lower", None, ab, {"records": {"a": {0: record([3.0])}, "b": {1: record([3.0])}}}, "no seed in common: a, b")
case(
    "lower",
    None,
    ab,
    measured(a=[3.0], b=[3.1]),
    "^as claimed; a − b = -0.1000 nats (n = 1 seed); at least 3 seeds, since the spread over seeds is not known",
    note="direction only",
    n=1,
    n_needed=3,
    p=None,
)
case("lower", None, ab, measured(a=[3.2], b=[3.1]), "^the opposite of the claim; a − b = +0.1000")
case("lower", None, ab, measured(a=[3.1], b=[3.1]), "^neither way; a − b = +0.0000")
case("lower", None, ab, measured(a=LOW[:2], b=HIGH[:2]), "(n = 2 seeds); 3 seeds for 80 % power", n=2, n_needed=3)

# Several comparisons in one claim: each must be resolved after Holm's correction.
both = {"pairs": [["a", "b"], ["c", "b"]]}
case("lower", True, both, measured(a=LOW, b=HIGH, c=LOW), "c − b = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0008)")
case("lower", None, both, measured(a=LOW, b=HIGH, c=NEAR[:1] + HIGH[:2]))
case("lower", False, both, measured(a=LOW, b=HIGH, c=around(3.3)))
case("lower", None, both, measured(a=LOW, b=HIGH), "c − b: not run: c", n=3)
case("lower", None, both, measured(a=LOW[:1], b=HIGH[:1], c=[3.4]), "^as claimed in 1 of 2 comparisons; ")
case("lower", None, both, measured(a=LOW, b=HIGH, c=LOW[:2]), "n = 2 seeds", n=2, note="")
# Two comparisons at p = 0.03: alone each is resolved, together neither is.
case("lower", True, ab, measured(a=around(-0.05, (0.01, -0.02, 0.01)), b=[0.0] * 3), "p = 0.0377")
case(
    "lower",
    None,
    both,
    measured(a=around(-0.05, (0.01, -0.02, 0.01)), b=[0.0] * 3, c=around(-0.05, (0.01, -0.02, 0.01))),
)

# Draws of one arm: their mean is what a seed says about it.
drawn = {"cell": "a", "over": ["b", "c"]}
case(
    "lower_than_mean",
    True,
    drawn,
    measured(a=LOW, b=around(3.0, (0.0,) * 3), c=around(3.2, (0.0,) * 3)),
    "^a − mean of b and c = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0004)$",
    n=3,
)
case("lower_than_mean", False, drawn, measured(a=around(3.2), b=LOW, c=HIGH), "a − mean of b and c = +0.1")
# One draw is lower and one higher: no draw decides alone, nor does their mean.
case("lower_than_mean", None, drawn, measured(a=LOW, b=around(2.9, (0.1, -0.1, 0.05)), c=around(3.1, (0.0,) * 3)))
case("lower_than_mean", None, drawn, measured(a=LOW, b=LOW, c=LOW), "both gave the same numbers")
case("lower_than_mean", "not run", drawn, measured(a=LOW, b=HIGH), "not run: c")

spread = around(2.8, (0.0,) * 3), around(3.0, (0.0,) * 3)
case(
    "higher_than_mean",
    True,
    drawn,
    measured(a=LOW, b=spread[0], c=spread[1]),
    "^a − mean of b and c = +0.1007 ± 0.0020 nats (n = 3 seeds, p = 0.0004)$",
    n=3,
)
case("higher_than_mean", False, drawn, measured(a=LOW, b=HIGH, c=around(3.2)), "a − mean of b and c = -0.1")
# Above one draw and below the other.
case("higher_than_mean", None, drawn, measured(a=LOW, b=around(2.9, (0.1, -0.1, 0.05)), c=around(3.1, (0.0,) * 3)))
case("higher_than_mean", "not run", drawn, measured(a=LOW, b=HIGH), "not run: c")

# Another arm beside the draws is compared on its own, in the same claim.
beside = drawn | {"also": ["d"]}
low = {"a": LOW, "b": HIGH, "c": HIGH}
case(
    "lower_than_mean", True, beside, measured(**low, d=HIGH), "a − d = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0008)"
)
case("lower_than_mean", False, beside, measured(**low, d=around(2.9, (0.0,) * 3)), "a − d = +0.1007")
case("lower_than_mean", None, beside, measured(**low, d=NEAR))
case("lower_than_mean", None, beside, measured(**low), "a − d: not run: d")
high = {"a": LOW, "b": spread[0], "c": spread[1]}
case("higher_than_mean", True, beside, measured(**high, d=spread[0]), "a − d = +0.2007")
case("higher_than_mean", False, beside, measured(**high, d=HIGH), "a − d = -0.0993")
case("higher_than_mean", None, beside, measured(**high, d=NEAR))

# The same arm under two names: no difference in any seed, and none that more seeds would show.
case(
    "lower",
    None,
    ab,
    measured(a=LOW, b=LOW),
    ("both gave the same numbers", "no number of seeds up to 10,000"),
    n=3,
    p=None,
    n_needed=None,
)
case("higher", None, ab, measured(a=LOW * 4, b=LOW * 4))
case(
    "equivalent",
    None,
    ab | {"margin": 0.1, "reason": "r"},
    measured(a=LOW * 4, b=LOW * 4),
    "both gave the same numbers",
)

# The same in one seed is not the same arm.
case(
    "lower",
    None,
    ab,
    measured(a=[3.0] * 3, b=[3.0, 3.1, 3.12]),
    "a − b = -0.0733 ± 0.0371 nats (n = 3 seeds, p = 0.1869);",
)

# A difference that is the same in every seed has no spread: each seed is a yes, six of them are resolved.
case("lower", None, ab, measured(a=[3.0] * 5, b=[3.5] * 5), "p = 0.0625", n_needed=6)
case("lower", True, ab, measured(a=[3.0] * 6, b=[3.5] * 6), "p = 0.0312")

# Windows: their error is shown where there is none over seeds, from blocks of ten, and decides nothing.
wide = [record([3.0 + 0.1 * (i // 10) for i in range(20)])]
case("lower", None, ab, measured(a=wide, b=[record([3.5] * 20)]), "± 0.0500 over windows in blocks of ten)")
case("lower", None, ab, measured(a=wide, b=[record([3.5] * 19)]), "a − b = -0.4500 nats (n = 1 seed)")
case(
    "lower",
    True,
    ab,
    measured(a=wide * 2 + [record([3.06] * 20)], b=[record([3.5] * 20)] * 3),
    "n = 3 seeds, p < 0.0001)",
)

# Other metrics, several at once, and rows in the place of cells.
by_length = [record([3.0], {"2": [level]}) for level in LOW], [record([3.0], {"2": [level]}) for level in HIGH]
longer = ab | {"metric": "results.extrapolation.2.loss"}
case(
    "lower",
    True,
    longer,
    measured(a=by_length[0], b=by_length[1]),
    "a − b, extrapolation 2 loss = -0.0993 ± 0.0020 nats",
)
case("lower", "not run", ab | {"metric": "results.extrapolation.3.loss"}, measured(a=by_length[0], b=by_length[1]))
two = ab | {"metrics": ["results.validation.loss", "flops"]}
flops = [record([level], flops=f) for level, f in zip(LOW, (3.0, 3.1, 3.3), strict=True)]
cheap = [record([level], flops=f) for level, f in zip(HIGH, (2.0, 2.0, 2.0), strict=True)]
case("lower", False, two, measured(a=flops, b=cheap), "a − b, flops = +1.1333 ± 0.0882 (n = 3 seeds")
case("lower", True, {"pairs": [["A", "B"]], "rows": True}, rows_of(A=LOW, B=HIGH), "A − B = -0.0993")
case("lower", "not run", {"pairs": [["A", "B"]], "rows": True}, rows_of(A=LOW), "A − B: not run: run B")

case("higher", True, ab, measured(a=HIGH, b=LOW), "a − b = +0.0993")
case("higher", False, ab, measured(a=LOW, b=HIGH))
case("higher", None, ab, measured(a=LOW, b=NEAR))
dear = [record([high], flops=2.0 + low) for high, low in zip(HIGH, LOW, strict=True)]
case("higher", True, two, measured(a=dear, b=[record([low], flops=2.0) for low in LOW]), "a − b, flops = +3.0007")

same = ab | {"margin": 0.05, "reason": "half of the gain"}
case("equivalent", True, same, measured(a=LOW, b=around(3.001, NOISE[1:])), "nats, asked -0.05 to +0.05 (n = 3 seeds")
case("equivalent", False, same, measured(a=LOW, b=HIGH), "a − b = -0.0993")
case("equivalent", False, same, measured(a=HIGH, b=LOW))
case("equivalent", None, same, measured(a=LOW, b=around(3.0, (0.06, -0.08, 0.03))), "seeds for 80 % power")
case("equivalent", "not run", same, measured(a=LOW))
case(
    "equivalent",
    True,
    {"pairs": [["A", "B"]], "rows": True, "margin": 0.05, "reason": "r"},
    rows_of(A=LOW, B=around(3.0, NOISE[1:])),
)
case("equivalent", False, same | {"metrics": ["flops"]}, measured(a=flops, b=cheap))
case("equivalent", True, same | {"metric": "flops", "margin": 2}, measured(a=flops, b=cheap), "a − b, flops")

matches = ab | {"margin": 0.02, "reason": "a fifth of the gain"}
case("lower_or_equal", True, matches, measured(a=LOW, b=HIGH), "asked below +0.02")
case("lower_or_equal", True, matches, measured(a=LOW, b=around(3.0, NOISE[1:])))
case("lower_or_equal", False, matches, measured(a=HIGH, b=LOW))
case("lower_or_equal", None, matches, measured(a=LOW, b=NEAR))
case(
    "lower_or_equal", True, {"pairs": [["A", "B"]], "rows": True, "margin": 0.02, "reason": "r"}, rows_of(A=LOW, B=HIGH)
)
case("lower_or_equal", False, matches | {"metrics": ["flops"]}, measured(a=flops, b=cheap))
case("lower_or_equal", True, matches | {"metric": "flops", "margin": 2}, measured(a=flops, b=cheap))

several = {"pairs": [["A", "B"], ["A", "C"]], "rows": True}
case("lower", False, several, rows_of(A=LOW, B=HIGH, C=around(2.5, NOISE[1:])), "A − B = -0.0993 ± 0.0020 nats")
case("lower", None, several, rows_of(A=LOW, B=HIGH, C=NEAR))

ours = {"rows": ["A"], "over": ["B"]}


def spent(**cells):
    return rows_of(**{name: [record(flops=f) for f in seeds] for name, seeds in cells.items()})


case("measured_cheaper", True, ours, spent(A=[90.0], B=[100.0]), "^counted: A / B = 0.9000$", n=None)
case("measured_cheaper", False, ours, spent(A=[110.0], B=[100.0]))
case("measured_cheaper", False, ours | {"over": ["B", "C"]}, spent(A=[110.0], B=[100.0], C=[120.0]))
case("measured_cheaper", False, ours, spent(A=[90.0, 99.0], B=[100.0, 98.0]), "A / B = 1.0102")
case("measured_cheaper", "not run", ours, spent(A=[90.0]), "not run: run B")

bound = {"cell": "a", "metric": "results.validation.loss"}
case(
    "measured_bounds",
    True,
    bound | {"above": 2.5},
    measured(a=LOW),
    "^a: validation.loss = +3.0007 ± 0.0020, asked above 2.5",
)
case("measured_bounds", True, bound | {"below": 3.5}, measured(a=LOW), "asked below 3.5")
case("measured_bounds", True, bound | {"above": 2.5, "below": 3.5}, measured(a=LOW), ("above 2.5", "below 3.5"))
case("measured_bounds", False, bound | {"above": 3.1}, measured(a=LOW))
case("measured_bounds", False, bound | {"below": 2.9}, measured(a=LOW))
case("measured_bounds", None, bound | {"above": 3.0}, measured(a=LOW))
case("measured_bounds", "not run", bound | {"above": 2.5}, {}, "not run: a")
case(
    "measured_bounds", "not run", {"cell": "a", "metric": "results.tasks.retrieval.all", "above": 2.5}, measured(a=LOW)
)

# ---- by how much ----

near = {"pairs": [["a", "b"]]}
case("lower", True, {**near, "by": 0.05}, measured(a=around(3.0), b=around(3.1, (0.0,) * 3)), "asked below -0.05")
case("lower", False, {**near, "by": 0.2}, measured(a=around(3.0), b=around(3.1, (0.0,) * 3)))
case("higher", True, {**near, "by": 0.05}, measured(a=around(3.1), b=around(3.0, (0.0,) * 3)), "asked above 0.05")
case("higher", False, {**near, "by": 0.2}, measured(a=around(3.1), b=around(3.0, (0.0,) * 3)))

# "Much smaller" is less than half: 1.4 is less than 3, but 2.8 is not, and the other way round.
half, most = measured(a=around(1.4), b=around(3.0, (0.0,) * 3)), measured(a=around(2.8), b=around(3.0, (0.0,) * 3))
case("lower", True, {**near, "times": 2}, half, "^2 × a − b = -0.1987 ± 0.0041 nats")
case("lower", False, {**near, "times": 2}, most, "2 × a − b = +2.6")
case("lower", False, {**near, "times": 2, "by": 0.4}, half, "asked below -0.4")
much, little = measured(b=around(1.4), a=around(3.0, (0.0,) * 3)), measured(b=around(2.8), a=around(3.0, (0.0,) * 3))
case("higher", True, {**near, "times": 2}, much, "^a − 2 × b = +0.1987 ± 0.0041 nats")
case("higher", False, {**near, "times": 2}, little, "a − 2 × b = -2.6")
one = [record([1.0, 2.0] * 10)]
case("higher", None, {**near, "times": 2}, measured(a=one, b=[record([1.0] * 20)]), "-0.5000 nats (n = 1 seed, ± 0.00")
half_windows = measured(
    a=[record([0.5 + (i // 10) for i in range(20)])], b=[record([0.5 + (i // 10) / 2 for i in range(20)])]
)
case("higher", None, {**near, "times": 2}, half_windows, "± 0.0000 over windows")
case("lower", None, {**near, "times": 2}, half_windows, "± 0.7500 over windows")

# Apart to either side.
apart = {**near, "by": 0.05, "reason": "r"}
up, down = measured(a=around(3.1), b=around(3.0, (0.0,) * 3)), measured(a=around(3.0), b=around(3.1, (0.0,) * 3))
case("differs", True, apart, up, "a − b = +0.1007 ± 0.0020 nats, asked farther than 0.05 from 0 (n = 3 seeds, p = 0.0")
case("differs", True, apart, down, "a − b = -0.0993")
case("differs", False, {**apart, "by": 0.2}, up)
case("differs", False, {**apart, "by": 0.2}, down)
case("differs", None, {**apart, "by": 0.1}, up, "seeds for 80 % power")
case("differs", None, {**apart, "by": 0.1}, measured(a=around(3.0), b=around(3.103, (0.0,) * 3)), n_needed=20)
case("differs", None, {**apart, "by": 0.1}, measured(a=around(3.103), b=around(3.0, (0.0,) * 3)), n_needed=10)
case("differs", None, apart, measured(a=[3.0] * 3, b=[3.0] * 3), "both gave the same numbers")
case("differs", "not run", apart, measured(a=LOW), "not run: b")

# ---- several cells, and measures in the place of a path ----

several = {"cell": ["a", "b"], "metric": "results.validation.loss", "above": 2.5}
case(
    "measured_bounds",
    True,
    several,
    measured(a=LOW, b=around(3.1)),
    ("^a: validation.loss = +3.0", "b: validation.loss = "),
)
case("measured_bounds", False, several, measured(a=LOW, b=around(2.4)))
case("measured_bounds", "not run", several, {})


def listing(*rows, probe="lens"):
    """A run for each row of numbers, which its probe has found."""
    return [record(probes={probe: {"y": list(row)}}) for row in rows]


TOY = measures_of(
    late=("mean(part(y, 1/2, 1))", {"y": "results.probes.lens.y"}),
    peak=("argmax(y) == 3", {"y": "results.probes.lens.y"}),
    second=("y[1]", {"y": "results.probes.lens.y"}, "points"),
    loss=("y", {"y": "results.validation.loss"}),
)
rising = listing((1, 2, 3, 4), (1, 2, 3.1, 4.1), (1, 2, 3, 4.1), (1, 2, 3.1, 4))
falling = listing((4, 3, 2, 1), (4, 3, 2, 1.1), (4, 3, 2.1, 1), (4, 3, 2, 1.2))


def toy(**cells):
    return {**measured(**cells), "experiment": TOY}


late = {"pairs": [["a", "b"]], "metric": "late"}
case("higher", True, late, toy(a=rising, b=falling), "^a − b, title of late = +2.0", metrics=["title of late"])
case("lower", True, ab, measured(a=LOW, b=HIGH), metrics=["results.validation.loss"])
case("higher", False, late, toy(a=falling, b=rising))
case("higher", "not run", late, toy(a=rising), "^a − b, title of late: not run: b$")
case("lower", "not run", late, toy(a=rising, b=[3.0] * 3), "not measured: results.probes.lens.y")
skipped = [record(probes={"lens": {"skipped": "too small"}})]
case("lower", None, late, toy(a=rising, b=skipped), "a − b, title of late: too small")
case("lower", None, {**late, "metric": "second"}, toy(a=rising, b=listing((1,))), "y[1]: index 1 is out of bounds")
case("higher", None, {**late, "metric": "second"}, toy(a=rising, b=falling), " points (n = 4 seeds")
case("lower_than_mean", True, {"cell": "a", "over": ["b", "c"], "metric": "late"}, toy(a=falling, b=rising, c=rising))
case("gap_grows", True, {"pairs": [["a", "b"], ["b", "a"]], "metric": "late"}, toy(a=falling, b=rising))
case("same_in_every_run", False, {"cells": ["a", "b"], "metric": "late"}, toy(a=rising, b=falling))
case("measured_bounds", True, {"cell": "a", "metric": "late", "above": 3}, toy(a=rising), "^a: title of late = +3.55")
in_points = {"cell": "a", "metric": "second", "above": 1, "below": 3}
case("measured_bounds", None, in_points, toy(a=rising), "title of second = +2.0000 ± 0.0000 points, asked above 1")

peaks = {"cell": ["a"], "metric": "peak"}
case("always", True, peaks, toy(a=(rising * 2)[:6]), "^a: title of peak: yes in 6 of 6 (n = 6 seeds, p = 0.0312)$")
case("always", True, {**peaks, "cell": "a"}, toy(a=(rising * 2)[:6]))
case("always", False, peaks, toy(a=(falling * 2)[:6]), "yes in 0 of 6")
case("always", False, {**peaks, "cell": ["a", "b"]}, toy(a=rising * 2, b=falling * 2))
case("always", None, peaks, toy(a=rising), "yes in 4 of 4")
case("always", "not run", peaks, toy(), "not run: a")

tied = {"cells": ["a", "b", "c"], "metric": "late", "other": "loss"}


def both(*levels):
    """Seeds with a late part and a loss of these heights."""
    return [record([loss], probes={"lens": {"y": [0, 0, late, late]}}) for late, loss in levels]


up = {"a": both((1, 1), (1, 2), (1, 1)), "b": both((2, 3), (2, 3), (2, 3)), "c": both((3, 4), (3, 5), (3, 4))}
case(
    "go_together",
    True,
    tied,
    toy(**{name: runs * 2 for name, runs in up.items()}),
    "^rank correlation over 3 cells of title of late and title of loss = +1.0000 ± 0.0000 (n = 6 seeds, p = 0.0312)$",
)
down = {"a": up["c"], "b": up["b"], "c": up["a"]}
turned = {
    name: both(*((4 - late, loss) for late, loss in levels))
    for name, levels in {
        "a": ((1, 1), (1, 2), (1, 1)),
        "b": ((2, 3), (2, 3), (2, 3)),
        "c": ((3, 4), (3, 5), (3, 4)),
    }.items()
}
case("go_together", True, tied, toy(**{name: runs * 2 for name, runs in down.items()}))
case("go_together", False, tied, toy(**{name: runs * 2 for name, runs in turned.items()}), "= -1.0000")
case("go_together", None, tied, toy(**up))
case("go_together", None, {**tied, "above": 1}, toy(**{name: runs * 2 for name, runs in up.items()}))
case("go_together", None, tied, toy(a=both((1, 1)), b=both((2, 1)), c=both((3, 1))), "is the same in all cells")
case("go_together", "not run", tied, toy(a=up["a"], b=up["b"]), "not run: c")
