"""Claims on printed and exact figures."""

from tests.unit.verdicts.building import case, table

TWO = {"experiment": table({"A": {"x": 10.37, "y": 4.0}, "B": {"x": 10.0, "y": 3.0}, "C": {"y": 3.5}})}
PAIR = {"row": "A", "over": "B", "column": "x"}
LOST = {"row": "A", "over": "C", "column": "x"}

case("printed_percent", True, PAIR | {"percent": 3.7}, TWO, "10.37 / 10 − 1 = 3.700 %, stated 3.7 %")
case("printed_percent", False, PAIR | {"percent": 3.71}, TWO)
case("printed_percent", True, PAIR | {"percent": 3.7, "digits": 1}, TWO, "10.37 / 10 − 1 = 3.70 %, stated 3.7 %")
case("printed_percent", False, PAIR | {"percent": 3.8, "digits": 1}, TWO)
case("printed_percent", None, LOST | {"percent": 3.7}, TWO, "not printed: C, x")

case("printed_points", True, PAIR | {"points": 0.37}, TWO, "10.37 − 10 = +0.37, stated +0.37")
case("printed_points", False, PAIR | {"points": -0.37}, TWO)
case("printed_points", None, LOST | {"points": 0.37}, TWO, "not printed: C, x")

both = {"row": "A", "over": "B", "columns": ["x", "y"]}
case("printed_everywhere", True, both, TWO, "above in 2 of 2 columns")
case(
    "printed_everywhere",
    False,
    both,
    {"experiment": table({"A": {"x": 1.0, "y": 4.0}, "B": {"x": 2.0, "y": 3.0}})},
    "above in 1 of 2 columns (not: x)",
)
case("printed_everywhere", None, both | {"over": "C"}, TWO, "not printed: C, x")
case("printed_everywhere", None, both, {"experiment": table({"A": {"x": 1.0, "y": "n/a"}, "B": {"x": 2.0, "y": 3.0}})})

three = {"experiment": table({"A": {"x": 3.0}, "B": {"x": 2.0}, "C": {"x": 1.0}, "D": {"y": 1.0}})}
case(
    "printed_above",
    True,
    {"rows": ["A", "B"], "over": ["C"], "column": "x"},
    three,
    "lowest 2, highest of the others 1",
)
case("printed_above", False, {"rows": ["A", "C"], "over": ["B"], "column": "x"}, three)
case("printed_above", False, {"rows": ["B"], "over": ["A", "C"], "column": "x"}, three)
case("printed_above", None, {"rows": ["A"], "over": ["D"], "column": "x"}, three, "not printed: D, x")
case(
    "printed_below",
    True,
    {"rows": ["C", "B"], "over": ["A"], "column": "x"},
    three,
    "highest 2, lowest of the others 3",
)
case("printed_below", False, {"rows": ["A", "C"], "over": ["B"], "column": "x"}, three)
case("printed_below", False, {"rows": ["B"], "over": ["A", "C"], "column": "x"}, three)
case("printed_below", None, {"rows": ["D"], "over": ["A"], "column": "x"}, three, "not printed: D, x")

same = {"experiment": table({"A": {"x": 3.0, "z": 5.0}, "B": {"y": 3.0}, "C": {"y": 4.0}})}
equal = {"row": "A", "column": "x", "other": "toy-table1", "other_row": "B", "other_column": "y"}
case("printed_equal", True, equal, same, "3 here, 3 in toy-table1")
case("printed_equal", False, equal | {"other_row": "C"}, same)
case("printed_equal", None, equal | {"other_column": "z"}, same, "not printed: B, z")

falls = {"experiment": table({"A": {"x": 90.0}, "B": {"x": 80.0}, "whole": {"x": 100.0}, "D": {"y": 1.0}})}
reductions = {"rows": ["A", "B"], "over": ["whole", "whole"], "column": "x"}
case("printed_range", True, reductions | {"low": 5, "high": 25}, falls, "10.00 to 20.00 %, stated 5 to 25")
case("printed_range", False, reductions | {"low": 15, "high": 25}, falls, "(not: A: 10.00)")
case("printed_range", False, reductions | {"low": 5, "high": 15}, falls, "(not: B: 20.00)")
case("printed_range", None, {"rows": ["D"], "over": ["A"], "column": "x", "low": 0, "high": 1}, falls)

pairs = {"rows": ["A", "B"], "over": ["C", "D"], "column": "x"}
rises = {"experiment": table({"A": {"x": 11.0}, "B": {"x": 12.0}, "C": {"x": 10.0}, "D": {"x": 10.0}, "E": {}})}
equal = {"experiment": table({"A": {"x": 11.0}, "B": {"x": 10.0}, "C": {"x": 10.0}, "D": {"x": 10.0}})}
case("printed_higher", True, pairs, rises, "printed: +10.00 to +20.00 %, stated above 0")
case("printed_higher", False, pairs, equal, "(not: B: +0.00 %)")
case("printed_higher", False, {"rows": ["C", "A"], "over": ["B", "C"], "column": "x"}, rises, "(not: C: -16.67 %)")
case("printed_higher", None, {"rows": ["E"], "over": ["A"], "column": "x"}, rises)

average = {"column": "mean", "of": ["x", "y"]}
case("printed_averages", True, average, {"experiment": table({"A": {"x": 2.0, "y": 2.01, "mean": 2.0}})}, "1 of 1")
case(
    "printed_averages",
    False,
    average,
    {"experiment": table({"A": {"x": 2.0, "y": 2.04, "mean": 2.0}, "B": {"x": 1.0, "y": 3.0, "mean": 2.0}})},
    "^1 of 2 averages follow (not: A: mean 2.020, printed 2)",
)
case("printed_averages", None, average, {"experiment": table({"A": {"x": 2.0, "mean": 2.0}})}, "not printed: A, y")

exact = {"experiment": table(numbers={"A": 1500.0, "B": 2500.0}, factor=0.001)}
between = {"rows": ["A", "B"], "column": "exact"}
case("computed_between", True, between | {"low": 1, "high": 3}, exact, "exact: 1.50 to 2.50, stated 1 to 3")
case("computed_between", False, between | {"low": 2, "high": 3}, exact, "(not: A: 1.50)")
case("computed_between", False, between | {"low": 1, "high": 2}, exact, "(not: B: 2.50)")
case("computed_between", None, {"rows": ["A"], "column": "x", "low": 1, "high": 2}, TWO, "not computed: A, x")


def reduction(stated):
    cells = {"before": 200.0, "after": 170.0, "exact": stated}
    return {"experiment": table({"A": {k: v for k, v in cells.items() if v is not None}}, {"A": 15.94})}


reduced = {"row": "A", "before": "before", "after": "after", "column": "exact"}
case("computed_reduction", True, reduced, reduction(15.9), "give 15.94 %, the printed ones 15.00 %, stated 15.9 %")
case("computed_reduction", False, reduced, reduction(16.0))
case("computed_reduction", None, reduced, reduction(None), "not printed: A, exact")
