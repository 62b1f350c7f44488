"""Local files and the records in them, each with its place: documents of a source, examples of a task, rows of a
benchmark.

.jsonl              one JSON object per line
.json               a list of objects, one object with everything, or one object per line
.csv, .tsv          a table; its first line names the columns, unless the caller does
.parquet            a table
.xml                the elements of one name, with their attributes and children
.txt, .lst          lines, blocks of lines, or pages that begin with a certain line

All but parquet may be compressed (.gz, .bz2, .zst).

The package `datasets`, which reads data sets of the hub (data/sources.py), does not serve here. It infers the types of
a table (a text `007` becomes the number 7), its errors name no line, one broken line ends the reading, and what it does
not stream it copies into a cache first.

The data root is the folder below which the files of benchmarks and fine-tuning tasks lie; `--data-root DIR` or the
environment variable HYBRIDLAB_DATA_ROOT names it. Benchmarks lie in the places of presets/benchmarks/files.yaml. An
experiment names the files of fine-tuning tasks as `root:glue/sst2/validation.jsonl`, so that its runs are the same on
every machine.

    DataRoot(Path("data")).split(TaskDataset("piqa", "baber/piqa"), "validation").rows
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast
from xml.etree import ElementTree

import yaml
from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from hybridlab.config.finetune import ROOT, Finetune
from hybridlab.config.loading import preset_folder
from hybridlab.data import benchmark_rows as kinds
from hybridlab.errors import UserError, first_line
from hybridlab.files import in_place_of, to_utf8, user_path

_COMPRESSIONS = {".gz": ("gzip", b"\x1f\x8b"), ".bz2": ("bz2", b"BZh"), ".zst": ("zstd", b"\x28\xb5\x2f\xfd")}
"""Ending → name of the compression, and the bytes that such a file begins with."""
_ROWS_AT_ONCE = 1024
_WORDS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""What files of a split are called."""
_SPLIT_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
_INSTEAD = "leave such lines out with --skip-bad-lines"
DATA_ROOT = "HYBRIDLAB_DATA_ROOT"
NO_ROOT = (
    "no data root is set; name the folder of the task files with HYBRIDLAB_DATA_ROOT=DIR or `reproduce --data-root DIR`"
)
_NEVER_CLOSED = "this row is not CSV (a quote that opens here is never closed)"
_QUOTES = "a text that contains a separator or a line end needs quotes"


class SourceFile:
    """A file that is being read.

    share: a function that says how much of it has been read, from 0 to 1. records: how many lines or rows have been
    read. skip_bad: leave out records that are broken. bad: how many have been left out. instead: what else than
    correcting a broken record one can do.
    """

    def __init__(self, path: Path, skip_bad: bool = False, instead: str = "remove it") -> None:
        self.path, self.skip_bad, self.instead = path, skip_bad, instead
        self.records = self.bad = 0
        self.first_bad: UserError | None = None
        self.share: Callable[[], float] = lambda: 0.0

    @property
    def packing(self) -> str:
        """The ending of a compressed file's name in small letters; empty for others."""
        ending = self.path.suffix.lower()
        return ending if ending in _COMPRESSIONS else ""

    @property
    def ending(self) -> str:
        """That of the file's name in small letters, without .gz, .bz2 or .zst; .jsonl for .ndjson, its other name."""
        name = self.path.stem if self.packing else self.path.name
        ending = Path(name).suffix.lower()
        return ".jsonl" if ending == ".ndjson" else ending

    def broken(self, origin: str, problem: str, correct: str = "correct it") -> None:
        """Leave out a broken record; UserError with its place and what to do, unless such records are left out."""
        self.leave_out(UserError(f"{origin}: {problem}; {correct}, or {self.instead}"))

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
            if (pointer := in_place_of(self.path)) is not None:
                raise UserError(f"{self.path}: {pointer}")
            with self.path.open("rb") as raw:
                size = self.path.stat().st_size
                self.share = lambda: 1.0 if raw.closed or not size else raw.tell() / size
                if size and self.packing:
                    import pyarrow

                    plain = pyarrow.CompressedInputStream(raw, _COMPRESSIONS[self.packing][0])
                    yield cast(BinaryIO, io.BufferedReader(plain))
                else:
                    yield raw
        except OSError as error:
            raise UserError(f"{self.path}: {self._reason(error)}") from None

    def _reason(self, error: OSError) -> str:
        """Why the file cannot be read. Errors of decompression have no number."""
        if error.errno is not None or not self.packing:
            return f"it cannot be read ({error.strerror or error})"
        name, magic = _COMPRESSIONS[self.packing]
        with self.path.open("rb") as raw:
            if raw.read(len(magic)) != magic:
                return f"this is not a {name} file; give it the ending that it should have, or compress it with {name}"
        return f"this {name} file is cut short or damaged ({error}); copy or download it again"

    @contextmanager
    def lines(self, newline: str | None) -> Iterator[io.TextIOWrapper]:
        """Lines of text. A byte that is not UTF-8 becomes a lone surrogate, so that its line can be named."""
        with self.open() as stream:
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline=newline)

    def text(self) -> str:
        """All of it. UserError with the line of what is not UTF-8."""
        with self.open() as stream:
            raw = stream.read()
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UserError(f"{self.path}:{line}: this is not UTF-8 text; {to_utf8(raw)}") from None


