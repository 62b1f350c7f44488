"""Progress of several runs at once on standard error: a line for each, and one for all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from hybridlab.bars import WithBar
from hybridlab.training.progress import Progress


@dataclass
class _Line:
    """One running run. first: its step at the start of this process."""

    task: Any
    first: int
    tokens_per_step: int
    step: int
    started: float = field(default_factory=time.monotonic)


class Board(WithBar):
    """On a terminal a bar for each running run and one for all; elsewhere the plain lines of `Progress`.

    total: the steps that all runs have still to do.
    """

    def __init__(self, total: int, quiet: bool = False) -> None:
        self.quiet = quiet
        self.lines: dict[str, _Line] = {}
        self.plain: dict[str, Progress] = {}
        self.steps: dict[str, tuple[int, int, int]] = {}
        super().__init__(not quiet, 16, MofNCompleteColumn(), after=(TimeElapsedColumn(),))
        if self.bar:
            self.all = self.bar.add_task("all runs", total=total, note="")

    def begin(self, key: str, title: str, total: int, tokens_per_step: int, done: int) -> None:
        """A run starts, of whose `total` steps `done` were done earlier."""
        self.steps[key] = (done, done, total)
        if self.bar:
            task = self.bar.add_task(title, total=total, completed=done, note="")
            self.lines[key] = _Line(task, done, tokens_per_step, done)
        else:
            self.plain[key] = Progress(title, total, tokens_per_step, done, self.quiet)

    def update(self, key: str, step: int, loss: float, *more: Any) -> None:
        """The run has done `step` steps. more: what else its `Progress` was given."""
        if key in self.steps:
            first, _, total = self.steps[key]
            self.steps[key] = (first, step, total)
        if key in self.plain:
            self.plain[key].update(step, loss, *more)
        if self.bar is None or key not in self.lines:
            return
        line = self.lines[key]
        seconds = max(1e-9, time.monotonic() - line.started)
        rate = (step - line.first) * line.tokens_per_step / seconds
        self.bar.update(line.task, completed=step, note=f"loss {loss:.3f}  {rate:,.0f} tok/s")
        self.bar.advance(self.all, step - line.step)
        line.step = step

    def progress(self) -> dict[str, float]:
        """Of each running run the share that is done, of the steps that were left when it started."""
        return {key: (step - first) / max(1, total - first) for key, (first, step, total) in self.steps.items()}

    def end(self, key: str) -> None:
        """The run has ended, in whatever way; its line goes."""
        self.steps.pop(key, None)
        self.plain.pop(key, None)
        line = self.lines.pop(key, None)
        if self.bar and line:
            self.bar.remove_task(line.task)
