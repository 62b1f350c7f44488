"""Checkpoints, written atomically: into a temporary folder that is flushed to disk and then renamed.

`checkpoints/step-00000200/` holds model.safetensors, optimizer.safetensors, state.json and, written last, digests.json
with the SHA-256 of the others. No pickle files are read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.files import sync_folder, write_json
from hybridlab.models.export import save_tensors

_PREFIX = "step-"
_DIGESTS = "digests.json"


@dataclass(frozen=True)
class Checkpoint:
    """model and optimizer: named tensors. state: everything else, as JSON."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, keep: int) -> None:
    """Write the checkpoint of `step` into `folder` and delete all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_PREFIX}{step:08d}"
    if (target / _DIGESTS).is_file():
        return
    shutil.rmtree(target, ignore_errors=True)
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_tensors(checkpoint.model, partial / "model.safetensors")
    save_tensors(checkpoint.optimizer, partial / "optimizer.safetensors")
    write_json(partial / "state.json", checkpoint.state)
    write_json(partial / _DIGESTS, {p.name: _digest(p) for p in sorted(partial.iterdir())})
    sync_folder(partial)
    partial.rename(target)
    sync_folder(folder)
    for old in _complete(folder)[:-keep]:
        shutil.rmtree(old)


def keep_newest(folder: Path, keep: int) -> None:
    """Delete all checkpoints but the newest `keep` complete ones, and the folder itself if it is empty then.

    What the file system does not let go is left: `hybridlab runs clean` removes it later.
    """
    kept = _complete(folder)[-keep:] if keep else []
    for path in (*folder.glob(f"{_PREFIX}*"), *folder.glob(f".{_PREFIX}*.partial")):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def newest_step(folder: Path) -> int | None:
    """The step of the newest complete checkpoint; None if there is none."""
    complete = _complete(folder)
    return int(complete[-1].name.removeprefix(_PREFIX)) if complete else None


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint, None if there is none. UserError if it is damaged, naming the one before it."""
    folders = sorted(folder.glob(f"{_PREFIX}*"))
    if not folders:
        return None
    newest = folders[-1]
    try:
        digests = json.loads((newest / _DIGESTS).read_text())
        damaged = next((n for n, d in digests.items() if not (newest / n).is_file() or _digest(newest / n) != d), None)
    except (OSError, ValueError):
        damaged = _DIGESTS
    if damaged:
        others = [path for path in _complete(folder) if path != newest]
        offer = f"go on from {others[-1].name}" if others else "start again"
        raise UserError(f"{newest}: {damaged} is damaged (its digest differs); remove this checkpoint to {offer}")
    return Checkpoint(
        load_file(newest / "model.safetensors"),
        load_file(newest / "optimizer.safetensors"),
        json.loads((newest / "state.json").read_text()),
    )


def _complete(folder: Path) -> list[Path]:
    """The folders of complete checkpoints, oldest first."""
    return sorted(p for p in folder.glob(f"{_PREFIX}*") if (p / _DIGESTS).is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