def local_files(kind: str, endings: tuple[str, ...], argument: str, compressed: bool = True) -> list[Path]:
    """The file of this path; or all files with these endings in the folder of this path, sorted, without hidden files.

    compressed: files with .gz, .bz2 or .zst after the ending belong to them.
    """
    path = user_path(argument)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"data source {kind}:{argument}: there is no such file or folder; give another path")
    packed = ("", *_COMPRESSIONS) if compressed else ("",)
    suffixes = tuple(ending + after for ending in endings for after in packed)
    files = [file for file in visible_files(path) if file.name.endswith(suffixes)]
    if not files:
        also = f", also compressed ({', '.join(_COMPRESSIONS)})" if compressed else ""
        raise UserError(f"data source {kind}:{argument}: the folder has no {' or '.join(endings)} file{also}")
    texts: dict[Path, Path] = {}
    for file in files:
        other = texts.setdefault(file.with_suffix("") if file.suffix in _COMPRESSIONS else file, file)
        if other != file:
            raise UserError(
                f"data source {kind}:{argument}: the folder has {other.name} and {file.name}, "
                "which would be read twice; remove one of them"
            )
    return files


def files_key(files: Iterable[Path]) -> str:
    """A digest of names, sizes and modification times of files."""
    stats = ((path, path.stat()) for path in files)
    lines = "".join(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n" for path, stat in stats)
    return hashlib.sha256(lines.encode()).hexdigest()


def visible_files(folder: Path) -> list[Path]:
    """All files in a folder and in those below it, sorted, without hidden ones."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))


@dataclass(frozen=True, slots=True)
class Record:
    """What a file says of one example: an object by name, or whatever else stands there. origin: its place."""

    values: Any
    origin: str


@dataclass(frozen=True)
class Layout:
    """How a file is to be read, where its ending does not say it.

    ending: read it as if it had this one. columns: of a table without a header; of parquet, those to read, where none
    is all. quotes: whether quotes stand around texts in a table that tabs separate; without, they are characters of the
    text, as GLUE and AI2 release them. element: of XML. block: so many lines are a record. pages: a line that matches
    begins a record; with these two a file may have any ending.
    """

    ending: str | None = None
    columns: tuple[str, ...] = ()
    quotes: bool = False
    element: str | None = None
    block: int | None = None
    pages: str | None = None


def read_records(file: SourceFile, layout: Layout = Layout()) -> Iterator[Record]:
    """The records of a file. UserError for a file that cannot be read, or a broken record that is not left out."""
    ending = layout.ending or file.ending
    reader = _READERS.get(ending) or (_lines if layout.block or layout.pages else None)
    if reader is None:
        raise UserError(f"{file.path}: {ending or 'no ending'} is no format of data files; use {', '.join(_READERS)}")
    return reader(file, layout)


def _json_lines(file: SourceFile, layout: Layout) -> Iterator[Record]:
    with file.lines(newline=None) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            file.records += 1
            origin = f"{file.path}:{number}"
            try:
                line.encode()
            except UnicodeEncodeError:
                file.broken(origin, "this is not UTF-8 text", "convert it")
                continue
            try:
                values = json.loads(line)
                if "\\u" in line:
                    _require_text(values)
            except (ValueError, RecursionError) as error:
                if line.lstrip().startswith("[") and file.records == 1:
                    file.leave_out(_array(origin, "begins a JSON array of several lines"))
                    continue
                file.broken(origin, f"this line is not JSON in UTF-8 ({str(error)[:80]})")
                continue
            if isinstance(values, list) and values and all(isinstance(value, dict) for value in values):
                file.leave_out(_array(origin, "is a JSON array"))
                continue
            yield Record(values, origin)


def _array(origin: str, problem: str) -> UserError:
    advice = "write one object on each line, or call the file .json"
    return UserError(f"{origin}: this line {problem}; {advice}")


def _require_text(values: Any) -> None:
    """UnicodeEncodeError for half of a surrogate pair, which is no text that can be written."""
    json.dumps(values, ensure_ascii=False).encode()


def _json(file: SourceFile, layout: Layout) -> Iterator[Record]:
    text = file.text()
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        first = text.lstrip().split("\n", 1)[0].strip()
        if first.startswith("{") and first.endswith("}"):
            yield from _json_lines(file, layout)
            return
        raise UserError(f"{file.path}:{error.lineno}: this file is not JSON ({error.msg}); correct it") from None
    except RecursionError:
        raise UserError(f"{file.path}: this JSON is nested too deep; give another file") from None
    except ValueError as error:
        raise UserError(f"{file.path}: this file cannot be read ({first_line(error)}); correct it") from None
    several = isinstance(content, list)
    for number, values in enumerate(content if several else [content]):
        file.records += 1
        origin = f"{file.path}: entry {number} (counted from 0)" if several else str(file.path)
        try:
            if "\\u" in text:
                _require_text(values)
        except UnicodeEncodeError:
            file.broken(origin, "this is no text in UTF-8 (half of a surrogate pair)")
            continue
        yield Record(values, origin)


def table_header(file: SourceFile, layout: Layout = Layout()) -> list[str]:
    """The cells of the first row of a table; none of an empty file."""
    with file.lines(newline="") as lines:
        line, cells = next(_rows(file, lines, layout), (1, []))
    if isinstance(cells, str):
        raise UserError(f"{file.path}:{line}: {cells}; correct the file")
    return cells


def other_separator(cells: list[str], ending: str) -> str | None:
    """What to do about a table whose first line another character separates than the file's ending says; None where
    none does."""
    ours = "," if ending == ".csv" else "\t"
    ways = {
        "\t": "tabs separate this line, so call the file .tsv",
        ",": "commas separate this line, so call the file .csv",
        ";": "semicolons separate this line; write commas in their place, and quotes around a cell that has a comma",
        "|": "bars separate this line; write commas in their place, and quotes around a cell that has a comma",
    }
    line = ours.join(cells)
    separator = max(ways, key=line.count)
    return ways[separator] if line.count(separator) > line.count(ours) else None


def prompts_of(path: Path) -> list[Record]:
    """The prompts of a file: the objects of a .jsonl or .json file, else the texts of all lines that are not empty."""
    if not path.exists():  # it may be a pipe
        raise UserError(f"{path}: there is no such file; give a text file with a prompt in each line, or a .jsonl file")
    file = SourceFile(path)
    if file.ending in (".csv", ".tsv", ".parquet"):
        raise UserError(f"{path}: prompts cannot be read from {file.ending}; write a .jsonl file, or one on each line")
    return list(read_records(file) if has_fields(path) else lines_of(file.text(), f"{path}:"))


def has_fields(path: Path) -> bool:
    """Whether a file of prompts has objects."""
    return SourceFile(path).ending in (".jsonl", ".json")


def lines_of(text: str, origin: str) -> Iterator[Record]:
    """The lines of a text that are not empty. origin: of its lines, before their number."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            yield Record(line.removesuffix("\r"), f"{origin}{number}")


def _table(file: SourceFile, layout: Layout) -> Iterator[Record]:
    names = list(layout.columns) or table_header(file, layout)
    with file.lines(newline="") as lines:
        rows = _rows(file, lines, layout)
        if not layout.columns:
            next(rows, None)
        for line, cells in rows:
            file.records += 1
            origin = f"{file.path}:{line}"
            if isinstance(cells, str):
                if cells == _NEVER_CLOSED:
                    # Everything after the quote was read as one row, so there is nothing to go on with.
                    raise UserError(f"{origin}: {cells}; correct it")
                file.broken(origin, cells)
            elif len(cells) != len(names):
                problem = f"this row has {len(cells)} columns, the header has {len(names)}"
                file.broken(origin, problem + (f" ({_QUOTES})" if _has_quotes(file, layout) else ""))
            else:
                yield Record(dict(zip(names, cells, strict=True)), origin)


def _rows(file: SourceFile, lines: io.TextIOWrapper, layout: Layout) -> Iterator[tuple[int, list[str] | str]]:
    """(line where it begins, cells) of every row that is not empty; a text in place of the cells says what is wrong."""
    separator = "," if (layout.ending or file.ending) == ".csv" else "\t"
    for line, cells in _quoted(lines, separator) if _has_quotes(file, layout) else _plain(lines):
        try:
            "".join(cells).encode()
        except UnicodeEncodeError:
            yield line, "this is not UTF-8 text"
        else:
            yield line, cells


def _has_quotes(file: SourceFile, layout: Layout) -> bool:
    return layout.quotes or (layout.ending or file.ending) == ".csv"


def _plain(lines: io.TextIOWrapper) -> Iterator[tuple[int, list[str] | str]]:
    """Rows of a table that tabs separate, without quotes."""
    # A carriage return alone is a character of a text; only \n ends a line.
    lines.reconfigure(newline="\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line.removesuffix("\n").rstrip("\r").split("\t")


def _quoted(lines: io.TextIOWrapper, separator: str) -> Iterator[tuple[int, list[str] | str]]:
    # The limit of the library, 131,072 characters, is less than many documents have.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, _NEVER_CLOSED if "end of data" in str(error) else f"this row is not CSV ({error})"
            continue
        if cells is None:
            return
        if cells:
            yield line, cells


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetFile. UserError if it is none, also while the block reads from it."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as opened:
            yield opened
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: this cannot be read as a parquet file ({first_line(error)}); give another file"
        ) from None


def _parquet(file: SourceFile, layout: Layout) -> Iterator[Record]:
    with opened_parquet(file.path) as opened:
        rows = opened.metadata.num_rows
        file.share = lambda: file.records / max(1, rows)
        for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=list(layout.columns) or None):
            for values in _rows_of(batch):
                file.records += 1
                origin = f"{file.path}: row {file.records - 1} (counted from 0)"
                if isinstance(values, UnicodeDecodeError):
                    file.broken(origin, "this is not UTF-8 text", "convert it")
                elif isinstance(values, Exception):
                    file.broken(origin, f"this row cannot be read ({first_line(values)})")
                else:
                    yield Record(values, origin)


