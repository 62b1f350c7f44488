"""Claim kinds on learned allocations: how the constraint swings and settles, where full attention stays, and whether
that is where a window would cost most.

The probe `knockout` of the run that the masks were learned from (`base`) says for every layer and every KV head by how
much the loss rises when this one alone becomes a window. It is measured on other rows than the results.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from hybridlab.papers.calls import CellName, CellNames
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, beyond, claim_kind, value_at
from hybridlab.papers.claims.verdict import NotRun, Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Always, Below, Between, Question


def learned(record: Record, name: str) -> Any:
    """The result of this name that the run's controller left; `masks` are [layer][KV head], 1 = full attention."""
    if name not in record.controller:
        raise NotRun(f"its run has learned no {name.replace('_', ' ')}")
    return record.controller[name]


def _logged(record: Record, name: str) -> np.ndarray:
    if name not in record.history:
        raise NotRun(f"its run has not logged {name.replace('_', ' ')}")
    return np.array(record.history[name])


# ---- the constraint ----


def _settling_step(record: Record, within: float) -> float:
    """The last logged step at which the expected sparsity differed from its target by more than `within`; 0 if it never
    did."""
    far = np.abs(_logged(record, "expected_sparsity") - learned(record, "target")) > within
    return float(max(_logged(record, "step")[far], default=0.0))


def _constraint(record: Record) -> np.ndarray:
    """The logged size of the constraint loss (Eq. 10) for one constraint; `head-single` has one in each layer, whose
    sum is logged."""
    if "lagrangian" not in record.history:
        raise NotRun("its run has logged no lagrangian")
    single = record.controller.get("granularity") == "head-single"
    size: np.ndarray = np.abs(np.array(record.history["lagrangian"]))
    return size / (len(learned(record, "masks")) if single else 1)


@claim_kind
def converges_first(on: Given, cell: CellName, cells: CellNames, within: float = 0.02) -> list[Comparison]:
    """The constraint loss of one allocation stays nearest to zero from the beginning (appendix D.1): the mean of its
    size over the whole of mask learning is lower than that of each other one. The evidence adds the step after which
    the expected sparsity stays within `within` of its target."""

    def mean(run: Record) -> float:
        single = learned(run, "granularity") == "head-single"
        constraints = len(learned(run, "masks")) if single else 1
        return float(np.abs(_logged(run, "lagrangian")).mean()) / constraints

    label = "mean constraint loss of"
    notes = {other: _settled(on, [cell, other], within) for other in cells}
    return [on.minus(f"{label} {cell} − {other}", cell, other, mean, Below(), note=notes[other]) for other in cells]


def _settled(on: Given, cells: list[str], within: float) -> str:
    try:
        steps = {cell: on.over_seeds([cell], lambda run: _settling_step(run, within)) for cell in cells}
    except Open:
        return ""
    by_cell = (f"{cell} {'/'.join(f'{step:g}' for step in seeds.values())}" for cell, seeds in steps.items())
    return f"within {within:g} after step {', '.join(by_cell)}"


@claim_kind
def higher_settles_first(on: Given, cells: CellNames, within: float = 0.02) -> list[Comparison]:
    """Cells in the order of rising targets settle earlier and earlier: each after fewer steps than the one before."""
    return [
        on.minus(f"settling step of {low} − {high}", low, high, lambda run: _settling_step(run, within), Above())
        for low, high in itertools.pairwise(cells)
    ]


@claim_kind
def same_overshoot(on: Given, cells: CellNames, within: float = 0.1) -> list[Comparison]:
    """The highest expected sparsity is the same for every two targets, within a margin (the paper shows no figures)."""
    return [
        on.minus(f"peak of {a} − {b}", a, b, lambda run: float(learned(run, PEAK)), Between(-within, within))
        for a, b in itertools.combinations(cells, 2)
    ]


PEAK = "highest_expected_sparsity"


def _beyond(record: Record, name: str = PEAK) -> float:
    """What the controller left under this name, less the target."""
    return float(learned(record, name)) - learned(record, "target")


def _above_target(
    on: Given, label: str, cells: list[str], name: str, asked: Question, note: str = ""
) -> list[Comparison]:
    return [on.compared(label.format(one), [one], lambda run: _beyond(run, name), asked, note=note) for one in cells]


@claim_kind
def less_to_correct(on: Given, cells: CellNames) -> list[Comparison]:
    """Cells in the order of rising targets: the way back from the peak of the expected sparsity to the target gets
    shorter from each to the next."""
    pairs = itertools.pairwise(cells)
    return [on.minus(f"peak − ρ of {a} less that of {b}", a, b, _beyond, Above()) for a, b in pairs]


