"""Experiment files: the tables and figures of the papers, as data under experiments/.

A file has the rows and columns of a table, the values that the paper prints, the class of every column, the claims of
the text, the cells (runs) behind the rows, and how these are trained at each scale (smoke, desk, small,
paper).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator

from hybridlab.config.loading import Layer
from hybridlab.config.types import Strict
from hybridlab.config.yaml_text import KeyPath
from hybridlab.errors import UserError
from hybridlab.papers.calls import CLAIM_KINDS, one_of
from hybridlab.papers.ids import SCALES
from hybridlab.registry import FIGURE_KINDS, nearest

BENCHMARK = "benchmark"
"""The `cell` of rows whose numbers come from the benchmark."""
Scale = Annotated[str, one_of("scale", lambda: SCALES)]
Scalar = bool | int | float | str
CellClass = Literal["exact", "last digit", "named discrepancy", "transcribed", "trained", "timed"]


class Column(Strict):
    """A column of a table. With neither `metric` nor `compute` it only shows what the paper prints."""

    name: str
    title: str
    kind: CellClass
    digits: int = 2
    metric: str | None = None
    """Dotted path into a record, to a number or to {value, stderr, n}. `{name}` in it stands for the value of this name
    under the row's `given`, `{short}` for the row's short name."""
    compute: dict[str, Any] | None = None
    """An analytic function with its arguments; see papers/analytic.py."""
    factor: float = 1.0
    panel: str = "measured"

    def metric_of(self, row: Row) -> str:
        """The metric's path for a row, with the row's value for each `{name}` in it."""
        given = {"short": row.short, **row.given}
        try:
            return (self.metric or "").format_map(given)
        except KeyError as error:
            name = str(error.args[0])
            raise UserError(
                f"column {self.name!r} asks for {{{name}}}, which row {row.short!r} does not give; "
                f"{nearest(name, list(given))}"
            ) from None


class Row(Strict):
    name: str
    short: str
    cell: str | None = None
    paper: dict[str, float | str] = {}
    given: dict[str, Any] = {}
    """Arguments that this row adds to the columns' analytic functions."""


class CellSpec(Strict):
    """A run behind a row. `start`: the cell whose final weights it starts from. `masks`: the cell whose masks it uses.
    `group`: which of a scale's sizes it has. In `config`, `cell:NAME` stands for the hash of that cell's run."""

    arch: str
    phase: str
    group: str | None = None
    start: str | None = None
    masks: str | None = None
    config: dict[str, Any] = {}

    @property
    def parents(self) -> list[str]:
        """The cells whose runs must finish before this one starts."""
        named = [value.removeprefix(CELL) for value in _texts(self.config) if value.startswith(CELL)]
        return [name for name in (self.start, self.masks, *named) if name]


CELL = "cell:"


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    for inner in values.values() if isinstance(values, dict) else values if isinstance(values, list) else ():
        yield from _texts(inner)


class ScaleSpec(Strict):
    """How the cells are trained at one scale. size: of all cells, or by group; cells of other groups are left out.
    overrides: further settings of single cells at this scale. cells: at this scale these stand in the place of the
    file's cells of the same name, or beside them, so that a scale can have other starts and arms than the others."""

    machine: str
    size: str | dict[str, str]
    data: str
    seeds: list[int]
    phases: dict[str, dict[str, Any]]
    config: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any]] = {}
    cells: dict[str, CellSpec] = {}

    def size_of(self, cell: CellSpec) -> str | None:
        """None where the cell is not trained at this scale."""
        return self.size if isinstance(self.size, str) else self.size.get(cell.group or "")


class Sweep(Strict):
    """A setting that was searched for each arm on a seed that is not reported, before the reported runs.

    Every cell gets the same grid. `hybridlab reproduce ID --scale SCALE --sweep` trains the grid; the experiment then
    uses `chosen` at this scale.
    """

    setting: str
    """Dotted name of the setting, such as training.optimizer.lr."""
    grid: Annotated[list[Scalar], Field(min_length=2)]
    """Its values, the same for every cell."""
    seed: int
    """The tuning seed; it must not be among the scale's seeds."""
    scale: Scale
    cells: Annotated[list[str], Field(min_length=1)]
    metric: str = "results.validation.loss"
    """Dotted path into the record, to the number that decides."""
    better: Literal["lower", "higher"] = "lower"
    chosen: dict[str, Scalar] = {}
    """Cell → the value that its reported runs have."""