def _rows_of(batch: Any) -> Iterator[dict[str, Any] | Exception]:
    """The rows of a batch of a parquet file; an error for one with a text that is not UTF-8, or a time that Python does
    not have."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError) as error:
        parts = (batch.slice(row, 1) for row in range(batch.num_rows))
        rows = [error] if batch.num_rows == 1 else [row for part in parts for row in _rows_of(part)]
    yield from rows


def _xml(file: SourceFile, layout: Layout) -> Iterator[Record]:
    try:
        root = ElementTree.fromstring(file.text().encode())
    except ElementTree.ParseError as error:
        reason = str(error).split("\n", 1)[0][:120]
        raise UserError(f"{file.path}:{error.position[0]}: this is not XML ({reason}); correct it") from None
    except (LookupError, ValueError) as error:  # its first line names another encoding
        raise UserError(f"{file.path}:1: this is not XML in UTF-8 ({first_line(error)}); convert it") from None
    for number, element in enumerate(root.iter(layout.element), 1):
        children = {child.tag: child.text or "" for child in element}
        yield Record({**element.attrib, **children}, f"{file.path}:{layout.element} {number}")


def _lines(file: SourceFile, layout: Layout) -> Iterator[Record]:
    lines = [line.removesuffix("\r") for line in file.text().removesuffix("\n").split("\n")]
    if layout.block is not None:
        for start in range(0, len(lines), layout.block):
            block = lines[start : start + layout.block]
            if len(block) < layout.block:
                problem = f"{len(block)} lines are left of a record of {layout.block}"
                file.broken(f"{file.path}:{start + 1}", problem)
                return
            yield Record(block, f"{file.path}:{start + 1}")
    elif layout.pages is not None:
        starts = [number for number, line in enumerate(lines) if re.fullmatch(layout.pages, line)]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Record("\n".join(lines[start:end]), f"{file.path}:{start + 1}")
    else:
        yield from (Record(line, f"{file.path}:{number}") for number, line in enumerate(lines, 1))


_READERS: dict[str, Callable[[SourceFile, Layout], Iterator[Record]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _table,
    ".tsv": _table,
    ".parquet": _parquet,
    ".xml": _xml,
    ".txt": _lines,
    ".lst": _lines,
}


# ---- the data root ----


def use_data_root(folder: Path | None) -> None:
    """Take a folder as the data root of this process and those that it starts; None keeps the one that is set.
    UserError if there is no such folder."""
    if folder is not None:
        os.environ[DATA_ROOT] = str(data_root(folder))


def data_root(folder: Path | None = None) -> Path | None:
    """The data root: this folder, or the one that is set; None without. UserError if there is no such folder."""
    if folder is not None:
        folder = user_path(folder)
        if not folder.is_dir():
            raise UserError(f"--data-root {folder}: there is no such folder; give the folder that holds the task files")
        return folder.absolute()
    root = os.environ.get(DATA_ROOT)
    if root and not user_path(root).is_dir():
        raise UserError(f"{DATA_ROOT}={root}: there is no such folder; name the folder that holds the task files")
    return user_path(root) if root else None


def located(text: str) -> Path:
    """The path of a setting; UserError for one below a data root that is not set."""
    if not text.startswith(ROOT):
        return user_path(text)
    root = os.environ.get(DATA_ROOT)
    if not root:
        raise UserError(f"{text}: {NO_ROOT}")
    return user_path(root) / text.removeprefix(ROOT)


def missing_files(settings: Finetune) -> str | None:
    """Why a task's files below the data root cannot be read, in words; None if they are there or need no root."""
    for text in (settings.data, settings.validation):
        if text is None or not text.startswith(ROOT):
            continue
        if not os.environ.get(DATA_ROOT):
            return NO_ROOT
        if not located(text).exists():
            return f"{located(text)} is not there"
    return None


