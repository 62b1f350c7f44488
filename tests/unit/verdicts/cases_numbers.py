"""Expressions on printed, computed and stated numbers."""

from tests.unit.verdicts.building import says, table

PRINTED = {"A": {"x": 10.37, "y": 4.0}, "B": {"x": 10.0, "y": 3.0}, "C": {"y": 3.5}, "D, 1": {"x": 9.0, "y": 2.0}}
TWO = {"experiment": table(PRINTED)}
EXACT = {"experiment": table(numbers={"A": 2.0, "B": 3.0}, factor=10.0)}

says(True, "printed[A; x] > [B]", TWO, "^printed: 10.37 > 10 (10.37)$")
says(False, "printed[A; x] < [B]", TWO)
says(True, "rounds_to(printed[A; x] - [B], 0.37, 2)", TWO, "^printed: rounds_to(10.37 − 10, 0.37, 2)$")
says(False, "rounds_to(printed[A; x] - [B], 0.36, 2)", TWO)
says(True, "printed[A; x] - [B] == 0.37", TWO, "10.37 − 10 == 0.37 (0.37)")
says(False, "printed[A; x] - [B] == 0.371", TWO)
says(True, "printed[A; x, y] > [B]", TWO, "A (x, y) > B (x, y) in 2 of 2$")
says(False, "printed[A; x, y] < [B; x, y] + 0.5", TWO, "in 1 of 2 (not: y: +0.5)")
says(False, "printed[A, B; x, y] > 3.5", TWO, "in 3 of 4 (not: B, y: +3)")
says(False, "printed[A, B; x] > [B]", TWO, "in 1 of 2 (not: B: +10)")
says(True, '3 <= printed["D, 1"; x] <= 9', TWO, "3 <= 9 <= 9 (9)")
says(False, "10.1 <= printed[A, B; x] <= 11", TWO, "in 1 of 2 (not: B: +10)")
says(True, "rises(printed[B, A; x])", TWO, "in 1 of 1")
says(False, "rises(printed[A, B, A; x])", TWO, "in 1 of 2 (not: 1)")
says(True, "mean(printed[A, B; y]) == 3.5 and printed[A; y] > [B]", TWO)
says(False, "mean(printed[A, B; y]) == 3.5 and printed[A; y] < [B]", TWO)
says(None, "printed[C; x] > 1", TWO, "not printed: C, x")
says(True, "count(printed[*; y] > 2) == 3", TWO, "all rows (y)")
says(True, "printed[A; x; toy-table1] > printed[B; x]", TWO)
says(True, "computed[A, B; exact] >= 20", EXACT, "^exact: A, B (exact) >= 20 in 2 of 2")
says(False, "computed[A, B; exact] > 20", EXACT, "in 1 of 2 (not: A: +20)")
says(True, "given_number(number=3.0) / given_number(number=2.0) == 1.5", {}, "^exact: 3 / 2 == 1.5 (1.5)$")
says(True, "2 * 3 == 6", {}, "^stated: 2 × 3 == 6 (6)$")
says(False, "2 * 3 == 5", {})
says(True, "count(rises(printed[B, A, B; x])) == 1", TWO, "B and 2 more (x)")
