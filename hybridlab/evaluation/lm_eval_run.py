"""Measuring a model on tasks of lm-eval: values with standard errors and n, as they stand in a record.

Standard errors are lm-eval's: of a mean from its formula, of a perplexity and of what is computed from all answers
together by drawing the examples again, with fixed seeds. Where all draws give the same, the error is not known.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from lm_eval.api.metrics import acc_all, mean
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.evaluator import evaluate

from hybridlab.errors import UserError
from hybridlab.evaluation.lm_eval_model import HarnessModel
from hybridlab.evaluation.lm_eval_tasks import Library, LoadedTask, NotHere, compiled_templates, without_bars
from hybridlab.evaluation.results import BenchmarkResult
from hybridlab.statistics import Measurement

DRAWS = 1000
"""How often the examples are drawn again for a standard error; lm-eval itself limits perplexities to 100."""
_FEWSHOT_SEED = 1234
"""lm-eval's seed of the choice of solved examples."""


@dataclass(frozen=True)
class TaskWithShots:
    """A task to measure. shots: solved examples before each question; None for the task's own number, mostly 0."""

    task: str
    shots: int | None = None


def measure_tasks(
    model: HarnessModel,
    library: Library,
    asked: Sequence[TaskWithShots],
    limit: int | None = None,
    lenient: bool = False,
) -> tuple[dict[str, BenchmarkResult], dict[str, str]]:
    """The result of each task under its name, and after @ the number of solved examples if there are any; and why a
    task was not measured.

    limit: only so many examples of each task, the first ones. lenient: a task that has no data, or does not fit the
    model, is not measured; else that is a UserError.
    """
    loaded: dict[str, LoadedTask] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(one.task for one in asked):
        try:
            loaded[name] = library.load(name)
        except NotHere as error:
            if not lenient:
                raise
            missing[name] = error.reason
    found: dict[str, BenchmarkResult] = {}
    for one in asked:
        if one.task in missing:
            continue
        key = one.task
        try:
            shots = _set_shots(loaded[one.task], one.shots)
            key = f"{one.task}@{shots}" if shots else one.task
            model.say(f"{key}: {len(loaded[one.task].tasks)} tasks" if len(loaded[one.task].tasks) > 1 else key)
            found[key] = _measured(model, library, loaded[one.task], shots, limit)
        except UserError as error:
            if not lenient:
                raise UserError(f"{one.task}: {error}") from None
            missing[key] = str(error)
    return found, missing


def _set_shots(loaded: LoadedTask, shots: int | None) -> int:
    """Give all tasks their number of solved examples, as lm-eval does: a task that is defined without any stays so.
    UserError if there are not enough."""
    numbers = []
    for name, task in loaded.tasks.items():
        own = loaded.shots[name]
        number = own or 0 if shots is None or own == 0 else shots
        task.set_config(key="num_fewshot", value=number)
        task.set_fewshot_seed(seed=_FEWSHOT_SEED)
        numbers.append(number)
        there = len(getattr(getattr(task, "sampler", None), "df", ()))
        # Of the questions themselves lm-eval draws one more, in case that it is the one that is asked.
        itself = isinstance(task, ConfigurableTask) and task.config.test_split == task.fewshot_cfg.split
        if number and there < number + itself:
            raise UserError(
                f"--num-fewshot {number}: {name} has {there} examples to choose from; take a smaller number"
            )
        # Of a task from files; the hub's own rows need no check.
        if number and (check := getattr(task, "check_examples", None)) is not None:
            check()
    return max(numbers)


def _measured(
    model: HarnessModel, library: Library, loaded: LoadedTask, shots: int, limit: int | None
) -> BenchmarkResult:
    groups = loaded.groups
    children = {name: group.child_names for name, group in groups.items()}
    for task in loaded.tasks.values():
        task._instances = None  # those of a measurement with another number of examples
    with _quiet(), compiled_templates():
        found = evaluate(
            lm=model,
            task_dict={"tasks": loaded.tasks, "groups": groups, "group_map": children},
            limit=limit,
            bootstrap_iters=DRAWS,
            log_samples=False,
        )
    assert found is not None, "there is one process"
    counts = {name: found["n-samples"][name]["effective"] for name in loaded.tasks}
    parts = {name: _metrics(found["results"][name], counts[name], _drawn(task)) for name, task in loaded.tasks.items()}
    n = sum(counts.values())
    if len(parts) == 1 and not groups:
        (metrics,) = parts.values()
        parts = {}
    else:
        metrics = _metrics(found["results"].get(loaded.name, {}), n) or _means(parts)
    data = [library.data[name] for name in loaded.tasks]
    files = {split: [f for one in data for f in one.files.get(split, [])] for one in data for split in one.files}
    return BenchmarkResult(
        task=loaded.name,
        metrics=metrics,
        parts=parts,
        shots=shots,
        limit=limit,
        harness=f"lm-eval {version('lm-eval')}",
        version=_version(loaded),
        max_length=model.max_length,
        batch_size=model.batch_size,
        data=files,
        examples_from=next((one.examples_from for one in data if one.examples_from), None) if shots else None,
        skipped=sum(one.skipped for one in data),
    )


def _drawn(task: Task) -> set[str]:
    """The measures of a task whose errors come from draws."""
    return {name for name, combine in task.aggregation().items() if combine not in (mean, acc_all)}


def _metrics(found: dict[str, Any], n: int, drawn: Container[str] = ()) -> dict[str, Measurement]:
    """The measures of a task from lm-eval's `metric,filter` and `metric_stderr,filter`. drawn: see `_drawn`."""
    metrics = {}
    for key, value in found.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = found.get(f"{metric}_stderr,{chosen}")
        name = metric if chosen in ("none", "") else f"{metric}_{chosen}"
        known = float(error) if isinstance(error, int | float) and math.isfinite(error) else None
        known = None if known == 0 and metric in drawn else known
        # A perplexity may be too large for a number.
        finite = float(value) if math.isfinite(value) else None
        metrics[name] = Measurement(value=finite, stderr=known if finite is not None else None, n=n)
    return metrics


def _means(parts: dict[str, dict[str, Measurement]]) -> dict[str, Measurement]:
    """Of a tag, which has no measures of its own: the mean over all examples of its tasks, for each measure that all of
    them have."""
    shared = set.intersection(*(set(part) for part in parts.values()))
    metrics = {}
    for name in sorted(shared):
        measured = [part[name] for part in parts.values()]
        total = sum(one.n for one in measured)
        errors = [None if one.stderr is None else one.stderr * one.n / total for one in measured]
        error = sum(e * e for e in errors if e is not None) ** 0.5 if None not in errors else None
        value = sum((one.value or 0.0) * one.n for one in measured) / total
        metrics[name] = Measurement(value=value, stderr=error, n=total)
    return metrics


def _version(loaded: LoadedTask) -> str | None:
    """lm-eval's version of the task; of a group, its own or that of its tasks if they have one."""
    if loaded.name in loaded.groups:
        own = loaded.groups[loaded.name].version
        if own not in (None, "N/A"):
            return str(own)
    versions = {str(_version_of(task)) for task in loaded.tasks.values()}
    return versions.pop() if len(versions) == 1 else None


def _version_of(task: Task) -> Any:
    return task.VERSION


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context in which lm-eval prints nothing to standard output, which belongs to the results, and computes errors
    in this process."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(None), without_bars():
            yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
