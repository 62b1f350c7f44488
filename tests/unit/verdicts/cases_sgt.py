"""Claims about growth, entropy and convergence, and about printed speeds."""

import numpy as np

from tests.unit.verdicts.building import NOISE, around, case, measured, record, rows_of, speeds_of, table

LOW, HIGH, NEAR = around(3.0), around(3.1, (0.0,) * 3), around(3.0, (0.01, -0.02, 0.015))
a = {"cell": "a"}


def longer(ours, theirs):
    """The same loss at the training length, and these at twice that."""
    sides = ([record([3.0], {"2": [level]}) for level in side] for side in (ours, theirs))
    return rows_of(**dict(zip("AB", sides, strict=True)))


twice = {"rows": ["A"], "over": ["B"], "factors": [2]}
case("extrapolates_better", True, twice, longer(LOW, HIGH), "^A − B, extrapolation 2 loss = -0.0993 ± 0.0020 nats")
case("extrapolates_better", False, twice, longer(HIGH, LOW))
case("extrapolates_better", None, twice, longer(LOW, NEAR))
case("extrapolates_better", "not run", twice | {"factors": [3]}, longer(LOW, HIGH), "not measured")
case("extrapolates_better", None, twice | {"factors": [2, 3]}, longer(LOW, HIGH), "extrapolation 3 loss: not measured")


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
three_points = measured(a=curves(LOW, every=8), b=curves(HIGH, every=8), c=whole)
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
case(
    "higher_entropy_converges_first",
    True,
    a,
    converging(fast, slow),
    ("^a: factor of a pass, high = +0.7997", "asked below 1", "a: factor of a pass, high − low = -0.1510"),
)
case("higher_entropy_converges_first", False, a, converging(slow, fast))
case("higher_entropy_converges_first", False, a, converging(around(1.1), around(1.3)))
case("higher_entropy_converges_first", None, a, converging(around(0.95, (0.1, -0.1, 0.0)), slow))
case("higher_entropy_converges_first", None, a, converging(fast, slow, skipped=True), "one head only")
case("higher_entropy_converges_first", "not run", a, measured(a=[3.0]), "not measured: convergence")
case("higher_entropy_converges_first", "not run", a, measured(a=[record(results=None)]), "not measured: convergence")
case("higher_entropy_converges_first", "not run", a, {}, "not run: a")

six = [0.9] * 6
case(
    "lemma_holds",
    True,
    a,
    converging(six, six, orders=six),
    "^a: no row breaks it: yes in 6 of 6 (n = 6 seeds, p = 0.0312",
)
case(
    "lemma_holds",
    False,
    a,
    converging(six, six, violations=-3, orders=six),
    (
        "yes in 0 of 6",
        "rows that break it: 3 of 100; 3 of 100",
        "worst: row 2 of layer 2, head 3: A_ii = 0.900 > 0.800",
    ),
)
case("lemma_holds", None, a, converging(six[:5], six, orders=six), "p = 0.0625", n_needed=6)
case("lemma_holds", None, a, converging(six, six, violations=3, orders=six), "yes in 3 of 6")
case("lemma_holds", None, a, converging(six, six, skipped=True), "a: no row breaks it: one head only")

# −0.1 ln 0.1 − 0.9 ln 0.9 = 0.3251, exp(−0.3251 / 2) = 0.85.
case("lemma_on_row", False, {"row": [0.1, 0.9]}, {}, "^exact: the row (0.1, 0.9) has A_ii = 0.9, bound 0.8500$")
case("lemma_on_row", True, {"row": [1, 1, 0.0, 2]}, {}, "the row (0.25, 0.25, 0, 0.5) has A_ii = 0.5, bound 0.7711")
case("lemma_on_row", True, {"row": [0, 0.95, 0.05]}, {}, "has A_ii = 0.05, bound 0.9360")
case("lemma_on_row", None, {"row": [0.0, 0.0]}, {}, "no weights")
case("lemma_on_row", None, {"row": [-1, 2.0]}, {}, "no weights")

case("entropy_lowers_trace", True, a, converging(slow, slow), "^a: rank correlation of entropy and trace = -0.4500")
case("entropy_lowers_trace", False, a, converging(slow, slow, orders=(0.5, 0.4, 0.45)))
case("entropy_lowers_trace", None, a, converging(slow, slow, orders=(-0.5, 0.4, -0.1)))
case("entropy_lowers_trace", None, a, converging(slow, slow, orders=(None,) * 3), "all heads have the same rank")
case(
    "entropy_lowers_trace",
    None,
    a,
    converging(slow, slow, orders=(-0.5, None, -0.4)),
    "n = 2 seeds",
    note="direction only",
)
case("entropy_lowers_trace", "not run", a, {})


# ---- entropies over training ----


