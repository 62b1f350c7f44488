"""What a queue would train, and what that costs, without training or writing anything."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.files import read_text
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.runs.budget import with_examples
from hybridlab.runs.queue import default_jobs, run_before_all, threads_by_run
from hybridlab.runs.queued_run import QueuedRun, check_runs, queued, run_flops
from hybridlab.runs.record import Record, read_record, record_name
from hybridlab.training.machine import describe_machine, pick_device, pick_precision
from hybridlab.training.store.results import listed

_WEIGHT, _CHECKPOINT = 4, 12
"""Bytes of a parameter in final/, and in a checkpoint, which also has the two moments of each."""


def preview(
    pending: dict[str, tuple[str, RunConfig]],
    runs_dir: Path,
    results_dir: Path,
    jobs: int | None,
    places: Mapping[str, str] = {},
) -> dict[str, Any]:
    """runs: of each its state, and the steps, tokens, training FLOPs, minutes and disk bytes that are still to come.
    total: their sums, None where a part is unknown; its minutes and its largest disk bytes are those of the whole queue
    with `jobs` at once.

    Minutes come from runs of the same shape that this machine has trained with as many threads. places: see
    `QueuedRun`. UserError for a run that could not start.
    """
    runs = queued(pending, runs_dir, places=places)
    left = [run for run in runs.values() if not run.finished()]
    check_runs(left, prepare=False)
    jobs = max(1, min(jobs or default_jobs(left), len(left)))
    threads_of_all = threads_by_run(left, jobs) if jobs > 1 else {}
    speeds = Speeds([*listed(results_dir, record_name("*")), *runs_dir.glob("*/record.json")])
    by_run = {run.digest: _threads(run, threads_of_all.get(run.digest)) for run in runs.values()}
    rows = [_row(run, by_run[run.digest], speeds) for run in runs.values()]
    threads = sorted({by_run[run.digest] for run in left}) or [torch.get_num_threads()]
    estimate = (
        f"Minutes are estimates for training alone, from {speeds.used} runs of the same shape on such a machine."
        if speeds.used
        else "Minutes are unknown: no run of the same shape was trained here with as many threads."
    )
    total = _total(rows, runs, jobs)
    return {
        "runs": rows,
        "total": total,
        "jobs": jobs,
        "threads": threads[0] if len(threads) == 1 else f"{threads[0]} to {threads[-1]}",
        "estimate": estimate if left else "Nothing is left to train.",
    }


def _row(run: QueuedRun, threads: int, speeds: Speeds) -> dict[str, Any]:
    training = run.config.training
    done, steps = run.finished(), run.steps_left()
    before = training.steps - steps
    state = "done" if done else f"resume at {before}" if before > run.config.begins_after else "new"
    if not done and run.folder.trained_elsewhere():
        state = "in training"
    flops, minutes = cost_of(run.config, threads, speeds, steps / training.steps)
    disk, disk_in_training = (0, 0) if done else _disk_bytes(run.config)
    return {
        "name": run.name,
        "hash": run.digest,
        "state": state,
        "steps": steps,
        "tokens": steps * training.tokens_per_step,
        "flops": flops,
        "minutes": 0.0 if done else minutes,
        "disk_bytes": disk,
        "disk_bytes_in_training": disk_in_training,
    }


def cost_of(config: RunConfig, threads: int, speeds: Speeds, share: float = 1.0) -> tuple[float | None, float | None]:
    """Training FLOPs and minutes of a run, None where they are not known. share: of its steps."""
    flops, rate = run_flops(config), speeds.flops_per_second(config, threads)
    flops = None if flops is None else flops * share
    return flops, None if rate is None or flops is None else flops / rate / 60


def _threads(run: QueuedRun, beside_others: int | None) -> int:
    """beside_others: the threads that the queue gives it; None if it trains in this process."""
    pinned = (run.folder.info() or {}).get("threads")
    return run.config.runtime.threads or pinned or beside_others or torch.get_num_threads()


def _disk_bytes(config: RunConfig) -> tuple[int, int]:
    """The size of the run's folder when it has finished, and the largest one while it trains."""
    structure, runtime = final_structure(with_examples(config)), config.runtime
    parameters = count_parameters(structure.shape, structure.plan).total
    stay = set(runtime.keep_steps) | ({config.training.steps} if runtime.keep_optimizer else set())
    finished = (_WEIGHT + _CHECKPOINT * len(stay)) * parameters
    return finished, (_WEIGHT + _CHECKPOINT * (runtime.keep_checkpoints + len(runtime.keep_steps))) * parameters


def _total(rows: list[dict[str, Any]], runs: dict[str, QueuedRun], jobs: int) -> dict[str, Any]:
    """Sums over the runs that are not done. The minutes are those of a run that all others wait for, and of the others:
    at least those of the longest chain of runs that start from each other."""
    left = [row for row in rows if row["state"] != "done"]
    total: dict[str, Any] = {"runs": len(left)}
    for name in ("steps", "tokens", "flops", "disk_bytes"):
        values = [row[name] for row in left]
        total[name] = None if None in values else sum(values)
    more = sorted((row["disk_bytes_in_training"] - row["disk_bytes"] for row in left), reverse=True)
    total["disk_bytes_in_training"] = total["disk_bytes"] + sum(max(0, bytes_) for bytes_ in more[:jobs])
    minutes = {row["hash"]: row["minutes"] for row in rows}
    if None in minutes.values():
        return total | {"minutes": None}
    alone = run_before_all({digest: run for digest, run in runs.items() if not run.finished()})
    before = minutes.pop(alone) if alone is not None else 0.0
    chain: dict[str, float] = {}
    for digest in minutes:  # parents come first
        parents = (chain[parent] for parent in runs[digest].parents if parent in chain)
        chain[digest] = minutes[digest] + max(parents, default=0.0)
    return total | {"minutes": before + max(sum(minutes.values()) / jobs, *chain.values(), 0.0)}


def _without_none(values: Any) -> Any:
    """Settings, on every level, without those that are None."""
    if not isinstance(values, dict):
        return values
    return {name: _without_none(value) for name, value in values.items() if value is not None}


class Speeds:
    """Speeds of finished runs. used: the largest number of runs that an answer came from."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.used = 0
        self.records: list[Record] = []
        machine = json.dumps(platform.platform())
        for path in paths:
            try:
                # The text alone shows which records are of other machines, much faster than to check all of it.
                same = not path.name.startswith("benchmark-") and machine in read_text(path)
                record = read_record(path) if same else None
            except (UserError, OSError, ValueError):
                continue  # a damaged record tells no speed
            if record is not None and record.status == "finished" and record.seconds:
                self.records.append(record)

    def flops_per_second(self, config: RunConfig, threads: int) -> float | None:
        """The median over runs of the same shape, sequence length and precision, compiled or not, with as many threads
        on this machine, or, in records without a host, on one of the same description; None if there is none."""
        device = pick_device(config.runtime.device)
        machine = {**describe_machine(device), "threads": threads}
        precision = pick_precision(config.training.precision, device)
        shape = _without_none(config.shape.to_json())
        rates = {
            record.hash: record.flops / record.seconds
            for record in self.records
            if record.host in (None, platform.node())
            and all(record.machine.get(key) == value for key, value in machine.items())
            and (record.precision, record.compile) == (precision, bool(config.runtime.compile))
            # Records of older versions lack settings that are None since.
            and _without_none(record.config["shape"]) == shape
            and record.config["training"]["seq_len"] == config.training.seq_len
        }
        self.used = max(self.used, len(rates))
        return statistics.median(rates.values()) if rates else None
