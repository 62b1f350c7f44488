"""The learned score of each layer, the mean over its heads if each has one. A line for each run."""

from __future__ import annotations

from functools import partial

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, one_run
from hybridlab.reporting.lines import draw_series, series_lines
from hybridlab.reporting.seeds import merge_lines
from hybridlab.runs.record import Record


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. y: scores."""
    scores = record.controller.get("scores")
    if scores is None:
        return None
    return {"x": [layer + 1 for layer in range(len(scores))], "y": [sum(row) / len(row) for row in scores]}


FIGURE_KINDS.add(
    "scores",
    FigureKind(one_run(numbers_of), partial(draw_series, marker="o"), series_lines, merge=merge_lines, shared=True),
)
