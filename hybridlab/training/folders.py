"""Run folders: which run a folder holds, who may write to it, and how runs are found again.

runs/<hash>/  run.json  metrics.jsonl  record.json  checkpoints/  final/  (masks.json)
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.files import write_json


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
        return _read_json(self.path / "run.json")

    def record(self) -> dict[str, Any] | None:
        """record.json, or None where the run has not ended."""
        return _read_json(self.path / "record.json")

    def finished(self) -> bool:
        record = self.record()
        return record is not None and record["status"] == "finished"

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
            if self.path.exists() and any(p.name != ".lock" for p in self.path.iterdir()):
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
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path}: another process is training in this folder") from None
            yield


def find_run(reference: str, runs_dir: Path) -> RunFolder:
    """A run by its folder, or by a prefix of its hash among the runs in `runs_dir`."""
    path = Path(reference).expanduser()
    if (path / "run.json").is_file():
        return RunFolder(path)
    if path.name in ("final", "checkpoints") and (path.parent / "run.json").is_file():
        return RunFolder(path.parent)
    matches = {
        folder.path.resolve(): folder for folder in all_runs(runs_dir) if folder.info()["hash"].startswith(reference)
    }
    if len(matches) == 1:
        return next(iter(matches.values()))
    if matches:
        names = ", ".join(sorted(str(m) for m in matches)[:3])
        raise UserError(f"run {reference!r}: {len(matches)} runs match ({names} …); give more digits or the folder")
    raise UserError(
        f"run {reference!r}: neither a run folder nor the start of a hash in {runs_dir}; see {runs_dir}/*/run.json"
    )


def all_runs(runs_dir: Path) -> Iterator[RunFolder]:
    for path in sorted(runs_dir.glob("*/run.json")):
        folder = RunFolder(path.parent)
        if folder.info() is not None:
            yield folder


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        raise UserError(f"{path}: the file is damaged; remove the run folder or restore the file") from None
    return data if isinstance(data, dict) else None


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
