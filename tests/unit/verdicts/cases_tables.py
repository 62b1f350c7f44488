"""Claims that compare several printed columns, and printed tables with each other."""

from tests.unit.verdicts.building import case, table

CELLS = {
    "A": {"x": 12.0, "y": 30.0, "loss": 2.1},
    "B": {"x": 10.0, "y": 31.0, "loss": 2.2},
    "C": {"x": 11.0, "y": 29.0, "loss": 2.2},
    "D": {},
}
ON = {"experiment": table(CELLS)}
HERE = {"other": "toy-table1"}

pairs = {"rows": ["A", "C"], "over": ["B", "B"], "columns": ["x"]}
case("printed_pairs", True, pairs, ON, "^printed: above in 2 of 2$")
both = pairs | {"columns": ["x", "y"]}
case("printed_pairs", False, both, ON, "^printed: above in 2 of 4 (not: A, y: -1.00; C, y: -2.00)$")
case("printed_pairs", True, both | {"least": 2}, ON, "above in 2 of 4, stated at least 2 (not: A, y")
case("printed_pairs", False, both | {"least": 3}, ON)
case(
    "printed_pairs", True, both | {"least": 3, "slack": 1.5, "reason": "r"}, ON, "above or within 1.5 in 3 of 4, stated"
)
case("printed_pairs", False, both | {"slack": 1.5, "reason": "r"}, ON, "(not: C, y: -2.00)")
case("printed_pairs", False, both | {"slack": 2.0, "reason": "r"}, ON, "in 3 of 4 (not: C, y: -2.00)")
losses = {"rows": ["A"], "over": ["B"], "columns": ["loss"], "falls": True}
case("printed_pairs", True, losses, ON, "^printed: below in 1 of 1$")
case("printed_pairs", False, losses | {"falls": False}, ON, "(not: A, loss: -0.10)")
case("printed_pairs", False, losses | {"rows": ["C"]}, ON, "(not: C, loss: -0.00)")
case("printed_pairs", None, pairs | {"over": ["B", "D"]}, ON, "not printed: D, x")

# A row that has two counterparts counts twice.
twice = {"rows": ["A", "A"], "over": ["B", "C"], "columns": ["y"]}
case("printed_pairs", False, twice, ON, "^printed: above in 1 of 2 (not: A over B, y: -1.00)$")
case("printed_pairs", True, twice | {"least": 1}, ON)

within = {"rows": ["A", "C"], "over": ["B", "B"], "columns": ["x", "y"], "reason": "r"}
case("printed_within", True, within | {"low": -2, "high": 2}, ON, "^printed: -2.00 to +2.00, asked -2 to +2$")
case("printed_within", False, within | {"low": -1.5, "high": 2}, ON, "(not: C, y: -2.00)")
case("printed_within", False, within | {"low": -2, "high": 1.5}, ON, "(not: A, x: +2.00)")
case("printed_within", None, within | {"over": ["D", "B"], "low": 0, "high": 1}, ON, "not printed: D, x")

case(
    "printed_within",
    False,
    twice | {"low": 0, "high": 2, "reason": "r"},
    ON,
    "-1.00 to +1.00, asked +0 to +2 (not: A o",
)

differ = {"rows": ["A", "C"], "over": ["B", "B"], "columns": ["y"], "reason": "r"}
case("printed_differ", True, differ | {"by": 0.5}, ON, "^printed: apart by more than 0.5 in 2 of 2; -1.00, -2.00$")
case("printed_differ", False, differ | {"by": 1}, ON, "in 1 of 2; -1.00, -2.00 (not: A, y: -1.00)")
case("printed_differ", True, differ | {"by": 1.5, "columns": ["x"], "rows": ["A"], "over": ["B"]}, ON, "1 of 1; +2.00")
case("printed_differ", False, differ | {"by": 2.5}, ON, "in 0 of 2")
case("printed_differ", None, differ | {"by": 1, "over": ["D", "B"]}, ON, "not printed: D, y")

