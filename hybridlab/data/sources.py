"""Sources of documents, which are always read in the same order.

embedded      the source files of the Python standard library on this machine: real text without a download
text:PATH     a text file, or a folder of .txt and .md files; a long file is cut at line ends into documents
jsonl:PATH    one JSON object per line (a file, or a folder of .jsonl files); a .json file with a list of objects
csv:PATH      a table with a header (a file, or a folder of .csv and .tsv files), one document per row
parquet:PATH  a parquet file, or a folder of .parquet files, one document per row
hub:NAME      a dataset of the Hugging Face hub, or a local folder in its layout, streamed by the package `datasets`;
              hub:NAME:CONFIG picks a config, hub:NAME:CONFIG:SPLIT a split and hub:NAME@REVISION a revision
shards:DIR    a folder made by `hybridlab data prepare` (data/shards.py)
primitives:SEED  solved questions (data/primitives.py); primitives:SEED:NAME,NAME picks some, a further :N sets the
              number of documents

`data.field` names the field or column of the text. Text, jsonl and csv files may be compressed (.gz, .bz2, .zst).
Hidden files in a folder are left out.

Each kind is a `Source` in the registry SOURCES. A plug-in adds one in the same way:

    SOURCES.add("poems", Source("poems:AUTHOR", lambda author, field: read_poems(author)))

Preparing data that was stopped goes on at a place, a JSON object. Files are passed by their number; the last one, and
an iterator of a plug-in that has neither `place` nor `go_to`, is read again up to the place.
"""

from __future__ import annotations

import codecs
import os
import re
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hybridlab.data import primitives
from hybridlab.data.files import (
    Layout,
    Record,
    SourceFile,
    local_files,
    opened_parquet,
    other_separator,
    read_records,
    table_header,
    visible_files,
)
from hybridlab.errors import UserError, nearest
from hybridlab.files import to_utf8, user_path
from hybridlab.plugins import entries, is_own, refuse, text_from
from hybridlab.registry import SOURCES, source_syntaxes

Place = dict[str, Any]
"""Where reading stands, as JSON."""
LONG_DOCUMENT = 32_768
"""Characters; a longer text file is cut into several documents, so that one file can be split for validation."""
LONGEST_DOCUMENT = 2**20
"""Characters; a longer document of any source is cut like a long text file, since a tokenizer needs 200 bytes of memory
for each."""
INSTEAD = "leave such lines out with data.skip_bad_lines=true (data prepare: --skip-bad-lines)"
"""What else than correcting a broken line one can do."""
_TEXTS = "an iterator of texts, its documents"
_BYTES_AT_ONCE = 2**20
_NOT_LIBRARY = {"site-packages", "dist-packages", "lib2to3", "idlelib", "turtledemo", "test", "tests", "__pycache__"}
_SECONDS_TO_ANSWER = 10.0
_HUB_SYNTAX = "hub:NAME[@REVISION][:CONFIG[:SPLIT]]"


def absolute_path(argument: str) -> str:
    """For arguments that are paths, so that a run can be resumed from any folder."""
    return str(user_path(argument).absolute())


@dataclass(frozen=True)
class Source:
    """A kind of data source; `argument` is what follows the colon in `kind:argument`.

    syntax: how it is written, for errors and help; without a colon it takes no argument. documents: (argument, name of
    the field that contains the text) → the documents, each time in the same order. files: argument → the local files
    that it reads; a corpus is prepared again when the name, size or time of one of them has changed. stored: argument →
    the form in which a run's configuration keeps it. label: argument → what the source is called in a mixture; by
    default its last part. has_lines: whether it has lines or rows of which broken ones can be left out; its documents
    then have `skip_bad` and `bad`.
    """

    syntax: str
    documents: Callable[[str, str], Iterator[str]]
    files: Callable[[str], list[Path]] = lambda argument: []
    stored: Callable[[str], str] = lambda argument: argument
    label: Callable[[str], str] = lambda argument: argument
    has_lines: bool = False


