"""Progress of the preparation of data: a bar on a terminal, else a line every ten seconds, and one at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import TaskProgressColumn

from hybridlab.bars import WithBar

_SECONDS_BETWEEN_LINES = 10.0

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Says nothing."""


class Preparing(WithBar):
    """Progress over the documents of a source; rates and the time left are those of this session.

    say: prints a line. bar: show a bar if standard error is a terminal. documents, tokens: done in earlier sessions,
    which is the given share of the source.
    """

    def __init__(
        self,
        source: str,
        say: Say = silent,
        bar: bool = False,
        documents: int = 0,
        tokens: int = 0,
        share: float | None = None,
    ) -> None:
        self.source, self.say, self.documents, self.tokens = source, say, documents, tokens
        self.bad = 0
        self.before = (documents, tokens, share or 0.0)
        self.started = self.printed = time.monotonic()
        super().__init__(bar, 10, TaskProgressColumn())
        if self.bar:
            total = None if share is None else 1.0
            name = f"data: {source.rpartition('/')[2][-20:]}"
            # With the share from the start, which is no progress of this session.
            self.task = self.bar.add_task(name, total=total, completed=self.before[2], note="")  # type: ignore[arg-type]

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After success, say how much has been done, and how fast."""
        super().__exit__(kind, value, trace)
        if kind is None:
            self.say(f"{self.source}: {self._done()}")

    def update(self, documents: int, tokens: int, share: float | None, bad: int = 0) -> None:
        """Show that so many documents and tokens in all are done. share: of the source, from 0 to 1, if known. bad:
        lines that were left out."""
        self.documents, self.tokens, self.bad = documents, tokens, bad
        if self.bar:
            total = None if share is None else 1.0
            self.bar.update(self.task, total=total, completed=share or 0.0, note=self._rates("docs/s", "tok/s"))
            return
        now = time.monotonic()
        if now - self.printed >= _SECONDS_BETWEEN_LINES:
            self.printed = now
            self.say(f"{self.source}: {self._done()}{self._left(share)}")

    def _done(self) -> str:
        left_out = f", bad lines left out: {self.bad:,}" if self.bad else ""
        return f"{self.documents:,} documents, {self.tokens:,} tokens, {self._rates()}{left_out}"

    def _rates(self, documents: str = "documents/s", tokens: str = "tokens/s") -> str:
        seconds = max(1e-3, time.monotonic() - self.started)
        new = (self.documents - self.before[0]) / seconds, (self.tokens - self.before[1]) / seconds
        return f"{new[0]:,.0f} {documents}, {new[1]:,.0f} {tokens}"

    def _left(self, share: float | None) -> str:
        if share is None or share <= self.before[2]:
            return ""
        seconds = (time.monotonic() - self.started) * (1 - share) / (share - self.before[2])
        return f", {share:.0%} read, about {seconds:,.0f} s left"
