"""Two lists of a run against each other, such as two measures of every attention matrix, or a measure and a score at
each checkpoint: a point for each entry, with Pearson's r. With many points there are histograms on the margins.

metric and x are dotted paths into a record, or measures of the experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.errors import UserError
from hybridlab.papers.formula import NoValue
from hybridlab.papers.measures import values_of
from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run
from hybridlab.reporting.lines import cycled, series_lines
from hybridlab.reporting.style import label_axes
from hybridlab.runs.record import Record
from hybridlab.statistics import mean_and_error, pearson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX"
MANY_POINTS = 60
"""From so many points on there are histograms on the margins, and small points."""
BINS = 24


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """x and y, without pairs in which one is null, and their correlation r with its p; None if they were not measured.
    r and p are null where one of the two does not vary."""
    try:
        xs, ys = (values_of(record, metric, plot._measures) for metric in (plot.x, plot.metric or ""))
    except NoValue:
        return None
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise UserError(
            f"plot.metric {plot.metric!r} has the shape {ys.shape} in run {record.hash}, its x {xs.shape}; "
            "points need two lists of the same length"
        )
    kept = ~(np.isnan(xs) | np.isnan(ys))
    x, y = xs[kept].tolist(), ys[kept].tolist()
    return {"x": x, "y": y, **pearson(x, y)._asdict()}


def merge(by_seed: Mapping[int, Numbers]) -> Numbers:
    """The points of all seeds, and the mean of their r, since points of different runs are no sample of one."""
    runs = list(by_seed.values())
    if len(runs) == 1:
        return runs[0]
    known = [run["r"] for run in runs if run["r"] is not None]
    r = mean_and_error(known).value if len(known) == len(runs) else None
    points = {name: [value for run in runs for value in run[name]] for name in ("x", "y")}
    return {**points, "r": r, "p": None, "seeds": len(runs)}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each point."""
    yield from series_lines({name: numbers[name] for name in ("x", "y")})


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Square pictures, two or three side by side."""
    return (2.3, 2.3) if len(pictures) > 2 else (3.3, 3.2)


# ---- drawing ----


def draw(ax: Axes, picture: Picture) -> None:
    """The points of each series, with a line of least squares where r is known."""
    many = any(len(numbers["x"]) >= MANY_POINTS for _, numbers in picture.series)
    for label, numbers in picture.series:
        i = picture.place(label)
        colour = cycled(i)["color"]
        style: dict[str, Any] = {"s": 5 if many else 16, "alpha": 0.45 if many else 0.9, "linewidths": 0}
        ax.scatter(numbers["x"], numbers["y"], color=colour, marker=_MARKERS[i % len(_MARKERS)], label=label, **style)
        if numbers["r"] is not None:
            slope, start = np.polyfit(numbers["x"], numbers["y"], 1)
            ends = np.array([min(numbers["x"]), max(numbers["x"])])
            ax.plot(ends, start + slope * ends, linewidth=0.9, **cycled(i))
    texts = [_correlation(label, numbers, len(picture.series) > 1) for label, numbers in picture.series]
    if many:
        _margins(ax, picture)
    ax.text(0.03, 0.97, "\n".join(texts), transform=ax.transAxes, va="top", fontsize=5.5)
    ax.margins(0.06)
    low, high = ax.get_ylim()
    # Room for the text above the points.
    ax.set_ylim(low, high + (0.07 + 0.06 * len(texts)) * (high - low))
    label_axes(ax, picture.x_label, picture.y_label)


def _correlation(label: str, numbers: Numbers, named: bool) -> str:
    """r and p of a series in words."""
    r, p = numbers["r"], numbers["p"]
    text = "r not defined" if r is None else f"r = {r:.2f}".replace("-", "−")
    if p is not None:
        text += ", p < 0.001" if p < 0.001 else f", p = {p:.3f}"
    if "seeds" in numbers:
        text += f", mean of {numbers['seeds']} seeds"
    return f"{label}: {text}" if named else text


def _margins(ax: Axes, picture: Picture) -> None:
    """Histograms of both lists, at the upper and the right edge inside the frame of the panel."""
    top = ax.inset_axes((0.0, 1.0, 1.0, 0.16), sharex=ax)
    right = ax.inset_axes((1.0, 0.0, 0.16, 1.0), sharey=ax)
    for label, numbers in picture.series:
        style: dict[str, Any] = {"bins": BINS, "color": cycled(picture.place(label))["color"], "alpha": 0.5}
        top.hist(numbers["x"], **style)
        right.hist(numbers["y"], orientation="horizontal", **style)
    for edge in (top, right):
        edge.set_axis_off()
    ax.set_title(ax.get_title(), pad=0)


FIGURE_KINDS.add("scatter", FigureKind(one_run(numbers_of), draw, csv_lines, size=size, merge=merge))
