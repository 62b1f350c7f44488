"""Expressions on several printed columns, and on two tables."""

from tests.unit.verdicts.building import says, table

CELLS = {
    "A": {"x": 12.0, "y": 30.0, "loss": 2.1},
    "B": {"x": 10.0, "y": 31.0, "loss": 2.2},
    "C": {"x": 11.0, "y": 29.0, "loss": 2.2},
    "D": {},
}
ON = {"experiment": table(CELLS)}
PERCENT = {"A": {"p": 33.33}, "B": {"p": 66.67}, "C": {"p": 66.66}, "D": {}, "E": {"p": 50.0}}
percent = {"experiment": table(PERCENT)}
flat = {"experiment": table({"A": {"x": 1.0, "y": 1.0}, "B": {"x": 1.0, "y": 2.0}, "C": {"x": 1.0, "y": 3.0}})}
same = {"experiment": table({"A": {"x": 1.0, "z": 1.0}, "B": {"x": 2.0, "z": 3.0}})}
SPREAD = {"A": {"x": 1.0, "y": 3.0, "u": 5.0, "v": 6.0}, "B": {"x": 1.0, "y": 5.0, "u": 5.0, "v": 7.0}, "D": {}}
spreads = {"experiment": table(SPREAD)}
wide = {"experiment": table({**SPREAD, "B": {**SPREAD["B"], "v": 15.0}})}


def beside(there):
    """The cells above, with another experiment."""
    here = table(CELLS)
    here._others = lambda _: table(there)
    return {"experiment": here}


others = beside({"A": {"x": 11.5, "y": 30.0}, "B": {"x": 10.0, "y": 32.0}, "C": {}})


says(True, "printed[A, C; x] > [B]", ON, "^printed: +1 to +2: above in 2 of 2$")
says(False, "printed[A, C; x, y] > [B]", ON, "^printed: -2 to +2: above in 2 of 4 (not: A, y: 30 < 31; C, y: 29 < 31)$")
says(
    True,
    "count(printed[A, C; x, y] > [B]) >= 2",
    ON,
    "^printed: -2 to +2: above in 2 of 4, required at least 2 (not: A, y: 30 < 31; C, y: 29 < 31)$",
)
says(
    False,
    "count(printed[A, C; x, y] > [B]) >= 3",
    ON,
    "^printed: -2 to +2: above in 2 of 4, required at least 3 (not: A, y: 30 < 31; C, y: 29 < 31)$",
)
says(
    True,
    "count(printed[A, C; x, y] > [B] - 1.5) >= 3",
    ON,
    "^printed: -0.5 to +3.5: above in 3 of 4, required at least 3 (not: C, y: 29 < 29.5)$",
)
says(False, "printed[A, C; x, y] > [B] - 1.5", ON, "^printed: -0.5 to +3.5: above in 3 of 4 (not: C, y: 29 < 29.5)$")
says(False, "printed[A, C; x, y] > [B] - 2", ON, "^printed: +0 to +4: above in 3 of 4 (not: C, y: 29 = 29)$")
says(True, "printed[A; loss] < [B]", ON, "^printed: 2.1 < 2.2$")
says(False, "printed[A; loss] > [B]", ON, "^printed: 2.1 < 2.2$")
says(False, "printed[C; loss] < [B]", ON, "^printed: 2.2 = 2.2$")
says(None, "printed[A, C; x] > [B, D]", ON, "not printed: D, x")
says(False, "printed[A; y] > [B, C]", ON, "^printed: -1 to +1: above in 1 of 2 (not: B: 30 < 31)$")
says(
    True,
    "count(printed[A; y] > [B, C]) >= 1",
    ON,
    "^printed: -1 to +1: above in 1 of 2, required at least 1 (not: B: 30 < 31)$",
)

says(True, "abs(printed[A, C; x, y] - [B]) <= 2", ON, "^printed: 1 to 2: at most 2 in 4 of 4$")
says(
    False,
    "-1.5 <= printed[A, C; x, y] - [B] <= 2",
    ON,
    "^printed: -2 to 2: within -1.5 to 2 in 3 of 4 (not: C, y: -2)$",
)
says(
    False, "-2 <= printed[A, C; x, y] - [B] <= 1.5", ON, "^printed: -2 to 2: within -2 to 1.5 in 3 of 4 (not: A, x: 2)$"
)
says(None, "0 <= printed[A, C; x, y] - [D, B] <= 1", ON, "not printed: D, x; D, y")
says(False, "0 <= printed[A; y] - [B, C] <= 2", ON, "^printed: -1 to 1: within 0 to 2 in 1 of 2 (not: B: -1)$")

