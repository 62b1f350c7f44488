"""From the cells of an experiment to the configurations of their runs, parents before children."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hybridlab.config.loading import KeyPath, Layer, check, merge
from hybridlab.config.resolve import data_layer, hash_of, identity_text, resolve
from hybridlab.config.schema import RunConfig
from hybridlab.config.study import RUN, Study, study_hash
from hybridlab.config.yaml_text import with_value
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.cell_spec import CELL, CellSpec
from hybridlab.lab.papers.experiment import BENCHMARK, RATE_FOR, Experiment, benchmark_hash, cell_of_arm, with_all
from hybridlab.lab.papers.ids import PRETRAINED, TUNING
from hybridlab.runs.budget import continued, within_budget
from hybridlab.runs.record import BenchmarkRecord, Record, load_record, read_benchmark, record_name, with_weights
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.results import find

ANY_SEED = 2**32 - 5
"""Stands for the seed in the settings that all seeds of a cell share; no file is expected to write this number."""


@dataclass(frozen=True)
class CellRun:
    """The run of a cell at one scale and seed, or its study. hash: of its configuration, which is made when it is read:
    tables and figures need the hash alone. text: the identity of a run, see config/resolve.py."""

    cell: str
    hash: str
    made: Callable[[], RunConfig | Study] = field(repr=False)
    text: str = field(default="", repr=False)

    @property
    def config(self) -> RunConfig | Study:
        """The configuration of the run, or the study."""
        return self.made()

    @property
    def trained(self) -> RunConfig:
        """The configuration of a run; UserError for a study, from which nothing can start."""
        if isinstance(self.config, Study):
            raise UserError(f"cell {self.cell!r} is a study of a model, which trains nothing")
        return self.config


def cell_runs(
    experiment: Experiment,
    scale: str,
    seed: int,
    cells: Iterable[str] | None = None,
    swept: Mapping[str, Any] | None = None,
) -> Iterator[CellRun]:
    """The run of every needed cell at one seed; see `CellRuns`. cells: only these, with their parents."""
    return runs_at(experiment, scale, swept).of(seed, cells)


def runs_at(experiment: Experiment, scale: str, swept: Mapping[str, Any] | None = None) -> CellRuns:
    """The runs of an experiment's cells at a scale, which are kept with the experiment."""
    key = ("runs", scale, tuple((swept or {}).items()))
    if key not in experiment.kept:
        experiment.kept[key] = CellRuns(experiment, scale, swept)
    runs: CellRuns = experiment.kept[key]
    return runs


