"""Claim kinds about changes, gaps and shares in the numbers that a paper prints."""

from __future__ import annotations

from typing import Literal

from hybridlab.papers.calls import ColumnName, RowName
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.verdict import Open, Verdict


@claim_kind
def printed_between(on: Given, rows: list[RowName], column: ColumnName, low: float, high: float) -> Verdict:
    """The printed numbers of these rows lie between two bounds."""
    values = dict(zip(rows, on.printed(*((name, column) for name in rows)), strict=True))
    outside = [f"{name}: {value:g}" for name, value in values.items() if not low <= value <= high]
    span = f"printed: {min(values.values()):g} to {max(values.values()):g}, stated {low:g} to {high:g}"
    return Verdict(not outside, span + listed(outside))


@claim_kind
def printed_ratio(on: Given, row: RowName, over: RowName, column: ColumnName, low: float, high: float) -> Verdict:
    """One printed number divided by another lies between two bounds."""
    left, right = on.printed((row, column), (over, column))
    ratio = left / right
    return Verdict(low <= ratio <= high, f"printed: {left:g} / {right:g} = {ratio:.2f}, stated {low:g} to {high:g}")


@claim_kind
def printed_gap_widens(
    on: Given, rows: list[RowName], over: list[RowName], column: ColumnName, back: int = 0, digits: int = 2
) -> Verdict:
    """The difference of each row from its counterpart grows in the order of the rows.

    back: so many steps may go back ("generally"), as long as the last difference is above the first.
    """
    ours, theirs = (on.printed(*((name, column) for name in names)) for names in (rows, over))
    gaps = [round(a - b, digits) for a, b in zip(ours, theirs, strict=True)]
    fell = sum(right <= left for left, right in zip(gaps, gaps[1:], strict=False))
    evidence = f"printed: {', '.join(f'{gap:+g}' for gap in gaps)}; {fell} of {len(gaps) - 1} steps do not widen it"
    return Verdict(fell <= back and gaps[-1] > gaps[0], evidence)


@claim_kind
def printed_most(
    on: Given, row: RowName, step: RowName, over: RowName, column: ColumnName, share: float = 0.5
) -> Verdict:
    """Of the way from `over` to `row`, the part from `step` to `row` is more than a share."""
    end, middle, start = on.printed((row, column), (step, column), (over, column))
    part = (end - middle) / (end - start)
    evidence = f"printed: {end - middle:+.2f} of {end - start:+.2f}, {100 * part:.1f} %, stated above {100 * share:g} %"
    return Verdict(part > share, evidence)


@claim_kind
def printed_changes_follow(
    on: Given, over: RowName, columns: list[tuple[ColumnName, ColumnName]], digits: int = 1
) -> Verdict:
    """Every printed change (second column, in percent) follows from the printed scores (first column) of its row and
    of the row `over`, to so many digits."""
    wrong, count = [], 0
    for row in (row.short for row in on.experiment.rows if row.short != over):
        for score, change in columns:
            ours, theirs, stated = on.printed((row, score), (over, score), (row, change))
            computed = 100 * (ours / theirs - 1)
            count += 1
            if abs(computed - stated) > 0.5 * 10**-digits + 1e-9:
                wrong.append(f"{row}, {score}: {computed:+.{digits + 1}f}, printed {stated:+g}")
    return Verdict(not wrong, f"{count - len(wrong)} of {count} changes follow{listed(wrong)}")


@claim_kind
def printed_changes_apart(
    on: Given,
    row: RowName,
    over: RowName,
    columns: list[ColumnName],
    than: list[ColumnName],
    direction: Literal["rises", "falls"],
    unit: Literal["percent", "points"] = "percent",
) -> Verdict:
    """From `over` to `row`, each of some columns rises (or falls) by more than each of the others."""
    ours, theirs = (
        [_change(on, row, over, column, unit) * (1 if direction == "rises" else -1) for column in names]
        for names in (columns, than)
    )
    least, most = columns[ours.index(min(ours))], than[theirs.index(max(theirs))]
    evidence = f"printed: smallest {min(ours):+.2f} ({least}), largest of the others {max(theirs):+.2f} ({most})"
    return Verdict(min(ours) > max(theirs), f"{evidence}, in {unit}")


def _change(on: Given, row: str, over: str, column: str, unit: str) -> float:
    ours, theirs = on.printed((row, column), (over, column))
    return 100 * (ours / theirs - 1) if unit == "percent" else ours - theirs


@claim_kind
def printed_per_cost(
    on: Given, rows: list[RowName], than: list[RowName], base: RowName, gain: ColumnName, cost: ColumnName
) -> Verdict:
    """Every one of `rows` lowers column `gain` against the row `base` by more for each unit of column `cost` than every
    one of the others."""
    [start] = on.printed((base, gain))
    rates = {name: (start - on.printed((name, gain))[0]) / on.printed((name, cost))[0] for name in (*rows, *than)}
    evidence = "; ".join(f"{name}: {rate:.3f}" for name, rate in rates.items())
    return Verdict(min(rates[n] for n in rows) > max(rates[n] for n in than), f"printed, for each unit: {evidence}")


@claim_kind
def printed_differ_in(on: Given, row: RowName, over: RowName, columns: list[ColumnName]) -> Verdict:
    """Two rows differ in these of their printed numbers, and in no others."""
    ours, theirs = on.row(row).paper, on.row(over).paper
    differ = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    numbers = ", ".join(f"{name} ({ours[name]:g}, {theirs[name]:g})" for name in differ)
    return Verdict(set(differ) == set(columns), f"printed: they differ in {numbers or 'nothing'}")


@claim_kind
def printed_apart(on: Given, rows: list[RowName], over: list[RowName], column: ColumnName) -> Verdict:
    """No name in the printed lists of `rows` stands in those of the others."""
    ours, theirs = ({name for row in names for name in _names(on, row, column)} for names in (rows, over))
    return Verdict(not ours & theirs, f"printed: in both: {', '.join(sorted(ours & theirs)) or 'none'}")


def _names(on: Given, row: str, column: str) -> list[str]:
    """The names of a printed list."""
    text = on.row(row).paper.get(column)
    if not isinstance(text, str):
        raise Open(f"not printed: {row}, {column}")
    return text.split(", ")


@claim_kind
def printed_alike(on: Given, rows: list[RowName], like: RowName, column: ColumnName) -> Verdict:
    """The printed lists of `rows` have as many names as that of another row, of as many layers (the part of a name
    before its `-`)."""
    lists = {row: _names(on, row, column) for row in (*rows, like)}
    sizes = {row: (len(names), len({name.split("-")[0] for name in names})) for row, names in lists.items()}
    off = [f"{row}: {count} of {layers} layers" for row, (count, layers) in sizes.items() if sizes[row] != sizes[like]]
    count, layers = sizes[like]
    return Verdict(not off, f"printed: {like}: {count} of {layers} layers{listed(off)}")


@claim_kind
def printed_count(on: Given, count: int) -> Verdict:
    """The table has so many rows."""
    rows = len(on.experiment.rows)
    return Verdict(rows == count, f"printed: {rows} rows, stated {count}")
