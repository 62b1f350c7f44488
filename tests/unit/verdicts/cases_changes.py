"""Claims on changes, gaps and shares in printed figures."""

from tests.unit.verdicts.building import case, table

ROWS = {
    "A": {"x": 12.0, "y": 30.0, "names": "a, b", "dx": 20.0, "dy": 50.0},
    "B": {"x": 10.0, "y": 20.0, "names": "c, d", "dx": 0.0, "dy": 0.0},
    "C": {"x": 7.0, "y": 19.0, "names": "e, b", "dx": -30.0, "dy": -5.0},
    "D": {},
}
ON = {"experiment": table(ROWS)}

between = {"rows": ["A", "C"], "column": "x"}
case("printed_between", True, between | {"low": 7, "high": 12}, ON, "^printed: 7 to 12, stated 7 to 12")
case("printed_between", False, between | {"low": 8, "high": 12}, ON, "(not: C: 7)")
case("printed_between", False, between | {"low": 7, "high": 11}, ON, "(not: A: 12)")
case("printed_between", None, {"rows": ["D"], "column": "x", "low": 0, "high": 1}, ON, "not printed: D, x")

ratio = {"row": "A", "over": "B", "column": "x"}
case("printed_ratio", True, ratio | {"low": 1.2, "high": 1.2}, ON, "12 / 10 = 1.20, stated 1.2 to 1.2")
case("printed_ratio", False, ratio | {"low": 1.3, "high": 2}, ON)
case("printed_ratio", False, ratio | {"low": 1, "high": 1.1}, ON)
case("printed_ratio", None, ratio | {"over": "D", "low": 1, "high": 2}, ON)


def gaps(*values):
    """An experiment whose rows lie above their counterparts by these values."""
    rows = {f"r{i}": {"x": 10.0 + value} for i, value in enumerate(values)}
    return {"experiment": table(rows | {f"o{i}": {"x": 10.0} for i in range(len(values))})}


four = {"rows": ["r0", "r1", "r2", "r3"], "over": ["o0", "o1", "o2", "o3"], "column": "x"}
case("printed_gap_widens", True, four, gaps(-1, 0, 1, 2), "^printed: -1, +0, +1, +2; 0 of 3 steps do not widen it")
case("printed_gap_widens", False, four, gaps(1, 0.5, 1, 2), "1 of 3 steps")
case("printed_gap_widens", False, four, gaps(0, 1, 1, 2), "1 of 3 steps")
case("printed_gap_widens", True, four | {"back": 1}, gaps(1, 0.5, 1, 2))
case("printed_gap_widens", False, four | {"back": 3}, gaps(3, 2, 1, 0))
case("printed_gap_widens", False, four | {"back": 1}, gaps(1, 2, 3, 1), "1 of 3 steps")
case("printed_gap_widens", None, {"rows": ["A", "D"], "over": ["B", "B"], "column": "x"}, ON, "not printed: D, x")

most = {"row": "A", "step": "B", "over": "C", "column": "x"}
case("printed_most", False, most, ON, "^printed: +2.00 of +5.00, 40.0 %, stated above 50 %")
case("printed_most", True, most | {"share": 0.3}, ON)
case("printed_most", False, most | {"share": 0.4}, ON)
case("printed_most", True, most | {"column": "y"}, ON, "+10.00 of +11.00, 90.9 %")
case("printed_most", None, most | {"step": "D"}, ON, "not printed: D, x")

follow = {"over": "B", "columns": [["x", "dx"], ["y", "dy"]]}
full = {name: cells for name, cells in ROWS.items() if name != "D"}
case("printed_changes_follow", True, follow, {"experiment": table(full)}, "^4 of 4 changes follow")
wrong = full | {"C": ROWS["C"] | {"dy": -5.1}}
case("printed_changes_follow", False, follow, {"experiment": table(wrong)}, "^3 of 4 changes follow (not: C, y: -5.00,")
high = full | {"C": ROWS["C"] | {"dy": -4.9}}
case("printed_changes_follow", False, follow, {"experiment": table(high)}, "printed -4.9)")
case("printed_changes_follow", None, follow, ON, "not printed: D, x")

