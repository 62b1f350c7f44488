"""Reading and writing files. A write that is killed leaves the old content or the new one, never a part."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError


def read_object(path: Path, what: str, required: tuple[str, ...] = (), remedy: str = "restore it") -> dict[str, Any]:
    """The JSON object in a file. FileNotFoundError without a file, UserError if it is damaged or lacks a required key.

    what: what the file is, and remedy: what to do if it is damaged, both for the error.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise UserError(f"{path}: this {what} is damaged ({reason}); {remedy}") from None
    missing = [key for key in required if not isinstance(data, dict) or key not in data]
    if missing or not isinstance(data, dict):
        reason = f"{missing[0]!r} is missing" if missing else "it is not a JSON object"
        raise UserError(f"{path}: this {what} is damaged ({reason}); {remedy}")
    return data


def write_text(path: Path, text: str) -> None:
    """Write a temporary file, flush it to disk, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write JSON and keep the key order. ValueError for NaN and infinity."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
