"""Claims on trained runs that papers share."""

from tests.unit.verdicts.building import NOISE, around, measured, measures_of, record, says

LOW, HIGH, NEAR = around(3.0), around(3.1, (0.0,) * 3), around(3.0, (0.01, -0.02, 0.015))
"""Losses of three seeds: HIGH is above LOW in each, NEAR here and there."""

# 4, -3, 1 thousandths about -0.1: mean -0.0993, s.e. 0.0020, t = -49 with two degrees of freedom.
says(
    True,
    "loss[a] < [b]",
    measured(a=LOW, b=HIGH),
    "^a − b = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0004)$",
    n=3,
    n_needed=None,
    note="",
)
says(False, "loss[a] < [b]", measured(a=HIGH, b=LOW), "a − b = +0.0993")
says(None, "loss[a] < [b]", measured(a=LOW, b=NEAR), "seeds for 80 % power at the observed effect", n=3, note="")
says("not run", "loss[a] < [b]", measured(a=LOW), "^a − b: not run: b$", n=0)
says("not run", "loss[a] < [b]", {}, "not run: a, b")
says("not run", "loss[a] < [b]", measured(a=[record(results=None)], b=LOW), "not measured: results.validation.loss")
says(None, "loss[a] < [b]", {"records": {"a": {0: record([3.0])}, "b": {1: record([3.0])}}}, "no seed in common: a, b")
says(
    None,
    "loss[a] < [b]",
    measured(a=[3.0], b=[3.1]),
    "^as claimed; a − b = -0.1000 nats (n = 1 seed); at least 3 seeds, since the spread over seeds is not known",
    note="direction only",
    n=1,
    n_needed=3,
    p=None,
)
says(None, "loss[a] < [b]", measured(a=[3.2], b=[3.1]), "^the opposite of the claim; a − b = +0.1000")
says(None, "loss[a] < [b]", measured(a=[3.1], b=[3.1]), "^neither way; a − b = +0.0000")
says(None, "loss[a] < [b]", measured(a=LOW[:2], b=HIGH[:2]), "(n = 2 seeds); 3 seeds for 80 % power", n=2, n_needed=3)

# Several comparisons in one claim: each must be resolved after Holm's correction.
says(
    True, "loss[a, c] < [b]", measured(a=LOW, b=HIGH, c=LOW), "c − b = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0008)"
)
says(None, "loss[a, c] < [b]", measured(a=LOW, b=HIGH, c=NEAR[:1] + HIGH[:2]))
says(False, "loss[a, c] < [b]", measured(a=LOW, b=HIGH, c=around(3.3)))
says(None, "loss[a, c] < [b]", measured(a=LOW, b=HIGH), "c − b: not run: c", n=3)
says(None, "loss[a, c] < [b]", measured(a=LOW[:1], b=HIGH[:1], c=[3.4]), "^as claimed in 1 of 2 comparisons; ")
says(None, "loss[a, c] < [b]", measured(a=LOW, b=HIGH, c=LOW[:2]), "n = 2 seeds", n=2, note="")
# Two comparisons at p = 0.03: alone each is resolved, together neither is.
says(True, "loss[a] < [b]", measured(a=around(-0.05, (0.01, -0.02, 0.01)), b=[0.0] * 3), "p = 0.0377")
says(
    None,
    "loss[a, c] < [b]",
    measured(a=around(-0.05, (0.01, -0.02, 0.01)), b=[0.0] * 3, c=around(-0.05, (0.01, -0.02, 0.01))),
)

# Draws of one arm: their mean is what a seed says about it.
says(
    True,
    "loss[a] < mean([b, c])",
    measured(a=LOW, b=around(3.0, (0.0,) * 3), c=around(3.2, (0.0,) * 3)),
    "^a − mean(b and c) = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0004)$",
    n=3,
)
says(False, "loss[a] < mean([b, c])", measured(a=around(3.2), b=LOW, c=HIGH), "a − mean(b and c) = +0.1")
# One draw is lower and one higher: no draw decides alone, nor does their mean.
says(None, "loss[a] < mean([b, c])", measured(a=LOW, b=around(2.9, (0.1, -0.1, 0.05)), c=around(3.1, (0.0,) * 3)))
says(None, "loss[a] < mean([b, c])", measured(a=LOW, b=LOW, c=LOW), "both gave the same numbers")
says("not run", "loss[a] < mean([b, c])", measured(a=LOW, b=HIGH), "not run: c")

