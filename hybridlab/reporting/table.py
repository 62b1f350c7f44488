"""A table of a paper beside the values measured here, as data.

A cell: measured, paper, stderr, over (what the error is over), n (seeds), difference (to the row that its row is
compared with), same_as (an earlier row with the same run), class, verdict.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hybridlab.papers.analytic import compute
from hybridlab.papers.experiment import Experiment
from hybridlab.papers.formula import NoValue
from hybridlab.papers.measures import number_of
from hybridlab.papers.plans import history
from hybridlab.papers.records import Records, benchmark_record, records_of
from hybridlab.papers.rows import BENCHMARK, CellClass, Column, Row
from hybridlab.papers.sweep import sweep_notes
from hybridlab.reporting.entry_data import entry_data, named_in_errors
from hybridlab.reporting.measuring import (
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
from hybridlab.reporting.models import model_of
from hybridlab.runs.record import BenchmarkRecord, Record
from hybridlab.statistics import Measurement

Words = str
"""Text in a cell that has no number."""
Printed = float | str | None
"""The paper's value; None if it prints none."""
NOT_MEASURED = Measured(value=None)
TRAINED: tuple[CellClass, ...] = ("trained", "timed")
"""Classes of cells that never agree with the paper's value; only their direction can be compared."""


def build_table(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> dict[str, Any]:
    """The content of table.json: rows, claims, notes, and the runs that it was made from."""
    records = records_of(experiment, scale, results_dir, runs_dir)
    benchmark = benchmark_record(experiment, scale, results_dir)
    rows: list[dict[str, Any]] = []
    for row in experiment.rows:
        reference = experiment.reference_of(row)
        about = {"reference": reference and reference.short, "model": model_of(experiment, scale, row.cell, records)}
        rows.append({"name": row.name, "short": row.short, **about, "cells": {}})
    for column in experiment.columns:
        with named_in_errors(experiment):
            for target, row in zip(rows, experiment.rows, strict=True):
                target["cells"][column.name] = _cell(column, row, Measurements(experiment, records, benchmark, scale))
        _mark_repeated(column, experiment, rows)
    notes = sweep_notes(experiment, scale, results_dir)
    data = entry_data(
        experiment, scale, records, benchmark, {"rows": rows}, notes, history(experiment.id, scale, results_dir)
    )
    return {**data, "tally": tally(rows)}


@dataclass(frozen=True)
class Measurements:
    """What the columns of an experiment read: the records of its runs at a scale, and that of its benchmark."""

    experiment: Experiment
    records: Records
    benchmark: BenchmarkRecord | None
    scale: str | None = None

    def sources(self, column: Column, row: Row) -> Sources:
        """The records behind a cell of the table: one for each seed of its run, or that of the benchmark."""
        if row.cell == BENCHMARK:
            return {} if self.benchmark is None else {0: self.benchmark}
        arm = self.experiment.arm(self.scale, column.cell_of(row) or "", column.metric_of(row))
        return self.records.get(arm, {})

    def numbers(self, column: Column, row: Row) -> dict[int, Measurement]:
        """seed → the number that a cell of the table shows: a measure, a mean of columns, or one of a record."""
        if column.mean_of:
            return mean_numbers([self.numbers(self.experiment.column(name), row) for name in column.mean_of])
        metric, sources = column.metric_of(row), self.sources(column, row)
        if metric not in self.experiment.measures:
            return numbers_at(sources, metric, column.factor)
        found = {}
        for seed, record in sources.items():
            with suppress(NoValue):
                value = number_of(cast(Record, record), metric, self.experiment.measures)
                found[seed] = Measurement(value=value * column.factor, n=1)
        return found

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
    sources = on.sources(column, row)
    if column.metric is None or not sources:
        return NOT_MEASURED
    return measured(sources, column.metric_of(row), column.factor)


def compared(column: Column, row: Row, reference: Row | None, on: Measurements) -> Difference | None:
    """The difference of a trained cell to the one of the reference row in the same column, paired by seed."""
    if column.kind not in TRAINED:
        return None
    if on.computed(column, row):
        other_numbers = {} if reference is None else on.numbers(column, reference)
        return difference_of_numbers(on.numbers(column, row), other_numbers)
    sources = on.sources(column, row)
    if column.metric is None or not sources:
        return None
    if column.neutral is not None:
        return from_neutral(measured(sources, column.metric_of(row), column.factor), column.neutral)
    if reference is None or column.metric_of(reference) != column.metric_of(row):
        return None
    other = on.sources(column, reference)
    return difference(sources, other, column.metric_of(row), column.factor)


def _cell(column: Column, row: Row, on: Measurements) -> dict[str, Any]:
    reference = on.experiment.reference_of(row)
    paper = row.paper.get(column.name)
    shown = measure(column, row, on)
    number = shown if isinstance(shown, Measured) else Measured(value=None, n=1)
    found = compared(column, row, reference, on)
    base = reference.paper.get(column.name) if reference is not None else None
    gap = _printed_gap(paper, base if column.neutral is None else column.neutral)
    value = shown if isinstance(shown, str) else number.value
    cell: dict[str, Any] = {
        "measured": value,
        "paper": paper,
        "stderr": number.stderr,
        "over": number.over,
        "n": number.n,
    }
    cell |= {"difference": None if found is None else found.model_dump(mode="json"), "same_as": None}
    # A fitted cell is compared as the other cells of its column are.
    return {
        **cell,
        "class": column.class_of(row),
        "verdict": verdict_on(column.kind, column.digits, value, paper, found, gap),
    }


def _printed_gap(paper: Printed, base: Printed) -> float | None:
    """The paper's value less the one that it is compared with; None if it does not print both."""
    return paper - base if isinstance(paper, float | int) and isinstance(base, float | int) else None


def _mark_repeated(column: Column, experiment: Experiment, rows: list[dict[str, Any]]) -> None:
    """A number of the same run in the same column is shown once; the later cells name the row that shows it."""
    first: dict[tuple[str, str], str] = {}
    for target, row in zip(rows, experiment.rows, strict=True):
        if column.kind != "trained" or column.metric is None or row.cell in (None, BENCHMARK):
            continue
        shown_by = first.setdefault((column.cell_of(row) or "", column.metric_of(row)), row.short)
        if shown_by != row.short and target["cells"][column.name]["measured"] is not None:
            target["cells"][column.name]["same_as"] = shown_by


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
        return "open" if not found.sign or not gap else _direction(found.sign * gap)
    if isinstance(value, str) or isinstance(paper, str):
        return "agrees" if value == paper else "differs"
    off_by_one = kind == "last digit" and abs(value - paper) <= 1.5 * 10**-digits
    return "agrees" if off_by_one or round(value, digits) == round(paper, digits) else "differs"


def _direction(product: float) -> str:
    return "same direction" if product > 0 else "opposite direction"


def tally(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """class → verdict → number of cells with a printed value that were computed or measured."""
    counts: dict[str, Counter[str]] = {}
    for cell in (cell for row in rows for cell in row["cells"].values()):
        if cell["verdict"] not in (None, "not run"):
            counts.setdefault(cell["class"], Counter())[cell["verdict"]] += 1
    return {kind: dict(found) for kind, found in counts.items()}
