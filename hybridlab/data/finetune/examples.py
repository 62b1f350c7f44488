"""The examples of a task: texts with a class, a number, a right option or answers, from files or the hub, in parts.

`--data FILE` is the training part; what is measured is `--validation FILE` or, without one, a share of the training
examples, which is drawn once and is the same for all runs. `--data FOLDER` holds train.* and validation.* or dev.*.
Without --data the task's dataset of the Hugging Face hub is read.

.tsv, .txt  tables that tabs separate, without quotes, as GLUE releases them
.csv        tables that commas separate, with quotes
.jsonl      one JSON object per line
.json       SQuAD's own layout, a list of objects, or one object per line
.parquet    a table

All but parquet may be compressed (.gz, .bz2, .zst).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybridlab.config.finetune import Finetune
from hybridlab.data.benchmarks.root import located
from hybridlab.data.benchmarks.rows import one_of
from hybridlab.data.files import Layout, Record, SourceFile, read_records, table_header
from hybridlab.data.finetune.tasks import Columns, FineTask
from hybridlab.data.hub_access import without_hub
from hybridlab.errors import UserError

_SEED = 20_250_101
"""Of the examples that are held out: the same for all runs."""
_PART = re.compile(r"(train|validation|valid|val|dev)(_matched|_mismatched)?(-\d+-of-\d+)?\.")
TRAIN = "train"
_ENDINGS = (".tsv", ".txt", ".csv", ".jsonl", ".json", ".parquet")
_TABLES = (".tsv", ".txt", ".csv")


@dataclass(frozen=True)
class Example:
    """rows: one or two texts for each row of the model's input; in multiple choice, a row for each option. label: the
    number of the class or option, or the number asked for. answers: of a span, the right ones, each with the character
    of the context at which it begins; none if the question has no answer. group: examples on the same passage."""

    rows: tuple[tuple[str, ...], ...]
    label: float
    group: str
    answers: tuple[tuple[str, int], ...] = ()


def examples_of(task: FineTask, rows: Iterable[Record]) -> list[Example]:
    """The examples of a task's rows. UserError with the place of a row that lacks a column, or whose label is wrong."""
    made = []
    for row in rows:
        columns = _layout(task, row)
        for single in _unfolded(columns, row):
            made.append(_MAKERS[task.kind](task, columns, single))
    return made


def _layout(task: FineTask, row: Record) -> Columns:
    for columns in task.layouts:
        if all(name in row.values for name in columns.names):
            return columns
    wanted = " or ".join(", ".join(columns.names) for columns in task.layouts)
    missing = next(name for name in task.layouts[0].names if name not in row.values)
    raise UserError(
        f"{row.origin}: the task {task.name} needs the columns {wanted}; there is no {missing!r} among "
        f"{', '.join(map(str, list(row.values)[:12]))}"
    )


def _unfolded(columns: Columns, row: Record) -> Iterator[Record]:
    """A row for each question of a row with several."""
    if not columns.lists:
        yield row
        return
    first, *others = columns.names
    lists = {name: row.values[name] for name in others}
    if not all(isinstance(value, list) for value in lists.values()) or len({len(v) for v in lists.values()}) != 1:
        raise UserError(f"{row.origin}: {', '.join(others)} must be lists of equal length; correct this row")
    for number in range(len(lists[others[0]])):
        single = {name: value[number] for name, value in lists.items()}
        yield Record({first: row.values[first], **single}, f"{row.origin}, question {number + 1}")


def _text(row: Record, name: str) -> str:
    value = row.values[name]
    if not isinstance(value, str):
        raise UserError(f"{row.origin}: {name} is {value!r}, and must be a text; correct or remove this row")
    return value


def _class_of(task: FineTask, row: Record, name: str) -> int:
    """The number of the class that a cell names, or whose number it is."""
    try:
        return one_of(row.values[name], len(task.classes), task.classes)
    except ValueError:
        known = ", ".join(f"{number} ({word})" for number, word in enumerate(task.classes))
        raise UserError(
            f"{row.origin}: the label {row.values[name]!r} in {name} is none of the task {task.name}: {known}; correct "
            "or remove this row"
        ) from None


def _classes(task: FineTask, columns: Columns, row: Record) -> Example:
    texts = tuple(_text(row, name) for name in columns.texts)
    return Example((texts,), _class_of(task, row, columns.label), row.origin)


def _number(task: FineTask, columns: Columns, row: Record) -> Example:
    try:
        value = float(row.values[columns.label])
    except (TypeError, ValueError):
        value = math.nan
    low, high = task.limits or (-math.inf, math.inf)
    if not low <= value <= high:
        raise UserError(
            f"{row.origin}: {columns.label} is {row.values[columns.label]!r}, and must be a number from {low:g} to "
            f"{high:g}; correct or remove this row"
        )
    return Example((tuple(_text(row, name) for name in columns.texts),), value, row.origin)


