"""Kinds of figures of any number of a record, or any measure of the experiment, that `metric` and `x` name.

history  a logged number over training: a line for each run, or its difference to another run's
points   one number of a run against another: a point for each run, a line through the runs of a series
profile  numbers along a model: a list that a probe found, such as one number for each layer, as a line for each run; a
         single number, such as a depth score, as a bar for each run. x: where the entries lie, by default 1, 2, …;
         level: a number of the run that is drawn as a thin line across, such as the accuracy of the intact model
scatter  two lists of a run against each other, such as two measures of every attention matrix, or a measure and a score
         at each checkpoint: a point for each entry, with Pearson's r. With many points there are histograms on the
         margins
heatmap  a matrix, such as the effects of layers on layers that a probe found: a panel for each run. All panels that
         show the same quantity have one scale of colours, with one colour bar
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.errors import UserError, nearest
from hybridlab.papers.experiment import Plot, Series
from hybridlab.papers.formula import NoValue, values_of
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import (
    MANY,
    FigureKind,
    Numbers,
    Picture,
    grown_block,
    moving_average,
    named,
    one_run,
    point_lines,
    series_lines,
    usual_size,
    whole,
)
from hybridlab.reporting.seeds import block_means, measured, merge_lines, merge_points, windows_of
from hybridlab.reporting.style import (
    BLOCKS,
    MISSING,
    at_least,
    block_lines,
    cycled,
    draw_band,
    draw_series,
    draw_targets,
    label_axes,
    plain_ticks,
)
from hybridlab.runs.record import Record, number_at
from hybridlab.statistics import mean_and_error, pearson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


_MARKERS = "osD^vPX"


# ---- history ----


def show_history(plot: Plot, series: Series, records: list[Record | None]) -> Numbers | None:
    """x: the column on the x axis. y: the metric's column, divided and smoothed; if the plot is exponential, e to its
    power. What lies in the skipped share at the beginning is left out after smoothing."""
    numbers = one_run(history_of)(plot, series, records)
    if numbers is not None and series.divide_by is not None and records[0] is not None:
        by = number_at(records[0], series.divide_by).value
        if not by:
            raise UserError(f"divide_by: run {records[0].hash} has no number at {series.divide_by}, or it is 0")
        numbers["y"] = [value / by for value in numbers["y"]]
    return numbers


def history_of(plot: Plot, record: Record) -> Numbers:
    x = named(record.history, plot.x, "plot.x", record)
    smooth = moving_average(named(record.history, plot.metric, "plot.metric", record), plot.smooth)
    first = plot.skip * x[-1] if x else 0.0
    kept = [(at, math.exp(y) if plot.exponential else y) for at, y in zip(x, smooth, strict=True) if at >= first]
    return {"x": [at for at, _ in kept], "y": [y for _, y in kept]}


def relative_history(plot: Plot, numbers: Numbers, base: Numbers) -> Numbers:
    """The difference to another run at the same x. Where both logged the same x it is taken point by point, on the
    same batches; else between the points of the other run, with x in percent of its last."""
    if numbers["x"] == base["x"]:
        return {**numbers, "y": [a - b for a, b in zip(numbers["y"], base["y"], strict=True)]}
    inside = [(x, y) for x, y in zip(numbers["x"], numbers["y"], strict=True) if base["x"][0] <= x <= base["x"][-1]]
    shares = [100 * x / base["x"][-1] for x, _ in inside]
    return {"x": shares, "y": [y - _between(x, base["x"], base["y"]) for x, y in inside]}


def _between(at: float, xs: list[float], ys: list[float]) -> float:
    """The value at x on straight lines between the points."""
    import numpy as np

    return float(np.interp(at, xs, ys))


FIGURE_KINDS.add(
    "history",
    FigureKind(show_history, draw_series, series_lines, merge=merge_lines, relative=relative_history, shared=True),
)


# ---- points ----


MOST_WRITTEN = 8
"""The most points of a single series whose values are written beside them."""


def show_points(plot: Plot, series: Series, records: list[Record | None]) -> Numbers | None:
    """points of the runs with a record: x from the series or from the record, y from the record with its error over
    windows, in the order of x."""
    points = []
    for i, (name, record) in enumerate(zip(series.named, records, strict=True)):
        if record is None:
            continue
        x = series.x[i] if series.x else number_at(record, plot.x).value
        y = measured({0: record}, plot.metric or "")
        if x is not None and y.value is not None:
            blocks = block_means(windows_of(record, plot.metric or ""))
            point = {"run": name, "x": x, "y": y.value, "stderr": y.stderr, "over": y.over, "n": 1}
            points.append({**point, "blocks": blocks})
    return {"points": sorted(points, key=lambda point: point["x"])} if points else None


def align_points(plot: Plot, runs: list[Numbers]) -> list[Numbers]:
    """Errors over windows are those of each run's difference to the mean of all runs of the panel, which are measured
    on the same windows: a text that is hard for all of them says nothing about their order."""
    points = [point for run in runs for point in run["points"]]
    measured_together = [point["blocks"] for point in points if point["over"] == "windows"]
    if len({len(blocks) for blocks in measured_together}) == 1 and len(measured_together) > 1:
        common = [sum(column) / len(column) for column in zip(*measured_together, strict=True)]
        # With few runs their mean holds a good part of each of them.
        few = math.sqrt(len(measured_together) / (len(measured_together) - 1))
        for point in (point for point in points if point["over"] == "windows"):
            apart = [own - mean for own, mean in zip(point["blocks"], common, strict=True)]
            point["stderr"] = few * (mean_and_error(apart).stderr or 0.0)
    return [{**run, "points": [_without_blocks(point) for point in run["points"]]} for run in runs]


def _without_blocks(point: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key != "blocks"}


def draw_points(ax: Axes, picture: Picture) -> None:
    for label, numbers in picture.series:
        i = picture.place(label)
        xs, ys = ([point[name] for point in numbers["points"]] for name in ("x", "y"))
        errors = [point["stderr"] or 0.0 for point in numbers["points"]]
        style = {"marker": _MARKERS[i % len(_MARKERS)], "markersize": 4, "linewidth": 1.1, **cycled(i)}
        # On an axis shared with other panels a single curve may be flat, so its values are written out.
        if len(picture.series) == 1 and len(xs) <= MOST_WRITTEN:
            _write_values_of_points(ax, xs, ys)
        ax.errorbar(xs, ys, yerr=errors if any(errors) else None, capsize=2, elinewidth=0.7, label=label, **style)
    draw_targets(ax, picture)
    label_axes(ax, picture.x_label, picture.y_label)


def _write_values_of_points(ax: Axes, xs: list[float], ys: list[float]) -> None:
    """Each value above its point, or below where the line to the neighbours goes up; with room inside the frame."""
    ax.margins(y=0.16)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        beside = [*ys[max(0, i - 1) : i], *ys[i + 1 : i + 2]]
        above = not beside or y >= sum(beside) / len(beside)
        place: dict[str, Any] = {"ha": "center", "va": "bottom" if above else "top", "textcoords": "offset points"}
        ax.annotate(f"{y:.3f}", (x, y), (0, 5 if above else -5), fontsize=5.5, **place)


FIGURE_KINDS.add(
    "points", FigureKind(show_points, draw_points, point_lines, merge=merge_points, align=align_points, shared=True)
)


# ---- profile ----


_ROW_OF_FOUR = (1.75, 1.7)
"""Inches of a panel where four stand side by side."""
_FEW = 13
"""Up to so many points have large markers."""
_LINEAR = 0.01
"""Up to this profile_size a symlog axis is linear."""


def profile_of(plot: Plot, record: Record) -> Numbers | None:
    """Of a list x and y without the entries that are null, and level; of a number y, stderr and over. None if the run
    did not measure it."""
    y = _measured(plot, record, plot.metric or "")
    if y is None:
        return None
    if not y.ndim:
        error = None if plot.metric in plot._measures else number_at(record, plot.metric or "").stderr
        return {"y": float(y), "stderr": error, "over": None if error is None else "samples"}
    xs = np.arange(1, len(y) + 1) if plot.x == Plot.model_fields["x"].default else _measured(plot, record, plot.x)
    level = None if plot.level is None else _measured(plot, record, plot.level)
    if y.ndim > 1 or xs is None or xs.shape != y.shape or (level is not None and level.ndim):
        raise UserError(
            f"plot.metric {plot.metric!r} has the shape {y.shape} in run {record.hash}, its x "
            f"{'none' if xs is None else xs.shape}; a line needs two lists of the same length, and `level` a number"
        )
    kept = ~np.isnan(y)
    more = {"level": None if level is None else float(level), "y_scale": plot.y_scale, **_blocks(plot, record, len(y))}
    return {"x": xs[kept].tolist(), "y": y[kept].tolist(), **more}


def _blocks(plot: Plot, record: Record, count: int) -> dict[str, int]:
    """block: the layers of a block, for a list of all layers of a model grown by blocks; otherwise nothing."""
    block = grown_block(record)
    of_layers = plot.x == Plot.model_fields["x"].default and count == record.config["shape"]["layers"]
    return {"block": block} if block and of_layers else {}


def _measured(plot: Plot, record: Record, metric: str) -> Any:
    """The values of a metric; None where the run has none. UserError for a name that is no measure."""
    if "." not in metric and metric not in plot._measures and not hasattr(record, metric):
        raise UserError(
            f"plot.metric is {metric!r}, which is no measure of the experiment; "
            f"{nearest(metric, [*plot._measures], 'write a dotted path into a record')}"
        )
    try:
        return values_of(record, metric, plot._measures)
    except NoValue:
        return None


def merge_profile(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Means over seeds with one standard error."""
    runs = list(by_seed.values())
    if len(runs) == 1:
        return runs[0]
    if "x" not in runs[0]:
        mean = mean_and_error([run["y"] for run in runs])
        return {"y": mean.value, "stderr": mean.stderr, "over": "seeds", "seeds": len(runs)}
    levels = [run["level"] for run in runs if run["level"] is not None]
    return {**merge_lines(by_seed), "level": mean_and_error(levels).value if levels else None}


