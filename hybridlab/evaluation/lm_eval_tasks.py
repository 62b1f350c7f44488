"""Tasks of lm-eval by name, from the Hugging Face hub or from files below a data root, and measuring a model on them:
values with standard errors and n, as they stand in a record.

The configuration of a task is lm-eval's own, or one of hybridlab's in evaluation/benchmarks/; with a data root only
where its rows come from is another.

Standard errors are lm-eval's: of a mean from its formula, of a perplexity and of what is computed from all answers
together by drawing the examples again, with fixed seeds. Where all draws give the same, the error is not known.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import random
import re
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from jinja2 import TemplateError, meta
from lm_eval.api.group import Group
from lm_eval.api.metrics import acc_all, mean
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind
from lm_eval.utils import env

from hybridlab.data.benchmark_rows import whole
from hybridlab.data.files import DataRoot, Served, TaskDataset
from hybridlab.data.hub_access import environment
from hybridlab.errors import UserError, first_line, nearest
from hybridlab.evaluation.lm_eval_model import HarnessModel
from hybridlab.evaluation.lm_eval_names import LIST, OWN, folders, require_task
from hybridlab.evaluation.lm_eval_options import (
    PLAIN,
    Options,
    Report,
    change_generation,
    check_options,
    give_shots,
    lost_member,
    missing_packages,
    own_tasks,
    wrong_option,
    wrong_split,
)
from hybridlab.evaluation.results import BenchmarkResult
from hybridlab.messages import say
from hybridlab.statistics import Measurement
from hybridlab.training.machine import version_of

_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
_SEEDS = 0, 1234, 1234
"""Of Python, numpy and torch, as lm-eval sets them before it loads tasks."""
DRAWS = 1000
"""How often the examples are drawn again for a standard error; lm-eval itself limits perplexities to 100."""


class NotHere(UserError):
    """A task whose data cannot be read. reason: why, in words."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"--tasks {task}: {reason}")
        self.reason = reason


@dataclass
class RowsFrom:
    """Where the rows of a task come from. files: split → files below the data root, or the dataset of the hub.
    examples_from: the split that solved examples are taken from, if the task's own is not there. skipped: broken lines
    that were left out."""

    files: dict[str, list[str]] = field(default_factory=dict)
    examples_from: str | None = None
    skipped: int = 0


@dataclass(frozen=True)
class LoadedTask:
    """A task or group of tasks that was asked for by this name. tasks: those that it consists of, by name. shots: the
    number of solved examples in the configuration of each, None where it has none. rows: where those of each are
    from."""

    name: str
    tasks: dict[str, Task]
    groups: dict[str, Group]
    shots: dict[str, int | None]
    rows: dict[str, RowsFrom]


def load_task(name: str, root: DataRoot | None = None, include_path: Path | None = None) -> LoadedTask:
    """A task, a group or a tag of lm-eval by its name, with rows from a data root or, without one, from the hub.
    include_path: a folder with further tasks, which replace those of the same names.

    UserError if there is no such task, or if it cannot run here; NotHere if its data cannot be read.
    """
    manager = _manager(name, include_path)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    random.seed(_SEEDS[0])
    np.random.seed(_SEEDS[1])
    torch.manual_seed(_SEEDS[2])
    entry = manager.task_index[name]
    if entry.kind is Kind.PY_TASK and root is not None:
        raise NotHere(name, "lm-eval has it as a program that reads its data from the hub; leave out --data-root")
    changes = {} if root is None else {"class": type("FromFiles", (_FromFiles,), {"root": root})}
    try:
        with contextlib.redirect_stdout(None), without_bars():
            # TaskManager.load takes no changes for the tasks of a group, its factory does.
            built = manager._factory.build(entry, overrides=changes, registry=manager.task_index)
            result = manager.load(built if isinstance(built, list) else [built])
    except UserError:
        raise
    except ImportError as error:
        raise NotHere(name, missing_packages(error)) from None
    except Exception as error:  # the libraries raise many kinds of errors
        raise NotHere(name, _why(error, root)) from None
    if not (tasks := result["tasks"]):
        raise UserError(f"--tasks {name}: this group has no task; write some under `task:` in its file")
    shots = {task: loaded.get_config("num_fewshot") for task, loaded in tasks.items()}
    rows = {task: getattr(loaded, "rows_from", None) or _of_hub(loaded) for task, loaded in tasks.items()}
    return LoadedTask(name, tasks, result.get("groups", {}), shots, rows)


