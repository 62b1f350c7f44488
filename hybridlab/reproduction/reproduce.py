"""`hybridlab reproduce ID`: run what is missing behind a table, then make the table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import RunFailed, UserError
from hybridlab.reproduction.benchmark import run_benchmark
from hybridlab.reproduction.experiment import Experiment, cell_configs
from hybridlab.reproduction.records import save_record
from hybridlab.reproduction.run import execute
from hybridlab.training.folders import RunFolder, Runs
from hybridlab.training.progress import clock


@dataclass
class Outcome:
    """finished: cells that ended well. failed: cell → reason."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_cells(
    experiment: Experiment,
    scale: str,
    runs_dir: Path,
    results_dir: Path,
    say: Callable[[str], None],
    quiet: bool = False,
) -> Outcome:
    """Train every cell that an experiment needs at a scale, or measure what it measures."""
    if experiment.benchmark is not None:
        run_benchmark(experiment, scale, results_dir, say)
        return Outcome()
    if not experiment.needed_cells():
        return Outcome()
    return run_all(_in_order(experiment, scale), runs_dir, results_dir, say, quiet)


def run_all(
    pending: dict[str, tuple[str, RunConfig]],
    runs_dir: Path,
    results_dir: Path,
    say: Callable[[str], None],
    quiet: bool = False,
) -> Outcome:
    """Train runs given as hash → (name, configuration), parents first; skip what is finished, go on past a failure."""
    outcome = Outcome()
    lost: dict[str, str] = {}
    started, steps_done, steps_all = time.monotonic(), 0, sum(config.training.steps for _, config in pending.values())
    for number, (digest, (name, config)) in enumerate(pending.items(), 1):
        title = f"[{number}/{len(pending)}] {name}"
        missing = next((lost[p] for p in parents(config) if p in lost), None)
        try:
            if missing is not None:
                raise RunFailed(f"the run it starts from failed ({missing})")
            folder = RunFolder(runs_dir / digest)
            before = folder.finished()
            record = execute(config, folder, Runs(runs_dir), title, say, quiet)
        except Exception as failure:  # whatever one run dies of, the others go on and the table names it
            known = isinstance(failure, RunFailed | UserError)
            reason = str(failure) if known else f"{type(failure).__name__}: {failure}"
            outcome.failed[name], lost[digest] = reason, name
            say(f"{title}: failed: {reason}")
            continue
        save_record(record, results_dir)
        outcome.finished.append(name)
        if before:
            steps_all -= config.training.steps
            continue
        steps_done += config.training.steps
        left = (time.monotonic() - started) / steps_done * (steps_all - steps_done)
        say(f"{title}: done, {number} of {len(pending)} runs, about {clock(left)} left")
    return outcome


def _in_order(experiment: Experiment, scale: str) -> dict[str, tuple[str, RunConfig]]:
    """hash → (name, configuration) over all seeds; parents come before children, equal cells once."""
    ordered: dict[str, tuple[str, RunConfig]] = {}
    seeds = experiment.scales[scale].seeds if scale in experiment.scales else []
    for seed in seeds:
        configs = cell_configs(experiment, scale, seed)
        by_hash: dict[str, tuple[str, RunConfig]] = {}
        for name, config in configs.items():
            by_hash.setdefault(run_hash(config), (name, config))

        def add(digest: str, by_hash: dict[str, tuple[str, RunConfig]] = by_hash, seed: int = seed) -> None:
            if digest in ordered:
                return
            name, config = by_hash[digest]
            for parent in parents(config):
                add(parent)
            ordered[digest] = (f"{name} (seed {seed})" if len(seeds) > 1 else name, config)

        for digest in by_hash:
            add(digest)
    if not ordered:
        # No seeds at this scale: building the cells of any seed names the scales that there are.
        cell_configs(experiment, scale, 0)
    return ordered
