"""Claim kinds that are tested on the numbers that a paper prints, in one table or in two.

{kind: printed_pairs, rows: [A, B], over: [C, C], columns: [x, y], least: 3}
{kind: printed_as, rows: [A, B], columns: [mean], other: toy-table2, other_columns: [average]}
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.papers.calls import ColumnName, ColumnNames, ExperimentName, Refers, RowName, RowNames
from hybridlab.papers.claims.kinds import Given, claim_kind, listed, within
from hybridlab.papers.claims.speed import PARTS
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.statistics import known, mean_and_error, pearson

OtherRow = Annotated[str, Refers("row", of="other")]
OtherColumn = Annotated[str, Refers("column", of="other")]
Values = Mapping[str, float]
"""Number by its place, such as a row."""


def _cells(on: Given, rows: Sequence[str], column: str) -> list[float]:
    """The printed numbers of these rows in a column."""
    return on.printed(*((name, column) for name in rows))


def _in_row(on: Given, row: str, columns: Sequence[str]) -> list[float]:
    """The printed numbers of a row in these columns."""
    return on.printed(*((row, name) for name in columns))


def _by_row(on: Given, rows: list[str], over: list[str], column: str, made: Callable[[float, float], float]) -> Values:
    """row → a number made of its printed cell and of its counterpart's."""
    pairs = zip(rows, _cells(on, rows, column), _cells(on, over, column), strict=True)
    return {name: made(ours, theirs) for name, ours, theirs in pairs}


def _off(values: Values, fits: Callable[[float], bool], shown: str = "+.2f") -> list[str]:
    """The values that do not fit, with their places."""
    return [f"{place}: {value:{shown}}" for place, value in values.items() if not fits(value)]


# ---- one row, or one number, against another ----


@claim_kind
def printed_everywhere(on: Given, row: RowName, over: RowName, columns: ColumnNames) -> Verdict:
    """One row above another in each of the printed columns."""
    left, right = _in_row(on, row, columns), _in_row(on, over, columns)
    below = [column for column, a, b in zip(columns, left, right, strict=True) if not a > b]
    above = len(columns) - len(below)
    return Verdict(not below, f"printed: above in {above} of {len(columns)} columns" + listed(below))


@claim_kind
def printed_above(on: Given, rows: RowNames, over: RowNames, column: ColumnName) -> Verdict:
    """Every one of `rows` above every one of `over` in a printed column."""
    lowest, highest = min(_cells(on, rows, column)), max(_cells(on, over, column))
    return Verdict(lowest > highest, f"printed: lowest {lowest:g}, highest of the others {highest:g}")


@claim_kind
def printed_below(on: Given, rows: RowNames, over: RowNames, column: ColumnName) -> Verdict:
    """Every one of `rows` below every one of `over` in a printed column."""
    highest, lowest = max(_cells(on, rows, column)), min(_cells(on, over, column))
    return Verdict(highest < lowest, f"printed: highest {highest:g}, lowest of the others {lowest:g}")


@claim_kind
def printed_points(
    on: Given, row: RowName, over: RowName, column: ColumnName, points: float, digits: int = 2
) -> Verdict:
    """A difference in points that a sentence states, recomputed from the printed cells."""
    left, right = _cells(on, [row, over], column)
    difference = round(left - right, digits)
    evidence = f"printed: {left:g} − {right:g} = {difference:+g}, stated {points:+g}"
    return Verdict(difference == points, evidence)


@claim_kind
def printed_percent(
    on: Given, row: RowName, over: RowName, column: ColumnName, percent: float, digits: int = 2
) -> Verdict:
    """A relative increase that a sentence states to so many digits, recomputed from the printed cells."""
    left, right = _cells(on, [row, over], column)
    increase = 100 * (left / right - 1)
    evidence = f"printed: {left:g} / {right:g} − 1 = {increase:.{digits + 1}f} %, stated {percent:g} %"
    return Verdict(round(increase, digits) == percent, evidence)


@claim_kind
def printed_ratio(on: Given, row: RowName, over: RowName, column: ColumnName, low: float, high: float) -> Verdict:
    """One printed number divided by another lies between two bounds."""
    left, right = _cells(on, [row, over], column)
    ratio = left / right
    return Verdict(low <= ratio <= high, f"printed: {left:g} / {right:g} = {ratio:.2f}, stated {low:g} to {high:g}")


@claim_kind
def printed_equal(
    on: Given, row: RowName, column: ColumnName, other: ExperimentName, other_row: OtherRow, other_column: OtherColumn
) -> Verdict:
    """A printed cell equals the printed cell of another experiment."""
    here, there = *on.printed((row, column)), *on.elsewhere(other).printed((other_row, other_column))
    return Verdict(here == there, f"printed: {here:g} here, {there:g} in {other}")