# ---- benchmarks ----


@dataclass(frozen=True)
class TaskDataset:
    """What a task of lm-eval reads: its name, and the dataset and configuration that it names."""

    task: str
    dataset: str | None = None
    name: str | None = None


Texts = Annotated[tuple[str, ...], BeforeValidator(lambda written: [written] if isinstance(written, str) else written)]
"""A text stands for a list of one."""


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SplitFiles(Layout):
    """The files of one split in one layout. labels: a file with one label on each line. only: a field and its value,
    of the records that are taken."""

    paths: Texts = ()
    labels: str | None = None
    only: tuple[str, str] | None = None


_PATH_ALONE = BeforeValidator(lambda written: {"paths": written} if isinstance(written, str) else written)


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TaskFiles:
    """An entry of the list: which tasks it serves, the kind of their rows, and where their files are. classes: columns
    with the number of a class → the names of the classes."""

    rows: str = "as_they_are"
    tasks: Texts = ()
    hub: Texts = ()
    name: str | None = None
    folder: Texts = ()
    files: dict[str, list[Annotated[SplitFiles, _PATH_ALONE]]] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=dict)

    def serves(self, task: TaskDataset) -> bool:
        return task.task in self.tasks or task.dataset in self.hub and self.name in (None, task.name)

    def places(self, split: str) -> Iterator[SplitFiles]:
        """Where the files of a split may be, the first choice first."""
        yield from self.files.get(split, [])
        for folder in self.folder:
            for ends in product(_WORDS.get(split, (split,)), _SPLIT_ENDINGS, ("", *_COMPRESSIONS)):
                yield SplitFiles(paths=(f"{folder}/{''.join(ends)}",))


