"""A table of a paper beside the values measured here: as data, and what of it is shown.

A cell: measured, paper, stderr, over (what the error is over), n (seeds), class, verdict; and only where there is one,
difference (to the row that its row is compared with) and same_as (an earlier row with the same run). Columns that
nothing here can measure, and rows that a scale does not train, are named in a line; table.json has all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hybridlab.lab.papers.analytic import compute
from hybridlab.lab.papers.cells import Records, benchmark_record, records_of
from hybridlab.lab.papers.experiment import BENCHMARK, CellClass, Column, Experiment, Row
from hybridlab.lab.papers.formula import NoValue, number_of
from hybridlab.lab.papers.plans import history
from hybridlab.lab.papers.sweep import sweep_notes
from hybridlab.lab.reporting.claims import DASH
from hybridlab.lab.reporting.entry_data import (
    entry_data,
    is_written,
    model_of,
    model_text,
    models_text,
    named_in_errors,
)
from hybridlab.lab.reporting.seeds import (
    Difference,
    Measured,
    Sources,
    difference,
    difference_of_numbers,
    from_neutral,
    mean_numbers,
    measured,
    measured_numbers,
    numbers_at,
)
from hybridlab.runs.record import BenchmarkRecord, Record
from hybridlab.statistics import Measurement

if TYPE_CHECKING:
    import pandas as pd

Words = str
"""Text in a cell that has no number."""
Printed = float | str | None
"""The paper's value; None if it prints none."""
NOT_MEASURED = Measured(value=None)
TRAINED: tuple[CellClass, ...] = ("trained", "timed")
"""Classes of cells that never agree with the paper's value; only their direction can be compared."""


