"""Lists over an axis, as lines with a band over seeds, and single numbers, as points or bars with errors.

lines  what the metric is in a run decides: a list is a line; a number is a bar; a matrix is a line for each of its
       rows, in a panel of its own for each run; of three dimensions, there is a panel for each matrix. A series with
       several cells is a line through a point for the run of each
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hybridlab.errors import UserError
from hybridlab.lab.papers.calls import MetricPath
from hybridlab.lab.papers.plots import Series, Template, Usual
from hybridlab.lab.reporting.figure_kind import (
    MANY,
    FigureKind,
    Numbers,
    Picture,
    grown_block,
    names_of,
    nested,
    one_run,
    series_lines,
    usual_size,
    values,
)
from hybridlab.lab.reporting.seeds import Measured, blocks_of, measured, merge_lines, merge_points
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.record import Record, number_at
from hybridlab.runs.style import (
    BLOCKS,
    COLOURS,
    LIGHTEST,
    MANY_COLOURS,
    MARKERS,
    PAPER,
    STYLES,
    block_lines,
    cycled,
    draw_band,
    plain_ticks,
)
from hybridlab.statistics import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Lines(Usual):
    """What `plot:` accepts."""

    metric: MetricPath
    """A list, a number, a matrix, or matrices of each run."""
    x: MetricPath | None = None
    """Where the entries of the list lie, by default 1, 2, …; for points a number of each run."""
    x_scale: Literal["linear", "log"] = "linear"
    """log: for points or lines, with x above 0; ticks stand at the points."""
    y_scale: Literal["linear", "log", "symlog"] = "linear"
    """log: for values above 0. symlog: values below 0.01 in size on a linear axis, others on a logarithmic one, so that
    both can be seen."""
    level: MetricPath | None = None
    """A further number of each run, as a dotted line across; or a further list, as a thin line. Both have the colour of
    their run's line; beside the lines of a matrix, it is a thick black one."""
    marks: MetricPath | None = None
    """Beside the lines of a matrix: places along x, such as steps, each with a dotted line."""
    names: Template = "{}"
    """Of the rows of a matrix."""
    titles: Template = ""
    """Of the panels of matrices."""
    ordered: bool = False
    """Whether the rows of a matrix have an order, as layers and steps do: their lines go from dark to light."""
    count: Annotated[int, Field(ge=1)] | None = None
    """The most rows of a matrix: those whose values change most, over all runs of the panel."""
    area: Annotated[float, Field(gt=0)] | None = None
    """Fill the area below the line, down to this value: a panel for each list, or row; the first seed alone."""
    mean: str = ""
    """The name of a line at the mean of an area's list."""

    @property
    def first_seed(self) -> bool:
        return self.area is not None

    def without_effect(self) -> list[str]:
        idle = ("mean",) if self.area is None else ("level", "marks", "count", "ordered", "relative_to")
        return [name for name in idle if getattr(self, name)]


# ---- numbers of a run ----


_NEEDED = "a number, a list of them, or matrices; its x a list as long, or as a row; its level no matrix"


def show(plot: Lines, series: Series, records: list[Record | None]) -> Numbers | None:
    """points of a series with several cells; else what `numbers_of` gives."""
    return points_of(plot, series, records) if series.cells else one_run(numbers_of)(plot, series, records)


def numbers_of(plot: Any, record: Record) -> Numbers | None:
    """Of a number y, stderr and over. Of a list x and y without entries that are null, level, and block, the layers of
    a block where it is one of all layers of a model grown by blocks. Of matrices x, marks, bold, the name of the level
    among the lines, and parts: title of each and lines by name."""
    y = values(plot, record, plot.metric, _NEEDED, 0, 1, 2, 3)
    if y is None:
        return None
    if not y.ndim:
        settings = ("x_scale", "y_scale", "level", "marks")
        if idle := [name for name in settings if getattr(plot, name) not in ("linear", None)]:
            raise UserError(f"plot.{idle[0]} has no effect on a bar, which shows a single number; leave it out")
        error = None if plot.metric in plot._measures else number_at(record, plot.metric).stderr
        return {"y": float(y), "stderr": error, "over": None if error is None else "samples"}
    x = np.arange(1, y.shape[-1] + 1) if plot.x is None else values(plot, record, plot.x, _NEEDED, 1)
    level = None if plot.level is None else values(plot, record, plot.level, _NEEDED, 0, 1)
    long = [len(array) for array in (x, level) if array is not None and array.ndim]
    if x is None or {*long} != {y.shape[-1]}:
        raise UserError(
            f"plot.metric {plot.metric!r} has the shape {y.shape} in run {record.hash}, but lists beside it have "
            f"{' and '.join(map(str, long)) or 'no'} entries; {plot.kind!r} needs {_NEEDED}"
        )
    mask = ~np.isnan(y).reshape(-1, y.shape[-1]).any(axis=0)
    xs = [int(at) if at == int(at) else at for at in x[mask].tolist()]
    if y.ndim > 1 and level is not None:
        level = np.broadcast_to(level, len(x))
    beside = {} if level is None else {"level": nested(level[mask] if level.ndim else level)}
    if y.ndim > 1:
        return {"x": xs, **_matrices(plot, record, y[..., mask], beside)}
    block = grown_block(record) if plot.x is None and len(y) == record.config["shape"]["layers"] else None
    return {"x": xs, "y": y[mask].tolist(), **beside, **({"block": block} if block else {})}


