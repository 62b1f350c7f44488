"""Progress of a long task on standard error: a bar with rate and ETA on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from hybridlab.bars import Bar, WithBar
from hybridlab.messages import on_screen, print_line

Item = TypeVar("Item")
_SECONDS_BETWEEN_LINES = 10.0


class Progress(WithBar):
    """Progress over `total` steps of `tokens_per_step` tokens, of which `done` were done earlier. shared: the bars of a
    board, in which it gets a line."""

    def __init__(self, title: str, total: int, tokens_per_step: int, done: int = 0, shared: Bar | None = None) -> None:
        self.title, self.total, self.tokens_per_step = title, total, tokens_per_step
        self.first, self.step, self.started, self.printed = done, done, time.monotonic(), 0.0
        super().__init__(on_screen() and not shared, 16, MofNCompleteColumn(), after=(TimeElapsedColumn(),))
        self.bar = shared or self.bar
        if self.bar:
            self.task = self.bar.add_task(title, total=total, completed=done, note="")

    def update(self, step: int, loss: float, mfu: float | None = None) -> None:
        """Show that `step` steps are done; outside a terminal, at most one line in ten seconds."""
        self.step = step
        if not on_screen():
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
        print_line(line)


def followed(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items of a loop. Every ten seconds a line on standard error says how many are done and, where their number is
    known, the time left. what: is done, in a word."""
    total = len(items) if isinstance(items, Sized) else None
    started = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and on_screen() and now - printed >= _SECONDS_BETWEEN_LINES:
            printed = now
            left = "" if total is None else f"/{total}  ETA {clock((total - done) * (now - started) / done)}"
            print_line(f"{what}: {done}{left}")
        yield item


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from one hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


# ---- several runs at once: a line for each, and one for all of them ----


class Board(WithBar):
    """On a terminal a bar for each running run and one for all; elsewhere the plain lines of `Progress`.

    total: the steps that all runs have still to do.
    """

    def __init__(self, total: int) -> None:
        self.runs: dict[str, Progress] = {}
        super().__init__(on_screen(), 16, MofNCompleteColumn(), after=(TimeElapsedColumn(),))
        if self.bar:
            self.all = self.bar.add_task("all runs", total=total, note="")

    def begin(self, key: str, title: str, total: int, tokens_per_step: int, done: int) -> None:
        """A run starts, of whose `total` steps `done` were done earlier."""
        self.runs[key] = Progress(title, total, tokens_per_step, done, self.bar)

    def update(self, key: str, step: int, loss: float, mfu: float | None = None) -> None:
        """The run has done `step` steps; see `Progress.update`. A bar does not show the MFU."""
        if key not in self.runs:
            return
        run = self.runs[key]
        if self.bar:
            self.bar.advance(self.all, step - run.step)
        run.update(step, loss, None if self.bar else mfu)

    def progress(self) -> dict[str, float]:
        """Of each running run the share that is done, of the steps that were left when it started."""
        return {key: (run.step - run.first) / max(1, run.total - run.first) for key, run in self.runs.items()}

    def end(self, key: str) -> None:
        """The run has ended, in whatever way; its line goes."""
        run = self.runs.pop(key, None)
        if self.bar and run:
            self.bar.remove_task(run.task)


# ---- changes of the structure as lines for the terminal ----

_MOST_LETTERS = 100
_BEFORE, _AFTER = "_before", "_after"


def event_line(event: dict[str, Any]) -> str:
    """An event in words: `step 120: loop-added: layer 5 (L6), heads 3, 7, passes 1`. A number before and after is one
    part, `2 → 4 layers`.

    Layers and heads count from 0, as in settings; L counts from 1, as in figures. Without details of its own, the line
    says what the plan or the map is now.
    """
    parts = []
    for name, value in event.items():
        if name == "layer":
            parts.append(f"layer {value} (L{value + 1})")
        elif name == "heads":
            parts.append(f"heads {', '.join(map(str, value))}")
        elif name.endswith(_AFTER) and isinstance(value, int):
            what = name.removesuffix(_AFTER)
            parts.append(f"{event[what + _BEFORE]} → {value} {what}")
        elif name.endswith((_BEFORE, _AFTER)) or name in ("step", "kind"):
            continue
        elif isinstance(value, str | int | float):
            parts.append(value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}")
    if not parts:
        parts = [f"{part} {event[f'{part}_after']}" for part in ("plan", "map") if f"{part}_after" in event]
    line = f"step {event['step']}: {event['kind']}" + (f": {', '.join(parts)}" if parts else "")
    return line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 2] + " …"