def profile_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each entry of a list, or the number with its error."""
    if "x" in numbers:
        yield from series_lines(numbers)
    else:
        yield {"y": numbers["y"], "stderr": numbers["stderr"]}


def profile_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Rows of four, smaller, where the panels fill such rows."""
    return _ROW_OF_FOUR if len(pictures) > 4 and len(pictures) % 4 == 0 else usual_size(pictures)


def draw_profile(ax: Axes, picture: Picture) -> None:
    """Lines with a marker at each entry, or bars with their names below."""
    if picture.series and "x" not in picture.series[0][1]:
        _draw_bars(ax, picture)
    else:
        _draw_lines(ax, picture)
    draw_targets(ax, picture)
    label_axes(ax, picture.x_label, picture.y_label)


def _draw_lines(ax: Axes, picture: Picture) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, numbers in picture.series:
        i = picture.place(label)
        style: dict[str, Any] = {**cycled(i), "marker": _MARKERS[i % len(_MARKERS)]}
        style["markersize"] = 3.5 if len(numbers["x"]) <= _FEW else 2.0
        ax.plot(numbers["x"], numbers["y"], label=label, linewidth=1.2, **style)
        draw_band(ax, numbers["x"], numbers.get("low"), numbers.get("high"), style["color"])
        if numbers["level"] is not None:
            ax.axhline(numbers["level"], color=style["color"], linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    if any(numbers["y_scale"] == "symlog" for _, numbers in picture.series):
        ax.set_yscale("symlog", linthresh=_LINEAR)
        ax.axhline(0, color="0.8", linewidth=0.6, zorder=0)
    if any(numbers["y_scale"] == "log" for _, numbers in picture.series):
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)
    if any(numbers["level"] is not None for _, numbers in picture.series):
        ax.plot([], [], color="0.2", linewidth=0.8, linestyle=(0, (1, 1.5)), label="intact model, in its colour")
    for numbers in {numbers["block"]: numbers for _, numbers in picture.series if "block" in numbers}.values():
        block_lines(ax, numbers["block"], round(max(numbers["x"])), start=0.5)
        ax.plot([], [], color=BLOCKS, linewidth=0.6, label="a block of grown layers begins")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _draw_bars(ax: Axes, picture: Picture) -> None:
    """Their values are written above, or below where they are negative."""
    heights = [numbers["y"] for _, numbers in picture.series]
    for i, (label, numbers) in enumerate(picture.series):
        error, colour = numbers["stderr"] or 0.0, cycled(picture.place(label))["color"]
        ax.bar(i, numbers["y"], width=0.65, color=colour, yerr=error or None, capsize=2, error_kw={"linewidth": 0.8})
        end = numbers["y"] + (error if numbers["y"] >= 0 else -error)
        place: dict[str, Any] = {"ha": "center", "va": "bottom" if numbers["y"] >= 0 else "top"}
        text = f"{numbers['y']:.2f}".replace("-", "−")
        ax.annotate(text, (i, end), (0, 1 if end >= 0 else -1), textcoords="offset points", fontsize=6, **place)
    ax.margins(y=0.14)
    ax.set_ylim(min(0.0, ax.get_ylim()[0]) if min(heights) < 0 else 0.0, ax.get_ylim()[1])
    names = [label for label, _ in picture.series]
    ax.set_xticks(range(len(names)), names, rotation=25, ha="right", rotation_mode="anchor", fontsize=6.5)


