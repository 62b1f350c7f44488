"""Runs as jobs of a cluster: submitit gives them to Slurm, and the command that submits them ends at once.

    hybridlab reproduce sgt-table1 --scale small --launcher slurm --partition gpu --gpus-per-node 8 --time 24:00:00

RUNS-DIR/jobs/HASH.json has what a job needs to train the run, and the number of its job; jobs write their output beside
it. A run is submitted once: not again while its job waits or runs, and not when it has finished. Runs that start from
others wait until the jobs of these have ended. A job that is preempted, or reaches its time limit, gets a signal two
minutes before, writes a checkpoint, and is queued again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hybridlab import plugins
from hybridlab.errors import UserError
from hybridlab.messages import say
from hybridlab.runs.record import read_record
from hybridlab.training.ranks import WAIT
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.jobs import JobFiles

if TYPE_CHECKING:
    from hybridlab.runs.queued_run import QueuedRun

_SECONDS_BEFORE = 120
"""Between the signal and the end of a job."""
_REQUEUES = 1000
_TIME = re.compile(
    r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:\d+)?)?|(?P<h>\d+):(?P<m>\d+):\d+|(?P<alone>\d+)(:\d+)?"
)
_WAITING = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD")
_IN_WORDS = {
    "OUT_OF_MEMORY": "out of memory; ask for more with --slurm mem=64G, or set runtime.micro_batch_rows",
    "TIMEOUT": "reached its time limit and could not be queued again; the same command goes on from its checkpoint",
    "PREEMPTED": "preempted; the same command goes on from its checkpoint",
    "CANCELLED": "cancelled; the same command goes on from its checkpoint",
    "NODE_FAIL": "its node failed; the same command goes on from its checkpoint",
}


@dataclass(frozen=True)
class Cluster:
    """Where jobs run. system: `slurm`, or `local` for processes of this machine, as tests use it. time: of one job, as
    Slurm writes it. at_once: how many jobs of an array run at the same time. more: options of sbatch, as NAME=VALUE."""

    system: Literal["slurm", "local"] = "slurm"
    partition: str | None = None
    nodes: int = 1
    gpus_per_node: int = 0
    time: str = "24:00:00"
    at_once: int = 256
    more: tuple[str, ...] = ()

    @property
    def minutes(self) -> int:
        """`time` in minutes; UserError for what Slurm would not read."""
        match = _TIME.fullmatch(self.time)
        if match is None:
            raise UserError(f"--time {self.time}: write MINUTES, HH:MM:SS or DAYS-HH:MM:SS, such as 24:00:00")
        parts = {name: int(part or 0) for name, part in match.groupdict().items()}
        hours = parts["days"] * 24 + parts["hours"] + parts["h"]
        if not (total := hours * 60 + parts["minutes"] + parts["m"] + parts["alone"]):
            raise UserError(f"--time {self.time}: a job needs a minute at least")
        return total


class Training:
    """What a job does: run a command that trains. A signal of the cluster ends it with a checkpoint, after which the
    job is queued again; submitit asks for that by `checkpoint`."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: int | None = None

    def __call__(self) -> None:
        # Slurm sends the signal to the command as well, which waits for the one that `checkpoint` sends.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            self.process = subprocess.Popen(self.command).pid
        finally:
            signal.signal(signal.SIGUSR2, before)
        if code := self._ended():
            raise SystemExit(code)

    def _ended(self) -> int:
        """Wait for the command; its exit code. Unlike `Popen.wait`, a signal's handler may call it during a call."""
        assert self.process is not None, "it has been started"
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def checkpoint(self) -> Any:
        """Stop the command, which saves its state, and ask for another start."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            with suppress(ProcessLookupError, ChildProcessError):  # it has ended by itself
                os.kill(self.process, signal.SIGTERM)
                self._ended()
        return DelayedSubmission(Training(self.command))


def submit(left: Sequence[QueuedRun], runs_dir: Path, results_dir: Path, cluster: Cluster) -> list[str]:
    """Submit the runs that have not finished, in arrays: first those that start from no other one of these, then those
    that start from them. Returns the numbers of the jobs. UserError where the cluster does not take them."""
    files = JobFiles(runs_dir)
    executor = _executor(files.folder, cluster)
    waiting = _waiting(files, left, cluster)
    numbers, before = [], sorted({number.partition("_")[0] for number in waiting.values()})
    for runs in in_order([run for run in left if run.digest not in waiting]):
        common = {"results_dir": str(results_dir.resolve()), "plugins": plugins.loaded(), "wait": WAIT, "job": ""}
        paths = [files.write(run.digest, {"run": run.to_json(), **common}) for run in runs]
        if cluster.system == "slurm" and before:
            executor.update_parameters(slurm_dependency="afterany:" + ":".join(before))
        try:
            with executor.batch():
                jobs = [executor.submit(Training(_command(path, cluster))) for path in paths]
        except Exception as error:
            raise UserError(
                f"the cluster took no job: {(str(error).strip().splitlines() or [type(error).__name__])[-1]}"
            ) from None
        for run, job in zip(runs, jobs, strict=True):
            files.write(run.digest, {"job": job.job_id})
        numbers += [job.job_id for job in jobs]
        before = sorted({job.job_id.partition("_")[0] for job in jobs})
        if cluster.system == "local":  # which knows no dependencies
            for job in jobs:
                job.wait()
    already = f"; {len(waiting)} more wait or run already" if waiting else ""
    say(f"submitted {len(numbers)} jobs{already}; `hybridlab runs --jobs` shows them, and the same command collects")
    return numbers


def _command(file: Path, cluster: Cluster) -> list[str]:
    """The command of a job: one process, or a rank for each GPU of all nodes."""
    if cluster.nodes * cluster.gpus_per_node < 2:
        return [sys.executable, "-m", "hybridlab.runs.job", str(file)]
    head = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    torchrun = f"{shlex.quote(sys.executable)} -m torch.distributed.run --nnodes {cluster.nodes} --nproc-per-node"
    options = f"{cluster.gpus_per_node} --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID --rdzv-endpoint {head}:29517"
    return ["bash", "-c", f"exec {torchrun} {options} -m hybridlab.runs.job {shlex.quote(str(file))}"]


def _executor(folder: Path, cluster: Cluster) -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError("--launcher slurm needs submitit; pip install 'hybridlab[cluster]'") from None
    if cluster.system == "slurm" and shutil.which("sbatch") is None:
        raise UserError("--launcher slurm: there is no sbatch here; give the command on a login node of the cluster")
    executor = submitit.AutoExecutor(folder, cluster=cluster.system, slurm_max_num_timeout=_REQUEUES)
    executor.update_parameters(timeout_min=cluster.minutes, name="hybridlab")
    if cluster.system == "local":
        return executor
    further = dict(option.partition("=")[::2] for option in cluster.more)
    executor.update_parameters(
        nodes=cluster.nodes,
        tasks_per_node=1,
        gpus_per_node=cluster.gpus_per_node or None,
        slurm_partition=cluster.partition,
        slurm_array_parallelism=cluster.at_once,
        slurm_signal_delay_s=_SECONDS_BEFORE,
        slurm_additional_parameters=further,
    )
    return executor


def in_order(left: Iterable[QueuedRun]) -> list[list[QueuedRun]]:
    """Runs by their distance from those that start from no other one of these."""
    depth: dict[str, int] = {}
    levels: list[list[QueuedRun]] = []
    for run in left:  # parents come first
        level = depth[run.digest] = max((depth[parent] + 1 for parent in run.parents if parent in depth), default=0)
        if level == len(levels):
            levels.append([])
        levels[level].append(run)
    return levels


# ---- what became of jobs ----


@dataclass(frozen=True)
class Job:
    """A job. state: as the cluster says it, in small letters; `finished` where the run has its record. reason: why it
    waits or has ended."""

    run: str
    name: str
    number: str
    state: str
    reason: str = ""


def jobs(runs_dir: Path) -> list[Job]:
    """All jobs of a folder of runs, the last one of each run."""
    files = JobFiles(runs_dir)
    states, listed = _states(files), []
    for digest, content in files.all().items():
        if (number := content.get("job")) is None:  # ranks of this machine
            continue
        state, reason = _state(RunFolder(runs_dir / digest), files.folder, number, states)
        listed.append(Job(digest, content["run"]["name"], number, state, reason))
    return listed


def _state(folder: RunFolder, jobs: Path, number: str, states: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if folder.finished():
        return "finished", ""
    if number in states:
        state, reason = states[number]
        return state.lower().replace("_", " "), _IN_WORDS.get(state, reason)
    record = read_record(folder.path / "record.json") if folder.path.is_dir() else None
    if record is not None and record.status != "finished":
        return "failed", record.reason or ""
    lines = [line for log in sorted(jobs.glob(f"{number}_*_log.err")) for line in log.read_text().splitlines()]
    errors = [line for line in lines if line.startswith(("error:", "failed:", "interrupted:"))]
    return "ended", errors[-1] if errors else "its output ends without an error; the same command submits it again"


def _waiting(files: JobFiles, left: Sequence[QueuedRun], cluster: Cluster) -> dict[str, str]:
    """Hash → number of the job, of the runs whose jobs wait or run."""
    if cluster.system == "local":
        return {}
    states, numbers = _states(files), {}
    for run in left:
        number = files.read(run.digest).get("job", "")
        if states.get(number, ("", ""))[0] in _WAITING:
            numbers[run.digest] = number
    return numbers


def _states(files: JobFiles) -> dict[str, tuple[str, str]]:
    """Number of a job → its state and reason, of those that Slurm still knows: from its queue, and from its accounts
    where it keeps any."""
    numbers = [content.get("job", "") for content in files.all().values()]
    if not any(numbers) or shutil.which("squeue") is None:
        return {}
    ended = _table("sacct", "-X", "-n", "-P", "-o", "JobID,State,Reason", "-j", ",".join(filter(None, numbers)))
    queued = _table("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r")
    return {number: (state.split()[0], "" if reason == "None" else reason) for number, state, reason in ended + queued}


def _table(*command: str) -> list[tuple[str, str, str]]:
    """What a command of Slurm prints, in lines of three parts; nothing where accounts are not kept. UserError where the
    queue does not answer, since a job in it would be taken for lost."""
    if shutil.which(command[0]) is None:
        return []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and command[0] == "squeue":
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UserError(f"squeue: Slurm's queue does not answer ({why[0]}); write the same command again when it does")
    rows = [line.split("|") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3 and row[1]]
