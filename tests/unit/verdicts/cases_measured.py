"""Claims on trained runs that papers share."""

from tests.unit.verdicts.building import case, record, table

LOW, HIGH = [2.9, 3.0, 3.1, 3.0], [3.1, 3.21, 3.29, 3.2]
"""Windows of two models: the second is worse in each of them."""
OTHER = [3.3, 2.6, 3.5, 2.6]
"""As good as the first in the mean, within the noise."""
ROWS = table({"A": {}, "B": {}, "C": {}})


def trained(**cells):
    records = {f"run {name}": {0: record(windows)} for name, windows in cells.items()}
    return {"experiment": ROWS, "records": records}


ours = {"rows": ["A"], "over": ["B"]}
case("measured_better", True, ours, trained(A=LOW, B=HIGH), "A − B = -0.2000 ± 0.0041 nats (4 windows, 1 seed)")
case("measured_better", False, ours, trained(A=HIGH, B=LOW))
case("measured_better", None, ours, trained(A=LOW, B=OTHER), "(4 windows, 1 seed, not resolved)")
case("measured_better", None, ours, trained(A=LOW), "A − B: not run")
case("measured_better", None, ours, trained(A=[3.0], B=[4.0]), "A − B: 1 windows are too few")
case("measured_better", None, ours, trained(A=[], B=[]), "A − B: not run")
case("measured_better", None, ours, trained(A=LOW, B=[]), "A − B: not run")
case(
    "measured_better",
    None,
    ours,
    {"experiment": ROWS, "records": {n: {0: record(results=None)} for n in ("run A", "run B")}},
    "not run",
)
case("measured_better", False, ours | {"over": ["B", "C"]}, trained(A=LOW, B=LOW[:1] + OTHER[1:], C=[1.0] * 4))
case("measured_better", None, ours | {"over": ["B", "C"]}, trained(A=LOW, B=HIGH, C=OTHER))
case("measured_better", True, ours | {"or_equal": True}, trained(A=LOW, B=OTHER), "not resolved")
case("measured_better", True, ours | {"or_equal": True}, trained(A=LOW, B=HIGH))
case("measured_better", False, ours | {"or_equal": True}, trained(A=HIGH, B=LOW))
case("measured_better", None, ours | {"or_equal": True}, trained(A=LOW), "not run")


def seeds(*ours_and_theirs):
    """Rows A and B with several seeds; for each seed the windows of both."""
    left, right = zip(*ours_and_theirs, strict=True)
    cells = {"run A": left, "run B": right}
    records = {name: dict(enumerate(map(record, seeds_of_cell))) for name, seeds_of_cell in cells.items()}
    return {"experiment": ROWS, "records": records}


# From three seeds on their means count: windows that differ much do not hide a difference that every seed has.
uneven = ([1.0, 5.0], [1.5, 4.9])
case("measured_better", True, ours, seeds(uneven, uneven, uneven), "= -0.2000 ± 0.0000 nats (3 seeds)")
case("measured_better", None, ours, seeds(uneven, uneven), "(4 windows, 2 seeds, not resolved)")
case("measured_better", None, ours, seeds(([3.0] * 9, [3.5] * 9), ([3.0] * 9, [3.5] * 9), ([3.5] * 9, [3.0] * 9)))

pairs = {"pairs": [["a", "b"], ["c", "b"]]}
case("cells_better", True, pairs, {"records": {n: {0: record(w)} for n, w in (("a", LOW), ("b", HIGH), ("c", LOW))}})
case(
    "cells_better",
    False,
    pairs,
    {"records": {n: {0: record(w)} for n, w in (("a", LOW), ("b", HIGH), ("c", [4.0] * 4))}},
)
case("cells_better", None, pairs, {"records": {"a": {0: record(LOW)}, "b": {0: record(HIGH)}}}, "c − b: not run")


def spent(**cells):
    return {"experiment": ROWS, "records": {f"run {name}": {0: record(flops=f)} for name, f in cells.items()}}


case("measured_cheaper", True, ours, spent(A=90.0, B=100.0), "A / B = 0.9000")
case("measured_cheaper", False, ours, spent(A=110.0, B=100.0))
case("measured_cheaper", False, ours | {"over": ["B", "C"]}, spent(A=110.0, B=100.0, C=120.0))
first_seeds = {"run A": {1: record(flops=300.0), 0: record(flops=90.0)}, "run B": {0: record(flops=100.0)}}
case("measured_cheaper", True, ours, {"experiment": ROWS, "records": first_seeds}, "A / B = 0.9000")
case("measured_cheaper", None, ours, spent(A=90.0), "not run: B")

flops = {"cell": "a", "metric": "flops"}
three = {"records": {"a": {0: record(flops=3.0), 1: record(flops=3.2)}}}
case("measured_bounds", True, flops | {"above": 2.5}, three, "a: 3.000, 3.200; asked above 2.5 (n = 2)")
case("measured_bounds", True, flops | {"below": 3.5}, three, "asked below 3.5")
case("measured_bounds", True, flops | {"above": 2.5, "below": 3.5}, three, "asked above 2.5 and below 3.5")
case("measured_bounds", False, flops | {"above": 3.1}, three)
case("measured_bounds", False, flops | {"below": 3.1}, three)
case("measured_bounds", None, flops | {"above": 2.5}, {}, "a: not run")
case("measured_bounds", None, {"cell": "a", "metric": "results.tasks.retrieval.all", "above": 2.5}, three, "not run")
