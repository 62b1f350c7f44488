"""Run folders: their files, the lock of the process that trains there, and the search for runs by hash.

runs/<hash>/  run.json  metrics.jsonl  record.json  checkpoints/  final/  (masks.json)
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json


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

    def config(self) -> RunConfig:
        """The configuration of the run in this folder."""
        info = self.started()
        try:
            return RunConfig.model_validate_json(json.dumps(info["config"]))
        except (KeyError, ValueError):
            raise UserError(
                f"{self.path}/run.json: it was written by another version of hybridlab; use that version"
            ) from None

    def claim(self, config: RunConfig, pinned: dict[str, Any]) -> dict[str, Any]:
        """Write run.json into an empty folder, or check that the folder belongs to this run; returns run.json.

        pinned: facts fixed at the first start (precision, data fingerprint …), written to run.json.
        """
        info = self.info()
        if info is None:
            # A first start that was killed may have left a lock or a temporary run.json.
            if any(not p.name.startswith((".lock", ".run.json.")) for p in self.path.iterdir()):
                raise UserError(f"{self.path}: the folder is not empty and holds no run; choose another --run-dir")
            info = {"hash": run_hash(config), "config": config.model_dump(mode="json"), **pinned}
            write_json(self.path / "run.json", info)
            return info
        if info["hash"] != run_hash(config):
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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this folder; UserError if another process holds it and so trains here."""
        lock = self.path / ".lock"
        made = [path for path in (lock, self.path) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path}: another process is training in this folder") from None
            try:
                yield
            finally:
                if not (self.path / "run.json").exists():
                    self._remove_unused(made)

    def _remove_unused(self, made: list[Path]) -> None:
        """Remove the lock and the folder if they were made for a run that did not start."""
        for path in made:
            if path.is_file():
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()


@dataclass(frozen=True)
class Runs:
    """Where runs are searched: the folders in `directory`, and `places`: hash → folder of runs elsewhere."""

    directory: Path
    places: dict[str, str] = field(default_factory=dict)

    def find(self, reference: str) -> RunFolder:
        """A run by its hash in `places`, by its folder, or by the start of its hash in `directory`; else UserError."""
        if reference in self.places:
            folder = RunFolder(Path(self.places[reference]))
            if (folder.info() or {}).get("hash") == reference:
                return folder
        path = Path(reference).expanduser()
        path = path.parent if path.name == "final" else path
        if (path / "run.json").is_file():
            return RunFolder(path)
        matches = [folder for folder, digest in self._all() if digest.startswith(reference)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(str(folder.path) for folder in matches[:3])
            raise UserError(f"run {reference!r}: {len(matches)} runs match ({names} …); give more digits or the folder")
        raise UserError(
            f"run {reference!r}: neither a run folder nor the start of the hash of a run in {self.directory}"
        )

    def finished(self, reference: str) -> RunFolder:
        """As `find`, but UserError if the run has not finished, so that no other run can start from it."""
        folder = self.find(reference)
        if not folder.finished():
            raise UserError(f"{folder.path}: this run has not finished; finish it before starting from it")
        return folder

    def _all(self) -> Iterator[tuple[RunFolder, str]]:
        """Every readable run with its hash; skips damaged runs."""
        for path in sorted(self.directory.glob("*/run.json")):
            try:
                yield RunFolder(path.parent), RunFolder(path.parent).digest
            except UserError:
                continue


def _difference(old: dict[str, Any], config: RunConfig) -> str:
    """The first two settings that differ between a configuration in run.json and this one, in words."""
    not_hashed = ("runtime", "arch", "size")
    before, after = _flat(old), _flat(config.model_dump(mode="json"))
    changed = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    shown = [
        f"{name} ({before.get(name)!r} there, {after.get(name)!r} here)"
        for name in changed
        if name.split(".")[0] not in not_hashed
    ]
    return " and ".join(shown[:2]) or "the version of hybridlab's numerics"


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    if not isinstance(data, dict):
        return {prefix.removesuffix("."): data}
    return {key: value for name, inner in data.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}
