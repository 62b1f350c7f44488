"""Rows of a task's files as examples: texts with a class, a number, a right option or answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hybridlab.data.benchmarks.rows import one_of
from hybridlab.data.finetune.rows import Row
from hybridlab.data.finetune.tasks import Columns, FineTask
from hybridlab.errors import UserError


@dataclass(frozen=True)
class Example:
    """rows: one or two texts for each row of the model's input; in multiple choice, a row for each option. label: the
    number of the class or option, or the number asked for. answers: of a span, the right ones, each with the character
    of the context at which it begins; none if the question has no answer. group: examples on the same passage."""

    rows: tuple[tuple[str, ...], ...]
    label: float
    group: str
    answers: tuple[tuple[str, int], ...] = ()


def examples_of(task: FineTask, rows: Iterable[Row]) -> list[Example]:
    """The examples of a task's rows. UserError with the place of a row that lacks a column, or whose label is wrong."""
    made = []
    for row in rows:
        columns = _layout(task, row)
        for single in _unfolded(columns, row):
            made.append(_MAKERS[task.kind](task, columns, single))
    return made


def _layout(task: FineTask, row: Row) -> Columns:
    for columns in task.layouts:
        if all(name in row.values for name in columns.names):
            return columns
    wanted = " or ".join(", ".join(columns.names) for columns in task.layouts)
    missing = next(name for name in task.layouts[0].names if name not in row.values)
    raise UserError(
        f"{row.origin}: the task {task.name} needs the columns {wanted}; there is no {missing!r} among "
        f"{', '.join(map(str, list(row.values)[:12]))}"
    )


def _unfolded(columns: Columns, row: Row) -> Iterator[Row]:
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
        yield Row({first: row.values[first], **single}, f"{row.origin}, question {number + 1}")


def _text(row: Row, name: str) -> str:
    value = row.values[name]
    if not isinstance(value, str):
        raise UserError(f"{row.origin}: {name} is {value!r}, and must be a text; correct or remove this row")
    return value


def _class_of(task: FineTask, row: Row, name: str) -> int:
    """The number of the class that a cell names, or whose number it is."""
    try:
        return one_of(row.values[name], len(task.classes), task.classes)
    except ValueError:
        known = ", ".join(f"{number} ({word})" for number, word in enumerate(task.classes))
        raise UserError(
            f"{row.origin}: the label {row.values[name]!r} in {name} is none of the task {task.name}: {known}; correct "
            "or remove this row"
        ) from None


def _classes(task: FineTask, columns: Columns, row: Row) -> Example:
    texts = tuple(_text(row, name) for name in columns.texts)
    return Example((texts,), _class_of(task, row, columns.label), row.origin)


def _number(task: FineTask, columns: Columns, row: Row) -> Example:
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


def _choice(task: FineTask, columns: Columns, row: Row) -> Example:
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


def _span(task: FineTask, columns: Columns, row: Row) -> Example:
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


def _answers(row: Row, name: str) -> Iterator[tuple[str, int]]:
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
