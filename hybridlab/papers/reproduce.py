"""`hybridlab reproduce ID`: run what is missing behind a table or figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hybridlab.config.schema import RunConfig
from hybridlab.papers.benchmark import run_benchmark
from hybridlab.papers.cells import cell_runs
from hybridlab.papers.experiment import Experiment
from hybridlab.runs.queue import Outcome, run_all


def run_cells(
    experiment: Experiment,
    scale: str,
    runs_dir: Path,
    results_dir: Path,
    say: Callable[[str], None],
    quiet: bool = False,
    jobs: int | None = 1,
) -> Outcome:
    """Train every cell that an experiment needs at a scale, or run its benchmark. jobs: see `run_all`."""
    if experiment.benchmark is not None:
        run_benchmark(experiment, scale, results_dir, say)
        return Outcome()
    pending = needed_runs(experiment, scale)
    return run_all(pending, runs_dir, results_dir, say, quiet, jobs) if pending else Outcome()


def needed_runs(experiment: Experiment, scale: str) -> dict[str, tuple[str, RunConfig]]:
    """hash → (name, configuration) of the runs behind an experiment; empty for one that needs no training."""
    if experiment.benchmark is not None or not experiment.needed_cells():
        return {}
    return in_order(experiment, scale)


def in_order(experiment: Experiment, scale: str) -> dict[str, tuple[str, RunConfig]]:
    """hash → (name, configuration) over all seeds; parents come before children, equal cells once."""
    ordered: dict[str, tuple[str, RunConfig]] = {}
    seeds = experiment.at(scale).seeds
    experiment.refuse_tuning_seed(scale, seeds)
    for seed in seeds:
        for run in cell_runs(experiment, scale, seed):
            name = f"{run.cell} (seed {seed})" if len(seeds) > 1 else run.cell
            ordered.setdefault(run.hash, (name, run.config))
    return ordered
