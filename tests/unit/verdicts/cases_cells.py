"""Expressions on printed and computed cells of one table: one row against another, changes, gaps and shares."""

from tests.unit.verdicts.building import measured, says, table

TWO = {"experiment": table({"A": {"x": 10.37, "y": 4.0}, "B": {"x": 10.0, "y": 3.0}, "C": {"y": 3.5}})}
three = {"experiment": table({"A": {"x": 3.0}, "B": {"x": 2.0}, "C": {"x": 1.0}, "D": {"y": 1.0}})}
same = {"experiment": table({"A": {"x": 3.0, "z": 5.0}, "B": {"y": 3.0}, "C": {"y": 4.0}})}
falls = {"experiment": table({"A": {"x": 90.0}, "B": {"x": 80.0}, "whole": {"x": 100.0}, "D": {"y": 1.0}})}
rises = {"experiment": table({"A": {"x": 11.0}, "B": {"x": 12.0}, "C": {"x": 10.0}, "D": {"x": 10.0}, "E": {}})}
equal = {"experiment": table({"A": {"x": 11.0}, "B": {"x": 10.0}, "C": {"x": 10.0}, "D": {"x": 10.0}})}
exact = {"experiment": table(numbers={"A": 1500.0, "B": 2500.0}, factor=0.001)}


def reduction(stated):
    cells = {"exact": stated} if stated is not None else {}
    return {"experiment": table({"A": cells}, {"A": 15.94})}


says(
    True,
    "rounds_to(100 * (printed[A; x] / [B] - 1), 3.7, 2)",
    TWO,
    "^printed: 100 × (10.37 / 10 − 1) = 3.700, stated 3.7$",
)
says(
    False,
    "rounds_to(100 * (printed[A; x] / [B] - 1), 3.71, 2)",
    TWO,
    "^printed: 100 × (10.37 / 10 − 1) = 3.700, stated 3.71$",
)
says(
    True,
    "rounds_to(100 * (printed[A; x] / [B] - 1), 3.7, 1)",
    TWO,
    "^printed: 100 × (10.37 / 10 − 1) = 3.70, stated 3.7$",
)
says(
    False,
    "rounds_to(100 * (printed[A; x] / [B] - 1), 3.8, 1)",
    TWO,
    "^printed: 100 × (10.37 / 10 − 1) = 3.70, stated 3.8$",
)
says(None, "rounds_to(100 * (printed[A; x] / [C] - 1), 3.7, 2)", TWO, "not printed: C, x")

says(True, "printed[A; x] - [B] == 0.37", TWO, "^printed: 10.37 − 10 = 0.37, required exactly 0.37$")
says(False, "printed[A; x] - [B] == -0.37", TWO, "^printed: 10.37 − 10 = 0.37, required exactly -0.37$")
says(None, "printed[A; x] - [C] == 0.37", TWO, "not printed: C, x")

says(True, "printed[A; x, y] > [B]", TWO, "^printed: +0.37 to +1: above in 2 of 2$")
says(
    False,
    "printed[A; x, y] > [B]",
    {"experiment": table({"A": {"x": 1.0, "y": 4.0}, "B": {"x": 2.0, "y": 3.0}})},
    "^printed: -1 to +1: above in 1 of 2 (not: x: 1 < 2)$",
)
says(None, "printed[A; x, y] > [C]", TWO, "not printed: C, x")
says(
    None,
    "printed[A; x, y] > [B]",
    {"experiment": table({"A": {"x": 1.0, "y": "n/a"}, "B": {"x": 2.0, "y": 3.0}})},
    "not printed: A, y",
)

says(True, "printed[A, B; x] > [C]", three, "^printed: +1 to +2: above in 2 of 2$")
says(False, "printed[A, C; x] > [B]", three, "^printed: -1 to +1: above in 1 of 2 (not: C: 1 < 2)$")
says(False, "printed[B; x] > [A, C]", three, "^printed: -1 to +1: above in 1 of 2 (not: A: 2 < 3)$")
says(None, "printed[A; x] > [D]", three, "not printed: D, x")

