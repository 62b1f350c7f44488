"""Experiment files: the tables and figures of the papers, as data under experiments/.

A file has the rows and columns of a table, the values that the paper prints, the class of every column, the claims of
the text, the cells (runs) behind the rows, and how these are trained at each scale (smoke, desk, small,
paper).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, wraps
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from hybridlab.config.loading import Layer
from hybridlab.config.study import FILE, HUB
from hybridlab.config.types import Strict
from hybridlab.config.yaml_text import KeyPath
from hybridlab.errors import UserError, located, nearest
from hybridlab.lab.papers.calls import CellName, ClaimTest, ColumnName, MetricPath, Refers, RowName, one_of
from hybridlab.lab.papers.cell_spec import CELL, CellSpec
from hybridlab.lab.papers.formula import Measure
from hybridlab.lab.papers.ids import EVERY_SCALE, PRETRAINED, SCALES
from hybridlab.lab.papers.plots import AnyPlot

# ---- a table ----


BENCHMARK = "benchmark"
"""The `cell` of rows whose numbers come from the benchmark."""
CellClass = Literal["exact", "fitted", "last digit", "named discrepancy", "transcribed", "trained", "timed"]
"""exact: follows from what the paper prints. fitted: needs a constant that it does not print. last digit: may be off by
one there. named discrepancy: the notes name where it is off. trained, timed: measured here."""


class Scaling(Strict):
    """How a printed column must go with a size, such as the batch: where the size is `f` times another one, between
    f ** at_least and f ** at_most times its number. A throughput neither falls with the batch nor rises by more than
    the batch does: 0 to 1, the defaults.

    by: the size, a name under the rows' `given` or a column. each: names under `given`; rows are compared in which
    these are the same."""

    by: str
    each: list[str] = []
    at_least: float = 0.0
    at_most: float = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> Scaling:
        if self.at_least > self.at_most:
            raise ValueError(f"at_least, {self.at_least:g}, is above at_most, {self.at_most:g}; turn them round")
        return self


class Column(Strict):
    """A column of a table. With neither `metric` nor `compute` it only shows what the paper prints."""

    name: str
    title: str
    kind: CellClass
    digits: int = 2
    metric: str | None = None
    """Dotted path into a record, to a number or to {value, stderr, n}, or a measure of the file. `{name}` in it stands
    for the value of this name under the row's `given`, `{short}` for the row's short name."""
    compute: dict[str, Any] | None = None
    """An analytic function with its arguments; see papers/analytic.py."""
    at_rate_of: MetricPath | None = None
    """The metric whose run is read, where each metric chose a value of a swept setting; by default `metric`."""
    run: str | None = None
    """Another run of the row, whose record `metric` reads: `sst2` is that of the cell CELL/sst2, where CELL is the
    row's own."""
    mean_of: list[ColumnName] = []
    """Columns whose mean this one shows, in place of a metric; where one of them was not measured, nothing."""
    factor: float = 1.0
    panel: Annotated[str, Refers("panel")] = "measured"
    fitted_rows: list[RowName] = []
    """Rows whose value needs a constant that the paper does not print; the class of their cells is `fitted`."""
    questions: Annotated[int, Field(gt=0)] | None = None
    """Of a score in percent, how many questions the benchmark has: it must be 100 · k / N (`hybridlab audit`)."""
    scaling: Scaling | None = None
    """How its printed numbers must go with a size (`hybridlab audit`)."""
    bare: bool = False
    """Whether its numbers are shown without their errors, as those that are the same for all seeds."""
    neutral: float | None = None
    """For a column that is a comparison itself: its value without a difference, such as 1 for a ratio."""

    def class_of(self, row: Row) -> CellClass:
        """The class of this column's cell in a row."""
        return "fitted" if row.short in self.fitted_rows else self.kind

    def digits_of(self, row: Row) -> int:
        """The digits behind the point that the paper prints in a row."""
        return row.digits.get(self.name, self.digits)

    def decimals_of(self, row: Row) -> float:
        """The same; NaN of whole numbers that are counted, not rounded."""
        counted = self.digits == 0 and self.factor == 1 and self.name not in row.digits
        return math.nan if counted else self.digits_of(row)

    @property
    def measurable(self) -> bool:
        """Whether the cells are measured or computed here, or are the paper's words; the others it only prints."""
        return self.metric is not None or self.compute is not None or bool(self.mean_of) or self.kind == "transcribed"

    @property
    def of_benchmarks(self) -> bool:
        """Whether the cells are benchmarks, which a run may be without (`evaluation.benchmarks`)."""
        return (self.metric or "").startswith(("results.suites.", "results.lm_eval."))

    def cell_of(self, row: Row) -> str | None:
        """The cell whose run this column reads in a row."""
        return row.cell if self.run is None or row.cell in (None, BENCHMARK) else f"{row.cell}/{self.run}"

    def metric_of(self, row: Row) -> str:
        """The metric's path for a row, with the row's value for each `{name}` in it."""
        values = {"short": row.short, **row.given}
        try:
            return (self.metric or "").format_map(values)
        except KeyError as error:
            name = str(error.args[0])
            raise UserError(
                f"column {self.name!r} asks for {{{name}}}, which row {row.short!r} does not give; "
                f"{nearest(name, list(values))}"
            ) from None
        except (ValueError, AttributeError, TypeError, IndexError):
            raise UserError(
                f"column {self.name!r}: {self.metric} is no path; write a value that rows give as {{name}}"
            ) from None


