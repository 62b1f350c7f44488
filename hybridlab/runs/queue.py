"""Queues of runs, parents first: each is trained, resumed, or skipped if finished; failures do not stop the queue.

With one job the runs are trained in this process, one after the other; with more, each in a process of its own. A run
that another process trains is put back, and its result is used once it has finished.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from hybridlab import plugins
from hybridlab.config.schema import RunConfig
from hybridlab.errors import Interrupted, RunFailed, UserError
from hybridlab.messages import heard_by, say
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.plan.plan import Plan
from hybridlab.runs.cluster import Cluster, in_order, submit
from hybridlab.runs.queued_run import QueuedRun, Result, check_runs, queued, run_flops
from hybridlab.runs.record import Stamp, save_record
from hybridlab.runs.run import finished_record
from hybridlab.training.machine import SMALL, cpu_cores, pick_device
from hybridlab.training.progress import Board, Progress, clock
from hybridlab.training.ranks import Ranks, start
from hybridlab.training.stopping import StopRequest
from hybridlab.training.store.jobs import JobFiles

# ---- several runs at once, each in a process of its own ----
# A process tells its parent in lines of JSON over a pipe what it says, how far it is, and how it ended. Signals reach
# the parent only, which passes them on: each process then finishes its step and writes a checkpoint.

_SECONDS_BETWEEN_REPORTS = 0.2
_SECONDS_OF_A_WAIT = 0.2
_SIGNALLED = 128

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

    def __init__(self, jobs: int, threads: Callable[[str], int], board: Board) -> None:
        self.jobs, self.threads, self.board = jobs, threads, board
        self.running: list[_Worker] = []
        self.stopping = False

    def close(self) -> None:
        """Kill what still runs: only after an error or a second signal."""
        for worker in self.running:
            worker.process.kill()
            worker.process.join()

    @property
    def full(self) -> bool:
        return len(self.running) >= self.jobs

    def start(self, run: QueuedRun) -> None:
        """Start a process for a run."""
        context = _context()
        mine, its = context.Pipe(duplex=False)
        settings = {"run": run.to_json(), "threads": self.threads(run.digest), "plugins": plugins.loaded()}
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
                    say(*values)
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
    context.set_forkserver_preload(["hybridlab.runs.queue", "torch._dynamo"])  # optimizers import the latter
    return context


# ---- in the process of a run ----


class _ProgressToParent(Progress):
    """Progress that is told to the parent process."""

    def __init__(self, send: Send, title: str, total: int, tokens_per_step: int, done: int) -> None:
        super().__init__(title, total, tokens_per_step, done)
        self.send, self.told = send, 0.0
        send("begin", title, total, tokens_per_step, done)

    def update(self, step: int, loss: float, *more: Any) -> None:
        """Tell the step, several times a second at most."""
        now = time.monotonic()
        if step >= self.total or now - self.told >= _SECONDS_BETWEEN_REPORTS:
            self.told = now
            self.send("step", step, loss, *more)


def _work(text: str, pipe: Connection) -> None:
    """Train one run. text: the settings of `Workers.start` as JSON."""
    import torch

    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _interrupt)
    settings: dict[str, Any] = json.loads(text)
    send = partial(_send, pipe)
    for reference in settings["plugins"]:
        plugins.load_plugin(reference)
    torch.set_num_threads(settings["threads"])
    try:
        run = QueuedRun.from_json(settings["run"])
        with heard_by(partial(send, "say")):
            result = run.attempt(partial(_ProgressToParent, send))
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


# ---- the queue ----

_SECONDS_BETWEEN_LOOKS = 1.0
"""While only runs are left that other processes train."""
_WORTH_PROCESSES = 5e11
"""Training FLOPs of a queue: about ten seconds on one core. Below that, starting processes takes what it saves."""


@dataclass(frozen=True)
class Deadline:
    """When a queue ends, and how long its runs take by their estimates. at: by `time.monotonic`. seconds: hash → of a
    run that is started now; one without an estimate is started, and stopped when the time is over."""

    at: float
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.at - time.monotonic()


@dataclass
class Outcome:
    """finished: names of finished runs. failed: name → reason. left: names of those that a cluster trains. late: of
    those for which there was not enough time."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    def raise_failures(self, of: str) -> None:
        """RunFailed with the name and the reason of every run that failed. of: what the runs belong to."""
        if self.failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failed.items())
            raise RunFailed(f"{len(self.failed)} of the runs of {of} failed: {reasons}")


