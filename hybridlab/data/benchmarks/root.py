"""The data root: the folder below which the files of benchmarks and fine-tuning tasks lie.

    DataRoot(Path("data")).split(TaskDataset("piqa", "baber/piqa"), "validation").rows

`--data-root DIR` or the environment variable HYBRIDLAB_DATA_ROOT names it. Benchmarks lie in the places of
presets/benchmarks/files.yaml. An experiment names the files of fine-tuning tasks as
`root:glue/sst2/validation.jsonl`, so that its runs are the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hybridlab.config.finetune import ROOT, Finetune
from hybridlab.config.loading import preset_folder
from hybridlab.data.benchmarks import rows as kinds
from hybridlab.data.files import Layout, Record, SourceFile, read_records
from hybridlab.errors import UserError

_WORDS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""What files of a split are called."""
_ENDINGS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
_COMPRESSED = ("", ".gz", ".bz2", ".zst")
_INSTEAD = "leave such lines out with --skip-bad-lines"
DATA_ROOT = "HYBRIDLAB_DATA_ROOT"
NO_ROOT = (
    "no data root is set; name the folder of the task files with HYBRIDLAB_DATA_ROOT=DIR or `reproduce --data-root DIR`"
)


def use_data_root(folder: Path | None) -> None:
    """Take a folder as the data root of this process and those that it starts; None keeps the one that is set.
    UserError if there is no such folder."""
    if folder is not None:
        os.environ[DATA_ROOT] = str(data_root(folder))


def data_root(folder: Path | None = None) -> Path | None:
    """The data root: this folder, or the one that is set; None without. UserError if there is no such folder."""
    if folder is not None:
        if not folder.is_dir():
            raise UserError(f"--data-root {folder}: there is no such folder; give the folder that holds the task files")
        return folder.expanduser().absolute()
    root = os.environ.get(DATA_ROOT)
    if root and not Path(root).is_dir():
        raise UserError(f"{DATA_ROOT}={root}: there is no such folder; name the folder that holds the task files")
    return Path(root) if root else None


def located(text: str) -> Path:
    """The path of a setting; UserError for one below a data root that is not set."""
    if not text.startswith(ROOT):
        return Path(text)
    root = os.environ.get(DATA_ROOT)
    if not root:
        raise UserError(f"{text}: {NO_ROOT}")
    return Path(root) / text.removeprefix(ROOT)


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


@dataclass(frozen=True)
class Source(Layout):
    """The files of one split in one layout. labels: a file with one label on each line. only: a field and its value,
    of the records that are taken."""

    paths: Sequence[str] = ()
    labels: str | None = None
    only: tuple[str, str] | None = None


@dataclass(frozen=True)
class Entry:
    """An entry of the list: which tasks it serves, the kind of their rows, and where their files are. classes: columns
    with the number of a class → the names of the classes."""

    rows: str = "as_they_are"
    tasks: Sequence[str] = ()
    hub: Sequence[str] = ()
    name: str | None = None
    folders: Sequence[str] = ()
    files: dict[str, list[Source]] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=dict)

    def serves(self, wanted: TaskDataset) -> bool:
        return wanted.task in self.tasks or wanted.dataset in self.hub and self.name in (None, wanted.name)


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

    def split(self, wanted: TaskDataset, split: str) -> Served | None:
        """The rows of a split; None if there is no file. UserError, with file and line, for a broken line."""
        key = (wanted, split)
        if key not in self._read:
            entry = _entry(wanted)
            found = next((place for place in _places(entry, wanted, split) if self._is_there(place)), None)
            self._read[key] = None if found is None else self._rows(entry, found)
        return self._read[key]

    def missing(self, wanted: TaskDataset, splits: tuple[str, ...]) -> str:
        """Where files of the splits were looked for, in words."""
        entry = _entry(wanted)
        named = [" and ".join(s.paths) for split in splits for s in entry.files.get(split, [])]
        named = [_filled(path, wanted) for path in named]
        general = [f"{_filled(folder, wanted)}/{splits[0]}.jsonl" for folder in entry.folders]
        return f"no file of {wanted.task} below {self.folder}; it would be {' or '.join([*named, *general][:3])}"

    def _is_there(self, source: Source) -> bool:
        return all((self.folder / path).is_file() for path in source.paths)

    def _rows(self, entry: Entry, source: Source) -> Served:
        make, made = getattr(kinds, entry.rows), list[tuple[dict[str, Any], str]]()
        skipped = 0
        for path in source.paths:
            file = SourceFile(self.folder / path, skip_bad=self.skip_bad_lines, instead=_INSTEAD)
            for record in self._records(file, source):
                if source.only is not None and record.values.get(source.only[0]) != source.only[1]:
                    continue
                try:
                    rows = list(make(record.values))
                    made += [(_numbered(row, entry.classes), record.origin) for row in rows]
                except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
                    file.broken(record.origin, _problem(error))
            skipped += file.bad
        if not made:
            raise UserError(f"{self.folder / source.paths[0]}: this file has no example that can be read; restore it")
        return Served([row for row, _ in made], [origin for _, origin in made], tuple(source.paths), skipped)

    def _records(self, file: SourceFile, source: Source) -> Iterator[Record]:
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
    """A row with the numbers of classes in the place of their names."""
    return row | {column: kinds.one_of(row[column], len(names), names) for column, names in classes.items()}


def _problem(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r}"
    if isinstance(error, ValueError) and error.args:
        return str(error.args[0])
    return "it has not the form of such a record"


def _places(entry: Entry, wanted: TaskDataset, split: str) -> Iterator[Source]:
    """Where the files of a split may be, the first choice first."""
    for source in entry.files.get(split, []):
        labels = None if source.labels is None else _filled(source.labels, wanted)
        yield replace(source, paths=[_filled(path, wanted) for path in source.paths], labels=labels)
    for folder in entry.folders:
        for word in _WORDS.get(split, (split,)):
            for ending in _ENDINGS:
                yield from (Source(paths=[f"{_filled(folder, wanted)}/{word}{ending}{c}"]) for c in _COMPRESSED)


def _filled(path: str, wanted: TaskDataset) -> str:
    return path.replace("{name}", wanted.name or "")


def _entry(wanted: TaskDataset) -> Entry:
    entry = next((entry for entry in _entries() if entry.serves(wanted)), Entry())
    if entry.files or entry.folders:
        return entry
    dataset = (wanted.dataset or wanted.task).rpartition("/")[2]
    named = (f"{dataset}/{wanted.name}",) if wanted.name else ()
    return replace(entry, folders=tuple(dict.fromkeys((wanted.task, *named, dataset))))


@cache
def _entries() -> tuple[Entry, ...]:
    """The entries of the list, in which a text stands for a list of one."""
    entries = []
    for entry in yaml.safe_load((preset_folder("benchmarks") / "files.yaml").read_text(encoding="utf-8")):
        listed = {
            key: [text] if isinstance(text := entry.pop(key, []), str) else text for key in ("tasks", "hub", "folder")
        }
        files = {split: [_source(written) for written in given] for split, given in entry.pop("files", {}).items()}
        entries.append(Entry(**entry, tasks=listed["tasks"], hub=listed["hub"], folders=listed["folder"], files=files))
    return tuple(entries)


def _source(written: str | dict[str, Any]) -> Source:
    if isinstance(written, str):
        return Source(paths=[written])
    paths = written.pop("paths", None) or [written.pop("path")]
    return Source(paths=paths, **written)
