"""Sources of documents, which are always read in the same order.

embedded      the source files of the Python standard library on this machine: real text without a download
text:PATH     a text file, or a folder of .txt and .md files; a long file is cut at line ends into documents
jsonl:PATH    one JSON object per line (a file, or a folder of .jsonl files); `data.field` names the field of the text
hub:NAME      a dataset of the Hugging Face hub (or a local dataset folder), streamed; hub:NAME:CONFIG picks a config
shards:DIR    a folder made by `hybridlab data prepare` (data/shards.py)

Each kind is a `Source` in the registry SOURCES. A plug-in adds one in the same way:

    SOURCES.add("poems", Source("poems:AUTHOR", lambda author, field: read_poems(author)))
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from hybridlab.errors import UserError
from hybridlab.registry import SOURCES, nearest, source_syntaxes

LONG_DOCUMENT = 32_768
"""Characters; a longer text file is cut into several documents, so that one file can be split for validation."""

_NOT_LIBRARY = {"site-packages", "dist-packages", "lib2to3", "idlelib", "turtledemo", "test", "tests", "__pycache__"}


def no_files(argument: str) -> list[Path]:
    """For sources that read no local file."""
    return []


def as_written(argument: str) -> str:
    """For arguments that mean the same in every folder."""
    return argument


def absolute_path(argument: str) -> str:
    """For arguments that are paths, so that a run can be resumed from any folder."""
    return str(Path(argument).expanduser().absolute())


@dataclass(frozen=True)
class Source:
    """A kind of data source; `argument` is what follows the colon in `kind:argument`.

    syntax: how it is written, for errors and help; without a colon it takes no argument. documents: (argument, name of
    the field that contains the text) → the documents, each time in the same order. files: argument → the local files
    that it reads; a corpus is prepared again when the name, size or time of one of them has changed. stored: argument →
    the form in which a run's configuration keeps it.
    """

    syntax: str
    documents: Callable[[str, str], Iterator[str]]
    files: Callable[[str], list[Path]] = no_files
    stored: Callable[[str], str] = as_written

    @property
    def takes_argument(self) -> bool:
        return ":" in self.syntax


def split_source(source: str) -> tuple[str, str]:
    """Kind and argument of a source; UserError for an unknown kind, and for one without its argument."""
    kind, _, argument = source.partition(":")
    if kind not in SOURCES:
        hint = nearest(kind, SOURCES.names(), f"a source must be {source_syntaxes()}")
        raise UserError(f"data source {source!r} is of an unknown kind; {hint}")
    if SOURCES.get(kind).takes_argument != bool(argument):
        raise UserError(f"data source {source!r}: write it as {SOURCES.get(kind).syntax}")
    return kind, argument


def read_documents(source: str, field: str = "text", max_documents: int | None = None) -> Iterator[str]:
    """The documents of a source, in a fixed order; at most `max_documents`."""
    kind, argument = split_source(source)
    return islice(SOURCES.get(kind).documents(argument, field), max_documents)


def source_files(source: str) -> list[Path]:
    """The files of a local source, in the order of reading; none for hub."""
    kind, argument = split_source(source)
    return SOURCES.get(kind).files(argument)


def files_key(source: str) -> str:
    """A digest of names, sizes and modification times of the files of a local source."""
    digest = hashlib.sha256()
    for path in source_files(source):
        stat = path.stat()
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _library_files(argument: str) -> list[Path]:
    """The source files of the Python standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = (Path(folder) / name for folder, _, names in os.walk(root) for name in names if name.endswith(".py"))
    return sorted(path for path in paths if not _NOT_LIBRARY & set(path.relative_to(root).parts))


def _local_files(kind: str, endings: tuple[str, ...], argument: str) -> list[Path]:
    """The file of this path, or all files with these endings in the folder of this path."""
    path = Path(argument).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"data source {kind}:{argument}: there is no such file or folder; give another path")
    files = sorted(p for p in path.rglob("*") if p.suffix in endings and p.is_file())
    if not files:
        raise UserError(f"data source {kind}:{argument}: the folder has no {' or '.join(endings)} file")
    return files


