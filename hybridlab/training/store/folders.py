"""Run folders: their files, the lock of the process that trains there, and the search for runs by name or hash.

runs/<hash>/  run.json  metrics.jsonl  record.json  checkpoints/  final/  (best/)  (masks.json)

checkpoints/ goes when a run has finished, unless `runtime.keep_optimizer` or `runtime.keep_steps` is set.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from hybridlab.config.schema import RunConfig
from hybridlab.config.shown import differing
from hybridlab.errors import UserError, nearest
from hybridlab.files import DIGESTS, make_folder, read_object, user_path, write_json
from hybridlab.plugins import plugin_places, require_plugins

CHECKPOINT = "step-"
"""How the names of checkpoints begin; the step follows."""
_TRIES, _SECONDS_BETWEEN_TRIES = 4, 0.05
"""For a lock that is held only for a moment, because another process looks whether it is free."""


class Busy(UserError):
    """Another process trains in a run folder."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, which may not have started yet."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def best(self) -> Path:
        """The weights of the lowest validation loss, if the run keeps them."""
        return self.path / "best"

    @property
    def checkpoint_steps(self) -> list[int]:
        """The steps of its complete checkpoints, in order."""
        return sorted(step_of(path.parent) for path in self.checkpoints.glob(f"{CHECKPOINT}*/{DIGESTS}"))

    def info(self) -> dict[str, Any] | None:
        """The content of run.json; None if no run has started here."""
        return self._read("run.json", ("hash", "config", "data_fingerprint", "precision"))

    @property
    def digest(self) -> str:
        """The hash of the run in this folder; UserError if there is none."""
        return self.started()["hash"]

    def started(self) -> dict[str, Any]:
        """The content of run.json; UserError if no run has started here."""
        info = self.info()
        if info is None:
            raise UserError(f"{self.path}: no run.json, so this is not a run folder; give the folder of a run")
        return info

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write one of the JSON files of the run, instead of an older one."""
        write_json(self.path / name, content)

    def relabel(self, label: dict[str, Any]) -> None:
        """Replace `name` and `tags` in run.json, and in record.json if the run has ended; see `Label.applied`."""
        for name, content in (("run.json", self.started()), ("record.json", self.record())):
            if content is not None and content | label != content:
                self.write(name, content | label)

    def record(self) -> dict[str, Any] | None:
        """The content of record.json; None if the run has not ended."""
        return self._read("record.json", ("status", "hash"))

    def _read(self, name: str, required: tuple[str, ...]) -> dict[str, Any] | None:
        try:
            return read_object(self.path / name, "file of a run", required, "restore it, or remove the run folder")
        except FileNotFoundError:
            return None

    def finished(self) -> bool:
        """Whether the run has done all its steps and its record is written."""
        record = self.record()
        return record is not None and record["status"] == "finished" and self.info() is not None

    def unfinished_in_words(self) -> str:
        """Its path, and that it has not finished or, if it has ended, why it failed."""
        record = self.record()
        if record is None or record["status"] == "finished":
            return f"{self.path}: this run has not finished"
        reason = (record.get("reason") or "for a reason that is not known").removeprefix(f"{self.path}: ")
        return f"{self.path}: this run failed ({reason})"

    def config(self) -> RunConfig:
        """The configuration of the run in this folder."""
        info = self.started()
        self.require_plugins(exact=False)
        try:
            return RunConfig.model_validate_json(json.dumps(info["config"]))
        except (KeyError, ValueError):
            raise UserError(
                f"{self.path}/run.json: it was written by another version of hybridlab; use that version"
            ) from None

    def require_plugins(self, exact: bool = True) -> None:
        """UserError, with what to load, unless the plug-ins of the run are there; in the same versions if `exact`."""
        info = self.started()
        versions = info["config"].get("plugins") if isinstance(info["config"], dict) else None
        require_plugins(versions, info.get("plugin_places", {}), self.path, exact)

    def claim(self, digest: str, config: RunConfig, pinned: dict[str, Any]) -> dict[str, Any]:
        """Write run.json into an empty folder, or check that the folder belongs to this run; returns run.json.

        digest: the hash of the configuration. pinned: facts fixed at the first start (precision, data fingerprint …),
        written to run.json.
        """
        info = self.info()
        if info is None:
            # A first start that was killed may have left a lock or a temporary run.json.
            if any(not p.name.startswith((".lock", ".run.json.")) for p in self.path.iterdir()):
                raise UserError(f"{self.path}: the folder is not empty and holds no run; choose another --run-dir")
            info = {"hash": digest, "config": config.model_dump(mode="json"), **pinned}
            if config.plugins:
                info["plugin_places"] = plugin_places(config.plugins)
            self.write("run.json", info)
            return info
        if info["hash"] != digest:
            self.require_plugins()
            raise UserError(
                f"{self.path}: the folder holds another run ({info['hash']}), which differs in "
                f"{_difference(info['config'], config)}; choose another --run-dir"
            )
        if info["data_fingerprint"] != pinned["data_fingerprint"]:
            raise UserError(
                f"{self.path}: the data has changed since this run was started (its fingerprint differs); "
                "restore it, or start a new run in another --run-dir"
            )
        return info

    def part_of(self, name: str) -> Path:
        """A folder for what becomes a file of this one; a kill may leave it, and `remove_leftovers` removes it."""
        return self.path / f".{name}.partial"

    def remove_leftovers(self) -> None:
        """Remove parts of files and folders that a kill left behind. Only for the process that holds the lock."""
        for path in (*self.path.glob(".*.partial"), *self.checkpoints.glob(".*.partial")):
            shutil.rmtree(path)
        for name in ("run.json", "record.json", "masks.json", "metrics.jsonl"):
            for path in self.path.glob(f".{name}.*"):
                path.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this folder; Busy if another process holds it and so trains here."""
        lock = self.path / ".lock"
        made = [path for path in (lock, self.path) if not path.exists()]
        with self._take(lock):
            try:
                yield
            finally:
                # Made for a run that did not start.
                for path in made if not (self.path / "run.json").exists() else ():
                    if path.is_file():
                        path.unlink()
                    elif path.is_dir() and not any(path.iterdir()):
                        path.rmdir()

    def _take(self, lock: Path) -> IO[str]:
        """The open and locked file; Busy if it stays locked by another process."""
        tries = 0
        while True:
            make_folder(self.path)
            try:
                file = lock.open("a")
            except FileNotFoundError:  # the process before has just removed the unused folder
                continue
            if not _lock_now(file):
                file.close()
                tries += 1
                if tries == _TRIES:
                    raise Busy(
                        f"{self.path}: another process is training in this folder; "
                        "wait until it has finished, or choose another --run-dir"
                    )
                time.sleep(_SECONDS_BETWEEN_TRIES)
            else:
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                        return file
                file.close()  # the process before has removed it with its unused folder: a lock on it means nothing

    def trained_elsewhere(self) -> bool:
        """Whether another process holds the lock of this folder at this moment."""
        try:
            with (self.path / ".lock").open("r") as file:
                return not _lock_now(file, fcntl.LOCK_SH)
        except OSError:
            return False


