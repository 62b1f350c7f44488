"""The package's experiments, loaded once in a process of tests: they cannot be changed."""

from functools import cache

from hybridlab.config.schema import RunConfig
from hybridlab.lab.papers import loading
from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.loading import experiment_ids

__all__ = ["all_experiments", "cell_configs", "experiment_ids", "load_experiment", "needed_cells"]


def load_experiment(identifier):
    """As `load_experiment` of hybridlab/lab/papers/loading.py, without its checks of names, which a test of their own
    makes: test_experiment_names.py."""
    return _all()[identifier]


def all_experiments(paper=None):
    """As `all_experiments` of hybridlab/lab/papers/loading.py."""
    return [experiment for experiment in _all().values() if paper in (None, experiment.paper)]


@cache
def _all():
    return {experiment.id: experiment for experiment in loading.all_experiments()}


def cell_configs(experiment, scale, seed):
    """The configuration of every needed cell that is trained at a scale and seed, parents before children."""
    runs = cell_runs(experiment, scale, seed)
    return {run.cell: run.config for run in runs if isinstance(run.config, RunConfig)}


def needed_cells(experiment):
    """The cells that some scale of an experiment needs."""
    needed = {name for scale in experiment.scales or [""] for name in experiment.needed_cells(scale)}
    return [name for name in experiment.known_cells if name in needed]
