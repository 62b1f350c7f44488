"""From an experiment file to an `Experiment`, with every name in it checked."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from hybridlab.config import resolve
from hybridlab.config.loading import KeyPath, Layer, check, is_file_name, states_of
from hybridlab.config.study import FILE, HUB, short_name
from hybridlab.config.templates import below
from hybridlab.config.yaml_text import with_value
from hybridlab.errors import UserError, located, nearest
from hybridlab.files import user_path
from hybridlab.lab.papers import ids
from hybridlab.lab.papers.analytic import ANALYTIC, several
from hybridlab.lab.papers.calls import called, references
from hybridlab.lab.papers.cell_spec import CellSpec
from hybridlab.lab.papers.cells import study_of
from hybridlab.lab.papers.claims.expression import Expression
from hybridlab.lab.papers.claims.numbers import check_cells
from hybridlab.lab.papers.entries import Entry, entries_in
from hybridlab.lab.papers.experiment import BENCHMARK, Claim, Experiment
from hybridlab.lab.papers.formula import measure_problem
from hybridlab.lab.papers.ids import experiments_folder
from hybridlab.lab.papers.plots import paths_in
from hybridlab.runs.record import BenchmarkRecord, Record

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OTHER_FOLDERS = ("records", "published", "plans", "site", "tried", "bench")
"""Folders in RESULTS-DIR that are no experiment's."""


def experiment_ids() -> list[str]:
    """The ids of hybridlab's experiments: fig2 before fig10."""
    return ids.experiment_ids(experiments_folder())


def load_experiment(identifier: str) -> Experiment:
    """The experiment of an id, or of a file given by its path: `./mine.yaml`, or `./mine.yaml:ID` where it has several
    entries. Every name in it is checked."""
    return _with_names_checked(_read(identifier))


def on_model(experiment: Experiment, model: str) -> Experiment:
    """An experiment with another pretrained model instead of that of its scale pretrained, under an id of its own,
    such as sgt-fig7-of-llama. model: hub:OWNER/NAME, or the path of a GGUF file or of a folder in the Hugging Face
    layout. UserError for an experiment without this scale."""
    scale = ids.PRETRAINED
    if scale not in experiment.scales:
        having = ", ".join(entry.id for entry in all_experiments() if scale in entry.available_scales())
        raise UserError(f"--model: {experiment.id} measures no pretrained model; those that do: {having}")
    if not model.startswith(HUB) and not user_path(model).exists():
        raise UserError(f"--model {model}: no such file or folder; give one, or hub:OWNER/NAME")
    spec = experiment.scales[scale]
    if any(cell.pretrained for cell in experiment.cells_at(scale).values()):
        raise UserError(f"--model: {experiment.id} also trains on from the model that its file names; change it there")
    source = model if model.startswith(HUB) else f"{FILE}{user_path(model)}"
    cells = {
        name: cell.model_copy(update={"model": source}) if (cell.model or "").startswith((HUB, FILE)) else cell
        for name, cell in experiment.cells_at(scale).items()
    }
    changed = {scale: spec.model_copy(update={"cells": cells})}
    return experiment.model_copy(update={"id": f"{experiment.id}-of-{short_name(source)}", "scales": changed})


def experiment_of(layer: Layer) -> Experiment:
    """The experiment that a program writes, with every name in it checked as in a file."""
    return _with_names_checked(_checked(layer))


def _with_names_checked(experiment: Experiment) -> Experiment:
    _check_settings(experiment)
    _check_names(experiment)
    return experiment


def all_experiments(paper: str | None = None) -> list[Experiment]:
    """hybridlab's experiments in their order, or those of one paper, without a check of the names in them, which tests
    make: to load all takes two seconds instead of seven. Files that have not changed are read once per process."""
    states = states_of(sorted(experiments_folder().glob("*/*.yaml")))
    read = _all_experiments.__wrapped__ if states is None else _all_experiments
    return [*read(experiments_folder(), paper, states)]


