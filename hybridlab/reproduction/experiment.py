"""Experiment files: what a table of a paper consists of, as data under experiments/.

A file names its rows, columns, the paper's printed values, the class of every column, the claims of the text, the cells
(runs) that stand behind the rows, and what they are trained with at each scale (smoke, small, paper).
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hybridlab.config.loading import Layer, check, load_file
from hybridlab.config.resolve import data_layer, resolve, run_hash
from hybridlab.config.schema import RunConfig, Training
from hybridlab.config.types import Strict
from hybridlab.data.batches import steps_seen
from hybridlab.errors import UserError
from hybridlab.reproduction.budget import within_budget

Scale = Literal["smoke", "small", "paper"]
SCALES = ("smoke", "small", "paper")
BENCHMARK = "benchmark"
"""The cell of rows whose numbers a benchmark measures."""
CellClass = Literal["exact", "last digit", "named discrepancy", "transcribed", "trained", "timed"]


class Column(Strict):
    """A column of a table. With neither `metric` nor `compute` it can only show what the paper prints."""

    name: str
    title: str
    kind: CellClass
    digits: int = 2
    metric: str | None = None
    """Dotted path into a record, to a number or to {mean-like value, stderr, n}. `{name}` in it stands for what the
    row gives under this name, `{short}` for its short name."""
    compute: dict[str, Any] | None = None
    """An analytic function with its arguments; see reproduction/analytic.py."""
    factor: float = 1.0
    panel: str = "measured"


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
        """The cells that it cannot be trained without."""
        named = [value.removeprefix(_CELL) for value in _texts(self.config) if value.startswith(_CELL)]
        return [name for name in (self.start, self.masks, *named) if name]


_CELL = "cell:"


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    for inner in values.values() if isinstance(values, dict) else values if isinstance(values, list) else ():
        yield from _texts(inner)


def _with_texts(values: Any, replaced: dict[str, str]) -> Any:
    if isinstance(values, dict):
        return {key: _with_texts(inner, replaced) for key, inner in values.items()}
    if isinstance(values, list):
        return [_with_texts(inner, replaced) for inner in values]
    return replaced.get(values, values) if isinstance(values, str) else values


class ScaleSpec(Strict):
    """What the cells are trained with at one scale. size: of all cells, or by group; cells of other groups are left out.
    overrides: further settings of single cells at this scale."""

    machine: str
    size: str | dict[str, str]
    data: str
    seeds: list[int]
    phases: dict[str, dict[str, Any]]
    config: dict[str, Any] = {}
    overrides: dict[str, dict[str, Any]] = {}

    def size_of(self, cell: CellSpec) -> str | None:
        """None where the cell is not trained at this scale."""
        return self.size if isinstance(self.size, str) else self.size.get(cell.group or "")


class Claim(Strict):
    """A sentence of the paper with its place, and how to test it; see reproduction/claims.py."""

    text: str
    source: str
    test: dict[str, Any]


class Series(Strict):
    """One line, row or heat map of a figure: what a cell's run gave, or the runs of several cells, a point each.
    x: the points' places, where no metric gives them."""

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
    """Dotted lines at the values aimed at."""
    metric: str | None = None
    x: str | None = None
    x_label: str | None = None
    """Where a panel shows other numbers than the figure's."""


