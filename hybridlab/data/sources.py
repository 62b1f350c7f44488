"""Sources of documents, which are always read in the same order.

embedded      the source files of the Python standard library on this machine: real text without a download
text:PATH     a text file, or a folder of .txt and .md files; a long file is cut at line ends into documents
jsonl:PATH    one JSON object per line (a file, or a folder of .jsonl files)
csv:PATH      a table with a header (a file, or a folder of .csv and .tsv files), one document per row
parquet:PATH  a parquet file, or a folder of .parquet files, one document per row
hub:NAME      a dataset of the Hugging Face hub, or a local folder in its layout, streamed; hub:NAME:CONFIG picks a
              config, hub:NAME:CONFIG:SPLIT a split and hub:NAME@REVISION a revision (data/hub.py)
shards:DIR    a folder made by `hybridlab data prepare` (data/shards.py)
primitives:SEED  solved questions (data/primitives.py); primitives:SEED:NAME,NAME picks some, a further :N sets the
              number of documents

`data.field` names the field or column of the text. Text, jsonl and csv files may be compressed (.gz, .zst). Hidden
files in a folder are left out.

Each kind is a `Source` in the registry SOURCES. A plug-in adds one in the same way:

    SOURCES.add("poems", Source("poems:AUTHOR", lambda author, field: read_poems(author)))
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hybridlab.data import hub, primitives
from hybridlab.data.documents import Documents, FileDocuments
from hybridlab.data.readers import (
    csv_documents,
    jsonl_documents,
    library_documents,
    parquet_documents,
    text_documents,
)
from hybridlab.data.source_files import SourceFile, local_files
from hybridlab.errors import UserError, nearest
from hybridlab.registry import SOURCES, source_syntaxes

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
    the form in which a run's configuration keeps it. label: argument → what the source is called in a mixture; by
    default its last part. has_lines: whether it has lines or rows of which broken ones can be left out; its documents
    then have `skip_bad` and `bad` (data/documents.py).
    """

    syntax: str
    documents: Callable[[str, str], Iterator[str]]
    files: Callable[[str], list[Path]] = no_files
    stored: Callable[[str], str] = as_written
    label: Callable[[str], str] = as_written
    has_lines: bool = False

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


def read_documents(
    source: str, field: str = "text", max_documents: int | None = None, skip_bad_lines: bool = False
) -> Documents:
    """The documents of a source, in a fixed order; at most `max_documents`. skip_bad_lines: leave out what is broken,
    where the source has lines."""
    kind, argument = split_source(source)
    documents = SOURCES.get(kind).documents(argument, field)
    if skip_bad_lines and SOURCES.get(kind).has_lines:
        documents.skip_bad = True
    return Documents(documents, max_documents)


def source_files(source: str) -> list[Path]:
    """The files of a local source, in the order of reading; none for a data set of the hub."""
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


def _prepared_documents(argument: str, field: str) -> Iterator[str]:
    raise UserError(f"data source shards:{argument}: it is prepared already; use it as it is")


def _add_files(
    syntax: str,
    files: Callable[[str], list[Path]],
    read: Callable[[SourceFile, str], Iterator[str]],
    stored: Callable[[str], str] = absolute_path,
    has_lines: bool = True,
) -> None:
    """Register a kind that reads local files, one after another. read: (file, field) → its documents."""

    def documents(argument: str, field: str) -> Iterator[str]:
        return FileDocuments(files(argument), read, field)

    SOURCES.add(syntax.partition(":")[0], Source(syntax, documents, files, stored, has_lines=has_lines))


_add_files("embedded", _library_files, library_documents, as_written, has_lines=False)
_add_files("text:PATH", partial(local_files, "text", (".txt", ".md")), text_documents, has_lines=False)
_add_files("jsonl:PATH", partial(local_files, "jsonl", (".jsonl",)), jsonl_documents)
_add_files("csv:PATH", partial(local_files, "csv", (".csv", ".tsv")), csv_documents)
_add_files("parquet:PATH", partial(local_files, "parquet", (".parquet",), compressed=False), parquet_documents)
SOURCES.add("hub", Source("hub:NAME", hub.HubDocuments, hub.local_parts, hub.stored, hub.label, has_lines=True))
SOURCES.add("shards", Source("shards:DIR", _prepared_documents, stored=absolute_path))
SOURCES.add("primitives", Source("primitives:SEED", primitives.documents, label=primitives.label))