says(True, "abs(printed[A, C; y] - [B]) > 0.5", ON, "^printed: 1 to 2: above 0.5 in 2 of 2$")
says(False, "abs(printed[A, C; y] - [B]) > 1", ON, "^printed: 1 to 2: above 1 in 1 of 2 (not: A: 1)$")
says(True, "abs(printed[A; x] - [B]) > 1.5", ON, "^printed: abs(12 − 10) = 2, required above 1.5$")
says(False, "abs(printed[A, C; y] - [B]) > 2.5", ON, "^printed: 1 to 2: above 2.5 in 0 of 2 (not: A: 1; C: 2)$")
says(None, "abs(printed[A, C; y] - [D, B]) > 1", ON, "not printed: D, y")

says(
    False,
    "lowest(printed[A, B; x, y] - column_max([A, B])) < 0 and lowest([A, C] - column_max([A, C])) < 0",
    ON,
    "^printed: -2 to -1: below 0 in 2 of 2; -1 to 0: below 0 in 1 of 2 (not: A: 0)$",
)
says(True, "lowest(printed[A, B; x, y] - column_max([A, B])) < 0", ON, "^printed: -2 to -1: below 0 in 2 of 2$")
says(
    False,
    "lowest(printed[B, C; loss] - column_max([B, C])) < 0",
    ON,
    "^printed: 0: below 0 in 0 of 2 (not: B: 0; C: 0)$",
)
says(None, "lowest(printed[A, D; x] - column_max([A, D])) < 0", ON, "not printed: D, x")

says(
    True,
    "rounds_to(100 * round(printed[A, B; p] / 100 * 3) / 3, [A, B; p], 2)",
    percent,
    "^printed: the same to 2 digits in 2 of 2$",
)
says(
    False,
    "rounds_to(100 * round(printed[A, C; p] / 100 * 3) / 3, [A, C; p], 2)",
    percent,
    "^printed: the same to 2 digits in 1 of 2 (not: C: 66.667 for 66.66)$",
)
says(
    True,
    "rounds_to(100 * round(printed[C; p] / 100 * 3) / 3, [C; p], 1)",
    percent,
    "^printed: 100 × round(66.66 / 100 × 3) / 3 = 66.67, stated 66.66$",
)
says(
    False,
    "rounds_to(100 * round(printed[E; p] / 100 * 3) / 3, [E; p], 2)",
    percent,
    "^printed: 100 × round(50 / 100 × 3) / 3 = 66.667, stated 50$",
)
says(None, "rounds_to(100 * round(printed[D; p] / 100 * 3) / 3, [D; p], 2)", percent, "not printed: D, p")

says(
    True,
    "count(printed[A; x, y] > column_max([B, C])) == 1",
    ON,
    "^printed: -1 to +1: above in 1 of 2, required exactly 1 (not: y: 30 < 31)$",
)
says(False, "printed[A; x, y] > [B, C]", ON, "^printed: -1 to +2: above in 3 of 4 (not: B, y: 30 < 31)$")
says(
    False,
    "count(printed[A; x, y] > column_max([B, C])) == 0",
    ON,
    "^printed: -1 to +1: above in 1 of 2, required exactly 0 (not: y: 30 < 31)$",
)
says(False, "printed[C; loss] > [B]", ON, "^printed: 2.2 = 2.2$")
says(None, "count(printed[A; x, y] > [D]) == 1", ON, "not printed: D, x; D, y")