class Claim(Strict):
    """A sentence of the paper, its section or page, and its test: a claim kind with arguments; see papers/claims/."""

    text: str
    source: str
    test: dict[str, Any]


class Series(Strict):
    """One line, row or heat map of a figure, from the run of one cell, or with a point for the run of each of several
    cells. x: the points' x values, if no metric gives them."""

    cell: str = ""
    cells: list[str] = []
    label: str
    x: list[float] = []

    @property
    def named(self) -> list[str]:
        return self.cells or [self.cell]


class Panel(Strict):
    title: str = ""
    series: list[Series]
    targets: list[float] = []
    """Target values, drawn as dotted lines."""
    metric: str | None = None
    x: str | None = None
    x_label: str | None = None
    """These three replace the figure's own in this panel."""


class Plot(Strict):
    """A figure. kind: a module of reporting/kinds/, or one that a plug-in registers. metric: a column of a record's
    history (history), a dotted path into a record (points), or a statistic of a probe."""

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
    depth: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only the layer at this share of the depth, 0 the first and 1 the last."""
    count: Annotated[int, Field(ge=1)] | None = None
    """The largest number of lines: evenly spaced layers, or the heads whose values change most."""
    heads: Literal["dynamic", "all"] = "dynamic"
    """Which heads a distribution shows."""
    example: Annotated[int, Field(ge=0)] = 0
    """Index of the example, among those in the run's record."""

    @field_validator("kind")
    @classmethod
    def _kind_exists(cls, kind: str) -> str:
        if kind not in FIGURE_KINDS:
            raise ValueError(f"{kind!r} is not a kind of figure; {nearest(kind, FIGURE_KINDS.names())}")
        return kind


class BenchmarkModel(Strict):
    """A model of a benchmark: an architecture, and changes of its configuration."""

    arch: str
    config: dict[str, Any] = {}


class Benchmark(Strict):
    """Speed of several architectures, interleaved in one process; see papers/benchmark.py.

    kind: `decoding` (prefill, then one token at a time) or `recursion` (a forward pass and a training step at the
    prompt's length, and the latency of a token with and without loop bodies over chunks). models: by name;
    ratios are relative to the first one. sizes: scale → group → size preset.
    """

    kind: Literal["decoding", "recursion"] = "decoding"
    models: dict[str, BenchmarkModel]
    sizes: dict[Scale, dict[str, str]]
    batches: list[int]
    prompt: int
    new_tokens: int
    rounds: Annotated[int, Field(ge=2)]
    machines: dict[Scale, str]


