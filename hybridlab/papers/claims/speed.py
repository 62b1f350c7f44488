"""Claim kinds about speed, tested on the times that a benchmark measured here.

The models of a benchmark take turns, so that the unit is the round: the logarithm of the ratio of two times, one number
for each round. The rule is that for seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Literal

from hybridlab.papers.calls import ModelName
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import NotRun, Open
from hybridlab.runs.record import Speed
from hybridlab.statistics import Below, paired_ratio

PARTS = ("prefill", "decode")
Part = Literal["prefill", "decode", "passes", "token", "critical", "run", "last_step", "step", "forward"]
"""The parts that a benchmark measures; see papers/speed.py."""


@claim_kind
def faster_decoding(on: Given, rows: list[ModelName], over: list[ModelName]) -> list[Comparison]:
    """Every one of these models is faster than every one of the others, at every size and batch, in both phases."""
    return [
        _shorter(f"{left} / {right}, {group}, batch {batch}, {part}", models[left][batch], models[right][batch], part)
        for group, models in on.speeds().results.items()
        for batch, part, left, right in itertools.product(models[rows[0]], PARTS, rows, over)
    ]


@claim_kind
def faster(on: Given, rows: list[ModelName], over: list[ModelName], part: Part) -> list[Comparison]:
    """Less time for one part, at every size and batch."""
    return [
        _shorter(f"{left} / {right}, {part}", models[left][batch], models[right][batch], part)
        for models in on.speeds().results.values()
        for batch, left, right in itertools.product(models[rows[0]], rows, over)
    ]


@claim_kind
def time_at_most(
    on: Given, row: ModelName, over: ModelName, part: Part, group: str, batch: int, ratio: float
) -> list[Comparison]:
    """One model takes less than so many times the time of another for a part, at one size and batch."""
    models = on.speeds().results.get(group, {})
    if row not in models or str(batch) not in models[row]:
        raise NotRun(f"not measured: {group}, batch {batch}")
    ours, theirs = (models[name][str(batch)] for name in (row, over))
    return [_shorter(f"{row} / {over}, {part}, {group}, batch {batch}", ours, theirs, part, ratio=ratio)]


@claim_kind
def shorter_path(on: Given, model: ModelName) -> list[Comparison]:
    """A token's time without loop bodies over chunks, which it need not wait for, is shorter."""
    comparisons = []
    for models in on.speeds().results.values():
        for measured in models[model].values():
            if "critical" not in measured:
                raise Open(f"{model} has no iterations over chunks")
            label = f"{model}: a token without its bodies over chunks"
            comparisons.append(_shorter(label, measured, measured, "critical", "token"))
    return comparisons


def _seconds(measured: Mapping[str, Speed], part: str) -> list[float]:
    """The seconds of every round."""
    if part not in measured:
        raise NotRun(f"not measured: {part}")
    return measured[part].seconds


def _shorter(
    label: str,
    ours: Mapping[str, Speed],
    theirs: Mapping[str, Speed],
    part: str,
    their_part: str = "",
    ratio: float = 1.0,
) -> Comparison:
    """Whether our part takes less than `ratio` times the time of theirs, round by round."""
    mine, others = _seconds(ours, part), _seconds(theirs, their_part or part)
    found = paired_ratio(mine, others)
    logarithms = {number: math.log(a / b) for number, (a, b) in enumerate(zip(mine, others, strict=True))}
    note = f"{found.value:.3f} ± {found.stderr:.3f} of the time"
    asked = Below(math.log(ratio))
    return Comparison(f"ln of the times {label}", logarithms, asked, note=note, paired=True, of="round")
