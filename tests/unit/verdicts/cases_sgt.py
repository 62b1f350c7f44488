"""Claims about growth, entropy and convergence, and about printed speeds."""

import numpy as np

from tests.unit.verdicts.building import case, measured, record, speeds_of, table

ROWS = table({"A": {}, "B": {}})
LOW, HIGH, OTHER = [2.9, 3.0, 3.1, 3.0], [3.1, 3.21, 3.29, 3.2], [3.3, 2.6, 3.5, 2.6]


def longer(ours, theirs):
    """The same loss at the training length, and these at twice that."""
    runs = {"run A": record(LOW, {"2": ours}), "run B": record(LOW, {"2": theirs})}
    return {"experiment": ROWS, "records": {name: {0: run} for name, run in runs.items()}}


twice = {"rows": ["A"], "over": ["B"], "factors": [2]}
case("extrapolates_better", True, twice, longer(LOW, HIGH), "2×: A − B = -0.2000 ± 0.0041 nats")
case("extrapolates_better", False, twice, longer(HIGH, LOW))
case("extrapolates_better", None, twice, longer(LOW, OTHER), "not resolved")
case("extrapolates_better", None, twice | {"factors": [3]}, longer(LOW, HIGH), "3×: A − B: not run")


# ---- training curves ----


def curve(level, noise=0.001, every=1):
    """Losses that fall by 0.02 a step, at 10 FLOPs a step, around `level` after 500 FLOPs."""
    steps = np.arange(1, 101)[::every]
    losses = level - 0.02 * (steps - 50) + noise * np.where(steps % 2, 1, -1) * (1 + steps % 3)
    return record(flops=1000.0, history={"flops": (10.0 * steps).tolist(), "loss": losses.tolist()})


at_half = {"cell": "a", "over_cell": "b", "share": 0.5, "of": "c"}
case(
    "lower_at_flops",
    True,
    at_half,
    measured(a=curve(3.0), b=curve(3.1), c=curve(9.0)),
    "a − b at 50 % of the FLOPs of c: -0.1000 ± 0.0007 nats, -2.11 perplexity (n = 1 seed)",
)
case("lower_at_flops", False, at_half, measured(a=curve(3.1), b=curve(3.0), c=curve(9.0)), ": +0.10")
case(
    "lower_at_flops",
    None,
    at_half,
    measured(a=curve(3.0), b=curve(3.1, 0.5), c=curve(9.0)),
    "(n = 1 seed, not resolved)",
)
case(
    "lower_at_flops",
    None,
    at_half,
    measured(a=curve(3.0, every=20), b=curve(3.1, every=20), c=curve(9.0)),
    "± inf nats",
)
case("lower_at_flops", None, at_half, measured(a=curve(3.0), b=curve(3.1)), "not run: c")
# Far from the budget the curves cross, which must not count.
flops = list(range(10, 1001, 10))
losses = [9.0 - 0.01 * f if f < 300 else 3.1 - 0.002 * (f - 500) if f < 700 else 0.0 for f in flops]
case(
    "lower_at_flops",
    True,
    at_half,
    measured(a=curve(3.0), b=record(history={"flops": flops, "loss": losses}), c=curve(9.0)),
    ": -0.1000 ",
)


# ---- the probe of convergence ----


def converging(high=5, low=1, factor=0.9, violations=0, order=(-0.5, 0.1), skipped=False):
    worst = {"row": 2, "layer": 1, "head": 2, "diagonal": 0.9, "bound": 0.8}
    result = {
        "layers": 8,
        "layers_where_high_is_faster": high,
        "layers_where_low_is_faster": low,
        "sequences": 4,
        "sets": {"high": {"factor": factor}, "low": {"factor": 0.95}},
        "lemma": {"violations": violations, "rows": 100, "mean_bound": 0.7, "worst": worst if violations else None},
        "entropy_trace_rank_correlation": {"value": order[0], "stderr": order[1], "n": 64},
    }
    return measured(a=record(probes={"convergence": {"skipped": "one head only"} if skipped else result}))


