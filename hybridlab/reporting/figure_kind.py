"""A kind of figure: one object, registered under its name in `hybridlab.registry.FIGURE_KINDS`.

The modules of reporting/kinds/ register the built-in kinds, a plug-in its own, by `FIGURE_KINDS.add(name,
FigureKind(...))`. A kind has two tasks: it takes numbers from records,
which are written to figure.json and figure.csv, and it draws these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybridlab.errors import UserError, nearest
from hybridlab.papers.experiment import Plot, Series
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = dict[str, Any]
"""The numbers of one series, as written to figure.json."""

WIDTH, HEIGHT = 3.4, 2.6
"""Size of a panel in inches: the width of a printed column."""
PAGE = 7.2
"""Inches of a printed page's text, in which the panels side by side must fit."""
MANY = 4
"""With more panels than this, each is smaller."""


@dataclass(frozen=True)
class Picture:
    """One panel as it is drawn. series: label and numbers of every series with numbers. targets: values to mark.
    value_range: what the axis of values shows at least. paper: what the paper prints, each a `PaperMark` as JSON.
    labels: of the series of all panels."""

    title: str
    series: list[tuple[str, Numbers]]
    targets: list[float]
    x_label: str
    y_label: str
    value_range: tuple[float, float] | None = None
    paper: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def place(self, label: str) -> int:
        """The index of a series among all of the figure, so that it looks the same in every panel."""
        return self.labels.index(label) if label in self.labels else [name for name, _ in self.series].index(label)

    @property
    def numbers(self) -> Numbers:
        """The numbers of a panel with a single series."""
        ((_, numbers),) = self.series
        return numbers


def usual_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Size of one panel in inches: smaller where three stand side by side."""
    return (2.3, 1.9) if len(pictures) > MANY or len(pictures) == 3 else (WIDTH, HEIGHT)


def fixed_size(width: float, height: float) -> Callable[[Sequence[Picture]], tuple[float, float]]:
    """The same size in inches for any number of panels."""
    return lambda pictures: (width, height)


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure.

    show: the numbers of a series from the records of its cells (None: that cell has no record); see `one_run`.
    draw: one panel on an axis, with its axis labels. Labelled lines get a legend outside the panels.
    csv_lines: the numbers of a series as lines of figure.csv, column → value.
    parts: for kinds that draw each series, or each part of one, in its own panel: the parts of a series. A part's
    entries replace the series' numbers of the same names; its `title` is added to the panel's.
    size: width and height of a panel in inches.
    legend: draws one legend for all panels, from the figure, the axes of the panels and their number of rows.
    merge: the numbers of a series from those of each seed, with errors over seeds; without it the first seed is shown.
    align: changes the numbers of all series of a panel together, so that they can be compared.
    relative: the numbers of a series less those of the panel's `relative_to`, of the same seed.
    shared: whether panels with the same axis labels get the same axes.
    own_paper: whether `draw` also draws the paper's values.
    """

    show: Callable[[Plot, Series, list[Record | None]], Numbers | None]
    draw: Callable[[Axes, Picture], None]
    csv_lines: Callable[[Numbers], Iterable[dict[str, Any]]]
    parts: Callable[[Plot, Numbers], list[Numbers]] | None = None
    size: Callable[[Sequence[Picture]], tuple[float, float]] = usual_size
    legend: Callable[[Figure, Sequence[Axes], int], None] | None = None
    merge: Callable[[Mapping[int, Numbers]], Numbers] | None = None
    align: Callable[[Plot, list[Numbers]], list[Numbers]] | None = None
    relative: Callable[[Plot, Numbers, Numbers], Numbers] | None = None
    shared: bool = False
    own_paper: bool = False


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


def series_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Lines of figure.csv for numbers that are lists of equal length, `x` among them."""
    columns = {name: values for name, values in numbers.items() if isinstance(values, list)}
    for i in range(len(numbers["x"])):
        yield {name: values[i] for name, values in columns.items()}


def named_lines(x: list[float], lines: dict[str, list[float]], title: str | None = None) -> Iterator[dict[str, Any]]:
    """Lines of figure.csv for named lines over the same x. title: of their panel, if a series has several panels."""
    for name, values in lines.items():
        for at, value in zip(x, values, strict=True):
            yield {"picture": title, "line": name, "x": at, "y": value}


def moving_average(values: list[float], width: int) -> list[float]:
    """A centred moving average; at both ends it is over fewer values."""
    half = width // 2
    windows = (values[max(0, i - half) : i - half + width] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


# ---- parts of a record that several kinds show ----


def probe_of(record: Record, name: str) -> dict[str, Any] | None:
    """The result of a probe on a run; None if the probe was not run, or was skipped."""
    measured = record.results.probes.get(name) if record.results else None
    return None if measured is None or "skipped" in measured else measured


def grown_block(record: Record) -> int | None:
    """The layers that each growth step of a run added; None for a run that did not grow in depth by blocks."""
    return (record.config.get("controller") or {}).get("block")


def named(known: Mapping[str, Any], name: str | None, setting: str, record: Record) -> Any:
    """The value that a setting of the plot names. UserError with the nearest known name for an unknown one."""
    if name is None or name not in known:
        raise UserError(f"{setting} is {name!r}, which run {record.hash} does not have; {nearest(str(name), [*known])}")
    return known[name]
