"""The local files of a source: those of a folder, and the bytes of one, decompressed if it is a .gz, .bz2 or .zst
file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from hybridlab.errors import UserError

_COMPRESSIONS = {
    ".gz": ("gzip", b"\x1f\x8b"),
    ".bz2": ("bz2", b"BZh"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
}
"""Ending → name of the compression, and the bytes that such a file begins with."""


class SourceFile:
    """A file that is being read.

    share: a function that says how much of it has been read, from 0 to 1. records: how many lines, rows or pieces of
    text have been read, among them the first `past`, which gave their documents to an earlier reading. skip_bad: leave
    out records that are broken. bad: how many have been left out.
    """

    def __init__(self, path: Path, past: int = 0, skip_bad: bool = False) -> None:
        self.path, self.past, self.skip_bad, self.records, self.bad = path, past, skip_bad, 0, 0
        self.first_bad: UserError | None = None
        self.share: Callable[[], float] = lambda: 0.0

    @property
    def plain_name(self) -> str:
        """The file's name without .gz, .bz2 or .zst."""
        return self.path.stem if self.path.suffix in _COMPRESSIONS else self.path.name

    def unread(self) -> bool:
        """Count one more record; whether it is after those that gave their documents before."""
        self.records += 1
        return self.records > self.past

    def leave_out(self, error: UserError) -> None:
        """Count a record that is broken; the error, if such records are not to be left out."""
        if not self.skip_bad:
            raise error
        self.first_bad = self.first_bad or error
        self.bad += 1

    def check_all(self) -> None:
        """At the end of the file: the first error, if every record was left out, which is another kind of mistake."""
        if self.first_bad is not None and self.bad == self.records:
            raise self.first_bad

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed. UserError if it cannot be read, also while the block reads from it."""
        try:
            with self.path.open("rb") as raw:
                size = self.path.stat().st_size
                self.share = lambda: 1.0 if raw.closed or not size else raw.tell() / size
                yield self._plain(raw) if size else raw
        except OSError as error:
            raise UserError(f"{self.path}: {self._reason(error)}") from None

    def _plain(self, raw: BinaryIO) -> BinaryIO:
        if self.path.suffix not in _COMPRESSIONS:
            return raw
        import pyarrow

        stream = pyarrow.CompressedInputStream(raw, _COMPRESSIONS[self.path.suffix][0])
        return cast(BinaryIO, io.BufferedReader(stream))

    def _reason(self, error: OSError) -> str:
        """Why the file cannot be read. Errors of decompression have no number."""
        if error.errno is not None or self.path.suffix not in _COMPRESSIONS:
            return f"it cannot be read ({error.strerror or error})"
        name, magic = _COMPRESSIONS[self.path.suffix]
        with self.path.open("rb") as raw:
            if raw.read(len(magic)) != magic:
                return f"this is not a {name} file; give it the ending that it should have, or compress it with {name}"
        return f"this {name} file is cut short or damaged ({error}); copy or download it again"


def local_files(kind: str, endings: tuple[str, ...], argument: str, compressed: bool = True) -> list[Path]:
    """The file of this path; or all files with these endings in the folder of this path, sorted, without hidden files.

    compressed: files with .gz or .zst after the ending belong to them.
    """
    path = Path(argument).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"data source {kind}:{argument}: there is no such file or folder; give another path")
    packed = ("", *_COMPRESSIONS) if compressed else ("",)
    whole = tuple(ending + after for ending in endings for after in packed)
    files = sorted(p for p in path.rglob("*") if p.name.endswith(whole) and not _hidden(p, path) and p.is_file())
    if not files:
        also = ", also compressed (.gz, .zst)" if compressed else ""
        raise UserError(f"data source {kind}:{argument}: the folder has no {' or '.join(endings)} file{also}")
    for file in files:
        if file.suffix in _COMPRESSIONS and file.with_suffix("") in files:
            raise UserError(
                f"data source {kind}:{argument}: the folder has {file.with_suffix('').name} and {file.name}, "
                "which would be read twice; remove one of them"
            )
    return files


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