def build_table(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> dict[str, Any]:
    """The content of table.json: panels, columns, rows, claims, notes, and the runs that it was made from.

    panels: name → title. columns: as in the file of the experiment. rows: with group, the paper's model as `cells`
    group them, and trained, whether its model is trained at this scale.
    """
    records = records_of(experiment, scale, results_dir, runs_dir)
    benchmark = benchmark_record(experiment, scale, results_dir)
    rows: list[dict[str, Any]] = []
    for row in experiment.rows:
        reference = experiment.reference_of(row)
        model = model_of(experiment, scale, row.cell, records)
        group = experiment.cells[row.cell].group if row.cell in experiment.cells else None
        about = {"reference": reference and reference.short, "group": group, "model": model}
        trained = model is not None or row.cell in (None, BENCHMARK) or scale not in experiment.scales
        rows.append({"name": row.name, "short": row.short, **about, "trained": trained, "cells": {}})
    for column in experiment.columns:
        with named_in_errors(experiment):
            for target, row in zip(rows, experiment.rows, strict=True):
                target["cells"][column.name] = _cell(column, row, Measurements(experiment, records, benchmark, scale))
        _mark_repeated(column, experiment, rows)
    columns = [
        column.model_dump(mode="json", exclude_defaults=True, exclude={"scaling"}) for column in experiment.columns
    ]
    content = {"panels": experiment.panels, "columns": columns, "rows": rows}
    notes = sweep_notes(experiment, scale, results_dir, records)
    data = entry_data(experiment, scale, records, benchmark, content, notes, history(experiment.id, scale, results_dir))
    return {**data, "tally": tally(rows)}


@dataclass(frozen=True)
class Measurements:
    """What the columns of an experiment read: the records of its runs at a scale, and that of its benchmark."""

    experiment: Experiment
    records: Records
    benchmark: BenchmarkRecord | None
    scale: str | None = None

    @property
    def unit(self) -> str:
        """Of what there is a number each: the seed, the prompt or the document."""
        return self.experiment.unit(self.scale)

    def sources(self, column: Column, row: Row) -> Sources:
        """The records behind a cell of the table: one for each seed of its run, or that of the benchmark."""
        if row.cell == BENCHMARK:
            return {} if self.benchmark is None else {0: self.benchmark}
        metric = column.at_rate_of or column.metric_of(row)
        arm = self.experiment.arm(self.scale, column.cell_of(row) or "", metric)
        return self.records.get(arm, {})

    def numbers(self, column: Column, row: Row) -> dict[int, Measurement]:
        """seed → the number that a cell of the table shows: a measure, a mean of columns, or one of a record."""
        if column.mean_of:
            mean = mean_numbers([self.numbers(self.experiment.column(name), row) for name in column.mean_of])
            return {seed: number.scaled(column.factor) for seed, number in mean.items()}
        metric, sources = column.metric_of(row), self.sources(column, row)
        if metric not in self.experiment.measures:
            return numbers_at(sources, metric, column.factor)
        measurements = {}
        for seed, record in sources.items():
            with suppress(NoValue):
                value = number_of(cast(Record, record), metric, self.experiment.measures)
                measurements[seed] = Measurement(value=value * column.factor, n=1)
        return measurements

    def computed(self, column: Column, row: Row) -> bool:
        """Whether the number is made from others, which have the errors of its parts and no validation windows."""
        return bool(column.mean_of) or column.metric_of(row) in self.experiment.measures


def measure(column: Column, row: Row, on: Measurements) -> Measured | Words:
    """A cell's measurement; text if the column computes text."""
    if column.compute is not None:
        computed = compute(column.compute, row.given)
        return computed if isinstance(computed, str) else Measured(value=computed * column.factor, n=1)
    if on.computed(column, row):
        return measured_numbers(on.numbers(column, row))
    if column.metric is None:
        return NOT_MEASURED
    return measured(on.sources(column, row), column.metric_of(row), column.factor)


def compared(column: Column, row: Row, reference: Row | None, on: Measurements) -> Difference | None:
    """The difference of a trained cell to the one of the reference row in the same column, paired by seed."""
    if column.kind not in TRAINED:
        return None
    if column.neutral is not None:
        measured = measure(column, row, on)
        return from_neutral(measured, column.neutral) if isinstance(measured, Measured) else None
    if on.computed(column, row):
        other_numbers = {} if reference is None else on.numbers(column, reference)
        return difference_of_numbers(on.numbers(column, row), other_numbers)
    if column.metric is None or reference is None or column.metric_of(reference) != column.metric_of(row):
        return None
    return difference(on.sources(column, row), on.sources(column, reference), column.metric_of(row), column.factor)


def _cell(column: Column, row: Row, on: Measurements) -> dict[str, Any]:
    reference = on.experiment.reference_of(row)
    paper = row.paper.get(column.name)
    measured = measure(column, row, on)
    number = measured if isinstance(measured, Measured) else Measured(value=None, n=1)
    delta = compared(column, row, reference, on)
    base = reference.paper.get(column.name) if reference is not None else None
    base = base if column.neutral is None else column.neutral
    gap = paper - base if isinstance(paper, float | int) and isinstance(base, float | int) else None
    value = measured if isinstance(measured, str) else number.value
    difference = None if delta is None else delta.model_dump(mode="json") | {"over": _of_units(delta.over, on.unit)}
    return {
        "measured": value,
        "paper": paper,
        "stderr": number.stderr,
        "over": _of_units(number.over, on.unit),
        "n": number.n,
        **({} if difference is None else {"difference": difference}),
        "class": column.class_of(row),
        # A fitted cell is compared as the other cells of its column are.
        "verdict": verdict_on(column.kind, column.digits_of(row), value, paper, delta, gap),
    }


def _of_units(over: str | None, unit: str) -> str | None:
    """What an error is over, where the numbers are of prompts or documents."""
    return f"{unit}s" if over == "seeds" else over


def _mark_repeated(column: Column, experiment: Experiment, rows: list[dict[str, Any]]) -> None:
    """A number of the same run in the same column is shown once; the later cells name the row that shows it. Where both
    are compared, it is with the same reference."""
    first: dict[tuple[str, str], Row] = {}
    for target, row in zip(rows, experiment.rows, strict=True):
        if column.kind != "trained" or column.metric is None or row.cell in (None, BENCHMARK):
            continue
        shown_by = first.setdefault((column.cell_of(row) or "", column.metric_of(row)), row)
        references = {base.short for base in map(experiment.reference_of, (row, shown_by)) if base is not None}
        if shown_by is not row and len(references) < 2 and target["cells"][column.name]["measured"] is not None:
            target["cells"][column.name]["same_as"] = shown_by.short


def verdict_on(
    kind: CellClass,
    digits: int,
    value: float | Words | None,
    paper: Printed,
    found: Difference | None = None,
    gap: float | None = None,
) -> str | None:
    """The verdict on a cell beside the paper's value; None if there is nothing to compare.

    Of an exact class: agrees | differs. Trained and timed, on other text or another machine: same direction | opposite
    direction from the reference where the difference `found` is resolved over seeds, else open. gap: the difference
    that the paper prints. not run: nothing was measured.
    """
    if paper is None or kind == "transcribed":
        return None
    if value is None:
        return "not run"
    if kind in TRAINED:
        if found is None or gap is None:
            return None
        if not (product := found.sign * gap):
            return "open"
        return "same direction" if product > 0 else "opposite direction"
    if isinstance(value, str) or isinstance(paper, str):
        return "agrees" if value == paper else "differs"
    off_by_one = kind == "last digit" and abs(value - paper) <= 1.5 * 10**-digits
    return "agrees" if off_by_one or round(value, digits) == round(paper, digits) else "differs"


def tally(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """class → verdict → number of cells with a printed value that were computed or measured."""
    counts: dict[str, Counter[str]] = {}
    for cell in (cell for row in rows for cell in row["cells"].values()):
        if cell["verdict"] not in (None, "not run"):
            counts.setdefault(cell["class"], Counter())[cell["verdict"]] += 1
    return {kind: dict(by_verdict) for kind, by_verdict in counts.items()}


# ---- what of it is shown ----


@dataclass(frozen=True)
class Part:
    """A panel as it is shown. title: "" for none; rows: of table.json. measured: whether it has numbers of runs."""

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    measured: bool

    @property
    def heads(self) -> list[str]:
        return ["", *(column.title for column in self.columns)]

    def grid(self, text_of: Callable[[CellText], Any], key: str = "name") -> list[list[Any]]:
        """The name of each row, and what is shown of its cells. key: see `row_name`."""
        return [[self.row_name(row, key), *map(text_of, self.texts(row))] for row in self.rows]

    def texts(self, row: dict[str, Any]) -> list[CellText]:
        return [cell_text(row["cells"][column.name], column) for column in self.columns]

    def row_name(self, row: dict[str, Any], key: str = "name") -> str:
        """A row's name; in a measured panel with the model that stands there. key: name, or short for narrow lines."""
        model = row["model"]
        if not self.measured or model is None or not model["in_place_of"]:
            return str(row[key])
        return f"{row[key]} [{model_text(model) if key == 'name' else model['size']}]"


def columns_of(table: dict[str, Any]) -> list[Column]:
    """The columns of a table as data."""
    return [Column.model_validate(column) for column in table["columns"]]


def parts(table: dict[str, Any], all_columns: bool = False) -> list[Part]:
    """The panels that have something to show. all_columns: also columns that nothing here can measure."""
    panels = []
    hidden = folded(table, all_columns)
    for name, title in table["panels"].items():
        columns = [column for column in columns_of(table) if column.panel == name and column not in hidden]
        if not columns:
            continue
        measured = any(column.metric is not None for column in columns)
        rows = [
            row
            for row in table["rows"]
            if not measured
            or row["trained"]
            or any(row["cells"][column.name]["paper"] is not None for column in columns)
        ]
        models = models_text(row["model"] for row in rows) if measured else ""
        where = f"Scale {table['scale']}: {models}" if models else ""
        panels.append(Part(". ".join(filter(None, (title, where))), columns, rows, measured))
    return panels


def folded(table: dict[str, Any], all_columns: bool = False) -> list[Column]:
    """The columns that are left out: those that nothing here can measure, and benchmarks that no run has been asked."""
    measured = {name for row in table["rows"] for name, cell in row["cells"].items() if cell["measured"] is not None}
    return [
        column
        for column in columns_of(table)
        if not all_columns and not (column.name in measured if column.of_benchmarks else column.measurable)
    ]


def below(
    table: dict[str, Any], all_columns: bool = False, see_printed: str = " (the paper's values: --all-columns)"
) -> Iterator[str]:
    """The lines below a table: how to read a cell, and what is left out. see_printed: how the printed values of columns
    that are left out are seen."""
    yield _how_to_read(table)
    if hidden := folded(table, all_columns):
        yield f"not measured here: {', '.join(column.title for column in hidden)}{see_printed}"
    panels = parts(table, all_columns)
    measured = [row["short"] for part in panels if part.measured for row in part.rows]
    left_out = [row for row in table["rows"] if row["short"] not in measured]
    if left_out and any(part.measured for part in panels):
        measured_groups = {row["group"] for row in table["rows"] if row not in left_out}
        groups = [(row["group"], row["short"]) for row in left_out]
        names = [f"the rows of {group}" if group and group not in measured_groups else short for group, short in groups]
        yield f"not trained at this scale: {', '.join(dict.fromkeys(names))}"


def _how_to_read(table: dict[str, Any]) -> str:
    cells = [cell for row in table["rows"] for cell in row["cells"].values()]
    text = "Cells: measured | paper (verdict); – was not measured."
    if is_written(table) and all(cell["paper"] is None for cell in cells):
        text = "– was not measured."
    differences = [cell["difference"] for cell in cells if "difference" in cell and "same_as" not in cell]
    compared = [row for row in table["rows"] if any("difference" in cell for cell in row["cells"].values())]
    references = list(dict.fromkeys(row["reference"] for row in compared if row["reference"]))
    if references and differences:
        text += f" Δ: difference to {' or '.join(references)}, paired by {table.get('unit', 'seed')}"
        text += ", with its 95 % t-interval." if any(difference["interval"] for difference in differences) else "."
    if any(number["over"] == "windows" for number in (*differences, *cells)):
        text += (
            " ± … over windows: validation windows in blocks of ten, from fewer than three seeds; it leaves out what "
            "another seed would change, and decides nothing."
        )
    return text


def tally_text(table: dict[str, Any]) -> str:
    """How many cells with a printed value come out, by class; "" if there are none."""
    texts = []
    for kind, counts in table.get("tally", {}).items():
        if kind in ("trained", "timed"):
            texts.append(f"{kind}: " + ", ".join(f"{word} {count}" for word, count in counts.items()))
        else:
            texts.append(f"{kind} {counts.get('agrees', 0)} of {sum(counts.values())}")
    return f"Against the paper's values: {' · '.join(texts)}" if texts else ""


# ---- a cell as text ----


@dataclass(frozen=True)
class CellText:
    """What every page says of a cell; each part is "" for what the cell has not.

    measured: the value; only in the paper's own words the paper's stands alone. error: the paired difference (Δ) to the
    reference with its interval or error; without one, the value's own error. paper: what the paper prints. verdict: on
    the two of them. same_as: the earlier row with the same run. value: by which the cell is sorted.
    """

    measured: str
    error: str
    paper: str
    verdict: str
    same_as: str
    value: float | str

    @property
    def short(self) -> str:
        """measured | paper, without the error, for narrow columns."""
        return " | ".join(filter(None, (self.measured, self.paper)))

    @property
    def full(self) -> str:
        """measured, with its error, | paper (verdict)."""
        gap = ", " if self.error.startswith("Δ") else " "
        measured = f"{self.measured}{gap}{self.error}".rstrip()
        return " | ".join(filter(None, (measured, self.paper))) + (f" ({self.verdict})" if self.verdict else "")


def cell_text(cell: dict[str, Any], column: Column) -> CellText:
    """A cell as text; `as above` for a value of the same run as in an earlier row."""
    paper = "" if cell["paper"] is None else _number(cell["paper"], column.digits)
    measured = "as above" if "same_as" in cell else _number(cell["measured"], column.digits)
    text = "" if column.kind == "transcribed" and paper else measured
    value = next((value for value in (cell["measured"], cell["paper"]) if value is not None), "")
    return CellText(text, _error(cell, column), paper, cell["verdict"] or "", cell.get("same_as", ""), value)


def _error(cell: dict[str, Any], column: Column) -> str:
    if column.kind == "transcribed" or column.bare or cell["measured"] is None or "same_as" in cell:
        return ""
    digits, delta = column.digits + (column.kind == "trained"), cell.get("difference")
    if delta is None or column.neutral is not None:
        return "" if cell["stderr"] is None else f"± {_number(cell['stderr'], digits)} {_over(cell)}"
    text = f"Δ {_signed(delta['value'], digits)}"
    if delta["interval"] is not None:
        low, high = (_signed(end, digits) for end in delta["interval"])
        return f"{text} [{low}, {high}], n = {delta['n']}"
    return text if delta["stderr"] is None else f"{text} ± {_number(delta['stderr'], digits)} {_over(delta)}"


def _over(number: dict[str, Any]) -> str:
    """What a standard error is over, and how many, unless these are windows or rows."""
    many = f"{number['n']} " if number["over"] in ("seeds", "prompts", "documents") else ""
    return f"over {many}{number['over']}"


def _number(value: float | str | None, digits: int) -> str:
    if isinstance(value, str):
        return value
    return DASH if value is None else f"{value:,.{digits}f}"


def _signed(value: float, digits: int) -> str:
    """With its sign; what rounds to 0 has none."""
    text = f"{value:+,.{digits}f}".replace("-", "−")
    return text if any(digit in text for digit in "123456789") else text[1:]


# ---- for other programs ----


def frame_of(table: dict[str, Any], all_columns: bool = False) -> pd.DataFrame:
    """One line for each cell, with numbers: for other programs."""
    import pandas as pd  # here, so that a report without --csv starts fast

    hidden = {column.name for column in folded(table, all_columns)}
    return pd.DataFrame(
        {"row": row["name"], "column": column.name, **_flat(row["cells"][column.name])}
        for row in table["rows"]
        for column in columns_of(table)
        if column.name not in hidden
    )


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with the parts of its difference as columns of their own."""
    delta = cell.get("difference", {})
    low, high = delta.get("interval") or (None, None)
    parts = {"difference": delta.get("value"), "difference_stderr": delta.get("stderr"), "low": low, "high": high}
    verdict = {"class": cell["class"], "verdict": cell["verdict"]}
    fields = {key: value for key, value in cell.items() if key not in ("difference", *verdict)}
    fields["same_as"] = cell.get("same_as")
    return {**fields, **parts, "difference_over": delta.get("over"), "p": delta.get("p"), **verdict}
