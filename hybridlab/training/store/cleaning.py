"""What can be removed from a folder of runs: optimizer states of finished runs, and what killed processes left.

Weights (final/), records and logs stay, and so does everything of a run that a process trains. No torch.

    hybridlab runs clean --dry-run
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.messages import say
from hybridlab.training.store.folders import CHECKPOINT, RunFolder, keeps_optimizer, step_of

_UNFINISHED = re.compile(r"\..+\.([0-9a-f]{8}|partial)")
"""Names of files and folders that had not yet got their final names when their process ended."""
_HOUR = 3600.0


@dataclass(frozen=True)
class Item:
    """A file or folder that can go. run: the folder of the run whose lock is held while it is removed."""

    kind: str
    path: Path
    bytes: int
    run: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": str(self.path), "bytes": self.bytes}


def removable(directory: Path, kept: bool = False, data: bool = False) -> list[Item]:
    """Everything that can go from a folder of runs.

    kept: also optimizer states of finished runs that were asked to keep them. data: also prepared data that no run
    here was trained on.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: there is no such folder of runs; give --runs-dir")
    items = [
        Item(kind, path, size_of(path), folder.path)
        for folder in (RunFolder(path) for path in sorted(directory.iterdir()) if path.is_dir())
        if not folder.trained_elsewhere()
        for kind, path in _candidates(folder, kept)
    ]
    return [*items, *(_data(directory) if data else ())]


def _candidates(folder: RunFolder, kept: bool) -> Iterator[tuple[str, Path]]:
    """What can go from one folder: its kind and path; nothing if the run cannot be read."""
    try:
        info, record = folder.info(), folder.record()
    except UserError:
        return
    if info is None:
        # What a start leaves that was killed before run.json was written.
        left = ((path.is_file(), path.name) for path in folder.path.iterdir())
        ours = all(file and (name == ".lock" or name.startswith(".run.json.")) for file, name in left)
        if ours and (folder.path / ".lock").exists():
            yield "folder in which no run started", folder.path
        return
    ended = record is not None and record["status"] == "finished" and folder.checkpoints.is_dir()
    runtime: dict[str, Any] = {}
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # records of older versions do not say
        if not kept and record is not None:
            said = dict(record["config"]["runtime"])
            keeps = keeps_optimizer(said.get("keep_optimizer"), record.get("hooks") or {})
            runtime = said | {"keep_optimizer": keeps}
    gone = _not_kept(folder, runtime) if ended else []
    yield from (("optimizer state of a finished run", path) for path in gone)
    for place in (folder.path, folder.final, folder.checkpoints):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if _UNFINISHED.fullmatch(path.name) and path.parent not in gone:
                yield "left by a killed process", path


def _not_kept(folder: RunFolder, runtime: dict[str, Any]) -> list[Path]:
    """The checkpoints of a finished run that its settings do not keep; the folder of all of them if none is kept."""
    steps = folder.checkpoint_steps
    stay = set(runtime.get("keep_steps", [])) | ({steps[-1]} if steps and runtime.get("keep_optimizer") else set())
    if not stay & set(steps):
        return [] if runtime.get("keep_optimizer") else [folder.checkpoints]
    return [path for path in sorted(folder.checkpoints.glob(f"{CHECKPOINT}*")) if step_of(path) not in stay]


def _data(directory: Path) -> Iterator[Item]:
    """Prepared data that no run of the folder was trained on, and what was left half prepared.

    Younger than an hour, it may belong to a run that is just being started, and stays. UserError for a damaged run,
    which does not say what it was trained on.
    """
    started = [RunFolder(path.parent).started() for path in directory.glob("*/run.json")]
    used = {info["data_fingerprint"] for info in started}
    used |= {fingerprint for info in started for fingerprint in info.get("source_fingerprints", [])}
    folder = directory / "data"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.is_dir() or time.time() - path.stat().st_mtime < _HOUR:
            continue
        if path.name.startswith(".") and path.name.endswith(".partial"):
            yield Item("half prepared data", path, size_of(path))
        elif (path / "meta.json").is_file():
            with suppress(UserError):
                if read_object(path / "meta.json", "data folder").get("fingerprint") in used:
                    continue
            yield Item("prepared data that no run here uses", path, size_of(path))


def remove(items: list[Item]) -> list[Item]:
    """Remove the items; returns those that are gone. One that is in use by now, or has changed, is left and named."""
    gone = []
    for item in items:
        try:
            _remove(item)
        except UserError as error:
            say(f"left: {error}")
        else:
            gone.append(item)
    return gone


def _remove(item: Item) -> None:
    if item.run is None:
        shutil.rmtree(item.path, ignore_errors=True)
        return
    folder = RunFolder(item.run)
    with folder.locked():
        # Another process may have started here since the list was made.
        if all((item.kind, item.path) not in _candidates(folder, kept) for kept in (False, True)):
            raise UserError(f"{item.path}: the run has changed meanwhile")
        if item.path.is_file():
            item.path.unlink()
        else:
            shutil.rmtree(item.path)


def size_of(path: Path) -> int:
    """Bytes of all files in a folder, or of one file. Files that vanish meanwhile count as 0."""
    total = 0
    for file in [path, *path.rglob("*")]:
        try:
            total += file.lstat().st_size if not file.is_dir() else 0
        except OSError:
            continue
    return total
