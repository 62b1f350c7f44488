"""Questions with options, each by itself: the option whose tokens are likeliest after the prompt is the answer.

    hybridlab analyze MODEL --probe answers --tasks piqa,arc_easy --shots 5 --rows 500 --data-root DIR

The questions are those of lm-eval's multiple choice tasks, with its prompts and solved examples; log-likelihoods are
sums over an option's tokens, as in its measure `acc`. What `hybridlab eval --tasks` measures are means over questions,
by which two models cannot be compared question by question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from hybridlab.analysis.probe import Probe, Rows, Table, rounded
from hybridlab.analysis.prompts import NO_TASKS, TaskPrompts, loaded_tasks, not_measured, requests_of, unit_rows
from hybridlab.errors import UserError
from hybridlab.evaluation.choices import Question, score_choices
from hybridlab.models.decoder import Transformer
from hybridlab.registry import PROBES


@dataclass(frozen=True)
class _Scored:
    """question: its tokens. right: the number of its right option."""

    question: Question
    right: int


def measure_answers(
    model: Transformer, corpus: Any, seq_len: int, rows: Rows = 100, prompts: TaskPrompts = NO_TASKS
) -> dict[str, Any]:
    """tasks.NAME: for each task, over `rows` of its questions, accuracy, loss (nats among the options of a question; a
    guess among n costs ln n), chance, and the tokens of its prompts, of which the last `longest` count; missing: why a
    task has none. With `units` also units [i]: accuracy and loss of the i-th question of every task. UserError for a
    task without options, or with several prompts for one question."""
    if not prompts.tasks:
        raise UserError("--probe answers asks questions of tasks; name some with --tasks")
    loaded, missing = loaded_tasks(prompts)
    longest = prompts.longest or seq_len
    questions = {name: _questions(name, parts, corpus.tokenizer, rows, prompts) for name, parts in loaded.items()}
    about = {name: _about(scored, prompts.shots or 0, longest) for name, scored in questions.items()}
    units = unit_rows(about) if prompts.units else range(0)
    answered = {name: _answered(model, scored, longest) for name, scored in questions.items()}
    tasks = {
        name: {**about[name], "accuracy": _mean(right), "loss": _mean(losses)}
        for name, (right, losses) in answered.items()
    }

    def of_unit(i: int) -> dict[str, Any]:
        answers = {
            name: {"accuracy": float(right[i]), "loss": rounded(float(losses[i]), 5)}
            for name, (right, losses) in answered.items()
        }
        return {"tasks": answers}

    return {"tasks": tasks, "missing": missing, **({"units": [of_unit(i) for i in units]} if prompts.units else {})}


def _questions(name: str, parts: Sequence[Any], tokenizer: Tokenizer, rows: int, prompts: TaskPrompts) -> list[_Scored]:
    """`rows` questions of a task, or of the tasks of a group."""
    from hybridlab.evaluation.lm_eval_tasks import right_answer

    questions = []
    of_task = {part.config.task: part for part in parts}
    for requests in requests_of(parts, rows, prompts.shots or 0):
        right = right_answer(of_task[requests[0].task_name], requests[0].doc)
        texts = {request.args[0] for request in requests}
        if right is None or len(texts) > 1:
            raise UserError(f"--tasks {name}: the probe answers asks questions with options after one prompt")
        prompt = tokenizer.encode(texts.pop()).ids
        encoded = [tokenizer.encode("".join(request.args)).ids for request in requests]
        options = [ids[len(prompt) :] for ids in encoded]
        if not all(options):
            raise UserError(f"--tasks {name}: this tokenizer makes one token of the end of a prompt and an option")
        questions.append(_Scored(Question(prompt, options), right))
    return questions


def _about(scored: Sequence[_Scored], shots: int, longest: int) -> dict[str, Any]:
    """What a record says of the questions of a task: lengths before anything was cut off."""
    lengths = [len(item.question.prompt) for item in scored]
    return {
        "sequences": len(scored),
        "shots": shots,
        "chance": rounded(float(np.mean([1 / len(item.question.options) for item in scored])), 5),
        "mean_length": round(sum(lengths) / len(lengths), 2),
        "shortest": min(lengths),
        "longest": max(lengths),
        "cut": sum(length > longest for length in lengths),
    }


def _answered(model: Transformer, scored: Sequence[_Scored], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """(N,), (N,): whether the right option is the likeliest, and the loss among the options in nats."""
    right, losses = np.zeros(len(scored)), np.zeros(len(scored))
    counts = np.array([len(item.question.options) for item in scored])
    for count in sorted({*counts.tolist()}):
        numbers = np.flatnonzero(counts == count).tolist()
        questions = [scored[i].question for i in numbers]
        cut = [Question(question.prompt[-longest:], question.options) for question in questions]
        among = torch.from_numpy(score_choices(model, cut)).log_softmax(1).numpy()
        answers = np.array([scored[i].right for i in numbers])
        right[numbers] = among.argmax(1) == answers
        losses[numbers] = -among[np.arange(len(numbers)), answers]
    return right, losses


def _mean(values: np.ndarray) -> float:
    return rounded(float(values.mean()), 5)


def report_answers(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each task."""
    keys = ("sequences", "mean_length", "accuracy", "chance", "loss")
    rows = [[name, *(task[key] for key in keys)] for name, task in measured["tasks"].items()]
    yield Table("questions with options", ["task", "questions", "mean tokens", *keys[2:]], rows)
    yield from not_measured(measured)


PROBES.add(
    "answers",
    Probe(
        measure_answers, report_answers, needs_attention=False, needs_decoder="the tokens of options", needs_text=True
    ),
)
