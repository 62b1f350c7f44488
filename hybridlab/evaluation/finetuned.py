"""How well a fine-tuned model does its task: its answers to the examples that are measured, their measures, each with
its standard error, and those of a constant guess.

accuracy, exact match and F1 of spans are means over examples; their errors are those of a mean, with all questions on a
passage as one unit (`clustered_mean`). Matthews correlation, F1 of a class, Pearson and Spearman correlation are
functions of all examples together; their errors are standard deviations over 200 resamples of the examples with
replacement, drawn with a fixed seed (bootstrap). scikit-learn and scipy compute them.
"""

from __future__ import annotations

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.data.finetune.corpus import TRAIN, Encoded, Example, TaskCorpus
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.evaluation.results import FinetuneResult
from hybridlab.evaluation.text import Text
from hybridlab.models.decoder import Transformer
from hybridlab.statistics import Measurement, clustered_mean
from hybridlab.training.batch import Batch
from hybridlab.training.finetuning import FineTuning
from hybridlab.training.world import world

ANSWER_TOKENS = 30
"""Tokens that the answer of a span has at most, by default."""
RESAMPLES = 200
_SEED = 7
_PUNCTUATION = set(string.punctuation)

Whole = Callable[[np.ndarray, np.ndarray], float]
"""(right values, predictions) → a measure of all examples together."""


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


# ---- measures ----


def task_metrics(task: FineTask, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, Measurement]:
    """The task's measures, the main one first. predictions: for each example a class, a number, the number of an
    option, or the text of a span. A measure that is not defined, such as a correlation with a constant, has the value
    None."""
    places = {group: place for place, group in enumerate(dict.fromkeys(example.group for example in examples))}
    units = np.array([places[example.group] for example in examples])
    if task.kind == "span":
        scores, asked = {"exact_match": exact_match, "f1": token_f1}, list(zip(examples, predictions, strict=True))
        return {
            name: clustered_mean([max(scores[name](t, right) for right, _ in e.answers) for e, t in asked], units)
            for name in task.metrics
        }
    right, guessed = np.array([example.label for example in examples]), np.array(predictions)
    return {
        name: clustered_mean(right == guessed, units)
        if name == "accuracy"
        else bootstrapped(_WHOLE[name], right, guessed)
        for name in task.metrics
    }


def constant_guess(task: FineTask, training: Sequence[Example]) -> Any:
    """What is guessed without a model: the commonest class, option or answer of the training examples, or their mean
    number."""
    if task.kind == "number":
        return float(np.mean([example.label for example in training]))
    if task.kind == "span":
        return Counter(example.answers[0][0] for example in training).most_common(1)[0][0]
    return Counter(int(example.label) for example in training).most_common(1)[0][0]


def bootstrapped(measure: Whole, right: np.ndarray, guessed: np.ndarray) -> Measurement:
    """A measure of all examples together, with the standard deviation over resamples as its error. None if all
    resamples give the same, as those of constant predictions do: they do not show how far off the value may be."""
    n = len(right)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a constant, and of a resample with a single class
        value = measure(right, guessed)
        if math.isnan(value):
            return Measurement(value=None, n=n)
        rng = np.random.default_rng(_SEED)
        drawn = (rng.integers(n, size=n) for _ in range(RESAMPLES))
        found = np.array([measure(right[index], guessed[index]) for index in drawn])
    found = found[~np.isnan(found)]
    # A perfect correlation of a resample is 1 but for rounding.
    spread = len(found) > 1 and not np.allclose(found, found[0], rtol=1e-9, atol=1e-12)
    return Measurement(value=value, stderr=float(found.std(ddof=1)) if spread else None, n=n)


def _matthews(right: np.ndarray, guessed: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(right.astype(int), guessed.astype(int)))


def _class_f1(right: np.ndarray, guessed: np.ndarray) -> float:
    """F1 of class 1."""
    from sklearn.metrics import f1_score

    return float(f1_score(right.astype(int), guessed.astype(int), pos_label=1, zero_division=0.0))


def _correlation(name: str, right: np.ndarray, guessed: np.ndarray) -> float:
    from scipy import stats

    return float(getattr(stats, name)(right, guessed).statistic) if len(right) > 1 else math.nan


_WHOLE: dict[str, Whole] = {
    "matthews": _matthews,
    "f1": _class_f1,
    "pearson": partial(_correlation, "pearsonr"),
    "spearman": partial(_correlation, "spearmanr"),
}


# ---- spans ----


def normalized(answer: str) -> str:
    """An answer without case, punctuation, articles and further blanks, as in SQuAD's evaluation script."""
    kept = "".join(letter for letter in answer.lower() if letter not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact_match(answer: str, right: str) -> float:
    """1 if the normalised answers are equal, else 0."""
    return float(normalized(answer) == normalized(right))


def token_f1(answer: str, right: str) -> float:
    """F1 of the words of the normalised answers; without words in one of them, whether both have none."""
    words, wanted = normalized(answer).split(), normalized(right).split()
    if not words or not wanted:
        return float(words == wanted)
    common = sum((Counter(words) & Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
