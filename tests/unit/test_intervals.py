"""Intervals of printed numbers: what is computed of any numbers that are printed so lies in them."""

import ast

import numpy as np
import pytest

from hybridlab.lab.papers.claims.expression import expression
from hybridlab.lab.papers.claims.numbers import Cells, value_of
from hybridlab.lab.papers.formula import NoValue
from hybridlab.lab.papers.intervals import Interval, cut, interval_of, rounded, rounded_twice

NUMBERS = np.array([[36.41, 2.5, 7.0], [40.0, 3.5, 9.0], [12.25, 1.5, 4.0], [55.5, 8.5, 3.0]])
CELLS = Cells(NUMBERS, ("A", "B", "C", "D"), ("x", "y", "z"), decimals=np.array([2.0, 1.0, np.nan]))


def test_what_a_printed_number_stands_for():
    found = rounded(np.array([[36.41, 8.0]]), np.array([2, np.nan]))
    assert found.low.tolist() == [[pytest.approx(36.405), 8.0]] and found.high.tolist() == [
        [pytest.approx(36.415), 8.0]
    ]
    assert [float(side) for side in (cut(1.23, 2).low, cut(1.23, 2).high)] == pytest.approx([1.23, 1.24])
    assert [float(side) for side in (cut(-1.23, 2).low, cut(-1.23, 2).high)] == pytest.approx([-1.24, -1.23])
    assert float(rounded_twice(3.72, 2).low) == pytest.approx(3.7145), "3.7148 → 3.715 → 3.72"


@pytest.mark.parametrize(
    "text",
    [
        "printed[A; x] + [B] - 2 * [C] > 0",
        "printed[A; x] * [B] / [C; y] > 0",
        "([A] - [B]) * ([C] - [D]) > 0",
        "100 * (printed[A; x] / [B] - 1) > 0",
        "1 / printed[A; x] > 0",
        "printed[A; x] ** 2 > 0",
        "2 ** printed[A; y] > 0",
        "-printed[A; x] > 0",
        "abs(printed[A; x] - [B]) > 0",
        "abs(printed[A; x] - 36.41) > 0",
        "mean(printed[A, B, C; x, y]) > 0",
        "sum(printed[A, B; x]) > max(printed[C, D; x]) - min([A, D; y])",
        "row_means(printed[A, B, C; x, y, z]) > 0",
        "column_means(printed[A, B, C; x, y]) > 0",
        "column_max(printed[A, B, C; x, y]) > 0",
        "log(printed[A; x]) + exp([A; y]) + log2([B; x]) + round([C; y]) > 0",
        "highest(printed[A, B; x, y]) - lowest([A, B; x, y]) > 0",
        "max([sum(printed[A, B; x]), sum([C, D; x])]) > 0",
        "count(steps(printed[A, B, C; x]) > 0) > 0",
        "count(rises(printed[A, B, C; x])) > 0",
        "sd(printed[A, B, C; x, y]) > 0",
        "row_variances(printed[A, B; x, y, z]) > 0",
        "correlation(printed[A, B, C, D; x], [A, B, C, D; y]) > 0",
        "correlation(printed[A, B, C, D; y], [A, B, C, D; z]) > 0",
        "correlation_p(printed[A, B, C, D; x], [A, B, C, D; y]) > 0",
        "slope(printed[A, B, C, D; x], [A, B, C, D; z]) > 0",
        "sum(round(printed[A, B, C; y])) + mean(round([A, B, C; y])) > 0",
        "max([round(printed[A; y]), round([B; y])]) - min([round([C; y]), round([A; y])]) > 0",
    ],
)
def test_the_interval_holds_what_any_such_numbers_give(text):
    """And the ends of what is monotone are reached: the widest draws come within a tenth of the width."""
    found = expression(text if "printed" in text else text.replace("[A]", "printed[A; x]"))
    number = found.tree.left
    cells = {name: part_of(bracket) for name, bracket in found.brackets.items()}
    interval = interval_of(number, {name: rounded(one.numbers, one.decimals) for name, one in cells.items()})
    chance, drawn = np.random.default_rng(3), []
    for _ in range(300):
        moved = {name: moved_within(one, chance) for name, one in cells.items()}
        drawn.append(value_of(number, moved))
    assert (np.min(drawn, axis=0) >= interval.low - 1e-9).all() and (
        np.max(drawn, axis=0) <= interval.high + 1e-9
    ).all()


def part_of(bracket):
    rows, columns = (
        [name for name in (CELLS.rows, CELLS.columns)[axis] if name in bracket.parts[axis]] for axis in (0, 1)
    )
    at = np.ix_([CELLS.rows.index(one) for one in rows], [CELLS.columns.index(one) for one in columns])
    return Cells(NUMBERS[at], tuple(rows), tuple(columns), decimals=CELLS.decimals[at[1].ravel()])


