"""metrics.jsonl, the log of a run: one line per logged step, per event, and per resume that repeats steps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybridlab.files import sync, write_text, writing

OF_A_STEP = ("loss", "gradient_norm", "lr")
"""The numbers of a line that the training loop measures in its step; those of hooks stand beside them."""
SO_FAR = ("step", "tokens", "flops")
"""Numbers of a line that count from the first step on."""
OF_THE_MACHINE = ("tokens_per_second", "memory_mb", "mfu")
"""Numbers of a line that are not the same when a run is repeated. A record's history leaves them out."""
EVENT, REDONE = "event", "redone"
"""What a line has that is none of a step: a change of the structure, or how many steps are repeated."""
TAKEN = frozenset({*OF_A_STEP, *SO_FAR, *OF_THE_MACHINE, EVENT, REDONE})
"""Names that no hook can give a number of its own."""
FINAL = "final/"
"""How the names of the results begin that trackers get after the last step."""


class MetricsLog:
    """The log file of a run. listeners: get every line too, after it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listeners: list[Callable[[dict[str, Any]], None]] = []

    def write(self, line: dict[str, Any]) -> None:
        """Append a line; ValueError for a number that is not finite. Its names are those of hooks and of
        `TAKEN`."""
        text = json.dumps(line, allow_nan=False) + "\n"
        with writing(self.path, len(text)), self.path.open("a", encoding="utf-8") as file:
            file.write(text)
        for listener in self.listeners:
            listener(line)

    def begin_with(self, other: Path, step: int, without: tuple[str, ...] = ()) -> None:
        """Begin a new log with the lines of another run's, up to a step. without: how the names of numbers begin that
        are left out."""
        if not self.path.exists():
            lines = [line for line in read_metrics(other) if REDONE not in line and line.get("step", 0) <= step]
            lines = [{name: line[name] for name in line if not name.startswith(without)} for line in lines]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))

    def flush(self) -> None:
        """Flush to disk, so that the log contains every step of the next checkpoint."""
        if self.path.exists():
            sync(self.path)

    def cut(self, step: int, events: list[dict[str, Any]]) -> None:
        """Go back to the checkpoint of a step with these events.

        Removes later steps, other events, and an incomplete last line. Adds a line with the number of steps to repeat.
        """
        if not self.path.exists():
            return
        lines = read_metrics(self.path)
        lost = max((line["step"] for line in lines if "step" in line), default=0) - step
        kept = [line for line in lines if line.get("step", 0) <= step and line.get(EVENT) in [None, *events]]
        if lost > 0:
            kept.append({REDONE: lost})
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def redone_steps(self) -> int:
        """How many steps were repeated after the run was killed."""
        return sum(line.get(REDONE, 0) for line in read_metrics(self.path))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a log up to the first incomplete one; none if there is no file."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if isinstance(line, dict):
            lines.append(line)
    return lines


_TAIL = 2**18
"""Bytes at the end of a log in which the last numbers are looked for: about a thousand lines."""


def last_numbers(path: Path, names: tuple[str, ...]) -> dict[str, float]:
    """The last logged value of each of these names; one that the end of the log does not have is left out."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        lines = file.read().splitlines()
    found: dict[str, float] = {}
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        found = {name: line[name] for name in names if isinstance(line, dict) and name in line} | found
        if len(found) == len(names):
            break
    return found


_MOST_POINTS = 200


def history(lines: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The logged numbers by name, for a record: at most 200 evenly spaced steps with the last one, six digits.

    Numbers that only some of these lines have, and those of the machine, are left out.
    """
    logged = [line for line in lines if "step" in line]
    every = -(-len(logged) // _MOST_POINTS) or 1
    kept = logged[len(logged) - 1 :: -every][::-1] if logged else []
    names = [name for name in kept[0] if all(name in line for line in kept)] if kept else []
    names = [name for name in names if name not in OF_THE_MACHINE]
    return {name: [float(f"{line[name]:.6g}") for line in kept] for name in names}
