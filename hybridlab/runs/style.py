"""The style of figures: colours that colour-blind readers can tell apart, labels that can be read in print, lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_UNITS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_MOST_DIGITS = 7
"""After the point; a number that needs more is written with its power of ten."""

# Okabe and Ito's palette: distinct for all common kinds of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Paul Tol's muted palette, as safe: for more lines than Okabe and Ito's has colours.
MANY_COLOURS = ("#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499")
STYLES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX"
LIGHTEST = 0.78
"""How far lines go along viridis; what is lighter is hard to see on paper."""
PAPER = "0.45"
"""The grey of what the paper prints."""
MISSING = "0.88"
"""The grey of cells without a value."""
BLOCKS = "0.8"
"""The grey of lines where blocks of layers begin."""


DOTS = 125
"""Dots per inch of a PNG: a picture as wide as a page has 900, which is how wide pages show it."""


def saved(figure: Figure, **looks: Any) -> bytes:
    """The content of a picture's file. looks: arguments of `savefig`."""
    buffer = BytesIO()
    figure.savefig(buffer, **looks)
    return buffer.getvalue()


def small_png(figure: Figure) -> bytes:
    """A figure in a palette: of 256 colours where a matrix is drawn, a fifth of the bytes of true colours; of 64 where
    bands have tints, a quarter less; of 32 elsewhere, again a sixth less."""
    from matplotlib.collections import PolyCollection
    from PIL import Image

    figure.set_dpi(DOTS)
    if figure.get_layout_engine() is not None:
        # Colour bars find their place only when a figure is drawn a second time.
        figure.draw_without_rendering()
    # The usual median cut loses the rare colours at the ends of a colour bar, and an octree the light greys.
    colours, small = Image.open(BytesIO(saved(figure, format="png", dpi=DOTS))).convert("RGB"), BytesIO()
    tinted = any(isinstance(drawn, PolyCollection) for ax in figure.axes for drawn in ax.collections)
    count = 256 if any(ax.images for ax in figure.axes) else 64 if tinted else 32
    palette = colours.quantize(count, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    palette.save(small, format="PNG", optimize=True)
    return small.getvalue()


def label_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, fontsize=7.5)
    ax.set_ylabel(y, fontsize=7.5)


def at_least(limits: tuple[float, float], required: tuple[float, float] | None) -> tuple[float, float]:
    """Limits of an axis, wide enough for what is wanted."""
    return limits if required is None else (min(limits[0], required[0]), max(limits[1], required[1]))


def block_lines(ax: Axes, block: int, count: int, start: float, both: bool = False) -> None:
    """Thin lines where each block of layers but the first begins, of `count` layers whose first begins at `start`
    along x; both: along y too."""
    colour, order = ("white", 1) if ax.images else (BLOCKS, 0)
    for first in range(block, count, block):
        for draw_line in (ax.axvline, ax.axhline)[: 1 + both]:
            draw_line(start + first, color=colour, linewidth=0.6, zorder=order)


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times the powers of ten, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def tick_texts(ticks: Sequence[float], units: bool = False, values: Sequence[float] | None = None) -> list[str]:
    """Numbers at ticks with as many digits as tell them apart: 1,500 steps, 0.25 seconds; with units, 20M tokens.

    values: the numbers that are wanted, by default all ticks.
    """
    places = sorted(set(ticks))
    gaps = [after - before for before, after in zip(places, places[1:], strict=False)]
    near = 1e-3 * min(gaps, default=abs(places[0]) or 1.0)
    return [_number(float(value) + 0.0, near, units) for value in (ticks if values is None else values)]


def _number(value: float, near: float, units: bool) -> str:
    """A number with the fewest digits that are as near as this to it; with units, in thousands, millions and so on."""
    power = min(max(int(math.log10(abs(value)) // 3), 0), len(_UNITS) - 1) if units and value else 0
    scaled, near = value / 1000**power, near / 1000**power
    digits = next((digits for digits in range(_MOST_DIGITS) if abs(round(scaled, digits) - scaled) <= near), None)
    if digits is not None:
        return f"{scaled:,.{digits}f}{_UNITS[power]}"
    return next(text for digits in range(1, 18) if abs(float(text := f"{value:.{digits}g}") - value) <= near)


# ---- lines, for several kinds of figures ----


def cycled(index: int) -> dict[str, Any]:
    """Colour and dashes of the line at an index."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}


def draw_band(ax: Axes, x: list[float], low: list[float] | None, high: list[float] | None, colour: Any) -> None:
    """What lies within one standard error over seeds; nothing for a single seed."""
    if low is not None and high is not None:
        ax.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0)


# ---- legends ----


MOST_NAMED = 40
"""The most names that a legend has room for; with more there is no legend."""


def place_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, with every name once, since it looks the same in all; the figure becomes higher."""
    handles = {
        name: handle
        for ax in axes
        if ax.get_legend() is None
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if handles and len(handles) <= MOST_NAMED:
        room = int(17 * figure.get_figwidth())
        columns = max(1, min(len(handles), room // (max(map(len, handles)) + 7)))
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
        figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(handles) // columns))
        figure.legend(handles.values(), handles.keys(), fontsize=7, frameon=False, **place)
