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
    """Progress over the documents of a source. say: prints a line. bar: show a bar if standard error is a terminal."""

    def __init__(self, source: str, say: Say = silent, bar: bool = False) -> None:
        self.source, self.say, self.documents, self.tokens = source, say, 0, 0
        self.started = self.printed = time.monotonic()
        super().__init__(bar, 10, TaskProgressColumn())
        if self.bar:
            self.task = self.bar.add_task(f"data: {source.rpartition('/')[2][-20:]}", total=None, note="")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After success, say how much has been done, and how fast."""
        super().__exit__(kind, value, trace)
        if kind is None:
            self.say(f"{self.source}: {self._done()}")

    def update(self, documents: int, tokens: int, share: float | None) -> None:
        """Show that so many documents and tokens in all are done. share: of the source, from 0 to 1, if known."""
        self.documents, self.tokens = documents, tokens
        if self.bar:
            total = None if share is None else 1.0
            self.bar.update(self.task, total=total, completed=share or 0.0, note=self._rates("docs/s", "tok/s"))
            return
        now = time.monotonic()
        if now - self.printed >= _SECONDS_BETWEEN_LINES:
            self.printed = now
            self.say(f"{self.source}: {self._done()}{self._left(share)}")

    def _done(self) -> str:
        return f"{self.documents:,} documents, {self.tokens:,} tokens, {self._rates()}"

    def _rates(self, documents: str = "documents/s", tokens: str = "tokens/s") -> str:
        seconds = max(1e-3, time.monotonic() - self.started)
        return f"{self.documents / seconds:,.0f} {documents}, {self.tokens / seconds:,.0f} {tokens}"

    def _left(self, share: float | None) -> str:
        if not share:
            return ""
        seconds = (time.monotonic() - self.started) * (1 - share) / share
        return f", {share:.0%} read, about {seconds:,.0f} s left"
