"""`plot:` of an experiment file: a figure, with its panels, their series and what the paper prints.

Each kind of figure declares its settings; `plot:` accepts these alone, for all panels or in a panel for that one.
"""

from __future__ import annotations

from functools import cache
from string import Formatter
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, create_model, model_validator

from hybridlab.config.method import Registered
from hybridlab.config.types import Made, Strict
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.calls import CellName, MetricPath, Refers
from hybridlab.lab.papers.formula import Measure
from hybridlab.registry import FIGURE_KINDS


class Series(Strict):
    """One line, row or matrix of a figure, from the run of one cell, or with a point for the run of each of several
    cells. x: the points' x values, if no metric gives them. metric: instead of the panel's."""

    cell: str = ""
    cells: list[CellName] = []
    label: str
    x: list[float] = []
    metric: MetricPath | None = None

    @model_validator(mode="after")
    def _fits(self) -> Series:
        if bool(self.cell) == bool(self.cells):
            raise ValueError(f"{self.label!r} needs the run of one `cell`, or `cells` with a run for each point")
        if self.x and not self.cells:
            raise ValueError(f"{self.label!r} has x, which only points have; give their `cells`, or leave x out")
        if self.x and len(self.cells) != len(self.x):
            raise ValueError(f"{self.label!r} has {len(self.cells)} cells and {len(self.x)} x; give as many of both")
        return self

    @property
    def named(self) -> list[str]:
        return self.cells or [self.cell]


class PaperMark(Strict):
    """Values that the paper prints, drawn in grey: points at x and y; with x or y alone a line at each, or a band
    between two. source: where the paper prints them. of: the paper's whole x axis, such as its number of layers or
    steps, where these differ from the run's; x is then drawn at the same share of the run's axis."""

    label: str
    source: str
    x: list[float] = []
    y: list[float] = []
    band: bool = False
    of: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> PaperMark:
        if not self.x and not self.y:
            raise ValueError("give the values that the paper prints: x and y for points, x or y alone for lines")
        if self.x and self.y and (len(self.x) != len(self.y) or self.band):
            raise ValueError(f"points need as many x ({len(self.x)}) as y ({len(self.y)}), and are no band")
        if self.band and len(self.x or self.y) != 2:
            raise ValueError(f"a band lies between two values, not {len(self.x or self.y)}")
        return self


def paths_in(template: str) -> list[str]:
    """The paths and measures in a template; ValueError for a brace that is not closed."""
    return [path for _, path, _, _ in Formatter().parse(template) if path]


def _readable(template: str) -> str:
    paths_in(template)
    return template


Template = Annotated[str, Refers("names"), AfterValidator(_readable)]
"""Names of the entries of a list or matrix. `{}` stands for the number of an entry, counted from 1, `{PATH}` for what
another list has there, or for the name of an entry of a table: `"step {hooks.entropy-log.steps}"`."""


# ---- settings of a kind of figure ----


class PlotSettings(Strict):
    """Base class of the settings of a kind of figure; see `FigureKind.settings`."""

    @property
    def first_seed(self) -> bool:
        """Whether the first seed is shown alone, also by a kind that can merge seeds."""
        return False

    def without_effect(self) -> list[str]:
        """The settings that are given, but have no effect beside the others."""
        return []


class Labels(PlotSettings):
    """Settings of a kind with names at its axes."""

    x_label: str = ""
    y_label: str = ""


class Usual(Labels):
    """Settings of a kind that declares none of its own."""

    metric: str | None = None
    x: str | None = "step"
    value_range: tuple[float, float] | None = None
    """What the axis of values shows at least, so that figures which are compared have the same."""
    targets: list[float] = []
    """Target values, drawn as dotted lines."""
    relative_to: CellName | list[CellName] | None = None
    """A cell: the series are differences to its run, at the same x or, where x is not the step, at equal x. Several:
    the points of a series are differences to those of these cells, at the same x."""


class Panel(Strict):
    """One picture of a figure. In the title, `{flops}` stands for the training FLOPs of its runs. Beside these it has
    the settings of the figure's kind, instead of the figure's own."""

    title: str = ""
    series: list[Series] = []
    paper: list[PaperMark] = []

    @model_validator(mode="after")
    def _shows_one_thing(self) -> Panel:
        if len({bool(series.cells) for series in self.series}) > 1:
            raise ValueError("some series have `cell`, others `cells`; give the points a panel of their own")
        return self


