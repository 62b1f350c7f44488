"""SpiralFormer's claims about loops, on the runs made here."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import numpy as np

from hybridlab.papers.calls import CellName, CellNames
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, metric_of, probe_of
from hybridlab.papers.claims.trained import LOSS, compared_pairs
from hybridlab.papers.claims.verdict import NotRun, Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Below, Between, FewerShared, known, mean_and_error

LoopMetric = Literal["entropy", "local_mass"]
"""A statistic that the probe `loops` keeps for each head."""


def _statistic(record: Record, metric: LoopMetric, heads: str = "all") -> tuple[np.ndarray, np.ndarray]:
    """Values (T, N) of the chosen heads after training, and with fresh weights, from coarse to fine."""
    loops = probe_of(record, "loops")
    chunks = np.array(loops["chunks"])
    chosen = np.array(loops[metric]["dynamic"]).flatten() if heads == "dynamic" else slice(None)
    trained, fresh = (
        np.array(part).reshape(len(chunks), -1) for part in (loops[metric]["values"], loops["fresh"][metric])
    )
    order = np.argsort(-chunks, kind="stable")
    return trained[order][:, chosen], fresh[order][:, chosen]


@claim_kind
def trend_with_resolution(
    on: Given,
    cell: CellName,
    metric: LoopMetric,
    direction: Literal["falls", "rises"],
    heads: Literal["dynamic", "all"] = "dynamic",
) -> list[Comparison]:
    """The mean over heads falls (or rises) from every resolution to the next finer one, as the paper measures it. The
    evidence adds the same less what fresh weights show, since causal attention over 16 latents differs from that over
    128 even without training."""
    chunks: list[int] = probe_of(on.first_seed(cell), "loops")["chunks"]
    asked = Below() if direction == "falls" else Above()

    def change(step: int) -> Comparison:
        def trained(run: Record) -> float:
            values, _ = _statistic(run, metric, heads)
            return float((values[step + 1] - values[step]).mean())

        def by_training(run: Record) -> float:
            values, fresh = _statistic(run, metric, heads)
            return float(((values - fresh)[step + 1] - (values - fresh)[step]).mean())

        ours = on.compared("the same by training alone", [cell], by_training, asked)
        label = f"{cell}, {heads} heads, {_words(metric)}, resolution {step + 2} − {step + 1}"
        return on.compared(label, [cell], trained, asked, note=ours.described(None))

    return [change(step) for step in range(len(chunks) - 1)]


def _words(metric: LoopMetric) -> str:
    return metric.replace("_", " ")


@claim_kind
def weaker_shift(on: Given, cell: CellName, over_cell: CellName, metric: LoopMetric) -> list[Comparison]:
    """The mean of heads' changes from the coarsest to the finest loop is smaller in one run than in another, as the
    paper measures it; the evidence adds the same less what fresh weights show. Only these two loops are compared, since
    a range over more of them is wider in any case."""

    def shift(run: Record, minus_fresh: bool) -> float:
        trained, fresh = _statistic(run, metric)
        values = trained - fresh if minus_fresh else trained
        return float(np.abs(values[-1] - values[0]).mean())

    ours = on.minus("the same by training alone", cell, over_cell, lambda run: shift(run, True), Below())
    label = f"change of {_words(metric)} over the loops, {cell} − {over_cell}"
    return [on.minus(label, cell, over_cell, lambda run: shift(run, False), Below(), note=ours.described(None))]


@claim_kind
def less_specialized(on: Given, cell: CellName, over_cell: CellName, metrics: list[LoopMetric]) -> list[Comparison]:
    """Heads differ less in how they change over the loops (the standard deviation over heads of the change from the
    coarsest to the finest) in one run than in another: appendix I.2's weaker specialization of heads."""

    def compared(metric: LoopMetric) -> Comparison:
        def spread(run: Record) -> float:
            values, _ = _statistic(run, metric)
            return float((values[-1] - values[0]).std(ddof=1))

        label = f"spread over heads of the change of {_words(metric)}, {cell} − {over_cell}"
        return on.minus(label, cell, over_cell, spread, Below())

    return [compared(metric) for metric in metrics]


@claim_kind
def concentrates(on: Given, cell: CellName, metric: LoopMetric, share: float = 0.4) -> list[Comparison]:
    """The heads with the largest ranges over the loops have a larger share of the sum of ranges after training than
    with fresh weights. (The largest 40 % of ranges that are spread evenly from 0 hold 64 %.)"""

    def gained(run: Record) -> float:
        after, before = (_held_by_first(np.ptp(values, axis=0), share) for values in _statistic(run, metric))
        return after - before

    label = f"share of the range of {_words(metric)} in the {100 * share:.0f} % of heads that move most"
    return on.each([cell], f"{label}, trained − fresh", gained, Above())


def _held_by_first(ranges: np.ndarray, share: float) -> float:
    """The part of the sum of ranges that belongs to the largest ones, `share` of them by number."""
    spread = np.sort(ranges)[::-1]
    whole = float(spread.sum())
    return float(spread[: max(1, round(share * len(spread)))].sum()) / whole if whole else share


