"""One number of a run against another: a point for each run, a line through the runs of a series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridlab.papers.plot import Plot, Series
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, point_lines
from hybridlab.reporting.lines import cycled
from hybridlab.reporting.style import label_axes
from hybridlab.runs.record import Record, number_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX"


def show(plot: Plot, series: Series, records: list[Record | None]) -> Numbers | None:
    """points of the runs with a record: x from the series or from the record, y from the record, in the order of x."""
    points = []
    for i, (name, record) in enumerate(zip(series.named, records, strict=True)):
        if record is None:
            continue
        x = series.x[i] if series.x else number_at(record, plot.x).value
        y = number_at(record, plot.metric or "")
        if x is not None:
            points.append({"run": name, "x": x, "y": y.value, "stderr": y.stderr})
    return {"points": sorted(points, key=lambda point: point["x"])} if points else None


def draw(ax: Axes, picture: Picture) -> None:
    for i, (label, numbers) in enumerate(picture.series):
        xs, ys = ([point[name] for point in numbers["points"]] for name in ("x", "y"))
        style = {"marker": _MARKERS[i % len(_MARKERS)], "markersize": 4, "linewidth": 1.1, **cycled(i)}
        ax.plot(xs, ys, label=label, **style)
    label_axes(ax, picture.x_label, picture.y_label)
    ax.legend(fontsize=6.5, frameon=False)


FIGURE_KINDS.add("points", FigureKind(show, draw, point_lines))