says(True, "correlation(printed[A, B, C; x], [A, B, C; y]) < 0", ON, "^printed: correlation -0.5, required below 0$")
says(False, "correlation(printed[A, B, C; x], [A, B, C; y]) > 0", ON, "^printed: correlation -0.5, required above 0$")
says(
    False,
    "correlation(printed[A, B, C; x], [A, B, C; y]) < -0.8",
    ON,
    "^printed: correlation -0.5, required below -0.8$",
)
says(
    True,
    "correlation(printed[A, B, C; x], [A, B, C; x]) > 0.999999999",
    ON,
    "^printed: correlation 1, required above 1$",
)
says(
    None,
    "correlation(printed[A, B; x], [A, B; y]) > -1",
    ON,
    "a correlation needs three pairs, and lists whose entries differ",
)
says(
    None,
    "correlation(printed[*; x], [*; y]) > -1",
    flat,
    "a correlation needs three pairs, and lists whose entries differ",
)
says(None, "correlation(printed[A, B, D; x], [A, B, D; y]) > -1", ON, "not printed: D, x")

says(True, "printed[A, B; x] == [A, B; x; toy-table1]", ON, "^printed: equal in 2 of 2$")
says(False, "printed[A, B; x] == [A, B; y; toy-table1]", ON, "^printed: equal in 0 of 2 (not: A: 12 < 30; B: 10 < 31)$")
says(False, "printed[A, B; x] == [A, B; z; toy-table1]", same, "^printed: equal in 1 of 2 (not: B: 2 < 3)$")
says(None, "printed[D; x] == [D; x; toy-table1]", ON, "not printed: D, x")

says(True, "abs(printed[A, B; x, y] - [A, B; x, y; toy-table2]) <= 1", others, "^printed: 0 to 1: at most 1 in 4 of 4$")
says(
    False,
    "abs(printed[A, B; x, y] - [A, B; x, y; toy-table2]) <= 0.5",
    others,
    "^printed: 0 to 1: at most 0.5 in 3 of 4 (not: B, y: 1)$",
)
says(
    False,
    "abs(printed[A, B; x, y] - [A, B; x, y; toy-table2]) <= 0.4",
    others,
    "^printed: 0 to 1: at most 0.4 in 2 of 4 (not: A, x: 0.5; B, y: 1)$",
)
says(None, "abs(printed[C; x, y] - [C; x, y; toy-table2]) <= 1", others, "not printed: C, x; C, y")

says(True, "same_order(printed[A, C; x], [C, B])", ON, "^printed: 12, 11 against 11, 10: the same order$")
says(
    False,
    "same_order(printed[A, C; x, y], [C, B])",
    ON,
    "^printed: the same order in 1 of 2 (not: y: 30, 29 against 29, 31)$",
)
says(False, "same_order(printed[C, A; x], [C, B])", ON, "^printed: 11, 12 against 11, 10: another order$")
says(True, "same_order(printed[A, C; loss], [A, B])", ON, "^printed: 2.1, 2.2 against 2.1, 2.2: the same order$")
says(True, "same_order(printed[A, C; loss], [B, C])", ON, "^printed: 2.1, 2.2 against 2.2, 2.2: the same order$")
says(False, "same_order(printed[A, C; loss], [C, A])", ON, "^printed: 2.1, 2.2 against 2.2, 2.1: another order$")
says(False, "same_order(printed[A, C, B; x], [A, B, C])", ON, "^printed: 12, 11, 10 against 12, 10, 11: another order$")
says(None, "same_order(printed[A, C; x], [D, A])", ON, "not printed: D, x")

says(
    True,
    "row_variances(printed[A, B; x, y]) > row_variances([A, B; u, v; toy-table1])",
    spreads,
    "^printed: +0.75 to +3: above in 2 of 2$",
)
says(
    False,
    "row_variances(printed[A, B; x, y]) > 4 * row_variances([A, B; u, v; toy-table1])",
    spreads,
    "^printed: +0: above in 0 of 2 (not: A: 1 = 1; B: 4 = 4)$",
)
says(
    False,
    "row_variances(printed[A, B; u, v]) > row_variances([A, B; x, y; toy-table1])",
    spreads,
    "^printed: -3 to -0.75: above in 0 of 2 (not: A: 0.25 < 1; B: 1 < 4)$",
)
says(
    False,
    "row_variances(printed[A, B; x, y]) > row_variances([A, B; u, v; toy-table1])",
    wide,
    "^printed: -21 to +0.75: above in 1 of 2 (not: B: 4 < 25)$",
)
says(None, "row_variances(printed[D; x, y]) > row_variances([D; u, v; toy-table1])", spreads, "not printed: D, x; D, y")