def logged(entropies, starts=None, selected=()):
    """entropies (T, L, H), one reading every ten steps; a run that grows from step `starts` on, and selected layers at
    these steps."""
    log = {"steps": [10 * i for i in range(len(entropies))], "entropies": np.round(entropies, 6).tolist()}
    if starts is None:
        return record(hooks={"entropy-log": log})
    left = {"looped": [{"layer": i, "since": step} for i, step in enumerate(selected)]}
    return record(hooks={"entropy-log": log}, controller=({"kind": "entropy-growth", "start_step": starts}, left))


def jumping(*changes, starts=100, ends=200, readings=41):
    """Two layers of two heads that all jump by 0.2 at these readings."""
    level = np.cumsum([0.2 * (i in changes) for i in range(readings)])
    return logged(np.broadcast_to(level[:, None, None], (readings, 2, 2)), starts, (150, ends))


spikes = {"cell": "a", "over_cell": "b"}
calm, wild = (
    [jumping(15), jumping(), jumping(12)],
    [jumping(*range(11, 18)), jumping(*range(13, 20)), jumping(*range(12, 18))],
)
case(
    "more_spikes",
    True,
    spikes,
    measured(a=wild, b=calm),
    (
        "^share of changes above 0.05 during selection, a − b = +0.6000",
        "a: 0.000 before, 0.667 during, 0.000 after; b: 0.000 before, 0.067 during, 0.000 after",
    ),
)
case("more_spikes", False, spikes, measured(a=calm, b=wild))
case("more_spikes", None, spikes, measured(a=calm, b=calm[::-1]))
# Jumps before the selection begins and after it has ended are shown and do not count.
outside = [jumping(*range(1, 11), *range(21, 41))] * 3
case("more_spikes", None, spikes, measured(a=outside, b=calm), "a: 1.000 before, 0.000 during, 1.000 after")
case("more_spikes", None, spikes, measured(a=wild, b=[jumping(11, ends=110), jumping(10, ends=110)]), "n = 2 seeds")
case("more_spikes", None, spikes | {"jump": 0.3}, measured(a=wild, b=calm), "both gave the same numbers")
case("more_spikes", "not run", spikes, measured(a=wild), "not run: b")
case("more_spikes", "not run", spikes, measured(a=wild, b=[3.0]), "not measured: entropy-log")
case("more_spikes", None, spikes, measured(a=wild, b=[logged(np.zeros((9, 2, 2)))]), "its run does not grow")
case("more_spikes", None, spikes, measured(a=wild, b=[jumping(2, readings=9)]), "no entropies were measured while")


def spreading(reached):
    """Two heads in each layer: they come apart at the reading that is named, by layer."""
    readings = np.arange(12)[:, None]
    apart = np.where(readings >= np.array(reached)[None], 0.4, 0.1 * readings / 12)
    return logged(np.stack([0.9 - 0 * apart, 0.9 - apart], axis=2))


deep_first = [spreading(r) for r in ([1, 9, 8, 7, 5, 4, 2], [1, 8, 9, 7, 5, 4, 2], [1, 9, 8, 7, 4, 5, 2])]
label = "a: rank correlation of depth and the step of half the highest variance"
case("deep_layers_differentiate_first", True, a, measured(a=deep_first), f"^{label} = -0.96")
shallow_first = [spreading(r) for r in ([9, 2, 4, 5, 7, 8, 9], [9, 2, 5, 4, 7, 8, 9], [9, 4, 2, 5, 7, 8, 9])]
case("deep_layers_differentiate_first", False, a, measured(a=shallow_first))
case("deep_layers_differentiate_first", None, a, measured(a=[deep_first[0], shallow_first[0], deep_first[1]]))
case("deep_layers_differentiate_first", None, a, measured(a=[spreading([1, 5, 5, 5])]), "at the same step")
case("deep_layers_differentiate_first", "not run", a, {}, "not run: a")


def first_layer(lowest, apart, others=0.3, noise=NOISE):
    """Seeds: the heads of layer 1 lie between `lowest` and `apart` above it, those of layers 2 and 3 by `others`."""
    runs = []
    for by in noise[:3]:
        heads = np.full((4, 3, 2), 0.5)
        heads[:, 0, 0], heads[:, 0, 1] = lowest + by, lowest + by + apart
        heads[:, 1:, 1] += others - by
        runs.append(logged(heads))
    return measured(a=runs)


