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

from hybridlab.config.resolve import resolve
from hybridlab.config.shown import differing
from hybridlab.errors import UserError, nearest
from hybridlab.runs.record import Record, read_record
from hybridlab.runs.samples import NOTE as NOTE_ON_SAMPLES
from hybridlab.runs.samples import compare_samples
from hybridlab.statistics import paired_difference, resolved
from hybridlab.training.store.cleaning import size_of
from hybridlab.training.store.folders import Label, RunFolder, Runs
from hybridlab.training.store.metrics import last_numbers

State = Literal["training", "unfinished", "failed", "finished", "damaged"]
STATES: tuple[State, ...] = ("training", "unfinished", "failed", "finished", "damaged")


@dataclass(frozen=True)
class RunRow:
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


def catalogue(directory: Path) -> list[RunRow]:
    """A row for every run in a folder of runs, newest first. UserError if there is no such folder."""
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such folder of runs; train a first run, or give --runs-dir")
    rows = [row_of(RunFolder(path)) for path in sorted(directory.iterdir()) if holds_a_run(path)]
    return sorted_by(rows, "age")


def holds_a_run(path: Path) -> bool:
    """Whether a folder is one of a run, whole or damaged; not one in which no run has started."""
    return (path / "run.json").exists() or ((path / ".lock").exists() and (path / "final").is_dir())


def row_of(folder: RunFolder) -> RunRow:
    """The row of one run; a run that cannot be read has the state `damaged` and the reason."""
    disk = size_of(folder.path)
    try:
        info, record = folder.started(), folder.record()
        return _row(folder, info, record, disk)
    except UserError as error:
        return RunRow(folder.path, "damaged", reason=str(error), age=_seconds_since(folder, None), disk=disk)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        reason = f"{folder.path}: run.json or record.json was written by another version of hybridlab"
        return RunRow(folder.path, "damaged", reason=reason, age=_seconds_since(folder, None), disk=disk)


