"""The records of a benchmark's file, in whatever layout it was released, each with its place for errors.

.jsonl              one JSON object per line
.json               a list of objects, one object with everything, or one object per line
.csv, .tsv          a table; its first line names the columns unless `columns` does
.parquet            a table
.xml                `element`: the elements that are records, with their attributes and children
.txt, .lst          lines; `block`: so many lines are a record; `pages`: a line that matches begins a new one; with
                    these two of any ending

All but parquet may be compressed (.gz, .bz2, .zst).
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hybridlab.data.source_files import SourceFile
from hybridlab.errors import UserError

ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xml", ".txt", ".lst")


@dataclass(frozen=True)
class Record:
    """What a file says of one example, and where."""

    values: Any
    origin: str


@dataclass
class Broken:
    """What happens to a line that cannot be read: an error, or, with `skip`, it is counted here by its file."""

    skip: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def found(self, origin: str, problem: str) -> None:
        """UserError with the place, unless broken lines are skipped."""
        if not self.skip:
            raise UserError(f"{origin}: {problem}; correct this line, or leave such lines out with --skip-bad-lines")
        name = origin.rpartition(":")[0] or origin
        self.counts[name] = self.counts.get(name, 0) + 1


@dataclass(frozen=True)
class Layout:
    """How a file is to be read, where its ending does not say it; see the module."""

    columns: tuple[str, ...] = ()
    element: str | None = None
    block: int | None = None
    pages: str | None = None


def read_records(path: Path, layout: Layout, broken: Broken) -> Iterator[Record]:
    """The records of a file. UserError for a file that cannot be read, or a broken line that is not skipped."""
    file = SourceFile(path)
    ending = Path(file.plain_name).suffix
    if ending == ".parquet":
        yield from _parquet(path)
        return
    text = _text(file)
    if ending == ".jsonl":
        yield from _json_lines(path, text, broken)
    elif ending == ".json":
        yield from _json(path, text, broken)
    elif ending in (".csv", ".tsv"):
        yield from _table(path, text, "," if ending == ".csv" else "\t", layout, broken)
    elif ending == ".xml":
        yield from _xml(path, text, layout)
    elif ending in (".txt", ".lst") or layout.block or layout.pages:
        yield from _lines(path, text, layout, broken)
    else:
        raise UserError(f"{path}: {ending or 'no ending'} is no format of benchmark files; use {', '.join(ENDINGS)}")


def _text(file: SourceFile) -> str:
    with file.open() as stream:
        raw = stream.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{file.path}:{line}: this is not UTF-8 text; convert it: iconv -f latin1 -t utf-8") from None


def _json_lines(path: Path, text: str, broken: Broken) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            broken.found(f"{path}:{number}", f"this line is not JSON ({_brief(error)})")
            continue
        yield Record(values, f"{path}:{number}")


def _json(path: Path, text: str, broken: Broken) -> Iterator[Record]:
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        first = text.split("\n", 1)[0].strip()
        if first.startswith("{") and first.endswith("}"):
            yield from _json_lines(path, text, broken)
            return
        raise UserError(f"{path}:{error.lineno}: this file is not JSON ({error.msg}); correct it") from None
    except RecursionError:
        raise UserError(f"{path}: this JSON is nested too deep; give another file") from None
    if isinstance(whole, list):
        yield from (Record(values, f"{path}:record {number}") for number, values in enumerate(whole, 1))
    else:
        yield Record(whole, str(path))


def _table(path: Path, text: str, separator: str, layout: Layout, broken: Broken) -> Iterator[Record]:
    csv.field_size_limit(sys.maxsize)
    # Tables that tabs separate have quotes as characters of their texts, as GLUE and AI2 release them.
    quotes = '"' if separator == "," else None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quotechar=quotes, strict=True)
    names = list(layout.columns)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            broken.found(f"{path}:{line}", f"this row is not CSV ({error})")
            continue
        if row is None:
            return
        if not names:
            names = row
        elif len(row) == len(names):
            yield Record(dict(zip(names, row, strict=True)), f"{path}:{line}")
        elif row:
            broken.found(f"{path}:{line}", f"this row has {len(row)} columns in place of {len(names)}")


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            number = 0
            for batch in opened.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Record(values, f"{path}:record {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: this cannot be read as a parquet file ({_brief(error)}); give another file") from None


def _xml(path: Path, text: str, layout: Layout) -> Iterator[Record]:
    try:
        root = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError as error:
        raise UserError(f"{path}:{error.position[0]}: this is not XML ({_brief(error)}); correct it") from None
    for number, element in enumerate(root.iter(layout.element), 1):
        children = {child.tag: child.text or "" for child in element}
        yield Record({**element.attrib, **children}, f"{path}:{layout.element} {number}")


def _lines(path: Path, text: str, layout: Layout, broken: Broken) -> Iterator[Record]:
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if layout.block is not None:
        for start in range(0, len(lines), layout.block):
            block = lines[start : start + layout.block]
            if len(block) < layout.block:
                broken.found(f"{path}:{start + 1}", f"{len(block)} lines are left of a record of {layout.block}")
                return
            yield Record(block, f"{path}:{start + 1}")
    elif layout.pages is not None:
        starts = [number for number, line in enumerate(lines) if re.fullmatch(layout.pages, line)]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Record("\n".join(lines[start:end]), f"{path}:{start + 1}")
    else:
        yield from (Record(line, f"{path}:{number}") for number, line in enumerate(lines, 1))


def _brief(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:120]