apart = {"columns": ["y"], "than": ["x"]}
rise = apart | {"row": "A", "over": "B", "direction": "rises"}
case("printed_changes_apart", True, rise, ON, "smallest +50.00 (y), largest of the others +20.00 (x), in percent")
case(
    "printed_changes_apart",
    True,
    rise | {"unit": "points"},
    ON,
    "+10.00 (y), largest of the others +2.00 (x), in points",
)
case("printed_changes_apart", False, rise | {"columns": ["x"], "than": ["y"]}, ON)
case("printed_changes_apart", False, rise | {"columns": ["x", "y"], "than": ["y"]}, ON, "smallest +20.00 (x)")
case("printed_changes_apart", False, rise | {"columns": ["x", "y"], "than": ["x"]}, ON, "smallest +20.00 (x)")
case("printed_changes_apart", False, rise | {"columns": ["y"], "than": ["x", "y"]}, ON, "others +50.00 (y)")
fall = {"row": "C", "over": "B", "direction": "falls", "columns": ["x"], "than": ["y"]}
case("printed_changes_apart", True, fall, ON, "smallest +30.00 (x), largest of the others +5.00 (y)")
case("printed_changes_apart", False, fall | {"columns": ["y"], "than": ["x"]}, ON)
case("printed_changes_apart", None, fall | {"over": "D"}, ON)

COSTS = {"V": {"p": 20.0}, "A": {"p": 19.0, "c": 0.5}, "B": {"p": 18.0, "c": 4.0}, "C": {"p": 19.5, "c": 0.2}}
costs = {"base": "V", "gain": "p", "cost": "c"}
paid = {"experiment": table(COSTS)}
case("printed_per_cost", True, costs | {"rows": ["A", "C"], "than": ["B"]}, paid, "A: 2.000; C: 2.500; B: 0.500")
case("printed_per_cost", False, costs | {"rows": ["A", "B"], "than": ["C"]}, paid)
case("printed_per_cost", False, costs | {"rows": ["A"], "than": ["B", "C"]}, paid)
case("printed_per_cost", False, costs | {"rows": ["B", "C"], "than": ["A"]}, paid)
case("printed_per_cost", None, costs | {"rows": ["A"], "than": ["V"]}, paid, "not printed: V, c")

NUMBERS = {"A": {"x": 1.0, "y": 2.0, "z": 3.0}, "B": {"x": 1.0, "y": 5.0, "w": 3.0}}
two = {"row": "A", "over": "B"}
case("printed_differ_in", True, two | {"columns": ["y"]}, {"experiment": table(NUMBERS)}, "they differ in y (2, 5)")
case("printed_differ_in", False, two | {"columns": ["x"]}, {"experiment": table(NUMBERS)})
case("printed_differ_in", False, two | {"columns": ["x", "y"]}, {"experiment": table(NUMBERS)})
case("printed_differ_in", True, two | {"over": "A", "columns": []}, {"experiment": table(NUMBERS)}, "differ in nothing")

lists = {"column": "names"}
case("printed_apart", True, lists | {"rows": ["A"], "over": ["B"]}, ON, "in both: none")
case("printed_apart", False, lists | {"rows": ["B", "A"], "over": ["C"]}, ON, "in both: b")
case("printed_apart", None, lists | {"rows": ["A"], "over": ["D"]}, ON, "not printed: D, names")
case("printed_apart", None, {"column": "x", "rows": ["A"], "over": ["B"]}, ON, "not printed: A, x")

HEADS = {
    "A": {"h": "L1-H1, L1-H2, L4-H1"},
    "B": {"h": "L7-H1, L8-H2, L8-H1"},
    "C": {"h": "L1-H1, L2-H2, L3-H1"},
    "D": {},
}
heads = {"experiment": table(HEADS)}
case("printed_alike", True, {"rows": ["B"], "like": "A", "column": "h"}, heads, "^printed: A: 3 of 2 layers")
case("printed_alike", False, {"rows": ["B", "C"], "like": "A", "column": "h"}, heads, "(not: C: 3 of 3 layers)")
case("printed_alike", None, {"rows": ["B"], "like": "D", "column": "h"}, heads, "not printed: D, h")

case("printed_count", True, {"count": 4}, ON, "^printed: 4 rows, stated 4")
case("printed_count", False, {"count": 5}, ON)

case("not_here", "not run", {"needs": "a model of 1.7B"}, ON, "needs a model of 1.7B")