class Plot(Strict):
    """A figure. kind: see reporting/plots.py. metric: a column of a record's history (history), a dotted path into a
    record (points), or a statistic of a probe."""

    kind: Literal[
        "history", "layer masks", "head masks", "window share", "scores", "stages", "head entropies",
        "entropy variance", "layer entropy", "growth", "contributions", "points", "distributions", "head ranges", "reach",
    ]  # fmt: skip
    panels: list[Panel]
    metric: str | None = None
    x: str = "step"
    """What runs along x: a column of the history, or a dotted path."""
    exponential: bool = False
    """Show e to the power of the metric: perplexity for a loss."""
    x_label: str = ""
    y_label: str = ""
    smooth: Annotated[int, Field(ge=1)] = 1
    """Width of the moving average in points."""
    depth: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only the layer at this share of the depth, 0 the first and 1 the last."""
    count: Annotated[int, Field(ge=1)] | None = None
    """At most so many lines: layers evenly spaced, or the heads that move most."""
    heads: Literal["dynamic", "all"] = "dynamic"
    """Which heads a distribution is over."""
    example: Annotated[int, Field(ge=0)] = 0
    """Which of the examples that a run keeps."""


class Benchmark(Strict):
    """Speed of several architectures, interleaved in one process; see reproduction/benchmark.py.

    kind: `decoding` (prefill, and tokens one by one) or `recursion` (a forward pass and a training step on the prompt's
    length, and a token's latency by whether it completes a chunk). models: name → {arch, config}; the first is what
    ratios are taken to. sizes: group → size preset, by scale.
    """

    kind: Literal["decoding", "recursion"] = "decoding"
    models: dict[str, dict[str, Any]]
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
    """The row against which a direction is judged."""
    cells: dict[str, CellSpec] = {}
    scales: dict[Scale, ScaleSpec] = {}
    claims: list[Claim] = []

    @model_validator(mode="after")
    def _names_meet(self) -> Experiment:
        names = {column.name for column in self.columns}
        for row in self.rows:
            known = [*self.cells, BENCHMARK] if self.benchmark else self.cells
            if row.cell is not None and row.cell not in known:
                raise ValueError(f"row {row.name!r} names the cell {row.cell!r}, which is not among the cells")
            if unknown := set(row.paper) - names:
                raise ValueError(f"row {row.name!r} has paper values for unknown columns: {', '.join(sorted(unknown))}")
        for name in self._named_cells():
            if name not in self.cells:
                raise ValueError(f"a panel or a claim names the cell {name!r}, which is not among the cells")
        for name, cell in self.cells.items():
            for other in cell.parents:
                if other not in self.cells:
                    raise ValueError(f"cell {name!r} names {other!r}, which is not among the cells")
        return self

    def row(self, short: str) -> Row:
        """The row with a short name."""
        for row in self.rows:
            if row.short == short:
                return row
        known = ", ".join(row.short for row in self.rows)
        raise UserError(f"{self.id}: a claim names the row {short!r}; rows: {known}")

    @property
    def kind(self) -> str:
        return "table" if self.plot is None else "figure"

    def _named_cells(self) -> list[str]:
        """The cells that rows, panels and claims speak of."""
        named = [row.cell for row in self.rows if row.cell and row.cell != BENCHMARK]
        series = [series for panel in (self.plot.panels if self.plot else []) for series in panel.series]
        named += [name for entry in series for name in entry.named]
        for claim in self.claims:
            named += [name for key in ("cells", "over_cells", "other_cells") for name in claim.test.get(key, [])]
            named += [claim.test[key] for key in ("cell", "over_cell") if key in claim.test]
        return list(dict.fromkeys(named))

    def needed_cells(self, scale: str | None = None) -> list[str]:
        """The cells that are spoken of, and all that they start from; those of one scale where one is given."""
        spec = self.scales.get(scale) if scale else None
        needed: dict[str, None] = {}
        waiting = [name for name in self._named_cells() if spec is None or spec.size_of(self.cells[name])]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed[name] = None
                waiting += self.cells[name].parents
        return [name for name in self.cells if name in needed]

    def machine(self, scale: str) -> str | None:
        """What the runs of a scale are made on; None where nothing is run."""
        if self.benchmark is not None:
            return self.benchmark.machines.get(scale)
        return self.scales[scale].machine if scale in self.scales else None

    def available_scales(self) -> list[str]:
        """An analytic table is the same at every scale."""
        if self.benchmark is not None:
            return list(self.benchmark.sizes)
        return [s for s in SCALES if s in self.scales] if self.needed_cells() else list(SCALES)


def benchmark_hash(experiment: Experiment, scale: str) -> str:
    """Names a benchmark at a scale by what is measured."""
    content = experiment.benchmark.model_dump(mode="json", exclude={"machines", "sizes"})
    content |= {"scale": scale, "sizes": experiment.benchmark.sizes[scale]}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def experiments_folder() -> Path:
    """The experiment files: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "experiments"
    return checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / "experiments"


def experiment_ids() -> list[str]:
    return sorted(f"{path.parent.name}-{path.stem}" for path in experiments_folder().glob("*/[!_]*.yaml"))


def load_experiment(identifier: str) -> Experiment:
    ids = experiment_ids()
    if identifier not in ids:
        near = difflib.get_close_matches(identifier, ids, 1)
        hint = f"did you mean {near[0]}?" if near else "`hybridlab list` shows them"
        raise UserError(f"{identifier}: there is no such experiment; {hint}")
    paper, name = identifier.split("-", 1)
    experiment = check(Experiment, load_file(experiments_folder() / paper / f"{name}.yaml"))
    if experiment.id != identifier:
        raise UserError(f"{paper}/{name}.yaml: its id is {experiment.id}; it must be {identifier}")
    return experiment


def after(before: Training, config: RunConfig) -> RunConfig:
    """The configuration with the batches left out that the run which it starts from has read."""
    training = config.training.model_copy(update={"skip_steps": steps_seen(before, config.training)})
    return config.model_copy(update={"training": training})


def cell_configs(experiment: Experiment, scale: str, seed: int) -> dict[str, RunConfig]:
    """The configuration of every needed cell at a scale and seed, parents before children."""
    if scale not in experiment.scales:
        raise UserError(
            f"{experiment.id}: it has no scale {scale!r}; known: {', '.join(experiment.available_scales())}"
        )
    spec = experiment.scales[scale]
    configs: dict[str, RunConfig] = {}

    def build(name: str, chain: tuple[str, ...] = ()) -> RunConfig:
        if name in chain:
            raise UserError(f"{experiment.id}: the cells {' → '.join((*chain, name))} start from each other")
        if name in configs:
            return configs[name]
        cell = experiment.cells[name]
        hashes = {other: run_hash(build(other, (*chain, name))) for other in cell.parents}
        inherited: dict[str, Any] = {}
        if cell.start is not None:
            inherited["init"] = {"run": hashes[cell.start]}
        if cell.masks is not None:
            inherited["map"] = {"kind": "learned", "run": hashes[cell.masks]}
            inherited["controller"] = None
        size = spec.size_of(cell)
        if size is None:
            raise UserError(f"{experiment.id}: scale {scale} has no size for cell {name!r} of group {cell.group!r}")
        if cell.phase not in spec.phases:
            raise UserError(f"{experiment.id}: scale {scale} has no settings for the phase {cell.phase!r}")
        place = {(): f"{experiment.id}, cell {name}"}
        own = _with_texts(cell.config, {_CELL + other: digest for other, digest in hashes.items()})
        parts = [data_layer(spec.data).values, spec.config, spec.phases[cell.phase], inherited, own]
        parts += [spec.overrides.get(name, {}), {"training": {"seed": seed}}]
        configs[name] = within_budget(resolve(cell.arch, size, layers=[Layer(part, place) for part in parts]))
        if cell.start is not None:
            configs[name] = after(configs[cell.start].training, configs[name])
        return configs[name]

    for name in experiment.needed_cells(scale):
        build(name)
    return configs