def _matrices(plot: Any, record: Record, y: np.ndarray, level: Numbers) -> Numbers:
    """Each row of one matrix or of several as a line with its name, by matrix; the level is a line of each."""
    tables = y if y.ndim == 3 else y[None] if plot.area is None else y[:, None]
    titles = names_of(plot, record, plot.titles, len(tables))
    names = names_of(plot, record, plot.names, tables.shape[1])
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"plot.names {plot.names!r} calls several rows {again!r} in run {record.hash}; add what they differ in"
        )
    titles_of = {name: measure.title for name, measure in plot._measures.items()}
    bold = label_of(titles_of, plot.level) if plot.level and level else None
    more = {bold: level["level"]} if bold else {}
    parts = [
        {"title": title, "lines": {**dict(zip(names, table.tolist(), strict=True)), **more}}
        for title, table in zip(titles, tables, strict=True)
    ]
    marks = None if plot.marks is None else values(plot, record, plot.marks, "a list of marks", 1)
    return {"parts": parts, "bold": bold, "marks": [] if marks is None else marks.tolist()}


def label_of(names: Mapping[str, str], metric: str) -> str:
    """What a metric is, for a legend: the title of a measure, or the end of a path."""
    return names.get(metric, metric.rpartition(".")[2])


def relative(plot: Lines, numbers: Numbers, base: Numbers) -> Numbers:
    """The difference to another run at the same x. Where both have the same x it is taken point by point, on the same
    batches; else between the points of the other run, with x in percent of its last. Of points, those whose x both
    have."""
    if {"points"} <= numbers.keys() & base.keys():
        return _points_less(numbers["points"], {point["x"]: point for point in base["points"]})
    if not {"x", "y"} <= numbers.keys() & base.keys():
        raise UserError(f"plot.metric {plot.metric!r}: relative_to takes differences of lists; leave it out")
    if numbers["x"] == base["x"]:
        return {**numbers, "y": [a - b for a, b in zip(numbers["y"], base["y"], strict=True)]}
    inside = [(x, y) for x, y in zip(numbers["x"], numbers["y"], strict=True) if base["x"][0] <= x <= base["x"][-1]]
    shares = [100 * x / base["x"][-1] for x, _ in inside]
    return {"x": shares, "y": [y - float(np.interp(x, base["x"], base["y"])) for x, y in inside]}


def _points_less(points: list[Numbers], base: Mapping[float, Numbers]) -> Numbers:
    """Points as differences; their error over windows is that of the differences of these."""
    apart = []
    for point, other in ((point, base[point["x"]]) for point in points if point["x"] in base):
        pairs = zip(point["blocks"], other["blocks"], strict=False)
        blocks = [ours - theirs for ours, theirs in pairs] if point["over"] == other["over"] == "windows" else []
        spread = {"stderr": mean_and_error(blocks).stderr, "over": "windows" if blocks else None}
        apart.append({**_only(point, point.keys() - {"blocks"}), "y": point["y"] - other["y"], **spread})
    return {"points": apart}


def points_of(plot: Lines, series: Series, records: list[Record | None]) -> Numbers | None:
    """points of the runs with a record: x from the series or from the record, y from the record with its error over
    windows, in the order of x. place: of the run in the series, which can name one twice. UserError without any x."""
    if not series.x and plot.x is None:
        raise UserError(
            f"plot.panels: the points of {series.label!r} have no x; give `x: [1, 2, …]`, or a metric as plot.x"
        )
    points = []
    for i, (name, record) in enumerate(zip(series.named, records, strict=True)):
        if record is None:
            continue
        x = series.x[i] if series.x else _number(plot, record, plot.x or "").value
        y = _number(plot, record, plot.metric)
        if x is not None and y.value is not None:
            blocks = blocks_of(record, plot.metric)
            point = {"run": name, "x": x, "y": y.value, "stderr": y.stderr, "over": y.over, "n": 1}
            points.append({**point, "place": i, "blocks": [] if blocks is None else blocks.tolist()})
    return {"points": sorted(points, key=lambda point: point["x"])} if points else None