class CellRuns:
    """The runs of an experiment's cells at a scale. The settings of a cell are resolved once, with ANY_SEED; those of a
    seed are the same text with this seed, and with the hashes that the cell's parents have there.

    swept: cell → value of the setting that is swept, in place of the chosen one.
    """

    def __init__(self, experiment: Experiment, scale: str, swept: Mapping[str, Any] | None = None) -> None:
        self.experiment, self.scale = experiment, scale
        self.specs, self.places = experiment.cells_at(scale), experiment.at(scale).places
        self.needed = experiment.needed_cells(scale)
        self.values = {**experiment.chosen(scale), **(swept or {})}
        self.branched = self._branched()
        self.made: dict[tuple[int, str], CellRun] = {}
        """Seed and cell → its run, of the cells that are no runs of other experiments."""

    def of(self, seed: int, cells: Iterable[str] | None = None) -> Iterator[CellRun]:
        """The run of every needed cell at a seed, parents before children. What a run of another experiment starts from
        comes before it, as `experiment: cell`. cells: only these, with their parents."""
        yielded: dict[str, CellRun] = {}
        for name in self.needed if cells is None else cells:
            yield from self._with_parents(seed, name, (), yielded)

    def _with_parents(
        self, seed: int, name: str, children: tuple[str, ...], yielded: dict[str, CellRun]
    ) -> Iterator[CellRun]:
        """The runs that were not yielded yet, of a cell's parents and of the cell itself; they join `yielded`."""
        if name in children:
            raise UserError(f"{self.experiment.id}: the cells {' → '.join((*children, name))} start from each other")
        if name in yielded:
            return
        if name in self.places:
            yield from self._shared(seed, name, yielded)
            return
        for parent in self.specs[name].parents:
            yield from self._with_parents(seed, parent, (*children, name), yielded)
        if (seed, name) not in self.made:
            self.made[seed, name] = self._run(seed, name, yielded)
        yielded[name] = self.made[seed, name]
        yield yielded[name]

    def _shared(self, seed: int, name: str, yielded: dict[str, CellRun]) -> Iterator[CellRun]:
        """The same, of a cell that is a run of another experiment and of what this starts from."""
        identifier, cell = self.places[name]
        for run in runs_at(self.experiment.other(identifier), self.scale).of(seed, [cell]):
            label = name if run.cell == cell else f"{identifier}: {run.cell}"
            if label not in yielded:
                yielded[label] = replace(run, cell=label)
                yield yielded[label]

    def _run(self, seed: int, name: str, runs: dict[str, CellRun]) -> CellRun:
        """The run of a cell, or its study. runs: those of its parents."""
        spec = self.specs[name]
        if spec.model is not None:
            study = study_of(self.experiment, self.scale, name, spec, runs)
            return CellRun(name, study_hash(study), lambda: study)
        if seed == ANY_SEED:
            config = _cell_config(self.experiment, self.scale, seed, name, spec, runs, self.values)
            config = keeping(config, self.branched.get(name, set()))
            return CellRun(name, hash_of(text := identity_text(config)), lambda: config, text)
        of_any = {run.cell: run for run in self.of(ANY_SEED, [name])}
        replaced = {str(ANY_SEED): str(seed)} | {of_any[parent].hash: runs[parent].hash for parent in spec.parents}

        @cache
        def build() -> RunConfig:
            values = json.loads(_replaced(of_any[name].trained.model_dump_json(), replaced))
            return check(RunConfig, Layer(values, {(): f"{self.experiment.id}, cell {name}"}))

        text = _replaced(of_any[name].text, replaced)
        return CellRun(name, hash_of(text), build, text)

    def _branched(self) -> dict[str, set[int]]:
        """Cell → the steps in which other cells go on from its run, which must keep these checkpoints."""
        steps: dict[str, set[int]] = {}
        for name in self.needed:
            if name in self.places or (start := self.specs[name].start) is None:
                continue
            settings: dict[str, Any] = {}
            for part in self.experiment.settings_of(self.scale, name, self.specs[name]):
                settings |= init if isinstance(init := part.get("init"), dict) else {}
            if isinstance(settings.get("step"), int):
                steps.setdefault(start, set()).add(settings["step"])
        return steps


def _replaced(text: str, replaced: Mapping[str, str]) -> str:
    """A text with other numbers and hashes instead of some, where they stand by themselves."""
    tokens = "|".join(map(re.escape, replaced))
    return re.sub(rf"(?<![\w.])(?:{tokens})(?![\w.])", lambda token: replaced[token[0]], text)


def study_of(experiment: Experiment, scale: str, name: str, cell: CellSpec, runs: Mapping[str, CellRun]) -> Study:
    """The study of one cell, as it is at this scale. runs: those of its parents, by cell; of those that are not
    there, their names stand."""
    spec = experiment.at(scale)
    model = cell.model or ""
    if model.startswith(CELL):
        parent = runs.get(model.removeprefix(CELL))
        model = RUN + (parent.hash if parent is not None and parent.trained else model)
    place, scale_path = experiment.place_of(scale, name), ("scales", scale)
    cell_config = _with_texts(cell.config, {CELL + name: parent.hash for name, parent in runs.items()})
    layers = [
        experiment.part(place, {"model": model}),
        experiment.part((*scale_path, "phases", cell.phase), spec.phases.get(cell.phase) or {}),
        experiment.part((*place, "config"), cell_config),
        experiment.part((*scale_path, "overrides", name), spec.overrides.get(name, {})),
    ]
    return check(Study, merge(*layers))


