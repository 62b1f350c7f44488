"""A matrix, such as the effects of layers on layers that a probe found, as a heat map: a panel for each run. All panels
that show the same quantity have one scale of colours, with one colour bar.

metric is a dotted path into a record, or a measure of the experiment.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.errors import UserError
from hybridlab.papers.formula import NoValue
from hybridlab.papers.measures import values_of
from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import MANY, FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.readings import grown_block
from hybridlab.reporting.style import MISSING, at_least, block_lines, label_axes, plain_ticks
from hybridlab.runs.record import Record
from hybridlab.statistics import mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MOST_WRITTEN = 8
"""The most columns of a matrix whose values are written into it."""
MOST_TICKS = 12


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
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


def merge(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Each cell's mean over seeds; null where a seed has none."""
    runs = list(by_seed.values())
    rows = zip(*(run["matrix"] for run in runs), strict=True)
    mean = [[_mean(cells) for cells in zip(*row, strict=True)] for row in rows]
    return {**runs[0], "matrix": mean, "seeds": len(runs)}


def _mean(cells: Sequence[float | None]) -> float | None:
    known = [cell for cell in cells if cell is not None]
    return mean_and_error(known).value if len(known) == len(cells) else None


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Rows and columns are counted from 1, as in the picture."""
    for i, row in enumerate(numbers["matrix"]):
        for j, value in enumerate(row):
            if value is not None:
                yield {"row": i + 1, "column": j + 1, "value": value}


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Square pictures: two side by side up to four of them, else three, so that three models fill a row."""
    return (2.3, 2.4) if len(pictures) > MANY or len(pictures) == 3 else (3.2, 3.1)


# ---- drawing ----


def draw(ax: Axes, picture: Picture) -> None:
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
            _write_values(image)
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


def _write_values(image: AxesImage) -> None:
    """Values of a small matrix, in black or white, whatever is easier to read on the cell's colour."""
    matrix: Any = image.get_array()
    if matrix.shape[1] > MOST_WRITTEN or matrix.shape[0] > MOST_WRITTEN:
        return
    for (i, j), value in np.ndenumerate(np.ma.filled(matrix, np.nan)):
        if not math.isnan(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 4.5 if matrix.shape[1] > 6 else 6}
            shown = f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")
            image.axes.text(j, i, shown, color="white" if dark else "black", **place)


FIGURE_KINDS.add(
    "heatmap", FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, size=size, legend=name_scales, merge=merge)
)
