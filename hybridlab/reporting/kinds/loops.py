"""Kinds of figures of the iterations of a loop, from the probes `loops` and `reach`.

distributions  a statistic of the heads in a loop's body by iteration, as ridgelines and boxes: two panels for each run
head ranges    the range of each head's statistic over the iterations: a grid of layers and heads for each run
reach          the inputs that reach each output after each iteration: a panel for each iteration of each run
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hybridlab.papers.experiment import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import (
    FigureKind,
    Numbers,
    Picture,
    fixed_size,
    named,
    one_run,
    point_lines,
    probe_of,
    titled_parts,
    whole,
)
from hybridlab.reporting.style import COLOURS, at_least, label_axes
from hybridlab.runs.record import Record
from hybridlab.statistics import known, mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def statistic_of(plot: Plot, loops: dict[str, Any], record: Record) -> dict[str, Any]:
    """The statistic of the probe `loops` that the plot's metric names."""
    statistics = {name: part for name, part in loops.items() if isinstance(part, dict) and "range" in part}
    return named(statistics, plot.metric, "plot.metric", record)


def resolution(chunk: int) -> str:
    """The resolution of an iteration over chunks of this many tokens, as a fraction."""
    return "1" if chunk == 1 else f"1/{chunk}"


# ---- distributions ----


_MEAN = "mean over heads"


def distributions_of(plot: Plot, record: Record) -> Numbers | None:
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


def merge_distributions(by_seed: Mapping[int, Numbers]) -> Numbers:
    """The heads of all seeds, each with its seed."""
    if len(by_seed) == 1:
        return next(iter(by_seed.values()))
    points = [{"seed": seed, **point} for seed, numbers in by_seed.items() for point in numbers["points"]]
    return {**next(iter(by_seed.values())), "points": points, "seeds": len(by_seed)}


def draw_distributions(ax: Axes, picture: Picture) -> None:
    points = picture.numbers["points"]
    loops = sorted({point["loop"] for point in points})
    values = [[point["y"] for point in points if point["loop"] == loop] for loop in loops]
    names = [f"{loop}\n({next(p['resolution'] for p in points if p['loop'] == loop)})" for loop in loops]
    if picture.numbers["style"] == "box":
        _draw_boxes(ax, values, names)
        _draw_means(ax, points, loops)
        label_axes(ax, "loop (resolution)", picture.y_label)
        ax.set_ylim(at_least(ax.get_ylim(), picture.value_range))
    else:
        _draw_ridges(ax, values, names)
        label_axes(ax, picture.y_label, "loop (resolution)")
        ax.set_xlim(at_least(ax.get_xlim(), picture.value_range))


def _draw_boxes(ax: Axes, values: list[list[float]], names: list[str]) -> None:
    """A box over the heads for each iteration."""
    ax.plot([], [], color=COLOURS[1], linewidth=1, label="median")
    name = "box: middle half; whiskers: within 1.5 boxes; circles: beyond"
    ax.plot([], [], color="black", linestyle="none", marker="s", fillstyle="none", label=name)
    ax.boxplot(values, widths=0.5, medianprops={"color": COLOURS[1]}, flierprops={"markersize": 2})
    ax.set_xticks(range(1, len(values) + 1), names)


def _draw_means(ax: Axes, points: list[dict[str, Any]], loops: list[int]) -> None:
    """A line through the means over heads, with bars over seeds if there are several."""
    seeds = sorted({point.get("seed", 0) for point in points})
    means = [mean_and_error([_mean(points, loop, seed) for seed in seeds]) for loop in loops]
    errors = [mean.stderr or 0.0 for mean in means] if len(seeds) > 1 else None
    at = [known(mean) for mean in means]
    ax.errorbar(loops, at, yerr=errors, color="black", marker="o", markersize=4, capsize=3, linewidth=1.2, label=_MEAN)


def _mean(points: list[dict[str, Any]], loop: int, seed: int) -> float:
    heads = [point["y"] for point in points if point["loop"] == loop and point.get("seed", 0) == seed]
    return sum(heads) / len(heads)