def _cell_config(
    experiment: Experiment,
    scale: str,
    seed: int,
    name: str,
    cell: CellSpec,
    runs: Mapping[str, CellRun],
    swept: Mapping[str, Any],
) -> RunConfig:
    """The configuration of one cell, as it is at this scale. runs: those of its parents, by cell. swept: cell →
    value of the setting that is swept."""
    spec, written = experiment.at(scale), cell_of_arm(name)
    place, scale_path = experiment.place_of(scale, written), ("scales", scale)
    size = spec.size_of(cell)
    if size is None:
        problem = f"{experiment.id}: scale {scale} has no size for cell {name!r} of group {cell.group!r}"
        raise experiment.mistake((*place, "group"), problem)
    if cell.phase not in spec.phases:
        problem = f"{experiment.id}: scale {scale} has no settings for the phase {cell.phase!r}"
        raise experiment.mistake((*place, "phase"), f"{problem}; {nearest(cell.phase, list(spec.phases))}")
    phase = spec.phases[cell.phase] or {}
    inherited: dict[str, Any] = {}
    if cell.pretrained is not None:
        inherited["init"] = {"run": cell.pretrained[0]}
    elif cell.start is not None:
        inherited["init"] = {"run": runs[cell.start].hash}
    if cell.masks is not None:
        inherited["map"] = {"kind": "learned", "run": runs[cell.masks].hash}
        inherited["controller"] = None
    cell_config = _with_texts(cell.config, {CELL + parent: runs[parent].hash for parent in cell.parents})
    origins: dict[KeyPath, str] = {(): f"{experiment.id}, cell {name}"}
    # A cell's own settings must take effect; those that it shares with other cells are used where they fit.
    base = None if cell.settings is None else experiment.part((*place, "settings"), cell.settings)
    layers = [
        replace(data_layer(spec.data), origins=origins) if base is None else Layer(),
        experiment.part((*scale_path, "config"), spec.config),
        experiment.part((*scale_path, "phases", cell.phase), phase),
        Layer(inherited, origins),
        # A cell with a seed of its own is another draw of an arm.
        Layer({"training": {"seed": seed}}, origins),
        replace(experiment.part((*place, "config"), cell_config), asked=True),
        replace(experiment.part((*scale_path, "overrides", written), spec.overrides.get(written, {})), asked=True),
        _swept_layer(experiment, name, swept),
    ]
    config = within_budget(resolve(cell.arch, size, layers=layers, base=base))
    return config if cell.start is None or cell.pretrained else continued(runs[cell.start].trained, config)


def keeping(config: RunConfig, steps: Iterable[int]) -> RunConfig:
    """The configuration with further steps whose checkpoints stay."""
    keep_steps = sorted({*config.runtime.keep_steps, *steps})
    return with_runtime(config, keep_steps=keep_steps)


def with_runtime(config: RunConfig, **settings: Any) -> RunConfig:
    """The configuration with other settings of how it is computed, which are not checked."""
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=settings)})


def _swept_layer(experiment: Experiment, name: str, swept: Mapping[str, Any]) -> Layer:
    """The value of the swept setting for a cell; an empty layer if it has none."""
    if experiment.sweep is None or name not in swept:
        return Layer()
    metric = name.partition(RATE_FOR)[2] or experiment.sweep.metrics[0]
    path: KeyPath = ("sweep", "chosen", metric, cell_of_arm(name))
    setting = tuple(experiment.sweep.setting.split("."))
    return Layer(with_value({}, setting, swept[name]), {(): experiment.origin(path)}, asked=True)


def _with_texts(values: Any, replaced: dict[str, str]) -> Any:
    if isinstance(values, dict):
        return {key: _with_texts(inner, replaced) for key, inner in values.items()}
    if isinstance(values, list):
        return [_with_texts(inner, replaced) for inner in values]
    return replaced.get(values, values) if isinstance(values, str) else values


# ---- the records of the runs ----


Records = dict[str, dict[int, Record]]
"""cell → seed → record."""