class Experiment(Strict):
    id: str
    title: str
    paper: str
    source: str
    needs: list[str] = []
    notes: list[str] = []
    panels: dict[str, str] = {"measured": ""}
    columns: list[Column] = []
    rows: list[Row] = []
    plot: Plot | None = None
    benchmark: Benchmark | None = None
    reference: str | None = None
    """Short name of the row relative to which the verdict `same direction` is made."""
    cells: dict[str, CellSpec] = {}
    scales: dict[Scale, ScaleSpec] = {}
    claims: list[Claim] = []
    sweep: Sweep | None = None
    _written: Layer = PrivateAttr(default_factory=Layer)
    """The file that it was loaded from, with the line of every value."""
    _others: Callable[[str], Experiment] | None = PrivateAttr(default=None)
    """Loads another experiment by its id; set when an experiment is loaded."""

    def part(self, path: KeyPath, values: dict[str, Any]) -> Layer:
        """The settings at a path of the file, as defaults."""
        return replace(self._written.part(path, values), asked=False)

    def at_line(self, path: KeyPath) -> str:
        """File and line of a value with a colon, to begin an error; "" if it was not loaded from a file."""
        origin = self._written.origin(path)
        return f"{origin}: " if origin else ""

    def row(self, short: str) -> Row:
        """The row with a short name."""
        for row in self.rows:
            if row.short == short:
                return row
        raise UserError(f"{self.id} has no row {short!r}; {nearest(short, [row.short for row in self.rows])}")

    def column(self, name: str) -> Column:
        """The column with a name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise UserError(f"{self.id} has no column {name!r}; {nearest(name, [c.name for c in self.columns])}")

    def at(self, scale: str) -> ScaleSpec:
        """How the cells are trained at a scale."""
        if scale not in self.scales:
            raise UserError(f"{self.id}: it has no scale {scale!r}; known: {', '.join(self.available_scales())}")
        return self.scales[scale]

    def chosen(self, scale: str) -> dict[str, Scalar]:
        """Cell → the value of the swept setting at a scale; empty where nothing was swept or chosen."""
        return self.sweep.chosen if self.sweep is not None and self.sweep.scale == scale else {}

    def refuse_tuning_seed(self, scale: str, seeds: Iterable[int]) -> None:
        """UserError if the seed of the sweep is among seeds to report at its scale."""
        if self.sweep is not None and self.sweep.scale == scale and self.sweep.seed in seeds:
            raise UserError(
                f"{self.at_line(('sweep', 'seed'))}{self.id}: the sweep chose its values on seed {self.sweep.seed}, so "
                "that this seed cannot be reported; use seeds of 100 and more to tune, and 0, 1, 2 … to report"
            )

    def other(self, identifier: str) -> Experiment:
        """Another experiment, such as one whose printed cells are compared with this one's."""
        if identifier == self.id:
            return self
        if self._others is None:
            raise UserError(
                f"{self.id}: it was not loaded from a file, so that {identifier} cannot be loaded beside it"
            )
        return self._others(identifier)

    def cells_at(self, scale: str) -> dict[str, CellSpec]:
        """The cells of a scale: the file's, with those that the scale replaces or adds."""
        return {**self.cells, **(self.scales[scale].cells if scale in self.scales else {})}

    def known_cells(self) -> list[str]:
        """The names of all cells, also of those that only some scales have."""
        return list(dict.fromkeys([*self.cells, *(name for spec in self.scales.values() for name in spec.cells)]))

    @property
    def kind(self) -> str:
        return "table" if self.plot is None else "figure"

    def _named_cells(self) -> list[str]:
        """The cells that rows, panels and claims name."""
        named = [row.cell for row in self.rows if row.cell and row.cell != BENCHMARK]
        series = [series for panel in (self.plot.panels if self.plot else []) for series in panel.series]
        named += [name for entry in series for name in entry.named]
        for claim in self.claims:
            kind = CLAIM_KINDS.get(claim.test.get("kind", ""))
            named += [name for _, refers, name in kind.references(claim.test) if refers.to == "cell"]
        return list(dict.fromkeys(named))

    def needed_cells(self, scale: str | None = None) -> list[str]:
        """The cells that rows, panels and claims name, and all that these depend on: at one scale, or at any. A cell
        that a scale does not have, or has no size for, is not needed there."""
        if scale is None:
            needed = {name for each in (list(self.scales) or [""]) for name in self._needed(each)}
            return [name for name in self.known_cells() if name in needed]
        return self._needed(scale)

    def _needed(self, scale: str) -> list[str]:
        cells, spec = self.cells_at(scale), self.scales.get(scale)
        needed: dict[str, None] = {}
        waiting = [name for name in self._named_cells() if name in cells and (not spec or spec.size_of(cells[name]))]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed[name] = None
                waiting += cells[name].parents
        return [name for name in cells if name in needed]

    def machine(self, scale: str) -> str | None:
        """The machine for the runs of a scale; None if nothing is run."""
        if self.benchmark is not None:
            return self.benchmark.machines.get(scale)
        return self.scales[scale].machine if scale in self.scales else None

    def available_scales(self) -> list[str]:
        """The scales that the file has settings for; all of them for a table without runs."""
        if self.benchmark is not None:
            return list(self.benchmark.sizes)
        scales = [scale for scale in SCALES if scale in self.scales and self.needed_cells(scale)]
        return scales if self._named_cells() else list(SCALES)


def benchmark_hash(experiment: Experiment, scale: str) -> str:
    """Sixteen hexadecimal digits that identify what an experiment's benchmark measures at a scale."""
    benchmark = experiment.benchmark
    assert benchmark is not None, "callers check that the experiment has a benchmark"
    content = benchmark.model_dump(mode="json", exclude={"machines", "sizes", "models"})
    # As written: what is left out must not change the hashes of older benchmarks.
    models = {name: model.model_dump(mode="json", exclude_unset=True) for name, model in benchmark.models.items()}
    content |= {"models": models, "scale": scale, "sizes": benchmark.sizes[scale]}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