@claim_kind
def printed_most(
    on: Given, row: RowName, step: RowName, over: RowName, column: ColumnName, share: float = 0.5
) -> Verdict:
    """Of the way from `over` to `row`, the part from `step` to `row` is more than a share."""
    end, middle, start = _cells(on, [row, step, over], column)
    part = (end - middle) / (end - start)
    evidence = f"printed: {end - middle:+.2f} of {end - start:+.2f}, {100 * part:.1f} %, stated above {100 * share:g} %"
    return Verdict(part > share, evidence)


# ---- a column of several rows ----


@claim_kind
def printed_range(on: Given, rows: RowNames, over: RowNames, column: ColumnName, low: float, high: float) -> Verdict:
    """The reduction of each row relative to its counterpart, in percent of the printed cells, is in a stated range."""
    values = _by_row(on, rows, over, column, lambda ours, theirs: 100 * (1 - ours / theirs))
    return within("printed", values, low, high, ".2f", " %")


@claim_kind
def printed_between(on: Given, rows: RowNames, column: ColumnName, low: float, high: float) -> Verdict:
    """The printed numbers of these rows lie between two bounds."""
    return within("printed", dict(zip(rows, _cells(on, rows, column), strict=True)), low, high, "g")


@claim_kind
def printed_higher(on: Given, rows: RowNames, over: RowNames, column: ColumnName) -> Verdict:
    """Each row is above its counterpart in a printed column; the evidence is in percent of the counterpart."""
    gains = _by_row(on, rows, over, column, lambda ours, theirs: 100 * (ours / theirs - 1))
    lower = [f"{name}: {gain:+.2f} %" for name, gain in gains.items() if not gain > 0]
    span = f"printed: {min(gains.values()):+.2f} to {max(gains.values()):+.2f} %, stated above 0"
    return Verdict(not lower, span + listed(lower))


@claim_kind
def printed_gap_widens(
    on: Given, rows: RowNames, over: RowNames, column: ColumnName, back: int = 0, digits: int = 2
) -> Verdict:
    """The difference of each row from its counterpart grows in the order of the rows.

    back: so many steps may go back ("generally"), as long as the last difference is above the first.
    """
    pairs = zip(_cells(on, rows, column), _cells(on, over, column), strict=True)
    gaps = [round(ours - theirs, digits) for ours, theirs in pairs]
    fell = sum(right <= left for left, right in itertools.pairwise(gaps))
    evidence = f"printed: {', '.join(f'{gap:+g}' for gap in gaps)}; {fell} of {len(gaps) - 1} steps do not widen it"
    return Verdict(fell <= back and gaps[-1] > gaps[0], evidence)


@claim_kind
def printed_multiples(on: Given, rows: RowNames, column: ColumnName, of: int, digits: int = 2) -> Verdict:
    """Every printed percentage of these rows is, to its digits, a whole number of so many items, as the mean over them
    is where each is right or wrong."""
    off = []
    for row, value in zip(rows, _cells(on, rows, column), strict=True):
        nearest = 100 * round(value * of / 100) / of
        if not _rounds_to(nearest, value, digits):
            off.append(f"{row}: {value:g}, nearest {nearest:.{digits + 1}f}")
    return Verdict(not off, f"printed: {len(rows) - len(off)} of {len(rows)} are multiples of 1 / {of:,}{listed(off)}")


def _rounds_to(number: float, printed: float, digits: int) -> bool:
    """Whether a number is the printed one to so many digits."""
    return abs(number - printed) <= 0.5 * 10**-digits + 1e-9


@claim_kind
def printed_averages(on: Given, column: ColumnName, of: ColumnNames, digits: int = 2) -> Verdict:
    """Every printed average is the mean of its row's printed cells."""
    wrong, rows = [], on.experiment.rows
    for row in rows:
        [average, *cells] = _in_row(on, row.short, [column, *of])
        mean = known(mean_and_error(cells))
        if not _rounds_to(mean, average, digits):
            wrong.append(f"{row.short}: mean {mean:.{digits + 1}f}, printed {average:g}")
    return Verdict(not wrong, f"{len(rows) - len(wrong)} of {len(rows)} averages follow" + listed(wrong))