def moved_within(cells, chance):
    """Cells with other numbers that are printed in the same way, often at the ends."""
    half = np.where(np.isnan(cells.decimals), 0, 0.5 * 10.0 ** -np.nan_to_num(cells.decimals))
    moves = np.clip(chance.uniform(-2, 2, cells.numbers.shape), -1, 1)
    return Cells(cells.numbers + moves * half, cells.rows, cells.columns, decimals=cells.decimals)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("printed[A; x] < 36.4", 0, 0),
        ("printed[A; x] < 36.41", 0, 1),
        ("printed[A; x] < 36.42", 1, 1),
        ("printed[A; x] > 36.42", 0, 0),
        ("printed[A; x] >= 36.415", 0, 1),
        ("printed[A; x] > 36.415", 0, 0),
        ("printed[A; x] == 36.412", 0, 1),
        ("printed[A; x] == 36.42", 0, 0),
        ("printed[A; x] != 36.42", 1, 1),
        ("printed[A; z] == 7", 1, 1),
        ("printed[A; z] != 7", 0, 0),
        ("36 < printed[A; x] < 36.41", 0, 1),
        ("printed[A; x] > 36 and printed[A; y] > 3", 0, 0),
        ("printed[A; x] > 36 or printed[A; y] > 3", 1, 1),
        ("count(not printed[A; x] > 36.41) == 1", 0, 1),
        ("rounds_to(printed[A; x] - 0.41, 36, 1)", 1, 1),
        ("rounds_to(printed[A; x], 36.4, 2)", 0, 1),
        ("rounds_to(printed[A; x], 36.39, 2)", 0, 0),
        ("rounds_to(printed[A; x], 36.416, 3)", 0, 0),
        ("rounds_to(printed[A; x], 36.414, 3)", 0, 1),
        ("rounds_to(10 * printed[A; y], printed[A; x] - 11.4, 0)", 0, 1),
        ("rises(printed[C, A, B; x])", 1, 1),
        ("falls(printed[C, A, B; x])", 0, 0),
        ("same_order(printed[A, B, C; x], [A, B, C; y])", 1, 1),
        ("same_order(printed[A, B, C; x], -[A, B, C; y])", 0, 0),
        ("count(printed[A, B, C; x] > 36.41) == 1", 0, 1),
        ("count(printed[A, B, C; x] > 36.41) >= 3", 0, 0),
        ("count(printed[A, B, C; x] > 36.41) / 2 == 0.5", 0, 1),
        ("count(printed[A, B, C; x] > 36.41) / 2 == 0.75", 0, 0),
        ("round(printed[A; y]) == 2 or round([A; y]) == 3", 0, 1),
        ("round(printed[A; y]) == 2.5", 0, 0),
        ("round(printed[A; y]) / 2 + round([B; y]) / 2 == 3.25", 0, 0),
        ("mean(round(printed[A, B; y])) == 3", 0, 1),
        ("mean(round(printed[A, B; y])) == 3.2", 0, 0),
        ("row_means(round(printed[A, B; y])) == 2.5", 0, 0),
        ("highest(round(printed[B, D; y])) == 3.5", 0, 0),
    ],
)
def test_conditions_are_surely_so_possibly_so_or_not(text, low, high):
    found = expression(text)
    order = {name: bracket for name, bracket in found.brackets.items()}
    cells = {}
    for name, bracket in order.items():
        rows = [CELLS.rows.index(one) for one in bracket.parts[0]]
        columns = [CELLS.columns.index(one) for one in bracket.parts[1]]
        cells[name] = rounded(NUMBERS[np.ix_(rows, columns)], CELLS.decimals[columns])
    interval = interval_of(found.tree, cells)
    assert (interval.low.min(), interval.high.min()) == (low, high)


@pytest.mark.parametrize("questions", [7, 64, 570, 1024, 1436])
def test_a_share_of_questions_is_possible_where_some_count_gives_it(questions):
    """Against all counts: what is rounded to whole numbers has none in between."""
    shares = 100 * np.arange(questions + 1) / questions
    tree = expression_of(f"rounds_to(100 * round(x / 100 * {questions}) / {questions}, x, 2)")
    values = np.round(np.random.default_rng(questions).uniform(0, 100, 300), 2)
    for value in (*values, 33.15, 28.76, 29.69):
        found = interval_of(tree, {"x": rounded(np.array([[value]]), 2.0)})
        assert bool(found.high[0, 0]) == bool((np.abs(shares - value) <= 0.005 + 1e-9).any()), value


def test_counts_that_are_put_together_have_no_numbers_in_between():
    """Sums, means and products of entries of several ways, against all choices."""
    chance = np.random.default_rng(4)
    ways = np.sort(np.round(chance.uniform(1, 9, (3, 1, 4)), 2), axis=0)
    given = {"x": Interval(ways, ways)}
    choices = np.array(np.meshgrid(*ways[:, 0].T)).reshape(4, -1)
    for text, values in (
        ("sum(x)", choices.sum(axis=0)),
        ("mean(x)", choices.mean(axis=0)),
        ("max(x) * 2", choices.max(axis=0) * 2),
        ("min(x) - 1", choices.min(axis=0) - 1),
    ):
        found = interval_of(expression_of(text), given)
        assert sorted(set(np.round(found.lows.ravel(), 6))) == sorted(set(np.round(values, 6)))
        assert np.allclose(found.lows, found.highs)


def test_too_many_ways_are_the_interval_around_them():
    ways = np.arange(200.0).reshape(-1, 1, 1)
    found = Interval(ways, ways) + Interval(ways * 1.01, ways * 1.01)
    assert len(found.lows) == 1 and (found.low.item(), found.high.item()) == (0.0, pytest.approx(199 * 2.01))


def test_what_has_no_interval():
    given = {"x": rounded(np.array([[0.0]]), 1), "y": Interval.of(2.0)}
    for text, why in (
        ("y / x", "what it is divided by can be 0"),
        ("x ** y", "powers of what can be 0 or less"),
        ("correlation(x, y)", "correlation has no interval"),
        ("y % 2", "// and % have no interval"),
        ("log(x)", "it divides by 0, or is too large"),
    ):
        with pytest.raises(NoValue, match=why):
            interval_of(expression_of(text), given)


def expression_of(text):
    return ast.parse(text, mode="eval").body