says(True, "printed[C, B; x] < [A]", three, "^printed: -2 to -1: below in 2 of 2$")
says(False, "printed[A, C; x] < [B]", three, "^printed: -1 to +1: below in 1 of 2 (not: A: 3 > 2)$")
says(False, "printed[B; x] < [A, C]", three, "^printed: -1 to +1: below in 1 of 2 (not: C: 2 > 1)$")
says(None, "printed[D; x] < [A]", three, "not printed: D, x")

says(True, "printed[A; x] == [B; y; toy-table1]", same, "^printed: 3 = 3$")
says(False, "printed[A; x] == [C; y; toy-table1]", same, "^printed: 3 < 4$")
says(None, "printed[A; x] == [B; z; toy-table1]", same, "not printed: B, z")

says(True, "5 <= 100 * (1 - printed[A, B; x] / [whole]) <= 25", falls, "^printed: 10 to 20: within 5 to 25 in 2 of 2$")
says(
    False,
    "15 <= 100 * (1 - printed[A, B; x] / [whole]) <= 25",
    falls,
    "^printed: 10 to 20: within 15 to 25 in 1 of 2 (not: A: 10)$",
)
says(
    False,
    "5 <= 100 * (1 - printed[A, B; x] / [whole]) <= 15",
    falls,
    "^printed: 10 to 20: within 5 to 15 in 1 of 2 (not: B: 20)$",
)
says(None, "0 <= 100 * (1 - printed[D; x] / [A]) <= 1", falls, "not printed: D, x")

says(True, "printed[A, B; x] > [C, D]", rises, "^printed: +1 to +2: above in 2 of 2$")
says(False, "printed[A, B; x] > [C, D]", equal, "^printed: +0 to +1: above in 1 of 2 (not: B: 10 = 10)$")
says(False, "printed[C, A; x] > [B, C]", rises, "^printed: -2 to +1: above in 1 of 2 (not: C: 10 < 12)$")
says(None, "printed[E; x] > [A]", rises, "not printed: E, x")

says(
    True,
    "rounds_to(row_means(printed[*; x, y]), printed[*; mean], 2)",
    {"experiment": table({"A": {"x": 2.0, "y": 2.01, "mean": 2.0}})},
    "^printed: 2.005, stated 2$",
)
says(
    False,
    "rounds_to(row_means(printed[*; x, y]), printed[*; mean], 2)",
    {"experiment": table({"A": {"x": 2.0, "y": 2.04, "mean": 2.0}, "B": {"x": 1.0, "y": 3.0, "mean": 2.0}})},
    "^printed: the same to 2 digits in 1 of 2 (not: A: 2.020 for 2)$",
)
says(
    None,
    "rounds_to(row_means(printed[*; x, y]), printed[*; mean], 2)",
    {"experiment": table({"A": {"x": 2.0, "mean": 2.0}})},
    "not printed: A, y",
)

says(True, "1 <= computed[A, B; exact] <= 3", exact, "^exact: 1.5 to 2.5: within 1 to 3 in 2 of 2$")
says(False, "2 <= computed[A, B; exact] <= 3", exact, "^exact: 1.5 to 2.5: within 2 to 3 in 1 of 2 (not: A: 1.5)$")
says(False, "1 <= computed[A, B; exact] <= 2", exact, "^exact: 1.5 to 2.5: within 1 to 2 in 1 of 2 (not: B: 2.5)$")
says(None, "1 <= computed[A; x] <= 2", TWO, "not computed: A, x")

says(True, "rounds_to(computed[A; exact], printed[A; exact], 1)", reduction(15.9), "^exact: 15.94, stated 15.9$")
says(False, "rounds_to(computed[A; exact], printed[A; exact], 1)", reduction(16.0), "^exact: 15.94, stated 16$")
says(None, "rounds_to(computed[A; exact], printed[A; exact], 1)", reduction(None), "not printed: A, exact")

# What reads runs is a comparison over seeds.
low, high = [3.0, 3.02, 2.99], [3.3, 3.31, 3.3]
says(True, "loss[a] < [b]", measured(a=low, b=high), "^a − b = -0.3000", n=3)
says(False, "loss[a] < [b]", measured(a=high, b=low))
says("not run", "loss[a] < [b]", {}, "not run: a, b")
