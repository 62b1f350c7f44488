"""The mean attention entropy of each layer on prompts of tasks: a line for each task, a panel for each model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.lines import named_lines
from hybridlab.reporting.readings import probe_of
from hybridlab.reporting.style import MANY_COLOURS, STYLES, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEAN = "mean over tasks"


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. lines: the mean over a layer's heads, by task, and the mean over tasks. None without tasks."""
    measured = probe_of(record, "entropy")
    if measured is None or "tasks" not in measured:
        return None
    lines = {task: found["layer_means"] for task, found in measured["tasks"].items()}
    return {"x": list(range(1, len(measured["heads"]) + 1)), "lines": {**lines, MEAN: measured["layer_means"]}}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    return named_lines(numbers["x"], numbers["lines"])


def draw(ax: Axes, picture: Picture) -> None:
    """Tasks in colours, their mean in black."""
    from matplotlib.ticker import MaxNLocator

    numbers = picture.numbers
    tasks = {name: line for name, line in numbers["lines"].items() if name != MEAN}
    for i, (name, line) in enumerate(tasks.items()):
        # Dashes show a line below one that lies on it.
        style: dict[str, Any] = {"color": MANY_COLOURS[i % len(MANY_COLOURS)], "linestyle": STYLES[i % len(STYLES)]}
        ax.plot(numbers["x"], line, label=name, linewidth=1.2, **style)
    ax.plot(numbers["x"], numbers["lines"][MEAN], color="black", linewidth=1.8, label=MEAN, zorder=3)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add("task entropy", FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, shared=True))