def _choice(task: FineTask, columns: Columns, row: Record) -> Example:
    assert columns.options is not None
    options = row.values[columns.options]
    if not isinstance(options, list) or len(options) != task.options or not all(isinstance(o, str) for o in options):
        raise UserError(
            f"{row.origin}: {columns.options} must be a list of {task.options} texts, and is {str(options)[:80]!r}; "
            "correct or remove this row"
        )
    passage, *question = (_text(row, name) for name in columns.texts)
    seconds = [_with_option(question[0], option, task.fill) if question else option for option in options]
    return Example(tuple((passage, second) for second in seconds), _class_of(task, row, columns.label), passage)


def _with_option(question: str, option: str, fill: bool) -> str:
    """The question with an option in the place of its blank, or after it (as for RACE in BERT's line of work)."""
    return question.replace("_", option) if fill and "_" in question else f"{question} {option}"


def _span(task: FineTask, columns: Columns, row: Record) -> Example:
    question, context = (_text(row, name) for name in columns.texts)
    if row.values.get("is_impossible"):
        raise UserError(
            f"{row.origin}: this question has no answer (SQuAD 2.0), and {task.name} asks for one in every paragraph; "
            "remove the questions with is_impossible"
        )
    answers = tuple(_answers(row, columns.label))
    if not answers:
        raise UserError(f"{row.origin}: the question has no answers; remove it, or add one")
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise UserError(
                f"{row.origin}: the answer {text[:40]!r} is not at character {start} of the context; correct "
                "answer_start"
            )
    return Example(((question, context),), 0.0, context, answers)


def _answers(row: Record, name: str) -> Iterator[tuple[str, int]]:
    """Answers as SQuAD has them, [{text, answer_start}], or as the hub has them, {text: […], answer_start: […]}."""
    found: Any = row.values[name]
    try:
        if isinstance(found, dict):
            found = [
                {"text": text, "answer_start": start}
                for text, start in zip(found["text"], found["answer_start"], strict=True)
            ]
        for answer in found:
            text, start = answer["text"], answer["answer_start"]
            if not isinstance(text, str) or type(start) is not int or start < 0:
                raise TypeError
            yield text, start
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{row.origin}: {name} must be a list of {{text, answer_start}}, and is {str(found)[:80]}; correct it"
        ) from None


_MAKERS = {"classes": _classes, "number": _number, "choice": _choice, "span": _span}


# ---- rows of files ----


def read_rows(path: Path, task: FineTask) -> list[Record]:
    """All rows of a file of a task, at least one. UserError with the place of the first mistake."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give the path of a task file")
    file = SourceFile(path)
    if file.ending not in _ENDINGS:
        ending = file.ending or "no ending"
        raise UserError(f"{path}: {ending} is no format of task files; use {', '.join(_ENDINGS)}")
    if file.ending in _TABLES:
        found = read_records(file, _table_layout(file, task))
        rows = [Record({name.strip(): cell for name, cell in row.values.items()}, row.origin) for row in found]
    else:
        rows = [one for row in read_records(file) for one in _objects(path, row)]
    if not rows:
        raise UserError(f"{path}: the file has no examples; give another file")
    return rows


def _objects(path: Path, row: Record) -> Iterator[Record]:
    """A row, or, of a file in SQuAD's own layout, its questions."""
    if not isinstance(row.values, dict):
        raise UserError(f"{row.origin}: this is no JSON object; write one object for each example")
    if row.origin == str(path) and isinstance(row.values.get("data"), list):
        yield from _squad(path, row.values["data"])
    else:
        yield row


def _squad(path: Path, articles: list[Any]) -> Iterator[Record]:
    """SQuAD's data[].paragraphs[].qas[] as rows with the columns of the hub."""
    place = "data"
    try:
        for a, article in enumerate(articles):
            for p, paragraph in enumerate(article["paragraphs"]):
                place = f"data[{a}].paragraphs[{p}]"
                for question in paragraph["qas"]:
                    origin = f"{path}: {place}, question {question.get('id', '?')}"
                    yield Record({"context": paragraph["context"], **question}, origin)
    except (KeyError, TypeError, AttributeError) as error:
        missing = f" (it has no {error})" if isinstance(error, KeyError) else ""
        raise UserError(
            f"{path}: {place} is not in SQuAD's layout{missing}; each paragraph needs context and qas"
        ) from None


def _table_layout(file: SourceFile, task: FineTask) -> Layout:
    """With the columns of a table without a header, if the task knows such tables and this is one."""
    ending = ".csv" if file.ending == ".csv" else ".tsv"
    first = table_header(file, Layout(ending))
    if not first:
        raise UserError(f"{file.path}: the file is empty; give a file with examples")
    header = [name.strip() for name in first]
    if any(set(columns.names) <= set(header) for columns in task.layouts):
        return Layout(ending)
    if len(header) == len(task.headerless):
        return Layout(ending, columns=task.headerless)
    wanted = " or ".join(", ".join(columns.names) for columns in task.layouts)
    # A table whose first line another character separates than the file's ending says.
    ours, other, name, right = (",", "\t", "tabs", "tsv") if ending == ".csv" else ("\t", ",", "commas", "csv")
    line = ours.join(first)
    advice = f"{name} separate this line, so call the file .{right}" if line.count(other) > line.count(ours) else None
    has = ", ".join(name[:40] for name in header[:12])
    raise UserError(
        f"{file.path}:1: the header needs the columns {wanted}, and has {has}; {advice or 'rename the columns'}"
    )


