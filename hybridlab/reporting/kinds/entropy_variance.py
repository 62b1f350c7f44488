"""The variance of attention entropy inside each layer over training: a line for each layer, a panel for each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.lines import draw_ordered, named_lines
from hybridlab.reporting.readings import entropy_variances
from hybridlab.reporting.seeds import merge_named
from hybridlab.reporting.style import label_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    return named_lines(numbers["x"], numbers["lines"])


def draw(ax: Axes, picture: Picture) -> None:
    draw_ordered(ax, picture.numbers)
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "entropy variance",
    FigureKind(one_run(entropy_variances), draw, csv_lines, parts=whole, merge=merge_named, shared=True),
)