spread = around(2.8, (0.0,) * 3), around(3.0, (0.0,) * 3)
says(
    True,
    "loss[a] > mean([b, c])",
    measured(a=LOW, b=spread[0], c=spread[1]),
    "^a − mean(b and c) = +0.1007 ± 0.0020 nats (n = 3 seeds, p = 0.0004)$",
    n=3,
)
says(False, "loss[a] > mean([b, c])", measured(a=LOW, b=HIGH, c=around(3.2)), "a − mean(b and c) = -0.1")
# Above one draw and below the other.
says(None, "loss[a] > mean([b, c])", measured(a=LOW, b=around(2.9, (0.1, -0.1, 0.05)), c=around(3.1, (0.0,) * 3)))
says("not run", "loss[a] > mean([b, c])", measured(a=LOW, b=HIGH), "not run: c")

# Another arm beside the draws is compared on its own, in the same claim.
low = {"a": LOW, "b": HIGH, "c": HIGH}
says(
    True,
    "loss[a] < mean([b, c]) and [a] < [d]",
    measured(**low, d=HIGH),
    "a − d = -0.0993 ± 0.0020 nats (n = 3 seeds, p = 0.0008)",
)
says(False, "loss[a] < mean([b, c]) and [a] < [d]", measured(**low, d=around(2.9, (0.0,) * 3)), "a − d = +0.1007")
says(None, "loss[a] < mean([b, c]) and [a] < [d]", measured(**low, d=NEAR))
says(None, "loss[a] < mean([b, c]) and [a] < [d]", measured(**low), "a − d: not run: d")
high = {"a": LOW, "b": spread[0], "c": spread[1]}
says(True, "loss[a] > mean([b, c]) and [a] > [d]", measured(**high, d=spread[0]), "a − d = +0.2007")
says(False, "loss[a] > mean([b, c]) and [a] > [d]", measured(**high, d=HIGH), "a − d = -0.0993")
says(None, "loss[a] > mean([b, c]) and [a] > [d]", measured(**high, d=NEAR))

# The same arm under two names: no difference in any seed, and none that more seeds would show.
says(
    None,
    "loss[a] < [b]",
    measured(a=LOW, b=LOW),
    ("both gave the same numbers", "no number of seeds up to 10,000"),
    n=3,
    p=None,
    n_needed=None,
)
says(None, "loss[a] > [b]", measured(a=LOW * 4, b=LOW * 4))
says(None, "abs(loss[a] - [b]) < 0.1", measured(a=LOW * 4, b=LOW * 4), "both gave the same numbers")

# The same in one seed is not the same arm.
says(
    None,
    "loss[a] < [b]",
    measured(a=[3.0] * 3, b=[3.0, 3.1, 3.12]),
    "a − b = -0.0733 ± 0.0371 nats (n = 3 seeds, p = 0.1869);",
)

# A number that is the same in every seed has no spread: what it can be at least and at most decides.
constant = "the same in every seed, of a number that is"
says(
    None, "loss[a] < [b]", measured(a=[3.0] * 9, b=[3.5] * 9), ("p = 1.0000", f"{constant} not limited"), n_needed=None
)
says(True, "loss[a] > 0.5", measured(a=[3.0] * 5), ("p = 0.0003", f"{constant} at least 0"))
says(None, "loss[a] > 2.5", measured(a=[3.0] * 5), "p = 0.8038", n_needed=21)
says(None, "loss[a] < 3.5", measured(a=[3.0] * 9), "p = 1.0000")