class OneByOne:
    """Trains one run after the other, with the interface of `Workers`: a run has ended when `start` returns. attempt:
    trains a run."""

    def __init__(self, attempt: Callable[[QueuedRun], Result]) -> None:
        self.attempt = attempt
        self.over: list[tuple[QueuedRun, Result]] = []

    @property
    def full(self) -> bool:
        return bool(self.over)

    def start(self, run: QueuedRun) -> None:
        self.over.append((run, self.attempt(run)))

    def ended(self) -> list[tuple[QueuedRun, Result]]:
        over, self.over = self.over, []
        return over


def in_ranks(ranks: Ranks, results_dir: Path, run: QueuedRun) -> Result:
    """Train or resume a run in processes that share it; see `QueuedRun.attempt`. Interrupted after a signal."""
    files = JobFiles(run.runs_dir)
    facts = {"results_dir": str(results_dir.resolve()), "plugins": plugins.loaded(), "wait": ranks.wait, "result": None}
    file = files.write(run.digest, {"run": run.to_json(), **facts})
    try:
        code = start(ranks, run.runs_dir / "ranks", ["hybridlab.runs.job", str(file)])
        lost = f"its ranks ended with exit code {code}"
    except RunFailed as failure:
        code, lost = 1, str(failure)
    if code > _SIGNALLED:
        raise Interrupted("stopped in all ranks", code - _SIGNALLED)
    # What all ranks have agreed on holds, even if one of them died on its way out.
    values = files.read(run.digest)["result"]
    return Result(*values) if values else Result("failed", lost)


def run_all(
    pending: dict[str, tuple[str, RunConfig]],
    runs_dir: Path,
    results_dir: Path,
    jobs: int | Ranks | Cluster | None = 1,
    finished: Callable[[str], None] = lambda _: None,
    plans: Mapping[str, Sequence[Stamp]] = {},
    places: Mapping[str, str] = {},
    deadline: Deadline | None = None,
) -> Outcome:
    """Train runs given as hash → (name, configuration), with parents before children. Finished runs are skipped; a run
    that fails does not stop the others, except for its children.

    jobs: the number of runs at once; None: see `default_jobs`; ranks, which share one run after the other; a cluster,
    on which each run becomes a job. finished: is called with the hash of each run whose record has been written. plans:
    of the experiments that need each run, by its hash. places: see `QueuedRun`. deadline: then all runs write a
    checkpoint and the queue ends; for a number of jobs alone. UserError for a run that cannot start, before the
    first one trains. Interrupted after a signal, when every run has written a checkpoint.
    """
    runs = queued(pending, runs_dir, plans, places)
    left = [run for run in runs.values() if not run.finished()]
    check_runs(left)
    queue = _Queue(runs, results_dir, finished, deadline)
    if isinstance(jobs, Cluster):
        queue.collect()
        if queue.outcome.left:
            submit(left, runs_dir, results_dir, jobs)
        return queue.outcome
    if isinstance(jobs, Ranks):
        queue.work_through(OneByOne(partial(in_ranks, jobs, results_dir)))
        return queue.outcome
    if jobs is None:
        jobs = default_jobs(left)
    jobs = max(1, min(jobs, len(left)))
    if jobs == 1 and deadline is None:
        queue.work_through(OneByOne(QueuedRun.attempt))
        return queue.outcome
    at_once = f"{jobs} runs at once" if jobs > 1 else "one run after the other"
    say(f"training {at_once}; Ctrl-C stops all of them, each with a checkpoint")
    with (
        StopRequest() as stop,
        Board(queue.steps_all) as board,
        closing(Workers(jobs, threads_by_run(left, jobs).__getitem__, board)) as workers,
    ):
        queue.in_progress = board.progress
        queue.work_through(workers, stop)
    return queue.outcome