def _row(folder: RunFolder, info: dict[str, Any], record: dict[str, Any] | None, disk: int) -> RunRow:
    config = info["config"]
    results = (record or {}).get("results") or {}
    measured = results.get("validation", {}).get("loss", {}).get("value")
    names = ("step", "loss") if measured is not None else ("step", "loss", "validation_loss")
    last = last_numbers(folder.path / "metrics.jsonl", names)
    return RunRow(
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
_ORDERS: dict[str, Callable[[RunRow], Any]] = {
    "age": lambda row: _or_last(row.age),
    "disk": lambda row: -row.disk,
    "loss": lambda row: _or_last(row.loss),
    "name": lambda row: (row.name is None, row.name),
    "step": lambda row: -(row.step or 0),
    "validation": lambda row: _or_last(row.validation),
}


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


def sorted_by(rows: Iterable[RunRow], order: str) -> list[RunRow]:
    """Newest, largest, lowest loss, first name, most steps or lowest validation loss first; unknown values last."""
    if order not in _ORDERS:
        raise UserError(f"--sort {order}: there is no such order; {nearest(order, list(_ORDERS))}")
    return sorted(rows, key=_ORDERS[order])


def filtered(
    rows: Iterable[RunRow],
    state: str | None = None,
    arch: str | None = None,
    size: str | None = None,
    tags: Iterable[str] = (),
    name: str | None = None,
    since: str | None = None,
) -> list[RunRow]:
    """The rows that fit all filters. arch, size, name: patterns with `*` and `?`. since: as in `2d`, or a date."""
    if state is not None and state not in STATES:
        raise UserError(f"--state {state}: there is no such state; {nearest(state, list(STATES))}")
    youngest = math.inf if since is None else _age_of(since)
    tags = list(tags)

    def fits(row: RunRow) -> bool:
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


# ---- one run ----
# hybridlab runs show base

_FROM_RECORD = (
    *("machine", "git", "libraries", "tokens", "flops", "seconds", "tokens_per_second", "redone_steps"),
    *("evaluation_seconds", "parameters", "model", "events", "results", "hooks"),
)


def record_of(folder: RunFolder) -> Record | None:
    """The record of a run that has ended."""
    return read_record(folder.path / "record.json")


def details(folder: RunFolder, runs: Runs) -> dict[str, Any]:
    """A run with its start, costs, results, relatives, checkpoints (their steps), disk and own settings, as JSON;
    unknown values are None."""
    info, record, row = folder.started(), record_of(folder), row_of(folder)
    facts = {name: info.get(name) for name in ("host", "command", "precision", "data_fingerprint")}
    facts["compile"] = bool(info.get("compile"))
    ended = {} if record is None else record.model_dump(mode="json")
    return {
        **row.to_json(),
        **facts,
        **{name: ended.get(name) for name in _FROM_RECORD},
        **relatives(row, info.get("places", {}), runs),
        "checkpoints": folder.checkpoint_steps,
        "disk_parts": disk_parts(folder),
        "own_settings": own_settings(info["config"]),
    }


def relatives(row: RunRow, places: dict[str, str], runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """parents: the runs (or Hugging Face folders) that it started from or took masks or entropies from. children: the
    runs in the folder of runs that did so with this one."""
    rows = catalogue(runs.directory) if runs.directory.is_dir() else []
    by_hash = {run.hash: run for run in rows}
    parents = []
    for digest in row.parents:
        parent = by_hash.get(digest)
        path = places[digest] if parent is None else parent.path
        parents.append({"hash": digest, "name": parent and parent.name, "path": str(path)})
    children = [{"hash": run.hash, "name": run.name, "path": str(run.path)} for run in rows if row.hash in run.parents]
    return {"parents": parents, "children": children}


def disk_parts(folder: RunFolder) -> dict[str, int]:
    """Bytes of the run's checkpoints, its models, its log, and everything else."""
    parts = {"checkpoints": "checkpoints", "final": "final", "best": "best", "log": "metrics.jsonl"}
    sizes = {name: size_of(folder.path / path) for name, path in parts.items() if (folder.path / path).exists()}
    return {**sizes, "other": size_of(folder.path) - sum(sizes.values())}


def own_settings(config: dict[str, Any]) -> dict[str, Any] | None:
    """Dotted name → value of the settings that differ from those of the run's arch and size; None if these presets are
    not known here."""
    try:
        usual = resolve(config["arch"], config["size"]).model_dump(mode="json")
    except UserError:
        return None
    return {name: value for name, (value, _) in differing(config, usual).items()}


# ---- several runs side by side ----
# hybridlab runs compare base stage2

NOTE = (
    "± is the standard error over validation windows, of one run each: it tells whether two models differ on this "
    "text, and nothing about other seeds; for these use `hybridlab ablate --seeds`"
)
COSTS = ("tokens", "flops", "seconds", "tokens_per_second")


def compare(folders: list[RunFolder], samples: bool = False) -> dict[str, Any]:
    """Two or more runs as JSON. settings: dotted name → a value for each run. losses: of each run; from
    the second one on with `_against`. samples: whether to compare answers too, see `compare_samples`."""
    if len(folders) < 2 or len({folder.path.resolve() for folder in folders}) < len(folders):
        raise UserError("runs compare: give two or more different runs")
    rows, records = [row_of(folder) for folder in folders], [record_of(folder) for folder in folders]
    names = [row.name or str(row.hash)[:8] for row in rows]
    compared = list(zip(names, records, strict=True))[1:] if samples else []
    answers = [compare_samples(records[0], record, (names[0], name)) for name, record in compared]
    return {
        "runs": [{"hash": row.hash, "name": row.name, "path": str(row.path), "state": row.state} for row in rows],
        "settings": differing(*(folder.started()["config"] for folder in folders)),
        "costs": [_costs(row, record) for row, record in zip(rows, records, strict=True)],
        "losses": [_loss(records[0]), *(_loss(record) | _against(records[0], record) for record in records[1:])],
        "note": NOTE,
    } | ({"samples": answers, "note_on_samples": NOTE_ON_SAMPLES} if samples else {})


def _costs(row: RunRow, record: Record | None) -> dict[str, Any]:
    """The steps so far; the other costs are known once the run has ended."""
    costs = {name: None if record is None else getattr(record, name) for name in COSTS}
    return {"parameters": None if record is None else record.parameters["total"], "steps": row.step, **costs}


def _loss(record: Record | None) -> dict[str, Any]:
    """The validation loss at the end of a run; None if it has no results."""
    return {"loss": record.results.validation.loss.model_dump() if record and record.results else None}


def _against(first: Record | None, record: Record | None) -> dict[str, Any]:
    """difference: this run − the first one, over the same windows. resolved: whether it is further from 0 than twice
    its standard error. not_compared: the reason if there is no difference."""
    measured = [r.results.validation.windows if r and r.results else [] for r in (record, first)]
    if not first or not record or not all(measured):
        return _not_compared("one of the two has no validation loss")
    if record.data.fingerprint != first.data.fingerprint:
        return _not_compared("their data differ")
    # The weights of a mixture choose how many windows of each source are measured.
    weights = [[source.weight for source in r.data.sources or ()] for r in (record, first)]
    if weights[0] != weights[1]:
        return _not_compared("the weights of their sources differ")
    lengths = [r.config["training"]["seq_len"] for r in (record, first)]
    if lengths[0] != lengths[1]:
        return _not_compared(f"their windows have {lengths[0]:,} and {lengths[1]:,} tokens")
    if len(measured[0]) != len(measured[1]):
        return _not_compared(f"they were measured on {len(measured[0]):,} and {len(measured[1]):,} windows")
    difference = paired_difference(*measured)
    return {"difference": difference.model_dump(), "resolved": resolved(difference), "not_compared": None}


def _not_compared(reason: str) -> dict[str, Any]:
    return {"difference": None, "resolved": None, "not_compared": reason}


# ---- names and tags ----


def relabel(reference: str, label: Label, runs: Runs, without: Iterable[str] = ()) -> list[str]:
    """Give a run a name and tags, and take the tags `without` away; returns its tags. UserError for a tag it lacks."""
    folder = runs.find(reference)
    if label.name is not None:
        runs.check_name(label.name, folder)
    facts = label.applied(folder.started())
    for tag in without:
        if tag not in facts["tags"]:
            raise UserError(
                f"--remove {tag}: {folder.path} has no such tag; it has {', '.join(facts['tags']) or 'none'}"
            )
        facts["tags"].remove(tag)
    folder.relabel(facts)
    return facts["tags"]