@dataclass(frozen=True)
class Served:
    """The rows of a split. origins: for each row, where it stands. files: the paths below the data root. skipped: how
    many broken lines were left out."""

    rows: list[dict[str, Any]]
    origins: list[str]
    files: tuple[str, ...]
    skipped: int


@dataclass
class DataRoot:
    """See the module. skip_bad_lines: leave out and count what would be an error."""

    folder: Path
    skip_bad_lines: bool = False
    _read: dict[tuple[TaskDataset, str], Served | None] = field(default_factory=dict)

    def split(self, task: TaskDataset, split: str) -> Served | None:
        """The rows of a split; None if there is no file. UserError, with file and line, for a broken line."""
        key = (task, split)
        if key not in self._read:
            entry = _entry(task)
            places = (place for place in entry.places(split) if all((self.folder / p).is_file() for p in place.paths))
            place = next(places, None)
            self._read[key] = None if place is None else self._rows(entry, place)
        return self._read[key]

    def missing(self, task: TaskDataset, splits: tuple[str, ...]) -> str:
        """Where files of the splits were looked for, in words."""
        entry = _entry(task)
        listed = [" and ".join(s.paths) for split in splits for s in entry.files.get(split, [])]
        general = [f"{folder}/{splits[0]}.jsonl" for folder in entry.folder]
        return f"no file of {task.task} below {self.folder}; it would be {' or '.join([*listed, *general][:3])}"

    def _rows(self, entry: TaskFiles, source: SplitFiles) -> Served:
        make, examples = getattr(kinds, entry.rows), list[tuple[dict[str, Any], str]]()
        skipped = 0
        for path in source.paths:
            file = SourceFile(self.folder / path, skip_bad=self.skip_bad_lines, instead=_INSTEAD)
            for record in self._records(file, source):
                try:
                    if source.only is not None and record.values.get(source.only[0]) != source.only[1]:
                        continue
                    rows = list(make(record.values))
                    examples += [(_numbered(row, entry.classes), record.origin) for row in rows]
                except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
                    file.broken(record.origin, _problem(error))
            skipped += file.bad
        if not examples:
            raise UserError(f"{self.folder / source.paths[0]}: this file has no example that can be read; restore it")
        return Served([row for row, _ in examples], [origin for _, origin in examples], source.paths, skipped)

    def _records(self, file: SourceFile, source: SplitFiles) -> Iterator[Record]:
        records = read_records(file, source)
        if source.labels is None or not (self.folder / source.labels).is_file():
            yield from records
            return
        # A label belongs to a line, so that a broken line does not shift those after it.
        labels = [label.values for label in read_records(SourceFile(self.folder / source.labels))]
        for record in records:
            line = int(record.origin.rpartition(":")[2])
            if line > len(labels):
                file.broken(record.origin, f"{source.labels} has no label for it, only {len(labels)}")
            elif isinstance(record.values, dict):
                yield Record({**record.values, "label": labels[line - 1].strip()}, record.origin)
            else:
                yield record