# Windows: their error is shown where there is none over seeds, from blocks of ten, and decides nothing.
wide = [record([3.0 + 0.1 * (i // 10) for i in range(20)])]
says(None, "loss[a] < [b]", measured(a=wide, b=[record([3.5] * 20)]), "± 0.0500 over windows in blocks of ten)")
says(None, "loss[a] < [b]", measured(a=wide, b=[record([3.5] * 19)]), "a − b = -0.4500 nats (n = 1 seed)")
# A perplexity is no mean over windows: those of the loss are not its error.
says(None, "validation.perplexity[a] < [b]", measured(a=wide, b=[record([3.5] * 20)]), "(n = 1 seed)")
says(
    True,
    "loss[a] < [b]",
    measured(a=wide * 2 + [record([3.06] * 20)], b=[record([3.5] * 20)] * 3),
    "n = 3 seeds, p < 0.0001)",
)

# Other metrics, several at once, and rows in the place of cells.
by_length = [record([3.0], {"2": [level]}) for level in LOW], [record([3.0], {"2": [level]}) for level in HIGH]
says(
    True,
    "extrapolation.2.loss[a] < [b]",
    measured(a=by_length[0], b=by_length[1]),
    "a − b, extrapolation 2 loss = -0.0993 ± 0.0020 nats",
)
says("not run", "extrapolation.3.loss[a] < [b]", measured(a=by_length[0], b=by_length[1]))
flops = [record([level], flops=f) for level, f in zip(LOW, (3.0, 3.1, 3.3), strict=True)]
cheap = [record([level], flops=f) for level, f in zip(HIGH, (2.0, 2.0, 2.0), strict=True)]
says(False, "loss|flops[a] < [b]", measured(a=flops, b=cheap), "a − b, flops = +1.1333 ± 0.0882 (n = 3 seeds")
says(True, "loss[A] < [B]", measured(A=LOW, B=HIGH), "A − B = -0.0993")
says("not run", "loss[A] < [B]", measured(A=LOW), "A − B: not run: B")

says(True, "loss[a] > [b]", measured(a=HIGH, b=LOW), "a − b = +0.0993")
says(False, "loss[a] > [b]", measured(a=LOW, b=HIGH))
says(None, "loss[a] > [b]", measured(a=LOW, b=NEAR))
dear = [record([high], flops=2.0 + low) for high, low in zip(HIGH, LOW, strict=True)]
says(
    True, "loss|flops[a] > [b]", measured(a=dear, b=[record([low], flops=2.0) for low in LOW]), "a − b, flops = +3.0007"
)

says(
    True,
    "abs(loss[a] - [b]) < 0.05",
    measured(a=LOW, b=around(3.001, NOISE[1:])),
    "nats, required -0.05 to +0.05 (n = 3 seeds",
)
says(False, "abs(loss[a] - [b]) < 0.05", measured(a=LOW, b=HIGH), "a − b = -0.0993")
says(False, "abs(loss[a] - [b]) < 0.05", measured(a=HIGH, b=LOW))
says(None, "abs(loss[a] - [b]) < 0.05", measured(a=LOW, b=around(3.0, (0.06, -0.08, 0.03))), "seeds for 80 % power")
says("not run", "abs(loss[a] - [b]) < 0.05", measured(a=LOW))
says(True, "abs(loss[A] - [B]) < 0.05", measured(A=LOW, B=around(3.0, NOISE[1:])))
says(False, "abs(flops[a] - [b]) < 0.05", measured(a=flops, b=cheap))
says(True, "abs(flops[a] - [b]) < 2", measured(a=flops, b=cheap), "a − b, flops")

says(True, "loss[a] - [b] <= 0.02", measured(a=LOW, b=HIGH), "required at most +0.02")
says(True, "loss[a] - [b] <= 0.02", measured(a=LOW, b=around(3.0, NOISE[1:])))
says(False, "loss[a] - [b] <= 0.02", measured(a=HIGH, b=LOW))
says(None, "loss[a] - [b] <= 0.02", measured(a=LOW, b=NEAR))
says(True, "loss[A] - [B] <= 0.02", measured(A=LOW, B=HIGH))
says(False, "flops[a] - [b] <= 0.02", measured(a=flops, b=cheap))
says(True, "flops[a] - [b] <= 2", measured(a=flops, b=cheap))

says(False, "loss[A] < [B, C]", measured(A=LOW, B=HIGH, C=around(2.5, NOISE[1:])), "A − B = -0.0993 ± 0.0020 nats")
says(None, "loss[A] < [B, C]", measured(A=LOW, B=HIGH, C=NEAR))


def spent(**cells):
    return measured(**{name: [record(flops=f) for f in seeds] for name, seeds in cells.items()})


says(True, "every(flops[A] < [B])", spent(A=[90.0], B=[100.0]), "^counted: flops of A (90) < flops of B (100)$", n=None)
says(False, "every(flops[A] < [B])", spent(A=[110.0], B=[100.0]))
says(False, "every(flops[A] < [B, C])", spent(A=[110.0], B=[100.0], C=[120.0]))
says(
    False,
    "every(flops[A] < [B])",
    spent(A=[90.0, 99.0], B=[100.0, 98.0]),
    "flops of A (90 to 99) < flops of B (98 to 100)",
)
says("not run", "every(flops[A] < [B])", spent(A=[90.0]), "not run: B")

says(True, "loss[a] > 2.5", measured(a=LOW), "^a = +3.0007 ± 0.0020 nats, required above 2.5")
says(True, "loss[a] < 3.5", measured(a=LOW), "required below 3.5")
says(True, "loss[a] > 2.5 and [a] < 3.5", measured(a=LOW), ("above 2.5", "below 3.5"))
says(False, "loss[a] > 3.1", measured(a=LOW))
says(False, "loss[a] < 2.9", measured(a=LOW))
says(None, "loss[a] > 3", measured(a=LOW))
says("not run", "loss[a] > 2.5", {}, "not run: a")
says("not run", "tasks.retrieval.all[a] > 2.5", measured(a=LOW))

# ---- by how much ----

says(True, "loss[a] - [b] < -0.05", measured(a=around(3.0), b=around(3.1, (0.0,) * 3)), "required below -0.05")
says(False, "loss[a] - [b] < -0.2", measured(a=around(3.0), b=around(3.1, (0.0,) * 3)))
says(True, "loss[a] - [b] > 0.05", measured(a=around(3.1), b=around(3.0, (0.0,) * 3)), "required above 0.05")
says(False, "loss[a] - [b] > 0.2", measured(a=around(3.1), b=around(3.0, (0.0,) * 3)))

# "Much smaller" is less than half: 1.4 is less than 3, but 2.8 is not, and the other way round.
half, most = measured(a=around(1.4), b=around(3.0, (0.0,) * 3)), measured(a=around(2.8), b=around(3.0, (0.0,) * 3))
says(True, "2 * loss[a] < [b]", half, "^2 × a − b = -0.1987 ± 0.0041 nats")
says(False, "2 * loss[a] < [b]", most, "2 × a − b = +2.6")
says(False, "2 * loss[a] - [b] < -0.4", half, "required below -0.4")
much, little = measured(b=around(1.4), a=around(3.0, (0.0,) * 3)), measured(b=around(2.8), a=around(3.0, (0.0,) * 3))
says(True, "loss[a] > 2 * [b]", much, "^a − 2 × b = +0.1987 ± 0.0041 nats")
says(False, "loss[a] > 2 * [b]", little, "a − 2 × b = -2.6")
one = [record([1.0, 2.0] * 10)]
says(None, "loss[a] > 2 * [b]", measured(a=one, b=[record([1.0] * 20)]), "-0.5000 nats (n = 1 seed, ± 0.00")
half_windows = measured(
    a=[record([0.5 + (i // 10) for i in range(20)])], b=[record([0.5 + (i // 10) / 2 for i in range(20)])]
)
says(None, "loss[a] > 2 * [b]", half_windows, "± 0.0000 over windows")
says(None, "2 * loss[a] < [b]", half_windows, "± 0.7500 over windows")

# Apart to either side.
up, down = measured(a=around(3.1), b=around(3.0, (0.0,) * 3)), measured(a=around(3.0), b=around(3.1, (0.0,) * 3))
says(
    True,
    "abs(loss[a] - [b]) > 0.05",
    up,
    "a − b = +0.1007 ± 0.0020 nats, required farther than 0.05 from 0 (n = 3 seeds, p = 0.0",
)
says(True, "abs(loss[a] - [b]) > 0.05", down, "a − b = -0.0993")
says(False, "abs(loss[a] - [b]) > 0.2", up)
says(False, "abs(loss[a] - [b]) > 0.2", down)
says(None, "abs(loss[a] - [b]) > 0.1", up, "seeds for 80 % power")
says(None, "abs(loss[a] - [b]) > 0.1", measured(a=around(3.0), b=around(3.103, (0.0,) * 3)), n_needed=20)
says(None, "abs(loss[a] - [b]) > 0.1", measured(a=around(3.103), b=around(3.0, (0.0,) * 3)), n_needed=10)
says(None, "abs(loss[a] - [b]) > 0.05", measured(a=[3.0] * 3, b=[3.0] * 3), "both gave the same numbers")
says("not run", "abs(loss[a] - [b]) > 0.05", measured(a=LOW), "not run: b")

# ---- several cells, and measures in the place of a path ----

says(True, "loss[a, b] > 2.5", measured(a=LOW, b=around(3.1)), ("^a = +3.0", "; b = "))
says(False, "loss[a, b] > 2.5", measured(a=LOW, b=around(2.4)))
says("not run", "loss[a, b] > 2.5", {})


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


says(True, "late[a] > [b]", toy(a=rising, b=falling), "^a − b, title of late = +2.0", metrics=["title of late"])
says(True, "loss[a] < [b]", measured(a=LOW, b=HIGH), metrics=["results.validation.loss"])
says(False, "late[a] > [b]", toy(a=falling, b=rising))
says("not run", "late[a] > [b]", toy(a=rising), "^a − b, title of late: not run: b$")
says("not run", "late[a] < [b]", toy(a=rising, b=[3.0] * 3), "not measured: results.probes.lens.y")
skipped = [record(probes={"lens": {"skipped": "too small"}})]
says(None, "late[a] < [b]", toy(a=rising, b=skipped), "a − b, title of late: too small")
says(None, "second[a] < [b]", toy(a=rising, b=listing((1,))), "y[1]: index 1 is out of bounds")
says(None, "second[a] > [b]", toy(a=rising, b=falling), " points (n = 4 seeds")
says(True, "late[a] < mean([b, c])", toy(a=falling, b=rising, c=rising))
says(True, "late[b] - [a] > [a] - [b]", toy(a=falling, b=rising))
says(False, "every(steps(late[a, b]) == 0)", toy(a=rising, b=falling))
says(True, "late[a] > 3", toy(a=rising), "^a: title of late = +3.55")
says(None, "second[a] > 1 and [a] < 3", toy(a=rising), "title of second = +2.0000 ± 0.0000 points, required above 1")

says(True, "always(peak[a])", toy(a=(rising * 2)[:6]), "^a: title of peak: yes in 6 of 6 (n = 6 seeds, p = 0.0312)$")
says(True, "always(peak[a])", toy(a=(rising * 2)[:6]))
says(False, "always(peak[a])", toy(a=(falling * 2)[:6]), "yes in 0 of 6")
says(False, "always(peak[a, b])", toy(a=rising * 2, b=falling * 2))
says(None, "always(peak[a])", toy(a=rising), "yes in 4 of 4")
says("not run", "always(peak[a])", toy(), "not run: a")


def both(*levels):
    """Seeds with a late part and a loss of these heights."""
    return [record([loss], probes={"lens": {"y": [0, 0, late, late]}}) for late, loss in levels]


up = {"a": both((1, 1), (1, 2), (1, 1)), "b": both((2, 3), (2, 3), (2, 3)), "c": both((3, 4), (3, 5), (3, 4))}
says(
    True,
    "rank_correlation(late[a, b, c], loss[a, b, c]) > 0",
    toy(**{name: runs * 2 for name, runs in up.items()}),
    (
        "^rank_correlation(title of late of a and b and c, validation loss of a and b and c) = +1.0000 ± 0.0000",
        " (n = 6 seeds, p = 0.0312, the same in every seed, of a number that is -1 to 1)$",
    ),
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
says(True, "rank_correlation(late[a, b, c], loss[a, b, c]) > 0", toy(**{name: runs * 2 for name, runs in down.items()}))
says(
    False,
    "rank_correlation(late[a, b, c], loss[a, b, c]) > 0",
    toy(**{name: runs * 2 for name, runs in turned.items()}),
    "= -1.0000",
)
says(None, "rank_correlation(late[a, b, c], loss[a, b, c]) > 0", toy(**up))
says(None, "rank_correlation(late[a, b, c], loss[a, b, c]) > 1", toy(**{name: runs * 2 for name, runs in up.items()}))
says(
    None,
    "rank_correlation(late[a, b, c], loss[a, b, c]) > 0",
    toy(a=both((1, 1)), b=both((2, 1)), c=both((3, 1))),
    "all entries of a list are the same",
)
says("not run", "rank_correlation(late[a, b, c], loss[a, b, c]) > 0", toy(a=up["a"], b=up["b"]), "not run: c")
