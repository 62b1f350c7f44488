"""Whether rows of local files are what a task of lm-eval reads: their columns, and right answers that it understands.

lm-eval scores an answer that is not among a question's options as wrong, and takes the name of a missing column for a
text. Both are errors here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, meta
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import env

from hybridlab.data.benchmarks.rows import whole

_FIELDS = ("doc_to_text", "doc_to_target", "doc_to_choice")
_SUBSCRIPT = re.compile(r"\w\[[\"'](\w+)[\"']\]")
_WRITTEN = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_KEY = re.compile(r"[\"'](\w+)[\"']\s*(?::|\]\s*=[^=])")


def columns_of(config: Mapping[str, Any]) -> list[str]:
    """The columns that a task's configuration reads, as far as its templates and code name them."""
    read: dict[str, None] = {}
    for field in _FIELDS:
        read |= dict.fromkeys(_read_by(config.get(field)))
    if callable(process := config.get("process_docs")):
        # The code that makes examples of rows may make the columns that the templates read.
        code = _source(process)
        made = set(_KEY.findall(code))
        read = dict.fromkeys(name for name in read if name not in made) | dict.fromkeys(_SUBSCRIPT.findall(code))
    return list(read)


def _read_by(value: Any) -> Iterator[str]:
    """The columns that a column's name, a template or a function reads."""
    if callable(value):
        yield from _SUBSCRIPT.findall(_source(value))
    elif isinstance(value, str) and value.isidentifier():
        yield value
    elif isinstance(value, str):
        try:
            yield from sorted(meta.find_undeclared_variables(env.parse(value)))
        except TemplateError:
            return


def _source(function: Any) -> str:
    try:
        return inspect.getsource(getattr(function, "func", function))
    except (OSError, TypeError):
        return ""


def missing_column(task: ConfigurableTask) -> str | None:
    """A column that the task names and its examples lack, which lm-eval would take for a text."""
    fields = (getattr(task.config, name) for name in _FIELDS)
    named = (value for value in fields if isinstance(value, str) and value.isidentifier())
    return next((name for name in named if name not in task.features), None)


def _empty_column(config: Any, doc: Mapping[str, Any]) -> str | None:
    """A column without a value that a template writes as it is, which would become the word None."""
    templates = [value for value in (config.doc_to_text, config.doc_to_target) if isinstance(value, str)]
    written = [name for value in templates if "{%" not in value for name in _WRITTEN.findall(value)]
    return next((name for name in written if doc.get(name, "") is None), None)


def _unpublished(config: Any, doc: Mapping[str, Any], options: Sequence[str]) -> str | None:
    """A column with -1 that the right answer is computed from; as an index it would take the last option."""
    if config.doc_to_target in doc or "-1" in options:
        return None
    return next((name for name in _read_by(config.doc_to_target) if whole(doc.get(name)) == -1), None)


def right_answer(task: ConfigurableTask, doc: Mapping[str, Any]) -> int | None:
    """The number of the right option of an example, the first one of several; None for a task without options.
    ValueError says what is wrong with the example."""
    config = task.config
    try:
        prompt, target = task.doc_to_text(doc), task.doc_to_target(doc)
        options = None if config.doc_to_choice is None else task.doc_to_choice(doc)
    except Exception as error:  # of templates and of lm-eval's code for the task
        text = (str(error) or "no reason").splitlines()[0][:100]
        raise ValueError(
            f"lm-eval's task cannot read it ({type(error).__name__}: {text}); it reads the columns "
            f"{', '.join(columns_of(vars(config)))}"
        ) from None
    answer = prompt if task.multiple_input else target
    if answer is None:
        raise ValueError("it has no answer")
    if (empty := _empty_column(config, doc)) is not None:
        raise ValueError(f"{empty} has no value, and the task writes it into its questions or answers")
    if options is not None and (other := next((one for one in options if not isinstance(one, str)), "")) != "":
        raise ValueError(f"the option {other!r} is not a text")
    # A task that computes its own results may have answers of any form.
    if options is None or callable(config.process_results):
        return None
    if (name := _unpublished(config, doc, options)) is not None:
        raise ValueError(f"{name} is {doc[name]!r}, which marks a label that was not published")
    places = []
    for one in answer if isinstance(answer, list) else [answer]:
        place = options.index(one) if one in options else int(one) if isinstance(one, int) else -1
        if not 0 <= place < len(options):
            named = ", ".join(repr(str(option)[:30]) for option in options[:6])
            where = f"the column {config.doc_to_target}" if config.doc_to_target in task.features else "its answer"
            hidden = "; -1 marks a label that was not published" if whole(one) == -1 else ""
            raise ValueError(
                f"{where} is {one!r:.60}, and the task wants a number from 0 to {len(options) - 1} or one of the "
                f"options {named}{hidden}"
            )
        places.append(place)
    return places[0] if places else None


def whole_numbers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The rows with numbers in the columns in which all values are whole numbers written as texts or as 3.0; None if
    there is no such column."""
    columns = [
        name
        for name, first in rows[0].items()
        if isinstance(first, str | float) and all(whole(row.get(name)) is not None for row in rows)
    ]
    return [{**row, **{name: whole(row[name]) for name in columns}} for row in rows] if columns else None