@lru_cache(maxsize=32)
def _all_experiments(folder: Path, paper: str | None, _states: object) -> list[Experiment]:
    """The states of the files are part of the cache key."""
    experiments: dict[str, Experiment] = {}
    for path in ids.entry_files(folder):
        if paper in (None, path.parent.name):
            for experiment in (_checked(entry.layer()) for entry in entries_in(path)):
                experiment._others = lambda identifier: experiments.get(identifier) or _read(identifier)
                experiments[experiment.id] = experiment
    return [experiments[identifier] for identifier in sorted(experiments, key=ids.natural)]


def _read(identifier: str) -> Experiment:
    """An experiment, without a check of the names in it."""
    files = ids.experiment_files(experiments_folder())
    file, _, entry_id = identifier.rpartition(":")
    if not file.endswith((".yaml", ".yml")):
        file, entry_id = identifier, ""
    if is_file_name(file):
        return _read_file(user_path(file), entry_id, files)
    if identifier not in files:
        hint = nearest(
            identifier, list(files), "`hybridlab list` shows them, and a file is given by its path, ./mine.yaml"
        )
        raise UserError(f"{identifier}: there is no such experiment; {hint}")
    path = files[identifier]
    experiment = _checked(_entry(path, identifier).layer())
    if not identifier.startswith(f"{path.parent.name}-"):
        problem = f"id {identifier!r}: in this folder an id must begin with {path.parent.name}-"
        raise experiment.mistake(("id",), problem)
    return experiment


def _entry(path: Path, identifier: str) -> Entry:
    """The entry with an id in a file, or the only one where none is asked for."""
    entries = entries_in(path)
    names = [entry.id for entry in entries]
    if not identifier and len(entries) > 1:
        raise UserError(
            f"{path} has several entries; name one of them, as in {path}:{names[0]}; known: {', '.join(names)}"
        )
    for entry in entries:
        if identifier in ("", entry.id):
            return entry
    raise UserError(f"{path}: it has no entry {identifier!r}; {nearest(identifier, names)}")


def _read_file(path: Path, entry_id: str, files: dict[str, Path]) -> Experiment:
    """An experiment of the user's own: the file names its id, under which its results are kept."""
    experiment = _checked(_entry(path, entry_id).layer())
    line = located(experiment.origin(("id",)), f"id {experiment.id!r}")
    if not _ID.fullmatch(experiment.id) or experiment.id.lower() in _OTHER_FOLDERS:
        raise UserError(f"{line} cannot name a folder of results; use letters, digits, - and _, as in mine-table1")
    if experiment.id in files and path.resolve() != files[experiment.id].resolve():
        raise UserError(f"{line} belongs to an experiment of hybridlab; choose another, so that its results stay")
    return experiment


def _checked(layer: Layer) -> Experiment:
    experiment = check(Experiment, layer)
    experiment._written, experiment._others = layer, _read
    return experiment


# ---- the names in a file ----


def _check_names(experiment: Experiment) -> None:
    """UserError for a name that the experiment does not have, and for a call that does not fit its function."""
    _check_measures(experiment)
    for path, refers, name in references(Experiment, experiment):
        _check_name(experiment, path, refers.to, name)
    _check_rows(experiment)
    _check_starts(experiment)
    _check_shared(experiment)
    _check_sweep(experiment)
    parts = _by_entry(experiment._written)
    for place, stated in (("claims", experiment.claims), ("checks", experiment.checks)):
        for i, claim in enumerate(stated):
            _check_tests(experiment, claim, parts.get((place, i), {}))
            if place == "checks" and not claim.test.is_exact:
                problem = "a check reads no run; write what does under `claims:`"
                raise experiment.mistake((place, i, "test"), f"{experiment.id}: {problem}")
    for i, column in enumerate(experiment.columns):
        for j, row in enumerate(experiment.rows if column.compute else []):
            origins = below(parts["columns", i], ("compute",)) | below(parts["rows", j], ("given",))
            called(ANALYTIC, "function", Layer({**(column.compute or {}), **row.given}, origins))