@claim_kind
def printed_changes_follow(
    on: Given, over: RowName, columns: list[tuple[ColumnName, ColumnName]], digits: int = 1
) -> Verdict:
    """Every printed change (second column, in percent) follows from the printed scores (first column) of its row and
    of the row `over`, to so many digits."""
    wrong = []
    places = [(row.short, *names) for row in on.experiment.rows if row.short != over for names in columns]
    for row, score, change in places:
        ours, theirs, stated = on.printed((row, score), (over, score), (row, change))
        computed = 100 * (ours / theirs - 1)
        if not _rounds_to(computed, stated, digits):
            wrong.append(f"{row}, {score}: {computed:+.{digits + 1}f}, printed {stated:+g}")
    return Verdict(not wrong, f"{len(places) - len(wrong)} of {len(places)} changes follow{listed(wrong)}")


@claim_kind
def printed_correlation(
    on: Given, rows: RowNames, columns: tuple[ColumnName, ColumnName], low: float = -1.0, high: float = 1.0
) -> Verdict:
    """Pearson's correlation of two printed columns over these rows lies between two bounds."""
    found = pearson(*(_cells(on, rows, column) for column in columns))
    if found.r is None:
        raise Open("a correlation needs three rows, and columns whose numbers differ")
    evidence = f"printed: r = {found.r:+.2f} over {len(rows)} rows, asked {low:+g} to {high:+g}"
    return Verdict(low <= found.r <= high, evidence)


@claim_kind
def printed_per_cost(
    on: Given, rows: RowNames, than: RowNames, base: RowName, gain: ColumnName, cost: ColumnName
) -> Verdict:
    """Every one of `rows` lowers column `gain` against the row `base` by more for each unit of column `cost` than every
    one of the others."""
    [start] = on.printed((base, gain))
    rates = {name: (start - on.printed((name, gain))[0]) / on.printed((name, cost))[0] for name in (*rows, *than)}
    evidence = "; ".join(f"{name}: {rate:.3f}" for name, rate in rates.items())
    return Verdict(min(rates[n] for n in rows) > max(rates[n] for n in than), f"printed, for each unit: {evidence}")


# ---- rows against their counterparts in several columns ----


def _gaps(on: Given, rows: list[str], over: list[str], columns: list[str]) -> Values:
    """Row and column → difference of the row from its counterpart. A row that has several counterparts comes once for
    each, with its name."""
    gaps = {}
    for column, (row, counterpart) in itertools.product(columns, zip(rows, over, strict=True)):
        ours, theirs = _cells(on, [row, counterpart], column)
        against = f" over {counterpart}" if rows.count(row) > 1 else ""
        gaps[f"{row}{against}, {column}"] = round(ours - theirs, 6)
    return gaps


@claim_kind
def printed_pairs(
    on: Given,
    rows: RowNames,
    over: RowNames,
    columns: ColumnNames,
    least: int | None = None,
    slack: float = 0.0,
    reason: str = "",
    falls: bool = False,
) -> Verdict:
    """Each row is above its counterpart in each of the columns, or in at least so many (row, column)s.

    slack: one that is below by less than this is counted too ("matches"); `reason` says why it is so large. falls:
    below in place of above, for losses.
    """
    gaps = {place: -gap if falls else gap for place, gap in _gaps(on, rows, over, columns).items()}
    short = _off(gaps, lambda gap: gap > -slack)
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
    on: Given, rows: RowNames, over: RowNames, columns: ColumnNames, low: float, high: float, reason: str
) -> Verdict:
    """Each row differs from its counterpart by no less than `low` and no more than `high` in each of the columns
    ("match", "little deviation"); `reason` says why the bounds are these."""
    gaps = _gaps(on, rows, over, columns)
    span = f"printed: {min(gaps.values()):+.2f} to {max(gaps.values()):+.2f}, asked {low:+g} to {high:+g}"
    outside = _off(gaps, lambda gap: low <= gap <= high)
    return Verdict(not outside, span + listed(outside))


@claim_kind
def printed_differ(on: Given, rows: RowNames, over: RowNames, columns: ColumnNames, by: float, reason: str) -> Verdict:
    """Each row differs from its counterpart, to either side, by more than `by` in each of the columns ("reduces, or
    elevates"); `reason` says why it is so large."""
    gaps = _gaps(on, rows, over, columns)
    near = _off(gaps, lambda gap: abs(gap) > by)
    evidence = f"printed: apart by more than {by:g} in {len(gaps) - len(near)} of {len(gaps)}"
    return Verdict(not near, f"{evidence}; {', '.join(f'{gap:+.2f}' for gap in gaps.values())}{listed(near)}")


