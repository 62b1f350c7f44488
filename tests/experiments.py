"""The package's experiments, each loaded once in a process of tests: they cannot be changed."""

from functools import cache

from hybridlab.papers import loading
from hybridlab.papers.loading import experiment_ids

__all__ = ["experiment_ids", "load_experiment"]


@cache
def load_experiment(identifier):
    """As `load_experiment` of hybridlab/papers/loading.py, which reads and checks the file anew each time."""
    return loading.load_experiment(identifier)
