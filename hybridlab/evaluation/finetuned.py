"""How well a fine-tuned model does its task: its answers to the examples that are measured, their measures, each with
its standard error, and those of a constant guess.

accuracy, exact match and F1 of spans are means over examples; their errors are those of a mean, with all questions on a
passage as one unit (`clustered_mean`). Matthews correlation, F1 of a class, Pearson and Spearman correlation are
functions of all examples together; their errors are standard deviations over 200 resamples of the examples with
replacement, drawn with a fixed seed (bootstrap). scikit-learn and scipy compute them. In chats each learned token
counts, and the errors take all tokens of a document as one unit.
"""

from __future__ import annotations

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.data.batches import spaced
from hybridlab.data.finetune.corpus import TRAIN, Encoded, Example, TaskCorpus
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.evaluation.results import NO_LOSS, FinetuneResult, LossResult
from hybridlab.evaluation.text import Text, chunks
from hybridlab.models.decoder import Transformer
from hybridlab.statistics import Measurement, clustered_mean
from hybridlab.training.objective import Answers, Batch, FineTuning
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
    training = corpus.encoded.get(TRAIN)
    metrics: dict[str, Measurement] = {}
    baseline: dict[str, Measurement] = {}
    for index, (part, encoded) in enumerate(corpus.measured.items()):
        before = f"{part}_" if index else ""
        if isinstance(objective, Answers):
            measured = [*_chat_metrics(model, objective, encoded, training, text)]
        else:
            predictions: list[Any] = [answers_of(model, objective, encoded, text)]
            if training is not None:
                predictions.append([constant_guess(objective.task, training.examples)] * len(encoded.examples))
            measured = [task_metrics(objective.task, encoded.examples, answers) for answers in predictions]
        for measures, values in zip((metrics, baseline), measured, strict=False):
            measures.update({before + name: value for name, value in values.items()})
    return FinetuneResult(
        task=objective.task.name,
        metrics=metrics,
        baseline=baseline,
        examples={part: len(encoded.examples) for part, encoded in corpus.measured.items()},
        windows=sum(len(encoded.windows) for encoded in corpus.measured.values()) or None,
    )


@dataclass(frozen=True)
class Scores:
    """Of every learned token of some rows: its loss in nats, whether the model finds it likeliest, the number of its
    document, and that of its row."""

    losses: np.ndarray
    right: np.ndarray
    documents: np.ndarray
    rows: np.ndarray


def chat_scores(model: Transformer, objective: Answers, encoded: Encoded, chosen: Sequence[int], text: Text) -> Scores:
    """The scores of rows of chats, by their numbers."""
    device = model.device
    length = objective.length

    def measured(item: tuple[list[int], Batch]) -> list[np.ndarray]:
        numbers, batch = item[0], item[1].to(device)
        with torch.no_grad(), text.context:
            output = model(**batch.inputs, **text.inputs)
            losses, right = objective.losses(output, batch), objective.outcome(output, batch) == batch.targets
        learned = batch.weights > 0
        rows = torch.tensor(numbers, device=device)[:, None].expand(learned.shape)
        segments = batch.inputs.get("segment_ids")
        documents = rows * length + (0 if segments is None else segments[:, 1:])
        return [t[learned].cpu().numpy() for t in (losses.double(), right, documents, rows)]

    parts = (some for part in chunks(chosen, model, length) for some in objective.batches(encoded, part))
    return Scores(*(np.concatenate(columns) for columns in zip(*world().map(measured, parts), strict=True)))


def chat_loss(model: Transformer, objective: Answers, text: Text, count: int) -> LossResult:
    """The mean loss of a learned token over at most `count` rows of the first part that is measured; windows: the mean
    of each row."""
    assert isinstance(text.corpus, TaskCorpus), "the corpus of a fine-tuning objective is that of its task"
    encoded = next(iter(text.corpus.measured.values()))
    scores = chat_scores(model, objective, encoded, spaced(len(encoded), count).tolist(), text)
    means = [round(float(scores.losses[scores.rows == row].mean()), 5) for row in np.unique(scores.rows)]
    loss = clustered_mean(scores.losses, scores.documents)
    return NO_LOSS.model_copy(update={"loss": loss, "windows": means})


def _chat_metrics(
    model: Transformer, objective: Answers, encoded: Encoded, training: Encoded | None, text: Text
) -> Iterator[dict[str, Measurement]]:
    """The share of the learned tokens that the model finds likeliest, and of those that are the commonest one of the
    training part, if that is there."""
    scores = chat_scores(model, objective, encoded, range(len(encoded)), text)
    yield {"accuracy": clustered_mean(scores.right, scores.documents)}
    if training is not None:
        learned, training_tokens = (part.targets[part.targets >= 0] for part in (encoded, training))
        yield {"accuracy": clustered_mean(learned == np.bincount(training_tokens).argmax(), scores.documents)}


def answers_of(
    model: Transformer, objective: FineTuning, encoded: Encoded, text: Text
) -> list[int] | list[float] | list[str]:
    """For each example a class, the number of an option, a number, or the text of a span."""
    device = model.device
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
        scores, pairs = {"exact_match": exact_match, "f1": token_f1}, list(zip(examples, predictions, strict=True))
        return {
            name: clustered_mean([max(scores[name](t, right) for right, _ in e.answers) for e, t in pairs], units)
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
        resampled = np.array([measure(right[index], guessed[index]) for index in drawn])
    resampled = resampled[~np.isnan(resampled)]
    # A perfect correlation of a resample is 1 but for rounding.
    spread = len(resampled) > 1 and not np.allclose(resampled, resampled[0], rtol=1e-9, atol=1e-12)
    return Measurement(value=value, stderr=float(resampled.std(ddof=1)) if spread else None, n=n)


def _of_classes(name: str, right: np.ndarray, guessed: np.ndarray, **settings: Any) -> float:
    from sklearn import metrics

    return float(getattr(metrics, name)(right.astype(int), guessed.astype(int), **settings))


def _correlation(name: str, right: np.ndarray, guessed: np.ndarray) -> float:
    from scipy import stats

    return float(getattr(stats, name)(right, guessed).statistic) if len(right) > 1 else math.nan


_WHOLE: dict[str, Whole] = {
    "matthews": partial(_of_classes, "matthews_corrcoef"),
    "f1": partial(_of_classes, "f1_score", pos_label=1, zero_division=0.0),
    "pearson": partial(_correlation, "pearsonr"),
    "spearman": partial(_correlation, "spearmanr"),
}


# ---- spans ----


def words(answer: str) -> list[str]:
    """The words of an answer without case, punctuation and articles, as in SQuAD's evaluation script."""
    letters = "".join(letter for letter in answer.lower() if letter not in _PUNCTUATION)
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def exact_match(answer: str, right: str) -> float:
    """1 if the answers have the same words, else 0."""
    return float(words(answer) == words(right))


def token_f1(answer: str, right: str) -> float:
    """F1 of the words of the answers; without words in one of them, whether both have none."""
    answer_words, right_words = words(answer), words(right)
    if not answer_words or not right_words:
        return float(answer_words == right_words)
    common = sum((Counter(answer_words) & Counter(right_words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(answer_words), common / len(right_words)
    return 2 * precision * recall / (precision + recall)
