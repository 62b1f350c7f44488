"""Claims about growth, entropy and convergence, and about printed speeds."""

import numpy as np

from tests.unit.verdicts.building import NOISE, around, case, measured, record, says, speeds_of, table

LOW, HIGH, NEAR = around(3.0), around(3.1, (0.0,) * 3), around(3.0, (0.01, -0.02, 0.015))


def longer(ours, theirs):
    """The same loss at the training length, and these at twice that."""
    sides = ([record([3.0], {"2": [level]}) for level in side] for side in (ours, theirs))
    return measured(**dict(zip("AB", sides, strict=True)))


says(True, "extrapolation.2.loss[A] < [B]", longer(LOW, HIGH), "^A − B, extrapolation 2 loss = -0.0993 ± 0.0020 nats")
says(False, "extrapolation.2.loss[A] < [B]", longer(HIGH, LOW))
says(None, "extrapolation.2.loss[A] < [B]", longer(LOW, NEAR))
says("not run", "extrapolation.3.loss[A] < [B]", longer(LOW, HIGH), "not measured")
says(
    None, "extrapolation.2.loss|extrapolation.3.loss[A] < [B]", longer(LOW, HIGH), "extrapolation 3 loss: not measured"
)


# ---- training curves ----


def curve(level, noise=0.001, every=1, flops=1000.0):
    """Losses that fall by 0.02 a step, at 10 FLOPs a step, around `level` after 500 FLOPs."""
    steps = np.arange(1, 101)[::every]
    losses = level - 0.02 * (steps - 50) + noise * np.where(steps % 2, 1, -1) * (1 + steps % 3)
    return record(flops=flops, history={"flops": (10.0 * steps).tolist(), "loss": losses.tolist()})


def curves(levels, **changes):
    return [curve(level, **changes) for level in levels]


at_half = {"cell": "a", "over_cell": "b", "shares": [0.5], "of": "c"}
whole = curves([9.0] * 3)
case(
    "lower_at_flops",
    True,
    at_half,
    measured(a=curves(LOW), b=curves(HIGH), c=whole),
    "^a − b at 50 % of the FLOPs of c = -0.0993 ± 0.0020 nats (n = 3 seeds",
)
case("lower_at_flops", False, at_half, measured(a=curves(HIGH), b=curves(LOW), c=whole))
case("lower_at_flops", None, at_half, measured(a=curves(LOW), b=curves(NEAR), c=whole))
case("lower_at_flops", "not run", at_half, measured(a=curves(LOW), b=curves(HIGH)), "not run: c")
sparse = "the log has fewer than four points near the budget"
case("lower_at_flops", "not run", at_half, measured(a=curves(LOW, every=20), b=curves(HIGH, every=20), c=whole), sparse)
# Several budgets: where the curves cross, the claim holds at one of them and fails at the other.
flops = np.arange(10, 1001, 10)
crossing = [
    record(history={"flops": flops.tolist(), "loss": (level + 0.001 * (flops - 600)).tolist()}) for level in HIGH
]
rising = measured(a=curves(LOW), b=crossing, c=whole)
case("lower_at_flops", True, at_half | {"shares": [0.7]}, rising)
case("lower_at_flops", False, at_half | {"shares": [0.7, 0.3]}, rising, ("at 70 %", "at 30 %"))
# The budget is a share of the third run's FLOPs, and far from it curves do not count.
half = curves([9.0] * 3, flops=500.0)
case("lower_at_flops", True, at_half | {"shares": [1.0]}, measured(a=curves(LOW), b=curves(HIGH), c=half), "= -0.0993 ")
losses = np.where(flops < 350, 0.0, np.where(flops < 650, 3.3 - 0.002 * (flops - 500), 0.0))
bent = [record(history={"flops": flops.tolist(), "loss": (losses + level).tolist()}) for level in around(0.0)]
case("lower_at_flops", True, at_half, measured(a=curves(HIGH), b=bent, c=whole), "= -0.2007 ")


# ---- the probe of convergence ----


def converging(high, low, violations=0, orders=(-0.5, -0.4, -0.45), skipped=False):
    """Seeds with these mean factors of a pass."""
    worst = {"row": 2, "layer": 1, "head": 2, "diagonal": 0.9, "bound": 0.8}
    runs = []
    for number, (ours, theirs, order) in enumerate(zip(high, low, orders, strict=False)):
        broken = violations if number < 3 or violations < 0 else 0
        result = {
            "sets": {"high": {"factor": ours}, "low": {"factor": theirs}},
            "lemma": {"violations": abs(broken), "rows": 100, "worst": worst if broken else None},
            "entropy_trace_rank_correlation": {"value": order, "stderr": 0.1, "n": 64},
        }
        runs.append(record(probes={"convergence": {"skipped": "one head only"} if skipped else result}))
    return measured(a=runs)


