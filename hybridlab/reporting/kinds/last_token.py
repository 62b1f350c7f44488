"""The attention of the last token of a sequence on every token before it: a panel for each layer, head or task.

metric is a measure of the experiment, or a dotted path into a record, to the list of the attention on each token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridlab.errors import UserError
from hybridlab.papers.formula import NoValue
from hybridlab.papers.measures import values_of
from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.lines import series_lines
from hybridlab.reporting.style import COLOURS, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOWEST = 1e-5
"""Attention below this is drawn as this: a logarithmic axis shows spikes beside what lies between them."""


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """x: places, 1 for the first token. y: attention on each, in percent. None if it was not measured."""
    try:
        values = values_of(record, plot.metric or "", plot._measures)
    except NoValue:
        return None
    if values.ndim != 1:
        raise UserError(f"plot.metric {plot.metric!r} has the shape {values.shape} in run {record.hash}; give a list")
    return {"x": list(range(1, len(values) + 1)), "y": (100 * values).tolist()}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    return series_lines(numbers)


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Three in a row, or four where the panels fill such rows."""
    return (1.75, 1.6) if len(pictures) % 4 == 0 else (2.3, 1.8)


def draw(ax: Axes, picture: Picture) -> None:
    """Attention as an area on a logarithmic axis, and what every token would get if all got the same."""
    from matplotlib.ticker import FuncFormatter

    x, y = picture.numbers["x"], picture.numbers["y"]
    ax.fill_between(x, 100 * _LOWEST, [max(v, 100 * _LOWEST) for v in y], color=COLOURS[0], linewidth=0, step="mid")
    ax.axhline(100 / len(x), color=COLOURS[1], linewidth=0.9, linestyle="--", label="the same for all tokens")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlim(0.5, len(x) + 0.5)
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add("last token", FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, size=size, shared=True))
