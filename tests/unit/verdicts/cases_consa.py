"""Claims about learned allocations: 4 layers of 2 heads."""

from tests.unit.verdicts.building import NOISE, around, case, measured, record, says

NOT_RUN = {"records": {}}


def learned(sparsities=(0.0, 0.5), target=0.5, lagrangian=(1.0, 0.0), kind="mask-learning", **left):
    """A run with these expected sparsities and constraint losses, one every ten steps, and what its controller left."""
    left = {"target": target, "granularity": "head-all", "masks": [[1, 1]] * 4, **left}
    history = {
        "step": [10.0 * (i + 1) for i in range(len(sparsities))],
        "expected_sparsity": list(sparsities),
        "lagrangian": list(lagrangian),
    }
    return record(history=history, controller=({"kind": kind}, left))


# ---- convergence ----


def constrained(*levels, **left):
    """Seeds whose constraint loss is first at a level, then at minus half of it: its mean size is three quarters."""
    return [learned(lagrangian=(level, -level / 2), **left) for level in levels]


small, large, other = constrained(0.4, 0.44, 0.36), constrained(1.0, 1.1, 1.2), constrained(0.9, 0.3, 0.1)
says(True, "mean-constraint[a] < [b]", measured(a=small, b=large), "^a − b, mean constraint loss = -0.5250 ± ")
says(False, "mean-constraint[a] < [b]", measured(a=large, b=small))
says(None, "mean-constraint[a] < [b]", measured(a=small, b=other))
says("not run", "mean-constraint[a] < [b]", measured(a=small), "not run: b")
says("not run", "mean-constraint[a] < [b]", measured(a=small, b=[3.0]), "not measured: history.lagrangian")
says(
    "not run",
    "mean-constraint[a] < [b]",
    measured(a=small, b=[record(controller=({"kind": "x"}, {"granularity": "layer"}))]),
    "not measured: history.lagrangian",
)
says(False, "mean-constraint[a] < [b, c]", measured(a=small, b=large, c=constrained(0.1, 0.1, 0.1)))
# head-single logs the sum over four layers: its constraint loss is a quarter of it.
single = constrained(1.0, 1.1, 1.2, granularity="head-single")
says(
    True,
    "mean-constraint-by-layer[a] < mean-constraint[b]",
    measured(a=single, b=constrained(0.9, 0.92, 0.91)),
    "= -0.4763 ± ",
)


def settling(*steps, **left):
    """Seeds that stay far from the target up to these steps and are within 0.01 of it afterwards."""
    return [learned([0.9 if 10 * (i + 1) <= step else 0.51 for i in range(9)], **left) for step in steps]


falling = {"low": settling(80, 70, 80, 80), "mid": settling(50, 40, 40, 40), "high": settling(0, 10, 0, 0)}
says(
    True,
    "settling-step[low, mid] > [mid, high]",
    measured(**falling),
    ("^low − mid, settling step, within 0.02 = +35.0 ± 2.8868", "mid − high, settling step, within 0.02 = +40.0"),
)
says(False, "settling-step[low, mid] > [mid, high]", measured(**{**falling, "high": settling(80, 90, 70, 80)}))
says(None, "settling-step[low, mid] > [mid, high]", measured(**{**falling, "high": settling(0, 90, 0, 70)}))
says(None, "settling-step[low, mid] > [mid, high]", measured(low=falling["low"], mid=falling["mid"]), "not run: high")
near = {"low": settling(80, 70, 80), "mid": [learned([0.51] * 3), learned([0.5, 0.5]), learned([0.5])]}
says(True, "settling-step[low] > [mid]", measured(**near), "= +76.7")


def peaks(**levels):
    noise = {"a": NOISE, "b": NOISE[1:], "c": NOISE[2:]}
    return measured(
        **{
            cell: [learned(highest_expected_sparsity=value) for value in around(level, noise[cell])]
            for cell, level in levels.items()
        }
    )


trio = {"cells": ["a", "b", "c"]}
says(
    True,
    "abs(sparsity-peak[a, a, b] - [b, c, c]) < 0.1",
    peaks(a=0.9, b=0.95, c=0.92),
    ("^a − b, peak of E[ρ̂] = -0.048", "a − c, peak", "b − c, peak"),
)
says(False, "abs(sparsity-peak[a, a, b] - [b, c, c]) < 0.1", peaks(a=0.7, b=0.9, c=0.8))
says(None, "abs(sparsity-peak[a, a, b] - [b, c, c]) < 0.1", peaks(a=0.8, b=0.9, c=0.85))
says(None, "abs(sparsity-peak[a, a, b] - [b, c, c]) < 0.1", peaks(a=0.9, b=0.9), "not run: c")


def ended(highest, last, target=0.5):
    return measured(
        a=[
            learned(highest_expected_sparsity=highest + by, expected_sparsity=last - by, target=target)
            for by in NOISE[:3]
        ]
    )