def split_source(source: str) -> tuple[str, str]:
    """Kind and argument of a source; UserError for an unknown kind, and for one without its argument."""
    kind, _, argument = source.partition(":")
    if kind not in SOURCES:
        hint = nearest(kind, SOURCES.names(), f"a source must be {source_syntaxes()}")
        raise UserError(f"data source {source!r} is of an unknown kind; {hint}")
    syntax = SOURCES.get(kind).syntax
    if (":" in syntax) != bool(argument):
        raise UserError(f"data source {source!r}: write it as {syntax}")
    return kind, argument


def read_documents(
    source: str, field: str = "text", max_documents: int | None = None, skip_bad_lines: bool = False
) -> Documents:
    """The documents of a source, in a fixed order; at most `max_documents`. skip_bad_lines: leave out what is broken,
    where the source has lines."""
    kind, argument = split_source(source)
    make = SOURCES.get(kind).documents
    documents = make(argument, field)
    if is_own(make):
        checked = entries(make, "", documents, _TEXTS)
        # An iterator of its own may know its place.
        documents = documents if isinstance(documents, Iterator) else checked
    if skip_bad_lines and SOURCES.get(kind).has_lines:
        documents.skip_bad = True
    return Documents(documents, max_documents, make)


def source_files(source: str) -> list[Path]:
    """The files of a local source, in the order of reading; none for a data set of the hub."""
    kind, argument = split_source(source)
    make = SOURCES.get(kind).files
    paths = [*entries(make, "", make(argument), "a list of paths")]
    return [Path(path) if isinstance(path, str | Path) else refuse(make, "", path, "a list of paths") for path in paths]


def source_labels(sources: list[str]) -> list[str]:
    """A short name for each source, from its last part: `text:books/old.txt` is `old`. Equal ones are numbered."""
    labels: list[str] = []
    for source in sources:
        kind, _, argument = source.partition(":")
        title = text_from(SOURCES.get(kind).label, argument) if kind in SOURCES else argument
        last = title.rstrip("/").rpartition("/")[2]
        name = re.sub(r"[^\w-]+", "-", re.sub(r"(\.[A-Za-z]\w*)+$", "", last)).strip("-") or kind
        label, number = name, 1
        while label in labels:
            number += 1
            label = f"{name}-{number}"
        labels.append(label)
    return labels


class Documents(Iterator[str]):
    """At most `limit` documents; very long ones in pieces, of which each is a document. number: how many have been
    read. made: the function that has made the documents, for errors. bad: how many lines or rows without a document
    were left out before; see the property."""

    def __init__(self, documents: Iterator[str], limit: int | None = None, made: object = None, bad: int = 0) -> None:
        self.documents, self.limit, self.number, self.made, self.bad_before = documents, limit, 0, made, bad
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
            if not isinstance(text, str):
                refuse(self.made, "", text, _TEXTS, f" as document {self.number + 1}")
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
        return getattr(self.documents, "bad", self.bad_before)

    def go_to(self, place: Place) -> None:
        """Go on after the document of a place; nothing may have been read yet."""
        again = place["documents"]
        if place["source"] is not None:
            self.documents.go_to(place["source"])  # type: ignore[attr-defined]
            self.known, again = place["source"], place["since"]
        next(islice(self, again, again), None)
        self.number = place["documents"]


class FileDocuments(Iterator[str]):
    """The documents of files, one file after another.

    skip_bad: leave out lines or rows that are broken. bad: how many have been left out.
    """

    def __init__(self, paths: list[Path], read: Callable[[SourceFile, str], Iterator[str]], field: str) -> None:
        self.paths, self.read, self.field = paths, read, field
        self.sizes = [path.stat().st_size for path in paths]
        self.number, self.given, self.now = 0, 0, SourceFile(paths[0])
        self.skip_bad, self.bad_before = False, 0
        self.documents = self._all()

    @property
    def bad(self) -> int:
        """In all files so far."""
        return self.bad_before + self.now.bad

    def _all(self) -> Iterator[str]:
        """The documents from the file `number` on."""
        for number in range(self.number, len(self.paths)):
            self.number, self.given, self.bad_before = number, 0, self.bad
            self.now = SourceFile(self.paths[number], self.skip_bad, INSTEAD)
            for text in self.read(self.now, self.field):
                self.given += 1
                yield text

    def __next__(self) -> str:
        return next(self.documents)

    @property
    def place(self) -> Place:
        """The file that is being read, how many of its documents have been, and the broken lines of those before."""
        return {"file": self.number, "documents": self.given, "bad": self.bad_before}

    def go_to(self, place: Place) -> None:
        """Go on after the document of a place."""
        self.number, self.bad_before, self.now = place["file"], place["bad"], SourceFile(self.paths[place["file"]])
        self.documents = self._all()
        next(islice(self.documents, place["documents"], place["documents"]), None)

    @property
    def share(self) -> float:
        """The share of all files' bytes that have been read, from 0 to 1."""
        before = sum(self.sizes[: self.number])
        inside = self.now.share() * self.now.path.stat().st_size
        return min(1.0, (before + inside) / max(1, sum(self.sizes)))


