"""Claim kinds about speed, tested on the times that a benchmark measured here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Literal

from hybridlab.papers.calls import ModelName
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import Open, Verdict, all_of, below_zero, unresolved
from hybridlab.runs.record import Speed
from hybridlab.statistics import Measurement, known, paired_ratio

PARTS = ("prefill", "decode")
Part = Literal["prefill", "decode", "passes", "token", "critical"]
"""The parts that a benchmark measures; see papers/benchmark.py."""


@claim_kind
def faster_decoding(on: Given, rows: list[ModelName], over: list[ModelName]) -> Verdict:
    """Every one of these models is faster than every one of the others, at every size and batch, in both phases, by
    more than twice the standard error of the ratio over rounds."""
    faster, slower, open_, smallest = 0, [], [], float("inf")
    for group, models in on.speeds().results.items():
        for batch, part, left, right in itertools.product(models[rows[0]], PARTS, rows, over):
            gain = paired_ratio(_seconds(models[right][batch], part), _seconds(models[left][batch], part))
            text = f"{left} / {right}, {group}, batch {batch}, {part}: {gain.value:.3f} ± {gain.stderr:.3f}"
            smallest = min(smallest, known(gain))
            lower = below_zero(_less_one(gain))
            if lower is None:
                open_.append(text)
            elif lower:
                slower.append(text)
            else:
                faster += 1
    count = faster + len(slower) + len(open_)
    evidence = f"faster in {faster} of {count} comparisons, smallest ratio {smallest:.3f}"
    evidence += f"; slower: {'; '.join(slower)}" if slower else ""
    evidence += f"; not resolved: {'; '.join(open_)}" if open_ else ""
    return Verdict(False if slower else None if open_ else True, evidence)


@claim_kind
def faster(on: Given, rows: list[ModelName], over: list[ModelName], part: Part) -> Verdict:
    """Less time for one part, at every size and batch, by more than twice the standard error of the paired ratios."""
    parts = []
    for models in on.speeds().results.values():
        for batch, left, right in itertools.product(models[rows[0]], rows, over):
            ours, theirs = (_seconds(models[name][batch], part) for name in (left, right))
            parts.append(_shorter(f"{left} / {right}, {part}", ours, theirs))
    return all_of(parts)


@claim_kind
def shorter_path(on: Given, model: ModelName) -> Verdict:
    """A token's time without loop bodies over chunks, which it need not wait for, is shorter by a resolved amount."""
    parts = []
    for models in on.speeds().results.values():
        for measured in models[model].values():
            if "critical" not in measured:
                raise Open(f"{model} has no iterations over chunks")
            path, token = (_seconds(measured, part) for part in ("critical", "token"))
            parts.append(_shorter(f"{model}: a token without its bodies over chunks", path, token))
    return all_of(parts)


def _seconds(measured: Mapping[str, Speed], part: str) -> list[float]:
    """The seconds of every round."""
    if part not in measured:
        raise Open(f"not measured: {part}")
    return measured[part].seconds


def _less_one(ratio: Measurement) -> Measurement:
    """How far a ratio is above 1."""
    return Measurement(value=known(ratio) - 1, stderr=ratio.stderr, n=ratio.n)


def _shorter(label: str, ours: list[float], theirs: list[float]) -> Verdict:
    ratio = paired_ratio(ours, theirs)
    holds = below_zero(_less_one(ratio))
    of_time = f"{ratio.value:.3f} ± {ratio.stderr:.3f} of the time"
    return Verdict(holds, f"{label}: {of_time} (n = {ratio.n} rounds{unresolved(holds)})")