says(
    True,
    "overshoot[a] > 0.05 and abs(missed-at-end[a]) < 0.05",
    ended(0.9, 0.48),
    ("^a: peak of E[ρ̂] − ρ = +0.4007 ± 0.0020, required above 0.05", "a: E[ρ̂] − ρ at the end = -0.0207"),
)
says(False, "overshoot[a] > 0.05 and abs(missed-at-end[a]) < 0.05", ended(0.52, 0.48))
says(False, "overshoot[a] > 0.05 and abs(missed-at-end[a]) < 0.05", ended(0.9, 0.6))
says(None, "overshoot[a] > 0.05 and abs(missed-at-end[a]) < 0.05", ended(0.551, 0.48))
says("not run", "overshoot[a] > 0.05 and abs(missed-at-end[a]) < 0.05", NOT_RUN, "not run: a")

says(True, "abs(missed-at-end[a]) < 0.05", ended(0.5, 0.48), "^a: E[ρ̂] − ρ at the end = -0.0207")
says(False, "abs(missed-at-end[a]) < 0.05", ended(0.9, 0.6))
says(False, "abs(missed-at-end[a]) < 0.05", ended(0.9, 0.4))
says(None, "abs(missed-at-end[a]) < 0.05", ended(0.9, 0.549))
says("not run", "abs(missed-at-end[a]) < 0.05", NOT_RUN)


def met(*thresholds, target=0.5):
    return measured(a=[learned(threshold_sparsity=value, target=target) for value in thresholds])


says(True, "abs(missed-by-threshold[a]) < 0.02", met(*around(0.505)), "^a: sparsity by α > 0 (Eq. 11) − ρ = +0.0057")
says(False, "abs(missed-by-threshold[a]) < 0.02", met(*around(0.625)))
says(None, "abs(missed-by-threshold[a]) < 0.02", met(0.5, 0.625, 0.375))
# Exactly met in every seed: each of them is a yes, and six are enough.
says(None, "abs(missed-by-threshold[a]) < 0.02", met(*[0.5] * 5), "p = 0.9039", n_needed=149)
says("not run", "abs(missed-by-threshold[a]) < 0.02", NOT_RUN, "not run: a")
says(
    "not run",
    "abs(missed-by-threshold[a]) < 0.02",
    measured(a=[learned()]),
    "not measured: controller.threshold_sparsity",
)
says(True, "abs(missed-by-threshold[a]) < 0.2", met(*around(0.625)))


# ---- patterns in the masks ----


def masks(**cells):
    """cell → the masks of each of its seeds."""
    return measured(**{cell: [learned(masks=rows) for rows in seeds] for cell, seeds in cells.items()})


W, H, F = [0, 0], [0, 1], [1, 1]
"""A layer of windows, of both kinds, and of full attention."""
bottom = [[W, F, F, F], [W, F, F, H], [H, F, F, F], [W, F, F, F]]
flat = [[H, H, H, H], [W, F, H, H], [F, W, H, H], [H, H, F, F]]
says(True, "windows-first[a] > 0", masks(a=bottom), "^a: windows in layer 1 − in the others = +0.8")
says(False, "windows-first[a] > 0", masks(a=[[F, W, W, W], [F, W, H, W], [F, W, W, W]]), "= -0.9")
says(None, "windows-first[a] > 0", masks(a=flat))
says("not run", "windows-first[a] > 0", NOT_RUN, "not run: a")
says(None, "windows-first[a] > 0", masks(a=[[W, F, F, W]] * 5), "p = 0.1555", n_needed=8)
says(True, "windows-first[a] > 0", masks(a=[[W, F, F, W]] * 8))
says(False, "windows-first[a, b] > 0", masks(a=bottom, b=[[F, W, W, W], [F, W, H, W], [F, W, W, W]]))

eight = [[W, W, F, F, F, F, F, F], [W, H, F, F, F, F, F, F], [W, W, F, F, H, F, F, F], [W, W, F, F, F, F, F, H]]
says(
    True, "windows-at-the-bottom[a] > 0", masks(a=eight), "^a: windows in the bottom quarter − in the others = +0.8958"
)
says(False, "windows-at-the-bottom[a] > 0", masks(a=[rows[::-1] for rows in eight]))
says(None, "windows-at-the-bottom[a] > 0", masks(a=flat))
says(
    True,
    "windows-at-the-bottom[a] > 0 and bottom-windows[a] > 0.5",
    masks(a=eight),
    "a: windows in the bottom quarter = +0.9",
)
says(None, "windows-at-the-bottom[a] > 0 and bottom-windows[a] > 0.9", masks(a=eight), "required above 0.9")
few = [[H, F, F, F, F, F, F, F]] * 5 + [[H, H, F, F, F, F, F, F]]
says(True, "windows-at-the-bottom[a] > 0", masks(a=few))
says(False, "windows-at-the-bottom[a] > 0 and bottom-windows[a] > 0.7", masks(a=few))
says("not run", "windows-at-the-bottom[a] > 0", NOT_RUN)

