"""metrics.jsonl: one line per logged step and per event, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hybridlab.files import write_text


class MetricsLog:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def flush(self) -> None:
        """Onto the disk, so that a checkpoint never knows more steps than the log."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def last_step(self) -> int:
        """The last step in the log; 0 where there is none."""
        return max((_step(line) for line in read_metrics(self.path)), default=0)

    def cut(self, step: int) -> None:
        """Drop what was logged after `step`, and a last line that a kill left half written."""
        if self.path.exists():
            kept = [line for line in read_metrics(self.path) if _step(line) <= step]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a log."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def _step(line: dict[str, Any]) -> int:
    return line["event"]["step"] if "event" in line else line["step"]
