"""Standard output and standard error that stay usable when their reader has gone, as in `hybridlab plan | head`."""

from __future__ import annotations

import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any


class _Stream(FileIO):
    """The file of a stream. What cannot be written because of an ignored error is dropped, and the command goes on.

    Any other error is raised once; what follows is dropped, so that the exit does not raise it again.
    """

    def __init__(self, number: int, ignored: type[OSError]) -> None:
        super().__init__(number, "wb", closefd=False)
        self.ignored, self.failed = ignored, False

    def write(self, data: Any) -> int:
        if not self.failed:
            try:
                return super().write(data)
            except OSError as error:
                if not isinstance(error, self.ignored):
                    self.failed = True
                    raise
        return memoryview(data).nbytes


def make_tolerant() -> None:
    """Replace both streams of this process. Results may go to a reader that has gone; progress may fail in any way, as
    it must not end a run. Characters that a stream cannot encode are written as ?."""
    for name, ignored in (("stdout", BrokenPipeError), ("stderr", OSError)):
        stream = getattr(sys, name)
        if not isinstance(stream, TextIOWrapper):
            continue
        stream.reconfigure(errors="replace")
        # Under PYTHONUNBUFFERED there is no buffer in between.
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if isinstance(raw, FileIO) and not isinstance(raw, _Stream):
            new = _Stream(stream.fileno(), ignored)
            below: Any = new if stream.buffer is raw else BufferedWriter(new)
            lines, at_once = stream.line_buffering, stream.write_through
            text = TextIOWrapper(below, stream.encoding, "replace", line_buffering=lines, write_through=at_once)
            setattr(sys, name, text)