slow, fast = around(0.95), around(0.8, NOISE[2:])
says(
    True,
    "high-factor[a] < 1 and [a] < low-factor[a]",
    converging(fast, slow),
    (
        "^a: factor of a pass, high = +0.7997",
        "required below 1",
        "factor of a pass, high of a − factor of a pass, low of a = -0.1510",
    ),
)
says(False, "high-factor[a] < 1 and [a] < low-factor[a]", converging(slow, fast))
says(False, "high-factor[a] < 1 and [a] < low-factor[a]", converging(around(1.1), around(1.3)))
says(None, "high-factor[a] < 1 and [a] < low-factor[a]", converging(around(0.95, (0.1, -0.1, 0.0)), slow))
says(None, "high-factor[a] < 1 and [a] < low-factor[a]", converging(fast, slow, skipped=True), "one head only")
says(
    "not run",
    "high-factor[a] < 1 and [a] < low-factor[a]",
    measured(a=[3.0]),
    "not measured: results.probes.convergence.sets.high.factor",
)
says(
    "not run",
    "high-factor[a] < 1 and [a] < low-factor[a]",
    measured(a=[record(results=None)]),
    "not measured: results.probes.convergence.sets.high.factor",
)
says("not run", "high-factor[a] < 1 and [a] < low-factor[a]", {}, "not run: a")

six = [0.9] * 6
says(
    True,
    "always(lemma-unbroken[a])",
    converging(six, six, orders=six),
    "^a: no row breaks it: yes in 6 of 6 (n = 6 seeds, p = 0.0312",
)
says(False, "always(lemma-unbroken[a])", converging(six, six, violations=-3, orders=six), "yes in 0 of 6")
says(None, "always(lemma-unbroken[a])", converging(six[:5], six, orders=six), "p = 0.0625", n_needed=6)
says(None, "always(lemma-unbroken[a])", converging(six, six, violations=3, orders=six), "yes in 3 of 6")
says(None, "always(lemma-unbroken[a])", converging(six, six, skipped=True), "a: no row breaks it: one head only")

says(True, "entropy-and-trace[a] < 0", converging(slow, slow), "^a: rank correlation of entropy and trace = -0.4500")
says(False, "entropy-and-trace[a] < 0", converging(slow, slow, orders=(0.5, 0.4, 0.45)))
says(None, "entropy-and-trace[a] < 0", converging(slow, slow, orders=(-0.5, 0.4, -0.1)))
says("not run", "entropy-and-trace[a] < 0", converging(slow, slow, orders=(None,) * 3), "not measured")
says(
    None,
    "entropy-and-trace[a] < 0",
    converging(slow, slow, orders=(-0.5, None, -0.4)),
    "n = 2 seeds",
    note="direction only",
)
says("not run", "entropy-and-trace[a] < 0", {})


# ---- entropies over training ----


def logged(entropies, starts=None, selected=()):
    """entropies (T, L, H), one reading every ten steps; a run that grows from step `starts` on, and selected layers at
    these steps."""
    log = {"steps": [10 * i for i in range(len(entropies))], "entropies": np.round(entropies, 6).tolist()}
    if starts is None:
        return record(hooks={"entropy-log": log})
    left = {"looped": [{"layer": i, "since": step} for i, step in enumerate(selected)]}
    return record(hooks={"entropy-log": log}, controller=({"kind": "entropy-growth", "start_step": starts}, left))


def jumping(*changes, starts=100, ends=200, readings=41, by=0.2):
    """Two layers of two heads that all jump at these readings."""
    level = np.cumsum([by * (i in changes) for i in range(readings)])
    return logged(np.broadcast_to(level[:, None, None], (readings, 2, 2)), starts, (150, ends))


calm, wild = (
    [jumping(15), jumping(), jumping(12)],
    [jumping(*range(11, 18)), jumping(*range(13, 20)), jumping(*range(12, 18))],
)
says(
    True, "spikes[a] > [b]", measured(a=wild, b=calm), "^a − b, share of changes above 0.05 during selection = +0.6000"
)
says(False, "spikes[a] > [b]", measured(a=calm, b=wild))
says(None, "spikes[a] > [b]", measured(a=calm, b=calm[::-1]))
# Jumps before the selection begins and after it has ended are shown and do not count.
outside = [jumping(*range(1, 11), *range(21, 41))] * 3
says(None, "spikes[a] > [b]", measured(a=outside, b=calm), "= -0.0667")
says(None, "spikes[a] > [b]", measured(a=wild, b=[jumping(11, ends=110), jumping(10, ends=110)]), "n = 2 seeds")
small = [jumping(*range(11, 18), by=0.04)] * 3
says(None, "spikes[a] > [b]", measured(a=small, b=small), "both gave the same numbers")
says("not run", "spikes[a] > [b]", measured(a=wild), "not run: b")
says("not run", "spikes[a] > [b]", measured(a=wild, b=[3.0]), "not measured: hooks.entropy-log.entropies")
says("not run", "spikes[a] > [b]", measured(a=wild, b=[logged(np.zeros((9, 2, 2)))]), "not measured: config.controller")
says(None, "spikes[a] > [b]", measured(a=wild, b=[jumping(2, readings=9)]), "nothing is selected")


