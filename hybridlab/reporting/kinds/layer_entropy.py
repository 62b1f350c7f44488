"""The mean attention entropy of each layer: a line for each of some steps early in training, a panel for each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.lines import draw_ordered, named_lines
from hybridlab.reporting.readings import entropies_of
from hybridlab.reporting.seeds import merge_named
from hybridlab.reporting.style import label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EARLY = 0.05
"""Share of the run between two lines: 250 of the 5,035 steps in SGT's paper."""


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. lines: the mean over a layer's heads, by step."""
    log = entropies_of(record)
    if log is None:
        return None
    steps, tables = log
    wanted = [EARLY * steps[-1] * (i + 1) for i in range(plot.count or 6)]
    chosen = sorted({min(range(len(steps)), key=lambda i: abs(steps[i] - at)) for at in wanted})
    lines = {f"step {steps[i]}": [sum(row) / len(row) for row in tables[i]] for i in chosen}
    return {"x": [layer + 1 for layer in range(len(tables[0]))], "lines": lines}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    return named_lines(numbers["x"], numbers["lines"])


def draw(ax: Axes, picture: Picture) -> None:
    draw_ordered(ax, picture.numbers, marker="o")
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "layer entropy", FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, merge=merge_named, shared=True)
)