def _draw_ridges(ax: Axes, values: list[list[float]], names: list[str]) -> None:
    """A histogram over the heads for each iteration, the first at the top, with a line at its mean."""
    import numpy as np

    edges = np.histogram_bin_edges(np.concatenate(values), bins=16)
    bases = list(range(len(values)))[::-1]
    for t, (heads, base) in enumerate(zip(values, bases, strict=True)):
        heights, _ = np.histogram(heads, bins=edges)
        tops = base + 0.85 * heights / max(1, heights.max())
        colour = COLOURS[t % len(COLOURS)]
        ax.fill_between(edges, base, [*tops, tops[-1]], color=colour, alpha=0.55, step="post", linewidth=0)
        ax.plot([np.mean(heads)] * 2, [base, base + 0.85], color="black", linewidth=1.4, label=_MEAN)
    ax.set_yticks([base + 0.4 for base in bases], names)
    ax.tick_params(axis="y", length=0)


FIGURE_KINDS.add(
    "distributions",
    FigureKind(
        one_run(distributions_of), draw_distributions, point_lines, parts=titled_parts, merge=merge_distributions
    ),
)


# ---- head ranges ----


def head_ranges_of(plot: Plot, record: Record) -> Numbers | None:
    """points: each head's range over the iterations, and y, the range scaled so that all heads span 0 … 1."""
    loops = probe_of(record, "loops")
    if loops is None:
        return None
    statistic = statistic_of(plot, loops, record)
    flat = [value for row in statistic["range"] for value in row]
    low, width = min(flat), max(flat) - min(flat)
    points = []
    for row, values in enumerate(statistic["range"]):
        for head, value in enumerate(values):
            named = {"layer": loops["layers"][row] + 1, "head": head + 1, "dynamic": statistic["dynamic"][row][head]}
            points.append({**named, "range": value, "y": (value - low) / width if width > 1e-12 else 0.0})
    return {"points": points}


def draw_head_ranges(ax: Axes, picture: Picture) -> None:
    """Colours from dark to light with rising range; dynamic heads are boxed."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    points = picture.numbers["points"]
    layers, heads = (sorted({point[name] for point in points}) for name in ("layer", "head"))
    grid = [[0.0] * len(heads) for _ in layers]
    for point in points:
        row, column = layers.index(point["layer"]), heads.index(point["head"])
        grid[row][column] = point["y"]
        if point["dynamic"]:
            # White in black is seen on every colour, and inside the cell, so that it is no neighbour's.
            outline = [withStroke(linewidth=2.4, foreground="black")]
            style: dict[str, Any] = {"fill": False, "edgecolor": "white", "linewidth": 1, "path_effects": outline}
            ax.add_patch(Rectangle((column - 0.43, row - 0.43), 0.86, 0.86, **style))
    image = ax.imshow(grid, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    ax.set_yticks(range(len(layers)), layers)
    step = max(1, len(heads) // 8)
    ax.set_xticks(range(0, len(heads), step), heads[::step])
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label("range over the loops,\nstretched to 0 … 1", fontsize=6)
    bar.ax.tick_params(labelsize=5)
    label_axes(ax, "head (boxed: dynamic)", "layer")


FIGURE_KINDS.add("head ranges", FigureKind(one_run(head_ranges_of), draw_head_ranges, point_lines, parts=whole))


# ---- reach ----


def reach_of(plot: Plot, record: Record) -> Numbers | None:
    """points: every (loop, output, input) with a path. layers: title and map, [output][input], of each panel."""
    measured = probe_of(record, "reach")
    if measured is None:
        return None
    panels = []
    for t, (chunk, rows) in enumerate(zip(measured["chunks"], measured["maps"], strict=True)):
        panels.append({"title": f"after loop {t + 1}, at {resolution(chunk)}", "map": rows})
    points = [
        {"loop": t + 1, "output": i, "input": p}
        for t, panel in enumerate(panels)
        for i, row in enumerate(panel["map"])
        for p, value in enumerate(row)
        if value
    ]
    return {"points": points, "layers": panels}


def draw_reach(ax: Axes, picture: Picture) -> None:
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(["white", COLOURS[0]])
    ax.imshow(picture.numbers["map"], cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    ax.fill_between([], [], color=COLOURS[0], label="the output depends on this input")
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "reach", FigureKind(one_run(reach_of), draw_reach, point_lines, parts=titled_parts, size=fixed_size(2.7, 2.6))
)