class Row(Strict):
    name: str
    short: str
    cell: str | None = None
    paper: dict[str, float | str] = {}
    digits: dict[str, int] = {}
    """Of printed numbers by column: their digits behind the point, by default the column's. A table of text has those
    of each number with a point: 25.5 among 22.80 and 24.57 was rounded to one."""
    given: dict[str, Any] = {}
    """Arguments that this row adds to the columns' analytic functions."""


Scale = Annotated[str, one_of("scale", lambda: EVERY_SCALE)]
Scalar = bool | int | float | str
Unit = Literal["seed", "prompt", "document"]


_LIST = re.compile(r"@([A-Za-z][\w-]*)")
RATE_FOR = "@"
"""Between a cell and a metric: the arm of the cell with the value of the swept setting that this metric chose."""


def cell_of_arm(name: str) -> str:
    """The cell of an arm; see `Experiment.chosen`."""
    return name.partition(RATE_FOR)[0]


def with_all(names: Iterable[str], needs: Callable[[str], Iterable[str]]) -> list[str]:
    """Names, with all that these need, each once. needs: what one of them needs itself."""
    reached: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = None
            waiting += needs(name)
    return list(reached)


class ScaleSpec(Strict):
    """How the cells are trained at one scale. size: of all cells, or by group; cells of other groups are left out. A
    scale needs neither size nor data for studies and for cells with all settings.
    overrides: further settings of single cells at this scale. cells: at this scale these stand instead of the
    file's cells of the same name, or beside them, so that a scale can have other starts and arms than the others.
    seeds: those that are reported. earlier_seeds: those of runs under an earlier plan, which are not reported.
    unit: of what there is one number each, by which a claim is decided: the seed of a training, or at scale pretrained,
    of studies whose probes measure each of them by itself, the prompt or the document.
    phases: the settings of each; cells of a phase that is null are left out too.
    shared: cells that are, at this scale, runs of other experiments: {experiment: {cell here: cell there}}."""

    machine: str
    size: str | dict[str, str] = {}
    data: str = "embedded"
    seeds: list[int] = Field(min_length=1)
    earlier_seeds: list[int] = []
    unit: Unit = "seed"
    phases: dict[str, dict[str, Any] | None]
    config: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any]] = {}
    cells: dict[str, CellSpec] = {}
    shared: dict[str, dict[str, str]] = {}

    @model_validator(mode="after")
    def _seeds_are_reported_or_not(self) -> ScaleSpec:
        if both := sorted({*self.seeds} & {*self.earlier_seeds}):
            raise ValueError(f"seed {both[0]} stands in seeds and in earlier_seeds; name it in one of them")
        return self

    @cached_property
    def places(self) -> dict[str, tuple[str, str]]:
        """The experiment and the cell there, of each cell that is a run of another experiment."""
        return {cell: (other, other_cell) for other, cells in self.shared.items() for cell, other_cell in cells.items()}

    def size_of(self, cell: CellSpec) -> str | None:
        """None where the cell is not trained at this scale; of a study, its model."""
        if cell.phase in self.phases and self.phases[cell.phase] is None:
            return None
        if cell.model is not None:
            return cell.model
        if cell.settings is not None:
            return str(cell.settings["size"])
        return self.size if isinstance(self.size, str) else self.size.get(cell.group or "")


