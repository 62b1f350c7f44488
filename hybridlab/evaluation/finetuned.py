"""How well a fine-tuned model does its task: its answers to the examples that are measured, and their measures."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hybridlab.data.finetune.corpus import TRAIN, Encoded, TaskCorpus
from hybridlab.evaluation.results import FinetuneResult
from hybridlab.evaluation.task_metrics import constant_guess, task_metrics
from hybridlab.evaluation.text import Text
from hybridlab.models.decoder import Transformer
from hybridlab.statistics import Measurement
from hybridlab.training.batch import Batch
from hybridlab.training.finetuning import FineTuning
from hybridlab.training.world import world

ANSWER_TOKENS = 30
"""Tokens that the answer of a span has at most, by default."""


def finetune_result(model: Transformer, text: Text) -> FinetuneResult | None:
    """The measures of the model's task; None if it has none."""
    objective, corpus = text.objective, text.corpus
    if not isinstance(objective, FineTuning) or not isinstance(corpus, TaskCorpus):
        return None
    guess = constant_guess(objective.task, corpus.encoded[TRAIN].examples)
    metrics: dict[str, Measurement] = {}
    baseline: dict[str, Measurement] = {}
    for index, (part, encoded) in enumerate(corpus.measured.items()):
        before = f"{part}_" if index else ""
        found = answers_of(model, objective, encoded, text)
        for into, answers in ((metrics, found), (baseline, [guess] * len(encoded.examples))):
            measured = task_metrics(objective.task, encoded.examples, answers)
            into.update({before + name: value for name, value in measured.items()})
    return FinetuneResult(
        task=objective.task.name,
        metrics=metrics,
        baseline=baseline,
        examples={part: len(encoded.examples) for part, encoded in corpus.measured.items()},
        windows=sum(len(encoded.windows) for encoded in corpus.measured.values()) or None,
    )


def answers_of(
    model: Transformer, objective: FineTuning, encoded: Encoded, text: Text
) -> list[int] | list[float] | list[str]:
    """For each example a class, the number of an option, a number, or the text of a span."""
    device = next(model.parameters()).device
    spans = objective.task.kind == "span"
    best = SpanAnswers(encoded, objective.settings.answer_tokens or ANSWER_TOKENS)
    answers: list[int] | list[float] = []

    def measured(item: tuple[list[int], Batch]) -> tuple[list[int], Tensor]:
        numbers, batch = item[0], item[1].to(device)
        with torch.no_grad(), text.context:
            return numbers, objective.outcome(model(**batch.inputs, **text.inputs), batch).cpu()

    for numbers, outcome in world().map(measured, objective.batches(encoded, range(len(encoded)))):
        if spans:
            best.add(numbers, outcome)
        else:
            answers += outcome.tolist()
    return best.texts() if spans else answers


class SpanAnswers:
    """The best span of each question over all windows of its context: the one whose first and last token have the
    largest sum of numbers, within the context and with at most `longest` tokens."""

    def __init__(self, encoded: Encoded, longest: int) -> None:
        self.encoded, self.longest = encoded, longest
        self.scores = np.full(len(encoded.examples), -np.inf)
        self.spans = [(0, 0)] * len(encoded.examples)

    def add(self, numbers: list[int], ends: Tensor) -> None:
        """ends: (R, S, 2), of the windows with these numbers."""
        for number, row in zip(numbers, ends.double().numpy(), strict=True):
            window = self.encoded.windows[number]
            count = len(window.offsets)
            if not count:
                continue
            inside = row[window.first : window.first + count]
            sums = inside[:, 0][:, None] + inside[:, 1][None, :]
            allowed = np.triu(np.ones_like(sums, dtype=bool)) & ~np.triu(np.ones_like(sums, dtype=bool), self.longest)
            sums = np.where(allowed, sums, -np.inf)
            first, last = np.unravel_index(int(sums.argmax()), sums.shape)
            if sums[first, last] > self.scores[window.example]:
                self.scores[window.example] = sums[first, last]
                self.spans[window.example] = (int(window.offsets[first, 0]), int(window.offsets[last, 1]))

    def texts(self) -> list[str]:
        """The answers as parts of the contexts."""
        pairs = zip(self.encoded.examples, self.spans, strict=True)
        return [example.rows[0][1][start:end].strip() for example, (start, end) in pairs]
