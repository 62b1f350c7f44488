"""Expressions on changes, gaps and shares in printed figures."""

from tests.unit.verdicts.building import says, table

ROWS = {
    "A": {"x": 12.0, "y": 30.0, "dx": 20.0, "dy": 50.0},
    "B": {"x": 10.0, "y": 20.0, "dx": 0.0, "dy": 0.0},
    "C": {"x": 7.0, "y": 19.0, "dx": -30.0, "dy": -5.0},
    "D": {},
}
ON = {"experiment": table(ROWS)}
full = {name: cells for name, cells in ROWS.items() if name != "D"}
wrong = full | {"C": ROWS["C"] | {"dy": -5.1}}
high = full | {"C": ROWS["C"] | {"dy": -4.9}}
COSTS = {"V": {"p": 20.0}, "A": {"p": 19.0, "c": 0.5}, "B": {"p": 18.0, "c": 4.0}, "C": {"p": 19.5, "c": 0.2}}
paid = {"experiment": table(COSTS)}
NUMBERS = {"A": {"x": 1.0, "y": 2.0, "z": 3.0}, "B": {"x": 1.0, "y": 5.0, "w": 3.0}}


def gaps(*values):
    """An experiment whose rows lie above their counterparts by these values."""
    rows = {f"r{i}": {"x": 10.0 + value} for i, value in enumerate(values)}
    return {"experiment": table(rows | {f"o{i}": {"x": 10.0} for i in range(len(values))})}


says(True, "7 <= printed[A, C; x] <= 12", ON, "^printed: 7 to 12: within 7 to 12 in 2 of 2$")
says(False, "8 <= printed[A, C; x] <= 12", ON, "^printed: 7 to 12: within 8 to 12 in 1 of 2 (not: C: 7)$")
says(False, "7 <= printed[A, C; x] <= 11", ON, "^printed: 7 to 12: within 7 to 11 in 1 of 2 (not: A: 12)$")
says(None, "0 <= printed[D; x] <= 1", ON, "not printed: D, x")

says(True, "printed[A; x] / [B] == 1.2", ON, "^printed: 12 / 10 = 1.2, required exactly 1.2$")
says(False, "1.3 <= printed[A; x] / [B] <= 2", ON, "^printed: 12 / 10 = 1.2, required 1.3 to 2$")
says(False, "1 <= printed[A; x] / [B] <= 1.1", ON, "^printed: 12 / 10 = 1.2, required 1 to 1.1$")
says(None, "1 <= printed[A; x] / [D] <= 2", ON, "not printed: D, x")

says(
    True,
    "rises(printed[r0, r1, r2, r3; x] - [o0, o1, o2, o3])",
    gaps(-1, 0, 1, 2),
    "^printed: -1, 0, 1, 2: rises in 3 of 3$",
)
says(
    False,
    "rises(printed[r0, r1, r2, r3; x] - [o0, o1, o2, o3])",
    gaps(1, 0.5, 1, 2),
    "^printed: 1, 0.5, 1, 2: rises in 2 of 3$",
)
says(
    False,
    "rises(printed[r0, r1, r2, r3; x] - [o0, o1, o2, o3])",
    gaps(0, 1, 1, 2),
    "^printed: 0, 1, 1, 2: rises in 2 of 3$",
)
says(
    True,
    "count(rises(printed[r0, r1, r2, r3; x] - [o0, o1, o2, o3])) >= 2 and printed[r3; x] - [o3] > [r0] - [o0]",
    gaps(1, 0.5, 1, 2),
    "^printed: 1, 0.5, 1, 2: rises in 2 of 3, required at least 2; 12 − 10 = 2 > 11 − 10 = 1$",
)
says(
    False,
    "count(rises(printed[r0, r1, r2, r3; x] - [o0, o1, o2, o3])) >= 0 and printed[r3; x] - [o3] > [r0] - [o0]",
    gaps(3, 2, 1, 0),
    "^printed: 3, 2, 1, 0: rises in 0 of 3, required at least 0; 10 − 10 = 0 < 13 − 10 = 3$",
)
says(
    False,
    "count(rises(printed[r0, r1, r2, r3; x] - [o0, o1, o2, o3])) >= 2 and printed[r3; x] - [o3] > [r0] - [o0]",
    gaps(1, 2, 3, 1),
    "^printed: 1, 2, 3, 1: rises in 2 of 3, required at least 2; 11 − 10 = 1 = 11 − 10 = 1$",
)
says(None, "printed[D; x] - [B] > [A] - [B]", ON, "not printed: D, x")