Better = Literal["lower", "higher"]
Amount = Literal["steps", "tokens", "flops"]
"""What arms have in equal amounts on the way to their final weights; see `Seen` in runs/record.py."""


class Sweep(Strict):
    """A setting that was searched for each arm on a seed that is not reported, before the reported runs.

    Every cell gets the same grid. `hybridlab reproduce ID --scale SCALE --sweep` trains the grid; the experiment then
    uses `chosen` at this scale. A value belongs to the metric that chose it: a cell whose best values differ between
    metrics is trained with each of them, and every claim and column reads the run of its own metric.
    """

    setting: str
    """Dotted name of the setting, such as training.optimizer.lr."""
    grid: Annotated[list[Scalar], Field(min_length=2)]
    """Its values, the same for every cell."""
    seed: int
    """The tuning seed; it must not be among the scale's seeds."""
    further_seeds: list[int] = []
    """More tuning seeds: of a value the mean over all of them counts."""
    further_values: list[Scalar] = []
    """The values of the grid that are tried on the further seeds; default: all. The others show on the first seed that
    none beyond these is better."""
    scale: Scale
    cells: Annotated[list[CellName], Field(min_length=1)]
    metrics: Annotated[list[MetricPath], Field(min_length=1)] = ["results.validation.loss"]
    """The numbers that are judged, each of which chooses its own value: dotted paths into the record, or measures of
    the file. What is read with any other metric is the run of the first one."""
    measured_in: dict[str, CellName] = {}
    """Cell → the cell that starts from it, whose record is measured instead of its own."""
    follow: dict[str, list[CellName]] = {}
    """Cell → cells that have its value too: the runs that it starts from, so that of an arm which is trained in several
    parts the value is searched for all of them, and controls that go on from these."""
    better: Better | dict[str, Better] = "lower"
    """Which numbers are better, of all metrics or of each."""
    chosen: dict[str, dict[str, Scalar]] = {}
    """Metric → cell → the value that its reported runs have."""

    @property
    def seeds(self) -> list[int]:
        """All tuning seeds."""
        return [self.seed, *self.further_seeds]

    @property
    def tries(self) -> list[tuple[Scalar, int]]:
        """Every value with each of its tuning seeds."""
        several = self.further_values or self.grid
        return [(value, seed) for value in self.grid for seed in (self.seeds if value in several else [self.seed])]

    def with_followers(self, cell: str, value: Scalar) -> dict[str, Scalar]:
        """A value of a cell, and of those that have it too."""
        return dict.fromkeys((cell, *self.follow.get(cell, ())), value)

    def values_of(self, metric: str) -> dict[str, Scalar]:
        """Cell → the value that a metric chose, of the searched cells and of those that follow them."""
        values: dict[str, Scalar] = {}
        for cell, value in self.chosen.get(metric, {}).items():
            values |= self.with_followers(cell, value)
        return values

    def better_of(self, metric: str) -> Better:
        """Which numbers of a metric are better."""
        return self.better if isinstance(self.better, str) else self.better.get(metric, "lower")


class Claim(Strict):
    """A sentence of the paper, its section or page, and its test: an expression (papers/claims/expression.py), or a
    claim kind with arguments.

    differ_in: settings, or their first parts, in which its arms may differ beside their method, since its sentence is
    about them.
    controls: tests that must hold for the claim to be read here, such as a task that a model without the mechanism
    cannot solve. If one fails, the verdict is `cannot tell here`; while one is open, so is the claim.
    """

    text: str
    source: str
    test: ClaimTest
    controls: list[ClaimTest] = []
    differ_in: list[str] = []
    equal: Amount | None = None
    """What the arms of its test must have been trained with equally for its sentence to be read; by default as the
    file says."""
    effect: float | None = None
    """The size of the paper's effect in the unit of the test, for the number of seeds that an open claim states: for a
    loss in nats the relative difference of the paper's perplexities. Default: the effect observed here."""

    @field_validator("effect")
    @classmethod
    def _can_be_found(cls, effect: float | None) -> float | None:
        if effect == 0:
            raise ValueError("no number of seeds finds an effect of 0; leave it out for the effect observed here")
        return effect

    @cached_property
    def tests(self) -> list[ClaimTest]:
        """Its test, then its controls."""
        return [self.test, *self.controls]


