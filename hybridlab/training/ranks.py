"""Starting the ranks of a run with torch's elastic agent, and joining them: what torchrun does, from one command.

hybridlab pretrain --steps 300 --ranks 2                       # ranks of this machine
torchrun --nproc-per-node 8 --nnodes 4 -m hybridlab pretrain --steps 300
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from hybridlab.errors import RunFailed, UserError
from hybridlab.files import make_folder
from hybridlab.messages import heard_by, say, silent

WAIT = 600
"""Seconds for which a rank waits for the others."""
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_SECONDS_TO_STOP = 600
_LAST_LINES = 3
_SECONDS_FOR_THE_FIRST = 5.0
_TOO_LONG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(.*?OpType=_?(\w+),.*?Timeout\(ms\)=(\d+)"
)
_BY_NCCL = re.compile(r"^.*?\] (Process group watchdog thread terminated with exception: .*)", re.MULTILINE)
"""What NCCL's watchdog writes before it aborts its process, from a thread of its own: no Python sees the error. Where
all but one rank waited, that one is late."""


def started() -> int:
    """The number of ranks that an agent has started, of which this process is one; 0 if none has."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 0


@contextmanager
def joined(wait: int) -> Iterator[None]:
    """A context in which the processes that an agent has started are the ranks of one world, see training/world.py; of
    these the first one is heard. Without an agent it does nothing. wait: seconds for which a rank waits for the others.
    """
    if not started():
        yield
        return
    import torch
    from torch import distributed as dist

    settings: dict[str, Any] = {}
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        # With its device, NCCL connects here, where it can say what is wrong, and not in the first step.
        settings = {"backend": "cpu:gloo,cuda:nccl", "device_id": device}
    dist.init_process_group(timeout=timedelta(seconds=wait), **settings)
    first = dist.get_rank() == 0
    try:
        with nullcontext() if first else heard_by(silent):
            yield
    except Exception:
        # Most mistakes end every rank, and once the first one has said it the agent ends the others. What only another
        # rank has found is said a little later.
        if not first:
            time.sleep(_SECONDS_FOR_THE_FIRST)
        raise
    # Not after an error: the others may not come.
    dist.destroy_process_group()


@dataclass(frozen=True)
class Ranks:
    """So many processes of this machine. restarts: how often all of them are started again, from the last checkpoint,
    after one has died. wait: see `joined`."""

    number: int
    restarts: int = 0
    wait: int = WAIT


def start(ranks: Ranks, logs: Path, command: Sequence[str]) -> int:
    """Run a Python module with its arguments in several processes, until all have ended; returns its exit code.

    The first rank uses this terminal; the output of each other one goes to files below `logs`. RunFailed if ranks died
    more often than they may be started again.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from hybridlab.training.machine import cpu_cores

    if ranks.number > (cores := cpu_cores()):
        raise UserError(f"--ranks {ranks.number}: this machine has {cores} cores; use at most as many ranks")
    os.environ.setdefault("OMP_NUM_THREADS", str(cores // ranks.number))
    # Else ranks that are started again meet in the store of those before, and find the addresses of the dead.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # The agent's own lines are about itself; what went wrong is said below.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    make_folder(logs)
    specs = DefaultLogsSpecs(str(logs), dict.fromkeys(range(1, ranks.number), Std.ALL))
    # torch 2.11 cannot be told how long a rank may write its last checkpoint; there it is ended after 30 seconds.
    known = {field.name for field in fields(LaunchConfig)}
    patience: dict[str, Any] = {"shutdown_timeout": _SECONDS_TO_STOP} if "shutdown_timeout" in known else {}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks.number,
        run_id=uuid4().hex[:12],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=ranks.restarts,
        logs_specs=specs,
        **patience,
    )
    try:
        elastic_launch(config, sys.executable)("-m", *command)
    except SignalException as stop:
        return 128 + stop.sigval
    except ChildFailedError as failed:
        return _exit_code(failed, Path(specs.root_log_dir))
    return 0


def _exit_code(failed: object, logs: Path) -> int:
    """The exit code of a command whose ranks have failed: that of the rank which failed first."""
    failures = failed.failures  # type: ignore[attr-defined]
    first = min(failures, key=lambda rank: (failures[rank].exitcode in _STOPPED, failures[rank].timestamp))
    code = failures[first].exitcode
    said_by_first = 0 in failures and failures[0].exitcode == code > 0  # in this terminal: a mistake ends every rank
    if code in _STOPPED or said_by_first:
        return int(code)
    # What each rank has written to standard error at its last start; the first one writes to the terminal.
    written = {int(file.parent.name): file.read_text(errors="replace") for file in sorted(logs.rglob("stderr.log"))}
    waited = {rank: found for rank, text in written.items() if (found := _TOO_LONG.search(text))}
    how = f"rank {first} was ended by {signal.Signals(-code).name}" if code < 0 else ""
    if code == -signal.SIGABRT and waited:
        operation, milliseconds = next(iter(waited.values())).groups()
        late = ", ".join(map(str, sorted(written.keys() - waited.keys()))) or "0"
        how = f"NCCL ended the ranks that waited {int(milliseconds) / 1000:g} seconds for rank {late} in {operation}"
    else:
        text = written.get(failures[first].local_rank, "").strip()
        for line in _BY_NCCL.findall(text)[:1] or text.splitlines()[-_LAST_LINES:]:
            say(f"rank {first}: {line}")
    if code < 0:
        raise RunFailed(f"{how}; the same command goes on from the last checkpoint, and --max-restarts does so itself")
    return int(code)