def load_tasks(
    names: Sequence[str], root: DataRoot | None, include_path: Path | None = None, lenient: bool | Container[str] = True
) -> tuple[dict[str, LoadedTask], dict[str, str]]:
    """Tasks by name, see `load_task`; and of those whose data cannot be read the reason, or NotHere unless lenient.

    lenient: for all tasks, or for those of these names.
    """
    loaded: dict[str, LoadedTask] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            loaded[name] = load_task(name, root, include_path)
        except NotHere as error:
            if not _holds(lenient, name):
                raise
            missing[name] = error.reason
    return loaded, missing


def _holds(lenient: bool | Container[str], name: str) -> bool:
    return lenient if isinstance(lenient, bool) else name in lenient


def _of_hub(task: Task) -> RowsFrom:
    path = getattr(task, "DATASET_PATH", None)
    return RowsFrom({"hub": [path]} if path else {})


def _manager(name: str, include_path: Path | None) -> TaskManager:
    """lm-eval's index of tasks, of those folders alone that the task is in; of all if that is not enough, which takes
    long."""
    require_task(name, include_path)
    # Files of one's own may have changed since they were read.
    index = _index if include_path is None else _index.__wrapped__
    last = () if include_path is None else (include_path,)
    manager = index(tuple(dict.fromkeys((OWN, *folders().get(name, ()), *last))), False)
    if (lost := lost_member(manager, name)) is None:
        return manager
    if lost in folders():
        say(f"{name}: reading the list of all tasks of lm-eval, which takes a minute")
        manager = index((OWN, *last), True)
        lost = lost_member(manager, name)
    if lost is not None:
        raise UserError(
            f"--tasks {name}: {lost!r} is a member of it, and there is no such task; "
            f"{nearest(lost, [*manager.task_index], LIST)}"
        )
    return manager


@cache
def _index(places: tuple[Path, ...], everything: bool) -> TaskManager:
    return TaskManager(include_path=[str(place) for place in places], include_defaults=everything)