@claim_kind
def printed_gaps_apart(
    on: Given, rows: RowNames, over: RowNames, column: ColumnName, other: ExperimentName, other_column: OtherColumn
) -> Verdict:
    """Each row is farther above its counterpart in a column than the rows of the same names are in a column of another
    experiment."""
    ours = _gaps(on, rows, over, [column]).values()
    theirs = _gaps(on.elsewhere(other), rows, over, [other_column]).values()
    gaps = list(zip(rows, ours, theirs, strict=True))
    short = [row for row, here, there in gaps if not here > there]
    evidence = "; ".join(f"{row}: {here:+.2f} here, {there:+.2f} in {other}" for row, here, there in gaps)
    return Verdict(not short, f"printed: {evidence}{listed(short)}")


@claim_kind
def printed_changes_apart(
    on: Given,
    row: RowName,
    over: RowName,
    columns: ColumnNames,
    than: ColumnNames,
    direction: Literal["rises", "falls"],
    unit: Literal["percent", "points"] = "percent",
) -> Verdict:
    """From `over` to `row`, each of some columns rises (or falls) by more than each of the others."""

    def change(column: str) -> float:
        ours, theirs = _cells(on, [row, over], column)
        found = 100 * (ours / theirs - 1) if unit == "percent" else ours - theirs
        return found if direction == "rises" else -found

    ours, theirs = ({column: change(column) for column in names} for names in (columns, than))
    least, most = min(ours, key=ours.__getitem__), max(theirs, key=theirs.__getitem__)
    evidence = f"printed: smallest {ours[least]:+.2f} ({least}), largest of the others {theirs[most]:+.2f} ({most})"
    return Verdict(ours[least] > theirs[most], f"{evidence}, in {unit}")


@claim_kind
def printed_best(on: Given, row: RowName, over: RowNames, columns: ColumnNames, count: int) -> Verdict:
    """One row is above all the others in exactly so many of the columns."""
    behind = []
    for column in columns:
        [ours, *others] = _cells(on, [row, *over], column)
        if not ours > max(others):
            behind.append(f"{column}: {ours:g}, highest of the others {max(others):g}")
    best = len(columns) - len(behind)
    return Verdict(best == count, f"printed: best in {best} of {len(columns)}, stated {count}{listed(behind)}")


@claim_kind
def printed_best_varies(on: Given, groups: list[RowNames], columns: ColumnNames) -> Verdict:
    """In each of several groups of rows, such as the models of one size, no row is the highest of its group in all of
    the columns."""
    always, counted = [], []
    for rows in groups:
        table = [_cells(on, rows, column) for column in columns]
        best = {row: sum(values[i] == max(values) for values in table) for i, row in enumerate(rows)}
        always += [row for row, count in best.items() if count == len(columns)]
        counted += [f"{row} {count}" for row, count in best.items()]
    evidence = f"printed: highest, alone or with others, in so many of {len(columns)}: {', '.join(counted)}"
    return Verdict(not always, evidence + listed(always))


# ---- against another table ----


def _both(
    on: Given, rows: list[str], columns: list[str], other: str, other_columns: list[str]
) -> Iterator[tuple[str, float, float]]:
    """(row and column, number here, number there)."""
    for (column, name), row in itertools.product(zip(columns, other_columns, strict=True), rows):
        [ours], [theirs] = on.printed((row, column)), on.elsewhere(other).printed((row, name))
        yield f"{row}, {column}", ours, theirs


@claim_kind
def printed_as(
    on: Given, rows: RowNames, columns: ColumnNames, other: ExperimentName, other_columns: list[OtherColumn]
) -> Verdict:
    """The printed cells of these rows are those of the rows of the same names in another experiment, column by
    column."""
    pairs = list(_both(on, rows, columns, other, other_columns))
    wrong = [f"{place}: {ours:g} here, {theirs:g} there" for place, ours, theirs in pairs if ours != theirs]
    return Verdict(not wrong, f"printed: {len(pairs) - len(wrong)} of {len(pairs)} are equal in {other}{listed(wrong)}")


@claim_kind
def printed_near(
    on: Given, rows: RowNames, columns: ColumnNames, other: ExperimentName, within: float, reason: str
) -> Verdict:
    """The printed cells of these rows differ by no more than `within` from those of the same names in another
    experiment, such as one with another seed; `reason` says why it is so large."""
    apart = {place: round(ours - theirs, 6) for place, ours, theirs in _both(on, rows, columns, other, columns)}
    wrong = _off(apart, lambda gap: abs(gap) <= within)
    evidence = f"printed: within {within:g} of {other} in {len(apart) - len(wrong)} of {len(apart)}"
    return Verdict(not wrong, evidence + listed(wrong))


