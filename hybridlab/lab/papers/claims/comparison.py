"""A comparison: one number for each training seed, and what a claim asks of these numbers.

    def difference(ours: Record, theirs: Record) -> float: ...

    return [on.compared("A − B", ["A", "B"], difference, Below())]

A kind of claim returns a list of them. Nothing here assumes how many seeds there are, or which.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hybridlab.statistics import (
    FEWEST_OBSERVED,
    FEWEST_SEEDS,
    NO_LIMITS,
    Above,
    Always,
    Apart,
    Below,
    Between,
    Finding,
    Limits,
    Mostly,
    Question,
    known,
    mean_interval,
)

OBSERVED_UNITS = ("prompt", "document")


@dataclass(frozen=True)
class Comparison:
    """values: seed → number. label: what the numbers are. unit: behind a number, as " nats". note: further figures.
    metric: the dotted path that was read or the title of the measure, "" for a number of its own kind.

    paired: each number is the difference of two arms; where it is exactly 0 in every seed they are the same arm, and
    nothing is decided. needed: False for a comparison that must not be resolved the other way but need not be resolved
    as asked. missing: why there are no values. run: False where the runs or measurements are missing. of: what there
    is one value for, a prompt or a run instead of a seed. cells: those whose runs each number is made of. limits:
    between which each number must lie. left_out: how many values have been taken away, see `without`.
    """

    label: str
    values: Mapping[int, float]
    asked: Question
    unit: str = ""
    note: str = ""
    paired: bool = False
    needed: bool = True
    missing: str = ""
    run: bool = True
    of: str = "seed"
    metric: str = ""
    cells: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    left_out: int = 0
    found: Finding = field(init=False)

    def __post_init__(self) -> None:
        numbers = list(self.values.values())
        finding = self.asked.tested(numbers, self.limits)
        if self.paired and not any(numbers):
            finding = Finding(finding.estimate, 0.0, 0)
        if self.n < self.fewest:
            finding = replace(finding, p=None)
        object.__setattr__(self, "found", finding)

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def observed(self) -> bool:
        """Whether it has a number for each prompt or document of one model."""
        return self.of in OBSERVED_UNITS

    @property
    def fewest(self) -> int:
        """With fewer values nothing is decided. One prompt that is left out of enough makes them no fewer."""
        return FEWEST_OBSERVED - self.left_out if self.observed else FEWEST_SEEDS

    def seeds(self, effect: float | None, level: float) -> int | None:
        """Seeds for 80 % power; see `Above.seeds`. `fewest` where one seed shows no spread yet."""
        if self.n < 2:
            return self.fewest
        same_arm = self.paired and not any(self.values.values())
        return None if same_arm else self.asked.seeds(list(self.values.values()), effect, level, self.limits)

    def without(self, seed: int) -> Comparison:
        """The comparison without one of its seeds; itself where it does not have it."""
        if seed not in self.values:
            return self
        return replace(self, values={key: self.values[key] for key in self.values if key != seed}, left_out=1)

    def as_json(self, p: float | None) -> dict[str, Any]:
        """The comparison in numbers. interval: 95 %, Student's t, without Holm's correction. p: after it. asked: the
        bounds between which the claim wants the mean, None for no bound; None for other questions. asks: the question
        in words. note: further figures, or why there are no values. values: seed → its number."""
        numbers, estimate = list(self.values.values()), self.found.estimate
        about = {"label": self.label, "metric": self.metric, "unit": self.unit.strip(), "paired": self.paired}
        interval = mean_interval(numbers)
        figures = {"value": estimate.value, "stderr": estimate.stderr, "interval": interval and list(interval), "p": p}
        values = {str(seed): value for seed, value in self.values.items()}
        question = {"asked": self._asked_between(), "asks": _asks(self.asked)}
        note = ", ".join(filter(None, (self.note, self._constant))) if numbers else self.missing
        data = {**about, "of": self.of, "n": self.n, **figures, **question, "note": note}
        return {**data, "cells": list(self.cells), "values": values}

    @property
    def _constant(self) -> str:
        """That all seeds have one number, and between which limits it could lie, by which it is tested then."""
        both_same = self.paired and not any(self.values.values())
        counted = isinstance(self.asked, Always | Mostly)
        if self.n < self.fewest or self.found.spread or both_same or counted or self.found.p is None:
            return ""
        low, high = (f"{limit:g}" if math.isfinite(limit) else "" for limit in self.limits)
        ends = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"
        return f"the same in every {self.of}, of a number that is {ends if low or high else 'not limited'}"

    @property
    def direction(self) -> str:
        """Where the numbers lie that are not as claimed: worse, where better ones are claimed, higher or lower, or
        smaller."""
        question, value = self.asked, known(self.found.estimate)
        if isinstance(question, Always | Mostly):
            return f"in fewer {self.of}s than claimed"
        if isinstance(question, Apart):
            return "smaller than claimed"
        higher = isinstance(question, Below) or (isinstance(question, Between) and value >= question.high)
        side, better = "higher" if higher else "lower", better_of(self.metric)
        return f"{side if better in (None, side) else 'worse'} than claimed"

    def _asked_between(self) -> list[float | None] | None:
        question = self.asked
        if isinstance(question, Between):
            return [question.low, question.high]
        if isinstance(question, Above):
            return [question.bound + 0.0, None]
        return [None, question.bound + 0.0] if isinstance(question, Below) else None


def least_as_claimed(comparisons: Sequence[Comparison], p_values: Sequence[float | None]) -> int:
    """The index of the comparison that is least as claimed: of those on the other side the clearest, else the least
    clear. Those that need not be resolved count on the other side only. p_values: after Holm's correction."""

    def as_claimed(i: int) -> tuple[float, float]:
        side, p = comparisons[i].found.side, p_values[i]
        return side * (0.0 if p is None else 1 - p), side

    measured = [i for i, comparison in enumerate(comparisons) if comparison.n]
    counted = [i for i in measured if comparisons[i].needed or comparisons[i].found.side < 0]
    return min(counted or measured, key=as_claimed)