class _FromFiles(ConfigurableTask):
    """A task of lm-eval with rows from a data root. rows_from: None if it makes its rows itself."""

    root: DataRoot
    rows_from: RowsFrom | None = None
    _splits: dict[str, Served]

    def __init__(self, config: dict[str, Any]) -> None:
        config = {key: value for key, value in config.items() if key != "class"}
        self._read(config)
        # A table has texts alone: where the task cannot be read, or gives all questions the same answer, whole numbers
        # are read as numbers, if that is better.
        try:
            kinds = self._built(config)
        except Exception:  # of templates, of lm-eval's code for the task, and of our checks
            if not self._built_with_numbers(config, -1):
                raise
        else:
            if kinds == 1:
                self._built_with_numbers(config, kinds)

    def _built(self, config: dict[str, Any]) -> int:
        """How many different right answers the rows have; 0 of a task without options. Raises what is wrong with
        them."""
        # lm-eval asks for the examples of a part again and again, and makes them from the rows each time.
        for part in ("training_docs", "validation_docs", "test_docs"):
            setattr(self, part, cache(getattr(super(), part)))
        split = config.get("test_split") or config.get("validation_split")
        try:
            super().__init__(config=dict(config))
        except UserError:
            raise
        except Exception:  # the cause, if it is found, says more
            _check_columns(config, self._splits)
            if hasattr(self, "features"):  # then it has failed on the first example
                self._checked(split)
            raise
        return self._checked(split) if self._splits else 0

    def _checked(self, split: str | None) -> int:
        """See `_built`; of the examples to be asked."""
        if (lacks := missing_column(self)) is not None:
            _check_columns(dict(vars(self.config)), self._splits)
            raise KeyError(lacks)
        return self._kinds(list(self.eval_docs), split)

    def _built_with_numbers(self, config: dict[str, Any], kinds: int) -> bool:
        """Build the task with numbers for the whole numbers in texts; whether it then has more different right answers
        than these, otherwise it is as before."""
        numbers = {split: whole_numbers(served.rows) for split, served in self._splits.items()}
        as_written = dict(self.__dict__)
        self._splits = {
            split: replace(served, rows=numbers[split] or served.rows) for split, served in self._splits.items()
        }
        with contextlib.suppress(Exception):  # as above
            if any(numbers.values()) and self._built(config) > kinds:
                return True
        self.__dict__.clear()
        self.__dict__.update(as_written)
        return False

    def _kinds(self, docs: list[Any], split: str | None) -> int:
        """How many different right answers there are. UserError with the line of an example without one."""
        served = self._splits.get(split or "")
        answers = set()
        with compiled_templates():
            for number, doc in enumerate(docs):
                try:
                    answers.add(right_answer(self, doc))
                except ValueError as error:
                    same = served is not None and len(served.rows) == len(docs)
                    origin = served.origins[number] if served and same else f"{split} {number + 1}"
                    raise UserError(f"{origin}: {error}; correct or remove this example") from None
        return len(answers - {None})

    def check_examples(self) -> None:
        """UserError for a solved example whose answer the task cannot read."""
        if self._splits and self.fewshot_cfg.samples is None:
            splits = (self.fewshot_cfg.split, *(self.config[key] for key in _SPLITS[:3]))
            self._kinds(list(self.sampler.df), next(filter(None, splits), None))

    def _read(self, config: dict[str, Any]) -> None:
        """Read the files and leave out of the configuration what is not there."""
        dataset = TaskDataset(config["task"], config.get("dataset_path"), config.get("dataset_name"))
        names = [config.get(key) for key in _SPLITS]
        splits = dict.fromkeys([*filter(None, names), "validation", "test"])
        self._splits = {split: served for split in splits if (served := self.root.split(dataset, split))}
        if not self._splits:
            # Rows that the task makes itself, or names the files of.
            if "custom_dataset" in config or "data_files" in (config.get("dataset_kwargs") or {}):
                return
            raise NotHere(dataset.task, self.root.missing(dataset, tuple(filter(None, reversed(names[:3])))))
        rows = self.rows_from = RowsFrom()
        _keep_what_is_there(config, self._splits, rows)
        used = {config.get(key) for key in _SPLITS}
        for split, served in self._splits.items():
            if split in used:
                rows.files[split], rows.skipped = list(served.files), rows.skipped + served.skipped

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not self._splits:
            super().download(dataset_kwargs, **kwargs)
            return
        columns = columns_of(vars(self.config))
        self.dataset = {split: _as_dataset(served, columns) for split, served in self._splits.items()}


def _keep_what_is_there(config: dict[str, Any], splits: dict[str, Served], rows: RowsFrom) -> None:
    """Take the splits without files out of a task's configuration, and say which one gives solved examples if the
    task's own is not there."""
    first = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split")
    # lm-eval takes the examples that a configuration writes out only where it names no split of them.
    written_out = not config.get("fewshot_split") and (config.get("fewshot_config") or {}).get("samples")
    for key in _SPLITS:
        if config.get(key) not in splits:
            config[key] = None
    if config["validation_split"] is None and config["test_split"] is None:
        split = next((split for split in ("test", "validation") if split in splits), None)
        if split is None:
            raise NotHere(config["task"], f"there is only the split {', '.join(splits)}, which is not for measuring")
        config[f"{split}_split"] = split
    if written_out:
        return
    instead = config["fewshot_split"] or config["training_split"] or config["validation_split"]
    if instead is None:
        # Named, so that lm-eval leaves the question itself out of its examples.
        instead = config["fewshot_split"] = config["test_split"]
    if instead != first:
        rows.examples_from = instead


