"""A logged number over training: a line for each run, or its difference to another run's."""

from __future__ import annotations

import math

from hybridlab.errors import UserError
from hybridlab.papers.plot import Plot, Series
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, one_run
from hybridlab.reporting.lines import draw_series, moving_average, series_lines
from hybridlab.reporting.readings import named
from hybridlab.reporting.seeds import merge_lines
from hybridlab.runs.record import Record, number_at


def show(plot: Plot, series: Series, records: list[Record | None]) -> Numbers | None:
    """x: the column on the x axis. y: the metric's column, divided and smoothed; if the plot is exponential, e to its
    power. What lies in the skipped share at the beginning is left out after smoothing."""
    numbers = one_run(numbers_of)(plot, series, records)
    if numbers is not None and series.divide_by is not None and records[0] is not None:
        by = number_at(records[0], series.divide_by).value
        if not by:
            raise UserError(f"divide_by: run {records[0].hash} has no number at {series.divide_by}, or it is 0")
        numbers["y"] = [value / by for value in numbers["y"]]
    return numbers


def numbers_of(plot: Plot, record: Record) -> Numbers:
    x = named(record.history, plot.x, "plot.x", record)
    smooth = moving_average(named(record.history, plot.metric, "plot.metric", record), plot.smooth)
    first = plot.skip * x[-1] if x else 0.0
    kept = [(at, math.exp(y) if plot.exponential else y) for at, y in zip(x, smooth, strict=True) if at >= first]
    return {"x": [at for at, _ in kept], "y": [y for _, y in kept]}


def relative(plot: Plot, numbers: Numbers, base: Numbers) -> Numbers:
    """The difference to another run at the same x. Where both logged the same x it is taken point by point, on the
    same batches; else between the points of the other run, with x in percent of its last."""
    if numbers["x"] == base["x"]:
        return {**numbers, "y": [a - b for a, b in zip(numbers["y"], base["y"], strict=True)]}
    inside = [(x, y) for x, y in zip(numbers["x"], numbers["y"], strict=True) if base["x"][0] <= x <= base["x"][-1]]
    shares = [100 * x / base["x"][-1] for x, _ in inside]
    return {"x": shares, "y": [y - _between(x, base["x"], base["y"]) for x, y in inside]}


def _between(at: float, xs: list[float], ys: list[float]) -> float:
    """The value at x on straight lines between the points."""
    import numpy as np

    return float(np.interp(at, xs, ys))


FIGURE_KINDS.add(
    "history", FigureKind(show, draw_series, series_lines, merge=merge_lines, relative=relative, shared=True)
)