class Plot(Strict):
    """A figure. kind: one of reporting/kinds/, or one that a plug-in registers. Beside these it has the settings of its
    kind, for all panels."""

    kind: str
    panels: list[Panel]
    _measures: dict[str, Measure] = PrivateAttr(default_factory=dict)
    """Those of the experiment, by name."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Plot:
        fields = settings_of(self.kind).model_fields
        needed = {name for name, field in fields.items() if field.is_required()}
        if "metric" not in fields and any(series.metric for panel in self.panels for series in panel.series):
            raise ValueError(f"a series has a `metric`, which the kind {self.kind!r} does not read; leave it out")
        for panel in self.panels:
            if panel.series and (missing := sorted(needed - self.model_fields_set - panel.model_fields_set)):
                raise ValueError(f"the kind {self.kind!r} needs `{missing[0]}`: add it here, or to every panel")
            if idle := self.of_panel(panel).without_effect():
                raise ValueError(f"`{idle[0]}` has no effect beside the other settings; leave it out")
            labels = [series.label for series in panel.series]
            if FIGURE_KINDS.get(self.kind).own_paper and (unknown := [m for m in panel.paper if m.label not in labels]):
                raise ValueError(
                    f"the kind {self.kind!r} draws what the paper prints beside the series of the same label, and "
                    f"{unknown[0].label!r} is none: {nearest(unknown[0].label, labels)}"
                )
            self._require_pairs(panel)
        return self

    def _require_pairs(self, panel: Panel) -> None:
        """ValueError unless each series has as many cells as `relative_to`, or both have one run."""
        base = getattr(self.of_panel(panel), "relative_to", None)
        cells = base if isinstance(base, list) else []
        for series in panel.series if base is not None else ():
            if len(series.cells) != len(cells) or not series.cells and isinstance(base, list):
                raise ValueError(
                    f"the series {series.label!r} needs a relative_to like itself, not {base!r}: one cell for `cell`, "
                    "and for `cells` a list with as many, in the same order"
                )

    def of_panel(self, panel: Panel) -> Any:
        """The plot with what a panel has of its own."""
        names = panel.model_fields_set & settings_of(self.kind).model_fields.keys()
        return self.model_copy(update={name: getattr(panel, name) for name in names})

    def relatives(self) -> list[str]:
        """The cells that series are differences to."""
        relatives = [cells for part in (self, *self.panels) if (cells := getattr(part, "relative_to", None))]
        return [cell for cells in relatives for cell in ([cells] if isinstance(cells, str) else cells)]


def settings_of(kind: str) -> type[PlotSettings]:
    """The settings that a kind of figure declares."""
    settings: type[PlotSettings] = FIGURE_KINDS.get(kind).settings
    return settings


@cache
def _plot_with(kind: str, settings: type[PlotSettings]) -> type[Plot]:
    """`plot:` of a kind with these settings. What these need can stand in the plot or in its panels."""
    if taken := sorted(settings.model_fields.keys() & {*Panel.model_fields, *Plot.model_fields}):
        raise UserError(f"kind of figure {kind!r}: a setting cannot be called {taken[0]}, as a part of every plot is")
    hints = get_type_hints(settings, include_extras=True)
    needed = [name for name, field in settings.model_fields.items() if field.is_required()]
    optional: Any = {name: (hints[name] | None, None) for name in needed}
    panel: Any = create_model("Panel", __base__=(Panel, settings, Made), **optional)
    fields: Any = {"kind": (Literal[kind], ...), "panels": (list[panel], ...), **optional}
    plot: type[Plot] = create_model("Plot", __base__=(Plot, settings, Made), **fields)  # type: ignore[arg-type]
    return plot


def plot_of(kind: str, settings: dict[str, Any]) -> Plot:
    """A plot of a kind with these settings, and no panels; what the kind needs of a run may be missing."""
    return _plot_with(kind, settings_of(kind)).model_validate({"kind": kind, "panels": [], **settings})


class OfKind(Registered):
    """Metadata of a type: a plot with the settings of one of the kinds of figures, which `kind` names."""

    def settings(self, kind: str) -> type[BaseModel]:
        return _plot_with(kind, settings_of(kind))


AnyPlot = Annotated[Plot, OfKind(FIGURE_KINDS)]