class _Queue:
    """The runs that wait, and what became of the others."""

    def __init__(
        self,
        runs: dict[str, QueuedRun],
        results_dir: Path,
        finished: Callable[[str], None] = lambda _: None,
        deadline: Deadline | None = None,
    ) -> None:
        self.runs, self.results_dir = runs, results_dir
        self.finished, self.deadline = finished, deadline
        self.waiting, self.running = dict(runs), 0
        self.failed: dict[str, str] = {}
        self.told: set[str] = set()
        self.stopping = False
        self.outcome = Outcome()
        self.started, self.work_done = time.monotonic(), 0.0
        steps_left = {run.digest: run.steps_left() for run in runs.values()}
        self.steps_all = sum(steps_left.values())
        self.work = _work_of(runs, steps_left)
        self.work_all = sum(self.work.values())
        self.in_progress: Callable[[], dict[str, float]] = dict
        """Hash → share done, of the runs that train in other processes."""

    def work_through(self, crew: OneByOne | Workers, stop: StopRequest | None = None) -> None:
        """Train everything; with `stop`, look for a signal on the way."""
        while self.waiting or self.running:
            if stop is not None and stop.requested:
                self._stop(crew, stop.requested)
            self._take_finished()
            if self.deadline is not None and self._out_of_time(crew, self.deadline):
                break
            started = self._start_ready(crew)
            for run, result in crew.ended():
                self.running -= 1
                self._note(run, result)
            if not started and not self.running and self.waiting:
                self._wait_for_others()

    def collect(self) -> None:
        """Keep the records of runs that have finished; the others are left to a cluster."""
        self._take_finished()
        self.outcome.left = [run.name for run in self.waiting.values()]

    def _take_finished(self) -> None:
        """Note the runs that need no training, and those that cannot be trained."""
        for run in list(self.waiting.values()):
            lost = next((self.failed[parent] for parent in run.parents if parent in self.failed), None)
            if lost is not None:
                del self.waiting[run.digest]
                self._note(run, Result("failed", f"the run it starts from failed ({lost})"))
            elif run.finished() and not run.folder.trained_elsewhere():
                del self.waiting[run.digest]
                result = run.attempt()
                if result.status != "finished":
                    self._note(run, result)
                    continue
                self._keep(run)
                self.work_all -= self.work[run.digest]

    def _start_ready(self, crew: OneByOne | Workers) -> bool:
        """Start runs whose parents have finished, as many as the crew takes; whether there was one."""
        before = self.running
        for run in list(self.waiting.values()):
            if crew.full:
                break
            ready = all(parent not in self.runs or self.runs[parent].finished() for parent in run.parents)
            if ready and not run.folder.trained_elsewhere():
                del self.waiting[run.digest]
                self.running += 1
                crew.start(run)
        return self.running > before

    def _note(self, run: QueuedRun, result: Result) -> None:
        """What became of a run that was tried."""
        if result.status == "stopped" and not self.stopping:
            # Somebody ended this one process; what waits for the run would wait forever.
            reason = f"its process was stopped ({result.reason or 'by a signal'}); the same command goes on with it"
            result = Result("failed", reason)
        if result.status == "busy":
            self.waiting[run.digest] = run
        elif result.status == "failed":
            self.outcome.failed[run.name], self.failed[run.digest] = result.reason, run.name
            say(f"{run.title}: failed: {result.reason}")
        elif result.status == "stopped":
            say(f"{run.title}: {result.reason or 'stopped'}")
            self.outcome.late += [run.name] if self.deadline is not None else []
        else:
            self.work_done += self.work[run.digest]
            number = len(self.outcome.finished) + len(self.failed) + 1
            say(f"{run.title}: done, {number} of {run.total} runs, about {clock(self._seconds_left())} left")
            self._keep(run)

    def _keep(self, run: QueuedRun) -> None:
        """Write the record of a finished run."""
        save_record(finished_record(run.folder), self.results_dir)
        self.outcome.finished.append(run.name)
        self.finished(run.digest)

    def _seconds_left(self) -> float:
        """From the speed of this queue so far; runs of other shapes count by their FLOPs."""
        begun = sum(share * self.work[digest] for digest, share in self.in_progress().items())
        seconds = time.monotonic() - self.started
        return seconds / max(self.work_done + begun, 1e-9) * (self.work_all - self.work_done - begun)

    def _wait_for_others(self) -> None:
        """Nothing can start: the runs that could are being trained by other processes."""
        elsewhere = [run for run in self.waiting.values() if run.folder.trained_elsewhere()]
        for run in elsewhere:
            if run.digest not in self.told:
                self.told.add(run.digest)
                say(f"{run.title}: waiting for this run, which another process trains ({run.folder.path})")
        time.sleep(_SECONDS_BETWEEN_LOOKS if elsewhere else 0)

    def _out_of_time(self, crew: OneByOne | Workers, deadline: Deadline) -> bool:
        """Leave the runs that could not finish in time, and those that start from them; whether the time is over, when
        all have stopped."""
        over, late = deadline.left <= 0, set[str]()
        for run in list(self.waiting.values()):
            if over or deadline.seconds.get(run.digest, 0.0) > deadline.left or late & {*run.parents}:
                del self.waiting[run.digest]
                late.add(run.digest)
                self.outcome.late.append(run.name)
        if over and self.running:
            say(f"the time is over: {self.running} runs finish their step and write a checkpoint")
            self._stop_running(crew)
        return over

    def _stop(self, crew: OneByOne | Workers, number: int) -> None:
        """End the queue after signal `number`: Interrupted once the running runs have stopped."""
        say(f"stopping: {self.running} runs finish their step and write a checkpoint")
        stopped = self._stop_running(crew)
        text = f"{stopped} runs stopped, {len(self.outcome.finished)} of {len(self.runs)} have finished"
        raise Interrupted(text, number)

    def _stop_running(self, crew: OneByOne | Workers) -> int:
        """Stop the running runs, and wait for them; returns how many these were."""
        assert isinstance(crew, Workers), "in this process the training loop itself takes the signal"
        self.stopping = True
        crew.stop()
        stopped = self.running
        while self.running:
            for run, result in crew.ended():
                self.running -= 1
                self._note(run, result)
        return stopped


