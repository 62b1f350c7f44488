"""Measures: numbers and lists that an experiment file computes from its records, for claims and figures.

    measures:
      late-overlap:
        title: top-5 overlap of the second half of the layers
        of: {y: results.probes.tuned-lens.overlap}
        formula: mean(part(y[1:-1], 1/2, 1))

`*` in a path stands for all entries of a table: `results.at.*.validation.loss` is the list of losses while training. A
claim then writes `metric: late-overlap`, in the place of a dotted path. papers/formula.py has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, model_validator

from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest
from hybridlab.papers.formula import NoValue, computed, names_in, parsed
from hybridlab.runs.record import Record


class Measure(Strict):
    """of: the formula's names, each a dotted path into a record, or another measure of the file. `{name}` in a path
    stands for the whole number of a name above it. Of several paths the first one counts that the record has. title:
    what is computed, for evidence and axes."""

    title: str
    of: dict[str, str | list[str]]
    formula: str
    unit: str = ""

    @model_validator(mode="after")
    def _formula_fits(self) -> Measure:
        used = names_in(parsed(self.formula))
        if unknown := [name for name in used if name not in self.of]:
            hint = nearest(unknown[0], list(self.of), None if self.of else "it has none")
            raise ValueError(f"formula {self.formula!r} uses {unknown[0]!r}, which `of` does not have; {hint}")
        for i, (name, paths) in enumerate(self.of.items()):
            above = {other: 0 for other in list(self.of)[:i]}
            for path in [paths] if isinstance(paths, str) else paths:
                try:
                    path.format_map(above)
                except (KeyError, ValueError, IndexError):
                    raise ValueError(f"{name}: {path}: write `{{name}}` with a name that stands above it") from None
            if name not in used and not any(f"{{{name}}}" in str(other) for other in self.of.values()):
                raise ValueError(f"{name} is not in the formula {self.formula!r}; leave it out")
        return self

    def paths(self) -> list[tuple[str, str]]:
        """(name, path) of all paths."""
        return [(name, path) for name, one in self.of.items() for path in ([one] if isinstance(one, str) else one)]


Measures = Mapping[str, Measure]


EACH = "*"
"""In a path, all entries of a table by name, in their order, as a list: `results.at.*.validation.loss`."""


class NotMeasured(NoValue):
    """The record has nothing at a path."""


def values_of(record: Record, metric: str, measures: Measures) -> np.ndarray:
    """What a metric is in a record: () for a number, else a list or a matrix, with NaN for null. metric: a measure's
    name, or a dotted path. NotMeasured if the record lacks it, NoValue if it cannot be computed."""
    if metric not in measures:
        return _at(record, metric)
    measure = measures[metric]
    given: dict[str, np.ndarray] = {}
    for name, paths in measure.of.items():
        given[name] = _first_of(record, [paths] if isinstance(paths, str) else paths, given, measures)
    return computed(parsed(measure.formula), given)


def number_of(record: Record, metric: str, measures: Measures) -> float:
    """The number that a metric is in a record; see `values_of`. UserError for a list."""
    value = values_of(record, metric, measures)
    if value.ndim:
        raise UserError(f"{metric} is a list of {len(value)}, not a number; reduce it, as in `formula: mean(y)`")
    return float(value)


def _first_of(record: Record, paths: list[str], given: Mapping[str, np.ndarray], measures: Measures) -> np.ndarray:
    numbers = {name: int(value) for name, value in given.items() if not value.ndim}
    for i, path in enumerate(paths):
        try:
            return values_of(record, path.format_map(numbers), measures)
        except NotMeasured:
            if i == len(paths) - 1:
                raise
    raise AssertionError("a name has at least one path")


def _at(record: Record, path: str) -> np.ndarray:
    """What stands at a dotted path. A mean with its error counts as the mean."""
    value = _under(record, path.split("."), path)
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{path} is neither a number nor a list of numbers") from None


def _under(here: Any, parts: list[str], path: str) -> Any:
    """What stands at the `parts` of a path below a part of a record."""
    for i, part in enumerate(parts):
        if part == EACH and isinstance(here, dict) and here:
            return [_under(entry, parts[i + 1 :], path) for entry in here.values()]
        if isinstance(here, dict) and part not in here and "skipped" in here:
            raise NoValue(str(here["skipped"]))
        here = here.get(part) if isinstance(here, dict) else getattr(here, part, None)
    value = _plain(here)
    if value is None:
        raise NotMeasured(f"not measured: {path}")
    return value


def _plain(here: Any) -> Any:
    """A measurement's value; everything else as it is."""
    if isinstance(here, BaseModel):
        here = here.model_dump()
    if isinstance(here, dict) and {"value", "n"} <= here.keys():
        return here["value"]
    return here


def measure_problem(name: str, measures: Measures) -> str | None:
    """A measure that needs itself, as a sentence; None if none does."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(name, ())]
    while waiting:
        here, chain = waiting.pop()
        if here in chain:
            return f"the measures {' → '.join((*chain, here))} need each other"
        waiting += [(path, (*chain, here)) for _, path in measures[here].paths() if path in measures]
    return None
