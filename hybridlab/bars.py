"""Progress bars on standard error, for everything that takes long. Only a terminal gets one."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class WithBar:
    """A context that shows a bar: its description, the bar, the columns given, the field `note`, and the time left.

    bar: None where standard error is no terminal, or without `wanted`.
    """

    def __init__(
        self, wanted: bool, width: int, *columns: ProgressColumn, after: tuple[ProgressColumn, ...] = ()
    ) -> None:
        """width: of the bar, in characters. columns: between bar and note. after: between note and time left."""
        self.bar: Bar | None = None
        if wanted and sys.stderr is not None and sys.stderr.isatty():
            self.bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=width),
                *columns,
                TextColumn("{task.fields[note]}", markup=False),
                *after,
                TextColumn("ETA"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=Console(stderr=True),
            )

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()