says(True, "printed[A; x] - [B] > [A; y; toy-table2] - [B]", others, "^printed: 12 − 10 = 2 > 30 − 32 = -2$")
says(False, "printed[A; y] - [B] > [A; x; toy-table2] - [B]", others, "^printed: 30 − 31 = -1 < 11.5 − 10 = 1.5$")
says(False, "printed[A; x] - [B] > [A; x; toy-table1] - [B]", ON, "^printed: 12 − 10 = 2 = 12 − 10 = 2$")
says(True, "printed[A, C; x] - [B] > [A, C; loss; toy-table1] - [B]", ON, "^printed: +1 to +2.1: above in 2 of 2$")
says(
    False,
    "printed[A, C; y] - [B] > [A, C; loss; toy-table1] - [B]",
    ON,
    "^printed: -2 to -0.9: above in 0 of 2 (not: A: -1 < -0.1; C: -2 < 0)$",
)
says(None, "printed[D; x] - [B] > [D; y; toy-table2] - [B]", ON, "not printed: D, x")

# Rows that come twice are named with their counterparts.
says(False, "printed[A, A; y] > [B, C]", ON, "^printed: -1 to +1: above in 1 of 2 (not: A against B: 30 < 31)$")
says(
    False,
    "printed[C, C; y, x] > [B, A]",
    ON,
    "(not: C against B, y: 29 < 31; C against A, y: 29 < 30; C against A, x: ",
)

# Of many exceptions five are named.
many = "^printed: 10 to 31: below 0 in 0 of 6 (not: A, x: 12; A, y: 30; B, x: 10; B, y: 31; C, x: 11; 1 more)$"
says(False, "printed[A, B, C; x, y] < 0", ON, many)
says(False, "printed[A, B, C; x, y] < 11", ON, "in 1 of 6 (not: A, x: 12; A, y: 30; B, y: 31; C, x: 11; C, y: 29)$")
says(False, "printed[A, B; x, y] <= 11", ON, "at most 11 in 1 of 4 (not: A, x: 12; A, y: 30; B, y: 31)$")
says(False, "printed[A, B; x, y] > 11", ON, "above 11 in 3 of 4 (not: B, x: 10)$")

# A name with a comma stands in quotes; a bracket with a name of its own reads this table again.
quoted = {"experiment": table({"D, 1": {"x": 9.0}, "B": {"x": 10.0}})}
says(False, 'printed["D, 1", B; x] >= 10', quoted, "^printed: 9 to 10: at least 10 in 1 of 2 (not: D, 1: 9)$")
says(True, "printed[A; x; toy-table2] > printed[B; x]", others, "^printed: 11.5 > 10$")

# All rows, functions of lists, and functions of each row or column.
three = {"experiment": table({name: CELLS[name] for name in "ABC"})}
says(True, "printed[*; x] >= 10", three, "^printed: 10 to 12: at least 10 in 3 of 3$")
says(True, "printed[*; x] != 9", three, "^printed: 10 to 12: other than 9 in 3 of 3$")
says(False, "printed[*; x] == 10", three, "^printed: 10 to 12: exactly 10 in 1 of 3 (not: A: 12; C: 11)$")
says(
    True,
    "sum(printed[*; x]) == 33 and len([*; x, y]) == 6",
    three,
    "sum 33, required exactly 33; number of entries 6, r",
)
says(None, "printed[*; x] > 0", ON, "^not printed: D, x$")
says(True, "highest(printed[A, B; x, y]) == [A, B; y]", ON, "^printed: equal in 2 of 2$")
says(False, "column_means(printed[A, B; x, y]) > [C]", ON, "^printed: +0 to +1.5: above in 1 of 2 (not: x: 11 = 11)$")
says(True, "rises(printed[B; loss, x, y])", ON, "^printed: 2.2, 10, 31: rises in 2 of 2$")
says(False, "printed[A; x] > [B] > [C]", ON, "^printed: 12 > 10 < 11$")
says(False, "printed[A; x, y] > [B] > [C]", ON, "above and above in 0 of 2 (not: x: 12 > 10 < 11; y: 30 < 31 > 29)$")
says(
    True,
    "count(printed[A, B, C; x] > 10 and [A, B, C; y] > 29) == 1",
    ON,
    "^printed: above 10 and above 29 in 1 of 3, required exactly 1$",
)