middle = [[W, F, F, W], [W, F, F, H], [H, F, F, W], [W, F, H, W]]
says(True, "full-in-the-middle[a] > 0", masks(a=middle), "^a: full attention in the middle − outside = +0.8")
says(False, "full-in-the-middle[a] > 0", masks(a=[[F, W, W, F], [F, W, W, H], [F, H, W, F]]))
says(None, "full-in-the-middle[a] > 0", masks(a=flat))
says("not run", "full-in-the-middle[a] > 0", NOT_RUN, "not run: a")
says(
    False,
    "full-in-the-middle[a] > 0",
    masks(a=[[F, F, W, W, W, W, F, F], [F, F, W, H, W, W, F, F], [F, H, W, W, W, W, F, F]]),
)

# Three of eight layers in a random order form 3 · 6 / 8 = 2.25 blocks; four of them 2.5.
together = [[W, W, F, F, F, W, W, W], [W, F, F, F, F, W, W, W], [W, W, W, F, F, F, H, W]]
says(True, "full-blocks-less-chance[a] < 0", masks(a=together), "^a: blocks of full layers − by chance = -1.33")
spread = [[F, W, F, W, F, W, W, F], [W, F, W, F, W, F, W, W], [F, W, F, W, W, F, W, F]]
says(False, "full-blocks-less-chance[a] < 0", masks(a=spread), "= +1.2500")
says(None, "full-blocks-less-chance[a] < 0", masks(a=[together[0], spread[0], together[1]]))
says(None, "full-blocks-less-chance[a] < 0", masks(a=[[F] * 4] * 3), "a condition of the measure is not met")
says(None, "full-blocks-less-chance[a] < 0", masks(a=[[H] * 4] * 3), "a condition of the measure is not met")
says("not run", "full-blocks-less-chance[a] < 0", NOT_RUN)

two = {"cells": ["a", "b"]}


def rising(step=0.25, **cells):
    """The masks of each seed, at a target that rises from cell to cell."""
    targets = {cell: 0.25 + step * number for number, cell in enumerate(cells)}
    made = {cell: [learned(masks=rows, target=targets[cell]) for rows in seeds] for cell, seeds in cells.items()}
    return measured(**made)


wide = [[H, F, F, W], [W, F, F, H], [W, F, H, H], [H, F, F, H]]
inside = [[W, F, H, W], [W, F, F, W], [W, F, W, W], [W, H, H, W]]
case("full_retreats", True, two, rising(a=wide, b=inside), "^full in b and not in a, less chance = -0.375")
outside = [[F, W, W, H], [F, W, W, W], [H, W, W, W], [W, W, W, F]]
case("full_retreats", False, two, rising(a=wide, b=outside))
# The same in all six seeds: of a share less a share, nothing is known but that it lies between −1 and 1.
case("full_retreats", False, two, rising(a=[[W, *[F] * 9]] * 6, b=[[F, *[W] * 9]] * 6), "of a number that is -1 to 1")
case("full_retreats", None, two, rising(a=wide, b=[inside[0], outside[1], inside[2], outside[3]]))
case("full_retreats", None, two, rising(a=wide, b=[[W] * 4] * 4), "no head has full attention")
case("full_retreats", "not run", two, rising(a=wide), "not run: b")
case("full_retreats", False, trio, rising(a=wide, b=inside, c=outside), "full in c and not in b")
case("full_retreats", None, two, rising(0.0, a=wide, b=wide), "its target is not above the one before")
case("full_retreats", None, two, rising(-0.1, a=wide, b=inside), "its target is not above the one before")


def gates(*seeds):
    return measured(a=[learned(scores=rows) for rows in seeds])


# Gates at 0.5 ± 0.1 have moved by 0.5 ∓ 0.1: 0.25 / 0.26 of their way is common.
near = [[0.4, 0.6], [0.6, 0.4]]
says(
    True,
    "gates-together[a] > 0.75",
    gates(near, [[0.5, 0.6], [0.6, 0.5]], near),
    "^a: share of the gates' way in common = +0.97",
)
apart = [[0.0, 1.0], [1.0, 1.0]]
says(False, "gates-together[a] > 0.75", gates(apart, [[0.1, 1.0], [0.9, 1.0]], apart))
says(None, "gates-together[a] > 0.75", gates(near, apart, [[0.2, 0.9], [0.5, 0.9]]))
says(None, "gates-together[a] > 0.75", gates([[1.0, 1.0]]), "is no number here")
says("not run", "gates-together[a] > 0.75", NOT_RUN, "not run: a")
