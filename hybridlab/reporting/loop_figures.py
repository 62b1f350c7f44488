"""The pictures of SpiralFormer's figures: points of runs, distributions over heads by iteration, ranges, reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridlab.reporting.style import COLOURS, STYLES, label_axes
from hybridlab.reproduction.experiment import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX"


def _points(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    shown = [series for series in panel["series"] if series["data"]]
    for i, series in enumerate(shown):
        points = series["data"]["points"]
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "linewidth": 1.1}
        xs, ys = ([point[name] for point in points] for name in ("x", "y"))
        ax.plot(xs, ys, marker=_MARKERS[i % len(_MARKERS)], markersize=4, label=series["label"], **style)
    label_axes(ax, panel["x_label"] or plot.x_label, plot.y_label)
    ax.legend(fontsize=6.5, frameon=False)


def _distributions(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    """Ridgelines: a histogram of the heads for each iteration, the first at the top. Boxes: the same, with the mean."""
    import numpy as np

    (series,) = panel["series"]
    points = series["data"]["points"]
    loops = sorted({point["loop"] for point in points})
    values = [np.array([point["y"] for point in points if point["loop"] == loop]) for loop in loops]
    names = [next(point["resolution"] for point in points if point["loop"] == loop) for loop in loops]
    if series["data"]["style"] == "box":
        ax.boxplot(values, widths=0.5, medianprops={"color": COLOURS[1]}, flierprops={"markersize": 2})
        ax.plot(range(1, len(loops) + 1), [v.mean() for v in values], color="black", marker="o", markersize=4)
        ax.set_xticks(range(1, len(loops) + 1), [f"{loop}\n({name})" for loop, name in zip(loops, names, strict=True)])
        label_axes(ax, "loop (resolution)", plot.y_label)
        return
    edges = np.histogram_bin_edges(np.concatenate(values), bins=16)
    for place, (found, name) in enumerate(zip(values, names, strict=True)):
        heights, _ = np.histogram(found, bins=edges)
        base, tallest = len(loops) - 1 - place, max(1, heights.max())
        centres = (edges[:-1] + edges[1:]) / 2
        colour = COLOURS[place % len(COLOURS)]
        ax.fill_between(centres, base, base + 0.85 * heights / tallest, color=colour, alpha=0.55, step="mid")
        ax.plot([found.mean()] * 2, [base, base + 0.85], color=colour, linewidth=1.4)
        ax.text(edges[0], base + 0.08, f"loop {place + 1} ({name})", fontsize=6)
    ax.set_yticks([])
    label_axes(ax, plot.y_label, "heads")


def _head_ranges(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    from matplotlib.patches import Rectangle

    (series,) = panel["series"]
    points = series["data"]["points"]
    layers, heads = (sorted({point[name] for point in points}) for name in ("layer", "head"))
    grid = [[0.0] * len(heads) for _ in layers]
    for point in points:
        row, column = layers.index(point["layer"]), heads.index(point["head"])
        grid[row][column] = point["y"]
        if point["dynamic"]:
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.3))
    image = ax.imshow(grid, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    ax.set_yticks(range(len(layers)), layers)
    step = max(1, len(heads) // 8)
    ax.set_xticks(range(0, len(heads), step), heads[::step])
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("range over the loops,\nstretched to 0 … 1", fontsize=6)
    bar.ax.tick_params(labelsize=5)
    label_axes(ax, "head (boxed: dynamic)", "layer")


def _reach(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    from matplotlib.colors import ListedColormap

    (series,) = panel["series"]
    ax.imshow(
        series["data"]["map"], cmap=ListedColormap(["white", COLOURS[0]]), vmin=0, vmax=1, interpolation="nearest"
    )
    label_axes(ax, plot.x_label, plot.y_label)


DRAWN = {"points": _points, "distributions": _distributions, "head ranges": _head_ranges, "reach": _reach}