FIGURE_KINDS.add(
    "profile",
    FigureKind(one_run(profile_of), draw_profile, profile_csv, size=profile_size, merge=merge_profile, shared=True),
)


# ---- scatter ----


MANY_POINTS = 60
"""From so many points on there are histograms on the margins, and small points."""
BINS = 24


def scatter_of(plot: Plot, record: Record) -> Numbers | None:
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


def merge_scatter(by_seed: Mapping[int, Numbers]) -> Numbers:
    """The points of all seeds, and the mean of their r, since points of different runs are no sample of one."""
    runs = list(by_seed.values())
    if len(runs) == 1:
        return runs[0]
    known = [run["r"] for run in runs if run["r"] is not None]
    r = mean_and_error(known).value if len(known) == len(runs) else None
    points = {name: [value for run in runs for value in run[name]] for name in ("x", "y")}
    return {**points, "r": r, "p": None, "seeds": len(runs)}


def scatter_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each point."""
    yield from series_lines({name: numbers[name] for name in ("x", "y")})


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


FIGURE_KINDS.add(
    "scatter", FigureKind(one_run(scatter_of), draw_scatter, scatter_csv, size=scatter_size, merge=merge_scatter)
)


# ---- heatmap ----


WIDEST_WRITTEN = 8
"""The most columns of a matrix whose values are written into it."""
MOST_TICKS = 12


def heatmap_of(plot: Plot, record: Record) -> Numbers | None:
    """matrix: [row][column], null where nothing was measured. block: the layers of a block, for a matrix of layers of a
    model grown by blocks. bar: what the colours show. None if it was not measured."""
    try:
        matrix = values_of(record, plot.metric or "", plot._measures)
    except NoValue:
        return None
    if matrix.ndim != 2:
        raise UserError(
            f"plot.metric {plot.metric!r} has the shape {matrix.shape} in run {record.hash}; a heat map needs a matrix"
        )
    layers = record.config["shape"]["layers"]
    return {
        "matrix": [[None if math.isnan(cell) else cell for cell in row] for row in matrix.tolist()],
        "block": grown_block(record) if matrix.shape == (layers, layers) else None,
        "bar": {"label": plot.bar_label, "colours": plot.colours},
    }


def merge_heatmap(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Each cell's mean over seeds; null where a seed has none."""
    runs = list(by_seed.values())
    rows = zip(*(run["matrix"] for run in runs), strict=True)
    mean = [[_mean(cells) for cells in zip(*row, strict=True)] for row in rows]
    return {**runs[0], "matrix": mean, "seeds": len(runs)}


