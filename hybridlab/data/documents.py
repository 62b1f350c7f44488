"""The documents of a source, one after another, from a place where an earlier reading stopped if there is one.

A place is a JSON object. Files are passed by their number, and the records before it in its file without being parsed;
an iterator of a plug-in that has neither `place` nor `go_to` is read again up to the place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hybridlab.data.readers import LONGEST_DOCUMENT, pieces
from hybridlab.data.source_files import SourceFile

Place = dict[str, Any]
"""Where reading stands, as JSON."""


class Documents(Iterator[str]):
    """At most `limit` documents; very long ones in pieces, of which each is a document. number: how many have been
    read."""

    def __init__(self, documents: Iterator[str], limit: int | None = None) -> None:
        self.documents, self.limit, self.number = documents, limit, 0
        # The pieces that are left of the document that is being read.
        self.rest: deque[str] = deque()
        # The source's last known place between two documents, and how many have been given since.
        self.known: Any = None
        self.since = 0

    def __next__(self) -> str:
        if self.number == self.limit:
            raise StopIteration
        if not self.rest:
            text = next(self.documents)
            self.rest.extend(pieces(iter([text])) if len(text) > LONGEST_DOCUMENT else [text])
        self.number += 1
        self.since += 1
        return self.rest.popleft()

    @property
    def share(self) -> float | None:
        """The share of the documents that have been read, from 0 to 1; None if it is unknown."""
        by_limit = self.number / self.limit if self.limit else None
        by_size = getattr(self.documents, "share", None)
        return max((share for share in (by_limit, by_size) if share is not None), default=None)

    @property
    def place(self) -> Place:
        """Where reading stands, after the last document that was given. Inside one that is cut, it has the source's
        place before it, since a source cannot go to the middle of a document."""
        if not self.rest:
            self.known, self.since = getattr(self.documents, "place", None), 0
        return {"documents": self.number, "source": self.known, "since": self.since}

    @property
    def bad(self) -> int:
        """How many lines or rows without a document have been left out."""
        return getattr(self.documents, "bad", 0)

    def go_to(self, place: Place) -> None:
        """Go on after the document of a place; nothing may have been read yet."""
        again = place["documents"]
        if place["source"] is not None:
            self.documents.go_to(place["source"])  # type: ignore[attr-defined]
            self.known, again = place["source"], place.get("since", 0)
        next(islice(self, again, again), None)
        self.number = place["documents"]


class FileDocuments(Iterator[str]):
    """The documents of files, one file after another.

    skip_bad: leave out lines or rows that are broken. bad: how many have been left out.
    """

    def __init__(self, paths: list[Path], read: Callable[[SourceFile, str], Iterator[str]], field: str) -> None:
        self.paths, self.read, self.field = paths, read, field
        self.sizes = [path.stat().st_size for path in paths]
        self.number, self.now = 0, SourceFile(paths[0])
        self.skip_bad, self.bad_before = False, 0
        self.documents = self._all(0)

    @property
    def bad(self) -> int:
        """In all files so far."""
        return self.bad_before + self.now.bad

    def _all(self, past: int) -> Iterator[str]:
        """The documents from the file `number` on, without its first `past` records."""
        for number in range(self.number, len(self.paths)):
            self.number, self.bad_before = number, self.bad
            self.now = SourceFile(self.paths[number], past, self.skip_bad)
            yield from self.read(self.now, self.field)
            past = 0

    def __next__(self) -> str:
        return next(self.documents)

    @property
    def place(self) -> Place:
        """The file that is being read, and how many of its records have been."""
        return {"file": self.number, "records": self.now.records, "bad": self.bad}

    def go_to(self, place: Place) -> None:
        """Go on after the document of a place."""
        self.number, self.now = place["file"], SourceFile(self.paths[place["file"]])
        self.bad_before = place["bad"]
        self.documents = self._all(place["records"])

    @property
    def share(self) -> float:
        """The share of all files' bytes that have been read, from 0 to 1."""
        before = sum(self.sizes[: self.number])
        inside = self.now.share() * self.now.path.stat().st_size
        return min(1.0, (before + inside) / max(1, sum(self.sizes)))