@claim_kind
def overshoots_and_settles(on: Given, cells: CellNames, within: float) -> list[Comparison]:
    """Expected sparsity rises above its target by more than `within` during mask learning, and ends within it."""
    rises = _above_target(on, "peak − ρ of {}", cells, PEAK, Above(within))
    return rises + settles_at_target(on, cells, within)


@claim_kind
def settles_at_target(on: Given, cells: CellNames, within: float) -> list[Comparison]:
    """Expected sparsity ends within a margin of its target."""

    return _above_target(on, "E[ρ̂] − ρ of {} at the end", cells, "expected_sparsity", Between(-within, within))


@claim_kind
def target_met(on: Given, cells: CellNames, within: float = 0.02) -> list[Comparison]:
    """The masks have their target sparsity by the paper's rule α > 0 (Eq. 11), within a margin. This project's own rule
    takes the units of largest α, which meets any target by construction; the evidence adds it."""
    label, note = "sparsity by α > 0 (Eq. 11) − ρ of {}", "0 by construction with our rule, the units of largest α"
    return _above_target(on, label, cells, "threshold_sparsity", Between(-within, within), note)


@claim_kind
def expectation_realised(on: Given, cells: CellNames, within: float = 0.02) -> list[Comparison]:
    """The expected sparsity at the end is the sparsity that the paper's rule α > 0 (Eq. 11) gives, within a margin."""

    def gap(run: Record) -> float:
        return learned(run, "expected_sparsity") - learned(run, "threshold_sparsity")

    return on.each(cells, "E[ρ̂] − sparsity by α > 0", gap, Between(-within, within))


def _swing(record: Record) -> float:
    """The largest size of the constraint loss."""
    return float(_constraint(record).max())


@claim_kind
def larger_swings(on: Given, cell: CellName, cells: CellNames) -> list[Comparison]:
    """The constraint loss of one allocation has a larger peak than that of each other one."""
    label = "peak of the constraint loss"
    return [on.minus(f"{label}, {cell} − {other}", cell, other, _swing, Above()) for other in cells]


@claim_kind
def swings_in_proportion(on: Given, cell: CellName, over_cell: CellName, low: float, high: float) -> list[Comparison]:
    """The peak of the constraint loss of one run, divided by that of another, lies between two bounds. (What stays
    undecided is a ratio at a bound; two runs of the same size have a ratio of 1, which other bounds exclude.)"""

    def ratio(ours: Record, theirs: Record) -> float:
        return math.log2(_swing(ours) / _swing(theirs))

    label = f"log2 of the ratio of peaks, {cell} / {over_cell}"
    return [on.compared(label, [cell, over_cell], ratio, Between(math.log2(low), math.log2(high)), paired=True)]


@claim_kind
def oscillates(on: Given, cells: CellNames, share: float = 0.05) -> list[Comparison]:
    """The constraint loss does not fall monotonically: somewhere it rises again by more than a share of its peak after
    it had fallen by as much."""

    def rises_again(run: Record) -> float:
        loss = _constraint(run)
        since = loss[int(loss.argmax()) :]
        return float((since - np.minimum.accumulate(since)).max() > share * loss.max())

    return on.each(cells, "the constraint loss rises again", rises_again, Always())


@claim_kind
def constraint_vanishes(on: Given, cells: CellNames, share: float = 0.1) -> list[Comparison]:
    """The constraint loss ends below a share of its peak."""
    label = "last constraint loss over its peak"
    return on.each(cells, label, lambda run: _constraint(run)[-1] / _swing(run), Below(share))


# ---- patterns in the masks ----


def _masks(record: Record) -> np.ndarray:
    """[layer][KV head], 1 = full attention."""
    return np.array(learned(record, "masks"))


def _quarters(record: Record) -> list[np.ndarray]:
    """The layers' masks: the bottom quarter, the middle half, the top quarter."""
    masks = _masks(record)
    quarter = len(masks) // 4
    return np.split(masks, [quarter, len(masks) - quarter])


def _full_layers(record: Record) -> list[bool]:
    """Whether a layer has full attention. Head-wise, it counts as full if most of its heads are."""
    return [2 * sum(row) > len(row) for row in learned(record, "masks")]


def _blocks(full: list[bool]) -> int:
    """Blocks of adjacent full layers."""
    return sum(here and not before for before, here in itertools.pairwise([False, *full]))


