"""Answers of two runs to the same questions, paired: lm-eval's files of samples, which the records of both name.

hybridlab runs compare base other --samples
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np

from hybridlab.errors import UserError
from hybridlab.runs.record import Record
from hybridlab.statistics import Measurement, paired_difference, sign_p

NOTE = (
    "p is McNemar's exact test of the questions that one of the two answers rightly alone, for each line by itself; "
    "± is the standard error over questions, of one run each"
)

Answers = dict[tuple[int, str], dict[str, Any]]
"""(number of the question, filter of the answers) → lm-eval's sample."""


def compare_samples(first: Record | None, other: Record | None, names: tuple[str, str]) -> list[dict[str, Any]]:
    """For each task that both runs have samples of, and each measure that is a mean over questions: values of both,
    other − first over the same questions, and, where answers are right or wrong, the questions that one alone answers
    rightly, with McNemar's exact p.

    names: of the two runs, for messages. UserError if they have no samples of the same task.
    """
    files, other_files = _files(first), _files(other)
    shared = [key for key in files if key in other_files]
    lines = []
    for key in shared:
        means, path = files[key]
        lines += _compared(key, means, _answers(path), _answers(other_files[key][1]))
    if not lines:
        what = "samples of the same task" if not shared else "answers to the same questions that can be compared"
        raise UserError(
            f"runs compare --samples: {names[0]} and {names[1]} have no {what}; measure both with "
            "`eval RUN --tasks NAME --log-samples --output-path DIR`"
        )
    return lines


def _files(record: Record | None) -> dict[tuple[str, str], tuple[dict[str, Measurement], Path]]:
    """(name of the result, task) → the task's measures, and its file of samples."""
    results = record.results.lm_eval if record is not None and record.results is not None else {}
    return {
        (name, task): (result.parts.get(task, result.metrics), Path(file))
        for name, result in results.items()
        for task, file in result.samples.items()
    }


def _answers(path: Path) -> Answers:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return {(row["doc_id"], row["filter"]): row for row in rows}
    except OSError:
        raise UserError(f"runs compare --samples: {path} is gone; measure the run again with --log-samples") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"runs compare --samples: {path} is no file of lm-eval's samples; measure it again") from None


def _compared(
    key: tuple[str, str], means: Mapping[str, Measurement], first: Answers, other: Answers
) -> list[dict[str, Any]]:
    """The lines of a task. means: its measures in the first run; one that is no mean over questions, such as a
    perplexity, has no line. Questions that only one file has are left out, and counted."""
    name, task = key
    lines = []
    for chosen in dict.fromkeys(place[1] for place in first):
        in_first = [place for place in first if place[1] == chosen]
        places = [place for place in in_first if place in other and _same(first[place], other[place])]
        for metric in first[in_first[0]]["metrics"] if places else ():
            called = metric if chosen in ("none", "") else f"{metric}_{chosen}"
            recorded = means[called].value if called in means else None
            values = [first[place][metric] for place in in_first]
            if recorded is None or not all(isinstance(value, int | float) for value in values):
                continue
            if not isclose(float(np.mean(values)), recorded, abs_tol=1e-9):
                continue
            left, right = ([float(answers[place][metric]) for place in places] for answers in (first, other))
            lines.append(
                {
                    "task": name if task == name.partition("@")[0].partition("+")[0] else f"{name}: {task}",
                    "metric": called,
                    "values": [float(np.mean(left)), float(np.mean(right))],
                    "difference": paired_difference(right, left).model_dump(),
                    "left_out": sum(place[1] == chosen for place in {*first, *other}) - len(places),
                    **_mcnemar(left, right),
                }
            )
    return lines


def _same(first: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two samples are of one question."""
    return all(first.get(name) == other.get(name) for name in ("doc_hash", "target_hash"))


def _mcnemar(first: list[float], other: list[float]) -> dict[str, Any]:
    """The numbers of questions that one alone answers rightly, and the p of these; None where answers are not just
    right or wrong."""
    if not {*first, *other} <= {0.0, 1.0}:
        return {"only_first": None, "only_this": None, "p": None}
    alone = [left > right for left, right in zip(first, other, strict=True) if left != right]
    return {"only_first": sum(alone), "only_this": len(alone) - sum(alone), "p": sign_p(alone) if alone else 1.0}
