"""Matrices as grids of colours, with marks.

heatmap  a matrix, such as the effects of layers on layers that a probe found: a panel for each run; of three
         dimensions, a panel for each matrix. A list is a row, below those of the panel's other runs. All panels that
         show the same quantity have one scale of colours, with one colour bar; where a value stands for a class, its
         colour has a name
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hybridlab.config.types import Strict
from hybridlab.lab.papers.calls import MetricPath
from hybridlab.lab.papers.plots import Labels, Template
from hybridlab.lab.reporting.figure_kind import (
    MANY,
    WIDTH,
    FigureKind,
    Numbers,
    Picture,
    grown_block,
    names_of,
    nested,
    one_run,
    usual_size,
    values,
)
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.record import Record
from hybridlab.runs.style import COLOURS, MISSING, at_least, block_lines, place_legend, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


class Class(Strict):
    """What a value stands for. letter: written into its cells. colour: its place in the palette of lines; without one,
    white."""

    name: str = ""
    letter: str = ""
    colour: Annotated[int, Field(ge=0, lt=len(COLOURS))] | None = None


class Heatmap(Labels):
    """What `plot:` accepts."""

    metric: MetricPath
    """A matrix, matrices or a list of each run."""
    value_range: tuple[float, float] | None = None
    """What the scale of colours shows at least, so that figures which are compared have the same."""
    bar_label: str = ""
    """What the colours show, with its unit. Panels with the same one share a scale."""
    colours: Literal["even", "log", "diverging"] = "even"
    """How colours follow the values: evenly, by their logarithm, or in two hues around 0 where the sign matters."""
    classes: list[Class] = []
    """What the values 0, 1, … stand for, where they are no quantity."""
    boxed: MetricPath | None = None
    """A matrix with 1 for each cell to put a frame around. With frames or classes, the first seed is shown alone."""
    names: Template = "{}"
    """Of the rows."""
    titles: Template = ""
    """Of the panels of matrices."""
    square: bool = True
    """Whether cells are squares; otherwise they fill the panel."""

    @property
    def first_seed(self) -> bool:
        return bool(self.classes or self.boxed)

    def without_effect(self) -> list[str]:
        idle = {"value_range": None, "bar_label": "", "colours": "even"} if self.classes else {}
        return [name for name, default in idle.items() if getattr(self, name) != default]


def numbers_of(plot: Any, record: Record) -> Numbers | None:
    """parts: of each matrix its title and matrix [row][column], null where nothing was measured. boxed: the cells with
    a frame. names: of the rows. block: the layers of a block, for a matrix of layers of a model grown by blocks. Of a
    list, row alone."""
    array = values(plot, record, plot.metric, "a matrix, matrices or a list", 1, 2, 3)
    if array is None:
        return None
    if array.ndim == 1:
        return {"row": nested(array)}
    tables = array if array.ndim == 3 else array[None]
    boxed = None if plot.boxed is None else values(plot, record, plot.boxed, "a matrix of frames", 2)
    frames = {} if boxed is None else {"boxed": np.argwhere(boxed == 1).tolist()}
    layers = record.config["shape"]["layers"]
    titles = names_of(plot, record, plot.titles, len(tables))
    return {
        "parts": [{"title": title, "matrix": nested(table)} for title, table in zip(titles, tables, strict=True)],
        "names": names_of(plot, record, plot.names, array.shape[-2]),
        "block": grown_block(record) if array.shape == (layers, layers) else None,
        **frames,
    }


def merge(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Each cell's mean over seeds; null where a seed has none."""
    runs = list(by_seed.values())
    if "row" in runs[0]:
        return {"row": _mean([run["row"] for run in runs]), "seeds": len(runs)}
    all_parts = zip(*(run["parts"] for run in runs), strict=True)
    parts = [{**same[0], "matrix": _mean([part["matrix"] for part in same])} for same in all_parts]
    return {**runs[0], "parts": parts, "seeds": len(runs)}


def _mean(of_seeds: Sequence[Any]) -> Any:
    """The mean of lists or matrices; null where one of them is."""
    return nested(np.stack([np.array(cells, dtype=float) for cells in of_seeds], axis=-1).mean(axis=-1))


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows and columns are counted from 1, as in the picture."""
    for part in numbers.get("parts", [{"title": "", "matrix": [numbers.get("row", [])]}]):
        for i, row in enumerate(part["matrix"]):
            for j, value in enumerate(row):
                more = {"boxed": [i, j] in numbers["boxed"]} if "boxed" in numbers else {}
                if value is not None:
                    yield {"picture": part["title"], "row": i + 1, "column": j + 1, "value": value, **more}


# ---- drawing ----


WIDEST_WRITTEN = 8
"""The most columns of a matrix whose values are written into it."""
MOST_TICKS = 12


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Square pictures: two side by side up to four of them, else three, so that three models fill a row. Rows of runs
    are as high as their number needs."""
    if any("row" in numbers for picture in pictures for _, numbers in picture.series):
        return WIDTH, 1.3 + 0.3 * max(len(picture.series) for picture in pictures)
    if not all(picture.plot.square for picture in pictures):
        return usual_size(pictures)
    return (2.3, 2.4) if len(pictures) > MANY or len(pictures) == 3 else (3.2, 3.1)


