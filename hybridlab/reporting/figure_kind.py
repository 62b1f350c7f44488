"""A kind of figure: one object, registered under its name in `hybridlab.registry.FIGURE_KINDS`.

A built-in kind is one module in reporting/kinds/, whose file name is the kind's name (`head_masks.py`: `head masks`). A
plug-in calls `FIGURE_KINDS.add(name, FigureKind(...))` itself. A kind has two tasks: it takes numbers from records,
which are written to figure.json and figure.csv, and it draws these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridlab.errors import UserError
from hybridlab.papers.plot import Plot, Series
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = dict[str, Any]
"""The numbers of one series, as written to figure.json."""

WIDTH, HEIGHT = 3.4, 2.6
"""Size of a panel in inches: the width of a printed column."""
MOST_COLUMNS = 4
"""The largest number of panels side by side."""


@dataclass(frozen=True)
class Picture:
    """One panel as it is drawn. series: label and numbers of every series with numbers. targets: values to mark. rows:
    number of rows of panels in the figure."""

    title: str
    series: list[tuple[str, Numbers]]
    targets: list[float]
    x_label: str
    y_label: str
    rows: int = 1

    @property
    def numbers(self) -> Numbers:
        """The numbers of a panel with a single series."""
        ((_, numbers),) = self.series
        return numbers


def usual_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Size of one panel in inches: smaller if there are several rows of panels."""
    return (2.2, 1.9) if len(pictures) > MOST_COLUMNS else (WIDTH, HEIGHT)


def fixed_size(width: float, height: float) -> Callable[[Sequence[Picture]], tuple[float, float]]:
    """The same size in inches for any number of panels."""
    return lambda pictures: (width, height)


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure.

    show: the numbers of a series from the records of its cells (None: that cell has no record); see `one_run`.
    draw: one panel on an axis, with its axis labels and its own legend.
    csv_lines: the numbers of a series as lines of figure.csv, column → value.
    parts: for kinds that draw each series, or each part of one, in its own panel: the parts of a series. A part's
    entries replace the series' numbers of the same names; its `title` is added to the panel's.
    size: width and height of a panel in inches.
    legend: draws one legend for all panels, from the figure, the axes of the panels and their number of rows.
    """

    show: Callable[[Plot, Series, list[Record | None]], Numbers | None]
    draw: Callable[[Axes, Picture], None]
    csv_lines: Callable[[Numbers], Iterable[dict[str, Any]]]
    parts: Callable[[Plot, Numbers], list[Numbers]] | None = None
    size: Callable[[Sequence[Picture]], tuple[float, float]] = usual_size
    legend: Callable[[Figure, Sequence[Axes], int], None] | None = None


def one_run(
    numbers_of: Callable[[Plot, Record], Numbers | None],
) -> Callable[[Plot, Series, list[Record | None]], Numbers | None]:
    """`show` of a kind whose series show one run each; None if that run has no record."""

    def show(plot: Plot, series: Series, records: list[Record | None]) -> Numbers | None:
        if len(records) > 1:
            raise UserError(
                f"the series {series.label!r} names {len(records)} cells; {plot.kind!r} shows one cell per series"
            )
        return None if records[0] is None else numbers_of(plot, records[0])

    return show


def whole(plot: Plot, numbers: Numbers) -> list[Numbers]:
    """`parts` of a kind that shows each series in one panel."""
    return [{}]


def titled_parts(plot: Plot, numbers: Numbers) -> list[Numbers]:
    """`parts` of a kind whose numbers list them under `layers`."""
    return numbers["layers"]


def point_lines(numbers: Numbers) -> list[dict[str, Any]]:
    """`csv_lines` of a kind whose numbers are `points`."""
    return numbers["points"]
