"""A paper's own set of benchmarks: its tasks, their shots and measures, and the columns of its tables, as data.

    load_suite("spiral").asked()    # [("lambada_openai", 0), …]

The suites are the files of presets/suites/. A column is the mean of its parts, in percent if the paper prints percent;
it is not measured if one of its parts is not.
"""

from __future__ import annotations

from typing import Annotated, Any

import yaml
from pydantic import Field

from hybridlab.config.loading import preset_folder, preset_names
from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest
from hybridlab.evaluation.results import BenchmarkResult
from hybridlab.statistics import NOT_MEASURED, Measurement


class Column(Strict):
    """A column of the paper's table. tasks: of lm-eval, or hybridlab's own; several are averaged. columns: instead, the
    mean of these columns. metric: as lm-eval calls it. percent: whether the paper prints percent. missing: why nothing
    can be measured."""

    name: str
    tasks: list[str] = []
    columns: list[str] = []
    metric: str | None = None
    shots: Annotated[int, Field(ge=0)] = 0
    percent: bool = True
    missing: str | None = None


class Suite(Strict):
    """source: the place in the paper. notes: what the paper leaves open, and how it is done here."""

    name: str
    title: str
    source: str
    notes: list[str] = []
    columns: list[Column]

    def asked(self) -> list[tuple[str, int]]:
        """The tasks with their shots, each once."""
        return list(dict.fromkeys((task, column.shots) for column in self.columns for task in column.tasks))

    @property
    def not_here(self) -> dict[str, str]:
        """Columns that cannot be measured at all, with the reason."""
        return {column.name: column.missing for column in self.columns if column.missing}

    def measured(self, results: dict[str, BenchmarkResult]) -> dict[str, Measurement]:
        """The columns from the results of the tasks."""
        found: dict[str, Measurement] = {}
        for column in self.columns:
            parts = [found[name] for name in column.columns] or [_value(results, task, column) for task in column.tasks]
            found[column.name] = _mean(parts)
        return found


def load_suite(name: str) -> Suite:
    """A suite by its name; UserError if there is none."""
    known = preset_names("suites")
    if name not in known:
        raise UserError(f"--suite {name}: there is no such suite; {nearest(name, known)}")
    written: dict[str, Any] = yaml.safe_load((preset_folder("suites") / f"{name}.yaml").read_text(encoding="utf-8"))
    return Suite(name=name, **written)


def _value(results: dict[str, BenchmarkResult], task: str, column: Column) -> Measurement:
    result = results.get(f"{task}@{column.shots}" if column.shots else task)
    measured = result.metrics.get(column.metric or "", NOT_MEASURED) if result else NOT_MEASURED
    if measured.value is None or not column.percent:
        return measured
    error = None if measured.stderr is None else 100 * measured.stderr
    return Measurement(value=100 * measured.value, stderr=error, n=measured.n)


def _mean(parts: list[Measurement]) -> Measurement:
    """The mean of measurements with the error of a stratified sample."""
    if not parts or any(part.value is None for part in parts):
        return NOT_MEASURED
    errors = [part.stderr for part in parts]
    error = None
    if all(e is not None for e in errors):
        error = sum(e * e for e in errors if e is not None) ** 0.5 / len(parts)
    value = sum(part.value or 0.0 for part in parts) / len(parts)
    return Measurement(value=value, stderr=error, n=sum(part.n for part in parts))
