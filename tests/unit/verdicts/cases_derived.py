"""Expressions on stated and computed numbers, and on what papers derive."""

from tests.unit.verdicts.building import says

# ---- stated ----

says(True, "abs(2 * 3 * 5 / 30 - 1) <= 0.01", None, "^stated: abs(2 × 3 × 5 / 30 − 1) = 0, required at most 0.01$")
says(True, "abs(2 * 3 * 5 / 30.2 - 1) <= 0.01")
says(False, "abs(2 * 3 * 5 / 31 - 1) <= 0.01", None, "= 0.0322581, required at most 0.01$")
says(False, "abs(2 * 3 * 5 / 29 - 1) <= 0.01")
says(True, "abs(2 * 3 * 5 / 31 - 1) <= 0.05")
says(True, "3 * 4 / (2 * 4) == 1.5", None, "^stated: 3 × 4 / (2 × 4) = 1.5, required exactly 1.5$")
says(False, "1.6 <= 3 * 4 / (2 * 4) <= 2", None, "^stated: 3 × 4 / (2 × 4) = 1.5, required 1.6 to 2$")
says(False, "1 <= 3 * 4 / (2 * 4) <= 1.4", None, "required 1 to 1.4$")
says(True, "2 >= 3 * 4 / (2 * 4) >= 1", None, "required 1 to 2$")
says(True, "70 + 15 + 9 + 6 == 100", None, "^stated: 70 + 15 + 9 + 6 = 100, required exactly 100$")
says(False, "2 + 2 + 1 == 4", None, "^stated: 2 + 2 + 1 = 5, required exactly 4$")
says(True, "0.9 > 0.8 and 3 > 2 > 1", None, "^stated: 0.9 > 0.8; 3 > 2 > 1$")
says(False, "0.9 < 0.8 and 3 < 2 < 1", None, "^stated: 0.9 > 0.8; 3 > 2 > 1$")
says(False, "1 < 2 and 2 < 2", None, "^stated: 1 < 2; 2 = 2$")
says(True, "1 < 2 < 5", None, "^stated: 1 < 2 < 5$")
says(True, "8 == 4 or 8 != 3", None, "^stated: 8 > 4 or 8 > 3$")
says(False, "8 == 4 or 8 < 3 and 1 < 2", None, "^stated: 8 > 4 or 8 > 3 and 1 < 2$")
says(True, "rounds_to(20e6 * 3, 6e7, 0)", None, "^stated: 20,000,000 × 3 = 60,000,000.0, stated 6e+07$")
# A difference of binary fractions is none.
says(True, "0.1 + 0.2 == 0.3", None, "^stated: 0.1 + 0.2 = 0.3, required exactly 0.3$")
says(False, "0.1 + 0.2 > 0.3")
says(True, "-0.5 < -0.25", None, "^stated: -0.5 < -0.25$")

# ---- computed ----

THREE, TWO = "given_number(number=3.0)", "given_number(number=2.0)"
says(True, f"{THREE} == 3", None, "^exact: given number 3, required exactly 3$")
says(False, f"3.1 <= {THREE} <= 4", None, "^exact: given number 3, required 3.1 to 4$")
says(False, f"2 <= {THREE} <= 2.9")
says(True, f"{THREE} / 0.5 == 6", None, "^exact: 3 / 0.5 = 6, required exactly 6$")
says(True, f"{THREE} / {TWO} == 1.5", None, "^exact: 3 / 2 = 1.5, required exactly 1.5$")
says(False, f"1.6 <= {THREE} / {TWO} <= 2")
says(False, f"1 <= {THREE} / {TWO} <= 1.4")
says(True, f"{THREE} > {TWO}", None, "^exact: given number 3 > given number 2$")
says(None, f"{THREE} / ({TWO} - 2) > 1", None, "^not computed: it divides by 0, or is too large$")
says(True, "rises(given_number(number=[1, 2, 4]))", None, "^exact: 1, 2, 4: rises in 2 of 2$")
says(False, "falls(given_number(number=[1, 2, 4]))", None, "^exact: 1, 2, 4: falls in 0 of 2$")
says(False, "rises(given_number(number=[1, 2, 2]))", None, "^exact: 1, 2, 2: rises in 1 of 2$")
says(False, "rises(given_number(number=[2, 1]))", None, "^exact: 2, 1: rises in 0 of 1$")
says(False, "given_number(number=[1, 2, 4]) < 3", None, "^exact: 1 to 4: below 3 in 2 of 3 (not: number 4: 4)$")
says(True, "max(given_number(number=[1, 2, 4])) <= 2 ** 2", None, "^exact: highest 4 = 2 ** 2 = 4$")

# ---- SpiralFormer ----

LATER, OWN = "positions_with_later_tokens", "positions_with_own_chunk"
for shift, later, own in ((0, 3, 4), (2, 1, 2), (3, 0, 1), (4, 0, 0), (5, 0, 0)):
    for offset in ("", ', offset="half"'):
        arguments = f"(chunk=4, shift={shift}{offset})"
        says(
            True,
            f"{LATER}{arguments} == {later}",
            None,
            f"^exact: positions with later tokens {later}, required exactly",
        )
        says(
            True, f"{OWN}{arguments} == {own}", None, f"^exact: positions with own chunk {own}, required exactly {own}$"
        )
says(False, f"{LATER}(chunk=4, shift=2) == 0")

for offset, where in (("zero", 3), ("half", 1)):
    for position in range(8):
        says(True, f'bodies_at(position={position}, chunks=[4], offset="{offset}") == {int(position % 4 == where)}')