# ---- parts ----


def source_name(task: FineTask, settings: Finetune) -> str:
    """Where the examples come from, in words."""
    if settings.data is None:
        return f"hub:{task.hub.name}" + (f":{task.hub.config}" if task.hub.config else "")
    return f"{task.name}:{settings.data}"


def parts_of(task: FineTask, settings: Finetune) -> dict[str, list[Example]]:
    """The examples by part: train first, then those that are measured. UserError if one is empty."""
    if settings.data is None:
        parts = _from_hub(task, own_validation=settings.validation is None)
    else:
        parts = _local(task, located(settings.data))
    if settings.validation is not None:
        parts = {TRAIN: parts[TRAIN], next(iter(task.hub.splits)): _read(task, [located(settings.validation)])}
    elif len(parts) == 1:
        return _held_out(parts[TRAIN], settings, next(iter(task.hub.splits)))
    elif settings.validation_fraction is not None:
        raise UserError(
            "finetune.validation_fraction has no effect: "
            f"{settings.data or source_name(task, settings)} has a part to measure with; leave it out"
        )
    return parts


def _read(task: FineTask, files: list[Path]) -> list[Example]:
    return [example for file in files for example in examples_of(task, read_rows(file, task))]


def _local(task: FineTask, path: Path) -> dict[str, list[Example]]:
    """The parts of a file, which is all training, or of a folder with files named after its parts."""
    if not path.exists():
        raise UserError(f"--data {path}: there is no such file or folder; give a file of the task {task.name}")
    if not path.is_dir():
        return {TRAIN: _read(task, [path])}
    files: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        found = _PART.match(file.name)
        if found and SourceFile(file).ending in _ENDINGS:
            part = TRAIN if found[1] == TRAIN else "mismatched" if found[2] == "_mismatched" else "validation"
            files.setdefault(part, []).append(file)
    if TRAIN not in files:
        names = ", ".join(file.name for file in sorted(path.iterdir())[:8]) or "nothing"
        raise UserError(
            f"--data {path}: the folder has no train.tsv, train.jsonl … (it has {names}); give the training file itself"
        )
    if "mismatched" in files and "validation" not in files:
        files["validation"] = files.pop("mismatched")
    return {part: _read(task, files[part]) for part in (TRAIN, "validation", "mismatched") if part in files}


def _from_hub(task: FineTask, own_validation: bool) -> dict[str, list[Example]]:
    splits = {TRAIN: "train"} | (task.hub.splits if own_validation else {})
    name = f"hub:{task.hub.name}" + (f":{task.hub.config}" if task.hub.config else "")
    try:
        with without_hub(wanted=False):
            import datasets

            found = {
                part: datasets.load_dataset(task.hub.name, task.hub.config, split=split)
                for part, split in splits.items()
            }
        rows = {
            part: [Record(dict(values), f"{name} {splits[part]} {number}") for number, values in enumerate(found[part])]
            for part in splits
        }
    except Exception as error:  # the library raises errors of many types, for network and files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        offline = isinstance(error, ConnectionError)
        why = "hub cannot be reached, and this dataset is not in its cache" if offline else "dataset cannot be read"
        raise UserError(f"{name}: the {why} ({reason[:160]}); give local files of the task with --data PATH") from None
    return {part: examples_of(task, rows[part]) for part in splits}


def _held_out(examples: list[Example], settings: Finetune, name: str) -> dict[str, list[Example]]:
    """The examples without and with a share of them, in groups on the same passage."""
    groups = list(dict.fromkeys(example.group for example in examples))
    wanted, count = settings.held_out * len(examples), 0
    taken: set[str] = set()
    sizes: dict[str, int] = {}
    for example in examples:
        sizes[example.group] = sizes.get(example.group, 0) + 1
    for index in np.random.default_rng(_SEED).permutation(len(groups)):
        if count >= max(1.0, wanted) or len(taken) == len(groups) - 1:
            break
        taken.add(groups[index])
        count += sizes[groups[index]]
    if not taken:
        raise UserError(
            f"--data {settings.data}: {len(examples)} example{'s' * (len(examples) > 1)} on one text cannot be split "
            "into a part to train and one to measure with; add --validation FILE"
        )
    parts: dict[str, list[Example]] = {TRAIN: [], name: []}
    for example in examples:
        parts[name if example.group in taken else TRAIN].append(example)
    return parts
