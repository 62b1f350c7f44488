"""Claim kinds on learned allocations that no expression over measures says (claims/expression.py); the measures are in
experiments/consa/_masks.yaml."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from hybridlab.papers.calls import CellName, CellNames
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import NotRun, Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Below


def learned(record: Record, name: str) -> Any:
    """The result of this name that the run's controller left; `masks` are [layer][KV head], 1 = full attention."""
    if name not in record.controller:
        raise NotRun(f"its run has learned no {name.replace('_', ' ')}")
    return record.controller[name]


def _masks(record: Record) -> np.ndarray:
    """[layer][KV head], 1 = full attention."""
    return np.array(learned(record, "masks"))


@claim_kind
def full_retreats(on: Given, cells: CellNames) -> list[Comparison]:
    """Cells in the order of rising targets: heads with full attention at one have it at the target before. Their share
    of exceptions is lower than by chance, which is the share of windows at the lower target. (Two runs of one target
    share heads for another reason, and decide nothing: what an expression would not refuse.)"""

    def strays(low: Record, high: Record) -> float:
        if learned(high, "target") <= learned(low, "target"):
            raise Open("its target is not above the one before")
        wide, narrow = _masks(low), _masks(high)
        if not narrow.any():
            raise Open("no head has full attention")
        return float(1 - wide[narrow == 1].mean() - (1 - wide.mean()))

    return [
        on.compared(f"full in {high} and not in {low}, less chance", [low, high], strays, Below())
        for low, high in itertools.pairwise(cells)
    ]


@claim_kind
def masks_differ(on: Given, pairs: list[tuple[CellName, CellName]]) -> list[Comparison]:
    """The masks of the two runs of a pair differ by more than by chance: those of the first are farther from the
    second's masks of another seed than the second's own are. Masks of one arm differ from seed to seed too, so that a
    difference in one seed says nothing; of arms that differ by chance alone, either is the farther one as often.

    A distance is the share of KV heads that differ; the other seed is the next one, and the first for the last. (An
    expression reads the runs of one seed at a time.)"""
    return [_farther(on, left, right) for left, right in pairs]


def _farther(on: Given, left: str, right: str) -> Comparison:
    seeds = sorted(set(on.runs(left)) & set(on.runs(right)))
    runs = [on.runs(right)[seed] for seed in seeds]
    following = {id(run): after for run, after in zip(runs, [*runs[1:], *runs[:1]], strict=True)}

    def farther(ours: Record, theirs: Record) -> float:
        other = following[id(theirs)]
        if other is theirs:
            raise Open("there is no other seed to measure the distance from")
        return float((_masks(ours) != _masks(other)).mean()) - float((_masks(theirs) != _masks(other)).mean())

    label = f"distance from the masks of {right} in the next seed, {left} − {right}"
    return on.compared(label, [left, right], farther, Above(), paired=True)