# ---- documents of files: (file, name of the field that contains the text) → documents, one at a time ----


class NoSuchField(UserError):
    """A source has no text in the field that was asked for. problem: the sentence without the advice."""

    def __init__(self, where: str, field: str, reason: str) -> None:
        self.problem = f"{where}: no text in field {field!r} ({reason})"
        super().__init__(f"{self.problem}; name it with --set data.field=NAME")


def without_text(record: Record, field: str) -> UserError:
    """The error for a record that has no text in a field."""
    if not isinstance(record.values, dict):
        return NoSuchField(record.origin, field, "not an object")
    if field not in record.values:
        return NoSuchField(record.origin, field, f"it has: {', '.join(record.values)}")
    value = record.values[field]
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    kind = "null" if value is None else kinds.get(type(value), type(value).__name__)
    quote = "" if value is None else f" ({str(value)[:40]})"
    return UserError(
        f"{record.origin}: the field {field!r} is {kind}{quote}, and must be a text; correct it, or {INSTEAD}, or name "
        "another field"
    )


def library_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A source file of the Python standard library, whole; what is not UTF-8 is replaced."""
    text = file.path.read_text(encoding="utf-8", errors="replace")
    if text.strip():
        yield text


def text_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A text file in UTF-8; one of more than LONG_DOCUMENT characters is cut at line ends."""
    blank: list[str] | None = []
    with file.open() as stream:
        for text in pieces(_decoded(file, stream)):
            if blank is not None and not text.strip():
                blank.append(text)
                continue
            yield from (*(blank or ()), text)
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
    offset, raw, start = 0, b" ", b""
    while raw:
        raw = stream.read(_BYTES_AT_ONCE)
        start = start or raw[:2]
        zero = raw.find(b"\0")
        if zero >= 0 and "utf-16" not in to_utf8(start):
            raise UserError(
                f"{file.path}: byte {offset + zero} is zero, so this is a binary file; give a text file in UTF-8"
            )
        try:
            yield decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            place = offset + len(raw) - len(error.object) + error.start  # bytes of before may wait in the decoder
            raise UserError(f"{file.path}: byte {place} is not UTF-8; if it is text, {to_utf8(start)}") from None
        offset += len(raw)


def _texts(
    file: SourceFile, field: str, layout: Layout, empty: str, lacks: Callable[[Record, str], UserError]
) -> Iterator[str]:
    """The texts in a field of a file's records. empty: what is wrong with a file without any. lacks: the error for a
    record without text."""
    for record in read_records(file, layout):
        text = record.values.get(field) if isinstance(record.values, dict) else None
        if isinstance(text, str):
            yield text
        else:
            file.leave_out(lacks(record, field))
    if not file.records:
        raise UserError(f"{file.path}: {empty}")
    file.check_all()