groups = {"groups": [["A", "B"], ["A", "C"]]}
case(
    "printed_best_varies",
    False,
    groups | {"columns": ["x", "y"]},
    ON,
    "^printed: highest, alone or with others, in so many of 2: A 1, B 1, A 2, C 0 (not: A)$",
)
case("printed_best_varies", True, {"groups": [["A", "B"]], "columns": ["x", "y"]}, ON, "of 2: A 1, B 1$")
case("printed_best_varies", False, {"groups": [["B", "C"]], "columns": ["loss"]}, ON, "B 1, C 1 (not: B; C)")
case("printed_best_varies", None, {"groups": [["A", "D"]], "columns": ["x"]}, ON, "not printed: D, x")

PERCENT = {"A": {"p": 33.33}, "B": {"p": 66.67}, "C": {"p": 66.66}, "D": {}, "E": {"p": 50.0}}
percent = {"experiment": table(PERCENT)}
items = {"column": "p", "of": 3}
case("printed_multiples", True, items | {"rows": ["A", "B"]}, percent, "^printed: 2 of 2 are multiples of 1 / 3$")
case(
    "printed_multiples", False, items | {"rows": ["A", "C"]}, percent, "1 of 2 are multiples of 1 / 3 (not: C: 66.66, n"
)
case("printed_multiples", True, items | {"rows": ["C"], "digits": 1}, percent)
case("printed_multiples", False, items | {"rows": ["E"]}, percent, "(not: E: 50, nearest 66.667)")
case("printed_multiples", None, items | {"rows": ["D"]}, percent, "not printed: D, p")

best = {"row": "A", "over": ["B", "C"], "columns": ["x", "y"]}
case(
    "printed_best",
    True,
    best | {"count": 1},
    ON,
    "^printed: best in 1 of 2, stated 1 (not: y: 30, highest of the others 31)$",
)
case("printed_best", False, best | {"count": 2}, ON)
case("printed_best", False, best | {"count": 0}, ON)
case("printed_best", False, {"row": "C", "over": ["B"], "columns": ["loss"], "count": 1}, ON, "best in 0 of 1")
case("printed_best", None, best | {"over": ["D"], "count": 1}, ON, "not printed: D, x")

apart = {"rows": ["A", "B", "C"], "columns": ["x", "y"]}
case("printed_correlation", True, apart | {"high": 0.0}, ON, "^printed: r = -0.50 over 3 rows, asked -1 to +0$")
case("printed_correlation", False, apart | {"low": 0.0}, ON, "asked +0 to +1")
case("printed_correlation", False, apart | {"high": -0.8}, ON, "r = -0.50")
case("printed_correlation", True, apart | {"columns": ["x", "x"], "low": 1.0 - 1e-9}, ON, "r = +1.00")
case("printed_correlation", None, apart | {"rows": ["A", "B"]}, ON, "a correlation needs three rows")
flat = {"experiment": table({"A": {"x": 1.0, "y": 1.0}, "B": {"x": 1.0, "y": 2.0}, "C": {"x": 1.0, "y": 3.0}})}
case("printed_correlation", None, apart, flat, "columns whose numbers differ")
case("printed_correlation", None, apart | {"rows": ["A", "B", "D"]}, ON, "not printed: D, x")

like = {"rows": ["A", "B"], "columns": ["x"], "other_columns": ["x"]} | HERE
case("printed_as", True, like, ON, "^printed: 2 of 2 are equal in toy-table1$")
case(
    "printed_as",
    False,
    like | {"other_columns": ["y"]},
    ON,
    "^printed: 0 of 2 are equal in toy-table1 (not: A, x: 12 here, 30",
)
same = {"experiment": table({"A": {"x": 1.0, "z": 1.0}, "B": {"x": 2.0, "z": 3.0}})}
case(
    "printed_as",
    False,
    like | {"other_columns": ["z"]},
    same,
    "1 of 2 are equal in toy-table1 (not: B, x: 2 here, 3 there)",
)
case("printed_as", None, like | {"rows": ["D"]}, ON, "not printed: D, x")


