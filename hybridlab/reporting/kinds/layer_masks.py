"""The layers with full attention: a row of layers for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import WIDTH, FigureKind, Numbers, Picture, one_run
from hybridlab.reporting.grids import draw_lettered, mask_lines, name_colours
from hybridlab.reporting.readings import masks_of
from hybridlab.reporting.style import label_axes, numbered
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """masks: [layer][KV head], 1 = full. This kind is for runs in which all heads of a layer are the same."""
    masks = masks_of(record)
    return None if masks is None else {"masks": masks}


def draw(ax: Axes, picture: Picture) -> None:
    grid = [[row[0] for row in numbers["masks"]] for _, numbers in picture.series]
    draw_lettered(ax, grid, fontsize=7)
    ax.set_yticks(range(len(grid)), [label for label, _ in picture.series])
    ax.set_xticks(range(len(grid[0])), numbered(len(grid[0])))
    label_axes(ax, picture.x_label, picture.y_label)


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Inches of a panel; the height grows with the number of rows."""
    return WIDTH, 1.3 + 0.3 * max(len(picture.series) for picture in pictures)


FIGURE_KINDS.add("layer masks", FigureKind(one_run(numbers_of), draw, mask_lines, size=size, legend=name_colours))