@claim_kind
def printed_order(
    on: Given, rows: RowNames, columns: ColumnNames, other: ExperimentName, like: list[OtherRow]
) -> Verdict:
    """In each of the columns the rows stand in the order of their counterparts `like` in another experiment, or in this
    one under other conditions ("the relative order stays the same"). Equal numbers contradict no order."""
    changed = []
    for column in columns:
        ours, theirs = _cells(on, rows, column), _cells(on.elsewhere(other), like, column)
        places = itertools.combinations(range(len(rows)), 2)
        if any((ours[i] - ours[j]) * (theirs[i] - theirs[j]) < 0 for i, j in places):
            changed.append(f"{column}: {_ranked(rows, ours)} here, {_ranked(like, theirs)} there")
    kept = len(columns) - len(changed)
    return Verdict(not changed, f"printed: the order is the same in {kept} of {len(columns)}{listed(changed)}")


def _ranked(names: list[str], values: list[float]) -> str:
    """The names from the highest value to the lowest."""
    return " > ".join(name for _, name in sorted(zip(values, names, strict=True), reverse=True))


@claim_kind
def printed_spread(
    on: Given,
    rows: RowNames,
    columns: ColumnNames,
    other: ExperimentName,
    other_columns: list[OtherColumn],
    times: float = 1.0,
) -> Verdict:
    """The variance over these columns is larger, in each row, than that over columns of another experiment in the row
    of the same name: more than so many times as large."""
    ratios = {}
    for row in rows:
        ours, theirs = _in_row(on, row, columns), _in_row(on.elsewhere(other), row, other_columns)
        ratios[row] = statistics.pvariance(ours) / statistics.pvariance(theirs)
    below = _off(ratios, lambda ratio: ratio > times, ".2f")
    span = f"printed: {min(ratios.values()):.2f} to {max(ratios.values()):.2f} times as large"
    return Verdict(not below, f"{span}, asked above {times:g}{listed(below)}")


# ---- lists of names, and the table itself ----


@claim_kind
def printed_differ_in(on: Given, row: RowName, over: RowName, columns: ColumnNames) -> Verdict:
    """Two rows differ in these of their printed numbers, and in no others."""
    ours, theirs = on.row(row).paper, on.row(over).paper
    differ = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    numbers = ", ".join(f"{name} ({ours[name]:g}, {theirs[name]:g})" for name in differ)
    return Verdict(set(differ) == set(columns), f"printed: they differ in {numbers or 'nothing'}")


@claim_kind
def printed_apart(on: Given, rows: RowNames, over: RowNames, column: ColumnName) -> Verdict:
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
def printed_alike(on: Given, rows: RowNames, like: RowName, column: ColumnName) -> Verdict:
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


@claim_kind
def printed_ratios_follow(on: Given, rounding: float = 0.05) -> Verdict:
    """The ratios of printed speeds to vanilla's equal the ratios of work in layers, L / (L + 3·h/H) and L / (L + 3),
    within the rounding of the cells. Measured speeds would scatter around these ratios, so the printed ones look
    computed.
    """
    off, count, largest = [], 0, 0.0
    rows = on.experiment.rows
    vanilla = {(r.given["group"], r.given["batch"]): r.short for r in rows if r.given["model"] == "Vanilla"}
    for row in (row for row in rows if row.given["model"] != "Vanilla"):
        base, wanted = vanilla[row.given["group"], row.given["batch"]], _work_ratio(on, row.given)
        for part in PARTS:
            ours, theirs = _cells(on, [row.short, base], part)
            low, high = (ours - rounding) / (theirs + rounding), (ours + rounding) / (theirs - rounding)
            count += 1
            largest = max(largest, abs(ours / theirs - wanted))
            if not low <= wanted <= high:
                off.append(f"{row.short} {part}: {ours / theirs:.4f} for {wanted:.4f}")
    evidence = f"{count - len(off)} of {count} printed ratios are the ratio of work within the cells' rounding"
    return Verdict(not off, f"{evidence}; largest difference {largest:.4f}{listed(off)}")


def _work_ratio(on: Given, given: dict[str, Any]) -> float:
    """Layers of the plain stack divided by layers that run; a head loop counts as its share of heads."""
    spec = on.experiment.benchmark
    assert spec is not None, "rows with a model and a batch are those of a benchmark"
    config = resolve(spec.models[given["model"]].arch, spec.sizes["paper"][given["group"]])
    work = 0.0
    for _, visit in final_structure(config).plan.places():
        if visit.part == "attention" and visit.heads is not None:
            work += len(visit.heads) / config.shape.heads
        elif visit.part != "mlp":
            # An MLP that is a visit of its own belongs to an attention that is counted already.
            work += 1
    return config.shape.layers / work
