"""Claim kinds that are tested on the numbers that a paper prints, and on computed ones."""

from __future__ import annotations

from typing import Annotated

from hybridlab.papers.calls import ColumnName, ExperimentName, Refers, RowName
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.verdict import Verdict
from hybridlab.statistics import known, mean_and_error


@claim_kind
def printed_everywhere(on: Given, row: RowName, over: RowName, columns: list[ColumnName]) -> Verdict:
    """One row above another in each of the printed columns."""
    left, right = (on.printed(*((name, column) for column in columns)) for name in (row, over))
    below = [column for column, a, b in zip(columns, left, right, strict=True) if not a > b]
    above = len(columns) - len(below)
    return Verdict(not below, f"printed: above in {above} of {len(columns)} columns" + listed(below))


@claim_kind
def printed_above(on: Given, rows: list[RowName], over: list[RowName], column: ColumnName) -> Verdict:
    """Every one of `rows` above every one of `over` in a printed column."""
    lowest = min(on.printed(*((name, column) for name in rows)))
    highest = max(on.printed(*((name, column) for name in over)))
    return Verdict(lowest > highest, f"printed: lowest {lowest:g}, highest of the others {highest:g}")


@claim_kind
def printed_below(on: Given, rows: list[RowName], over: list[RowName], column: ColumnName) -> Verdict:
    """Every one of `rows` below every one of `over` in a printed column."""
    highest = max(on.printed(*((name, column) for name in rows)))
    lowest = min(on.printed(*((name, column) for name in over)))
    return Verdict(highest < lowest, f"printed: highest {highest:g}, lowest of the others {lowest:g}")


@claim_kind
def printed_points(
    on: Given, row: RowName, over: RowName, column: ColumnName, points: float, digits: int = 2
) -> Verdict:
    """A difference in points that a sentence states, recomputed from the printed cells."""
    left, right = on.printed((row, column), (over, column))
    difference = round(left - right, digits)
    evidence = f"printed: {left:g} − {right:g} = {difference:+g}, stated {points:+g}"
    return Verdict(difference == points, evidence)


@claim_kind
def printed_percent(
    on: Given, row: RowName, over: RowName, column: ColumnName, percent: float, digits: int = 2
) -> Verdict:
    """A relative increase that a sentence states to so many digits, recomputed from the printed cells."""
    left, right = on.printed((row, column), (over, column))
    increase = 100 * (left / right - 1)
    evidence = f"printed: {left:g} / {right:g} − 1 = {increase:.{digits + 1}f} %, stated {percent:g} %"
    return Verdict(round(increase, digits) == percent, evidence)


@claim_kind
def printed_equal(
    on: Given,
    row: RowName,
    column: ColumnName,
    other: ExperimentName,
    other_row: Annotated[str, Refers("row", of="other")],
    other_column: Annotated[str, Refers("column", of="other")],
) -> Verdict:
    """A printed cell equals the printed cell of another experiment."""
    here, there = *on.printed((row, column)), *on.elsewhere(other).printed((other_row, other_column))
    return Verdict(here == there, f"printed: {here:g} here, {there:g} in {other}")


@claim_kind
def printed_range(
    on: Given, rows: list[RowName], over: list[RowName], column: ColumnName, low: float, high: float
) -> Verdict:
    """The reduction of each row relative to its counterpart, in percent of the printed cells, is in a stated range."""
    ours, theirs = (on.printed(*((name, column) for name in names)) for names in (rows, over))
    values = {name: 100 * (1 - a / b) for name, a, b in zip(rows, ours, theirs, strict=True)}
    outside = [f"{name}: {value:.2f}" for name, value in values.items() if not low <= value <= high]
    span = f"printed: {min(values.values()):.2f} to {max(values.values()):.2f} %, stated {low:g} to {high:g}"
    return Verdict(not outside, span + listed(outside))


@claim_kind
def printed_higher(on: Given, rows: list[RowName], over: list[RowName], column: ColumnName) -> Verdict:
    """Each row is above its counterpart in a printed column; the evidence is in percent of the counterpart."""
    ours, theirs = (on.printed(*((name, column) for name in names)) for names in (rows, over))
    gains = {name: 100 * (a / b - 1) for name, a, b in zip(rows, ours, theirs, strict=True)}
    lower = [f"{name}: {gain:+.2f} %" for name, gain in gains.items() if not gain > 0]
    span = f"printed: {min(gains.values()):+.2f} to {max(gains.values()):+.2f} %, stated above 0"
    return Verdict(not lower, span + listed(lower))


@claim_kind
def printed_averages(on: Given, column: ColumnName, of: list[ColumnName], digits: int = 2) -> Verdict:
    """Every printed average is the mean of its row's printed cells."""
    wrong, rows = [], on.experiment.rows
    for row in rows:
        [average, *cells] = on.printed(*((row.short, name) for name in (column, *of)))
        mean = known(mean_and_error(cells))
        if abs(mean - average) > 0.5 * 10**-digits + 1e-9:
            wrong.append(f"{row.short}: mean {mean:.{digits + 1}f}, printed {average:g}")
    return Verdict(not wrong, f"{len(rows) - len(wrong)} of {len(rows)} averages follow" + listed(wrong))


@claim_kind
def computed_between(on: Given, rows: list[RowName], column: ColumnName, low: float, high: float) -> Verdict:
    """The computed numbers of these rows lie between two bounds."""
    factor = on.experiment.column(column).factor
    values = {name: on.computed(name, column) * factor for name in rows}
    outside = [f"{name}: {value:.2f}" for name, value in values.items() if not low <= value <= high]
    span = f"exact: {min(values.values()):.2f} to {max(values.values()):.2f}, stated {low:g} to {high:g}"
    return Verdict(not outside, span + listed(outside))


@claim_kind
def computed_reduction(
    on: Given, row: RowName, before: ColumnName, after: ColumnName, column: ColumnName, digits: int = 1
) -> Verdict:
    """A printed reduction against the reduction by computed and by printed numbers."""
    exact = on.computed(row, column)
    first, second, stated = on.printed((row, before), (row, after), (row, column))
    printed = 100 * (1 - second / first)
    return Verdict(
        round(exact, digits) == stated,
        f"exact figures give {exact:.2f} %, the printed ones {printed:.2f} %, stated {stated:g} %",
    )
