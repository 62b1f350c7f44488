"""One run of a queue: what it needs, and a try at it that never raises an error of that run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hybridlab.attention.kernels import choose
from hybridlab.attention.kinds import BANDED
from hybridlab.config.maps import FromRun
from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.data.preparing import corpus_for, corpus_of, prepared_corpus
from hybridlab.data.shards import Corpus
from hybridlab.errors import RunFailed, UserError
from hybridlab.messages import heard_by, silent
from hybridlab.models.ledger.flops import convention_of
from hybridlab.models.ledger.summary import training_flops
from hybridlab.plugins import in_plugin
from hybridlab.runs.budget import with_examples
from hybridlab.runs.extension import require_checkpoint
from hybridlab.runs.hooks import make_hooks
from hybridlab.runs.link import check_data, compiles, needs_of, run_of
from hybridlab.runs.record import Stamp
from hybridlab.runs.run import train_run
from hybridlab.training.machine import pick_device, pick_precision
from hybridlab.training.progress import Progress
from hybridlab.training.store.folders import Busy, RunFolder, Runs


@dataclass(frozen=True)
class Result:
    """How a try ended. busy: another process trains the run. stopped: by a signal, after a checkpoint. reason: of a
    failure."""

    status: Literal["finished", "failed", "busy", "stopped"]
    reason: str = ""


@dataclass(frozen=True)
class QueuedRun:
    """A run of a queue. runs_dir: where it is trained, in the folder of its hash. number: its place among the `total`
    runs, from 1. plans: see `train_run`. places: hash → folder of what it starts from elsewhere, see `Runs`."""

    digest: str
    name: str
    config: RunConfig
    runs_dir: Path
    number: int
    total: int
    plans: tuple[Stamp, ...] = ()
    places: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.runs_dir / self.digest)

    @property
    def runs(self) -> Runs:
        """Where the runs and models are found that it needs."""
        return Runs(self.runs_dir, {**self.places})

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
        done = max(self.folder.checkpoint_steps, default=0) or self.config.begins_after
        return 0 if self.finished() else self.config.training.steps - done

    def attempt(self, show: Callable[..., Progress] = Progress) -> Result:
        """Train or resume it; any error of it is its result, so that a queue can go on with the next."""
        try:
            train_run(self.config, self.folder, self.runs, self.title, show=show, plans=self.plans)
        except Busy:
            return Result("busy")
        except Exception as failure:
            if isinstance(failure, RunFailed | UserError):
                return Result("failed", str(failure))
            return Result("failed", in_plugin(failure) or f"{type(failure).__name__}: {failure}")
        return Result("finished")

    def to_json(self) -> dict[str, Any]:
        """For another process that loads the same plug-ins."""
        config, plans = self.config.model_dump(mode="json"), [stamp.model_dump() for stamp in self.plans]
        return {**vars(self), "config": config, "runs_dir": str(self.runs_dir), "plans": plans}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> QueuedRun:
        """AssertionError if the configuration is no longer that of the hash."""
        config = RunConfig.model_validate_json(json.dumps(values["config"]))
        digest, plans = values["digest"], tuple(Stamp(**stamp) for stamp in values["plans"])
        assert run_hash(config) == digest, f"the configuration of {digest} changed on its way to a process"
        return cls(**{**values, "config": config, "runs_dir": Path(values["runs_dir"]), "plans": plans})


def queued(
    pending: dict[str, tuple[str, RunConfig]],
    runs_dir: Path,
    plans: Mapping[str, Sequence[Stamp]] = {},
    places: Mapping[str, str] = {},
) -> dict[str, QueuedRun]:
    """The runs of a queue by hash, in the same order, each in the folder of its hash. plans: of each run, by hash.
    places: see `QueuedRun`."""
    total, places = len(pending), dict(places)
    return {
        digest: QueuedRun(digest, name, config, runs_dir, number, total, tuple(plans.get(digest, ())), places)
        for number, (digest, (name, config)) in enumerate(pending.items(), 1)
    }


# ---- what can be known to fail before any run of a queue trains ----


def check_runs(queue: Iterable[QueuedRun], prepare: bool = True) -> None:
    """UserError, with its name, for the first run that cannot start: device, kernel, parents, structure and data.

    prepare: also prepare the data, once for all runs that share it; otherwise only look at what is prepared already.
    Runs whose parents are in the queue are checked as far as it goes without these.
    """
    queue = list(queue)
    inside = {run.digest for run in queue}
    corpora: dict[str, Corpus | None] = {}
    for run in queue:
        try:
            _check(run, inside, prepare, corpora)
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None


def _check(run: QueuedRun, inside: set[str], prepare: bool, corpora: dict[str, Corpus | None]) -> None:
    config, folder = run.config, run.folder
    with heard_by(silent):  # it is said when the run starts
        compiles(config, folder, folder.info())
    start = needs_of(config, folder, run.runs, later=inside).start
    if start is not None and config.init is not None and config.init.step is not None:
        require_checkpoint(folder, run_of(start), config.init)
    make_hooks(config)
    corpus = _corpus(config, run.runs_dir, prepare, corpora)
    if corpus is not None:
        check_data(config, corpus, start)


def _corpus(config: RunConfig, runs_dir: Path, prepare: bool, corpora: dict[str, Corpus | None]) -> Corpus | None:
    """The data of a run; None if it is not prepared yet, or needs the tokenizer of a run that is not trained yet."""
    kind, _, path = config.data.tokenizer.partition(":")
    if kind == "file" and not Path(path).exists() and str(Path(path)).startswith(str(runs_dir.absolute())):
        return None
    key = config.data.model_dump_json(exclude={"mix", "task_loss_weight"})
    cache = runs_dir / "data"
    if config.finetune is not None:
        return corpus_of(config, cache)
    if key not in corpora:
        if prepare:
            corpora[key] = corpus_for(config.data, cache)
        else:
            corpora[key] = prepared_corpus(config.data, cache)
    return corpora[key]


# ---- training FLOPs, also where a run waits for the results of another ----


def run_flops(config: RunConfig) -> float | None:
    """Training FLOPs of all steps, as executed with the kernels that this machine takes; None if they depend on masks
    that are not known yet."""
    device = pick_device(config.runtime.device)
    low_precision = pick_precision(config.training.precision, device) != "fp32"
    kernel, length = config.runtime.kernel, config.training.seq_len
    if isinstance(config.map, FromRun) and choose(kernel, 1, length, device, low_precision) in BANDED:
        return None
    return training_flops(with_examples(config), convention_of(kernel, device, low_precision))