def _check_columns(config: dict[str, Any], splits: dict[str, Served]) -> None:
    """NotHere for rows that lack a column that the task reads."""
    columns = columns_of(config)
    for served in splits.values():
        lacks = [name for name in columns if name not in served.rows[0]]
        if lacks:
            raise NotHere(
                config["task"],
                f"{served.files[0]}: there is no column {', '.join(lacks)}; the task reads {', '.join(columns)}, and "
                f"this file has {', '.join(map(str, served.rows[0]))}",
            )


def _as_dataset(served: Served, columns: Sequence[str]) -> datasets.Dataset:
    """The rows as the library's table. columns: those that must be in all rows if they are in the first one."""
    required = [name for name in columns if name in served.rows[0]]
    for row, origin in zip(served.rows, served.origins, strict=True):
        if (lacks := next((name for name in required if name not in row), None)) is not None:
            raise UserError(f"{origin}: there is no {lacks!r}, which the task reads; correct or remove this example")
    try:
        return datasets.Dataset.from_list(served.rows)
    except Exception as error:  # pyarrow's and the library's own

        def differ(count: int) -> bool:
            try:
                datasets.Dataset.from_list(served.rows[: count + 1])
            except Exception:  # as above
                return True
            return False

        first = bisect_left(range(1, len(served.rows)), True, key=differ)
        raise UserError(
            f"{served.origins[first + 1]}: its values are of other kinds than those before it "
            f"({first_line(error)}); give each column one kind of value"
        ) from None


def _why(error: Exception, root: DataRoot | None) -> str:
    """Why a task could not be loaded, in words."""
    text = first_line(error)
    if (wrong := wrong_split(error)) is not None:
        return wrong
    if "module script" in text:
        return "its measure is a program that lm-eval fetches from the Hugging Face hub, and which is not at hand"
    if root is not None:
        return f"its rows do not fit its configuration ({type(error).__name__}: {text})"
    offline = isinstance(error, ConnectionError | OSError | ValueError) and any(
        word in f"{type(error).__name__} {error}" for word in ("Connection", "offline", "resolve", "Hub", "timed out")
    )
    if offline:
        return "its data cannot be fetched from the Hugging Face hub; give the folder of its files with --data-root DIR"
    return f"it cannot be loaded ({type(error).__name__}: {text})"


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """A context without the bars that the library `datasets` shows for each change of a table."""
    enabled = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def compiled_templates() -> Iterator[None]:
    """A context in which lm-eval compiles each template of a prompt once, not for each question."""
    original = env.from_string
    env.from_string = lru_cache(maxsize=1024)(original)
    try:
        yield
    finally:
        env.from_string = original


# ---- whether rows of local files are what a task of lm-eval reads ----
# lm-eval scores an answer that is not among a question's options as wrong, and takes the name of a missing column for a
# text. Both are errors here.

_FIELDS = ("doc_to_text", "doc_to_target", "doc_to_choice")
_SUBSCRIPT = re.compile(r"\w\[[\"'](\w+)[\"']\]")
_WRITTEN = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_KEY = re.compile(r"[\"'](\w+)[\"']\s*(?::|\]\s*=[^=])")