def records_of(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> Records:
    """The records of the cells whose runs have finished: of the file's seeds, and of further seeds that are complete.
    A cell that the sweep has not chosen a value for has none.

    A further seed is one below 100 that the file names neither as reported nor as an earlier one, such as `reproduce
    --seeds` trains, and of which every cell has its record. At scale pretrained the prompts or documents of a study,
    each with its own numbers, stand in for the seeds; what was not measured by unit has one record, as seed 0.
    runs_dir: see `load_record`.
    """
    records: Records = {}
    if scale not in experiment.scales or not experiment.needed_cells(scale):
        return records
    seeds, earlier = experiment.scales[scale].seeds, experiment.scales[scale].earlier_seeds
    runs, unsearched = runs_at(experiment, scale), {*experiment.unsearched(scale)}

    def counts(cell: str) -> bool:
        """Whether a run is of a cell whose settings, and those of what it starts from, have all been searched."""
        specs = runs.specs
        return not unsearched or unsearched.isdisjoint(
            with_all([cell], lambda name: specs[name].parents if name in specs else ())
        )

    if experiment.unit(scale) != "seed":
        one_each = ((run.cell, load_record(run.hash, results_dir, runs_dir)) for run in runs.of(seeds[0]))
        # What has no units is one number alone: a run, such as one that learns masks, or a study of all text together.
        return {cell: record.units or {0: record} for cell, record in one_each if record is not None}
    # Studies of models that are there already have no seed.
    seedless = {run.hash for run in runs.of(ANY_SEED)} == {run.hash for run in runs.of(0)}
    further = set[int]() if seedless else {*range(TUNING)} - {*seeds, *earlier}
    for seed in (*seeds, *sorted(further)):
        of_seed: dict[str, Record] = {}
        for run in runs.of(seed):
            if counts(run.cell) and (record := load_record(run.hash, results_dir, runs_dir)) is not None:
                of_seed[run.cell] = record
            elif seed in further:
                of_seed = {}
                break
        weighted = with_weights(of_seed.values())
        for cell, record in of_seed.items():
            records.setdefault(cell, {})[seed] = weighted[record.hash]
    return records


def best_scale(experiment: Experiment, results_dir: Path, runs_dir: Path | None = None) -> str:
    """The dearest scale at which at least one seed of the file is complete; without one, and for an experiment that
    needs no training, the cheapest that it has. Scale pretrained stands for no training."""

    def recorded(name: str) -> bool:
        if find(results_dir, record_name(name)).is_file():
            return True
        return runs_dir is not None and RunFolder(runs_dir / name).finished()

    scales = experiment.available_scales()
    for scale in (scale for scale in reversed(scales) if scale != PRETRAINED):
        if experiment.benchmark is not None and recorded(f"benchmark-{benchmark_hash(experiment, scale)}"):
            return scale
        seeds = experiment.scales[scale].seeds if experiment.needed_cells(scale) and scale in experiment.scales else []
        if any(all(recorded(run.hash) for run in cell_runs(experiment, scale, seed)) for seed in seeds):
            return scale
    return scales[0]


def complete_seeds(experiment: Experiment, scale: str, records: Records) -> list[int]:
    """The seeds, or units, of which every needed cell has a record. One run beside prompts or documents is of all."""
    measured = [records.get(cell, {}) for cell in experiment.needed_cells(scale)]
    by_unit = [any(run.unit is not None for run in by_seed.values()) for by_seed in measured]
    pairs = zip(measured, by_unit, strict=True)
    counted = [by_seed for by_seed, units in pairs if units or not by_seed or not any(by_unit)]
    seeds = {seed for by_seed in counted for seed in by_seed}
    return sorted(seed for seed in seeds if all(seed in by_seed for by_seed in counted))


Hashes = Mapping[str, Mapping[str, str]]
"""Cell → seed → hash of the run, as in the pages; that of a benchmark under its own name."""


def runs_of(records: Records, benchmark: BenchmarkRecord | None) -> Hashes:
    """The hashes of what a table or figure is made of; the prompts of a study are one record."""
    runs = {
        cell: {str(seed): record.hash for seed, record in by_seed.items() if not record.unit}
        for cell, by_seed in records.items()
    }
    return runs if benchmark is None else {**runs, BENCHMARK: {"0": benchmark.hash}}


def record_files(runs: Hashes) -> set[str]:
    """The files of these records below RESULTS-DIR."""
    before = {BENCHMARK: "benchmark-"}
    return {record_name(before.get(cell, "") + name) for cell, by_seed in runs.items() for name in by_seed.values()}


def benchmark_record(experiment: Experiment, scale: str, results_dir: Path) -> BenchmarkRecord | None:
    """The record of an experiment's benchmark at a scale; None if it has no benchmark, or has not been run."""
    if experiment.benchmark is None or scale not in experiment.benchmark.sizes:
        return None
    name = f"benchmark-{benchmark_hash(experiment, scale)}"
    return read_benchmark(find(results_dir, record_name(name)))
