"""Writing files so that a kill at any moment leaves the old content or the new one, never half of it."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError


def read_object(path: Path, what: str, required: tuple[str, ...] = (), remedy: str = "restore it") -> dict[str, Any]:
    """A JSON object that has these keys; FileNotFoundError where there is no file, UserError where it is damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise UserError(f"{path}: this {what} is damaged ({reason}); {remedy}") from None
    missing = [key for key in required if not isinstance(data, dict) or key not in data]
    if missing or not isinstance(data, dict):
        reason = f"{missing[0]!r} is missing" if missing else "it is not an object"
        raise UserError(f"{path}: this {what} is damaged ({reason}); {remedy}")
    return data


def write_text(path: Path, text: str) -> None:
    """Write aside, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Sorted keys are not forced: the order that the writer chose is the order one reads. NaN is refused."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def sync_folder(path: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