def _mean(cells: Sequence[float | None]) -> float | None:
    known = [cell for cell in cells if cell is not None]
    return mean_and_error(known).value if len(known) == len(cells) else None


def heatmap_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows and columns are counted from 1, as in the picture."""
    for i, row in enumerate(numbers["matrix"]):
        for j, value in enumerate(row):
            if value is not None:
                yield {"row": i + 1, "column": j + 1, "value": value}


def heatmap_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Square pictures: two side by side up to four of them, else three, so that three models fill a row."""
    return (2.3, 2.4) if len(pictures) > MANY or len(pictures) == 3 else (3.2, 3.1)


def draw_heatmap(ax: Axes, picture: Picture) -> None:
    """The first row at the top. Thin lines where a grown model's blocks begin."""
    import matplotlib

    numbers, colours = picture.numbers, picture.numbers["bar"]["colours"]
    matrix = np.ma.masked_invalid(np.array(numbers["matrix"], dtype=float))
    shades = matplotlib.colormaps["RdBu_r" if colours == "diverging" else "viridis"].with_extremes(bad=MISSING)
    norm = _norm(matrix.compressed().tolist(), picture.value_range, colours)
    image = ax.imshow(matrix, cmap=shades, norm=norm, interpolation="nearest", aspect="equal")
    image.set_label(numbers["bar"]["label"])
    rows, columns = matrix.shape
    for set_ticks, count in ((ax.set_xticks, columns), (ax.set_yticks, rows)):
        ticks = list(range(0, count, math.ceil(count / MOST_TICKS)))
        set_ticks(ticks, [str(tick + 1) for tick in ticks])
    if numbers["block"]:
        block_lines(ax, numbers["block"], columns, start=-0.5, both=True)
    label_axes(ax, picture.x_label, picture.y_label)


