"""One run of a queue: what it needs, and a try at it that never raises an error of that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from hybridlab.config.other_runs import parents
from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import RunFailed, UserError
from hybridlab.runs.record import Stamp
from hybridlab.runs.run import execute
from hybridlab.training.checkpoints import newest_step
from hybridlab.training.folders import Busy, RunFolder, Runs
from hybridlab.training.progress import Progress

Say = Callable[[str], None]


@dataclass(frozen=True)
class QueuedRun:
    """A run of a queue. number: its place among the `total` runs, from 1. plans: see `execute`."""

    digest: str
    name: str
    config: RunConfig
    folder: RunFolder
    number: int
    total: int
    plans: tuple[Stamp, ...] = ()

    @property
    def title(self) -> str:
        return f"[{self.number}/{self.total}] {self.name}"

    @property
    def parents(self) -> list[str]:
        """The hashes of the runs that must have finished before this one starts."""
        return parents(self.config)

    def finished(self) -> bool:
        """Whether its folder holds the finished run."""
        return self.folder.finished() and (self.folder.info() or {}).get("hash") == self.digest

    def steps_left(self) -> int:
        """The steps after its newest checkpoint, or after the one that it begins with; 0 if it has finished."""
        done = newest_step(self.folder.checkpoints) or self.config.begins_after
        return 0 if self.finished() else self.config.training.steps - done


def queued(
    pending: dict[str, tuple[str, RunConfig]],
    runs_dir: Path,
    plans: Mapping[str, Sequence[Stamp]] = MappingProxyType({}),
) -> dict[str, QueuedRun]:
    """The runs of a queue by hash, in the same order, each in the folder of its hash. plans: of each run, by hash."""
    return {
        digest: QueuedRun(
            digest, name, config, RunFolder(runs_dir / digest), number, len(pending), tuple(plans.get(digest, ()))
        )
        for number, (digest, (name, config)) in enumerate(pending.items(), 1)
    }


@dataclass(frozen=True)
class Result:
    """How a try ended. busy: another process trains the run. stopped: by a signal, after a checkpoint. reason: of a
    failure."""

    status: Literal["finished", "failed", "busy", "stopped"]
    reason: str = ""


def attempt(
    config: RunConfig,
    folder: RunFolder,
    runs: Runs,
    title: str,
    say: Say,
    quiet: bool,
    show: Callable[..., Progress] = Progress,
    plans: Sequence[Stamp] = (),
) -> Result:
    """Train or resume a run; any error of it is its result, so that a queue can go on with the next."""
    try:
        execute(config, folder, runs, title, say, quiet, show=show, plans=plans)
    except Busy:
        return Result("busy")
    except Exception as failure:
        expected = isinstance(failure, RunFailed | UserError)
        return Result("failed", str(failure) if expected else f"{type(failure).__name__}: {failure}")
    return Result("finished")


def check_hash(config: RunConfig, digest: str) -> None:
    """AssertionError if a configuration is not the one of a hash, as after a wrong copy between processes."""
    assert run_hash(config) == digest, f"the configuration of {digest} changed on its way to a process"
