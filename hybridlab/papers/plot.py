"""The figure of an experiment file: its panels, their series, and what the paper prints of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from hybridlab.config.types import Strict
from hybridlab.errors import nearest
from hybridlab.papers.measures import Measure
from hybridlab.registry import FIGURE_KINDS


class Series(Strict):
    """One line, row or heat map of a figure, from the run of one cell, or with a point for the run of each of several
    cells. x: the points' x values, if no metric gives them. divide_by: dotted path to a number of the run by which a
    history is divided, such as the number of terms in a sum."""

    cell: str = ""
    cells: list[str] = []
    label: str
    x: list[float] = []
    divide_by: str | None = None

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


Colours = Literal["even", "log", "diverging"]


class Panel(Strict):
    """One picture of a figure. In the title, `{flops}` stands for the training FLOPs of its runs."""

    title: str = ""
    series: list[Series] = []
    targets: list[float] = []
    """Target values, drawn as dotted lines."""
    paper: list[PaperMark] = []
    relative_to: str | None = None
    """A cell: the series are differences to its history, at the same x or, where x is not the step, at equal x."""
    metric: str | None = None
    x: str | None = None
    x_label: str | None = None
    y_label: str | None = None
    value_range: tuple[float, float] | None = None
    skip: Annotated[float, Field(ge=0, lt=1)] | None = None
    bar_label: str | None = None
    colours: Colours | None = None
    level: str | None = None
    y_scale: Literal["linear", "log", "symlog"] | None = None
    """These ten replace the figure's own in this panel."""


class Plot(Strict):
    """A figure. kind: one of reporting/kinds/, or one that a plug-in registers. metric: a column of a record's
    history (history), a dotted path into a record (points) or also a measure (profile), or a statistic of a probe."""

    kind: str
    panels: list[Panel]
    metric: str | None = None
    x: str = "step"
    """The quantity on the x axis: a column of the history, or a dotted path."""
    exponential: bool = False
    """Show e to the power of the metric: perplexity for a loss."""
    x_label: str = ""
    y_label: str = ""
    smooth: Annotated[int, Field(ge=1)] = 1
    """Width of the moving average in points."""
    skip: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a history that is left out at its beginning, so that the axis shows what follows."""
    value_range: tuple[float, float] | None = None
    """What the axis of values shows at least, so that figures which are compared have the same."""
    bar_label: str = ""
    """What the colours of a heat map show, with its unit. Panels with the same one share a scale."""
    colours: Colours = "even"
    """How colours of a heat map follow the values: evenly, by their logarithm, or in two hues around 0 where the sign
    matters."""
    level: str | None = None
    """Beside the numbers of each run, a number of the run, drawn as a line across: a dotted path or a measure."""
    y_scale: Literal["linear", "log", "symlog"] = "linear"
    """log: for values above 0. symlog: values below 0.01 in size on a linear axis, others on a logarithmic one, so that
    both can be seen."""
    depth: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only the layer at this share of the depth, 0 the first and 1 the last."""
    count: Annotated[int, Field(ge=1)] | None = None
    """The largest number of lines: evenly spaced layers, or the heads whose values change most."""
    heads: Literal["dynamic", "all"] = "dynamic"
    """Which heads a distribution shows."""
    example: Annotated[int, Field(ge=0)] = 0
    """Index of the example, among those in the run's record."""
    _measures: dict[str, Measure] = PrivateAttr(default_factory=dict)
    """Those of the experiment, by name."""

    @field_validator("kind")
    @classmethod
    def _kind_exists(cls, kind: str) -> str:
        if kind not in FIGURE_KINDS:
            raise ValueError(f"{kind!r} is not a kind of figure; {nearest(kind, FIGURE_KINDS.names())}")
        return kind
