"""The KV heads with full attention: a grid of layers and heads for each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.grids import draw_lettered, mask_lines, name_colours
from hybridlab.reporting.readings import masks_of
from hybridlab.reporting.style import label_axes, numbered
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """masks: [layer][KV head], 1 = full."""
    masks = masks_of(record)
    return None if masks is None else {"masks": masks}


def draw(ax: Axes, picture: Picture) -> None:
    masks = picture.numbers["masks"]
    grid = [[row[head] for row in masks] for head in range(len(masks[0]))]
    draw_lettered(ax, grid, fontsize=6)
    ax.set_xticks(range(len(masks)), numbered(len(masks)))
    ax.set_yticks(range(len(grid)), numbered(len(grid)))
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add("head masks", FigureKind(one_run(numbers_of), draw, mask_lines, parts=whole, legend=name_colours))
