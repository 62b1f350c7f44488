"""Claim kinds on runs and benchmarks that no expression over measures says (claims/expression.py). The measures stand
in experiments/PAPER/_NAME.yaml."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hybridlab.lab.papers.calls import CellName, CellNames, MetricPath, ModelName
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.expression import LOSS
from hybridlab.lab.papers.claims.kinds import Given, claim_kind
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.formula import NotMeasured, NoValue
from hybridlab.runs.record import Record, Speed
from hybridlab.statistics import Above, Below, known, mean_and_error, paired_ratio

# ---- training curves and growth ----


NEAR = 0.2
"""The loss at a FLOPs budget is that of a straight line fitted to the points within this share of the budget."""


@claim_kind
def lower_at_flops(
    on: Given, cell: CellName, over_cell: CellName, shares: list[float], of: CellName
) -> list[Comparison]:
    """A lower training loss at the same FLOPs, at each of several budgets: shares of the total of the run `of`. (No
    expression, since a loss at a budget belongs to no run alone: it lies on a line that is fitted to what one run has
    logged near a budget of another.)"""

    def difference(share: float) -> Comparison:
        def at_budget(run: Record, reference: Record) -> float:
            return loss_at(run, share * reference.flops)

        label = f"{cell} − {over_cell} at {100 * share:.0f} % of the FLOPs of {of}"
        return on.minus(label, cell, over_cell, at_budget, Below(), of, unit=" nats")

    return [difference(share) for share in shares]


def loss_at(record: Record, budget: float) -> float:
    """The training loss at a number of FLOPs, from a line fitted to the points near it; NotMeasured where there are
    fewer than four."""
    flops, loss = (np.array(record.history.get(name, [])) for name in ("flops", "loss"))
    near = np.abs(flops - budget) <= NEAR * budget
    if near.sum() < 4:
        raise NotMeasured("the log has fewer than four points near the budget")
    return float(np.polyfit(flops[near] / budget - 1, loss[near], 1)[1])


@claim_kind
def growth_goes(on: Given, cells: CellNames, to: Literal["shallower", "deeper"]) -> Verdict:
    """In every run each layer that begins to loop lies above all that loop already (shallower, SGT's Eq. 11), or below
    the shallowest of them (deeper, as the sentence before it says). Layers count from 1, the first.

    Which layers grow depends on measured entropies, but not on which side of the others the next one lies: that is the
    controller's `direction`. So one run decides, and a run whose settings do not fix it decides nothing. (No
    expression, since it reads the events of a run one after the other, and a setting that is a word.)"""
    on.require(cells)
    runs = {f"{cell}, seed {seed}": run for cell in cells for seed, run in on.runs(cell).items()}
    directions = {(run.config.get("controller") or {}).get("direction") for run in runs.values()}
    if None in directions:
        raise NoValue("the settings of a run do not fix the direction of its growth")
    orders = {
        name: [event["layer"] + 1 for event in run.events if event["kind"] == "loop-added"]
        for name, run in runs.items()
    }
    shallower = [layer < min(order[:i]) for order in orders.values() for i, layer in enumerate(order) if i]
    if not shallower:
        raise NoValue("no run has a second layer that loops")
    holds = all(shallower) if to == "shallower" else not any(shallower)
    listing = "; ".join(f"{name}: {', '.join(map(str, order))}" for name, order in orders.items())
    fixed = f"fixed by the settings ({', '.join(sorted(map(str, directions)))}), whatever the entropies"
    return Verdict(holds, f"{fixed}; layers in the order in which they began to loop: {listing}")


# ---- learned masks: [layer][KV head], 1 = full attention ----


def learned(record: Record, name: str) -> Any:
    """The result of this name that the run's controller left; `masks` are [layer][KV head], 1 = full attention."""
    if name not in record.controller:
        raise NotMeasured(f"its run has learned no {name.replace('_', ' ')}")
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
            raise NoValue("its target is not above the one before")
        wide, narrow = _masks(low), _masks(high)
        if not narrow.any():
            raise NoValue("no head has full attention")
        return float(1 - wide[narrow == 1].mean() - (1 - wide.mean()))

    return [
        on.compared(f"full in {high} and not in {low}, less chance", [low, high], strays, Below(), limits=(-1.0, 1.0))
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
            raise NoValue("there is no other seed to measure the distance from")
        return float((_masks(ours) != _masks(other)).mean()) - float((_masks(theirs) != _masks(other)).mean())

    label = f"distance from the masks of {right} in the next seed, {left} − {right}"
    return on.compared(label, [left, right], farther, Above(), paired=True, limits=(-1.0, 1.0))


# ---- loops, and families of sizes ----


@claim_kind
def u_shaped(on: Given, cells: CellNames, metric: MetricPath = LOSS) -> list[Comparison]:
    """Cells in the order of a rising ratio: both ends have a higher loss than the lowest cell between them, and the
    loss turns once: no step towards that cell goes up, no step away from it goes down. metric: the loss. (No expression
    chooses its cells by what their runs show, or makes comparisons that need not be resolved.)"""

    def loss(run: Record) -> float:
        return on.number(run, metric)

    losses = {cell: on.over_seeds([cell], loss) for cell in cells}
    means = {cell: known(mean_and_error(list(by_seed.values()))) for cell, by_seed in losses.items()}
    inner = cells[1:-1]
    if not inner:
        raise NoValue("a curve of two points has no shape")
    lowest = cells.index(min(inner, key=means.__getitem__))
    ends = [(cells[lowest], cells[0]), (cells[lowest], cells[-1])]
    steps = [(b, a) if i < lowest else (a, b) for i, (a, b) in enumerate(itertools.pairwise(cells))]
    return [
        on.minus(f"{a} − {b}", a, b, loss, Below(), unit=on.unit(metric), metric=metric, needed=(a, b) in ends)
        for a, b in dict.fromkeys([*ends, *steps])
    ]


@claim_kind
def better_frontier(on: Given, cells: CellNames, over_cells: CellNames, metric: MetricPath = LOSS) -> list[Comparison]:
    """A lower loss at the same training FLOPs wherever both have it: each family's loss is a line through its sizes
    (over the logarithm of FLOPs), and they are compared at every size of either that lies within the other's. metric:
    the loss. (How many comparisons there are, the runs show.)"""
    on.require([*cells, *over_cells])
    ours, theirs = ({cell: on.first_seed(cell).flops for cell in family} for family in (cells, over_cells))
    if min(len(ours), len(theirs)) < 2:
        raise NoValue("one size is no frontier")
    low, high = (pick(least(family.values()) for family in (ours, theirs)) for pick, least in ((max, min), (min, max)))
    budgets = {cell: flops for cell, flops in {**ours, **theirs}.items() if low <= flops <= high}
    if not budgets:
        raise NotMeasured("the sizes of the two do not overlap in FLOPs")
    names = [*cells, *over_cells]

    def at(cell: str, budget: float) -> Comparison:
        def gap(*runs: Record) -> float:
            points = [(run.flops, on.number(run, metric)) for run in runs]
            mine, others = points[: len(cells)], points[len(cells) :]
            return _frontier(mine, budget) - _frontier(others, budget)

        label = f"{' '.join(cells)} − {' '.join(over_cells)} at the FLOPs of {cell}"
        return on.compared(label, names, gap, Below(), unit=on.unit(metric), paired=True)

    return [at(cell, budget) for cell, budget in budgets.items()]


def _frontier(points: Sequence[tuple[float, float]], budget: float) -> float:
    """The loss of a family, from the (FLOPs, loss) of its sizes, at a budget: on the line through them over the
    logarithm of FLOPs."""
    flops, losses = zip(*sorted(points), strict=True)
    return float(np.interp(np.log(budget), np.log(flops), losses))


# ---- the times that a benchmark measured here ----
#
#     {kind: faster, rows: [SGT], over: [Block Loop]}
#     {kind: faster, rows: [saobp-high], over: [bert], parts: [step], group: bert-mini, batch: 1, times: 1.33}
#     {kind: faster, rows: [B parallel], over: [Looped], parts: [critical], over_part: token}
#
# It is no expression over runs, since its unit is not the seed: the models of a benchmark take turns, and each of its
# rounds gives one number, the logarithm of the ratio of two times. The rule is that for seeds.

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
        raise NotMeasured(f"not measured: {group}, batch {batch}")
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
        raise NoValue("the model has no iterations over chunks")
    if part not in measured:
        raise NotMeasured(f"not measured: {part}")
    return measured[part].seconds


def _shorter(label: str, ours: list[float], theirs: list[float], times: float) -> Comparison:
    """Whether we take less than so many times their time, round by round."""
    ratio = paired_ratio(ours, theirs)
    logarithms = {number: math.log(a / b) for number, (a, b) in enumerate(zip(ours, theirs, strict=True))}
    note = f"{ratio.value:.3f} ± {ratio.stderr:.3f} of the time"
    question = Below(math.log(times))
    return Comparison(f"ln of the times {label}", logarithms, question, note=note, paired=True, of="round")
