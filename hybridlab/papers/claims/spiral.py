"""Claim kinds on SpiralFormer's loops and budgets that no expression over measures says (claims/expression.py). The
measures stand in experiments/spiral/_loops.yaml."""

from __future__ import annotations

import itertools

import numpy as np

from hybridlab.papers.calls import CellName, CellNames
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.expression import LOSS
from hybridlab.papers.claims.kinds import Given, claim_kind, metric_of, probe_of
from hybridlab.papers.claims.verdict import NotRun, Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Below, FewerShared, known, mean_and_error


def _dynamic(record: Record, metric: str) -> np.ndarray:
    """Which heads are dynamic (N,)."""
    return np.array(probe_of(record, "loops")[metric]["dynamic"], dtype=bool).flatten()


@claim_kind
def other_heads(on: Given, cell: CellName) -> list[Comparison]:
    """The dynamic heads of the two metrics differ: they have fewer heads in common than random choices of their sizes
    (hypergeometric, over all seeds). (An expression has one number for each seed, and no sizes of sets beside it.)"""

    def flags(run: Record) -> tuple[np.ndarray, np.ndarray]:
        return _dynamic(run, "entropy"), _dynamic(run, "local_mass")

    seeds = on.over_seeds([cell], lambda run: float(np.logical_and(*flags(run)).sum()))
    chosen = [flags(on.runs(cell)[seed]) for seed in seeds]
    sizes = tuple((int(one.sum()), int(other.sum()), len(one)) for one, other in chosen)
    return [Comparison(f"{cell}: dynamic heads in common", seeds, FewerShared(sizes))]


@claim_kind
def u_shaped(on: Given, cells: CellNames) -> list[Comparison]:
    """Cells in the order of a rising ratio: both ends have a higher validation loss than the lowest cell between them,
    and the loss turns once: no step towards that cell goes up, no step away from it goes down. (No expression chooses
    its cells by what their runs show, or makes comparisons that need not be resolved.)"""
    losses = {cell: on.over_seeds([cell], _loss) for cell in cells}
    means = {cell: known(mean_and_error(list(by_seed.values()))) for cell, by_seed in losses.items()}
    inner = cells[1:-1]
    if not inner:
        raise Open("a curve of two points has no shape")
    lowest = cells.index(min(inner, key=means.__getitem__))
    ends = [(cells[lowest], cells[0]), (cells[lowest], cells[-1])]
    steps = [(b, a) if i < lowest else (a, b) for i, (a, b) in enumerate(itertools.pairwise(cells))]
    return [
        on.minus(f"{a} − {b}", a, b, _loss, Below(), unit=" nats", metric=LOSS, needed=(a, b) in ends)
        for a, b in dict.fromkeys([*ends, *steps])
    ]


@claim_kind
def better_frontier(on: Given, cells: CellNames, over_cells: CellNames) -> list[Comparison]:
    """A lower loss at the same training FLOPs wherever both have it: each family's loss is a line through its sizes
    (over the logarithm of FLOPs), and they are compared at every size of either that lies within the other's. (How many
    comparisons there are, the runs show.)"""
    on.require([*cells, *over_cells])
    ours, theirs = ({cell: on.first_seed(cell).flops for cell in family} for family in (cells, over_cells))
    if min(len(ours), len(theirs)) < 2:
        raise Open("one size is no frontier")
    low, high = (pick(least(family.values()) for family in (ours, theirs)) for pick, least in ((max, min), (min, max)))
    budgets = {cell: flops for cell, flops in {**ours, **theirs}.items() if low <= flops <= high}
    if not budgets:
        raise NotRun("the sizes of the two do not overlap in FLOPs")
    names = [*cells, *over_cells]

    def at(cell: str, budget: float) -> Comparison:
        def gap(*runs: Record) -> float:
            mine, others = runs[: len(cells)], runs[len(cells) :]
            return _frontier(mine, budget) - _frontier(others, budget)

        label = f"{' '.join(cells)} − {' '.join(over_cells)} at the FLOPs of {cell}"
        return on.compared(label, names, gap, Below(), unit=" nats", paired=True)

    return [at(cell, budget) for cell, budget in budgets.items()]


def _frontier(runs: tuple[Record, ...], budget: float) -> float:
    """The loss of a family at a budget, on the line through its sizes over the logarithm of FLOPs."""
    points = sorted((run.flops, _loss(run)) for run in runs)
    flops, losses = zip(*points, strict=True)
    return float(np.interp(np.log(budget), np.log(flops), losses))


def _loss(record: Record) -> float:
    """The validation loss."""
    return metric_of(record, LOSS)
