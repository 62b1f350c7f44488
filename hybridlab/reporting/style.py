"""The style of figures: colours that colour-blind readers can tell apart, labels that can be read in print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Okabe and Ito's palette: distinct for all common kinds of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Paul Tol's muted palette, as safe: for more lines than Okabe and Ito's has colours.
MANY_COLOURS = ("#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499")
STYLES = ("-", "--", "-.", ":")
PAPER = "0.45"
"""The grey of what the paper prints."""
MISSING = "0.88"
"""The grey of cells without a value."""
BLOCKS = "0.8"
"""The grey of lines where blocks of layers begin."""


def numbered(count: int) -> list[str]:
    """Names of layers or heads on an axis, counted from 1."""
    return [str(i + 1) for i in range(count)]


def label_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, fontsize=7.5)
    ax.set_ylabel(y, fontsize=7.5)


def at_least(limits: tuple[float, float], wanted: tuple[float, float] | None) -> tuple[float, float]:
    """Limits of an axis, wide enough for what is wanted."""
    return limits if wanted is None else (min(limits[0], wanted[0]), max(limits[1], wanted[1]))


def block_lines(ax: Axes, block: int, count: int, start: float, both: bool = False) -> None:
    """Thin lines where each block of layers but the first begins, of `count` layers whose first begins at `start`
    along x; both: along y too."""
    for first in range(block, count, block):
        for draw_line in (ax.axvline, ax.axhline)[: 1 + both]:
            draw_line(
                start + first, color="white" if ax.images else BLOCKS, linewidth=0.6, zorder=1 if ax.images else 0
            )


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times the powers of ten, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
