"""The claim kind about speed, tested on the times that a benchmark measured here.

    {kind: faster, rows: [SGT], over: [Block Loop]}
    {kind: faster, rows: [saobp-high], over: [bert], parts: [step], group: bert-mini, batch: 1, times: 1.33}
    {kind: faster, rows: [B parallel], over: [B parallel], parts: [critical], over_part: token}

It is no expression over runs, since its unit is not the seed: the models of a benchmark take turns, and each of its
rounds gives one number, the logarithm of the ratio of two times. The rule is that for seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hybridlab.papers.calls import ModelName
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import NotRun, Open
from hybridlab.runs.record import Speed
from hybridlab.statistics import Below, paired_ratio

Part = Literal["prefill", "decode", "passes", "token", "critical", "run", "last_step", "step", "forward"]
"""The parts that a benchmark measures; see papers/speed.py."""
PARTS: tuple[Part, ...] = ("prefill", "decode")


@claim_kind
def faster(
    on: Given,
    rows: list[ModelName],
    over: list[ModelName],
    parts: tuple[Part, ...] = PARTS,
    over_part: Part | None = None,
    group: str | None = None,
    batch: int | None = None,
    times: Annotated[float, Field(gt=0)] = 1.0,
) -> list[Comparison]:
    """Every one of these models takes less time for each part, or less than so many `times` the time, than every one of
    the others: at every size and batch, or at this group of sizes and this batch. over_part: the part of the others, if
    it is another one."""
    measured = {
        (name, size): models
        for name, models in on.speeds().results.items()
        for size in models[rows[0]]
        if group in (None, name) and batch in (None, int(size))
    }
    if not measured:
        raise NotRun(f"not measured: {group}, batch {batch}")
    theirs = f" / {over_part}" if over_part else ""
    return [
        _shorter(
            f"{left} / {right}, {name}, batch {size}, {part}{theirs}",
            _seconds(models[left][size], part),
            _seconds(models[right][size], over_part or part),
            times,
        )
        for (name, size), models in measured.items()
        for part, left, right in itertools.product(parts, rows, over)
    ]


def _seconds(measured: Mapping[str, Speed], part: str) -> list[float]:
    """The seconds of every round."""
    if part not in measured and part == "critical":
        raise Open("the model has no iterations over chunks")
    if part not in measured:
        raise NotRun(f"not measured: {part}")
    return measured[part].seconds


def _shorter(label: str, ours: list[float], theirs: list[float], times: float) -> Comparison:
    """Whether we take less than so many times their time, round by round."""
    found = paired_ratio(ours, theirs)
    logarithms = {number: math.log(a / b) for number, (a, b) in enumerate(zip(ours, theirs, strict=True))}
    note = f"{found.value:.3f} ± {found.stderr:.3f} of the time"
    asked = Below(math.log(times))
    return Comparison(f"ln of the times {label}", logarithms, asked, note=note, paired=True, of="round")