def _dynamic(record: Record, metric: LoopMetric) -> np.ndarray:
    """Which heads are dynamic (N,)."""
    return np.array(probe_of(record, "loops")[metric]["dynamic"], dtype=bool).flatten()


@claim_kind
def other_heads(on: Given, cell: CellName) -> list[Comparison]:
    """The dynamic heads of the two metrics differ: they have fewer heads in common than random choices of their sizes
    (hypergeometric, over all seeds)."""

    def flags(run: Record) -> tuple[np.ndarray, np.ndarray]:
        return _dynamic(run, "entropy"), _dynamic(run, "local_mass")

    seeds = on.over_seeds([cell], lambda run: float(np.logical_and(*flags(run)).sum()))
    chosen = [flags(on.runs(cell)[seed]) for seed in seeds]
    sizes = tuple((int(one.sum()), int(other.sum()), len(one)) for one, other in chosen)
    return [Comparison(f"{cell}: dynamic heads in common", seeds, FewerShared(sizes))]


def _shift(record: Record, metric: LoopMetric) -> np.ndarray:
    """How far every head of the loop's body moves from the first loop to the last (N,)."""
    loops = probe_of(record, "loops")
    values = np.array(loops[metric]["values"], dtype=float).reshape(len(loops["chunks"]), -1)
    change: np.ndarray = values[-1] - values[0]
    return change


@claim_kind
def less_systematic(on: Given, cell: CellName, over_cell: CellName, metric: LoopMetric) -> list[Comparison]:
    """From the first to the last loop the heads of one run agree less on a direction than those of another: their mean
    change, divided by the mean size of a change, is nearer to 0."""

    def agreement(run: Record) -> float:
        change = _shift(run, metric)
        if not change.any():
            raise Open("no head changes from loop to loop")
        return float(abs(change.mean()) / np.abs(change).mean())

    label = f"agreement of heads on the change of {_words(metric)}, {cell} − {over_cell}"
    return [on.minus(label, cell, over_cell, agreement, Below())]


@claim_kind
def diluted_over_all(on: Given, cell: CellName, metric: LoopMetric) -> list[Comparison]:
    """The mean shift from the first to the last loop is smaller over all heads than over the dynamic ones."""

    def less(run: Record) -> float:
        change = _shift(run, metric)
        return float(abs(change.mean()) - abs(change[_dynamic(run, metric)].mean()))

    return on.each([cell], f"shift of {_words(metric)} over all heads − over dynamic ones", less, Below())


# ---- losses by ratio and by compute ----


@claim_kind
def u_shaped(on: Given, cells: CellNames) -> list[Comparison]:
    """Cells in the order of a rising ratio: both ends have a higher validation loss than the lowest cell between them,
    and the loss turns once: no step towards that cell goes up, no step away from it goes down."""
    losses = {cell: on.over_seeds([cell], lambda run: metric_of(run, LOSS)) for cell in cells}
    means = {cell: known(mean_and_error(list(by_seed.values()))) for cell, by_seed in losses.items()}
    inner = cells[1:-1]
    if not inner:
        raise Open("a curve of two points has no shape")
    lowest = cells.index(min(inner, key=means.__getitem__))
    ends = compared_pairs(on, [(cells[lowest], cells[0]), (cells[lowest], cells[-1])], [LOSS], False, Below())
    pairs = [(b, a) if i < lowest else (a, b) for i, (a, b) in enumerate(itertools.pairwise(cells))]
    known_ends = {(cells[lowest], cells[0]), (cells[lowest], cells[-1])}
    steps = compared_pairs(on, [pair for pair in pairs if pair not in known_ends], [LOSS], False, Below())
    return ends + [replace(step, needed=False) for step in steps]


@claim_kind
def same_minimum(on: Given, cells: CellNames, other_cells: CellNames) -> list[Comparison]:
    """Two budgets have their lowest loss at the same ratio: the places of the lowest cells differ by less than one step
    in the mean over seeds. Curves without a minimum have a lowest cell too: let `u_shaped` of both be controls. Two
    names of the same runs decide nothing."""
    if len(cells) != len(other_cells):
        raise Open("the two budgets have other ratios")

    def apart(*runs: Record) -> float:
        losses = [metric_of(run, LOSS) for run in runs]
        ours, theirs = losses[: len(cells)], losses[len(cells) :]
        if ours == theirs:
            raise Open("both budgets have the same losses")
        return float(np.argmin(ours)) - float(np.argmin(theirs))

    label = "place of the lowest loss, first − second budget"
    return [on.compared(label, [*cells, *other_cells], apart, Between(-1, 1), unit=" steps of the ratio")]


@claim_kind
def better_frontier(on: Given, cells: CellNames, over_cells: CellNames) -> list[Comparison]:
    """A lower loss at the same training FLOPs wherever both have it: each family's loss is a line through its sizes
    (over the logarithm of FLOPs), and they are compared at every size of either that lies within the other's."""
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
    points = sorted((run.flops, metric_of(run, LOSS)) for run in runs)
    flops, losses = zip(*points, strict=True)
    return float(np.interp(np.log(budget), np.log(flops), losses))
