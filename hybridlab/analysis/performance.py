"""How well a changed model still does: loss on text, synthetic tasks of its run, and multiple choice; or loss on
prompts of tasks, and multiple choice.

`suite` or `prompt_suite` gathers what is measured, once; `performance` measures one model on it, `table` several as
columns. The rows of synthetic tasks are others than those of the evaluation, so that a map that a probe has chosen is
not measured on the rows that it was chosen on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.analysis.probe import rounded, spaced_windows
from hybridlab.analysis.prompts import Sequences
from hybridlab.config.evaluation import Choices
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import task_generator, text_rows
from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import TaskRow, make_row, task_number, task_offsets
from hybridlab.errors import UserError
from hybridlab.evaluation.text import answers, chunks
from hybridlab.models.decoder import Transformer
from hybridlab.registry import TASKS
from hybridlab.statistics import paired_difference
from hybridlab.training.objective import Objective, make_objective

_FIRST_ROW = 10**6
"""Number of the first row of a task; evaluations count theirs from 0."""


Questions = dict[str, tuple[Sequence[Any], Sequence[Any]]]
"""Name of a multiple choice task → (items, solved examples)."""


@dataclass(frozen=True)
class Suite:
    """text: (N, S) tokens. tasks: the rows of each task, by its name. offsets: the id of a task's first token.
    objective: what the model was trained on. Or, in their place, prompts: sequences (S,) of each task."""

    questions: Questions
    tokenizer: Tokenizer
    text: Tensor = torch.empty(0, 0)
    tasks: dict[str, list[TaskRow]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    objective: Objective | None = None
    prompts: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def chance(self) -> dict[str, dict[str, float]]:
        """tasks, choices: the accuracy of guessing; a prompt has none."""
        tasks = {name: TASKS.get(name).chance for name in self.tasks}
        return {
            "tasks": tasks,
            "choices": {name: 1 / len(questions[0].options) for name, (questions, _) in self.questions.items()},
        }


def suite(model: Transformer, corpus: Corpus, config: RunConfig, length: int, rows: int, items: int = 0) -> Suite:
    """`rows` windows of validation text of `length` tokens, and as many rows of each of the run's tasks; the first
    `items` of each of the multiple choice tasks that the run's evaluation asks, with as many solved examples. UserError
    if the text is too short."""
    offsets = {name: corpus.vocab + first for name, first in task_offsets(config.data.mix.tasks)[0].items()}
    numbers = range(_FIRST_ROW, _FIRST_ROW + rows)
    tasks = {name: [make_row(name, length, task_generator(task_number(name), i)) for i in numbers] for name in offsets}
    questions = questions_of(config.evaluation.choices, items) if items else {}
    text = spaced_windows(model, corpus, length, rows)
    return Suite(questions, corpus.tokenizer, text, tasks, offsets, make_objective(config, corpus))


def prompt_suite(prompts: Sequences, settings: Choices | None, items: int, tokenizer: Tokenizer) -> Suite:
    """The prompts of tasks, and the first `items` of each of the multiple choice tasks in the settings. UserError for a
    prompt after which nothing is predicted, and where units are asked for and there is not one question for each."""
    require_losses(prompts)
    questions = questions_of(settings, items)
    if prompts.units and questions and (rows := len(next(iter(prompts.sequences.values())))) != items:
        raise UserError(f"items = {items}: with units there is one question for each prompt; give items = {rows}")
    return Suite(questions, tokenizer, prompts=prompts.sequences)


def require_losses(prompts: Sequences) -> None:
    """UserError for a prompt after whose first token nothing is predicted."""
    for name, ones in prompts.sequences.items():
        if min(map(len, ones)) < 2:
            raise UserError(f"--tasks {name}: one of its prompts is a single token, which has no loss; leave it out")


def questions_of(settings: Choices | None, count: int) -> Questions:
    """The first `count` questions of each multiple choice task in the settings, and the solved examples before them."""
    if settings is None:
        return {}
    from hybridlab.evaluation.choices import asked_items

    return {name: asked_items(settings, name, count) for name in settings.tasks}


def text_losses(measured: Suite, model: Transformer) -> np.ndarray:
    """(N,): the mean loss of each window of the text, in nats per token."""
    text, objective, device = measured.text.cpu().numpy(), measured.objective, model.device
    assert objective is not None, "prompts are measured by themselves"
    losses: list[float] = []
    for numbers in chunks(range(len(text)), model, text.shape[1]):
        batch = objective.measured(text_rows(text[numbers]), numbers).to(device)
        with torch.no_grad():
            losses += objective.metrics(model(**batch.inputs), batch)["loss"].tolist()
    return np.array(losses)


Answers = dict[str, tuple[np.ndarray, np.ndarray]]
"""Name of a task → (right, loss in nats among the options) of each answer; of prompts the loss per token alone."""


@dataclass(frozen=True)
class Performance:
    """text (N,): the loss of each window or prompt, in nats per token."""

    text: np.ndarray
    tasks: Answers
    choices: Answers

    def unit(self, i: int) -> Performance:
        """The i-th prompt of every task, whose mean is the loss, and the i-th question of every kind."""
        index = slice(i, i + 1)
        tasks, choices = (
            {name: (right[index], losses[index]) for name, (right, losses) in part.items()}
            for part in (self.tasks, self.choices)
        )
        return Performance(np.array([np.mean([losses for _, losses in tasks.values()])]), tasks, choices)


def prompt_losses(model: Transformer, sequences: Iterable[Tensor]) -> np.ndarray:
    """(N,): the mean loss of each sequence (1, S), in nats per token that is predicted; NaN of a single token."""
    losses = []
    for tokens in sequences:
        with torch.no_grad():
            logits = model(tokens).logits[0, :-1].float()
        losses.append(float(F.cross_entropy(logits, tokens[0, 1:])))
    return np.array(losses)


def performance(measured: Suite, model: Transformer) -> Performance:
    """One model on everything."""
    from hybridlab.evaluation.choices import score_choices, tokenized

    choices: Answers = {}
    tasks: Answers = {}
    for name, (questions, before) in measured.questions.items():
        scores = score_choices(model, tokenized(measured.tokenizer, questions, before))
        correct = np.array([item.answer for item in questions])
        among = torch.from_numpy(scores).log_softmax(1).numpy()
        choices[name] = scores.argmax(1) == correct, -among[np.arange(len(correct)), correct]
    for name, prompts in measured.prompts.items():
        tasks[name] = np.array([]), prompt_losses(model, (prompt[None].to(model.device) for prompt in prompts))
    if tasks:
        return Performance(np.concatenate([losses for _, losses in tasks.values()]), tasks, choices)
    for name, rows in measured.tasks.items():
        right, losses = answers(model, rows, measured.offsets[name], objective=measured.objective)
        is_open = np.concatenate([row.open for row in rows])
        tasks[name] = (right[is_open], losses[is_open])
    return Performance(text_losses(measured, model), tasks, choices)


def table(performances: Sequence[Performance], base: Performance | None = None) -> dict[str, Any]:
    """loss [i] of the models in nats per token; tasks.NAME and choices.NAME, each accuracy [i] and loss [i]. With
    `base`, also stderr [i]: of the rise of the loss over that of `base`, paired by window."""
    result: dict[str, Any] = {"loss": [mean_of(p.text) for p in performances]}
    if base is not None:
        result["stderr"] = rounded([paired_difference(p.text, base.text).stderr for p in performances], 5)
    for part in ("tasks", "choices"):
        by_model = [getattr(p, part) for p in performances]
        result[part] = {
            name: {key: [mean_of(tasks[name][i]) for tasks in by_model] for i, key in enumerate(("accuracy", "loss"))}
            for name in by_model[0]
        }
    return result


def mean_of(values: np.ndarray, digits: int = 5) -> float | None:
    """The mean, rounded; None if nothing was measured."""
    return round(float(values.mean()), digits) if len(values) else None
