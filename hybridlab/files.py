"""Writing files so that a kill at any moment leaves the old content or the new one, never half of it."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any


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
