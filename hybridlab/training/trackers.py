"""Trackers: TensorBoard, trackio and Weights & Biases get every line of a run's log (`--track`, extra `track`).

    hybridlab pretrain --track tensorboard      # then: tensorboard --logdir runs

A resumed run goes on in the same run of the tracker: in TensorBoard the steps that are repeated replace the old ones,
in the others they appear twice with the same numbers. A tracker that fails ends with a warning; training goes on.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from hybridlab.errors import UserError
from hybridlab.messages import say
from hybridlab.training.store.folders import RunFolder

Line = dict[str, Any]
PROJECT = "hybridlab"


@dataclass(frozen=True)
class Tracked:
    """The run that is tracked. digest: its hash. step: steps done at this start. config: all settings, as JSON."""

    digest: str
    name: str
    folder: RunFolder
    step: int
    config: dict[str, Any]


class Tracker(ABC):
    """The interface of trackers."""

    @abstractmethod
    def open(self, run: Tracked) -> bool:
        """Begin, or go on with the same run; returns whether the tracker knew the run."""

    @abstractmethod
    def log(self, step: int, values: dict[str, float | str]) -> None:
        """Numbers of a step by name or, as `event`, a change of the structure in JSON."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End; `finished` is False for a run that failed or was interrupted."""


class TensorBoard(Tracker):
    """Event files in the run folder, in `tensorboard/`."""

    def open(self, run: Tracked) -> bool:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder.path / "tensorboard"
        known = folder.is_dir()
        self.writer = SummaryWriter(str(folder), purge_step=run.step + 1 if known else None)
        if not known:
            self.writer.add_text("config", f"```json\n{json.dumps(run.config, indent=1)}\n```", 0)
        return known

    def log(self, step: int, values: dict[str, float | str]) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self.writer.add_text("events", f"```json\n{value}\n```", step)
            else:
                self.writer.add_scalar(name, value, step)
        # A kill loses what is not flushed.
        self.writer.flush()

    def close(self, finished: bool) -> None:
        self.writer.close()


class Trackio(Tracker):
    """trackio's project `hybridlab`, where TRACKIO_DIR or TRACKIO_SPACE_ID say; the run is named by its hash.

    trackio.json in the run folder says that trackio knows the run.
    """

    def open(self, run: Tracked) -> bool:
        import trackio

        note = run.folder.path / "trackio.json"
        known = note.is_file()
        self.run = trackio.init(
            PROJECT,
            name=run.digest,
            config={"run": run.name, "run_dir": str(run.folder.path), **run.config},
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        run.folder.write(note.name, {"project": PROJECT, "name": run.digest})
        return known

    def log(self, step: int, values: dict[str, float | str]) -> None:
        self.run.log(values, step=step)

    def close(self, finished: bool) -> None:
        import trackio

        trackio.finish()


class WeightsAndBiases(Tracker):
    """The project WANDB_PROJECT, or `hybridlab`; files in the run folder, in `wandb/`. Offline with WANDB_MODE."""

    def open(self, run: Tracked) -> bool:
        import wandb

        known = (run.folder.path / "wandb").is_dir()
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.digest,
            name=run.name,
            resume="allow",
            dir=str(run.folder.path),
            config=run.config,
            settings=wandb.Settings(console="off"),
        )
        # Against the step of the log, since wandb's own counter cannot go back when a run is resumed.
        self.run.define_metric("*", step_metric="step")
        return known

    def log(self, step: int, values: dict[str, float | str]) -> None:
        self.run.log({"step": step, **values})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}


def require_trackers(names: Sequence[str]) -> None:
    """UserError for a tracker that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--track {name}: this package is not installed; pip install 'hybridlab[track]'")


class Trackers:
    """The trackers of a run, each left out from its first failure on. lines: the log so far, which a tracker gets that
    does not know the run yet."""

    def __init__(self, names: Sequence[str], run: Tracked, lines: list[Line]) -> None:
        self.open_ones = {name: TRACKERS[name]() for name in dict.fromkeys(names)}

        def begin(tracker: Tracker) -> None:
            if not tracker.open(run):
                for line in lines:
                    _send(tracker, line)

        self._each(begin)

    def write(self, line: Line) -> None:
        """Send a line of the log."""
        self._each(lambda tracker: _send(tracker, line))

    def close(self, finished: bool) -> None:
        self._each(lambda tracker: tracker.close(finished))

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.open_ones.items()):
            try:
                # Some of them print, and standard output is for results.
                with redirect_stdout(sys.stderr):
                    do(tracker)
            except Exception as error:
                del self.open_ones[name]
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                say(f"--track {name} has stopped, the run goes on without it: {reason}")


def _send(tracker: Tracker, line: Line) -> None:
    if "event" in line:
        tracker.log(line["event"]["step"], {"event": json.dumps(line["event"])})
    elif "step" in line:
        tracker.log(line["step"], {k: float(v) for k, v in line.items() if k != "step" and isinstance(v, int | float)})


@contextmanager
def tracking(names: Sequence[str], run: Tracked, lines: list[Line]) -> Iterator[Trackers]:
    """A context in which trackers are open."""
    trackers = Trackers(names, run, lines)
    finished = False
    try:
        yield trackers
        finished = True
    finally:
        trackers.close(finished)