a = {"cell": "a"}
case(
    "higher_entropy_converges_first",
    True,
    a,
    converging(),
    "high 0.900, low 0.950; high is faster in 5, low in 1 of 8 layers",
)
case("higher_entropy_converges_first", False, a, converging(factor=1.1))
case("higher_entropy_converges_first", False, a, converging(high=3, low=4))
case("higher_entropy_converges_first", False, a, converging(high=0, low=4))
case("higher_entropy_converges_first", None, a, converging(high=2, low=1))
case("higher_entropy_converges_first", False, a, converging(high=4, low=1), "high is faster in 4, low in 1 of 8")
case("higher_entropy_converges_first", None, a, converging(skipped=True), "one head only")
case("higher_entropy_converges_first", None, a, measured(a=[3.0, 3.1]), "not measured: convergence")
case("higher_entropy_converges_first", None, a, measured(a=record(results=None)), "not measured: convergence")
case("higher_entropy_converges_first", None, a, {}, "not run: a")

case("lemma_holds", True, a, converging(), "0 of 100 rows break it; mean bound 0.700")
case(
    "lemma_holds",
    False,
    a,
    converging(violations=3),
    "3 of 100 rows break it; mean bound 0.700; worst: row 2 of layer 2, head 3: A_ii = 0.900 > 0.800",
)
both = {1: converging()["records"]["a"][0], 0: converging(violations=3)["records"]["a"][0]}
case("lemma_holds", False, a, {"records": {"a": both}}, "3 of 100 rows")
case("lemma_holds", None, a, converging(skipped=True), "one head only")

case("entropy_lowers_trace", True, a, converging(), "rank correlation -0.500 ± 0.100 (n = 64 heads)")
case("entropy_lowers_trace", False, a, converging(order=(0.5, 0.1)))
case("entropy_lowers_trace", None, a, converging(order=(-0.1, 0.1)))
case("entropy_lowers_trace", None, a, converging(order=(None, None)), "all heads have the same rank")


# ---- entropies over training ----


def logged(entropies, starts=None):
    """entropies (T, L, H), one reading every ten steps; a run that grows from step `starts` on."""
    log = {"steps": [10 * i for i in range(len(entropies))], "entropies": np.round(entropies, 6).tolist()}
    controller = None if starts is None else ({"kind": "entropy-growth", "start_step": starts}, {})
    return record(hooks={"entropy-log": log}, controller=controller)


def jumping(every, readings=41, before=0):
    """Two layers of two heads; from reading `before` on, every so many readings all of them jump by 0.2."""
    level = np.cumsum([0.2 * (i % every == 0) * (i > before) for i in range(readings)])
    return logged(np.broadcast_to(level[:, None, None], (readings, 2, 2)), starts=100)


spikes = {"cell": "a", "over_cell": "b"}
case(
    "more_spikes",
    True,
    spikes,
    measured(a=jumping(2), b=jumping(8)),
    "a: 60 of 120 changes above 0.05; b: 16 of 120 changes",
)
case("more_spikes", False, spikes, measured(a=jumping(8), b=jumping(2)))
case("more_spikes", None, spikes, measured(a=jumping(8), b=jumping(7)), "(1 seed, not resolved)")
case("more_spikes", None, spikes, measured(a=jumping(2)), "not run: b")
case("more_spikes", None, spikes, measured(a=jumping(2), b=[3.0, 3.1]), "not measured: entropy-log of b")
case("more_spikes", None, spikes, measured(a=jumping(2), b=logged(np.zeros((9, 2, 2)))), "b: its run does not grow")
case("more_spikes", None, spikes, measured(a=jumping(2), b=jumping(2, readings=9)), "b: 0 of 0 changes")


def spreading(reached):
    """Two heads in each layer: they come apart at the reading that is named, by layer."""
    readings = np.arange(12)[:, None]
    apart = np.where(readings >= np.array(reached)[None], 0.4, 0.1 * readings / 12)
    return logged(np.stack([0.9 - 0 * apart, 0.9 - apart], axis=2))


