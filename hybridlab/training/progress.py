"""Progress of a long task on standard error: a bar with rate and ETA on a terminal, else plain lines."""

from __future__ import annotations

import sys
import time

from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from hybridlab.bars import WithBar

_SECONDS_BETWEEN_LINES = 10.0


class Progress(WithBar):
    """Progress over `total` steps of `tokens_per_step` tokens, of which `done` were done earlier."""

    def __init__(self, title: str, total: int, tokens_per_step: int, done: int = 0, quiet: bool = False) -> None:
        self.title, self.total, self.tokens_per_step = title, total, tokens_per_step
        self.first, self.started, self.printed = done, time.monotonic(), 0.0
        self.quiet = quiet
        super().__init__(not quiet, 16, MofNCompleteColumn(), after=(TimeElapsedColumn(),))
        if self.bar:
            self.task = self.bar.add_task(title, total=total, completed=done, note="")

    def say(self, text: str) -> None:
        """Print a line, on a terminal above the bar."""
        if self.bar:
            self.bar.console.print(f"{self.title}: {text}", markup=False, highlight=False)
        elif not self.quiet:
            print(f"{self.title}: {text}", file=sys.stderr, flush=True)

    def update(self, step: int, loss: float, mfu: float | None = None) -> None:
        """Show that `step` steps are done; outside a terminal, at most one line in ten seconds."""
        if self.quiet:
            return
        seconds = max(1e-9, time.monotonic() - self.started)
        rate = (step - self.first) * self.tokens_per_step / seconds
        used = "" if mfu is None else f"  MFU {100 * mfu:.0f} %"
        if self.bar:
            self.bar.update(self.task, completed=step, note=f"loss {loss:.3f}  {rate:,.0f} tok/s{used}")
            return
        now = time.monotonic()
        if step < self.total and now - self.printed < _SECONDS_BETWEEN_LINES:
            return
        self.printed = now
        left = (self.total - step) * seconds / max(1, step - self.first)
        line = f"{self.title}: step {step}/{self.total}  loss {loss:.3f}  {rate:,.0f} tokens/s{used}  ETA {clock(left)}"
        print(line, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
