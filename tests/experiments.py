"""The package's experiments, loaded once in a process of tests: they cannot be changed."""

from functools import cache

from hybridlab.papers.loading import all_experiments, experiment_ids

__all__ = ["experiment_ids", "load_experiment"]


def load_experiment(identifier):
    """As `load_experiment` of hybridlab/papers/loading.py, without its checks of names, which a test of their own
    makes: test_experiment_names.py."""
    return _all()[identifier]


@cache
def _all():
    return {experiment.id: experiment for experiment in all_experiments()}
