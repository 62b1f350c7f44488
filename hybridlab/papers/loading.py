"""From an experiment file to an `Experiment`, with every name in it checked."""

from __future__ import annotations

import re
from pathlib import Path

from hybridlab.config.loading import Layer, check, is_file_name, load_file
from hybridlab.errors import UserError, nearest
from hybridlab.papers import ids
from hybridlab.papers.checks import check_names, check_settings
from hybridlab.papers.experiment import Experiment
from hybridlab.papers.ids import experiments_folder

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OTHER_FOLDERS = ("records",)
"""Folders in RESULTS-DIR that are no experiment's."""


def experiment_ids() -> list[str]:
    """The ids of hybridlab's experiments: fig2 before fig10."""
    return ids.experiment_ids(experiments_folder())


def load_experiment(identifier: str) -> Experiment:
    """The experiment of an id, or of a file given by its path (`./mine.yaml`); every name in the file is checked."""
    experiment, layer = _read(identifier)
    check_settings(experiment, layer)
    check_names(experiment, layer, lambda other: _read(other)[0])
    return experiment


def _read(identifier: str) -> tuple[Experiment, Layer]:
    known = experiment_ids()
    if is_file_name(identifier):
        return _read_file(Path(identifier).expanduser(), known)
    if identifier not in known:
        hint = nearest(identifier, known, "`hybridlab list` shows them, and a file is given by its path, ./mine.yaml")
        raise UserError(f"{identifier}: there is no such experiment; {hint}")
    paper, name = identifier.split("-", 1)
    experiment, layer = _checked(experiments_folder() / paper / f"{name}.yaml")
    if experiment.id != identifier:
        raise UserError(f"{paper}/{name}.yaml: its id is {experiment.id}; it must be {identifier}")
    return experiment, layer


def _read_file(path: Path, known: list[str]) -> tuple[Experiment, Layer]:
    """An experiment of the user's own: the file names its id, under which its results are kept."""
    experiment, layer = _checked(path)
    line = f"{layer.origin(('id',))}: id {experiment.id!r}"
    if not _ID.fullmatch(experiment.id) or experiment.id in _OTHER_FOLDERS or experiment.id.startswith("ablate-"):
        raise UserError(f"{line} cannot name a folder of results; use letters, digits, - and _, as in mine-table1")
    if experiment.id in known:
        paper, name = experiment.id.split("-", 1)
        if path.resolve() != (experiments_folder() / paper / f"{name}.yaml").resolve():
            raise UserError(f"{line} belongs to an experiment of hybridlab; choose another, so that its results stay")
    return experiment, layer


def _checked(path: Path) -> tuple[Experiment, Layer]:
    layer = load_file(path)
    experiment = check(Experiment, layer)
    experiment._written, experiment._others = layer, load_experiment
    return experiment, layer