# (0.05 / 0.3)² = 0.028.
case(
    "first_layer_stays_uniform",
    True,
    a,
    first_layer(0.94, 0.05),
    ("^a: entropy of the lowest head of layer 1 = +0.9407", "a: variance in layer 1 / in the others = +0.0279", "0.1"),
)
case("first_layer_stays_uniform", False, a, first_layer(0.8, 0.05))
case("first_layer_stays_uniform", False, a, first_layer(0.94, 0.05, others=0.06))
case("first_layer_stays_uniform", True, a | {"near": 0.7}, first_layer(0.8, 0.05))
case("first_layer_stays_uniform", True, a | {"variance": 1.5}, first_layer(0.94, 0.05, others=0.06))
case("first_layer_stays_uniform", None, a, first_layer(0.9, 0.05))
case("first_layer_stays_uniform", None, a, measured(a=[logged(np.full((3, 2, 2), 0.95))]), "do not differ")
case("first_layer_stays_uniform", "not run", a, measured(a=[3.0]), "not measured: entropy-log")
# One low reading among many does not decide.
once = np.full((40, 3, 2), 0.95)
once[:, 1:, 1], once[3, 0] = 0.5, 0.5
runs = [logged(once + by * np.arange(3)[:, None] * [0, 1]) for by in NOISE[:3]]
case("first_layer_stays_uniform", None, a, measured(a=runs), "= +0.9388")
case("first_layer_stays_uniform", True, a, measured(a=runs * 3), "n = 9 seeds, p = 0.0078")


def falling(slopes, turned=(), by=0.0):
    """Layers that start in order, 0.01 apart, and fall by a slope each. turned: readings at which their order is
    another."""
    levels = np.array([0.9 - 0.01 * np.arange(len(slopes)) - (np.array(slopes) + by) * t / 20 for t in range(21)])
    for t in turned:
        levels[t] = levels[t][::-1]
    return logged(np.stack([levels, levels], axis=2))


def seeds_falling(slopes, turns=((), (), ())):
    return measured(a=[falling(slopes, turned, by) for turned, by in zip(turns, NOISE, strict=False)])


turns = ((), (18, 19), (3,))
case("entropy_falls_in_order", None, a, seeds_falling([0.1, 0.2, 0.3]), "successive readings = +1.0000", n_needed=7)
case(
    "entropy_falls_in_order",
    True,
    a,
    measured(a=[falling([0.1, 0.2, 0.3], by=by) for by in NOISE + (0.002,)]),
    "falls least = +0.0351",
)
case("entropy_falls_in_order", False, a, seeds_falling([0.1, 0.2, -0.1]), "falls least = -0.0")
case("entropy_falls_in_order", False, a, seeds_falling([0.1, 0.2, 0.3], ((2, 4, 6), (3, 5, 7), (2, 4, 5))))
case("entropy_falls_in_order", None, a, seeds_falling([0.1, 0.2, 0.3], ((18,), (15,), (4,))), "+0.8095")
case("entropy_falls_in_order", "not run", a, {}, "not run: a")
flat = [logged(np.broadcast_to(np.linspace(0.9, 0.5 + by, 21)[:, None, None], (21, 3, 2))) for by in NOISE[:3]]
case("entropy_falls_in_order", None, a, measured(a=flat), "successive readings = +0.0000")
case("entropy_falls_in_order", False, a, measured(a=flat * 2), "successive readings = +0.0000")


def contributing(*seeds):
    """Seeds, each with examples, each with the contributions of its loops."""
    return measured(
        a=[record(probes={"contributions": {"examples": [{"loops": loops} for loops in seed]}}) for seed in seeds]
    )


sharp = [[1, 1, 0, 0], [3, 1, 0, 0], [9, 1, 0, 0]]
sharper, dull = [[1, 1, 1, 0], [3, 1, 0, 0], [12, 1, 0, 0]], [[9, 1], [1, 1], [1, 1]]
mild = [[1, 1, 0, 0], [2, 1, 0, 0], [9, 1, 0, 0]]
case(
    "contributions_sharpen",
    True,
    a,
    contributing(*[[sharp], [mild], [sharp, mild], [sharp]] * 4),
    "a: entropy of loop 1 − loop 0 = -0.07",
)
case("contributions_sharpen", False, a, contributing(*[[sharp[::-1]], [mild[::-1]], [sharp[::-1]]] * 2))
case("contributions_sharpen", None, a, contributing([sharp], [sharp[::-1]], [mild]))
case("contributions_sharpen", None, a, contributing([sharp]), "loop 1 − loop 0 = -0.0944", note="direction only")
skipped = {"contributions": {"skipped": "no head is looped"}}
case("contributions_sharpen", None, a, measured(a=[record(probes=skipped)]), "no head is looped")
no_loops = {"contributions": {"sublayers": {}}}
case("contributions_sharpen", None, a, measured(a=[record(probes=no_loops)]), "the plan has no head loops")
case("contributions_sharpen", None, a, contributing([sharp]), "loop 2 − loop 1 = -0.1711")
case("contributions_sharpen", None, a, contributing([sharp], [sharp[:2]]), "n = 2 seeds); 6 seeds")
case("contributions_sharpen", "not run", a, {}, "not run: a")
# The whole measurement where the record has it: one row for each sequence and head.
whole_probe = [
    record(probes={"contributions": {"examples": [], "entropies": [[0.9, 0.8 + by], [0.9, 0.6]]}}) for by in NOISE[:3]
]
case("contributions_sharpen", True, a, measured(a=whole_probe), "loop 1 − loop 0 = -0.1997")


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
