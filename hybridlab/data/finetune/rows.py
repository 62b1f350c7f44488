"""The rows of a task's files, each with its place (file and line), for errors.

.tsv, .txt  tables that tabs separate, without quotes, as GLUE releases them
.csv        tables that commas separate, with quotes
.jsonl      one JSON object per line
.json       SQuAD's own layout, a list of objects, or one object per line
.parquet    a table

All but parquet may be compressed (.gz, .zst).
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.data.source_files import SourceFile
from hybridlab.errors import UserError

ENDINGS = (".tsv", ".txt", ".csv", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Row:
    """Values by column, and where the row stands."""

    values: dict[str, Any]
    origin: str


def read_rows(path: Path, layouts: Iterable[tuple[str, ...]], headerless: tuple[str, ...] = ()) -> list[Row]:
    """All rows of a file, at least one. layouts: the columns of each accepted layout. headerless: the columns of a
    table without a header. UserError with the place of the first mistake."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give the path of a task file")
    file = SourceFile(path)
    ending = Path(file.plain_name).suffix
    try:
        if ending == ".parquet":
            rows = _parquet(path)
        elif ending in ENDINGS:
            with file.open() as stream:
                text = stream.read().decode("utf-8-sig")
            if not text.strip():
                raise UserError(f"{path}: the file is empty; give a file with examples")
            tables = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
            if ending in tables:
                rows = _table(path, text, tables[ending], list(layouts), headerless)
            else:
                rows = _lines(path, text) if ending == ".jsonl" else _json(path, text)
        else:
            raise UserError(f"{path}: {ending or 'no ending'} is no format of task files; use {', '.join(ENDINGS)}")
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not UTF-8 text; convert it: iconv -f latin1 -t utf-8") from None
    if not rows:
        raise UserError(f"{path}: the file has no examples; give another file")
    return rows


def _lines(path: Path, text: str) -> list[Row]:
    return [
        Row(_object(line, f"{path}:{n}"), f"{path}:{n}") for n, line in enumerate(text.split("\n"), 1) if line.strip()
    ]


def _object(line: str, origin: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin}: this line is not JSON ({str(error)[:80]}); correct or remove it") from None
    if not isinstance(found, dict):
        raise UserError(f"{origin}: this line is no JSON object; write one object per line")
    return found


def _json(path: Path, text: str) -> list[Row]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        if "Extra data" in str(error):
            return _lines(path, text)
        raise UserError(f"{path}: this is not JSON ({str(error)[:80]}); correct it") from None
    if isinstance(whole, dict) and isinstance(whole.get("data"), list):
        return list(_squad(path, whole["data"]))
    entries = whole if isinstance(whole, list) else [whole]
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise UserError(f"{path}: entry {number} (counted from 0) is no JSON object; write a list of objects")
    return [Row(entry, f"{path}: entry {number}") for number, entry in enumerate(entries)]


def _squad(path: Path, articles: list[Any]) -> Iterator[Row]:
    """SQuAD's data[].paragraphs[].qas[] as rows with the columns of the hub."""
    place = "data"
    try:
        for a, article in enumerate(articles):
            for p, paragraph in enumerate(article["paragraphs"]):
                place = f"data[{a}].paragraphs[{p}]"
                for question in paragraph["qas"]:
                    origin = f"{path}: {place}, question {question.get('id', '?')}"
                    yield Row({"context": paragraph["context"], **question}, origin)
    except (KeyError, TypeError, AttributeError) as error:
        missing = f" (it has no {error})" if isinstance(error, KeyError) else ""
        raise UserError(
            f"{path}: {place} is not in SQuAD's layout{missing}; each paragraph needs context and qas"
        ) from None


def _table(
    path: Path, text: str, separator: str, layouts: list[tuple[str, ...]], headerless: tuple[str, ...]
) -> list[Row]:
    """Rows below a header, or all rows if the first line is none and the columns are known without."""
    lines = list(_cells(path, text, separator))
    header = [name.strip() for name in lines[0][1]]
    if any(set(names) <= set(header) for names in layouts):
        lines = lines[1:]
    elif len(header) == len(headerless):
        header = list(headerless)
    else:
        wanted = " or ".join(", ".join(names) for names in layouts)
        raise UserError(
            f"{path}:1: the header needs the columns {wanted}, and has {', '.join(name[:40] for name in header[:12])}; "
            f"{_other_separator(text, separator) or 'rename the columns'}"
        )
    rows = []
    for line, cells in lines:
        if len(cells) != len(header):
            raise UserError(
                f"{path}:{line}: this row has {len(cells)} columns, and the table has {len(header)}; correct or "
                "remove it"
            )
        rows.append(Row(dict(zip(header, cells, strict=True)), f"{path}:{line}"))
    return rows


def _other_separator(text: str, separator: str) -> str | None:
    """What to do about a table whose first line another character separates than the file's ending says."""
    first = text.split("\n", 1)[0]
    other = "\t" if separator == "," else ","
    if first.count(other) <= first.count(separator):
        return None
    name, ending = ("commas", "csv") if other == "," else ("tabs", "tsv")
    return f"{name} separate this line, so call the file .{ending}"


def _cells(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not empty. Tables of tabs have no quotes."""
    if separator == "\t":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, line.rstrip("\r").split("\t")
        return
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}:{number}: this row is not CSV ({error}); correct it") from None
        if cells is None:
            return
        if cells:
            yield number, cells


def _parquet(path: Path) -> list[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        found = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0][:160]
        raise UserError(f"{path}: this cannot be read as a parquet file ({reason}); give another file") from None
    return [Row(values, f"{path}: row {number}") for number, values in enumerate(found)]
