"""Several runs at once, each in a process of its own.

A process tells its parent in lines of JSON over a pipe what it says, how far it is, and how it ended. Signals reach the
parent only, which passes them on: each process then finishes its step and writes a checkpoint.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from hybridlab import plugins
from hybridlab.errors import Interrupted, UserError
from hybridlab.runs.attempt import QueuedRun, Result, Say, attempt, check_hash
from hybridlab.runs.record import Stamp
from hybridlab.training.board import Board
from hybridlab.training.folders import RunFolder, Runs
from hybridlab.training.progress import Progress

_SECONDS_BETWEEN_REPORTS = 0.2
_SECONDS_OF_A_WAIT = 0.2

Send = Callable[..., None]


@dataclass
class _Worker:
    """A running process, and what it has told about its end."""

    run: QueuedRun
    process: BaseProcess
    pipe: Connection
    result: Result | None = None


class Workers:
    """At most `jobs` processes, each of which trains one run. threads: from a run's hash to its number of threads."""

    def __init__(self, jobs: int, threads: Callable[[str], int], runs_dir: Path, say: Say, board: Board) -> None:
        self.jobs, self.threads, self.runs_dir = jobs, threads, runs_dir
        self.say, self.board = say, board
        self.running: list[_Worker] = []
        self.stopping = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.running:  # only after an error or a second signal
            worker.process.kill()
            worker.process.join()

    @property
    def full(self) -> bool:
        return len(self.running) >= self.jobs

    def start(self, run: QueuedRun) -> None:
        """Start a process for a run."""
        context = _context()
        mine, its = context.Pipe(duplex=False)
        settings = {
            "config": run.config.model_dump(mode="json"),
            "hash": run.digest,
            "folder": str(run.folder.path),
            "runs": str(self.runs_dir),
            "title": run.title,
            "threads": self.threads(run.digest),
            "plugins": plugins.loaded(),
            "plans": [stamp.model_dump() for stamp in run.plans],
        }
        process = context.Process(target=_work, args=(json.dumps(settings), its), daemon=True)
        # Ctrl-C goes to all processes of a terminal. A new one ignores it from its first moment on, as it inherits.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        its.close()
        self.running.append(_Worker(run, process, mine))

    def stop(self) -> None:
        """Ask every process to finish its step, write a checkpoint and end."""
        if not self.stopping:
            self.stopping = True
            for worker in self.running:
                worker.process.terminate()

    def ended(self) -> list[tuple[QueuedRun, Result]]:
        """Wait a moment for news; returns the runs whose processes have ended."""
        wait([worker.pipe for worker in self.running], _SECONDS_OF_A_WAIT)
        over = [worker for worker in self.running if not self._listen(worker)]
        for worker in over:
            self.running.remove(worker)
            self.board.end(worker.run.digest)
            worker.pipe.close()
            worker.process.join()
        return [(worker.run, worker.result or self._without_a_word(worker)) for worker in over]

    def _listen(self, worker: _Worker) -> bool:
        """Take in what a process has told; False after its end."""
        try:
            while worker.pipe.poll():
                kind, *values = json.loads(worker.pipe.recv_bytes())
                if kind == "say":
                    self.say(*values)
                elif kind == "begin":
                    self.board.begin(worker.run.digest, *values)
                elif kind == "step":
                    self.board.update(worker.run.digest, *values)
                else:
                    worker.result = Result(*values)
        except (EOFError, OSError):
            return False
        return True

    def _without_a_word(self, worker: _Worker) -> Result:
        """The result of a process that ended without telling one."""
        code = worker.process.exitcode or 0
        if self.stopping:
            return Result("stopped")
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            reason = f"its process was ended by {name}{hint}; the same command goes on from its last checkpoint"
            return Result("failed", reason)
        return Result("failed", f"its process ended with exit code {code} and without a message")


def _context() -> ForkServerContext | SpawnContext:
    """How processes are started: on Linux by a server that has imported what every run needs, which saves each of them
    about three seconds of a core; elsewhere anew."""
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hybridlab.runs.workers", "torch._dynamo"])  # optimizers import the latter
    return context


# ---- in the process of a run ----


class _Told(Progress):
    """Progress that is told to the parent process."""

    def __init__(self, send: Send, title: str, total: int, tokens_per_step: int, done: int, quiet: bool) -> None:
        super().__init__(title, total, tokens_per_step, done, quiet=True)
        self.send, self.told = send, 0.0
        send("begin", title, total, tokens_per_step, done)

    def update(self, step: int, loss: float, *more: Any) -> None:
        """Tell the step, several times a second at most."""
        now = time.monotonic()
        if step >= self.total or now - self.told >= _SECONDS_BETWEEN_REPORTS:
            self.told = now
            self.send("step", step, loss, *more)

    def say(self, text: str) -> None:
        """A line above the bar: the parent prints it."""
        self.send("say", f"{self.title}: {text}")


def _work(text: str, pipe: Connection) -> None:
    """Train one run. text: the settings of `Workers.start` as JSON."""
    import torch

    from hybridlab.config.schema import RunConfig

    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _interrupt)
    settings: dict[str, Any] = json.loads(text)
    send = partial(_send, pipe)
    for reference in settings["plugins"]:
        plugins.load_plugin(reference)
    torch.set_num_threads(settings["threads"])
    try:
        config = RunConfig.model_validate_json(json.dumps(settings["config"]))
        check_hash(config, settings["hash"])
        folder, runs, show = RunFolder(Path(settings["folder"])), Runs(Path(settings["runs"])), partial(_Told, send)
        plans = [Stamp(**stamp) for stamp in settings["plans"]]
        result = attempt(config, folder, runs, settings["title"], partial(send, "say"), True, show, plans)
    except Interrupted as stop:
        result = Result("stopped", str(stop))
    except UserError as error:
        result = Result("failed", str(error))
    with suppress(Interrupted):  # a parent that is gone
        send("end", result.status, result.reason)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM outside the training loop: end at once; files are written whole or not at all."""
    raise Interrupted("stopped between two steps", number)


def _send(pipe: Connection, *message: Any) -> None:
    """Tell the parent. If it is gone, stop as if it had asked for it: after this step, with a checkpoint."""
    try:
        pipe.send_bytes(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        os.kill(os.getpid(), signal.SIGTERM)
