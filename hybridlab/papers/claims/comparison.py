"""A comparison: one number for each training seed, and what a claim asks of these numbers.

    def difference(ours: Record, theirs: Record) -> float: ...

    return [on.compared("A − B", ["A", "B"], difference, Below())]

A kind of claim returns a list of them. Nothing here assumes how many seeds there are, or which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybridlab.statistics import (
    FEWEST_SEEDS,
    Above,
    Always,
    Apart,
    Below,
    Between,
    FewerShared,
    Finding,
    Question,
    known,
    mean_interval,
)


@dataclass(frozen=True)
class Comparison:
    """values: seed → number. label: what the numbers are. unit: behind a number, as " nats". note: further figures.
    metric: the dotted path that was read or the title of the measure, "" for a number of its own kind.

    paired: each number is the difference of two arms; where it is exactly 0 in every seed they are the same arm, and
    nothing is decided. needed: False for a comparison that must not be resolved the other way but need not be resolved
    as asked. missing: why there are no values. run: False where the runs or measurements are missing. of: what there
    is one value for. cells: those whose runs each number is made of.
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
    found: Finding = field(init=False)

    def __post_init__(self) -> None:
        numbers = list(self.values.values())
        found = self.asked.tested(numbers)
        if self.paired and not any(numbers):
            found = Finding(found.estimate, 0.0, 0)
        object.__setattr__(self, "found", found)

    @property
    def n(self) -> int:
        return len(self.values)

    def seeds(self, effect: float | None, level: float) -> int | None:
        """Seeds for 80 % power; see `Above.seeds`. FEWEST_SEEDS where one seed shows no spread yet."""
        if self.n < 2:
            return FEWEST_SEEDS
        return None if self.same_arm else self.asked.seeds(list(self.values.values()), effect, level)

    @property
    def same_arm(self) -> bool:
        """Whether the two arms gave the same number in every seed."""
        return self.paired and bool(self.values) and not any(self.values.values())

    def described(self, p: float | None) -> str:
        """The comparison as evidence. p: after Holm's correction."""
        if not self.values:
            return self.missing
        estimate = self.found.estimate
        counted = f"n = {self.n} {self.of}{'s' * (self.n > 1)}"
        if isinstance(self.asked, Always):
            figure = f"{self.label}: yes in {sum(value > 0 for value in self.values.values())} of {self.n}"
        else:
            error = "" if estimate.stderr is None else f" ± {_number(estimate.stderr).lstrip('+')}"
            figure = f"{self.label} = {_number(known(estimate))}{error}{self.unit}{_asked(self.asked)}"
        parts = [counted, "" if p is None else f"p {_p(p)}", self.note]
        if self.same_arm:
            parts.append("both gave the same numbers")
        return f"{figure} ({', '.join(part for part in parts if part)})"

    def as_json(self, p: float | None) -> dict[str, Any]:
        """The comparison in numbers. interval: 95 %, Student's t, without Holm's correction. p: after it. asked: the
        bounds between which the claim wants the mean, None for no bound; None for other questions. values: seed → its
        number."""
        numbers, estimate = list(self.values.values()), self.found.estimate
        about = {"label": self.label, "metric": self.metric, "unit": self.unit.strip(), "paired": self.paired}
        interval = mean_interval(numbers)
        found = {"value": estimate.value, "stderr": estimate.stderr, "interval": interval and list(interval), "p": p}
        values = {str(seed): value for seed, value in self.values.items()}
        data = {**about, "of": self.of, "n": self.n, **found, "asked": self._asked_between()}
        return {**data, "cells": list(self.cells), "values": values}

    def _asked_between(self) -> list[float | None] | None:
        asked = self.asked
        if isinstance(asked, Between):
            return [asked.low, asked.high]
        if isinstance(asked, Above):
            return [asked.bound + 0.0, None]
        return [None, asked.bound + 0.0] if isinstance(asked, Below) else None


def _number(value: float) -> str:
    """With its sign; four decimals, fewer for large numbers."""
    return f"{value:+.4f}" if abs(value) < 10 else f"{value:+.1f}"


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"


def _asked(asked: Question) -> str:
    """The bounds that the claim names, unless that is 0."""
    if isinstance(asked, Between):
        return f", asked below {asked.high:+g}" if asked.low is None else f", asked {asked.low:+g} to {asked.high:+g}"
    if isinstance(asked, Apart):
        return f", asked farther than {asked.by:g} from 0"
    if isinstance(asked, FewerShared):
        return f", by chance {asked.expected:.1f}"
    if isinstance(asked, Above | Below) and asked.bound:
        return f", asked {'above' if isinstance(asked, Above) else 'below'} {asked.bound:g}"
    return ""