def _norm(values: list[float], wanted: tuple[float, float] | None, colours: str) -> Normalize:
    """From 0 or a lower value on; `diverging`: as far below 0 as above; `log`: from the smallest value above 0, and 0
    has the colour of that one."""
    from matplotlib.colors import LogNorm, Normalize

    if colours == "log":
        above = [value for value in values if value > 0]
        return LogNorm(*at_least((min(above, default=0.1), max(above, default=1.0)), wanted))
    low, high = at_least((min([0.0, *values]), max([0.0, *values])), wanted)
    return Normalize(-max(-low, high), max(-low, high)) if colours == "diverging" else Normalize(low, high)


def name_scales(figure: Figure, axes: Sequence[Axes], rows: int) -> None:
    """One scale and one colour bar for all panels of a quantity, beside them."""
    groups: dict[str, list[Axes]] = {}
    for ax in axes:
        groups.setdefault(str(ax.images[0].get_label()), []).append(ax)
    for label, group in groups.items():
        images = [ax.images[0] for ax in group]
        lows, highs = zip(*(image.get_clim() for image in images), strict=True)
        for image in images:
            image.set_clim(min(lows), max(highs))
            _write_values_of_heatmap(image)
        bar = figure.colorbar(images[0], ax=group, pad=0.015, aspect=24, fraction=0.05)
        columns = -(-len(axes) // rows)
        _label_bar(bar, label, figure.get_figheight() * -(-len(group) // columns) / rows)


def _label_bar(bar: Colorbar, label: str, height: float) -> None:
    """The label in lines that fit beside a bar of this height in inches; numbers without powers of ten."""
    from matplotlib.colors import LogNorm

    bar.set_label("\n".join(textwrap.wrap(label, int(13 * height) - 5)), fontsize=7.5)
    if isinstance(bar.norm, LogNorm):
        plain_ticks(bar.ax.yaxis)
    bar.ax.tick_params(labelsize=7)


def _write_values_of_heatmap(image: AxesImage) -> None:
    """Values of a small matrix, in black or white, whatever is easier to read on the cell's colour."""
    matrix: Any = image.get_array()
    if matrix.shape[1] > WIDEST_WRITTEN or matrix.shape[0] > WIDEST_WRITTEN:
        return
    for (i, j), value in np.ndenumerate(np.ma.filled(matrix, np.nan)):
        if not math.isnan(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 4.5 if matrix.shape[1] > 6 else 6}
            shown = f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")
            image.axes.text(j, i, shown, color="white" if dark else "black", **place)


FIGURE_KINDS.add(
    "heatmap",
    FigureKind(
        one_run(heatmap_of),
        draw_heatmap,
        heatmap_csv,
        parts=whole,
        size=heatmap_size,
        legend=name_scales,
        merge=merge_heatmap,
    ),
)
