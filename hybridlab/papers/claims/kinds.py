"""Claim kinds: registered functions, from the results of an experiment to a verdict.

    @claim_kind
    def fewer_steps(on: Given, cell: CellName, over_cell: CellName) -> Verdict:
        on.require([cell, over_cell])
        ours, theirs = (on.first_seed(name).steps for name in (cell, over_cell))
        return Verdict(ours < theirs, f"{ours} against {theirs} steps")

An experiment file calls it with `test: {kind: fewer_steps, cell: A, over_cell: B}`. Its arguments, and the rows,
columns and cells that they name, are checked when the file is loaded; the runs that it needs follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlab.papers.analytic import compute
from hybridlab.papers.calls import CLAIM_KINDS, Function
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.papers.experiment import Experiment, Row
from hybridlab.papers.records import Records
from hybridlab.runs.record import BenchmarkRecord, Record


def claim_kind(test: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """Register a test under its own name. It takes a `Given`, then the arguments that the file writes."""
    CLAIM_KINDS.add(test.__name__, Function.of(test, skip=1))
    return test


@dataclass(frozen=True)
class Given:
    """The data that a claim is tested on: its experiment, the records of its runs, and that of its benchmark."""

    experiment: Experiment
    records: Records
    benchmark: BenchmarkRecord | None = None

    def row(self, short: str) -> Row:
        """The row with a short name."""
        return self.experiment.row(short)

    def labelled(self, short: str) -> tuple[str, dict[int, Record]]:
        """A row's short name and its runs."""
        return short, self.runs(self.row(short).cell or "")

    def runs(self, cell: str) -> dict[int, Record]:
        """seed → record; empty where the cell has not been run."""
        return self.records.get(cell, {})

    def first_seed(self, cell: str) -> Record:
        """The record of a cell's lowest seed; without one the claim stays open."""
        self.require([cell])
        return self.runs(cell)[min(self.runs(cell))]

    def require(self, cells: Sequence[str]) -> None:
        """The claim stays open if one of these cells has not been run."""
        if missing := [cell for cell in cells if not self.runs(cell)]:
            raise Open(f"not run: {', '.join(missing)}")

    def probe(self, cell: str, name: str) -> dict[str, Any]:
        """The result of a probe on the first seed's model."""
        return probe_of(self.first_seed(cell), name)

    def hook(self, cell: str, name: str) -> dict[str, Any]:
        """The result of a hook in the first seed's run."""
        hooks = self.first_seed(cell).hooks
        if name not in hooks:
            raise Open(f"not measured: {name} of {cell}")
        return hooks[name]

    def printed(self, *cells: tuple[str, str]) -> list[float]:
        """The paper's numbers in these (row, column)s."""
        printed = {(row, column): self.row(row).paper.get(column) for row, column in cells}
        numbers = {cell: value for cell, value in printed.items() if isinstance(value, int | float)}
        if missing := [", ".join(cell) for cell in cells if cell not in numbers]:
            raise Open(f"not printed: {'; '.join(missing)}")
        return [numbers[cell] for cell in cells]

    def computed(self, row: str, column: str) -> float:
        """The number that a column computes for a row, without the column's factor."""
        call = self.experiment.column(column).compute
        value = compute(call, self.row(row).given) if call else None
        if not isinstance(value, int | float):
            raise Open(f"not computed: {row}, {column}")
        return value

    def elsewhere(self, identifier: str) -> Given:
        """Another experiment, without records: for claims about what the paper prints there."""
        return Given(self.experiment.other(identifier), {})

    def speeds(self) -> BenchmarkRecord:
        """The record of the benchmark; without one the claim stays open."""
        if self.benchmark is None:
            raise Open("not run")
        return self.benchmark


def probe_of(record: Record, name: str) -> dict[str, Any]:
    """The result of a probe on a run's model; without one the claim stays open."""
    measured = record.results.probes.get(name) if record.results else None
    if measured is None:
        raise Open(f"not measured: {name}")
    if "skipped" in measured:
        raise Open(measured["skipped"])
    return measured


def listed(items: Sequence[str]) -> str:
    """The exceptions, for the end of an evidence."""
    return f" (not: {'; '.join(items)})" if items else ""