def _numbered(row: dict[str, Any], classes: dict[str, list[str]]) -> dict[str, Any]:
    """A row with the numbers of classes instead of their names."""
    return row | {column: kinds.one_of(row[column], len(names), names) for column, names in classes.items()}


def _problem(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r}"
    if isinstance(error, ValueError) and error.args:
        return str(error.args[0])
    return "it has not the form of such a record"


def _entry(task: TaskDataset) -> TaskFiles:
    """The entry that serves a task, with its name of the configuration in all places."""
    entry = next((entry for entry in _entries() if entry.serves(task)), TaskFiles())
    if not entry.files and not entry.folder:
        dataset = (task.dataset or task.task).rpartition("/")[2]
        variant = (f"{dataset}/{task.name}",) if task.name else ()
        return replace(entry, folder=tuple(dict.fromkeys((task.task, *variant, dataset))))

    def filled(path: str) -> str:
        return path.replace("{name}", task.name or "")

    files = {
        split: [replace(s, paths=tuple(map(filled, s.paths)), labels=s.labels and filled(s.labels)) for s in sources]
        for split, sources in entry.files.items()
    }
    return replace(entry, folder=tuple(map(filled, entry.folder)), files=files)


@cache
def _entries() -> tuple[TaskFiles, ...]:
    written = yaml.safe_load((preset_folder("benchmarks") / "files.yaml").read_text(encoding="utf-8"))
    return tuple(TaskFiles(**entry) for entry in written)
