"""Numbers along a model: a list that a probe found, such as one number for each layer, as a line for each run; a single
number, such as a depth score, as a bar for each run.

metric, x and level are dotted paths into a record or measures of the experiment. x: where the entries lie, by default
1, 2, …; level: a number of the run that is drawn as a thin line across, such as the accuracy of the intact model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.errors import UserError, nearest
from hybridlab.papers.formula import NoValue
from hybridlab.papers.measures import values_of
from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, usual_size
from hybridlab.reporting.lines import cycled, draw_band, draw_targets, series_lines
from hybridlab.reporting.readings import grown_block
from hybridlab.reporting.seeds import merge_lines
from hybridlab.reporting.style import BLOCKS, block_lines, label_axes, plain_ticks
from hybridlab.runs.record import Record, number_at
from hybridlab.statistics import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX"
_ROW_OF_FOUR = (1.75, 1.7)
"""Inches of a panel where four stand side by side."""
_FEW = 13
"""Up to so many points have large markers."""
_LINEAR = 0.01
"""Up to this size a symlog axis is linear."""


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
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


def merge(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Means over seeds with one standard error."""
    runs = list(by_seed.values())
    if len(runs) == 1:
        return runs[0]
    if "x" not in runs[0]:
        mean = mean_and_error([run["y"] for run in runs])
        return {"y": mean.value, "stderr": mean.stderr, "over": "seeds", "seeds": len(runs)}
    levels = [run["level"] for run in runs if run["level"] is not None]
    return {**merge_lines(by_seed), "level": mean_and_error(levels).value if levels else None}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each entry of a list, or the number with its error."""
    if "x" in numbers:
        yield from series_lines(numbers)
    else:
        yield {"y": numbers["y"], "stderr": numbers["stderr"]}


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Rows of four, smaller, where the panels fill such rows."""
    return _ROW_OF_FOUR if len(pictures) > 4 and len(pictures) % 4 == 0 else usual_size(pictures)


# ---- drawing ----


def draw(ax: Axes, picture: Picture) -> None:
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


FIGURE_KINDS.add("profile", FigureKind(one_run(numbers_of), draw, csv_lines, size=size, merge=merge, shared=True))
