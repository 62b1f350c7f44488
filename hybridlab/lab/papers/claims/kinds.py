"""Claim kinds: registered functions, from the results of an experiment to comparisons, or to a verdict.

    @claim_kind
    def fewer_steps(on: Given, cell: CellName, over_cell: CellName) -> list[Comparison]:
        def fewer(ours: Record, theirs: Record) -> float:
            return ours.steps - theirs.steps

        return [on.compared(f"steps of {cell} − {over_cell}", [cell, over_cell], fewer, Below())]

An experiment file calls it with `test: {kind: fewer_steps, cell: A, over_cell: B}`. Its arguments, and the rows,
columns and cells that they name, are checked when the file is loaded; the runs that it needs follow from them.

A kind that reads trained models returns comparisons, and the rule decides (judge.py). A kind about printed or computed
numbers alone returns a `Verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hybridlab.lab.papers.analytic import compute
from hybridlab.lab.papers.calls import CLAIM_KINDS, Function
from hybridlab.lab.papers.cells import Records
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.experiment import Experiment, Row
from hybridlab.lab.papers.formula import NotMeasured, NoValue, number_of, values_of
from hybridlab.runs.record import BenchmarkRecord, Record, number_at
from hybridlab.statistics import Always, Mostly, Question

Kind = TypeVar("Kind", bound=Callable[..., Verdict | list[Comparison]])


def claim_kind(test: Kind) -> Kind:
    """Register a test under its own name. It takes a `Given`, then the arguments that the file writes."""
    CLAIM_KINDS.add(test.__name__, Function.of(test, skip=1))
    return test


@dataclass(frozen=True)
class Given:
    """The data that a claim is tested on: its experiment, the records of its runs, and that of its benchmark. scale: of
    the records. metric: that of the test, whose arms are read where a swept setting has several values."""

    experiment: Experiment
    records: Records
    benchmark: BenchmarkRecord | None = None
    scale: str | None = None
    metric: str = ""

    def row(self, short: str) -> Row:
        """The row with a short name."""
        return self.experiment.row(short)

    def runs(self, cell: str) -> dict[int, Record]:
        """seed → record; empty where the cell has not been run."""
        return self.records.get(self.experiment.arm(self.scale, cell, self.metric), {})

    def first_seed(self, cell: str) -> Record:
        """The record of a cell's lowest seed, for what does not depend on the seed; NotMeasured without one."""
        self.require([cell])
        return self.runs(cell)[min(self.runs(cell))]

    def require(self, cells: Sequence[str]) -> None:
        """NotMeasured if one of these cells has not been run."""
        if missing := [cell for cell in cells if not self.runs(cell)]:
            raise NotMeasured(f"not run: {', '.join(missing)}")

    def over_seeds(self, cells: Sequence[str], number: Callable[..., float]) -> dict[int, float]:
        """seed → a number made of the records of these cells in that seed, for every seed that all of them have.

        Seeds in which `number` raises NoValue are left out; if there are no others, its reason is raised.
        """
        self.require(cells)
        values, reason = {}, NoValue(f"no seed in common: {', '.join(cells)}")
        runs = [*map(self.runs, cells)]
        for seed in sorted(set.intersection(*map(set, runs))):
            try:
                values[seed] = float(number(*[by_seed[seed] for by_seed in runs]))
            except NoValue as missing:
                reason = missing
        if not values:
            raise reason
        return values

    def compared(
        self, label: str, cells: Sequence[str], number: Callable[..., float], asked: Question, **more: Any
    ) -> Comparison:
        """The comparison of a number over seeds (see `over_seeds`); without values where the runs are missing. At scale
        pretrained prompts or documents stand in for seeds: what is to be so in every run, in most of them. What
        was not measured by unit, such as the masks that a run learns, is one number for a run.

        more: further fields of `Comparison`.
        """
        distinct, unit = tuple(dict.fromkeys(cells)), str(self.experiment.unit(self.scale))
        if unit != "seed":
            asked = Mostly() if isinstance(asked, Always) else asked
            units = {run.unit for cell in distinct for run in self.runs(cell).values()}
            unit = "run" if None in units else unit
        try:
            return Comparison(label, self.over_seeds(cells, number), asked, cells=distinct, of=unit, **more)
        except NoValue as reason:
            run = not isinstance(reason, NotMeasured)
            return Comparison(label, {}, asked, missing=f"{label}: {reason}", run=run, of=unit, cells=distinct)

    def minus(
        self, label: str, cell: str, other: str, number: Callable[..., float], asked: Question, *also: str, **more: Any
    ) -> Comparison:
        """The comparison of a number of one cell's runs less that of another's, paired by seed; see `compared`. also:
        cells of whose runs the number is made too."""

        def difference(ours: Record, theirs: Record, *others: Record) -> float:
            return number(ours, *others) - number(theirs, *others)

        return self.compared(label, [cell, other, *also], difference, asked, paired=True, **more)

    def printed(self, *cells: tuple[str, str]) -> list[float]:
        """The paper's numbers in these (row, column)s."""
        printed = {(row, column): self.row(row).paper.get(column) for row, column in cells}
        numbers = {cell: value for cell, value in printed.items() if isinstance(value, int | float)}
        if missing := [", ".join(cell) for cell in cells if cell not in numbers]:
            raise NoValue(f"not printed: {'; '.join(missing)}")
        return [numbers[cell] for cell in cells]

    def computed(self, row: str, column: str) -> float:
        """The number that a column computes for a row, without the column's factor."""
        call = self.experiment.column(column).compute
        value = compute(call, self.row(row).given) if call else None
        if not isinstance(value, int | float):
            raise NoValue(f"not computed: {row}, {column}")
        return value

    def number(self, record: Record, metric: str) -> float:
        """The number of a record that a dotted path or a measure of the experiment names; NotMeasured without one."""
        if metric not in self.experiment.measures:
            return metric_of(record, metric)
        return number_of(record, metric, self.experiment.measures)

    def values(self, record: Record, metric: str) -> np.ndarray:
        """The number, list or matrix that a metric is in a record; see `number`."""
        return values_of(record, metric, self.experiment.measures)

    def titled(self, metric: str) -> str:
        """A metric in words for evidence: a measure's title, or the path."""
        measure = self.experiment.measures.get(metric)
        return measure.title if measure else metric.removeprefix("results.")

    def unit(self, metric: str) -> str:
        """What stands behind a number of a metric, as " nats"."""
        measure = self.experiment.measures.get(metric)
        if measure is not None:
            return f" {measure.unit}" if measure.unit else ""
        return " nats" if "loss" in metric.split(".") else ""

    def speeds(self) -> BenchmarkRecord:
        """The record of the benchmark; NotMeasured without one."""
        if self.benchmark is None:
            raise NotMeasured("not run")
        return self.benchmark


def metric_of(record: Record, path: str) -> float:
    """The number at a dotted path into a record; NotMeasured without one."""
    value = number_at(record, path).value
    if value is None:
        raise NotMeasured(f"not measured: {path}")
    return value


def listed(items: Sequence[str]) -> str:
    """The exceptions, for the end of an evidence."""
    return f" (not: {'; '.join(items)})" if items else ""
