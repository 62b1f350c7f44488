"""Run folders: which run a folder holds, who may write to it, and how runs are found again.

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
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        return self.path / "final"

    def info(self) -> dict[str, Any] | None:
        """run.json, or None where no run has started."""
        return self._read("run.json", ("hash", "config", "data_fingerprint", "precision"))

    def record(self) -> dict[str, Any] | None:
        """record.json, or None where the run has not ended."""
        return self._read("record.json", ("status", "hash"))

    def _read(self, name: str, required: tuple[str, ...]) -> dict[str, Any] | None:
        try:
            return read_object(self.path / name, "file of a run", required, "restore it, or remove the run folder")
        except FileNotFoundError:
            return None

    def finished(self) -> bool:
        record = self.record()
        return record is not None and record["status"] == "finished" and self.info() is not None

    def config(self) -> RunConfig:
        info = self.info()
        if info is None:
            raise UserError(f"{self.path}: no run.json, so this folder holds no run")
        try:
            return RunConfig.model_validate_json(json.dumps(info["config"]))
        except (KeyError, ValueError):
            raise UserError(f"{self.path}/run.json: it was written by another version of hybridlab") from None

    def claim(self, config: RunConfig, pinned: dict[str, Any]) -> dict[str, Any]:
        """Take an empty folder for this run, or make sure that it is this run's already.

        pinned: facts fixed at the first start (precision, data fingerprint); the ones found are returned.
        """
        found = self.info()
        if found is None:
            # What a kill left of a first start is no content.
            if any(not p.name.startswith((".lock", ".run.json.")) for p in self.path.iterdir()):
                raise UserError(f"{self.path}: the folder is not empty and holds no run; choose another --run-dir")
            found = {"hash": run_hash(config), "config": config.model_dump(mode="json"), **pinned}
            write_json(self.path / "run.json", found)
            return found
        if found["hash"] != run_hash(config):
            raise UserError(
                f"{self.path}: the folder holds another run ({found['hash']}), which differs in "
                f"{_difference(found['config'], config)}; choose another --run-dir"
            )
        if found["data_fingerprint"] != pinned["data_fingerprint"]:
            raise UserError(
                f"{self.path}: the data has changed since this run was started (its fingerprint differs); "
                "restore it, or start a new run in another --run-dir"
            )
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time: two would overwrite each other's checkpoints."""
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
                    self._leave_as_found(made)

    def _leave_as_found(self, made: list[Path]) -> None:
        """No run was started: what was made for it goes again."""
        for path in made:
            if path.is_file():
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()


@dataclass(frozen=True)
class Runs:
    """Where runs are found: the folders in `directory`, and places elsewhere that are known by hash."""

    directory: Path
    places: dict[str, str] = field(default_factory=dict)

    def find(self, reference: str) -> RunFolder:
        """A run by its folder, by its hash among the known places, or by a prefix of its hash in the directory."""
        if reference in self.places:
            folder = RunFolder(Path(self.places[reference]))
            if (folder.info() or {}).get("hash") == reference:
                return folder
        path = Path(reference).expanduser()
        path = path.parent if path.name == "final" else path
        if (path / "run.json").is_file():
            return RunFolder(path)
        found = [folder for folder, digest in self._all() if digest.startswith(reference)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(str(folder.path) for folder in found[:3])
            raise UserError(f"run {reference!r}: {len(found)} runs match ({names} …); give more digits or the folder")
        raise UserError(
            f"run {reference!r}: neither a run folder nor the start of the hash of a run in {self.directory}"
        )

    def finished(self, reference: str) -> RunFolder:
        """A run that others can start from."""
        folder = self.find(reference)
        if not folder.finished():
            raise UserError(f"{folder.path}: this run has not finished; finish it before starting from it")
        return folder

    def _all(self) -> Iterator[tuple[RunFolder, str]]:
        """Every readable run with its hash; one that is damaged is nobody else's trouble."""
        for path in sorted(self.directory.glob("*/run.json")):
            try:
                yield RunFolder(path.parent), RunFolder(path.parent).info()["hash"]
            except UserError:
                continue


def _difference(old: dict[str, Any], config: RunConfig) -> str:
    outside = ("runtime", "arch", "size")
    before, after = _flat(old), _flat(config.model_dump(mode="json"))
    changed = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    shown = [
        f"{name} ({before.get(name)!r} there, {after.get(name)!r} here)"
        for name in changed
        if name.split(".")[0] not in outside
    ]
    return " and ".join(shown[:2]) or "the version of hybridlab's numerics"


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix.removesuffix("."): data}
    return {key: value for name, inner in data.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}