def spreading(reached):
    """Two heads in each layer: they come apart at the reading that is named, by layer."""
    readings = np.arange(12)[:, None]
    apart = np.where(readings >= np.array(reached)[None], 0.4, 0.1 * readings / 12)
    return logged(np.stack([0.9 - 0 * apart, 0.9 - apart], axis=2))


deep_first = [spreading(r) for r in ([1, 9, 8, 7, 5, 4, 2], [1, 8, 9, 7, 5, 4, 2], [1, 9, 8, 7, 4, 5, 2])]
label = "a: rank correlation of depth and the step of half the highest variance"
says(True, "half-variance-order[a] < 0", measured(a=deep_first), f"^{label} = -0.96")
shallow_first = [spreading(r) for r in ([9, 2, 4, 5, 7, 8, 9], [9, 2, 5, 4, 7, 8, 9], [9, 4, 2, 5, 7, 8, 9])]
says(False, "half-variance-order[a] < 0", measured(a=shallow_first))
says(None, "half-variance-order[a] < 0", measured(a=[deep_first[0], shallow_first[0], deep_first[1]]))
says(None, "half-variance-order[a] < 0", measured(a=[spreading([1, 5, 5, 5])]), "all entries of a list are the same")
says("not run", "half-variance-order[a] < 0", {}, "not run: a")


def first_layer(lowest, apart, others=0.3, noise=NOISE):
    """Seeds: the heads of layer 1 lie between `lowest` and `apart` above it, those of layers 2 and 3 by `others`."""
    runs = []
    for by in noise[:3]:
        heads = np.full((4, 3, 2), 0.5)
        heads[:, 0, 0], heads[:, 0, 1] = lowest + by, lowest + by + apart
        heads[:, 1:, 1] += others - by
        runs.append(logged(heads))
    return measured(a=runs)


UNIFORM = "first-layer-lowest[a] > 0.9 and first-layer-variance[a] < 0.1"
# (0.05 / 0.3)² = 0.028.
says(
    True,
    UNIFORM,
    first_layer(0.94, 0.05),
    ("^a: entropy of the lowest head of layer 1 = +0.9407", "a: variance in layer 1 / in the others = +0.0279", "0.1"),
)
says(False, UNIFORM, first_layer(0.8, 0.05))
says(False, UNIFORM, first_layer(0.94, 0.05, others=0.06))
says(True, "first-layer-lowest[a] > 0.7", first_layer(0.8, 0.05))
says(True, "first-layer-variance[a] < 1.5", first_layer(0.94, 0.05, others=0.06))
says(None, UNIFORM, first_layer(0.9, 0.05))
says(None, UNIFORM, measured(a=[logged(np.full((3, 2, 2), 0.95))]), "is no number here")
says("not run", UNIFORM, measured(a=[3.0]), "not measured: hooks.entropy-log.entropies")
# One low reading among many does not decide.
once = np.full((40, 3, 2), 0.95)
once[:, 1:, 1], once[3, 0] = 0.5, 0.5
runs = [logged(once + by * np.arange(3)[:, None] * [0, 1]) for by in NOISE[:3]]
says(None, UNIFORM, measured(a=runs), "= +0.9388")
says(
    True,
    UNIFORM,
    measured(a=[logged(once + by * (np.arange(3)[:, None] * [0, 1] + [1, 0.9])) for by in NOISE[:3]]),
    "lowest head of layer 1 = +0.939",
)


def falling(slopes, turned=(), by=0.0):
    """Layers that start in order, 0.01 apart, and fall by a slope each. turned: readings at which their order is
    another."""
    levels = np.array([0.9 - 0.01 * np.arange(len(slopes)) - (np.array(slopes) + by) * t / 20 for t in range(21)])
    for t in turned:
        levels[t] = levels[t][::-1]
    return logged(np.stack([levels, levels], axis=2))


def seeds_falling(slopes, turns=((), (), ())):
    return measured(a=[falling(slopes, turned, by) for turned, by in zip(turns, NOISE, strict=False)])


