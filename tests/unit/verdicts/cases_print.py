"""Claims on printed lists of names, and sentences that nothing at hand can test."""

from tests.unit.verdicts.building import case, table

NAMES = {"A": {"names": "a, b", "x": 1.0}, "B": {"names": "c, d"}, "C": {"names": "e, b"}, "D": {}}
ON = {"experiment": table(NAMES)}

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

case("not_here", "not run", {"needs": "a model of 1.7B"}, ON, "needs a model of 1.7B")

chunks = {"over": {"g": "2 to 4", "s": "0 to g - 2", "j": [1, 2]}, "formula": "(j * g + 1 - s) // g == j"}
case("stated_for_all", False, chunks, ON, "so in 10 of 12 cases of (j * g + 1 - s) // g == j (not: g 4, s 2, j 1: 0 ")
case("stated_for_all", False, chunks, ON, "never with s ≥ 2, always with the others")
case("stated_for_all", True, chunks | {"where": "s <= 1"}, ON, "^so in 10 of 10 cases")
case("stated_for_all", None, chunks | {"where": "s > g"}, ON, "there is no case to try")
case("stated_for_all", True, {"over": {"n": "0 to 9"}, "formula": "n * (n + 1) % 2 == 0"}, ON, "^so in 10 of 10 cases")
case("stated_for_all", False, {"over": {"n": "1 to 4"}, "formula": "2 ** n > n ** 2"}, ON, "n 2: 4 against 4; n 3: 8 ")
