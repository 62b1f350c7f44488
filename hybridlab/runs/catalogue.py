"""What runs there are: one row for each folder of a run, read from its small files. No torch.

hybridlab runs --state finished --sort loss
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from hybridlab.errors import UserError, nearest
from hybridlab.training.folders import RunFolder
from hybridlab.training.metrics import last_numbers

State = Literal["training", "unfinished", "failed", "finished", "damaged"]
STATES: tuple[State, ...] = ("training", "unfinished", "failed", "finished", "damaged")


@dataclass(frozen=True)
class Row:
    """One run. What is not known or not measured is None.

    state: `training` while a process holds the lock of the folder; `damaged` if its files cannot be read. reason: why
    it failed or is damaged. step: optimizer steps done, of `steps`. loss: of the last logged step; validation: at the
    end, or the last one that was logged. started: ISO 8601. age: seconds since then, by the time of the folder's first
    file for older runs. disk: bytes of all files. parents: hashes.
    """

    path: Path
    state: State
    reason: str | None = None
    hash: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    arch: str | None = None
    size: str | None = None
    seed: int | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    validation: float | None = None
    started: str | None = None
    age: float | None = None
    disk: int = 0
    parents: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def catalogue(directory: Path) -> list[Row]:
    """A row for every run in a folder of runs, newest first. UserError if there is no such folder."""
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such folder of runs; train a first run, or give --runs-dir")
    rows = [row_of(RunFolder(path)) for path in sorted(directory.iterdir()) if holds_a_run(path)]
    return sorted_by(rows, "age")


def holds_a_run(path: Path) -> bool:
    """Whether a folder is one of a run, whole or damaged; not one in which no run has started."""
    return (path / "run.json").exists() or ((path / ".lock").exists() and (path / "final").is_dir())


def row_of(folder: RunFolder) -> Row:
    """The row of one run; a run that cannot be read has the state `damaged` and the reason."""
    disk = size_of(folder.path)
    try:
        info, record = folder.started(), folder.record()
        return _row(folder, info, record, disk)
    except UserError as error:
        return Row(folder.path, "damaged", reason=str(error), age=_seconds_since(folder, None), disk=disk)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        reason = f"{folder.path}: run.json or record.json was written by another version of hybridlab"
        return Row(folder.path, "damaged", reason=reason, age=_seconds_since(folder, None), disk=disk)


def _row(folder: RunFolder, info: dict[str, Any], record: dict[str, Any] | None, disk: int) -> Row:
    config = info["config"]
    results = (record or {}).get("results") or {}
    measured = results.get("validation", {}).get("loss", {}).get("value")
    wanted = ("step", "loss") if measured is not None else ("step", "loss", "validation_loss")
    last = last_numbers(folder.path / "metrics.jsonl", wanted)
    return Row(
        path=folder.path,
        state=_state(folder, record),
        reason=(record or {}).get("reason"),
        hash=info["hash"],
        name=info.get("name") or (None if folder.path.name == info["hash"] else folder.path.name),
        tags=tuple(info.get("tags") or ()),
        arch=config["arch"],
        size=config["size"],
        seed=config["training"]["seed"],
        step=int(last["step"]) if "step" in last else 0,
        steps=config["training"]["steps"],
        loss=last.get("loss"),
        validation=last.get("validation_loss") if measured is None else measured,
        started=info.get("started"),
        age=_seconds_since(folder, info.get("started")),
        disk=disk,
        parents=tuple(info.get("places", {})),
    )


def _state(folder: RunFolder, record: dict[str, Any] | None) -> State:
    if folder.trained_elsewhere():
        return "training"
    if record is None:
        return "unfinished"
    return "finished" if record["status"] == "finished" else "failed"


def size_of(path: Path) -> int:
    """Bytes of all files in a folder, or of one file. Files that vanish meanwhile count as 0."""
    total = 0
    for file in [path, *path.rglob("*")]:
        try:
            total += file.lstat().st_size if not file.is_dir() else 0
        except OSError:
            continue
    return total


def _seconds_since(folder: RunFolder, started: str | None) -> float | None:
    """Seconds since the first start. The lock is made at the start and never written to again."""
    if started is not None:
        return (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds()
    for name in (".lock", "run.json"):
        if (folder.path / name).exists():
            return datetime.now(UTC).timestamp() - (folder.path / name).stat().st_mtime
    return None


# ---- filters and order ----

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_ORDERS: dict[str, Callable[[Row], Any]] = {
    "age": lambda row: _or_last(row.age),
    "disk": lambda row: -row.disk,
    "loss": lambda row: _or_last(row.loss),
    "name": lambda row: (row.name is None, row.name),
    "step": lambda row: -(row.step or 0),
    "validation": lambda row: _or_last(row.validation),
}


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


def sorted_by(rows: Iterable[Row], order: str) -> list[Row]:
    """Newest, largest, lowest loss, first name, most steps or lowest validation loss first; unknown values last."""
    if order not in _ORDERS:
        raise UserError(f"--sort {order}: there is no such order; {nearest(order, list(_ORDERS))}")
    return sorted(rows, key=_ORDERS[order])


def filtered(
    rows: Iterable[Row],
    state: str | None = None,
    arch: str | None = None,
    size: str | None = None,
    tags: Iterable[str] = (),
    name: str | None = None,
    since: str | None = None,
) -> list[Row]:
    """The rows that fit all filters. arch, size, name: patterns with `*` and `?`. since: as in `2d`, or a date."""
    if state is not None and state not in STATES:
        raise UserError(f"--state {state}: there is no such state; {nearest(state, list(STATES))}")
    youngest = math.inf if since is None else _age_of(since)
    tags = list(tags)

    def fits(row: Row) -> bool:
        patterns = ((row.arch, arch), (row.size, size), (row.name, name))
        return (
            (state is None or row.state == state)
            and all(pattern is None or fnmatchcase(value or "", pattern) for value, pattern in patterns)
            and all(tag in row.tags for tag in tags)
            and (row.age is None or row.age <= youngest)
        )

    return [row for row in rows if fits(row)]


def _age_of(since: str) -> float:
    """Seconds from `2d`, `90m`, or from a date (local time) until now."""
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", since)
    try:
        if written:
            return timedelta(**{_UNITS[written[2]]: float(written[1])}).total_seconds()
        return (datetime.now(UTC) - datetime.fromisoformat(since).astimezone()).total_seconds()
    except (ValueError, OverflowError):
        raise UserError(
            f"--since {since}: write a time such as 90m, 12h, 2d, 1w, or a date such as 2026-01-31"
        ) from None
