"""Readers of files: (file, name of the field that contains the text) → documents, one at a time.

A mistake in a file is a UserError with the file and the line or row.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from hybridlab.data.source_files import SourceFile
from hybridlab.errors import UserError

LONG_DOCUMENT = 32_768
"""Characters; a longer text file is cut into several documents, so that one file can be split for validation."""
LONGEST_DOCUMENT = 2**20
"""Characters; a longer document of any source is cut like a long text file, since a tokenizer needs 200 bytes of memory
for each."""
_CHUNK = 2**20
_ROWS_AT_ONCE = 1024


class NoSuchField(UserError):
    """A source has no text in the field that was asked for. problem: the sentence without the advice."""

    def __init__(self, where: str, field: str, reason: str) -> None:
        self.problem = f"{where}: no text in field {field!r} ({reason})"
        super().__init__(f"{self.problem}; name it with --set data.field=NAME")


def library_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A source file of the Python standard library, whole; what is not UTF-8 is replaced."""
    text = file.path.read_text(encoding="utf-8", errors="replace")
    if text.strip() and file.unread():
        yield text


def text_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A text file in UTF-8; one of more than LONG_DOCUMENT characters is cut at line ends."""
    blank: list[str] | None = []
    with file.open() as stream:
        for text in pieces(_decoded(file, stream)):
            if blank is not None and not text.strip():
                blank.append(text)
                continue
            for piece in (*(blank or ()), text):
                if file.unread():
                    yield piece
            blank = None
    if blank is not None:
        raise UserError(f"{file.path}: the file has no text; give another file")


def pieces(chunks: Iterator[str]) -> Iterator[str]:
    """The text of all chunks in pieces of half to all of LONG_DOCUMENT characters; one that is not longer is not cut.

    A piece ends at the first line end in its second half, if there is one.
    """
    text, start, ended, first = "", 0, False, True
    while True:
        while not ended and len(text) - start <= LONG_DOCUMENT:
            chunk = next(chunks, None)
            ended = chunk is None
            text, start = text[start:] + (chunk or ""), 0
        left = len(text) - start
        if left == 0:
            return
        end = text.find("\n", start + LONG_DOCUMENT // 2, start + LONG_DOCUMENT) + 1
        if left <= LONG_DOCUMENT and (first or not end):
            end = len(text)
        end = end or start + LONG_DOCUMENT
        yield text[start:end]
        start, first = end, False


def _decoded(file: SourceFile, stream: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset, raw = 0, b" "
    while raw:
        raw = stream.read(_CHUNK)
        zero = raw.find(b"\0")
        if zero >= 0:
            raise UserError(
                f"{file.path}: byte {offset + zero} is zero, so this is a binary file; give a text file in UTF-8"
            )
        waiting = len(decoder.getstate()[0])
        try:
            yield decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            place = offset - waiting + error.start
            raise UserError(
                f"{file.path}: byte {place} is not UTF-8; if it is text, convert it: iconv -f latin1 -t utf-8"
            ) from None
        offset += len(raw)


def jsonl_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A field of the JSON object in each line; empty lines are left out."""
    with file.open() as stream:
        for number, line in enumerate(_lines(stream, newline=None), 1):
            if not line.strip() or not file.unread():
                continue
            try:
                text = _text_of(line, field, f"{file.path}:{number}")
            except UserError as error:
                file.leave_out(error)
                continue
            yield text
    if not file.records:
        raise UserError(f"{file.path}: the file has no lines; give one JSON object per line")
    file.check_all()


def bad_line_advice(correct: str) -> str:
    """What to do about a broken line. correct: how to correct it."""
    return (
        correct and f"{correct}, or "
    ) + "leave such lines out with data.skip_bad_lines=true (data prepare: --skip-bad-lines)"


def not_a_text(where: str, field: str, value: Any) -> UserError:
    """The error for a field that holds something else than a text."""
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    kind = "null" if value is None else kinds.get(type(value), type(value).__name__)
    shown = "" if value is None else f" ({str(value)[:40]})"
    return UserError(
        f"{where}: the field {field!r} is {kind}{shown}, and must be a text; {bad_line_advice('correct it')}, or name "
        "another field"
    )


def _text_of(line: str, field: str, origin: str) -> str:
    """The text in one line of a jsonl source. origin: file and line, for messages."""
    try:
        line.encode()
    except UnicodeEncodeError:
        raise UserError(f"{origin}: this is not UTF-8 text; {bad_line_advice('convert it')}") from None
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = f"this line is not JSON in UTF-8 ({str(error)[:80]})"
        raise UserError(f"{origin}: {reason}; {bad_line_advice('correct it')}") from None
    if not isinstance(record, dict) or field not in record:
        raise NoSuchField(
            origin, field, f"it has: {', '.join(record)}" if isinstance(record, dict) else "not an object"
        )
    if not isinstance(record[field], str):
        raise not_a_text(origin, field, record[field])
    return record[field]