def draw(ax: Axes, picture: Picture) -> None:
    """The first row at the top. Thin lines where a grown model's blocks begin."""
    plot, (_, numbers) = picture.plot, picture.series[0]
    rows = [entry["row"] for _, entry in picture.series] if "row" in numbers else numbers["matrix"]
    names = [label for label, _ in picture.series] if "row" in numbers else numbers["names"]
    matrix = np.ma.masked_invalid(np.array(rows, dtype=float))
    norm = _norm(matrix.compressed().tolist(), picture.value_range, plot)
    aspect: Any = "equal" if plot.square else "auto"
    image = ax.imshow(matrix, cmap=_shades(plot), norm=norm, interpolation="nearest", aspect=aspect)
    image.set(label=plot.bar_label, gid="classes" if plot.classes else None)
    for set_ticks, of in ((ax.set_xticks, [str(i + 1) for i in range(matrix.shape[1])]), (ax.set_yticks, names)):
        step = math.ceil(len(of) / MOST_TICKS)
        set_ticks(range(0, len(of), step), of[::step])
    if numbers.get("block"):
        block_lines(ax, numbers["block"], matrix.shape[1], start=-0.5, both=True)
    for row, column in numbers.get("boxed", ()):
        _frame(ax, row, column)
    _name_classes(ax, matrix, plot.classes)


def _frame(ax: Axes, row: int, column: int) -> None:
    """White in black is seen on every colour, and inside the cell, so that it is no neighbour's."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    outline = [withStroke(linewidth=2.4, foreground="black")]
    style: dict[str, Any] = {"fill": False, "edgecolor": "white", "linewidth": 1, "path_effects": outline}
    ax.add_patch(Rectangle((column - 0.43, row - 0.43), 0.86, 0.86, **style))


def _name_classes(ax: Axes, matrix: Any, classes: Sequence[Class]) -> None:
    """The letters of classes in their cells, and their names for the legend, the last class first."""
    for category in reversed(classes):
        if category.name:
            ax.fill_between([], [], color=_colour(category), label=category.name)
    for value, category in enumerate(classes):
        for i, j in np.argwhere(matrix == value) if category.letter else ():
            ax.text(j, i, category.letter, color="black", ha="center", va="center", fontsize=6)


def _colour(category: Class) -> str:
    return "white" if category.colour is None else COLOURS[category.colour]


def _shades(plot: Heatmap) -> Colormap:
    import matplotlib
    from matplotlib.colors import ListedColormap

    if plot.classes:
        return ListedColormap([_colour(category) for category in plot.classes])
    shades = matplotlib.colormaps["RdBu_r" if plot.colours == "diverging" else "viridis"]
    return shades.with_extremes(bad=MISSING)


def _norm(numbers: list[float], limits: tuple[float, float] | None, plot: Heatmap) -> Normalize:
    """From 0 or a lower value on; `diverging`: as far below 0 as above; `log`: from the smallest value above 0, and 0
    has the colour of that one; classes: 0, 1, …."""
    from matplotlib.colors import LogNorm, Normalize

    if plot.classes:
        return Normalize(0, len(plot.classes) - 1)
    if plot.colours == "log":
        above = [value for value in numbers if value > 0]
        return LogNorm(*at_least((min(above, default=0.1), max(above, default=1.0)), limits))
    low, high = at_least((min([0.0, *numbers]), max([0.0, *numbers])), limits)
    return Normalize(-max(-low, high), max(-low, high)) if plot.colours == "diverging" else Normalize(low, high)


def legend(figure: Figure, axes: Sequence[Axes], rows: int) -> None:
    """One scale and one colour bar for all panels of a quantity, beside them; below, what has a name."""
    groups: dict[str, list[Axes]] = {}
    for ax in axes:
        if ax.images[0].get_gid() != "classes":
            groups.setdefault(str(ax.images[0].get_label()), []).append(ax)
    for label, group in groups.items():
        images = [ax.images[0] for ax in group]
        lows, highs = zip(*(image.get_clim() for image in images), strict=True)
        for image in images:
            image.set_clim(min(lows), max(highs))
            _write_values(image)
        bar = figure.colorbar(images[0], ax=group, pad=0.015, aspect=24, fraction=0.05)
        columns = -(-len(axes) // rows)
        _label_bar(bar, label, figure.get_figheight() * -(-len(group) // columns) / rows)
    place_legend(figure, axes)


def _label_bar(bar: Colorbar, label: str, height: float) -> None:
    """The label in lines that fit beside a bar of this height in inches; numbers without powers of ten."""
    from matplotlib.colors import LogNorm

    bar.set_label("\n".join(textwrap.wrap(label, int(13 * height) - 5)), fontsize=7.5)
    if isinstance(bar.norm, LogNorm):
        plain_ticks(bar.ax.yaxis)
    bar.ax.tick_params(labelsize=7)


def _write_values(image: AxesImage) -> None:
    """Values of a small matrix, in black or white, whatever is easier to read on the cell's colour."""
    matrix: Any = image.get_array()
    if matrix.shape[1] > WIDEST_WRITTEN or matrix.shape[0] > WIDEST_WRITTEN:
        return
    for (i, j), value in np.ndenumerate(np.ma.filled(matrix, np.nan)):
        if not math.isnan(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 4.5 if matrix.shape[1] > 6 else 6}
            text = f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")
            image.axes.text(j, i, text, color="white" if dark else "black", **place)


FIGURE_KINDS.add(
    "heatmap",
    FigureKind(
        one_run(numbers_of),
        draw,
        csv_lines,
        parts=lambda plot, numbers: numbers.get("parts"),
        size=size,
        legend=legend,
        merge=merge,
        settings=Heatmap,
    ),
)
