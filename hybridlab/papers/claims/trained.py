"""Claim kinds on training curves and on growth that no expression over measures says (claims/expression.py)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hybridlab.papers.calls import CellName, CellNames
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import NotRun, Open, Verdict
from hybridlab.runs.record import Record
from hybridlab.statistics import Below

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
        def at_budget(run: Record, whole: Record) -> float:
            return loss_at(run, share * whole.flops)

        label = f"{cell} − {over_cell} at {100 * share:.0f} % of the FLOPs of {of}"
        return on.minus(label, cell, over_cell, at_budget, Below(), of, unit=" nats")

    return [difference(share) for share in shares]


def loss_at(record: Record, budget: float) -> float:
    """The training loss at a number of FLOPs, from a line fitted to the points near it; NotRun where there are fewer
    than four."""
    flops, loss = (np.array(record.history.get(name, [])) for name in ("flops", "loss"))
    near = np.abs(flops - budget) <= NEAR * budget
    if near.sum() < 4:
        raise NotRun("the log has fewer than four points near the budget")
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
        raise Open("the settings of a run do not fix the direction of its growth")
    orders = {
        name: [event["layer"] + 1 for event in run.events if event["kind"] == "loop-added"]
        for name, run in runs.items()
    }
    shallower = [layer < min(order[:i]) for order in orders.values() for i, layer in enumerate(order) if i]
    if not shallower:
        raise Open("no run has a second layer that loops")
    holds = all(shallower) if to == "shallower" else not any(shallower)
    shown = "; ".join(f"{name}: {', '.join(map(str, order))}" for name, order in orders.items())
    fixed = f"fixed by the settings ({', '.join(sorted(map(str, directions)))}), whatever the entropies"
    return Verdict(holds, f"{fixed}; layers in the order in which they began to loop: {shown}")