def csv_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A column of a table whose first line names the columns, which commas separate (tabs, if the file is a .tsv)."""
    # The limit of the library, 131,072 characters, is less than many documents have.
    csv.field_size_limit(sys.maxsize)
    separator = "\t" if file.plain_name.endswith(".tsv") else ","
    with file.open() as stream:
        rows = _csv_rows(csv.reader(_lines(stream, newline=""), delimiter=separator, strict=True))
        line, header = next(rows, (1, []))
        if isinstance(header, str):
            raise _bad_row(file, line, header)
        column = _csv_column(file, header, field, separator)
        for line, row in rows:
            if not file.unread():
                continue
            reason = _wrong_with(row, header)
            if reason is None:
                yield row[column]
            elif row == _NEVER_CLOSED:
                # Everything after the quote was read as one row, so there is nothing to go on with.
                raise _bad_row(file, line, reason)
            else:
                file.leave_out(_bad_row(file, line, reason))
    if not file.records:
        raise UserError(f"{file.path}: the file has no rows below its header; give another file")
    file.check_all()


_NEVER_CLOSED = "this row is not CSV (a quote that opens here is never closed)"


def _bad_row(file: SourceFile, line: int, reason: str) -> UserError:
    advice = "correct it" if reason == _NEVER_CLOSED else bad_line_advice("correct it")
    return UserError(f"{file.path}:{line}: {reason}; {advice}")


def _wrong_with(row: list[str] | str, header: list[str]) -> str | None:
    """What is wrong with a row, in words; None if nothing is."""
    if isinstance(row, str):
        return row
    if len(row) != len(header):
        return (
            f"this row has {len(row)} columns, the header has {len(header)} (a text that contains a separator or a "
            "line end needs quotes)"
        )
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return "this is not UTF-8 text"
    return None


def _lines(stream: BinaryIO, newline: str | None) -> Iterable[str]:
    """Lines of text. A byte that is not UTF-8 becomes a lone surrogate, so that its line can be named."""
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _csv_rows(reader: Any) -> Iterator[tuple[int, list[str] | str]]:
    """(line where it begins, row) for every row that is not empty; a text in place of a row says what is wrong."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield line, _NEVER_CLOSED if "end of data" in str(error) else f"this row is not CSV ({error})"
            continue
        if row is None:
            return
        if row:
            yield line, row


def _csv_column(file: SourceFile, header: list[str], field: str, separator: str) -> int:
    """The number of a column by its name."""
    if not header:
        raise UserError(f"{file.path}: the file is empty; give a table with the names of the columns in its first line")
    if _wrong_with(header, header):
        raise UserError(f"{file.path}:1: this is not UTF-8 text; convert the file")
    if any("\0" in name for name in header):
        raise UserError(f"{file.path}: this is a binary file; a csv source is a table as text")
    if header.count(field) > 1:
        raise UserError(f"{file.path}:1: the header has the column {field!r} more than once; rename one")
    if field not in header:
        names = ", ".join(name[:40] for name in header[:20])
        separated = "tabs" if separator == "\t" else "commas"
        raise NoSuchField(f"{file.path}:1", field, f"the header, separated by {separated}, has: {names}")
    return header.index(field)


def parquet_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A column of text in a parquet file; no other column is read."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path) as opened:
            _check_column(file, opened, field)
            rows = opened.metadata.num_rows
            file.share = lambda: file.records / rows
            groups = _unread_groups(file, opened.metadata)
            for batch in opened.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=[field]):
                for text in batch.column(0).to_pylist():
                    if not file.unread():
                        continue
                    if text is not None:
                        yield text
                        continue
                    where = f"{file.path}: row {file.records - 1} (counted from 0)"
                    reason = f"has no value in the column {field!r}"
                    file.leave_out(UserError(f"{where} {reason}; {bad_line_advice('remove such rows')}"))
        file.check_all()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0][:160]
        raise UserError(f"{file.path}: this cannot be read as a parquet file ({reason}); give another file") from None


def _unread_groups(file: SourceFile, metadata: Any) -> list[int]:
    """The row groups that have unread rows; the rows of those before count as read."""
    first = 0
    while first < metadata.num_row_groups and file.records + metadata.row_group(first).num_rows <= file.past:
        file.records += metadata.row_group(first).num_rows
        first += 1
    return list(range(first, metadata.num_row_groups))


def _check_column(file: SourceFile, opened: Any, field: str) -> None:
    """UserError if the file has no rows, or no column of text with this name."""
    from pyarrow import types

    schema = opened.schema_arrow
    if opened.metadata.num_rows == 0:
        raise UserError(f"{file.path}: the file has no rows; give another file")
    if schema.names.count(field) > 1:
        raise UserError(f"{file.path}: it has the column {field!r} more than once; rename one")
    if field not in schema.names:
        raise NoSuchField(str(file.path), field, f"it has: {', '.join(schema.names[:20])}")
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        texts = [column.name for column in schema if types.is_string(column.type) or types.is_large_string(column.type)]
        raise NoSuchField(str(file.path), field, f"it holds {kind}; columns of text: {', '.join(texts) or 'none'}")