def _number(plot: Any, record: Record, metric: str) -> Measured:
    """The number that a metric is in a run, with its error; a measure has none."""
    value = values(plot, record, metric, "a number of each run", 0)
    if metric in plot._measures:
        return Measured(value=None if value is None else float(value), n=1)
    return measured({0: record}, metric)


# ---- runs together ----


def align(plot: Lines, runs: list[Numbers]) -> list[Numbers]:
    """Points have errors that leave out what all runs have in common; of matrices with a count, the lines are those
    that change most over all runs."""
    if any("points" in run for run in runs):
        return _points_apart(runs)
    if plot.count is None or not all("parts" in run for run in runs):
        return runs
    moved: dict[str, float] = {}
    for name, line in (item for run in runs for part in run["parts"] for item in part["lines"].items()):
        moved[name] = moved.get(name, 0.0) + float(np.abs(np.diff(line)).sum())
    chosen = sorted(moved, key=lambda name: -moved[name])[: plot.count]
    parts = [[{**part, "lines": _only(part["lines"], chosen)} for part in run["parts"]] for run in runs]
    return [{**run, "parts": run_parts} for run, run_parts in zip(runs, parts, strict=True)]


def _only(lines: dict[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    return {name: line for name, line in lines.items() if name in chosen}


def _points_apart(runs: list[Numbers]) -> list[Numbers]:
    """Errors over windows are those of each run's difference to the mean of all runs of the panel, which are measured
    on the same windows: a text that is hard for all of them says nothing about their order."""
    points = [point for run in runs for point in run["points"]]
    measured_together = [point["blocks"] for point in points if point["over"] == "windows" and "blocks" in point]
    if len({len(blocks) for blocks in measured_together}) == 1 and len(measured_together) > 1:
        common = [sum(column) / len(column) for column in zip(*measured_together, strict=True)]
        # With few runs their mean holds a good part of each of them.
        few = math.sqrt(len(measured_together) / (len(measured_together) - 1))
        for point in (point for point in points if point["over"] == "windows"):
            apart = [block - mean for block, mean in zip(point["blocks"], common, strict=True)]
            point["stderr"] = few * (mean_and_error(apart).stderr or 0.0)
    inner = {"blocks", "place"}
    return [{**run, "points": [_only(point, point.keys() - inner) for point in run["points"]]} for run in runs]


def merge(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Means over seeds with one standard error."""
    runs = list(by_seed.values())
    if "points" in runs[0]:
        return merge_points(by_seed)
    if "parts" in runs[0]:
        count, xs = len(runs[0]["parts"]), [run["x"] for run in runs]
        x = merge_lines({i: {"x": x, "y": x} for i, x in enumerate(xs)})["x"]
        parts = [_merged_lines(xs, [run["parts"][i] for run in runs]) for i in range(count)]
        return {**runs[0], "x": x, "parts": parts, "seeds": len(runs)}
    if "x" not in runs[0]:
        mean = mean_and_error([run["y"] for run in runs])
        return {"y": mean.value, "stderr": mean.stderr, "over": "seeds", "seeds": len(runs)}
    levels = [run["level"] for run in runs if run.get("level") is not None]
    if levels and not isinstance(levels[0], list):
        return {**merge_lines(by_seed), "level": mean_and_error(levels).value}
    return merge_lines(by_seed, keys=("y", "level") if levels else ("y",))


def _merged_lines(xs: Sequence[list[float]], parts: Sequence[Numbers]) -> Numbers:
    """Lines by name as means over seeds, and their bands, (low, high) by name. xs: of each seed."""
    lines, bands = {}, {}
    for name in (name for name in parts[0]["lines"] if all(name in part["lines"] for part in parts)):
        runs = zip(xs, parts, strict=True)
        merged = merge_lines({i: {"x": x, "y": part["lines"][name]} for i, (x, part) in enumerate(runs)})
        lines[name], bands[name] = merged["y"], (merged["low"], merged["high"])
    return {**parts[0], "lines": lines, "bands": bands}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each point, each entry of a line, or the number with its error."""
    if "points" in numbers:
        yield from numbers["points"]
    elif "parts" in numbers:
        for part in numbers["parts"]:
            for name, line in part["lines"].items():
                for at, value in zip(numbers["x"], line, strict=True):
                    yield {"picture": part["title"], "line": name, "x": at, "y": value}
    elif "x" in numbers:
        yield from series_lines(numbers)
    else:
        yield {"y": numbers["y"], "stderr": numbers["stderr"]}


# ---- drawing ----


_FEW = 13
"""Up to so many points have large markers."""
_LINEAR = 0.01
"""Up to this size a symlog axis is linear."""
_DOTS = (0, (1, 1.5))
_BESIDE = 0.018
"""How far series over the same x stand apart, as a share of the axis."""
MOST_WRITTEN = 8
"""The most points of a single series whose values are written beside them."""


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Rows of four, smaller, where the panels fill such rows; areas are small in any case."""
    small = len(pictures) > MANY or any(picture.plot.area is not None for picture in pictures)
    return (1.75, 1.7) if small and len(pictures) % 4 == 0 else (2.3, 1.9) if small else usual_size(pictures)


def draw(ax: Axes, picture: Picture) -> None:
    """What the numbers are decides: points, the lines of a matrix, an area, lines with markers, or bars."""
    drawn = [numbers for _, numbers in picture.series]
    if any("points" in numbers for numbers in drawn):
        _draw_points(ax, picture)
    elif picture.plot.area is not None:
        _draw_area(ax, picture)
    elif any("lines" in numbers for numbers in drawn):
        _draw_rows(ax, picture)
    elif any("x" not in numbers for numbers in drawn):
        _draw_bars(ax, picture)
    else:
        _draw_lines(ax, picture)
    if picture.plot.x_scale == "log":
        ax.set_xscale("log")
        plain_ticks(ax.xaxis)
        if points := {point["x"] for numbers in drawn for point in numbers.get("points", [])}:
            ax.set_xticks(sorted(points))
    for target in picture.targets:
        # A line at 0 needs no name.
        ax.axhline(target, color="0.5", linewidth=0.8, linestyle=(0, (1, 2)), label="target" if target else None)


def _draw_lines(ax: Axes, picture: Picture) -> None:
    for label, numbers in picture.series:
        i, count = picture.place(label), len(numbers["x"])
        thick = isinstance(numbers.get("level"), list)
        style: dict[str, Any] = {**cycled(i), "linewidth": 1.8 if thick else 1.2}
        # Entries that are counted, as layers are, have markers; a curve over training is a line.
        if not thick and (count <= _FEW or picture.plot.x is None):
            style |= {"marker": MARKERS[i % len(MARKERS)], "markersize": 3.5 if count <= _FEW else 2.0}
        ax.plot(numbers["x"], numbers["y"], label=label, **style)
        draw_band(ax, numbers["x"], numbers.get("low"), numbers.get("high"), style["color"])
        _draw_level(ax, numbers, style["color"])
    _scale(ax, picture.plot.y_scale)
    _name_levels(ax, picture)
    for numbers in {numbers["block"]: numbers for _, numbers in picture.series if "block" in numbers}.values():
        block_lines(ax, numbers["block"], round(max(numbers["x"])), start=0.5)
        ax.plot([], [], color=BLOCKS, linewidth=0.6, label="a block of grown layers begins")
    _whole_ticks(ax)


def _draw_level(ax: Axes, numbers: Numbers, colour: str) -> None:
    """A number as a line across, a list as a thin line."""
    level = numbers.get("level")
    if isinstance(level, list):
        ax.plot(numbers["x"], level, color=colour, alpha=0.45, linewidth=1, marker=".", markersize=3)
    elif level is not None:
        ax.axhline(level, color=colour, linewidth=0.8, linestyle=_DOTS, zorder=1)


def _name_levels(ax: Axes, picture: Picture) -> None:
    """One name for the levels of all series."""
    kinds = {isinstance(level, list) for _, numbers in picture.series if (level := numbers.get("level")) is not None}
    name = label_of(picture.names, picture.plot.level or "")
    for thin in kinds:
        if thin:
            ax.plot([], [], label=f"thin: {name}", color=PAPER, linewidth=1, marker=".", markersize=3)
        else:
            ax.plot([], [], label=f"{name}, in its colour", color="0.2", linewidth=0.8, linestyle=_DOTS)


def _scale(ax: Axes, scale: str) -> None:
    if scale == "symlog":
        ax.set_yscale("symlog", linthresh=_LINEAR)
        ax.axhline(0, color="0.8", linewidth=0.6, zorder=0)
    if scale == "log":
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)


def _whole_ticks(ax: Axes) -> None:
    """Ticks at whole numbers: steps, layers and heads are whole."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def _draw_rows(ax: Axes, picture: Picture) -> None:
    """The lines of one matrix: from dark to light where they have an order, else such that no two look the same."""
    import matplotlib

    numbers = picture.numbers
    lines = _only(numbers["lines"], [name for name in numbers["lines"] if name != numbers["bold"]])
    palette = COLOURS if len(lines) <= len(COLOURS) and not numbers["bold"] else MANY_COLOURS
    few, ordered = len(numbers["x"]) <= _FEW, picture.plot.ordered
    for i, (name, line) in enumerate(lines.items()):
        colour: Any = palette[i % len(palette)]
        if ordered:
            colour = matplotlib.colormaps["viridis"](LIGHTEST * i / max(1, len(lines) - 1))
        # Dashes show a line below one that lies on it; where many lines cross often, they hide it.
        dashes = i if few or ordered else i // len(palette)
        look: dict[str, Any] = {"color": colour, "linestyle": STYLES[dashes % len(STYLES)], "linewidth": 1.2}
        ax.plot(numbers["x"], line, label=name, marker="o" if few and ordered else None, markersize=3, **look)
        low, high = numbers.get("bands", {}).get(name, (None, None))
        draw_band(ax, numbers["x"], low, high, colour)
    if numbers["bold"]:
        bold = numbers["lines"][numbers["bold"]]
        ax.plot(numbers["x"], bold, color="black", linewidth=1.8, label=numbers["bold"], zorder=3)
    for mark in numbers["marks"]:
        name = label_of(picture.names, picture.plot.marks)
        ax.axvline(mark, color="0.4", linewidth=0.8, linestyle=(0, (1, 2)), label=name)
    _scale(ax, picture.plot.y_scale)
    _whole_ticks(ax)


def _draw_area(ax: Axes, picture: Picture) -> None:
    """A list as an area, what lies below its base as the base, and its mean."""
    from matplotlib.ticker import FuncFormatter

    x, base = picture.numbers["x"], picture.plot.area
    (y,) = picture.numbers["lines"].values() if "lines" in picture.numbers else [picture.numbers["y"]]
    ax.fill_between(x, base, [max(value, base) for value in y], color=COLOURS[0], linewidth=0, step="mid")
    if picture.plot.mean:
        ax.axhline(sum(y) / len(y), color=COLOURS[1], linewidth=0.9, linestyle="--", label=picture.plot.mean)
    ax.set_yscale(picture.plot.y_scale)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlim(x[0] - 0.5, x[-1] + 0.5)


def _draw_points(ax: Axes, picture: Picture) -> None:
    """Series over the same x stand a little beside each other, since their errors would hide each other."""
    places = {tuple(point["x"] for point in numbers["points"]) for _, numbers in picture.series}
    step = _BESIDE if len(places) == 1 else 0.0
    for k, (label, numbers) in enumerate(picture.series):
        i = picture.place(label)
        xs, ys = ([point[name] for point in numbers["points"]] for name in ("x", "y"))
        errors = [point["stderr"] or 0.0 for point in numbers["points"]]
        style = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "linewidth": 1.1, **cycled(i)}
        # On an axis shared with other panels a single curve may be flat, so its values are written out.
        if len(picture.series) == 1 and len(xs) <= MOST_WRITTEN:
            _write_values(ax, xs, ys)
        xs = _moved(xs, step * (k - (len(picture.series) - 1) / 2), picture.plot.x_scale) if any(errors) else xs
        ax.errorbar(xs, ys, yerr=errors if any(errors) else None, capsize=2, elinewidth=0.7, label=label, **style)
    _scale(ax, picture.plot.y_scale)


def _moved(xs: list[float], share: float, scale: str) -> list[float]:
    """Places moved to the right by a share of the distance between the first and the last of them, as drawn."""
    if scale == "log":
        return [x * (max(xs) / min(xs)) ** share for x in xs]
    return [x + share * (max(xs) - min(xs)) for x in xs]


def _write_values(ax: Axes, xs: list[float], ys: list[float]) -> None:
    """Each value above its point, or below where the line to the neighbours goes up; with room inside the frame."""
    ax.margins(y=0.16)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        beside = [*ys[max(0, i - 1) : i], *ys[i + 1 : i + 2]]
        above = not beside or y >= sum(beside) / len(beside)
        place: dict[str, Any] = {"ha": "center", "va": "bottom" if above else "top", "textcoords": "offset points"}
        ax.annotate(f"{y:.3f}", (x, y), (0, 5 if above else -5), fontsize=5.5, **place)


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
    "lines",
    FigureKind(
        show,
        draw,
        csv_lines,
        parts=lambda plot, numbers: numbers.get("parts", None if plot.area is None else [{}]),
        size=size,
        merge=merge,
        errors=True,
        align=align,
        relative=relative,
        shared=True,
        settings=Lines,
    ),
)