def jsonl_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A field of the JSON object in each line; empty lines are left out. A .json file may be a list of objects."""
    empty = "the file has no lines; give one JSON object per line"
    return _texts(file, field, Layout(".json" if file.ending == ".json" else ".jsonl"), empty, without_text)


def csv_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A column of a table whose first line names the columns, which commas separate (tabs, if the file is a .tsv)."""
    layout = Layout(".tsv" if file.ending == ".tsv" else ".csv", quotes=True)
    header = table_header(file, layout)
    if not header:
        raise UserError(f"{file.path}: the file is empty; give a table with the names of the columns in its first line")
    if any("\0" in name for name in header):
        raise UserError(f"{file.path}: this is a binary file; a csv source is a table as text")
    if len(header) == 1 and (advice := other_separator(header, layout.ending or "")):
        raise UserError(f"{file.path}:1: {advice}")
    if header.count(field) > 1:
        raise UserError(f"{file.path}:1: the header has the column {field!r} more than once; rename one")
    if field not in header:
        names = ", ".join(name[:40] for name in header[:20])
        separated = "tabs" if layout.ending == ".tsv" else "commas"
        raise NoSuchField(f"{file.path}:1", field, f"the header, separated by {separated}, has: {names}")
    empty = "the file has no rows below its header; give another file"
    return _texts(file, field, layout, empty, without_text)


def parquet_documents(file: SourceFile, field: str) -> Iterator[str]:
    """A column of text in a parquet file; no other column is read."""
    _check_column(file, field)

    def lacks(record: Record, field: str) -> UserError:
        return UserError(f"{record.origin} has no value in the column {field!r}; remove such rows, or {INSTEAD}")

    return _texts(file, field, Layout(".parquet", (field,)), "the file has no rows; give another file", lacks)


def _check_column(file: SourceFile, field: str) -> None:
    """UserError if the file has no rows, or no column of text with this name."""
    from pyarrow import types

    with opened_parquet(file.path) as opened:
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
    if rows == 0:
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


# ---- the hub and folders in its layout ----


@dataclass(frozen=True)
class HubName:
    """What follows `hub:`. folder: the local folder, if there is one of this name."""

    name: str
    revision: str | None
    config: str | None
    split: str
    folder: Path | None

    @classmethod
    def read(cls, argument: str) -> HubName:
        """UserError if it has too many parts, or is the path of a folder that is not there."""
        name, *more = argument.split(":")
        if len(more) > 2:
            raise UserError(f"data source hub:{argument}: it has too many parts; write {_HUB_SYNTAX}")
        config, split = (more + ["", ""])[:2]
        folder = user_path(name)
        if folder.is_dir():
            return cls(name, None, config or None, split or "train", folder)
        if name.startswith(("/", "./", "../", "~")):
            raise UserError(f"data source hub:{argument}: there is no such folder; give another path")
        name, _, revision = name.partition("@")
        return cls(name, revision or None, config or None, split or "train", None)


def _hub_stored(argument: str) -> str:
    """The form in which a run's configuration keeps it: a local folder with its absolute path."""
    name, colon, more = argument.partition(":")
    folder = user_path(name)
    return f"{folder.absolute()}{colon}{more}" if folder.is_dir() else argument


def _hub_files(argument: str) -> list[Path]:
    """The files of a local folder, sorted, without hidden ones; none for a data set of the hub."""
    folder = HubName.read(argument).folder
    return [] if folder is None else visible_files(folder)


def _hub_label(argument: str) -> str:
    """What it is called in a mixture: name and configuration without the revision."""
    name, colon, more = argument.partition(":")
    return (name if user_path(name).is_dir() else name.partition("@")[0]) + colon + more


