"""Claim kinds that compare rows of the printed numbers in several columns, and printed tables with each other.

{kind: printed_pairs, rows: [A, B], over: [C, C], columns: [x, y], least: 3}
{kind: printed_as, rows: [A, B], columns: [mean], other: toy-table2, other_columns: [average]}
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from typing import Annotated

from hybridlab.papers.calls import ColumnName, ExperimentName, Refers, RowName
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.statistics import pearson

OtherRow = Annotated[str, Refers("row", of="other")]
OtherColumn = Annotated[str, Refers("column", of="other")]


@claim_kind
def printed_pairs(
    on: Given,
    rows: list[RowName],
    over: list[RowName],
    columns: list[ColumnName],
    least: int | None = None,
    slack: float = 0.0,
    reason: str = "",
    falls: bool = False,
) -> Verdict:
    """Each row is above its counterpart in each of the columns, or in at least so many (row, column)s.

    slack: one that is below by less than this is counted too ("matches"); `reason` says why it is so large. falls:
    below in place of above, for losses.
    """
    gaps = [(place, -gap if falls else gap) for place, gap in _gaps(on, rows, over, columns)]
    short = [f"{place}: {gap:+.2f}" for place, gap in gaps if not gap > -slack]
    reached = len(gaps) - len(short)
    asked = "" if least is None else f", stated at least {least}"
    word = "below" if falls else "above"
    room = f" or within {slack:g}" if slack else ""
    return Verdict(
        reached >= (len(gaps) if least is None else least),
        f"printed: {word}{room} in {reached} of {len(gaps)}{asked}{listed(short)}",
    )


@claim_kind
def printed_within(
    on: Given, rows: list[RowName], over: list[RowName], columns: list[ColumnName], low: float, high: float, reason: str
) -> Verdict:
    """Each row differs from its counterpart by no less than `low` and no more than `high` in each of the columns
    ("match", "little deviation"); `reason` says why the bounds are these."""
    gaps = list(_gaps(on, rows, over, columns))
    outside = [f"{place}: {gap:+.2f}" for place, gap in gaps if not low <= gap <= high]
    sizes = [gap for _, gap in gaps]
    span = f"printed: {min(sizes):+.2f} to {max(sizes):+.2f}, asked {low:+g} to {high:+g}"
    return Verdict(not outside, span + listed(outside))


@claim_kind
def printed_differ(
    on: Given, rows: list[RowName], over: list[RowName], columns: list[ColumnName], by: float, reason: str
) -> Verdict:
    """Each row differs from its counterpart, to either side, by more than `by` in each of the columns ("reduces, or
    elevates"); `reason` says why it is so large."""
    gaps = list(_gaps(on, rows, over, columns))
    near = [f"{place}: {gap:+.2f}" for place, gap in gaps if not abs(gap) > by]
    evidence = f"printed: apart by more than {by:g} in {len(gaps) - len(near)} of {len(gaps)}"
    return Verdict(not near, f"{evidence}; {', '.join(f'{gap:+.2f}' for _, gap in gaps)}{listed(near)}")


def _gaps(on: Given, rows: list[str], over: list[str], columns: list[str]) -> Iterator[tuple[str, float]]:
    """(row and column, difference of the row from its counterpart). A row that has several counterparts comes once for
    each, with its name."""
    for column in columns:
        for row, counterpart in zip(rows, over, strict=True):
            ours, theirs = on.printed((row, column), (counterpart, column))
            against = f" over {counterpart}" if rows.count(row) > 1 else ""
            yield f"{row}{against}, {column}", round(ours - theirs, 6)


@claim_kind
def printed_best(on: Given, row: RowName, over: list[RowName], columns: list[ColumnName], count: int) -> Verdict:
    """One row is above all the others in exactly so many of the columns."""
    behind = []
    for column in columns:
        [ours, *others] = on.printed((row, column), *((name, column) for name in over))
        if not ours > max(others):
            behind.append(f"{column}: {ours:g}, highest of the others {max(others):g}")
    best = len(columns) - len(behind)
    return Verdict(best == count, f"printed: best in {best} of {len(columns)}, stated {count}{listed(behind)}")


@claim_kind
def printed_best_varies(on: Given, groups: list[list[RowName]], columns: list[ColumnName]) -> Verdict:
    """In each of several groups of rows, such as the models of one size, no row is the highest of its group in all of
    the columns."""
    always, counted = [], []
    for rows in groups:
        best = dict.fromkeys(rows, 0)
        for column in columns:
            values = on.printed(*((row, column) for row in rows))
            for row, value in zip(rows, values, strict=True):
                best[row] += value == max(values)
        always += [row for row, count in best.items() if count == len(columns)]
        counted += [f"{row} {count}" for row, count in best.items()]
    evidence = f"printed: highest, alone or with others, in so many of {len(columns)}: {', '.join(counted)}"
    return Verdict(not always, evidence + listed(always))


@claim_kind
def printed_multiples(on: Given, rows: list[RowName], column: ColumnName, of: int, digits: int = 2) -> Verdict:
    """Every printed percentage of these rows is, to its digits, a whole number of so many items, as the mean over them
    is where each is right or wrong."""
    values = dict(zip(rows, on.printed(*((row, column) for row in rows)), strict=True))
    nearest = {row: 100 * round(value * of / 100) / of for row, value in values.items()}
    off = [
        f"{row}: {value:g}, nearest {nearest[row]:.{digits + 1}f}"
        for row, value in values.items()
        if abs(nearest[row] - value) > 0.5 * 10**-digits + 1e-9
    ]
    return Verdict(not off, f"printed: {len(rows) - len(off)} of {len(rows)} are multiples of 1 / {of:,}{listed(off)}")


@claim_kind
def printed_correlation(
    on: Given, rows: list[RowName], columns: tuple[ColumnName, ColumnName], low: float = -1.0, high: float = 1.0
) -> Verdict:
    """Pearson's correlation of two printed columns over these rows lies between two bounds."""
    one, other = (on.printed(*((row, column) for row in rows)) for column in columns)
    found = pearson(one, other)
    if found.r is None:
        raise Open("a correlation needs three rows, and columns whose numbers differ")
    evidence = f"printed: r = {found.r:+.2f} over {len(rows)} rows, asked {low:+g} to {high:+g}"
    return Verdict(low <= found.r <= high, evidence)


@claim_kind
def printed_as(
    on: Given,
    rows: list[RowName],
    columns: list[ColumnName],
    other: ExperimentName,
    other_columns: list[OtherColumn],
) -> Verdict:
    """The printed cells of these rows are those of the rows of the same names in another experiment, column by
    column."""
    pairs = list(_both(on, rows, columns, other, other_columns))
    wrong = [f"{place}: {ours:g} here, {theirs:g} there" for place, ours, theirs in pairs if ours != theirs]
    return Verdict(not wrong, f"printed: {len(pairs) - len(wrong)} of {len(pairs)} are equal in {other}{listed(wrong)}")


@claim_kind
def printed_near(
    on: Given, rows: list[RowName], columns: list[ColumnName], other: ExperimentName, within: float, reason: str
) -> Verdict:
    """The printed cells of these rows differ by no more than `within` from those of the same names in another
    experiment, such as one with another seed; `reason` says why it is so large."""
    pairs = list(_both(on, rows, columns, other, columns))
    apart = {place: round(ours - theirs, 6) for place, ours, theirs in pairs}
    wrong = [f"{place}: {gap:+.2f}" for place, gap in apart.items() if abs(gap) > within]
    return Verdict(
        not wrong,
        f"printed: within {within:g} of {other} in {len(apart) - len(wrong)} of {len(apart)}{listed(wrong)}",
    )


def _both(
    on: Given, rows: list[str], columns: list[str], other: str, other_columns: list[str]
) -> Iterator[tuple[str, float, float]]:
    """(row and column, number here, number there)."""
    there = on.elsewhere(other)
    for column, name in zip(columns, other_columns, strict=True):
        for row in rows:
            [ours], [theirs] = on.printed((row, column)), there.printed((row, name))
            yield f"{row}, {column}", ours, theirs


@claim_kind
def printed_order(
    on: Given, rows: list[RowName], columns: list[ColumnName], other: ExperimentName, like: list[OtherRow]
) -> Verdict:
    """In each of the columns the rows stand in the order of their counterparts `like` in another experiment, or in this
    one under other conditions ("the relative order stays the same"). Equal numbers contradict no order."""
    there, changed = on.elsewhere(other), []
    for column in columns:
        ours = on.printed(*((row, column) for row in rows))
        theirs = there.printed(*((row, column) for row in like))
        places = itertools.combinations(range(len(rows)), 2)
        if any((ours[i] - ours[j]) * (theirs[i] - theirs[j]) < 0 for i, j in places):
            changed.append(f"{column}: {_ranked(rows, ours)} here, {_ranked(like, theirs)} there")
    kept = len(columns) - len(changed)
    return Verdict(not changed, f"printed: the order is the same in {kept} of {len(columns)}{listed(changed)}")


def _ranked(names: list[str], values: list[float]) -> str:
    """The names from the highest value to the lowest."""
    return " > ".join(name for _, name in sorted(zip(values, names, strict=True), reverse=True))


@claim_kind
def printed_gaps_apart(
    on: Given,
    rows: list[RowName],
    over: list[RowName],
    column: ColumnName,
    other: ExperimentName,
    other_column: OtherColumn,
) -> Verdict:
    """Each row is farther above its counterpart in a column than the rows of the same names are in a column of another
    experiment."""
    ours = [gap for _, gap in _gaps(on, rows, over, [column])]
    theirs = [gap for _, gap in _gaps(on.elsewhere(other), rows, over, [other_column])]
    gaps = list(zip(rows, ours, theirs, strict=True))
    short = [row for row, here, there in gaps if not here > there]
    evidence = "; ".join(f"{row}: {here:+.2f} here, {there:+.2f} in {other}" for row, here, there in gaps)
    return Verdict(not short, f"printed: {evidence}{listed(short)}")


@claim_kind
def printed_spread(
    on: Given,
    rows: list[RowName],
    columns: list[ColumnName],
    other: ExperimentName,
    other_columns: list[OtherColumn],
    times: float = 1.0,
) -> Verdict:
    """The variance over these columns is larger, in each row, than that over columns of another experiment in the row
    of the same name: more than so many times as large."""
    there = on.elsewhere(other)
    ratios = {}
    for row in rows:
        ours = statistics.pvariance(on.printed(*((row, column) for column in columns)))
        theirs = statistics.pvariance(there.printed(*((row, column) for column in other_columns)))
        ratios[row] = ours / theirs
    below = [f"{row}: {ratio:.2f}" for row, ratio in ratios.items() if not ratio > times]
    span = f"printed: {min(ratios.values()):.2f} to {max(ratios.values()):.2f} times as large"
    return Verdict(not below, f"{span}, asked above {times:g}{listed(below)}")