EIGHT = "position=[0, 1, 2, 3, 4, 5, 6, 7], chunks=[8, 4, 2, 1]"
says(
    False, f"bodies_at({EIGHT}) == 9", None, "^exact: 1 to 4: exactly 9 in 0 of 8 (not: position 0: 1; position 1: 2; "
)
says(
    False, f'bodies_at({EIGHT}, offset="half") == 2', None, "^exact: 1 to 2: exactly 2 in 7 of 8 (not: position 7: 1)$"
)
says(
    True,
    f"sum(bodies_at({EIGHT})) == 15 and max(bodies_at({EIGHT})) == 4",
    None,
    "^exact: sum 15, required exactly 15; h",
)

# ---- SGT ----

LOWER = "matrix=[[1.0, 0.0], [0.5, 0.5]]"
says(False, f"largest_above_diagonal({LOWER}) == 0", None, "^exact: largest above diagonal 1, required exactly 0$")
says(True, "largest_above_diagonal(matrix=[[0.0, 0.0], [2.0, 0.0]]) == 0")
says(True, f"eigenvalues_beside_diagonal({LOWER}) == 0")
says(False, "eigenvalues_beside_diagonal(matrix=[[0.5, 0.5], [0.5, 0.5]]) == 0", None, "0.5, required exactly 0$")
SHORT = "matrix=[[1.0, 0.0], [0.5, 0.2]]"
says(True, f"row_sum(row=[0, 1], mixed=0.5, {LOWER}) == 1", None, "^exact: 1: exactly 1 in 2 of 2$")
says(False, f"row_sum(row=[0, 1], mixed=1.0, {SHORT}) == 1", None, "exactly 1 in 1 of 2 (not: row 1: 0.7)$")
says(False, f"row_sum(row=[0, 1], mixed=0.5, {SHORT}) == 1", None, "exactly 1 in 1 of 2 (not: row 1: 0.85)$")
for mixed, passes, matrix, holds, numbers in (
    (1.0, 1, "matrix=[[1.0, 0.0], [0.0, 1.0]]", True, "norm of power 1.41421 = norm bound 1.41421"),
    (1.0, 1, LOWER, False, "norm of power 1.22474 > norm bound 1.11803"),
    (0.5, 1, LOWER, False, "norm of power 1.27475 > norm bound 1.25"),
    (0.5, 2, LOWER, True, "norm of power 1.22793 < norm bound 1.5625"),
):
    arguments = f"(mixed={mixed}, passes={passes}, {matrix})"
    says(holds, f"norm_of_power{arguments} <= norm_bound{arguments}", None, numbers)
says(
    True,
    "largest_eigenvalue(mixed=1.0, matrix=[[0.5, 0.0], [0.5, 0.5]]) < 1",
    None,
    "eigenvalue 0.5, required below 1$",
)
says(False, f"largest_eigenvalue(mixed=0.5, {LOWER}) < 1", None, "^exact: largest eigenvalue 1, required below 1$")
says(False, "largest_eigenvalue(mixed=1.0, matrix=[[0.5, 0.0], [0.5, -1.0]]) < 1")
# −0.1 ln 0.1 − 0.9 ln 0.9 = 0.3251, exp(−0.3251 / 2) = 0.85.
says(False, "0.9 <= last_weight_bound(row=[0.1, 0.9])", None, "^exact: 0.9 > last weight bound 0.849981$")
says(True, "0.5 <= last_weight_bound(row=[0.25, 0.25, 0.5])", None, "^exact: 0.5 < last weight bound 0.707107$")
says(True, "0.5 <= last_weight_bound(row=[0.25, 0.25, 0.0, 0.5])", None, "bound 0.771105$")
says(True, "0.05 <= last_weight_bound(row=[0.0, 0.95, 0.05])", None, "bound 0.93597$")
says(True, "last_weight_bound(row=[1, 0, 0]) == 1")

# ---- growth in depth ----


def first(method, of):
    return f'first_copied(method="{method}", {of})'


odd, even, mixed = "blocks=[1, 3, 5], size=[2, 3, 4]", "blocks=[2, 4], size=[2, 4]", "blocks=[1, 2], size=4"
says(True, f"{first('midas', odd)} == {first('lidas', odd)}", None, "^exact: equal in 9 of 9$")
says(
    False,
    f"{first('midas', mixed)} == {first('lidas', mixed)}",
    None,
    "^exact: equal in 1 of 2 (not: blocks 2: 0 < 2)$",
)
says(True, f"{first('midas', even)} != {first('lidas', even)}", None, "^exact: different in 4 of 4$")
# With blocks of a single layer the two do not differ.
single = "blocks=[2, 4], size=[1]"
says(
    False,
    f"{first('midas', single)} != {first('lidas', single)}",
    None,
    "^exact: different in 0 of 2 (not: blocks 2: 0",
)
pair = "blocks=[2, 4], size=[1, 4]"
says(
    False, f"{first('midas', pair)} == 0", None, "exactly 0 in 2 of 4 (not: blocks 4, size 1: 1; blocks 4, size 4: 4)$"
)
for method, copied, copy in (("lidas", 6, 10), ("midas", 4, 8), ("top", 12, 16)):
    four = f'(method="{method}", blocks=4, size=4)'
    says(
        True,
        f"first_copied{four} == {copied} and first_copy{four} == {copy}",
        None,
        f"^exact: first copied {copied}, r",
    )
says(False, 'first_copy(method="midas", blocks=4, size=4) == 10', None, "^exact: first copy 8, required exactly 10$")
