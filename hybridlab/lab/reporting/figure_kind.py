"""A kind of figure: one object, registered under its name in `hybridlab.registry.FIGURE_KINDS`.

The modules of reporting/kinds/ register the built-in kinds, a plug-in its own, by `FIGURE_KINDS.add(name,
FigureKind(...))`. A kind has two tasks: it takes numbers from records, which are written to figure.json and
figure.csv, and it draws these numbers. Its settings are what `plot:` of an experiment file accepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from string import Formatter
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.formula import NotMeasured, NoValue, values_of
from hybridlab.lab.papers.plots import PlotSettings, Series, Usual
from hybridlab.plugins import as_json, is_own, refuse
from hybridlab.runs.record import Record, part_at

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
    labels: of the series of all panels. names: titles of measures. plot: the settings of this panel's kind that the
    other entries do not have."""

    title: str
    series: list[tuple[str, Numbers]]
    targets: list[float]
    x_label: str
    y_label: str
    value_range: tuple[float, float] | None = None
    paper: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    plot: Any = None

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
    """A kind of figure. `plot`, an argument of several parts, has the settings of the panel, by name.

    show: the numbers of a series from the records of its cells (None: that cell has no record); see `one_run`.
    draw: one panel on an axis, which has the labels of `plot:`. Labelled lines get a legend outside the panels.
    csv_lines: the numbers of a series as lines of figure.csv, column → value.
    parts: for kinds that draw series, or parts of one, in panels of their own: the parts of a series, or None for one
    that stands in a panel with the others. A part's entries replace the series' numbers of the same names; its `title`
    is added to the panel's.
    size: width and height of a panel in inches.
    legend: draws one legend for all panels, from the figure, the axes of the panels and their number of rows.
    merge: the numbers of a series from those of several seeds; without it the first seed is shown, as it is where the
    settings say so (`first_seed`).
    errors: whether it draws the errors over seeds that `merge` gives; a page says so.
    align: changes the numbers of all series of a panel together, so that they can be compared.
    relative: the numbers of a series less those of the panel's `relative_to`, of the same seed.
    shared: whether panels with the same axis labels get the same axes.
    own_paper: whether `draw` also draws the paper's values, each beside the series of its label.
    settings: what `plot:` accepts beside its panels, a subclass of `PlotSettings`.
    """

    show: Callable[[Any, Series, list[Record | None]], Numbers | None]
    draw: Callable[[Axes, Picture], None]
    csv_lines: Callable[[Numbers], Iterable[dict[str, Any]]]
    parts: Callable[[Any, Numbers], list[Numbers] | None] | None = None
    size: Callable[[Sequence[Picture]], tuple[float, float]] = usual_size
    legend: Callable[[Figure, Sequence[Axes], int], None] | None = None
    merge: Callable[[Mapping[int, Numbers]], Numbers] | None = None
    errors: bool = False
    align: Callable[[Any, list[Numbers]], list[Numbers]] | None = None
    relative: Callable[[Any, Numbers, Numbers], Numbers] | None = None
    shared: bool = False
    own_paper: bool = False
    settings: type[PlotSettings] = Usual

    def numbers(self, function: object, numbers: Any) -> Any:
        """What a function of the kind has found for a series; UserError for what figure.json cannot have."""
        if numbers is not None and is_own(function):
            if not isinstance(numbers, dict):
                refuse(function, "", numbers, _NUMBERS)
            as_json(function, "", numbers, _NUMBERS)
        return numbers


_NUMBERS = "a dict of texts, finite numbers and lists (arrays as .tolist(), None for what was not measured), or None"


def one_run(
    numbers_of: Callable[[Any, Record], Numbers | None],
) -> Callable[[Any, Series, list[Record | None]], Numbers | None]:
    """`show` of a kind whose series show one run each; None if that run has no record."""

    def show(plot: Any, series: Series, records: list[Record | None]) -> Numbers | None:
        if len(records) > 1:
            raise UserError(
                f"the series {series.label!r} names {len(records)} cells; {plot.kind!r} shows one cell per series"
            )
        return None if records[0] is None else numbers_of(plot, records[0])

    show.__wrapped__ = numbers_of  # type: ignore[attr-defined]  # whose mistakes its are
    return show


def whole(plot: Any, numbers: Numbers) -> list[Numbers]:
    """`parts` of a kind that shows each series in one panel."""
    return [{}]


def series_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Lines of figure.csv for numbers that are lists of equal length, `x` among them."""
    columns = {name: values for name, values in numbers.items() if isinstance(values, list)}
    for i in range(len(numbers["x"])):
        yield {name: values[i] for name, values in columns.items()}


# ---- parts of a record that several kinds show ----


def values(plot: Any, record: Record, metric: str, shape: str, *dimensions: int) -> Any:
    """What a metric is in a record, an array with so many dimensions; None where the run has none.

    shape: what the kind needs, for the error about another shape. UserError for a name that is no measure, and for a
    column that the run's history does not have.
    """
    if "." not in metric and metric not in plot._measures and not hasattr(record, metric):
        raise UserError(
            f"plot.metric is {metric!r}, which is no measure of the experiment; "
            f"{nearest(metric, [*plot._measures], 'write a dotted path into a record')}"
        )
    try:
        array = values_of(record, metric, plot._measures)
    except NotMeasured as missing:
        first, _, column = str(missing).rpartition(": ")[2].partition(".")
        if first == "history":
            raise UserError(
                f"{metric}: the history of run {record.hash} has no {column!r}; {nearest(column, [*record.history])}"
            ) from None
        return None
    except NoValue:
        return None
    if array.ndim not in dimensions:
        raise UserError(
            f"plot.metric {metric!r} has the shape {array.shape} in run {record.hash}; {plot.kind!r} needs {shape}"
        )
    return array


def names_of(plot: Any, record: Record, template: str, count: int) -> list[str]:
    """The names of so many entries from a `Template`; UserError for a list of another length."""
    names = [""] * count
    for text, path, _, _ in Formatter().parse(template):
        entries = [""] * count if path is None else _entries(plot, record, path, count)
        names = [f"{name}{text}{entry}" for name, entry in zip(names, entries, strict=True)]
    return names


def _entries(plot: Any, record: Record, path: str, count: int) -> list[str]:
    """What a path of a template stands for in each of so many names."""
    if not path:
        return [str(number + 1) for number in range(count)]
    part = part_at(record, path)
    if not isinstance(part, dict):
        part = [short_number(value) for value in np.atleast_1d(values(plot, record, path, "names for them", 0, 1))]
    if len(part) != count:
        raise UserError(f"{path} has {len(part)} entries in run {record.hash}, to name {count}; give as many")
    return [*part]


def short_number(value: float) -> str:
    """A number as a name: 5, 0.25 as 1/4, others as 0.37; – for none."""
    if not math.isfinite(value):
        return "–"
    near = Fraction(value).limit_denominator(64)
    return str(near) if math.isclose(near, value, rel_tol=1e-9) else f"{value:g}"


def nested(array: np.ndarray) -> Any:
    """An array as nested lists, with null for what was not measured."""
    return np.where(np.isnan(array), np.array(None), array).tolist()


def grown_block(record: Record) -> int | None:
    """The layers that each growth step of a run added; None for a run that did not grow in depth by blocks."""
    return (record.config.get("controller") or {}).get("block")