@claim_kind
def windows_first(on: Given, cells: CellNames) -> list[Comparison]:
    """The first layer has a larger share of windows than the other layers together. (Layer-wise it is a window or not,
    so that equal seeds count as yes and no.)"""
    label = "windows in layer 1 − in the others"
    return on.each(cells, label, lambda run: _masks(run)[1:].mean() - _masks(run)[:1].mean(), Above())


@claim_kind
def windows_at_the_bottom(on: Given, cells: CellNames, least: float | None = None) -> list[Comparison]:
    """The bottom quarter of the layers has a larger share of windows than the others; with `least` ("dominated by")
    this share itself is larger than that too."""

    def more(run: Record) -> float:
        bottom, *others = _quarters(run)
        return float(np.concatenate(others).mean() - bottom.mean())

    label = "windows in the bottom quarter"
    parts = on.each(cells, f"{label} − in the others", more, Above())
    if least is None:
        return parts
    return parts + on.each(cells, label, lambda run: 1 - _quarters(run)[0].mean(), Above(least))


def _at_the_top(record: Record) -> float:
    """How much larger the share of windows is in the top quarter of the layers than in the middle half."""
    _, middle, top = _quarters(record)
    return float((1 - top.mean()) - (1 - middle.mean()))


@claim_kind
def windows_at_the_top(on: Given, cells: CellNames) -> list[Comparison]:
    """The top quarter of the layers has a larger share of windows than the middle half."""
    return on.each(cells, "windows in the top quarter − in the middle half", _at_the_top, Above())


@claim_kind
def weaker_at_the_top(on: Given, cell: CellName, cells: CellNames) -> list[Comparison]:
    """The share of windows rises less from the middle half to the top quarter than in each other run."""
    label = "rise of the share of windows to the top"
    return [on.minus(f"{label}, {cell} − {other}", cell, other, _at_the_top, Below()) for other in cells]


@claim_kind
def last_layer_windows(on: Given, cells: CellNames) -> list[Comparison]:
    """All of the last layer is a window."""
    return on.each(cells, "the last layer is a window", lambda run: float(not _masks(run)[-1].any()), Always())


@claim_kind
def full_in_the_middle(on: Given, cells: CellNames) -> list[Comparison]:
    """The middle half of the layers holds a larger share of full attention than the outer half."""

    def more(run: Record) -> float:
        bottom, middle, top = _quarters(run)
        return float(middle.mean() - np.concatenate([bottom, top]).mean())

    return on.each(cells, "full attention in the middle − outside", more, Above())


@claim_kind
def full_is_contiguous(on: Given, cells: CellNames) -> list[Comparison]:
    """Layers of full attention stand together: they form fewer blocks of adjacent layers than as many layers in a
    random order do, k (L − k + 1) / L in the mean. Head-wise, a layer counts as full if most of its heads are."""

    def fewer(run: Record) -> float:
        full = _full_layers(run)
        count = sum(full)
        if count in (0, len(full)):
            raise Open("all layers are of one kind")
        return _blocks(full) - count * (len(full) - count + 1) / len(full)

    return on.each(cells, "blocks of full layers − by chance", fewer, Below())


@claim_kind
def full_blocks_at_most(on: Given, cells: CellNames, most: int) -> list[Comparison]:
    """The layers of full attention form at most so many blocks of adjacent layers."""

    def few(run: Record) -> float:
        full = _full_layers(run)
        if not any(full):
            raise Open("no layer has full attention")
        return float(_blocks(full) <= most)

    return on.each(cells, f"at most {most} blocks of full layers", few, Always())


@claim_kind
def not_interleaved(on: Given, cells: CellNames) -> list[Comparison]:
    """The layers of full attention are nearer to a single block than to even spreading, where they form as many blocks
    as there are full layers, or as the windows leave room for: fewer blocks than the mean of the two."""

    def fewer(run: Record) -> float:
        full = _full_layers(run)
        return _blocks(full) - (1 + min(sum(full), len(full) - sum(full) + 1)) / 2

    return on.each(cells, "blocks of full layers − halfway to even spreading", fewer, Below())


