"""From the cells of an experiment to the configurations of their runs, parents before children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybridlab.config.loading import KeyPath, Layer, check, merge
from hybridlab.config.resolve import data_layer, resolve, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.config.study import RUN, Study, study_hash
from hybridlab.errors import UserError, nearest
from hybridlab.papers.experiment import CELL, RATE_FOR, Experiment, cell_of_arm
from hybridlab.runs.compose import continued, within_budget


@dataclass(frozen=True)
class CellRun:
    """The run of a cell at one scale and seed, its configuration and the hash of that; or its study."""

    cell: str
    config: RunConfig | Study
    hash: str

    @property
    def trained(self) -> RunConfig:
        """The configuration of a run; UserError for a study, from which nothing can start."""
        if isinstance(self.config, Study):
            raise UserError(f"cell {self.cell!r} is a study of a model, which trains nothing")
        return self.config


def cell_configs(experiment: Experiment, scale: str, seed: int) -> dict[str, RunConfig]:
    """The configuration of every needed cell that is trained at a scale and seed, parents before children."""
    runs = cell_runs(experiment, scale, seed)
    return {run.cell: run.config for run in runs if isinstance(run.config, RunConfig)}


def cell_runs(
    experiment: Experiment,
    scale: str,
    seed: int,
    cells: Iterable[str] | None = None,
    swept: Mapping[str, Any] | None = None,
) -> Iterator[CellRun]:
    """The run of every needed cell, parents before children. Each is made only when it is asked for. What a run of
    another experiment starts from comes before it, as `experiment: cell`.

    cells: only these, with their parents. swept: cell → value of the setting that is swept, in place of the chosen one.
    """
    made: dict[str, CellRun] = {}
    shared = experiment.at(scale).places
    specs, values = experiment.cells_at(scale), {**experiment.chosen(scale), **(swept or {})}

    def make(name: str, children: tuple[str, ...]) -> Iterator[CellRun]:
        """The runs that are not made yet, of a cell's parents and of the cell itself."""
        if name in children:
            raise UserError(f"{experiment.id}: the cells {' → '.join((*children, name))} start from each other")
        if name in made:
            return
        if name in shared:
            yield from _shared_runs(experiment, scale, seed, name, made)
            return
        for parent in specs[name].parents:
            yield from make(parent, (*children, name))
        if specs[name].model is not None:
            study = study_of(experiment, scale, name, made)
            made[name] = CellRun(name, study, study_hash(study))
        else:
            config = _cell_config(experiment, scale, seed, name, made, values)
            made[name] = CellRun(name, config, run_hash(config))
        yield made[name]

    for name in experiment.needed_cells(scale) if cells is None else cells:
        yield from make(name, ())


def _shared_runs(
    experiment: Experiment, scale: str, seed: int, name: str, made: dict[str, CellRun]
) -> Iterator[CellRun]:
    """The runs that are not made yet, of a cell that is a run of another experiment and of what this starts from."""
    identifier, there = experiment.at(scale).places[name]
    for run in cell_runs(experiment.other(identifier), scale, seed, [there]):
        own = name if run.cell == there else f"{identifier}: {run.cell}"
        if own not in made:
            made[own] = replace(run, cell=own)
            yield made[own]


def study_of(experiment: Experiment, scale: str, name: str, made: Mapping[str, CellRun]) -> Study:
    """The study of one cell. made: the runs of its parents, by cell; of those that are not there, their names stand."""
    spec, cell = experiment.at(scale), experiment.cells_at(scale)[name]
    model = cell.model or ""
    if model.startswith(CELL):
        parent = made.get(model.removeprefix(CELL))
        model = RUN + (parent.hash if parent is not None and parent.trained else model)
    place: KeyPath = ("scales", scale, "cells", name) if name in spec.cells else ("cells", name)
    here: KeyPath = ("scales", scale)
    own = _with_texts(cell.config, {CELL + name: parent.hash for name, parent in made.items()})
    layers = [
        Layer({"model": model}, {("model",): experiment.at_line((*place, "model")).removesuffix(": ")}),
        experiment.part((*here, "phases", cell.phase), spec.phases.get(cell.phase) or {}),
        experiment.part((*place, "config"), own),
        experiment.part((*here, "overrides", name), spec.overrides.get(name, {})),
    ]
    return check(Study, merge(*layers))