def _work_of(runs: dict[str, QueuedRun], steps_left: dict[str, int]) -> dict[str, float]:
    """hash → training FLOPs still to do; steps, where the FLOPs of a run are not known."""
    flops = {digest: run_flops(run.config) for digest, run in runs.items() if steps_left[digest]}
    shares = {digest: steps_left[digest] / run.config.training.steps for digest, run in runs.items()}
    if None in flops.values():
        return {digest: float(steps) for digest, steps in steps_left.items()}
    return {digest: shares[digest] * (flops.get(digest) or 0.0) for digest in runs}


# ---- how many at once ----


def default_jobs(left: Iterable[QueuedRun]) -> int:
    """The number of runs at once on this machine: its cores divided by the threads of each run.

    One where that gains nothing: on a GPU, in a queue whose runs all start from each other, or one of a few seconds.
    """
    runs = {run.digest: run for run in left}
    if not runs or any(pick_device(run.config.runtime.device).type != "cpu" for run in runs.values()):
        return 1
    if sum(run_flops(run.config) or 0 for run in runs.values()) < _WORTH_PROCESSES:
        return 1
    threads = max(threads_of(run.config, cpu_cores()) for run in runs.values())
    return max(1, min(cpu_cores() // threads, max(map(len, in_order(runs.values())))))


def threads_of(config: RunConfig, jobs: int) -> int:
    """Threads of a run beside others: its `runtime.threads`, else one for a small model, else its share of the
    cores."""
    if config.runtime.threads is not None:
        return config.runtime.threads
    if count_parameters(config.shape, Plan.plain(config.shape.layers)).total < SMALL:
        return 1
    return max(1, cpu_cores() // jobs)


def threads_by_run(left: Iterable[QueuedRun], jobs: int) -> dict[str, int]:
    """hash → threads of each run. One that all others start from trains alone, with the threads of all jobs."""
    runs = {run.digest: run for run in left}
    threads = {digest: threads_of(run.config, jobs) for digest, run in runs.items()}
    alone = run_before_all(runs)
    if alone is not None and runs[alone].config.runtime.threads is None:
        threads[alone] = max(threads[alone], min(cpu_cores(), jobs * threads[alone]))
    return threads


def run_before_all(runs: dict[str, QueuedRun]) -> str | None:
    """The run that all others of a queue start from, directly or not; None if there is none, or no other."""
    first: dict[str, str] = {}
    for digest, run in runs.items():  # parents come first
        first[digest] = next((first[parent] for parent in run.parents if parent in first), digest)
    roots = set(first.values())
    return roots.pop() if len(roots) == 1 and len(runs) > 1 else None