case(
    "deep_layers_differentiate_first",
    True,
    a,
    measured(a=spreading([1, 9, 8, 7, 5, 4, 2])),
    "at step 90, 80, 70, 50, 40, 20 (layers 2 on); rank correlation of depth and step -1.00",
)
case("deep_layers_differentiate_first", False, a, measured(a=spreading([9, 2, 4, 5, 7, 8, 9])))
case("deep_layers_differentiate_first", None, a, measured(a=spreading([1, 7, 3, 8, 2, 9, 4])), "± 0.44 (n = 6 layers)")
case(
    "deep_layers_differentiate_first", None, a, measured(a=spreading([1, 5, 5, 5])), "at step 50, 50, 50 (layers 2 on)"
)
case("deep_layers_differentiate_first", None, a, {}, "not run: a")

uniform = np.full((3, 2, 2), 0.95)
case(
    "first_layer_stays_uniform",
    True,
    a,
    measured(a=logged(uniform)),
    "lowest entropy 0.950, highest variance 0; asked 0.9",
)
case("first_layer_stays_uniform", True, a, measured(a=logged(uniform - [[[0], [0.5]]])), "lowest entropy 0.950")
case("first_layer_stays_uniform", False, a, measured(a=logged(uniform - [[[0.2], [0]]])))
case("first_layer_stays_uniform", None, a, measured(a=[3.0, 3.1]), "not measured: entropy-log of a")


def falling(slopes, turned=(), rises=99):
    """Layers that start in order, 0.01 apart, and fall by a slope each. turned: readings at which their order is
    another. rises: the reading from which on all are higher than at the start."""
    levels = np.array([0.9 - 0.01 * np.arange(len(slopes)) - np.array(slopes) * t / 20 for t in range(21)])
    for t in turned:
        levels[t] = levels[t][::-1]
    levels[rises:] += 0.3
    return logged(np.stack([levels, levels], axis=2))


case(
    "entropy_falls_in_order",
    True,
    a,
    measured(a=falling([0.1, 0.2, 0.3])),
    "3 of 3 layers fell; rank correlations of successive readings 1.00, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00; "
    "asked above 0.5",
)
case("entropy_falls_in_order", False, a, measured(a=falling([0.1, 0.2, -0.001])), "2 of 3 layers fell")
case(
    "entropy_falls_in_order",
    False,
    a,
    measured(a=falling([0.1, 0.2, 0.3], turned=[4])),
    "1.00, 1.00, -1.00, -1.00, 1.00",
)
case("entropy_falls_in_order", False, a, measured(a=falling([0.1, 0.2, 0.3], rises=8)), "^0 of 3 layers fell")
case("entropy_falls_in_order", True, a, measured(a=falling([0.1, 0.2, 0.3], turned=[15])), "3 of 3 layers fell")
case(
    "entropy_falls_in_order",
    False,
    a,
    measured(a=logged(np.broadcast_to(np.linspace(0.9, 0.5, 21)[:, None, None], (21, 3, 2)))),
    "3 of 3 layers fell; rank correlations of successive readings 0.00",
)
case("entropy_falls_in_order", None, a, {}, "not run: a")


def contributing(*loops):
    return measured(a=record(probes={"contributions": {"examples": [{"loops": [list(row) for row in loops]}]}}))


case(
    "contributions_sharpen",
    True,
    a,
    contributing((1, 1, 0, 0), (3, 1, 0, 0), (9, 1, 0, 0)),
    "loop 0: 0.500, loop 1: 0.406, loop 2: 0.234",
)
case("contributions_sharpen", False, a, contributing((1, 1), (9, 1), (3, 1)))
skipped = {"contributions": {"skipped": "no head is looped"}}
case("contributions_sharpen", None, a, measured(a=record(probes=skipped)), "no head is looped")


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