says(False, "printed[A; x] - [B] > 0.5 * ([A] - [C])", ON, "^printed: 12 − 10 = 2 < 0.5 × (12 − 7) = 2.5$")
says(True, "printed[A; x] - [B] > 0.3 * ([A] - [C])", ON, "^printed: 12 − 10 = 2 > 0.3 × (12 − 7) = 1.5$")
says(False, "printed[A; x] - [B] > 0.4 * ([A] - [C])", ON, "^printed: 12 − 10 = 2 = 0.4 × (12 − 7) = 2$")
says(True, "printed[A; y] - [B] > 0.5 * ([A] - [C])", ON, "^printed: 30 − 20 = 10 > 0.5 × (30 − 19) = 5.5$")
says(None, "printed[A; x] - [D] > 0.5 * ([A] - [C])", ON, "not printed: D, x")

says(
    True,
    "rounds_to(100 * (printed[A, C; x, y] / [B] - 1), [A, C; dx, dy], 1)",
    {"experiment": table(full)},
    "^printed: the same to 1 digit in 4 of 4$",
)
says(
    False,
    "rounds_to(100 * (printed[A, C; x, y] / [B] - 1), [A, C; dx, dy], 1)",
    {"experiment": table(wrong)},
    "^printed: the same to 1 digit in 3 of 4 (not: C, dy: -5.00 for -5.1)$",
)
says(
    False,
    "rounds_to(100 * (printed[A, C; x, y] / [B] - 1), [A, C; dx, dy], 1)",
    {"experiment": table(high)},
    "^printed: the same to 1 digit in 3 of 4 (not: C, dy: -5.00 for -4.9)$",
)
says(None, "rounds_to(100 * (printed[A, C, D; x, y] / [B] - 1), [A, C, D; dx, dy], 1)", ON, "not printed: D, x; D, y")

says(True, "printed[A; y] / [B] > printed[A; x] / [B]", ON, "^printed: 30 / 20 = 1.5 > 12 / 10 = 1.2$")
says(True, "printed[A; y] - [B] > printed[A; x] - [B]", ON, "^printed: 30 − 20 = 10 > 12 − 10 = 2$")
says(False, "printed[A; x] / [B] > printed[A; y] / [B]", ON, "^printed: 12 / 10 = 1.2 < 30 / 20 = 1.5$")
says(False, "min(printed[A; x, y] / [B]) > printed[A; y] / [B]", ON, "^printed: lowest 1.2 < 30 / 20 = 1.5$")
says(False, "min(printed[A; x, y] / [B]) > printed[A; x] / [B]", ON, "^printed: lowest 1.2 = 12 / 10 = 1.2$")
says(False, "printed[A; y] / [B] > max(printed[A; x, y] / [B])", ON, "^printed: 30 / 20 = 1.5 = highest 1.5$")
says(True, "printed[C; x] / [B] < printed[C; y] / [B]", ON, "^printed: 7 / 10 = 0.7 < 19 / 20 = 0.95$")
says(False, "printed[C; y] / [B] < printed[C; x] / [B]", ON, "^printed: 19 / 20 = 0.95 > 7 / 10 = 0.7$")
says(None, "printed[C; x] / [D] < printed[C; y] / [D]", ON, "not printed: D, x")

says(
    True,
    "(printed[V; p] - [A, C]) / [A, C; c] > ([V; p] - [B]) / [B; c]",
    paid,
    "^printed: +1.5 to +2: above in 2 of 2$",
)
says(
    False,
    "(printed[V; p] - [A, B]) / [A, B; c] > ([V; p] - [C]) / [C; c]",
    paid,
    "^printed: -2 to -0.5: above in 0 of 2 (not: A: 2 < 2.5; B: 0.5 < 2.5)$",
)
says(
    False,
    "(printed[V; p] - [A]) / [A; c] > ([V; p] - [B, C]) / [B, C; c]",
    paid,
    "^printed: -0.5 to +1.5: above in 1 of 2 (not: C: 2 < 2.5)$",
)
says(
    False,
    "(printed[V; p] - [B, C]) / [B, C; c] > ([V; p] - [A]) / [A; c]",
    paid,
    "^printed: -1.5 to +0.5: above in 1 of 2 (not: B: 0.5 < 2)$",
)
says(None, "(printed[V; p] - [A]) / [A; c] > ([V; p] - [V]) / [V; c]", paid, "not printed: V, c")

says(True, "printed[A; x] == [B] and [A; y] != [B]", {"experiment": table(NUMBERS)}, "^printed: 1 = 1; 2 < 5$")
says(False, "printed[A; y] == [B] and [A; x] != [B]", {"experiment": table(NUMBERS)}, "^printed: 2 < 5; 1 = 1$")
