"""`hybridlab reproduce ID`: run what is missing behind a table, then make the table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import RunFailed, UserError
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
    """Train every cell at a scale; equal cells once, finished ones not again, and on past one that fails."""
    outcome = Outcome()
    if not experiment.cells:
        return outcome
    pending = _in_order(experiment, scale)
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
        except (RunFailed, UserError) as failure:
            outcome.failed[name], lost[digest] = str(failure), name
            say(f"{title}: failed: {failure}")
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
        cell_configs(experiment, scale, 0)
    return ordered
