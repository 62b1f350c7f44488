"""Queues of runs, parents first: each is trained, resumed, or skipped if finished; failures do not stop the queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hybridlab.config.resolve import parents
from hybridlab.config.schema import RunConfig
from hybridlab.errors import RunFailed, UserError
from hybridlab.runs.record import save_record
from hybridlab.runs.run import execute
from hybridlab.training.folders import RunFolder, Runs
from hybridlab.training.progress import clock


@dataclass
class Outcome:
    """finished: names of finished runs. failed: name → reason."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_all(
    pending: dict[str, tuple[str, RunConfig]],
    runs_dir: Path,
    results_dir: Path,
    say: Callable[[str], None],
    quiet: bool = False,
) -> Outcome:
    """Train runs given as hash → (name, configuration), with parents before children. Finished runs are skipped; a run
    that fails does not stop the others, except for its children."""
    outcome = Outcome()
    failed: dict[str, str] = {}
    started, steps_done, steps_all = time.monotonic(), 0, sum(config.training.steps for _, config in pending.values())
    for number, (digest, (name, config)) in enumerate(pending.items(), 1):
        title = f"[{number}/{len(pending)}] {name}"
        missing = next((failed[p] for p in parents(config) if p in failed), None)
        try:
            if missing is not None:
                raise RunFailed(f"the run it starts from failed ({missing})")
            folder = RunFolder(runs_dir / digest)
            before = folder.finished()
            record = execute(config, folder, Runs(runs_dir), title, say, quiet)
        except Exception as failure:  # The queue continues after any error of a single run.
            expected = isinstance(failure, RunFailed | UserError)
            reason = str(failure) if expected else f"{type(failure).__name__}: {failure}"
            outcome.failed[name], failed[digest] = reason, name
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
