"""Learning masks until they have settled: a run, and extensions of it, each as long as the record before estimates.

    hybridlab learn-masks --from RUN --rho 0.5 --until-settled

Every run is one of its own, which goes on with the optimizer of the one before (runs/extension.py). What comes next
follows from the records alone, so that the same request goes on after an interrupt, and does nothing once it is done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.messages import say
from hybridlab.runs.extension import extension, require_checkpoint
from hybridlab.runs.record import Record
from hybridlab.runs.run import finished_record, train_run
from hybridlab.training.store import checkpoints
from hybridlab.training.store.folders import UNLABELLED, Label, RunFolder, Runs
from hybridlab.training.world import world

LIMIT = 4
"""The largest ratio of the steps of all runs together to those of the first one."""


@dataclass(frozen=True)
class Portion:
    """One of the runs. most: the steps that all runs together may have."""

    config: RunConfig
    folder: RunFolder
    most: int

    def finished(self) -> bool:
        return self.folder.finished() and self.folder.digest == run_hash(self.config)

    def following(self, runs: Runs) -> Portion | None:
        """The run that goes on from this one, which has finished; None if its masks have settled, or no step is
        left."""
        done = self.config.training.steps
        learning = learned(finished_record(self.folder))
        # Half of the steps so far where the record cannot tell.
        more = min(learning.get("more_steps") or math.ceil(done / 2), self.most - done)
        if learning.get("settled") is not False or more < 1:
            return None
        runtime = self.config.runtime.model_dump(mode="json") | {"keep_steps": []}
        options = Layer({"runtime": runtime}, {(): "--until-settled"})
        config = extension(str(self.folder.path), more, runs, options, [])
        return replace(self, config=config, folder=RunFolder(runs.directory / run_hash(config)))


def learned(record: Record) -> dict[str, Any]:
    """The results of the hook that has learned masks; empty if none has."""
    return next((results for results in record.hooks.values() if "settled" in results), {})


def train_until_settled(config: RunConfig, runs: Runs, title: str, label: Label = UNLABELLED) -> tuple[Portion, Record]:
    """Train a run that learns masks, and go on with it until they have settled or `LIMIT` is reached; the last run and
    its record. label: the last run gets the name, and every run the tags. UserError if the runs do not keep what the
    next one needs."""
    if not config.runtime.keep_optimizer:
        raise UserError("--until-settled: runtime.keep_optimizer = false leaves no optimizer to go on with; remove it")
    portion = Portion(config, RunFolder(runs.directory / run_hash(config)), LIMIT * config.training.steps)
    before: Portion | None = None
    while True:
        if portion.finished() and (after := portion.following(runs)) is not None:
            before, portion = portion, after
            continue
        if before is not None and not portion.finished():
            assert portion.config.init is not None, "it goes on from another run"
            require_checkpoint(portion.folder, before.folder, portion.config.init)
            world().once(_take_name, before.folder, label)
            total = portion.config.training.steps
            more = total - before.config.training.steps
            say(f"{title}: the masks have not settled: {more} steps more, {total} in all (at most {portion.most})")
        record = train_run(portion.config, portion.folder, runs, title, label=label)
        if before is not None and config.runtime.keep_optimizer == "unsettled":
            # What the optimizer was kept for has been done.
            steps = before.config.runtime.keep_steps
            world().once(checkpoints.keep_newest, before.folder.checkpoints, 0, steps)
        if portion.following(runs) is None:
            return portion, record


def _take_name(folder: RunFolder, label: Label) -> None:
    """Take a run's name away where the next run is to have it."""
    facts = folder.started()
    if label.name is not None and facts.get("name") == label.name:
        folder.relabel({"name": None, "tags": facts.get("tags") or []})