def _check_tests(experiment: Experiment, claim: Claim, origins: dict[KeyPath, str]) -> None:
    """UserError for a test of a claim, or of one of its controls, that names what is not there."""
    keys: list[KeyPath] = [("test",), *(("controls", j) for j in range(len(claim.controls)))]
    for key, test in zip(keys, claim.tests, strict=True):
        call = Layer(test, below(origins, key))
        test.check(call.origins)
        for reference in test.references:
            _check_name(experiment, reference.path, reference.to, reference.name, reference.elsewhere, call)
        if test.expression is not None:
            _check_expression(experiment, test.expression, test["holds"], call.origin(("holds",)))


def _check_expression(experiment: Experiment, parsed: Expression, text: str, origin: str) -> None:
    """UserError for an expression whose sizes do not fit, or for an unknown setting in one of its calls."""
    try:
        check_cells(parsed, experiment)
    except ValueError as problem:
        raise UserError(f"{origin}: expression {text!r}: {problem}") from None
    for config in (config for call in parsed.calls.values() for item in several(call)[1] for config in _configs(item)):
        resolve.check_names(Layer(config, {(): origin}))


def _configs(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The changes of a configuration in a call of an analytic function, also those of its variants."""
    for value in (value for value in call.values() if isinstance(value, dict)):
        yield (value.get("config") or {}) if "arch" in value else value


def _check_settings(experiment: Experiment) -> None:
    """UserError for an unknown setting of any cell, row, scale or benchmark model, also of those that are not needed
    here: an experiment file shares its cells with others."""
    for path, values in _settings(experiment):
        resolve.check_names(experiment.part(path, values))
    _check_studies(experiment)
    for name, spec in experiment.scales.items():
        cells = experiment.cells_at(name)
        groups = {cell.group for cell in cells.values() if cell.group}
        sizes = spec.size if isinstance(spec.size, dict) else {}
        names = [("overrides", cell, "cell", list(cells)) for cell in spec.overrides]
        names += [("size", group, "group of cells", sorted(groups)) for group in sizes]
        for key, written, what, valid in names:
            if written not in valid:
                problem = f"{experiment.id} has no {what} {written!r}; {nearest(written, valid)}"
                raise experiment.mistake(("scales", name, key, written), problem)


def _cells_written(experiment: Experiment) -> Iterator[tuple[KeyPath, CellSpec]]:
    """Path and cell of every cell of the file, and of those that single scales have."""
    places: list[tuple[KeyPath, dict[str, CellSpec]]] = [(("cells",), experiment.cells)]
    places += [(("scales", scale, "cells"), spec.cells) for scale, spec in experiment.scales.items()]
    for place, cells in places:
        yield from (((*place, name), cell) for name, cell in cells.items())


def _settings(experiment: Experiment) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Path and values of every part of the file that is a part of a run's configuration."""
    of_studies, of_runs = set[str](), set[str]()
    for place, cell in _cells_written(experiment):
        (of_runs if cell.model is None else of_studies).add(cell.phase)
        if cell.model is None:
            yield (*place, "config"), cell.config
            yield (*place, "settings"), cell.settings or {}
    for name, spec in experiment.scales.items():
        yield ("scales", name, "config"), spec.config
        studies = {key for key, cell in experiment.cells_at(name).items() if cell.model is not None}
        studied = {"phases": of_studies - of_runs, "overrides": studies}
        for part, settings in (("phases", spec.phases), ("overrides", spec.overrides)):
            for key, values in settings.items():
                if key not in studied[part]:
                    yield ("scales", name, part, key), values or {}
    for i, row in enumerate(experiment.rows):
        yield ("rows", i, "given", "config"), row.given.get("config", {})
    for i, column in enumerate(experiment.columns):
        yield ("columns", i, "compute", "config"), (column.compute or {}).get("config", {})
    if experiment.sweep is not None:
        setting = tuple(experiment.sweep.setting.split("."))
        yield ("sweep", "setting"), with_value({}, setting, experiment.sweep.grid[0])
    for name, model in (experiment.benchmark.models if experiment.benchmark else {}).items():
        yield ("benchmark", "models", name, "config"), model.config


def _check_studies(experiment: Experiment) -> None:
    """UserError for a setting of a study that does not exist or cannot be."""
    for scale, spec in experiment.scales.items():
        for name, cell in experiment.cells_at(scale).items():
            if cell.model is None or (cell.phase in spec.phases and spec.phases[cell.phase] is None):
                continue
            if cell.phase not in spec.phases:
                problem = f"{experiment.id}: scale {scale} has no phase {cell.phase!r}"
                hint = nearest(cell.phase, list(spec.phases))
                raise experiment.mistake((*experiment.place_of(scale, name), "phase"), f"{problem}; {hint}")
            study_of(experiment, scale, name, cell, {})


def _check_name(
    experiment: Experiment,
    path: KeyPath,
    what: str,
    name: str,
    elsewhere: str | None = None,
    layer: Layer | None = None,
) -> None:
    """UserError for a name that is not there. elsewhere: the id of the experiment that must have it, if it is another
    one. layer: with the origin of the path, by default the file."""
    try:
        problem = _problem(experiment.other(elsewhere) if elsewhere else experiment, what, name)
    except UserError as error:
        problem = str(error)
    if problem:
        raise UserError(located((layer or experiment._written).origin(path), problem))


def _problem(experiment: Experiment, what: str, name: str) -> str | None:
    """What is wrong with a name; None if the experiment has it."""
    if what == "names":
        return next(filter(None, (_problem(experiment, "metric or measure", path) for path in paths_in(name))), None)
    if what == "metric or measure" and name in experiment.measures:
        return measure_problem(name, experiment.measures)
    if what == "metric or measure" and "." not in name and experiment.measures:
        near = nearest(name, list(experiment.measures))
        problem = metric_problem(name, Record)
        return problem and f"{experiment.id} has no measure {name!r}, and a record no such metric; {near}"
    if what in ("metric", "metric or measure"):
        return metric_problem(name, BenchmarkRecord if experiment.benchmark else Record)
    if what == "experiment":
        experiment.other(name)
        return None
    if name.startswith("@"):
        near = nearest(name[1:], list(experiment.lists), None if experiment.lists else "write it under `lists:`")
        return f"there is no list {name!r}; {near}"
    names = _known(experiment, what)
    if name in names:
        return None
    return f"{experiment.id} has no {what} {name!r}; {nearest(name, names, None if names else 'it has none')}"


def _known(experiment: Experiment, what: str) -> list[str]:
    """The names of all of an experiment's rows, columns, panels, models or cells."""
    match what:
        case "row":
            return [row.short for row in experiment.rows]
        case "column":
            return [column.name for column in experiment.columns]
        case "panel":
            return list(experiment.panels)
        case "model":
            return list(experiment.benchmark.models if experiment.benchmark else ())
    return experiment.known_cells


def _check_known(experiment: Experiment, path: KeyPath, name: str, names: list[str]) -> None:
    """UserError for what neither the rows give nor, where this counts, a column has."""
    if name not in names:
        hint = nearest(name, names, None if names else "they give nothing")
        raise experiment.mistake(path, f"the rows of {experiment.id} give no {name!r}; {hint}")


def _check_rows(experiment: Experiment) -> None:
    """UserError for a cell, column or metric that a row, a column or a series names, and that is not there, and for two
    rows or columns with one name."""
    rows, columns = [row.short for row in experiment.rows], [column.name for column in experiment.columns]
    for key, names in (("rows", rows), ("columns", columns)):
        for i in (i for i, name in enumerate(names) if name in names[:i]):
            raise experiment.mistake((key, i), f"two {key} are called {names[i]!r}; give each a name of its own")
    for i, row in enumerate(experiment.rows):
        if row.cell is not None and not (experiment.benchmark is not None and row.cell == BENCHMARK):
            _check_name(experiment, ("rows", i, "cell"), "cell", row.cell)
        for name in row.paper:
            _check_name(experiment, ("rows", i, "paper", name), "column", name)
    for i, column in enumerate(experiment.columns):
        if column.scaling is not None:
            arguments = sorted({name for row in experiment.rows for name in row.given})
            _check_known(experiment, ("columns", i, "scaling", "by"), column.scaling.by, [*arguments, *columns])
            for j, name in enumerate(column.scaling.each):
                _check_known(experiment, ("columns", i, "scaling", "each", j), name, arguments)
        searched = experiment.sweep.metrics if experiment.sweep is not None else []
        if column.at_rate_of is not None and column.at_rate_of not in searched:
            hint = nearest(column.at_rate_of, searched, "there is no sweep")
            problem = f"sweep.metrics has no {column.at_rate_of!r} that could have chosen a rate; {hint}"
            raise experiment.mistake(("columns", i, "at_rate_of"), problem)
        for row in experiment.rows:
            if column.run and (cell := column.cell_of(row)) not in (None, BENCHMARK):
                _check_name(experiment, ("columns", i, "run"), "cell", str(cell))
        for row in experiment.rows if column.metric else []:
            path = ("columns", i, "metric")
            try:
                metric = column.metric_of(row)
            except UserError as error:
                raise experiment.mistake(path, error) from None
            _check_name(experiment, path, "metric or measure", metric)
    for i, panel in enumerate(experiment.plot.panels if experiment.plot else []):
        for j, series in enumerate(panel.series):
            if not series.cells:
                _check_name(experiment, ("plot", "panels", i, "series", j, "cell"), "cell", series.cell)


def _check_starts(experiment: Experiment) -> None:
    """UserError for a cell that starts from, or uses, one that does not exist: for the file's cells one of the file,
    for those of a scale one that this scale has."""
    for place, cell in _cells_written(experiment):
        scale = str(place[1]) if place[0] == "scales" else None
        cells = {*experiment.cells_at(scale), *(experiment.scales[scale].places if scale else ())}
        for other in cell.parents:
            if experiment.arm(scale, other, "") not in cells:
                key = next((key for key in ("start", "masks") if getattr(cell, key) == other), "config")
                owner = f"{experiment.id} at scale {scale}" if scale else experiment.id
                problem = f"{owner} has no cell {other!r}; {nearest(other, sorted(cells))}"
                raise experiment.mistake((*place, key), problem)


def _check_shared(experiment: Experiment) -> None:
    """UserError for a cell that is to be the run of another experiment, which this does not have at the scale."""
    for scale, spec in experiment.scales.items():
        for cell in spec.places.keys() & spec.overrides.keys():
            problem = f"{cell!r} is a run of another experiment at this scale, which these settings do not change"
            raise experiment.mistake(("scales", scale, "overrides", cell), f"{problem}; leave them out")
        for cell, (identifier, name) in spec.places.items():
            path: KeyPath = ("scales", scale, "shared", identifier, cell)
            _check_name(experiment, path, "experiment", identifier)
            other = experiment.other(identifier)
            cells = other.cells_at(scale)
            if name not in cells:
                raise experiment.mistake(path, f"{identifier} has no cell {name!r}; {nearest(name, list(cells))}")
            if scale not in other.scales or other.scales[scale].size_of(cells[name]) is None:
                raise experiment.mistake(path, f"{identifier} does not train {name!r} at scale {scale}")


def _check_sweep(experiment: Experiment) -> None:
    """UserError for a sweep whose parts do not fit each other or the scale."""
    sweep = experiment.sweep
    if sweep is None:
        return

    def wrong(problem: str, *key: str | int) -> UserError:
        return experiment.mistake(("sweep", *key), f"{experiment.id}: {problem}")

    if sweep.scale not in experiment.scales:
        scales = ", ".join(experiment.scales)
        raise wrong(f"it has no scale {sweep.scale!r} to sweep at; known: {scales}", "scale")
    spec = experiment.scales[sweep.scale]
    experiment.refuse_tuning_seed(sweep.scale, spec.seeds)
    each: dict[str, list[Any]] = {
        "grid": sweep.grid,
        "cells": sweep.cells,
        "metrics": sweep.metrics,
        "further_seeds": sweep.seeds,
        "further_values": sweep.further_values,
    }
    for key, values in each.items():
        if len(set(values)) < len(values):
            raise wrong(f"sweep.{key} names a value twice; give each once", key)
    for value in sweep.further_values:
        if value not in sweep.grid or not sweep.further_seeds:
            problem = f"sweep.further_values: {value} is no value of sweep.grid that sweep.further_seeds could try"
            raise wrong(f"{problem}; name values of the grid, and seeds", "further_values")
    for i, name in enumerate(sweep.cells):
        cell = experiment.cells_at(sweep.scale).get(name)
        if name in spec.places:
            raise wrong(f"cell {name!r} is a run of another experiment; search its values there", "cells", i)
        if cell is None or spec.size_of(cell) is None:
            raise wrong(f"cell {name!r} is not trained at scale {sweep.scale}; remove it from the sweep", "cells", i)
    for measured, reader in sweep.measured_in.items():
        path: tuple[str, ...] = ("measured_in", measured)
        if measured not in sweep.cells:
            hint = nearest(measured, sweep.cells)
            raise wrong(f"sweep.cells has no {measured!r} to measure in {reader}; {hint}", *path)
        if len(sweep.metrics) > 1:
            raise wrong("a cell that is measured in another one can have one metric only", *path)
    owners: dict[str, str] = {}
    for name, followers in sweep.follow.items():
        path = ("follow", name)
        if name not in sweep.cells:
            raise wrong(f"sweep.cells has no {name!r} that others could follow; {nearest(name, sweep.cells)}", *path)
        for follower in followers:
            if follower in sweep.cells or owners.setdefault(follower, name) != name:
                source = owners.get(follower, "its own search")
                raise wrong(f"{follower!r} has its value from {source}; give {name!r} a cell of its own", *path)
    if not isinstance(sweep.better, str) and (other := {*sweep.better} ^ {*sweep.metrics}):
        raise wrong(f"sweep.better says of each of sweep.metrics which is better; compare {min(other)!r}", "better")
    for metric, chosen in sweep.chosen.items():
        if metric not in sweep.metrics:
            hint = nearest(metric, sweep.metrics)
            raise wrong(f"sweep.metrics has no {metric!r} to choose by; {hint}", "chosen", metric)
        for name, value in chosen.items():
            path = ("chosen", metric, name)
            if name not in sweep.cells:
                raise wrong(f"sweep.chosen has no cell {name!r} to choose for; {nearest(name, sweep.cells)}", *path)
            if value not in sweep.grid:
                grid = ", ".join(map(str, sweep.grid))
                raise wrong(f"{value} was not tried for {name}; choose one of {grid}, or add it to the grid", *path)


def _check_measures(experiment: Experiment) -> None:
    """UserError for a measure whose name could be a path into a record."""
    for name in experiment.measures:
        if "." in name or metric_problem(name, Record) is None:
            problem = f"measures: {name!r} is, or looks like, a path into a record; choose another name"
            raise experiment.mistake(("measures", name), problem)


def _by_entry(layer: Layer) -> dict[KeyPath, dict[KeyPath, str]]:
    """The origins of values below each entry of the file's lists, such as (claims, 3), from one pass over all."""
    parts: dict[KeyPath, dict[KeyPath, str]] = {}
    for path, origin in layer.origins.items():
        parts.setdefault(path[:2], {})[path[2:]] = origin
    return parts


# ---- dotted paths into a record ----


def metric_problem(path: str, root: type[BaseModel]) -> str | None:
    """What is wrong with a dotted path into a record, judged by its types; None if nothing is."""
    kind: Any = root
    for part in path.split("."):
        kind = _not_none(kind)
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = list(kind.model_fields)
            if part not in fields and not isinstance(getattr(kind, part, None), property):
                return f"{path}: a record has no {part!r} there; {nearest(part, fields)}"
            kind = kind.model_fields[part].annotation if part in fields else Any
        elif kind is not Any:
            return f"{path}: {path[: path.index(part) - 1]} has no parts"
    return None


def _not_none(annotation: Any) -> Any:
    """X for `X | None`."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return inner[0] if get_origin(annotation) in (Union, types.UnionType) and len(inner) == 1 else annotation
