"""From an experiment file to an `Experiment`, with every name in it checked."""

from __future__ import annotations

from pathlib import Path

from hybridlab.config.loading import Layer, check, load_file
from hybridlab.errors import UserError
from hybridlab.papers.checks import check_names, check_settings
from hybridlab.papers.experiment import Experiment
from hybridlab.registry import nearest


def experiments_folder() -> Path:
    """The experiment files: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "experiments"
    return checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / "experiments"


def experiment_ids() -> list[str]:
    return sorted(f"{path.parent.name}-{path.stem}" for path in experiments_folder().glob("*/[!_]*.yaml"))


def load_experiment(identifier: str) -> Experiment:
    """The experiment of an id; every name in its file is checked."""
    experiment, layer = _read(identifier)
    check_settings(experiment, layer)
    check_names(experiment, layer, lambda other: _read(other)[0])
    return experiment


def _read(identifier: str) -> tuple[Experiment, Layer]:
    ids = experiment_ids()
    if identifier not in ids:
        hint = nearest(identifier, ids, "`hybridlab list` shows them")
        raise UserError(f"{identifier}: there is no such experiment; {hint}")
    paper, name = identifier.split("-", 1)
    layer = load_file(experiments_folder() / paper / f"{name}.yaml")
    experiment = check(Experiment, layer)
    experiment._written, experiment._others = layer, load_experiment
    if experiment.id != identifier:
        raise UserError(f"{paper}/{name}.yaml: its id is {experiment.id}; it must be {identifier}")
    return experiment, layer
