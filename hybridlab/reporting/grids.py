"""Grids of full attention and windows, for several kinds of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridlab.reporting.figure_kind import Numbers

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

FULL, WINDOW = "#D55E00", "#56B4E9"


def two_colours() -> ListedColormap:
    """The colours of 0, a window, and 1, full attention."""
    from matplotlib.colors import ListedColormap

    return ListedColormap([WINDOW, FULL])


def draw_lettered(ax: Axes, grid: list[list[int]], fontsize: int) -> None:
    """A cell for each value with its letter: F full attention, w a window."""
    ax.imshow(grid, cmap=two_colours(), vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            ax.text(j, i, "F" if value else "w", ha="center", va="center", fontsize=fontsize)


def name_colours(figure: Figure, axes: Sequence[Axes], rows: int) -> None:
    """One legend for all panels, below them, with what else is named in them."""
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=FULL, label="full attention"), Patch(facecolor=WINDOW, label="window")]
    named = {name: handle for ax in axes for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    handles += named.values()
    figure.legend(handles=handles, fontsize=7, frameon=False, ncols=len(handles), loc="outside lower center")


def mask_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line of figure.csv for each KV head of `masks`."""
    for layer, row in enumerate(numbers["masks"]):
        for head, value in enumerate(row):
            yield {"layer": layer + 1, "kv_head": head + 1, "full": value}