class HubDocuments(Iterator[str]):
    """The texts of one field of a data set of the hub or of a local folder, in the order of its files.

    skip_bad: leave out records without text. bad: how many have been left out.
    """

    def __init__(self, argument: str, field: str) -> None:
        self.source, self.name, self.field = f"hub:{argument}", HubName.read(argument), field
        self.skip_bad, self.bad, self.number = False, 0, 0
        self.records: Iterator[dict[str, Any]] | None = None

    def __next__(self) -> str:
        while True:
            with self._explaining():
                self.records = self.records or iter(self.stream)
                record = next(self.records, None)
            if record is None:
                raise StopIteration
            self.number += 1
            text = record.get(self.field)
            if isinstance(text, str):
                return text
            if not self.skip_bad or self.field not in record:
                counted = " (counted from 0)" if self.field in record else ""
                raise without_text(Record(record, f"{self.source}: record {self.number - 1}{counted}"), self.field)
            self.bad += 1

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """A context that makes every error of the library, of many types for network and files, a UserError."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise self._explained(error) from None

    @cached_property
    def stream(self) -> Any:
        """The data set as the library reads it."""
        name = self.name
        if name.folder is None:
            _check_access(self.source, name)
        import datasets

        path = str(name.folder or name.name)
        return datasets.load_dataset(path, name.config, split=name.split, revision=name.revision, streaming=True)

    def _explained(self, error: Exception) -> UserError:
        """The library's reason on one line, with what to write instead where that is known."""
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if "scripts are no longer supported" in reason:
            parquet = f"hub:{self.name.name}@refs/convert/parquet"
            return UserError(
                f"{self.source}: the data set needs a program of its own, which is not run; use a copy of it as "
                f"Parquet, such as the hub's own if there is one: {parquet}"
            )
        if any(text in reason for text in ("onfig name", "BuilderConfig", "split: ")):
            return UserError(f"{self.source}: {reason.rstrip('.')}; name config and split as {_HUB_SYNTAX}")
        return UserError(f"{self.source}: the dataset cannot be read ({reason[:160]})")

    @property
    def place(self) -> Place:
        """Where the stream stands; it goes on in its file without reading those before."""
        return {"stream": self.stream.state_dict(), "records": self.number, "bad": self.bad}

    def go_to(self, place: Place) -> None:
        """Go on after the document of a place."""
        with self._explaining():
            self.stream.load_state_dict(place["stream"])
        self.number, self.bad = place["records"], place["bad"]


def _check_access(source: str, name: HubName) -> None:
    """UserError if the hub does not answer, has no such data set, or asks for terms to be accepted; without retries."""
    from huggingface_hub import HfApi, errors

    problems = {
        errors.HFValidationError: f"this is no name of a data set; write {_HUB_SYNTAX}, or hub:./FOLDER",
        errors.GatedRepoError: "its owners ask for their terms to be accepted; accept them at "
        f"https://huggingface.co/datasets/{name.name}, then log in with `hf auth login`",
        errors.RepositoryNotFoundError: "the hub has no such data set, or it is private; correct the name, or log in "
        "with `hf auth login`",
        errors.OfflineModeIsEnabled: "the hub is switched off by HF_HUB_OFFLINE=1; remove that, or give a local folder "
        "as hub:./FOLDER",
    }
    api = HfApi()
    try:
        if api.dataset_info(name.name, timeout=_SECONDS_TO_ANSWER, expand=["gated"]).gated:
            api.auth_check(name.name, repo_type="dataset")
    except Exception as error:  # also those of the HTTP client, which depends on the version of the library
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        unknown = f"the hub cannot be reached ({reason}); check the network, or give a local folder as hub:./FOLDER"
        problem = next((text for kind, text in problems.items() if isinstance(error, kind)), unknown)
        raise UserError(f"{source}: {problem}") from None


# ---- the built-in kinds ----


def _library_files(argument: str) -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = list[Path]()
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _NOT_LIBRARY  # site-packages may have ten times as many
        paths += [Path(folder) / name for name in names if name.endswith(".py")]
    return sorted(paths)


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


_add_files("embedded", _library_files, library_documents, str, has_lines=False)
_add_files("text:PATH", partial(local_files, "text", (".txt", ".md")), text_documents, has_lines=False)
_add_files("jsonl:PATH", partial(local_files, "jsonl", (".jsonl",)), jsonl_documents)
_add_files("csv:PATH", partial(local_files, "csv", (".csv", ".tsv")), csv_documents)
_add_files("parquet:PATH", partial(local_files, "parquet", (".parquet",), compressed=False), parquet_documents)
SOURCES.add("hub", Source("hub:NAME", HubDocuments, _hub_files, _hub_stored, _hub_label, has_lines=True))
SOURCES.add("shards", Source("shards:DIR", _prepared_documents, stored=absolute_path))
SOURCES.add("primitives", Source("primitives:SEED", primitives.documents, label=primitives.label))
