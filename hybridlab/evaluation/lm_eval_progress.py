"""Progress of a benchmark: a bar with the time left on a terminal, else a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.progress import MofNCompleteColumn

from hybridlab.bars import WithBar

_SECONDS_BETWEEN_LINES = 10.0


class Scoring(WithBar):
    """what: is scored. total: how many there are. say: prints a line."""

    def __init__(self, what: str, total: int, say: Callable[[str], None]) -> None:
        self.what, self.total, self.say = what, total, say
        self.started = self.printed = time.monotonic()
        super().__init__(total > 0, 20, MofNCompleteColumn())
        if self.bar:
            self.task = self.bar.add_task(what, total=total, note="")

    def update(self, done: int) -> None:
        """Show that so many are done."""
        if self.bar:
            self.bar.update(self.task, completed=done)
            return
        now = time.monotonic()
        if done >= self.total or now - self.printed < _SECONDS_BETWEEN_LINES:
            return
        self.printed = now
        left = (now - self.started) * (self.total - done) / max(done, 1)
        self.say(f"{self.what}: {done:,} of {self.total:,}, about {left:,.0f} s left")