def _lock_now(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file until it is closed; False if another process holds its lock."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def keeps_optimizer(setting: bool | str | None, hooks: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a finished run keeps its newest checkpoint. setting: its `runtime.keep_optimizer`. hooks: the results of
    its hooks."""
    if setting == "unsettled":
        return any(results.get("settled") is False for results in hooks.values())
    return bool(setting)


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint, by the name of its folder."""
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def part_of_run(reference: str) -> tuple[str, str | None]:
    """The run, and `final` or `best` for a reference to one of its models: RUN/final, RUN/best."""
    path = user_path(reference)
    named = len(path.parts) > 1 or Path("run.json").is_file()
    if path.name not in ("final", "best") or not named or (path / "run.json").is_file():
        return reference, None
    return reference.rstrip("/").removesuffix(path.name).rstrip("/") or ".", path.name


@dataclass(frozen=True)
class Runs:
    """Where runs are searched: the folders in `directory`, and `places`: hash → folder of runs elsewhere."""

    directory: Path
    places: dict[str, str] = field(default_factory=dict)

    def find(self, reference: str) -> RunFolder:
        """A run by its hash in `places`, its folder, or, in `directory`, by its name or the start of its hash.

        RUN/final and RUN/best name the same run. UserError if there is none, or more than one.
        """
        reference = part_of_run(reference)[0]
        if reference in self.places:
            folder = RunFolder(Path(self.places[reference]))
            if (folder.info() or {}).get("hash") == reference:
                return folder
        path = user_path(reference)
        if (path / "run.json").is_file():
            self.check_unambiguous(reference, path)
            return RunFolder(path)
        known = list(self.all())
        matches = [entry for entry in known if reference in (entry.digest, *entry.names)]
        matches = matches or [entry for entry in known if reference and entry.digest.startswith(reference)]
        if len(matches) == 1:
            return RunFolder(matches[0].path)
        if matches:
            folders = ", ".join(str(entry.path) for entry in matches[:3]) + (" …" if len(matches) > 3 else "")
            raise UserError(f"run {reference!r}: {len(matches)} runs match ({folders}); give more digits or the folder")
        if (self.directory / reference / "run.json").is_file():
            # Its files are damaged; whoever reads them says which.
            return RunFolder(self.directory / reference)
        names = [name for entry in known for name in entry.names if name != entry.digest]
        raise UserError(
            f"run {reference!r}: neither a run folder nor the start of the hash or the name of a run in "
            f"{self.directory}; {nearest(reference, names, '`hybridlab runs` lists them')}"
        )

    def check_unambiguous(self, reference: str, path: Path) -> None:
        """UserError if a reference without `/`, which is the folder `path`, is also the name of another run."""
        if Path(reference).name != reference:
            return
        for entry in self.all():
            if reference in entry.names and entry.path.resolve() != path.resolve():
                raise UserError(
                    f"run {reference!r}: the folder ./{reference} and the run in {entry.path} are both called so; "
                    f"write ./{reference} or {entry.path}"
                )

    def check_name(self, name: str, folder: RunFolder) -> None:
        """UserError if another run in `directory` has this name."""
        for entry in self.all():
            if name in entry.names and entry.path.resolve() != folder.path.resolve():
                raise UserError(
                    f"--name {name}: another run has this name ({entry.path}); choose another name, or give that run "
                    f"another one with `hybridlab runs rename {entry.path} NAME`"
                )

    def finished(self, reference: str) -> RunFolder:
        """As `find`, but UserError if the run has not finished, so that no other run can start from it."""
        folder = self.find(reference)
        if not folder.finished():
            advice = "finish it before starting from it"
            if folder.record() is not None:
                advice = "train it again with other settings before starting from it"
            raise UserError(f"{folder.unfinished_in_words()}; {advice}")
        return folder

    def all(self) -> Iterator[KnownRun]:
        """Every readable run; skips damaged ones."""
        for path in sorted(self.directory.glob("*/run.json")):
            try:
                stat = path.stat()
                yield _known(path.parent, stat.st_ino, stat.st_mtime_ns)
            except (OSError, UserError):
                continue


@dataclass(frozen=True)
class KnownRun:
    """A run as it is searched for."""

    path: Path
    digest: str
    names: tuple[str, ...]
    """The name that it was given, and its folder's."""


@lru_cache(maxsize=4096)
def _known(path: Path, _inode: int, _modified: int) -> KnownRun:
    """The run in a folder. Inode and time of its run.json are part of the cache key; each change has another inode."""
    info = RunFolder(path).started()
    return KnownRun(path, info["hash"], tuple(filter(None, (info.get("name"), path.name))))


def _difference(old: dict[str, Any], config: RunConfig) -> str:
    """The first two settings that differ between a configuration in run.json and this one, in words."""
    not_hashed = ("runtime", "arch", "size")
    changed = differing(config.model_dump(mode="json"), old)
    shown = [
        f"{name} ({there!r} there, {here!r} here)"
        for name, (here, there) in changed.items()
        if name.split(".")[0] not in not_hashed
    ]
    return " and ".join(shown[:2]) or "the version of hybridlab's numerics"


# ---- names and tags, and how a run was started, which its hash does not cover ----

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIKE_A_HASH = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True)
class Label:
    """The name and tags that a person gives a run. name: None leaves the name as it is. UserError if one is not valid.

    A name or tag has letters, digits and `-_.`, and begins with a letter or a digit. A name is not also the possible
    start of a hash, because a run is found by either.
    """

    name: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = [("--name", self.name)] if self.name is not None else []
        for option, word in [*named, *(("--tag", tag) for tag in self.tags)]:
            if not _WORD.fullmatch(word):
                raise UserError(
                    f"{option} {word!r}: use at most 64 letters, digits and the signs - _ . and begin with a letter "
                    "or a digit"
                )
        if self.name is not None and _LIKE_A_HASH.fullmatch(self.name):
            raise UserError(
                f"--name {self.name}: it could be the start of a run's hash, which has only the digits 0-9 and a-f; "
                f"use a name with another letter or sign, such as run-{self.name}"
            )

    def applied(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The entries `name` and `tags` of run.json after this label is given: a new name, and more tags."""
        tags = [*(facts.get("tags") or []), *self.tags]
        return {"name": self.name or facts.get("name"), "tags": list(dict.fromkeys(tags))}


UNLABELLED = Label()


def start_facts() -> dict[str, str]:
    """Time (UTC), host and command line of this process, as they are written into run.json at a run's first start."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "hybridlab") or "python"
    command = shlex.join([program, *sys.argv[1:]]).encode("utf-8", "replace").decode()
    return {"started": datetime.now(UTC).isoformat(timespec="seconds"), "host": platform.node(), "command": command}
