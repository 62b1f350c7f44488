"""A statistic of the heads in a loop's body by iteration, as ridgelines and as boxes: two panels for each run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, point_lines, titled_parts
from hybridlab.reporting.readings import probe_of, resolution, statistic_of
from hybridlab.reporting.style import COLOURS, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """points: every head's value in every iteration. layers: the two panels."""
    loops = probe_of(record, "loops")
    if loops is None:
        return None
    statistic, points = statistic_of(plot, loops, record), []
    for t, table in enumerate(statistic["values"]):
        for row, values in enumerate(table):
            for head, value in enumerate(values):
                if plot.heads == "all" or statistic["dynamic"][row][head]:
                    iteration = {"loop": t + 1, "resolution": resolution(loops["chunks"][t])}
                    points.append({**iteration, "layer": loops["layers"][row] + 1, "head": head + 1, "y": value})
    return {"points": points, "layers": [{"title": "ridgelines", "style": "ridge"}, {"title": "boxes", "style": "box"}]}


def draw(ax: Axes, picture: Picture) -> None:
    import numpy as np

    points = picture.numbers["points"]
    loops = sorted({point["loop"] for point in points})
    values = [np.array([point["y"] for point in points if point["loop"] == loop]) for loop in loops]
    names = [next(point["resolution"] for point in points if point["loop"] == loop) for loop in loops]
    (_draw_boxes if picture.numbers["style"] == "box" else _draw_ridges)(ax, values, names, picture.y_label)


def _draw_boxes(ax: Axes, values: list[Any], names: list[str], quantity: str) -> None:
    """A box for each iteration, and a line through the means."""
    loops = range(1, len(values) + 1)
    ax.boxplot(values, widths=0.5, medianprops={"color": COLOURS[1]}, flierprops={"markersize": 2})
    ax.plot(loops, [v.mean() for v in values], color="black", marker="o", markersize=4)
    ax.set_xticks(loops, [f"{loop}\n({name})" for loop, name in zip(loops, names, strict=True)])
    label_axes(ax, "loop (resolution)", quantity)


def _draw_ridges(ax: Axes, values: list[Any], names: list[str], quantity: str) -> None:
    """A histogram over the heads for each iteration, the first at the top, with a line at its mean."""
    import numpy as np

    edges = np.histogram_bin_edges(np.concatenate(values), bins=16)
    for t, (heads, name) in enumerate(zip(values, names, strict=True)):
        heights, _ = np.histogram(heads, bins=edges)
        base, tallest = len(values) - 1 - t, max(1, heights.max())
        centres = (edges[:-1] + edges[1:]) / 2
        colour = COLOURS[t % len(COLOURS)]
        ax.fill_between(centres, base, base + 0.85 * heights / tallest, color=colour, alpha=0.55, step="mid")
        ax.plot([heads.mean()] * 2, [base, base + 0.85], color=colour, linewidth=1.4)
        ax.text(edges[0], base + 0.08, f"loop {t + 1} ({name})", fontsize=6)
    ax.set_yticks([])
    label_axes(ax, quantity, "heads")


FIGURE_KINDS.add("distributions", FigureKind(one_run(numbers_of), draw, point_lines, parts=titled_parts))