_text_files = partial(_local_files, "text", (".txt", ".md"))
_jsonl_files = partial(_local_files, "jsonl", (".jsonl",))


def _text_documents(path: Path, cut: bool) -> Iterator[str]:
    # Files of a user must be UTF-8; those of the standard library are read with replacements.
    text = _read_text(path) if cut else path.read_text(encoding="utf-8", errors="replace")
    if cut and not text.strip():
        raise UserError(f"{path}: the file has no text; give another file")
    if not cut or len(text) <= LONG_DOCUMENT:
        if text.strip():
            yield text
        return
    start = 0
    while start < len(text):
        end = text.find("\n", start + LONG_DOCUMENT // 2)
        end = len(text) if end < 0 else end + 1
        if end - start > LONG_DOCUMENT:
            end = start + LONG_DOCUMENT
        yield text[start:end]
        start = end


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: it cannot be read ({error.strerror})") from None
    zero = raw.find(b"\0")
    if zero >= 0:
        raise UserError(f"{path}: byte {zero} is zero, so this is a binary file; give a text file in UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is not UTF-8; if it is text, convert it: iconv -f latin1 -t utf-8"
        ) from None


def _jsonl_documents(path: Path, field: str) -> Iterator[str]:
    empty = True
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                yield _text_of(line, field, f"{path}:{number}")
                empty = False
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not UTF-8 text; a jsonl source holds one JSON object per line") from None
    if empty:
        raise UserError(f"{path}: the file has no lines; give one JSON object per line")


def _text_of(line: str, field: str, origin: str) -> str:
    """The text in one line of a jsonl source. origin: file and line, for messages."""
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin}: this line is not JSON in UTF-8 ({str(error)[:80]})") from None
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        names = ", ".join(record) if isinstance(record, dict) else "not an object"
        raise UserError(f"{origin}: no text in field {field!r} (it has: {names}); name it with --set data.field=NAME")
    return record[field]


def _hub_documents(argument: str, field: str) -> Iterator[str]:
    import datasets

    name, _, config = argument.partition(":")
    try:
        stream = datasets.load_dataset(name, config or None, split="train", streaming=True)
        for index, record in enumerate(stream):
            if not isinstance(record.get(field), str):
                raise UserError(
                    f"hub:{argument}: record {index} has no text in field {field!r} (it has: {', '.join(record)}); "
                    "name it with --set data.field=NAME"
                )
            yield record[field]
    except UserError:
        raise
    except Exception as error:  # the library raises errors of many types, for network and files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"hub:{argument}: the dataset cannot be read ({reason[:160]})") from None


def _prepared_documents(argument: str, field: str) -> Iterator[str]:
    raise UserError(f"data source shards:{argument}: it is prepared already; use it as it is")


def _add_files(
    syntax: str,
    files: Callable[[str], list[Path]],
    read: Callable[[Path, str], Iterator[str]],
    stored: Callable[[str], str] = absolute_path,
) -> None:
    """Register a kind that reads local files, one after another. read: (file, field) → its documents."""

    def documents(argument: str, field: str) -> Iterator[str]:
        return (text for path in files(argument) for text in read(path, field))

    SOURCES.add(syntax.partition(":")[0], Source(syntax, documents, files, stored))


_add_files("embedded", _library_files, lambda path, field: _text_documents(path, cut=False), as_written)
_add_files("text:PATH", _text_files, lambda path, field: _text_documents(path, cut=True))
_add_files("jsonl:PATH", _jsonl_files, _jsonl_documents)
SOURCES.add("hub", Source("hub:NAME", _hub_documents))
SOURCES.add("shards", Source("shards:DIR", _prepared_documents, stored=absolute_path))