def columns_of(config: Mapping[str, Any]) -> list[str]:
    """The columns that a task's configuration reads, as far as its templates and code name them."""
    names = dict.fromkeys(column for name in _FIELDS for column in _read_by(config.get(name)))
    if callable(process := config.get("process_docs")):
        # The code that makes examples of rows may make the columns that the templates read.
        code = _source(process)
        computed = set(_KEY.findall(code))
        names = dict.fromkeys(name for name in names if name not in computed) | dict.fromkeys(_SUBSCRIPT.findall(code))
    return list(names)


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
    columns = (value for value in fields if isinstance(value, str) and value.isidentifier())
    return next((name for name in columns if name not in task.features), None)


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
        text = first_line(error)
        raise ValueError(
            f"lm-eval's task cannot read it ({type(error).__name__}: {text}); it reads the columns "
            f"{', '.join(columns_of(vars(config)))}"
        ) from None
    answer = prompt if task.multiple_input else target
    if answer is None:
        raise ValueError("it has no answer")
    if (empty := _empty_column(config, doc)) is not None:
        raise ValueError(f"{empty} has no value, and the task writes it into its questions or answers")
    if options is not None and (wrong := wrong_option(options)) is not None:
        raise ValueError(wrong)
    # A task that computes its own results may have answers of any form.
    if options is None or callable(config.process_results):
        return None
    if (name := _unpublished(config, doc, options)) is not None:
        raise ValueError(f"{name} is {doc[name]!r}, which marks a label that was not published")
    places = []
    for label in answer if isinstance(answer, list) else [answer]:
        place = options.index(label) if label in options else int(label) if isinstance(label, int) else -1
        if not 0 <= place < len(options):
            listed = ", ".join(repr(str(option)[:30]) for option in options[:6])
            where = f"the column {config.doc_to_target}" if config.doc_to_target in task.features else "its answer"
            hidden = "; -1 marks a label that was not published" if whole(label) == -1 else ""
            raise ValueError(
                f"{where} is {label!r:.60}, and the task wants a number from 0 to {len(options) - 1} or one of the "
                f"options {listed}{hidden}"
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


# ---- measuring ----


def measure_tasks(
    model: HarnessModel,
    root: DataRoot | None,
    requests: Sequence[tuple[str, int | None]],
    limit: int | None = None,
    lenient: bool | Container[str] = False,
    options: Options = PLAIN,
    report: Report | None = None,
) -> tuple[dict[str, BenchmarkResult], dict[str, str]]:
    """The result of each task under its name, after @ the number of solved examples if there are any, and what
    `Options.mark` says; and why a task was not measured.

    root: see `load_task`. requests: tasks, each with the number of solved examples before a question, None for its own
    number, mostly 0. limit: only so many examples of each task, the first ones. lenient: a task (any, or one of these
    names) that has no data, or does not fit the model, is not measured; else that is a UserError. report: gets what
    lm-eval's `evaluate` gives.
    """
    loaded, missing = load_tasks([name for name, _ in requests], root, options.include_path, lenient)
    if options.gen_kwargs:
        change_generation({k: task for part in loaded.values() for k, task in part.tasks.items()}, options.gen_kwargs)
    results: dict[str, BenchmarkResult] = {}
    for name, number in requests:
        if name not in loaded:
            continue
        key, task = name, loaded[name]
        try:
            shots = _set_shots(task, number)
            local = options.include_path is not None and name in folders() and name in own_tasks(options.include_path)
            mark = options.mark(local, task.tasks.values())
            key = (f"{name}@{shots}" if shots else name) + mark
            say(f"{key}: {len(task.tasks)} tasks" if len(task.tasks) > 1 else key)
            results[key] = _measured(model, task, shots, limit, options, report)
        except UserError as error:
            if not _holds(lenient, name):
                raise UserError(f"{name}: {error}") from None
            missing[key] = str(error)
    return results, missing


def _set_shots(loaded: LoadedTask, shots: int | None) -> int:
    """Give all tasks their number of solved examples, as lm-eval does: a task that is defined without any stays so.
    UserError if there are not enough."""
    numbers = []
    for name, task in loaded.tasks.items():
        default = loaded.shots[name]
        number = default or 0 if shots is None or default == 0 else shots
        give_shots(task, number)
        numbers.append(number)
        available = len(getattr(getattr(task, "sampler", None), "df", ()))
        # Of the questions themselves lm-eval draws one more, in case that it is the one that is asked.
        itself = isinstance(task, ConfigurableTask) and task.config.test_split == task.fewshot_cfg.split
        if number and available < number + itself:
            raise UserError(
                f"--num-fewshot {number}: {name} has {available} examples to choose from; take a smaller number"
            )
        # Of a task from files; the hub's own rows need no check.
        if number and (check := getattr(task, "check_examples", None)) is not None:
            check()
    return max(numbers)


def _measured(
    model: HarnessModel, loaded: LoadedTask, shots: int, limit: int | None, options: Options, report: Report | None
) -> BenchmarkResult:
    groups = loaded.groups
    children = {name: group.child_names for name, group in groups.items()}
    for task in loaded.tasks.values():
        task._instances = None  # those of a measurement with another number of examples
        check_options(task, limit)
    # Standard output belongs to the results, and errors are computed in this process.
    quiet = contextlib.redirect_stdout(None)
    with environment(DISABLE_MULTIPROC="1"), quiet, without_bars(), compiled_templates():
        output = evaluate(
            lm=model,
            task_dict={"tasks": loaded.tasks, "groups": groups, "group_map": children},
            limit=limit,
            bootstrap_iters=DRAWS,
            log_samples=options.log_samples,
            system_instruction=options.system_instruction,
            apply_chat_template=options.apply_chat_template,
            fewshot_as_multiturn=options.apply_chat_template,
        )
    assert output is not None, "there is one process"
    if report is not None:
        report.add(output)
    counts = {name: output["n-samples"][name]["effective"] for name in loaded.tasks}
    drawn = {
        name: {measure for measure, combine in task.aggregation().items() if combine not in (mean, acc_all)}
        for name, task in loaded.tasks.items()
    }
    parts = {name: _metrics(output["results"][name], counts[name], drawn[name]) for name in loaded.tasks}
    n = sum(counts.values())
    if len(parts) == 1 and not groups:
        (metrics,) = parts.values()
        parts = {}
    else:
        metrics = _metrics(output["results"].get(loaded.name, {}), n) or _means(parts)
    rows = loaded.rows.values()
    files = {split: [f for r in rows for f in r.files.get(split, [])] for r in rows for split in r.files}
    return BenchmarkResult(
        task=loaded.name,
        metrics=metrics,
        parts=parts,
        shots=shots,
        limit=limit,
        harness=f"lm-eval {version_of('lm-eval')}",
        version=_version(loaded),
        max_length=model.max_length,
        batch_size=min(model.batch_sizes.values()) if model.batch_size == "auto" else model.batch_size,
        options=options.to_json(model),
        data=files,
        examples_from=next((r.examples_from for r in rows if r.examples_from), None) if shots else None,
        skipped=sum(r.skipped for r in rows),
    )


def _metrics(values: dict[str, Any], n: int, drawn: Container[str] = ()) -> dict[str, Measurement]:
    """The measures of a task from lm-eval's `metric,filter` and `metric_stderr,filter`. drawn: the
    measures whose errors come from draws."""
    metrics = {}
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = values.get(f"{metric}_stderr,{chosen}")
        name = metric if chosen in ("none", "") else f"{metric}_{chosen}"
        stderr = float(error) if isinstance(error, int | float) and math.isfinite(error) else None
        stderr = None if stderr == 0 and metric in drawn else stderr
        # A perplexity may be too large for a number.
        finite = float(value) if math.isfinite(value) else None
        metrics[name] = Measurement(value=finite, stderr=stderr if finite is not None else None, n=n)
    return metrics


def _means(parts: dict[str, dict[str, Measurement]]) -> dict[str, Measurement]:
    """Of a tag, which has no measures of its own: the mean over all examples of its tasks, for each measure that all of
    them have."""
    shared = set.intersection(*(set(part) for part in parts.values()))
    metrics = {}
    for name in sorted(shared):
        measured = [part[name] for part in parts.values()]
        total = sum(part.n for part in measured)
        errors = [None if part.stderr is None else part.stderr * part.n / total for part in measured]
        error = sum(e * e for e in errors if e is not None) ** 0.5 if None not in errors else None
        values = [None if part.value is None else part.value * part.n for part in measured]
        value = sum(v for v in values if v is not None) / total if None not in values else None
        metrics[name] = Measurement(value=value, stderr=None if value is None else error, n=total)
    return metrics


def _version(loaded: LoadedTask) -> str | None:
    """lm-eval's version of the task; of a group, its own or that of its tasks if they have one."""
    version = loaded.groups[loaded.name].version if loaded.name in loaded.groups else None
    if version not in (None, "N/A"):
        return str(version)
    versions = {str(task.VERSION) for task in loaded.tasks.values()}
    return versions.pop() if len(versions) == 1 else None
