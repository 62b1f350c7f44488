"""A logged number over training: a line for each run."""

from __future__ import annotations

import math

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, one_run
from hybridlab.reporting.lines import draw_series, moving_average, series_lines
from hybridlab.reporting.readings import named
from hybridlab.runs.record import Record


def numbers_of(plot: Plot, record: Record) -> Numbers:
    """x: the column on the x axis. y: the metric's column, smoothed; if the plot is exponential, e to its power."""
    x = named(record.history, plot.x, "plot.x", record)
    smooth = moving_average(named(record.history, plot.metric, "plot.metric", record), plot.smooth)
    return {"x": x, "y": [math.exp(y) for y in smooth] if plot.exponential else smooth}


FIGURE_KINDS.add("history", FigureKind(one_run(numbers_of), draw_series, series_lines))
