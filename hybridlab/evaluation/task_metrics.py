"""The measures of fine-tuning tasks, each with its standard error, and those of a constant guess.

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
from typing import Any

import numpy as np

from hybridlab.data.finetune.examples import Example
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.statistics import Measurement, clustered_mean

RESAMPLES = 200
_SEED = 7
_PUNCTUATION = set(string.punctuation)

Whole = Callable[[np.ndarray, np.ndarray], float]
"""(right values, predictions) → a measure of all examples together."""


def task_metrics(task: FineTask, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, Measurement]:
    """The task's measures, the main one first. predictions: for each example a class, a number, the number of an
    option, or the text of a span. A measure that is not defined, such as a correlation with a constant, has the value
    None."""
    groups = list({example.group: None for example in examples})
    number = {group: index for index, group in enumerate(groups)}
    units = np.array([number[example.group] for example in examples])
    if task.kind == "span":
        scores = {"exact_match": exact_match, "f1": token_f1}
        return {
            name: clustered_mean(
                [
                    max(scores[name](text, right) for right, _ in example.answers)
                    for example, text in zip(examples, predictions, strict=True)
                ],
                units,
            )
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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a resample with a single class
        return float(matthews_corrcoef(right.astype(int), guessed.astype(int)))


def _class_f1(right: np.ndarray, guessed: np.ndarray) -> float:
    """F1 of class 1."""
    from sklearn.metrics import f1_score

    return float(f1_score(right.astype(int), guessed.astype(int), pos_label=1, zero_division=0.0))


def _correlation(name: str) -> Whole:
    def correlation(right: np.ndarray, guessed: np.ndarray) -> float:
        from scipy import stats

        if len(right) < 2:
            return math.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a constant; the result is not a number
            return float(getattr(stats, name)(right, guessed).statistic)

    return correlation


_WHOLE: dict[str, Whole] = {
    "matthews": _matthews,
    "f1": _class_f1,
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
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