@claim_kind
def full_retreats(on: Given, cells: CellNames) -> list[Comparison]:
    """Cells in the order of rising targets: heads with full attention at one have it at the target before. Their share
    of exceptions is lower than by chance, which is the share of windows at the lower target. (Two runs of one target
    share heads for another reason, and decide nothing.)"""

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

    A distance is the share of KV heads that differ; the other seed is the next one, and the first for the last."""
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


@claim_kind
def layers_are_mixed(on: Given, cells: CellNames, share: float = 0.5) -> list[Comparison]:
    """More than a share of the layers has heads of both kinds."""

    def mixed(run: Record) -> float:
        masks = learned(run, "masks")
        return sum(0 < sum(row) < len(row) for row in masks) / len(masks)

    return on.each(cells, "share of mixed layers", mixed, Above(share))


EVENLY = 0.75
"""mean(m)² / mean(m²) of numbers m that are spread evenly from 0 to the largest."""


@claim_kind
def gates_stay_together(on: Given, cells: CellNames) -> list[Comparison]:
    """The gates α have moved from their first value, 1, by nearly the same amount m = 1 − α: mean(m)² / mean(m²) is 1
    where they are all the same, whatever the rate at which they learn, and 0.75 where they are spread evenly between
    the first value and the farthest. It must lie above that."""

    def together(run: Record) -> float:
        moved = 1 - np.array(learned(run, "scores"), dtype=float)
        if not moved.any():
            raise Open("no gate has moved")
        return float(moved.mean() ** 2 / (moved**2).mean())

    return on.each(cells, "share of the gates' way in common", together, Above(EVENLY))


# ---- the knock-out ----


def _units(run: Record, base: Record, of: str) -> tuple[np.ndarray, np.ndarray]:
    """The knock-out costs of all units in nats, and which of them keep full attention. One row (1, units), or with
    `head-single`, which chooses within every layer, a row for each (L, K).

    of: the loss that rises: `text`, or a task, of whose answers those count whose fact lies outside the window.
    """
    granularity = learned(run, "granularity")
    part = "layers" if granularity == "layer" else "heads"
    measure = "all" if of == "text" else "far"
    costs = np.array(value_at(base, f"results.probes.knockout.{part}.{of}.{measure}.rise"), dtype=float)
    full = _masks(run).astype(bool)
    if granularity == "layer":
        full = full[:, 0]
    rows = len(full) if granularity == "head-single" else 1
    return costs.reshape(rows, -1), full.reshape(rows, -1)


@claim_kind
def windows_cost_little(
    on: Given, cells: CellNames, base: CellName, of: str, most: float, reason: str
) -> list[Comparison]:
    """Units become windows only where that does not hurt: the largest knock-out cost of a window is less than `most`
    nats (`reason` says why that is little), and windows cost less than the units that keep full attention, in the
    mean."""

    def largest(run: Record, start: Record) -> float:
        costs, full = _units(run, start, of)
        if full.all():
            raise Open("no unit is a window")
        return float(costs[~full].max())

    def less(run: Record, start: Record) -> float:
        costs, full = _units(run, start, of)
        if full.all() or not full.any():
            raise Open("all units are of one kind")
        return float(costs[~full].mean() - costs[full].mean())

    asked = (
        ("largest knock-out cost of a window", largest, Between(None, most)),
        ("mean knock-out cost of windows − of full attention", less, Below()),
    )
    return [
        on.compared(f"{cell}: {label}", [cell, base], cost, one, unit=" nats")
        for cell in cells
        for label, cost, one in asked
    ]


def _told_apart(run: Record, base: Record, of: str) -> float:
    """How much of the knock-out cost a choice keeps, from 0, the mean of random choices, to 1, that of the choice with
    the highest costs."""
    costs, full = _units(run, base, of)
    kept = float(costs[full].sum())
    chance = float((costs.mean(axis=1) * full.sum(axis=1)).sum())
    best = sum(float(np.sort(row)[::-1][:count].sum()) for row, count in zip(costs, full.sum(axis=1), strict=True))
    if best - chance < 1e-12:
        raise Open("every choice keeps the same knock-out cost")
    return (kept - chance) / (best - chance)


KEPT = "knock-out cost that is kept, from chance (0) to the most (1)"


@claim_kind
def choice_follows_knockout(
    on: Given, cells: CellNames, base: CellName, of: str, above: float | None = None, below: float | None = None
) -> list[Comparison]:
    """The units that keep full attention are those whose knock-out costs most: the share of the way from a random
    choice (0) to the knock-out's own (1) lies above or below a bound. (Where few units cost anything, most random
    choices lie a little below 0 and few far above it: write a bound well away from 0.)"""
    asked = beyond("choice_follows_knockout", above, below)
    return [
        on.compared(f"{cell}: {KEPT}", [cell, base], lambda run, start: _told_apart(run, start, of), one)
        for cell in cells
        for one in asked
    ]


@claim_kind
def follows_knockout_more(on: Given, cell: CellName, over_cell: CellName, base: CellName, of: str) -> list[Comparison]:
    """The units that keep full attention in one run are rather those whose knock-out costs most than in another."""
    label = f"{KEPT}, {cell} − {over_cell}"
    return [on.minus(label, cell, over_cell, lambda run, start: _told_apart(run, start, of), Above(), base)]