def beside(there):
    """The cells above, with another experiment."""
    here = table(CELLS)
    here._others = lambda _: table(there)
    return {"experiment": here}


near = {"rows": ["A", "B"], "columns": ["x", "y"], "other": "toy-table2", "reason": "r"}
others = beside({"A": {"x": 11.5, "y": 30.0}, "B": {"x": 10.0, "y": 32.0}, "C": {}})
case("printed_near", True, near | {"within": 1.0}, others, "^printed: within 1 of toy-table2 in 4 of 4$")
case("printed_near", False, near | {"within": 0.5}, others, "in 3 of 4 (not: B, y: -1.00)")
case("printed_near", False, near | {"within": 0.4}, others, "in 2 of 4 (not: A, x: +0.50; B, y: -1.00)")
case("printed_near", None, near | {"rows": ["C"], "within": 1.0}, others, "not printed: C, x")

order = {"rows": ["A", "C"], "columns": ["x"], "like": ["C", "B"]} | HERE
case("printed_order", True, order, ON, "^printed: the order is the same in 1 of 1$")
case("printed_order", False, order | {"columns": ["x", "y"]}, ON, "in 1 of 2 (not: y: A > C here, B > C there)")
case("printed_order", False, {**order, "rows": ["C", "A"]}, ON, "(not: x: A > C here, C > B there)")
case("printed_order", True, {**order, "columns": ["loss"], "like": ["A", "B"]}, ON)
case("printed_order", True, {**order, "columns": ["loss"], "like": ["B", "C"]}, ON)
case("printed_order", False, {**order, "columns": ["loss"], "like": ["C", "A"]}, ON)
three = {"rows": ["A", "C", "B"], "columns": ["x"], "like": ["A", "B", "C"]} | HERE
case("printed_order", False, three, ON, "A > C > B here, A > C > B there")
case("printed_order", None, order | {"like": ["D", "A"]}, ON, "not printed: D, x")

SPREAD = {"A": {"x": 1.0, "y": 3.0, "u": 5.0, "v": 6.0}, "B": {"x": 1.0, "y": 5.0, "u": 5.0, "v": 7.0}, "D": {}}
spread = {"rows": ["A", "B"], "columns": ["x", "y"], "other_columns": ["u", "v"]} | HERE
spreads = {"experiment": table(SPREAD)}
case("printed_spread", True, spread, spreads, "^printed: 4.00 to 4.00 times as large, asked above 1$")
case("printed_spread", False, spread | {"times": 4}, spreads, "(not: A: 4.00; B: 4.00)")
case("printed_spread", False, {**spread, "columns": ["u", "v"], "other_columns": ["x", "y"]}, spreads, "(not: A: 0.25")
wide = {"experiment": table({**SPREAD, "B": {**SPREAD["B"], "v": 15.0}})}
case("printed_spread", False, spread, wide, "^printed: 0.16 to 4.00 times as large, asked above 1 (not: B: 0.16)")
case("printed_spread", None, spread | {"rows": ["D"]}, spreads, "not printed: D, x")

gaps = {"rows": ["A"], "over": ["B"], "column": "x", "other": "toy-table2", "other_column": "y"}
case("printed_gaps_apart", True, gaps, others, "^printed: A: +2.00 here, -2.00 in toy-table2$")
case("printed_gaps_apart", False, gaps | {"column": "y", "other_column": "x"}, others, "(not: A)")
case("printed_gaps_apart", False, {**gaps, "column": "x", "other": "toy-table1", "other_column": "x"}, ON, "(not: A)")
both = {**gaps, "rows": ["A", "C"], "over": ["B", "B"], "other": "toy-table1", "other_column": "loss"}
case("printed_gaps_apart", True, both, ON, "A: +2.00 here, -0.10 in toy-table1; C: +1.00 here, +0.00")
case("printed_gaps_apart", False, {**both, "column": "y"}, ON, "(not: A; C)")
case("printed_gaps_apart", None, gaps | {"rows": ["D"]}, ON, "not printed: D, x")