def _cell_config(
    experiment: Experiment, scale: str, seed: int, name: str, made: dict[str, CellRun], swept: Mapping[str, Any]
) -> RunConfig:
    """The configuration of one cell. made: the runs of its parents, by cell. swept: cell → value of the setting that is
    swept."""
    spec, cell, written = experiment.at(scale), experiment.cells_at(scale)[name], cell_of_arm(name)
    place: KeyPath = ("scales", scale, "cells", written) if written in spec.cells else ("cells", written)
    size = spec.size_of(cell)
    if size is None:
        line = experiment.at_line((*place, "group"))
        raise UserError(f"{line}{experiment.id}: scale {scale} has no size for cell {name!r} of group {cell.group!r}")
    if cell.phase not in spec.phases:
        line = experiment.at_line((*place, "phase"))
        hint = nearest(cell.phase, list(spec.phases))
        raise UserError(f"{line}{experiment.id}: scale {scale} has no settings for the phase {cell.phase!r}; {hint}")
    phase = spec.phases[cell.phase] or {}
    inherited: dict[str, Any] = {}
    if cell.start is not None:
        inherited["init"] = {"run": made[cell.start].hash}
    if cell.masks is not None:
        inherited["map"] = {"kind": "learned", "run": made[cell.masks].hash}
        inherited["controller"] = None
    own = _with_texts(cell.config, {CELL + parent: made[parent].hash for parent in cell.parents})
    here: KeyPath = ("scales", scale)
    origins: dict[KeyPath, str] = {(): f"{experiment.id}, cell {name}"}
    # A cell's own settings must take effect; those that it shares with other cells are used where they fit.
    layers = [
        replace(data_layer(spec.data), origins=origins),
        experiment.part((*here, "config"), spec.config),
        experiment.part((*here, "phases", cell.phase), phase),
        Layer(inherited, origins),
        replace(experiment.part((*place, "config"), own), asked=True),
        replace(experiment.part((*here, "overrides", written), spec.overrides.get(written, {})), asked=True),
        _swept_layer(experiment, name, swept),
        Layer({"training": {"seed": seed}}, origins),
    ]
    assert cell.arch is not None, "a cell without it is a study"
    config = within_budget(resolve(cell.arch, size, layers=layers))
    if steps := _branched(experiment, scale).get(name):
        runtime = config.runtime.model_copy(update={"keep_steps": sorted({*config.runtime.keep_steps, *steps})})
        config = config.model_copy(update={"runtime": runtime})
    return config if cell.start is None else continued(made[cell.start].trained.training, config)


def _branched(experiment: Experiment, scale: str) -> dict[str, set[int]]:
    """Cell → the steps in which other cells go on from its run, which must keep these checkpoints."""
    steps: dict[str, set[int]] = {}
    spec, cells = experiment.at(scale), experiment.cells_at(scale)
    for name in experiment.needed_cells(scale):
        if name in spec.places:
            continue
        cell = cells[name]
        parts = [spec.config, spec.phases.get(cell.phase) or {}, cell.config, spec.overrides.get(name, {})]
        settings: dict[str, Any] = {}
        for init in (part.get("init") for part in parts):
            settings |= init if isinstance(init, dict) else {}
        if cell.start is not None and isinstance(settings.get("step"), int):
            steps.setdefault(cell.start, set()).add(settings["step"])
    return steps


def _swept_layer(experiment: Experiment, name: str, swept: Mapping[str, Any]) -> Layer:
    """The value of the swept setting for a cell; an empty layer if it has none."""
    if experiment.sweep is None or name not in swept:
        return Layer()
    metric = name.partition(RATE_FOR)[2] or experiment.sweep.metrics[0]
    here: KeyPath = ("sweep", "chosen", metric, cell_of_arm(name))
    setting = nested(experiment.sweep.setting, swept[name])
    return Layer(setting, {(): experiment.at_line(here).removesuffix(": ")}, asked=True)


def nested(setting: str, value: Any) -> dict[str, Any]:
    """The settings of a dotted name: ("a.b", 1) → {"a": {"b": 1}}."""
    for name in reversed(setting.split(".")):
        value = {name: value}
    return dict(value)


def _with_texts(values: Any, replaced: dict[str, str]) -> Any:
    if isinstance(values, dict):
        return {key: _with_texts(inner, replaced) for key, inner in values.items()}
    if isinstance(values, list):
        return [_with_texts(inner, replaced) for inner in values]
    return replaced.get(values, values) if isinstance(values, str) else values
