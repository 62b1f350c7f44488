"""Claim kinds on learned masks and a knock-out: whether full attention stays where a window costs most.

The probe `knockout` of the run that the masks were learned from (`base`) says for every layer and every KV head by how
much the loss rises when this one alone becomes a window. It is measured on other rows than the results.
"""

from __future__ import annotations

import numpy as np

from hybridlab.errors import UserError
from hybridlab.papers.calls import CellName
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.consa import learned
from hybridlab.papers.claims.kinds import Given, claim_kind, value_at
from hybridlab.papers.claims.verdict import Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Below, Between, Question


def _units(run: Record, base: Record, of: str) -> tuple[np.ndarray, np.ndarray]:
    """The knock-out costs of all units in nats, and which of them keep full attention. One row (1, units), or with
    `head-single`, which chooses within every layer, a row for each (L, K).

    of: the loss that rises: `text`, or a task, of whose answers those count whose fact lies outside the window.
    """
    granularity = learned(run, "granularity")
    part = "layers" if granularity == "layer" else "heads"
    measure = "all" if of == "text" else "far"
    costs = np.array(value_at(base, f"results.probes.knockout.{part}.{of}.{measure}.rise"), dtype=float)
    full = np.array(learned(run, "masks"), dtype=bool)
    if granularity == "layer":
        full = full[:, 0]
    rows = len(full) if granularity == "head-single" else 1
    return costs.reshape(rows, -1), full.reshape(rows, -1)


@claim_kind
def windows_cost_little(
    on: Given, cells: list[CellName], base: CellName, of: str, most: float, reason: str
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

    comparisons = []
    for cell in cells:
        label = f"{cell}: largest knock-out cost of a window"
        comparisons.append(on.compared(label, [cell, base], largest, Between(None, most), unit=" nats"))
        label = f"{cell}: mean knock-out cost of windows − of full attention"
        comparisons.append(on.compared(label, [cell, base], less, Below(), unit=" nats"))
    return comparisons


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


@claim_kind
def choice_follows_knockout(
    on: Given, cells: list[CellName], base: CellName, of: str, above: float | None = None, below: float | None = None
) -> list[Comparison]:
    """The units that keep full attention are those whose knock-out costs most: the share of the way from a random
    choice (0) to the knock-out's own (1) lies above or below a bound. (Where few units cost anything, most random
    choices lie a little below 0 and few far above it: write a bound well away from 0.)"""

    def share(run: Record, start: Record) -> float:
        return _told_apart(run, start, of)

    if above is None and below is None:
        raise UserError("choice_follows_knockout asks for nothing; write above, below or both")
    asked: list[Question] = [] if above is None else [Above(above)]
    asked += [] if below is None else [Below(below)]
    label = "knock-out cost that is kept, from chance (0) to the most (1)"
    return [on.compared(f"{cell}: {label}", [cell, base], share, one) for cell in cells for one in asked]


@claim_kind
def follows_knockout_more(on: Given, cell: CellName, over_cell: CellName, base: CellName, of: str) -> list[Comparison]:
    """The units that keep full attention in one run are rather those whose knock-out costs most than in another."""

    def more(ours: Record, theirs: Record, start: Record) -> float:
        return _told_apart(ours, start, of) - _told_apart(theirs, start, of)

    label = f"knock-out cost that is kept, from chance (0) to the most (1), {cell} − {over_cell}"
    return [on.compared(label, [cell, over_cell, base], more, Above(), paired=True)]
