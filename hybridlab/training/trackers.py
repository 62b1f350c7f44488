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
from typing import Any

from hybridlab.errors import UserError
from hybridlab.messages import say
from hybridlab.training.engine import Run
from hybridlab.training.store.metrics import read_metrics
from hybridlab.training.world import world

PROJECT = "hybridlab"


class Tracker(ABC):
    """The interface of trackers."""

    @abstractmethod
    def open(self, run: Run) -> bool:
        """Begin, or go on with the same run; returns whether the tracker knew the run."""

    @abstractmethod
    def log(self, step: int, values: dict[str, float | str]) -> None:
        """Numbers of a step by name or, as `event`, a change of the structure in JSON."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End; `finished` is False for a run that failed or was interrupted."""


def _settings(run: Run) -> dict[str, Any]:
    return run.config.model_dump(mode="json")


def _name(run: Run) -> str:
    return run.folder.started().get("name") or run.folder.path.name


class TensorBoard(Tracker):
    """Event files in the run folder, in `tensorboard/`."""

    def open(self, run: Run) -> bool:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder.path / "tensorboard"
        known = folder.is_dir()
        self.writer = SummaryWriter(str(folder), purge_step=run.step + 1 if known else None)
        if not known:
            self.writer.add_text("config", f"```json\n{json.dumps(_settings(run), indent=1)}\n```", 0)
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

    def open(self, run: Run) -> bool:
        import trackio

        note = run.folder.path / "trackio.json"
        known = note.is_file()
        self.run = trackio.init(
            PROJECT,
            name=run.folder.digest,
            config={"run": _name(run), "run_dir": str(run.folder.path), **_settings(run)},
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        run.folder.write(note.name, {"project": PROJECT, "name": run.folder.digest})
        return known

    def log(self, step: int, values: dict[str, float | str]) -> None:
        self.run.log(values, step=step)

    def close(self, finished: bool) -> None:
        import trackio

        trackio.finish()


class WeightsAndBiases(Tracker):
    """The project WANDB_PROJECT, or `hybridlab`; files in the run folder, in `wandb/`. Offline with WANDB_MODE."""

    def open(self, run: Run) -> bool:
        import wandb

        known = (run.folder.path / "wandb").is_dir()
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.folder.digest,
            name=_name(run),
            resume="allow",
            dir=str(run.folder.path),
            config=_settings(run),
            settings=wandb.Settings(console="off"),
        )
        # Against the step of the log, since wandb's own counter cannot go back when a run is resumed.
        self.run.define_metric("*", step_metric="step")
        return known

    def log(self, step: int, values: dict[str, float | str]) -> None:
        self.run.log({"step": step, **values})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": WeightsAndBiases}


def require_trackers(names: Sequence[str]) -> None:
    """UserError for a tracker that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--track {name}: this package is not installed; pip install 'hybridlab[track]'")


def _send(tracker: Tracker, line: dict[str, Any]) -> None:
    if "event" in line:
        tracker.log(line["event"]["step"], {"event": json.dumps(line["event"])})
    elif "step" in line:
        tracker.log(line["step"], {k: float(v) for k, v in line.items() if k != "step" and isinstance(v, int | float)})


@contextmanager
def tracking(run: Run) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A context in which the trackers of `runtime.track` get every line of a run's log, each until its first failure;
    one that does not know the run yet gets those so far first. Returns what sends them a further line."""
    open_ones = {name: TRACKERS[name]() for name in dict.fromkeys(run.config.runtime.track if world().writer else [])}
    earlier, finished = read_metrics(run.metrics.path), False

    def each(do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(open_ones.items()):
            try:
                # Some of them print, and standard output is for results.
                with redirect_stdout(sys.stderr):
                    do(tracker)
            except Exception as error:
                del open_ones[name]
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                say(f"--track {name} has stopped, the run goes on without it: {reason}")

    def begin(tracker: Tracker) -> None:
        if not tracker.open(run):
            for line in earlier:
                _send(tracker, line)

    def write(line: dict[str, Any]) -> None:
        each(lambda tracker: _send(tracker, line))

    each(begin)
    run.metrics.listeners.append(write)
    try:
        yield write
        finished = True
    finally:
        each(lambda tracker: tracker.close(finished))