class BenchmarkModel(Strict):
    """A model of a benchmark: an architecture, and changes of its configuration. form: hybridlab, or the same model as
    transformers' own class, with its attention in that form (training, passes, generation). compiled: by torch.compile;
    here block by block."""

    arch: str
    config: dict[str, Any] = {}
    form: Literal["hybridlab", "eager", "sdpa"] = "hybridlab"
    compiled: bool = False


class Benchmark(Strict):
    """Speed of several architectures, interleaved in one process; see papers/speed.py.

    kind: `decoding` (prefill, then one token at a time) or `recursion` (a forward pass and a training step at the
    prompt's length, and the latency of a token with and without loop bodies over chunks), or `training` (optimizer
    steps of `batch` sequences of the prompt's length at every structure that a run has, and the time of the whole run;
    new_tokens: steps that are timed of each structure in each round), or `passes` (an optimizer step and a forward pass
    of `batch` sequences of the prompt's length; new_tokens: how many of each are timed in each round), or `generation`
    (new_tokens likeliest tokens after a prompt, as a user's call of `generate`). models: by name; ratios are relative
    to the first one. sizes: scale → group → size preset.
    """

    kind: Literal["decoding", "recursion", "training", "passes", "generation"] = "decoding"
    models: dict[str, BenchmarkModel]
    sizes: dict[Scale, dict[str, str]]
    batches: list[int]
    prompt: int
    new_tokens: int
    rounds: Annotated[int, Field(ge=2)]
    machines: dict[Scale, str]