BETTER = {
    **dict.fromkeys(("loss", "perplexity", "pseudo_perplexity", "bits_per_byte", "seconds"), "lower"),
    **dict.fromkeys(("accuracy", "tasks", "choices_mean", "metrics"), "higher"),
}
"""Name in a metric → which numbers are better. The last name of a path that stands here counts, so that
`results.tasks.chain.loss.all` is a loss, and `results.tasks.chain.all` the share of right answers; of the title of a
measure the first word, as in "loss of copying". Of any other metric a number is called higher or lower."""


def better_of(metric: str) -> str | None:
    title = re.match(r"(\w+)(?= of |,|$)", metric)
    names = reversed(metric.split(".")) if " " not in metric else [title[1]] if title else []
    return next((BETTER[name] for name in names if name in BETTER), None)


# ---- a comparison in words, from its numbers ----


def in_words(data: Mapping[str, Any]) -> str:
    """A comparison of `as_json` as a sentence."""
    values = list(data["values"].values())
    if not values:
        return str(data["note"])
    error = "" if data["stderr"] is None else f" ± {_number(data['stderr']).lstrip('+')}"
    # That a difference is to be above or below 0 is the sentence of the claim itself.
    side_of_0 = data["asked"] is not None and None in data["asked"] and 0 in data["asked"]
    parts = [f"n = {data['n']} {data['of']}{'s' * (data['n'] > 1)}", "" if data["p"] is None else f"p {_p(data['p'])}"]
    parts += [data["note"], "both gave the same numbers" if data["paired"] and not any(values) else ""]
    return f"{data['label']}{_figure(data, error, not side_of_0)} ({', '.join(part for part in parts if part)})"


def effect_of(data: Mapping[str, Any], count: int, room: int) -> str:
    """A comparison in so many characters: its mean with the 95 % interval, and what is asked of it. count: of the
    comparisons of its claim."""
    interval = "" if data["interval"] is None else " [{}, {}]".format(*map(_number, data["interval"]))
    figure = _figure(data, interval, True) + (f" (least of {count})" if count > 1 else "")
    return textwrap.shorten(data["label"], room - len(figure), placeholder=" …") + figure


def _figure(data: Mapping[str, Any], spread: str, with_question: bool) -> str:
    """What stands behind a label: the mean, and the question unless it is left out."""
    if data["asks"] in (_ALWAYS, _MOSTLY):
        return f": yes in {sum(value > 0 for value in data['values'].values())} of {data['n']}"
    unit = f" {data['unit']}" if data["unit"] else ""
    question = f", required {data['asks']}" if with_question else ""
    return f" = {_number(data['value'])}{spread}{unit}{question}"


def in_full(data: Mapping[str, Any]) -> str:
    """A comparison as a sentence, with its interval and the number of each seed; of prompts and documents there are too
    many."""
    interval = "" if data["interval"] is None else "; 95 % interval {} to {}".format(*map(_number, data["interval"]))
    values = ", ".join(f"{seed} {_number(value)}" for seed, value in data["values"].items())
    return f"{in_words(data)}{interval}" + (
        f"; by {data['of']}: {values}" if values and data["of"] not in OBSERVED_UNITS else ""
    )


def asked_in_words(comparisons: Iterable[Mapping[str, Any]]) -> str:
    """What several comparisons ask, cells that are asked the same together: "a, b: validation.loss below 3"."""
    cells: dict[str, list[str]] = {}
    for comparison in comparisons:
        cell, colon, what = comparison["label"].partition(": ")
        question = f"{what if colon else comparison['label']} {comparison['asks']}"
        cells.setdefault(question, []).extend([cell] if colon else [])
    return "; ".join(f"{', '.join(names)}: {question}" if names else question for question, names in cells.items())


def _number(value: float) -> str:
    """With its sign; four decimals, fewer for large numbers."""
    return f"{value:+.4f}" if abs(value) < 10 else f"{value:+.1f}"


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"


_ALWAYS, _MOSTLY = "in every run", "in most of them"


def _asks(question: Question) -> str:
    """What is asked of the mean, in words."""
    if isinstance(question, Between):
        return f"at most {question.high:+g}" if question.low is None else f"{question.low:+g} to {question.high:+g}"
    if isinstance(question, Apart):
        return f"farther than {question.by:g} from 0"
    if isinstance(question, Above | Below):
        return f"{'above' if isinstance(question, Above) else 'below'} {question.bound + 0.0:g}"
    return _MOSTLY if isinstance(question, Mostly) else _ALWAYS
