"""A score of a benchmark with N questions is k/N: which printed scores can be that?

Which columns are scores of which benchmark, how many questions it has, and where that is said, stands in
experiments/_questions.yaml. Scores are in percent. Where N is not known, the smallest one is taken that the cells of a
column fit, unless chance alone would fit it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from hybridlab.config.loading import check as checked
from hybridlab.config.loading import read_yaml
from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.experiment import Column, Experiment
from hybridlab.lab.papers.ids import experiments_folder
from hybridlab.lab.papers.intervals import NOISE, PRINTED, Interval, rounded

Metric = Literal["accuracy", "exact match", "f1", "correlation", "perplexity", "mean", "judged"]
SHARES: tuple[Metric, ...] = ("accuracy", "exact match")
"""The metrics that are a share of the questions."""
_WHY_NOT = {
    "f1": "F1 is a mean of shares of words",
    "correlation": "a correlation is no share of questions",
    "perplexity": "a perplexity is no share of questions",
    "mean": "a mean over tasks is no share of questions",
    "judged": "a judge may give a part of a point",
}
_CHANCE = 0.001
"""An estimate of N stands only where values drawn at random would fit so few questions with a lower probability."""
_MOST_DIGITS = 12
_FEWEST = 3
"""So many values must fit it."""


# ---- one value ----


def possible(value: float, digits: int, questions: int, form: Callable[..., Interval] = rounded) -> bool:
    """Whether some k of so many questions is printed as this percentage, with so many digits. form: how it is printed,
    one of `PRINTED`. A share in the middle between two rounded values can be either."""
    return bool(Interval.of(_around(value, questions)).meets(form(value, digits)).any())


def _around(value: float, questions: int) -> tuple[float, float]:
    """The two nearest percentages of so many questions: at most the value, and at least it, within 0 to 100."""
    low, high = _counts(value, questions)
    return 100 * low / questions, 100 * high / questions


def _counts(value: float, questions: int) -> tuple[int, int]:
    k = value * questions / 100
    return max(0, min(math.floor(k + NOISE), questions)), max(0, min(math.ceil(k - NOISE), questions))


def informative(digits: int, questions: int | np.ndarray) -> np.ndarray:
    """The share of the percentages with so many digits that some k reaches, for each number of questions. 1: a check
    says nothing."""
    # More digits than these say no less, and their counts would pass 64 bits.
    values = 100 * 10 ** min(digits, _MOST_DIGITS)
    # A share in the middle between two values reaches both: 2 · values · k / questions is an odd number.
    common = np.gcd(2 * values, questions)
    middles = np.where((2 * values // common) % 2, common // 2, 0)
    return np.minimum(1.0, (questions + 1 + middles) / (values + 1))


def fitting(values: Sequence[float], digits: int, most: int = 20_000, misfits: int = 0) -> int | None:
    """The smallest number of questions that all printed percentages fit, or all but so many of them.

    None where there is none up to `most`, or where it says nothing: fewer than three values fit it, or values drawn at
    random would fit it, or a smaller one, with a probability of 0.1 % or more. Equal values count once, and 0 and 100,
    which fit every number, not at all.
    """
    percents = np.array(sorted({value for value in values if 0 < value < 100}))
    if len(percents) - misfits < _FEWEST:
        return None
    questions = np.arange(1, most + 1)
    k = np.rint(percents[:, None] * questions / 100)
    fits = np.abs(100 * k / questions - percents[:, None]) <= 0.5 * 10.0**-digits + NOISE
    indices = np.flatnonzero((~fits).sum(axis=0) <= misfits)
    if not len(indices):
        return None
    smallest = int(questions[indices[0]])
    share, cells = informative(digits, questions[:smallest]), len(percents)
    chance = sum(
        float((math.comb(cells, miss) * share ** (cells - miss) * (1 - share) ** miss).sum())
        for miss in range(misfits + 1)
    )
    return smallest if chance < _CHANCE else None


# ---- the benchmarks of the papers ----


class Scored(Strict):
    """A benchmark. questions: of the split that is scored, None if it is not known. source: what says so: data set,
    split, and where it is published; of an unknown one, why it is not known. estimated: whether `questions` follows
    from printed cells alone."""

    title: str
    questions: Annotated[int, Field(gt=0)] | None = None
    metric: Metric = "accuracy"
    source: str = ""
    estimated: bool = False

    @model_validator(mode="after")
    def _number_or_reason(self) -> Scored:
        if self.metric in SHARES and not self.source:
            raise ValueError("a share of questions needs a source: what says how many there are, or why that is open")
        if self.estimated and self.questions is None:
            raise ValueError("estimated says where `questions` comes from; write its number, or leave estimated out")
        return self


class Family(Strict):
    """Columns that are scores. entries: a pattern of ids. columns: name → benchmark."""

    entries: str
    columns: dict[str, str]


class Known(Strict):
    """What experiments/_questions.yaml says."""

    benchmarks: dict[str, Scored]
    scores: list[Family]


def known(path: Path | None = None) -> Known:
    """The benchmarks of the papers, or those of another file; UserError with file and line for a mistake in it."""
    layer = read_yaml(path or experiments_folder() / "_questions.yaml")
    content = checked(Known, layer)
    for i, family in enumerate(content.scores):
        for column, name in family.columns.items():
            if name not in content.benchmarks:
                origin = layer.origin(("scores", i, "columns", column))
                raise UserError(f"{origin}: there is no benchmark {name!r}; {nearest(name, list(content.benchmarks))}")
    return content


# ---- the scores of a table ----


@dataclass(frozen=True)
class Score:
    """A printed score in percent. row: the short name. questions: None if not known, with `why`. source: what says how
    many there are. estimated: the number follows from printed scores."""

    row: str
    column: str
    value: float
    digits: int
    benchmark: str
    questions: int | None
    why: str
    source: str
    estimated: bool


def scores(experiment: Experiment) -> Iterator[Score]:
    """The printed scores of an entry: of the columns that the file names, and of those with `questions`."""
    content = known()
    families = [family for family in content.scores if fnmatchcase(experiment.id, family.entries)]
    for column in experiment.columns:
        names = [family.columns[column.name] for family in families if column.name in family.columns]
        if column.questions is not None:
            origin = experiment.origin(("columns", experiment.columns.index(column), "questions"))
            about = Scored(title=column.title, questions=column.questions, source=origin or "stated with the column")
        elif names:
            about = content.benchmarks[names[0]]
        else:
            continue
        yield from _scores_of(experiment, column, about)


def _scores_of(experiment: Experiment, column: Column, about: Scored) -> Iterator[Score]:
    printed = [
        (row.short, float(value), column.digits_of(row))
        for row in experiment.rows
        if isinstance(value := row.paper.get(column.name), int | float)
    ]
    questions, why, source, estimated = about.questions, "", about.source, about.estimated
    if about.metric not in SHARES:
        questions, why = None, _WHY_NOT[about.metric]
    elif questions is None:
        questions, misfits = _estimate(
            [value for _, value, digits in printed if digits == column.digits], column.digits
        )
        estimated = questions is not None
        if questions is None:
            why = f"how many questions there are is not known ({source}), and these cells do not tell"
        else:
            fit = "all cells" if not misfits else f"all cells but {misfits}"
            source = f"the smallest number that {fit} of this column fit ({source})"
    for row, value, digits in printed:
        yield Score(row, column.name, value, digits, about.title, questions, why, source, estimated)


def _estimate(values: list[float], digits: int) -> tuple[int | None, int]:
    """The smallest number of questions that the cells of a column fit, and how many of them do not: at most a fifth."""
    for misfits in range(len(values) // 5 + 1):
        if questions := fitting(values, digits, misfits=misfits):
            return questions, misfits
    return None, 0


def questions_of(experiment: Experiment) -> dict[tuple[str, str], int]:
    """(row, column) → how many questions a printed score is a share of, in columns where that is known. Where a score
    of a column is no share, however it was rounded, the number of questions is in doubt, and the column is left out."""
    columns: dict[str, list[Score]] = {}
    for score in scores(experiment):
        columns.setdefault(score.column, []).append(score)
    sure = [group for group in columns.values() if not any(check(score).verdict == "disagrees" for score in group)]
    shares = [score for group in sure for score in group if not score.estimated]
    return {(score.row, score.column): score.questions for score in shares if score.questions is not None}


def shares(value: float, digits: float, questions: int, most: int = 8) -> list[float]:
    """The percentages of so many questions that are printed as this one; none where no count gives it, and where so
    many do that they are as good as all numbers in between."""
    ends = rounded(value, digits)
    first = max(0, math.ceil(float(ends.low) * questions / 100 - NOISE))
    last = min(questions, math.floor(float(ends.high) * questions / 100 + NOISE))
    return [100 * k / questions for k in range(first, last + 1)] if last - first < most else []


# ---- a check ----


@dataclass(frozen=True)
class Outcome:
    """verdict: agrees, truncated, rounded twice, disagrees or cannot be checked, the last with `why`. recomputed: the
    two nearest percentages, equal where one is exact; formula: how they come about."""

    verdict: str
    recomputed: tuple[str, str] = ("", "")
    formula: str = ""
    why: str = ""


@lru_cache(maxsize=8192)
def check(score: Score) -> Outcome:
    """Whether a printed score is k/N."""
    if score.questions is None:
        return Outcome("cannot be checked", why=score.why)
    if 0 <= score.value <= 100 and informative(score.digits, score.questions) == 1:
        words = {0: "no digits behind the point", 1: "one digit", 2: "two digits", 3: "three digits"}
        digits = words.get(score.digits, f"{score.digits} digits")
        why = f"with {score.questions:,} questions every value of {digits} is possible"
        return Outcome("cannot be checked", why=why)
    arguments = (score.value, score.digits, score.questions)
    verdict = next((word for word, form in PRINTED.items() if possible(*arguments, form)), "disagrees")
    counts = _counts(score.value, score.questions)
    low, high = (f"{share:.{score.digits + 2}f}" for share in _around(score.value, score.questions))
    ways = dict.fromkeys(f"100 · {k} / {score.questions}" for k in counts)
    return Outcome(verdict, (low, high), " or ".join(ways))