def _flat(notes: Any) -> Any:
    """A list without lists in it."""
    if not isinstance(notes, list):
        return notes
    return [note for entry in notes for note in (entry if isinstance(entry, list) else [entry])]


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an experiment whose result for a scale is made once."""

    @wraps(method)
    def known(self: Experiment, scale: str | None = None) -> Any:
        results = self.kept
        if (method, scale) not in results:
            results[method, scale] = method(self, scale)
        return results[method, scale]

    return known


class Experiment(Strict):
    id: str
    title: str
    paper: str
    source: str
    needs: list[str] = []
    notes: Annotated[list[str], BeforeValidator(_flat)] = []
    """What a reader of the table or figure needs to know. A list in the list stands for its notes, so that entries of a
    file can share several."""
    panels: dict[str, str] = {"measured": ""}
    columns: list[Column] = []
    rows: list[Row] = []
    plot: AnyPlot | None = None
    measures: dict[str, Measure] = {}
    """Numbers and lists computed from records, by name, for claims and figures."""
    lists: dict[str, list[str]] = {}
    """Names of rows, columns or cells, which the expressions of claims write as `@NAME`."""
    benchmark: Benchmark | None = None
    differ_in: list[str] = []
    """Settings, or their first parts, in which arms may differ beside their method, because the table is about them.
    What else compared arms differ in is an error."""
    equal: Amount | None = None
    """What all arms that a claim's test compares have been trained with equally, up to their final weights: an
    experiment whose arms differ in it is an error before it is trained, and decides nothing afterwards."""
    reference: RowName | list[RowName] | None = None
    """Short name of the row that the others are compared with. Of several, each row is compared with the last one that
    stands above it."""
    cells: dict[str, CellSpec] = {}
    scales: dict[Scale, ScaleSpec] = {}
    claims: list[Claim] = []
    checks: list[Claim] = []
    """What `hybridlab audit` checks beside the claims, and no page lists: that printed numbers fit each other, where no
    sentence says so, and steps of the paper's proofs. Their tests read no run."""
    correction: Literal["claim", "metric", "page"] = "claim"
    """Over which comparisons Holm's correction goes: over those of each claim, with Benjamini and Hochberg's over the
    claims of the page beside it; over those of all claims that read the same metrics; or over those of all claims."""
    sweep: Sweep | None = None
    _written: Layer = PrivateAttr(default_factory=Layer)
    """The file that it was loaded from, with the line of every value."""
    _others: Callable[[str], Experiment] | None = PrivateAttr(default=None)
    """Reads another experiment by its id, without a check of the names in it, which may be of this one; set when an
    experiment is loaded."""
    _loaded: dict[str, Experiment] = PrivateAttr(default_factory=dict)
    """The experiments that were loaded beside this one."""

    @field_validator("claims", "checks")
    @classmethod
    def _claims_have_own_texts(cls, claims: list[Claim]) -> list[Claim]:
        # A plan knows a claim by its text.
        texts = [claim.text for claim in claims]
        if twice := [text for i, text in enumerate(texts) if text in texts[:i]]:
            raise ValueError(f"two claims have the text {twice[0]!r}; say in each what it tests")
        return claims

    @model_validator(mode="after")
    def _claims_name_lists(self) -> Experiment:
        stated = (*self.claims, *self.checks)
        for test in (test for claim in stated for test in claim.tests if isinstance(test.get("holds"), str)):
            test["holds"] = _LIST.sub(self._listed, test["holds"])
        return self

    def _listed(self, match: re.Match[str]) -> str:
        """The names of a list; an unknown one stays, as a name that the experiment does not have."""
        return ", ".join(f'"{name}"' if "," in name else name for name in self.lists.get(match[1], [match[0]]))

    @model_validator(mode="after")
    def _trained_by_seed(self) -> Experiment:
        for name, spec in self.scales.items():
            if (name == PRETRAINED) != (spec.unit != "seed"):
                raise ValueError(
                    f"scale {name} has the unit {spec.unit}; at scale {PRETRAINED}, and at no other one, it is the "
                    "prompt or the document"
                )
        return self

    @model_validator(mode="after")
    def _plot_has_measures(self) -> Experiment:
        if self.plot is not None:
            self.plot._measures = self.measures
        return self

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What follows from the file alone, such as its cells and their runs at a scale, once it was made."""
        return {}

    def part(self, path: KeyPath, values: dict[str, Any]) -> Layer:
        """The settings at a path of the file, as defaults."""
        return replace(self._written.part(path, values), asked=False)

    def origin(self, path: KeyPath) -> str:
        """File and line of a value; "" if it was not loaded from a file."""
        return self._written.origin(path)

    def mistake(self, path: KeyPath, problem: object) -> UserError:
        """An error about a value, with its origin."""
        return UserError(located(self.origin(path), problem))

    def place_of(self, scale: str, cell: str) -> KeyPath:
        """The path of a cell: that of the scale's own, else of the file's."""
        return ("scales", scale, "cells", cell) if cell in self.at(scale).cells else ("cells", cell)

    def row(self, short: str) -> Row:
        """The row with a short name."""
        if short not in self._by_short:
            raise UserError(f"{self.id} has no row {short!r}; {nearest(short, [*self._by_short])}")
        return self._by_short[short]

    @cached_property
    def _by_short(self) -> dict[str, Row]:
        return {row.short: row for row in reversed(self.rows)}

    def reference_of(self, row: Row) -> Row | None:
        """The row that a row is compared with; None for a reference itself, and where there is none."""
        names = [self.reference] if isinstance(self.reference, str) else self.reference or []
        if row.short in names or not names:
            return None
        chosen = [other.short for other in self.rows[: self.rows.index(row)] if other.short in names]
        return self.row(chosen[-1] if chosen else names[0])

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

    def unit(self, scale: str | None) -> Unit:
        """Of what there is one number each at a scale; see `ScaleSpec`."""
        return self.scales[scale].unit if scale in self.scales else "seed"

    @_once
    def chosen(self, scale: str | None) -> dict[str, Scalar]:
        """Arm → the value of the swept setting at a scale; empty where nothing was swept or chosen. An arm is a cell,
        with the value that the first metric chose, or CELL@METRIC where a further one chose another."""
        if self.sweep is None or self.sweep.scale != scale:
            return {}
        first, *further = self.sweep.metrics
        arms = self.sweep.values_of(first)
        for metric in further:
            values = self.sweep.values_of(metric)
            arms |= {cell + RATE_FOR + metric: value for cell, value in values.items() if value != arms.get(cell)}
        return arms

    def arm(self, scale: str | None, cell: str, metric: str) -> str:
        """The arm of a cell whose run a metric is read from: the one that the metric itself chose, if it did. An arm by
        its own name, CELL@METRIC, is the cell's where both have one value."""
        return cell if self.sweep is None else self._arm_among(self.chosen(scale), cell, metric)

    def _arm_among(self, chosen: Mapping[str, Scalar], cell: str, metric: str) -> str:
        if RATE_FOR in cell:
            of_metric = self.sweep is not None and cell.partition(RATE_FOR)[2] in self.sweep.metrics
            return cell_of_arm(cell) if of_metric and cell not in chosen else cell
        return name if (name := cell + RATE_FOR + metric) in chosen else cell

    def equal_in(self, claim: Claim) -> Amount | None:
        """What the arms of a claim's test must have been trained with equally; None for nothing in particular."""
        return claim.equal or self.equal

    def refuse_tuning_seed(self, scale: str, seeds: Iterable[int]) -> None:
        """UserError if the seed of the sweep is among seeds to report at its scale."""
        tuned = {*self.sweep.seeds} & {*seeds} if self.sweep is not None and self.sweep.scale == scale else ()
        if tuned:
            raise self.mistake(
                ("sweep", "seed"),
                f"{self.id}: the sweep chose its values on seed {min(tuned)}, so that this seed cannot be reported; "
                "use seeds of 100 and more to tune, and 0, 1, 2 … to report",
            )

    def unsearched(self, scale: str | None) -> list[str]:
        """The cells whose value of the swept setting is to be searched, or to follow such a one, and is not chosen yet:
        what would be trained has the preset's, for which nobody searched."""
        if self.sweep is None or self.sweep.scale != scale:
            return []
        chosen = self.sweep.values_of(self.sweep.metrics[0])
        names = (name for cell in self.sweep.cells for name in self.sweep.with_followers(cell, 0))
        return [name for name in names if name not in chosen]

    def refuse_unsearched(self, scale: str) -> None:
        """UserError if the sweep at this scale has not chosen a value for each of its cells."""
        if (missing := self.unsearched(scale)) and self.sweep is not None:
            raise self.mistake(
                ("sweep",),
                f"{self.id}: no {self.sweep.setting} is chosen for {missing[0]}; search it first, with --sweep, and "
                "write what that finds under `sweep.chosen`",
            )

    def other(self, identifier: str) -> Experiment:
        """Another experiment, such as one whose printed cells are compared with this one's."""
        if identifier == self.id:
            return self
        if self._others is None:
            raise UserError(
                f"{self.id}: it was not loaded from a file, so that {identifier} cannot be loaded beside it"
            )
        if identifier not in self._loaded:
            self._loaded[identifier] = self._others(identifier)
        return self._loaded[identifier]

    @_once
    def cells_at(self, scale: str | None) -> dict[str, CellSpec]:
        """The cells of a scale: the file's, with those that the scale replaces or adds, and the arms of cells that are
        trained with several values of a swept setting, which start from the arms of cells that follow them. None: the
        file's alone."""
        cells = {**self.cells, **(self.scales[scale].cells if scale and scale in self.scales else {})}
        chosen = self.chosen(scale)
        arms = [name for name in chosen if RATE_FOR in name]
        followers = {cell for names in (self.sweep.follow.values() if self.sweep and arms else ()) for cell in names}
        cells |= {name: _arm_of(cells, name, arms, followers) for name in arms if cell_of_arm(name) in cells}
        studies = {name: spec for name, spec in cells.items() if (spec.model or "").startswith(CELL)}
        models = {
            name: self._arm_among(chosen, str(spec.model).removeprefix(CELL), "") for name, spec in studies.items()
        }
        return cells | {name: studies[name].model_copy(update={"model": CELL + arm}) for name, arm in models.items()}

    def pretrained_behind(self, scale: str, cell: str) -> str:
        """The pretrained model that a cell measures, or that its run goes back to: hub:… or file:…"""
        places = self.at(scale).places
        if cell in places:
            other, other_cell = places[cell]
            return self.other(other).pretrained_behind(scale, other_cell)
        spec = self.cells_at(scale)[cell]
        if spec.pretrained is not None:
            return FILE + spec.pretrained[1]
        before = (spec.model or spec.start or "").removeprefix(CELL)
        return before if before.startswith((HUB, FILE)) or not before else self.pretrained_behind(scale, before)

    def settings_of(self, scale: str, cell: str, at_scale: CellSpec) -> list[dict[str, Any]]:
        """What the file says of the settings of a cell at a scale, beside its presets: later ones count before earlier
        ones. at_scale: the cell at this scale."""
        spec = self.at(scale)
        phase = spec.phases.get(at_scale.phase) or {}
        return [at_scale.settings or {}, spec.config, phase, at_scale.config, spec.overrides.get(cell_of_arm(cell), {})]

    @cached_property
    def known_cells(self) -> list[str]:
        """The names of all cells, also of those that only some scales have."""
        more = [name for spec in self.scales.values() for name in (*spec.cells, *spec.places)]
        searched = self.sweep.values_of(self.sweep.metrics[0]) if self.sweep is not None else {}
        arms = (
            (cell + RATE_FOR + metric for cell in searched for metric in self.sweep.metrics[1:]) if self.sweep else ()
        )
        return list(dict.fromkeys([*self.cells, *more, *arms]))

    @property
    def kind(self) -> str:
        return "table" if self.plot is None else "figure"

    @cached_property
    def _named_cells(self) -> list[str]:
        """The cells that rows, panels and claims name."""
        names = [row.cell for row in self.rows if row.cell and row.cell != BENCHMARK]
        names += [cell for column in self.columns for row in self.rows if column.run and (cell := column.cell_of(row))]
        series = [series for panel in (self.plot.panels if self.plot else []) for series in panel.series]
        names += [name for entry in series for name in entry.named]
        names += self.plot.relatives() if self.plot else []
        names += [cell for claim in self.claims for test in claim.tests for cell in test.cells]
        return list(dict.fromkeys(names))

    @_once
    def needed_cells(self, scale: str) -> list[str]:
        """The cells that rows, panels and claims name, and all that these depend on. A cell that the scale does not
        have, or has no size for, is not needed there."""
        return self._needed(scale, self._named_cells)

    def _needed(self, scale: str, names: list[str]) -> list[str]:
        """As `needed_cells`, of these names."""
        cells, spec = self.cells_at(scale), self.scales.get(scale)
        shared = spec.places if spec else {}
        names = names + [arm for arm in cells if RATE_FOR in arm and cell_of_arm(arm) in names]
        trained = [name for name in names if name in cells and (not spec or spec.size_of(cells[name]))]
        trained += [name for name in names if name in shared]
        needed = with_all(trained, lambda name: [] if name in shared else cells[name].parents)
        return [name for name in dict.fromkeys([*cells, *shared]) if name in needed]

    def machine(self, scale: str) -> str | None:
        """The machine for the runs of a scale; None if nothing is run."""
        if self.benchmark is not None:
            return self.benchmark.machines.get(scale)
        return self.scales[scale].machine if scale in self.scales else None

    def available_scales(self) -> list[str]:
        """The scales that the file has settings for; all of them for a table without runs."""
        if self.benchmark is not None:
            return list(self.benchmark.sizes)
        if not (names := self._named_cells):
            return list(SCALES)
        return [scale for scale in EVERY_SCALE if scale in self.scales and self._needed(scale, names)]


def _arm_of(cells: Mapping[str, CellSpec], name: str, arms: Collection[str], followers: Collection[str]) -> CellSpec:
    """The cell of an arm. arms: all names with a metric behind them. followers: the cells that have others' values."""
    spec, metric = cells[cell_of_arm(name)], name.partition(RATE_FOR)[2]
    parents = {key: getattr(spec, key) for key in ("start", "masks")}
    arm_parents = {key: cell + RATE_FOR + metric for key, cell in parents.items() if cell in followers}
    return spec.model_copy(update={key: arm for key, arm in arm_parents.items() if arm in arms})


def benchmark_hash(experiment: Experiment, scale: str) -> str:
    """Sixteen hexadecimal digits that identify what an experiment's benchmark measures at a scale."""
    benchmark = experiment.benchmark
    assert benchmark is not None, "callers check that the experiment has a benchmark"
    content = benchmark.model_dump(mode="json", exclude={"machines", "sizes", "models"})
    # As written: what is left out must not change the hashes of older benchmarks.
    models = {name: model.model_dump(mode="json", exclude_unset=True) for name, model in benchmark.models.items()}
    content |= {"models": models, "scale": scale, "sizes": benchmark.sizes[scale]}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