IN_ORDER = "least-fall[a] > 0 and early-order[a] > 0.5"
turns = ((), (18, 19), (3,))
says(None, IN_ORDER, seeds_falling([0.1, 0.2, 0.3]), "successive readings = +1.0000", n_needed=16)
says(True, IN_ORDER, measured(a=[falling([0.1, 0.2, 0.3], by=by) for by in (NOISE * 4)[:16]]), "falls least = +0.0351")
says(False, IN_ORDER, seeds_falling([0.1, 0.2, -0.1]), "falls least = -0.0")
says(False, IN_ORDER, seeds_falling([0.1, 0.2, 0.3], ((2, 4, 6), (3, 5, 7), (2, 4, 5))))
says(None, IN_ORDER, seeds_falling([0.1, 0.2, 0.3], ((18,), (15,), (4,))), "+0.8095")
says("not run", IN_ORDER, {}, "not run: a")
flat = [logged(np.broadcast_to(np.linspace(0.9, 0.5 + by, 21)[:, None, None], (21, 3, 2))) for by in NOISE[:3]]
says(None, IN_ORDER, measured(a=flat), "successive readings = +0.0000")
says(False, IN_ORDER, measured(a=flat * 2), "successive readings = +0.0000")


def contributing(*seeds):
    """Seeds, each with examples, each with the contributions of its loops."""
    return measured(
        a=[record(probes={"contributions": {"examples": [{"loops": loops} for loops in seed]}}) for seed in seeds]
    )


SHARPEN = "contributions-by-pass[a][1] < [a][0] and [a][2] < [a][1]"
sharp = [[1, 1, 0, 0], [3, 1, 0, 0], [9, 1, 0, 0]]
mild = [[1, 1, 0, 0], [2, 1, 0, 0], [9, 1, 0, 0]]
says(
    True,
    SHARPEN,
    contributing(*[[sharp], [mild], [sharp, mild], [sharp]] * 4),
    "a[1] − a[0], entropy of contributions, by pass = -0.07",
)
says(False, SHARPEN, contributing(*[[sharp[::-1]], [mild[::-1]], [sharp[::-1]]] * 2))
says(None, SHARPEN, contributing([sharp], [sharp[::-1]], [mild]))
says(
    None,
    SHARPEN,
    contributing([sharp]),
    "a[1] − a[0], entropy of contributions, by pass = -0.0944",
    note="direction only",
)
skipped = {"contributions": {"skipped": "no head is looped"}}
says(None, SHARPEN, measured(a=[record(probes=skipped)]), "no head is looped")
no_loops = {"contributions": {"sublayers": {}}}
says(
    "not run",
    SHARPEN,
    measured(a=[record(probes=no_loops)]),
    "not measured: results.probes.contributions.examples.*.loops",
)
says(None, SHARPEN, contributing([sharp]), "a[2] − a[1], entropy of contributions, by pass = -0.1711")
says(None, SHARPEN, contributing([sharp], [sharp[:2]]), "n = 2 seeds); a[2]")
says("not run", SHARPEN, {}, "not run: a")
# The whole measurement where the record has it: one row for each sequence and head.
whole_probe = [
    record(probes={"contributions": {"examples": [], "entropies": [[0.9, 0.8 + by], [0.9, 0.6]]}}) for by in NOISE[:3]
]
says(True, "contributions-by-pass[a][1] < [a][0]", measured(a=whole_probe), "= -0.1997")
says(None, SHARPEN, measured(a=whole_probe), "a[2] - a[1]: index 2 is out of bounds")


# ---- printed speeds ----

SPEED = speeds_of(
    {"Vanilla": "vanilla", "Block": "block-loop", "Heads": "sgt", "Attention": "attention-loop"}, {"S": "tiny"}
)


def speeds(block=72.7, heads=91.4, attention=88.9, base=100.0):
    """Eight layers of eight heads: 8 / 11 where three run twice, 8 / 8.75 for two heads of three layers, 8 / 9 for one
    layer's attention."""
    figures = {"V": base, "B": block, "H": heads, "A": attention}
    models = {"V": "Vanilla", "B": "Block", "H": "Heads", "A": "Attention"}
    given = {short: {"model": model, "group": "S", "batch": 1} for short, model in models.items()}
    printed = {short: {} if v is None else {"prefill": v, "decode": 2 * v} for short, v in figures.items()}
    return {"experiment": table({**printed}, given=given, benchmark=SPEED)}


case("printed_ratios_follow", True, {}, speeds(), "^6 of 6 printed ratios are the ratio of work")
case(
    "printed_ratios_follow",
    False,
    {},
    speeds(block=73.2),
    "^4 of 6 printed ratios are the ratio of work within the cells' rounding; largest difference 0.0047 "
    "(not: B prefill: 0.7320 for 0.7273; B decode: 0.7320 for 0.7273)",
)
case("printed_ratios_follow", False, {}, speeds(heads=90.8), "(not: H prefill: 0.9080 for 0.9143; H decode")
case("printed_ratios_follow", None, {}, speeds(block=None), "not printed: B, prefill")
