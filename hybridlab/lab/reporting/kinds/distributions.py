"""How numbers are distributed, and how two lists of them go together.

distributions  the entries of each row of a matrix, as ridgelines and as boxes: two panels for each run
scatter        two lists of a run against each other, such as two measures of every attention matrix, or a measure and a
               score at each checkpoint: a point for each entry, with Pearson's r. With many points there are histograms
               on the margins. It is no line over an axis, since its points have no order
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.errors import UserError
from hybridlab.lab.papers.calls import MetricPath
from hybridlab.lab.papers.plots import Labels, Template
from hybridlab.lab.reporting.figure_kind import FigureKind, Numbers, Picture, names_of, one_run, series_lines, values
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.record import Record
from hybridlab.runs.style import COLOURS, MARKERS, at_least, cycled, label_axes
from hybridlab.statistics import known, mean_and_error, pearson

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# ---- distributions ----


class Distributions(Labels):
    """What `plot:` accepts. x_label: what a row is. y_label: what the numbers are."""

    metric: MetricPath
    """A matrix; its columns are what a row is distributed over."""
    value_range: tuple[float, float] | None = None
    """What the axis of numbers shows at least, so that figures which are compared have the same."""
    names: Template = "{}"
    """Of the rows."""
    of: str = "columns"
    """What the columns are, in the legend."""


def distributions_of(plot: Any, record: Record) -> Numbers | None:
    """rows: the numbers of each. names: of the rows. means: of the rows, by seed."""
    matrix = values(plot, record, plot.metric, "a matrix", 2)
    if matrix is None:
        return None
    rows = [row[~np.isnan(row)].tolist() for row in matrix]
    if not all(rows):  # a row of nothing but null was not measured
        return None
    names = names_of(plot, record, plot.names, len(rows))
    return {"names": names, "rows": rows, "means": [[sum(row) / len(row) for row in rows]]}


def merge_distributions(by_seed: Mapping[int, Numbers]) -> Numbers:
    """The numbers of all seeds, and the means of each."""
    runs = list(by_seed.values())
    rows = [[value for row in same for value in row] for same in zip(*(run["rows"] for run in runs), strict=True)]
    return {**runs[0], "rows": rows, "means": [run["means"][0] for run in runs], "seeds": len(runs)}


def distributions_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    for i, (name, row) in enumerate(zip(numbers["names"], numbers["rows"], strict=True)):
        for value in row:
            yield {"row": i + 1, "name": name.replace("\n", " "), "y": value}


def draw_distributions(ax: Axes, picture: Picture) -> None:
    numbers, mean = picture.numbers, f"mean over {picture.plot.of}"
    if numbers["style"] == "box":
        _draw_boxes(ax, numbers)
        _draw_means(ax, numbers, mean)
        ax.set_ylim(at_least(ax.get_ylim(), picture.value_range))
    else:
        _draw_ridges(ax, numbers, mean)
        label_axes(ax, picture.y_label, picture.x_label)
        ax.set_xlim(at_least(ax.get_xlim(), picture.value_range))


def _draw_boxes(ax: Axes, numbers: Numbers) -> None:
    """A box for each row."""
    ax.plot([], [], color=COLOURS[1], linewidth=1, label="median")
    name = "box: middle half; whiskers: within 1.5 boxes; circles: beyond"
    ax.plot([], [], color="black", linestyle="none", marker="s", fillstyle="none", label=name)
    ax.boxplot(numbers["rows"], widths=0.5, medianprops={"color": COLOURS[1]}, flierprops={"markersize": 2})
    ax.set_xticks(range(1, len(numbers["rows"]) + 1), numbers["names"])


def _draw_means(ax: Axes, numbers: Numbers, name: str) -> None:
    """A line through the rows' means, with bars over seeds if there are several."""
    means = [mean_and_error(by_seed) for by_seed in zip(*numbers["means"], strict=True)]
    errors = [mean.stderr or 0.0 for mean in means] if len(numbers["means"]) > 1 else None
    style: dict[str, Any] = {"color": "black", "marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1.2}
    ax.errorbar(range(1, len(means) + 1), [known(mean) for mean in means], yerr=errors, label=name, **style)


def _draw_ridges(ax: Axes, numbers: Numbers, name: str) -> None:
    """A histogram for each row, the first at the top, with a line at its mean."""
    edges = np.histogram_bin_edges(np.concatenate(numbers["rows"]), bins=16)
    bases = list(range(len(numbers["rows"])))[::-1]
    for i, (row, base) in enumerate(zip(numbers["rows"], bases, strict=True)):
        heights, _ = np.histogram(row, bins=edges)
        tops = base + 0.85 * heights / max(1, heights.max())
        ax.fill_between(
            edges, base, [*tops, tops[-1]], color=COLOURS[i % len(COLOURS)], alpha=0.55, step="post", linewidth=0
        )
        ax.plot([np.mean(row)] * 2, [base, base + 0.85], color="black", linewidth=1.4, label=name)
    ax.set_yticks([base + 0.4 for base in bases], numbers["names"])
    ax.tick_params(axis="y", length=0)


FIGURE_KINDS.add(
    "distributions",
    FigureKind(
        one_run(distributions_of),
        draw_distributions,
        distributions_csv,
        parts=lambda plot, numbers: [{"title": "ridgelines", "style": "ridge"}, {"title": "boxes", "style": "box"}],
        merge=merge_distributions,
        settings=Distributions,
    ),
)


# ---- scatter ----


class Scatter(Labels):
    """What `plot:` accepts: two lists of each run, as long as each other."""

    metric: MetricPath
    x: MetricPath


MANY_POINTS = 60
"""From so many points on there are histograms on the margins, and small points."""
BINS = 24


def scatter_of(plot: Any, record: Record) -> Numbers | None:
    """x and y, without pairs in which one is null, and their correlation r with its p; None if they were not measured.
    r and p are null where one of the two does not vary."""
    xs, ys = (values(plot, record, metric, "two lists", 1) for metric in (plot.x, plot.metric))
    if xs is None or ys is None:
        return None
    if xs.shape != ys.shape:
        raise UserError(
            f"plot.metric {plot.metric!r} has the shape {ys.shape} in run {record.hash}, its x {xs.shape}; "
            "points need two lists of the same length"
        )
    mask = ~(np.isnan(xs) | np.isnan(ys))
    x, y = xs[mask].tolist(), ys[mask].tolist()
    return {"x": x, "y": y, **pearson(x, y)._asdict()}


def merge_scatter(by_seed: Mapping[int, Numbers]) -> Numbers:
    """The points of all seeds, and the mean of their r, since points of different runs are no sample of one."""
    runs = list(by_seed.values())
    correlations = [run["r"] for run in runs if run["r"] is not None]
    r = mean_and_error(correlations).value if len(correlations) == len(runs) else None
    points = {name: [value for run in runs for value in run[name]] for name in ("x", "y")}
    return {**points, "r": r, "p": None, "seeds": len(runs)}


def scatter_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Square pictures, two or three side by side."""
    return (2.3, 2.3) if len(pictures) > 2 else (3.3, 3.2)


def draw_scatter(ax: Axes, picture: Picture) -> None:
    """The points of each series, with a line of least squares where r is known."""
    many = any(len(numbers["x"]) >= MANY_POINTS for _, numbers in picture.series)
    for label, numbers in picture.series:
        i = picture.place(label)
        colour = cycled(i)["color"]
        style: dict[str, Any] = {"s": 5 if many else 16, "alpha": 0.45 if many else 0.9, "linewidths": 0}
        ax.scatter(numbers["x"], numbers["y"], color=colour, marker=MARKERS[i % len(MARKERS)], label=label, **style)
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


def _correlation(label: str, numbers: Numbers, with_label: bool) -> str:
    """r and p of a series in words."""
    r, p = numbers["r"], numbers["p"]
    text = "r not defined" if r is None else f"r = {r:.2f}".replace("-", "−")
    if p is not None:
        text += ", p < 0.001" if p < 0.001 else f", p = {p:.3f}"
    if "seeds" in numbers:
        text += f", mean of {numbers['seeds']} seeds"
    return f"{label}: {text}" if with_label else text


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


FIGURE_KINDS.add(
    "scatter",
    FigureKind(
        one_run(scatter_of), draw_scatter, series_lines, size=scatter_size, merge=merge_scatter, settings=Scatter
    ),
)
