"""A table of a paper beside the values measured here, as data. A cell: measured, paper, stderr, n, class, verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridlab.papers.analytic import compute
from hybridlab.papers.experiment import BENCHMARK, Column, Experiment, Row
from hybridlab.papers.records import Records, benchmark_record, records_of
from hybridlab.papers.sweep import sweep_notes
from hybridlab.reporting.entry_data import entry_data, named_in_errors
from hybridlab.runs.record import BenchmarkRecord, Record, number_at
from hybridlab.statistics import NOT_MEASURED, Measurement, mean_and_error

Words = str
"""Text in a cell that has no number."""
Printed = float | str | None
"""The paper's value; None if it prints none."""
Base = tuple[float | None, Printed]
"""Measured and printed value of the reference row, relative to which directions are compared."""


def build_table(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> dict[str, Any]:
    """The content of table.json: rows, claims, notes, and the runs that it was made from."""
    records = records_of(experiment, scale, results_dir, runs_dir)
    benchmark = benchmark_record(experiment, scale, results_dir)
    rows: list[dict[str, Any]] = [{"name": row.name, "short": row.short, "cells": {}} for row in experiment.rows]
    reference = next((row for row in experiment.rows if row.short == experiment.reference), None)
    for column in experiment.columns:
        with named_in_errors(experiment):
            measured = {row.short: measure(column, row, records, benchmark) for row in experiment.rows}
        base: Base = (None, None)
        if reference is not None:
            base = (_value(measured[reference.short]), reference.paper.get(column.name))
        for target, row in zip(rows, experiment.rows, strict=True):
            target["cells"][column.name] = _cell(column, measured[row.short], row.paper.get(column.name), base)
    notes = sweep_notes(experiment, scale, results_dir)
    return entry_data(experiment, scale, records, benchmark, {"rows": rows}, notes)


def measure(column: Column, row: Row, records: Records, benchmark: BenchmarkRecord | None) -> Measurement | Words:
    """A cell's measurement: the mean over seeds if there are several, else the run's own; text if the column computes
    text."""
    if column.compute is not None:
        computed = compute(column.compute, row.given)
        return computed if isinstance(computed, str) else Measurement(value=computed * column.factor, n=1)
    sources = _sources(row, records, benchmark)
    if column.metric is None or not sources:
        return NOT_MEASURED
    path = column.metric_of(row)
    measured = [number_at(record, path).scaled(column.factor) for record in sources]
    values = [measurement.value for measurement in measured if measurement.value is not None]
    if len(values) == 1:
        return next(measurement for measurement in measured if measurement.value is not None)
    return mean_and_error(values)


def _sources(row: Row, records: Records, benchmark: BenchmarkRecord | None) -> Sequence[Record | BenchmarkRecord]:
    """The records behind a row: one for each seed of its cell, or that of the benchmark."""
    if row.cell == BENCHMARK:
        return [] if benchmark is None else [benchmark]
    return list(records.get(row.cell or "", {}).values())


def _value(measured: Measurement | Words) -> float | None:
    return measured.value if isinstance(measured, Measurement) else None


def _cell(column: Column, measured: Measurement | Words, paper: Printed, base: Base) -> dict[str, Any]:
    number = measured if isinstance(measured, Measurement) else Measurement(value=None, n=1)
    shown = measured if isinstance(measured, str) else measured.value
    verdict = verdict_on(column, shown, number.stderr, paper, base)
    cell = {"measured": shown, "paper": paper, "stderr": number.stderr, "n": number.n}
    return {**cell, "class": column.kind, "verdict": verdict}


def verdict_on(
    column: Column, measured: float | Words | None, stderr: float | None, paper: Printed, base: Base
) -> str | None:
    """agrees | same direction | differs | not run; None if the paper prints no value to compare with."""
    if paper is None or column.kind == "transcribed":
        return None
    if measured is None:
        return "not run"
    if isinstance(measured, str) or isinstance(paper, str):
        return "agrees" if measured == paper else "differs"
    if round(measured, column.digits) == round(paper, column.digits):
        return "agrees"
    if column.kind == "timed" and stderr is None:
        # A speed depends on the machine, so only ratios of speeds are compared; these have an error.
        return None
    if column.kind == "last digit" and abs(measured - paper) <= 1.5 * 10**-column.digits:
        return "agrees"
    if column.kind not in ("trained", "timed"):
        return "differs"
    if stderr is not None and abs(measured - paper) <= 2 * stderr:
        return "agrees"
    if base[0] is None or not isinstance(base[1], float):
        return "differs"
    return "same direction" if (measured - base[0]) * (paper - base[1]) > 0 else "differs"
