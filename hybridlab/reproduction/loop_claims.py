"""Tests of SpiralFormer's claims about loops, on the runs made here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridlab.reproduction.experiment import Experiment
from hybridlab.reproduction.verdict import Records, Verdict, first_seed, missing


def _statistic(records: Records, cell: str, metric: str, heads: str) -> tuple[np.ndarray, np.ndarray]:
    """Values (T, N) of the heads asked for, and chunk sizes (T,)."""
    found = first_seed(records, cell)["results"]["probes"]["loops"]
    values = np.array(found[metric]["values"]).reshape(len(found["chunks"]), -1)
    chosen = np.array(found[metric]["dynamic"]).flatten() if heads == "dynamic" else slice(None)
    return values[:, chosen], np.array(found["chunks"])


def trend_with_resolution(
    experiment: Experiment, records: Records, cell: str, metric: str, direction: str, heads: str = "dynamic"
) -> Verdict:
    """The mean over heads falls (or rises) from every iteration to the next; each step more than twice its error."""
    if lost := missing(records, [cell]):
        return lost
    values, chunks = _statistic(records, cell, metric, heads)
    order = np.argsort(-chunks, kind="stable")
    steps = np.diff(values[order], axis=0) * (1 if direction == "rises" else -1)
    means, errors = steps.mean(1), steps.std(1, ddof=1) / math.sqrt(values.shape[1])
    listed = ", ".join(f"{value:.3f}" for value in values[order].mean(1))
    evidence = (
        f"{cell}, {heads} heads, {metric.replace('_', ' ')} from coarse to fine: {listed} (n = {values.shape[1]})"
    )
    if (means + 2 * errors < 0).any():
        return Verdict(False, evidence)
    return Verdict(
        True if (means > 2 * errors).all() else None,
        evidence + ("" if (means > 2 * errors).all() else ", not resolved"),
    )


def weaker_shift(experiment: Experiment, records: Records, cell: str, over_cell: str, metric: str) -> Verdict:
    """The mean range over the iterations, over all heads, is smaller in one run than in another."""
    if lost := missing(records, [cell, over_cell]):
        return lost
    ranges = {name: np.ptp(_statistic(records, name, metric, "all")[0], axis=0) for name in (cell, over_cell)}
    (a, b) = ranges.values()
    error = math.hypot(a.std(ddof=1) / math.sqrt(len(a)), b.std(ddof=1) / math.sqrt(len(b)))
    difference = float(a.mean() - b.mean())
    evidence = (
        f"mean range of {metric.replace('_', ' ')}: {cell} {a.mean():.3f}, {over_cell} {b.mean():.3f} ± {error:.3f}"
    )
    return Verdict(None if abs(difference) <= 2 * error else difference < 0, evidence)


def concentrates(experiment: Experiment, records: Records, cell: str, metric: str, share: float = 0.4) -> Verdict:
    """The heads that move most hold more of all movement than their number: at least one and a half times as much."""
    if lost := missing(records, [cell]):
        return lost
    spread = np.sort(np.ptp(_statistic(records, cell, metric, "all")[0], axis=0))[::-1]
    count = max(1, round(share * len(spread)))
    held = float(spread[:count].sum() / spread.sum())
    evidence = (
        f"{cell}: {count} of {len(spread)} heads hold {100 * held:.0f} % of the range of {metric.replace('_', ' ')}"
    )
    return Verdict(held > 1.5 * share, evidence)


def other_heads(experiment: Experiment, records: Records, cell: str) -> Verdict:
    """The dynamic heads of the two metrics are not the same ones."""
    if lost := missing(records, [cell]):
        return lost
    found = first_seed(records, cell)["results"]["probes"]["loops"]
    sets = [{i for i, v in enumerate(np.array(found[m]["dynamic"]).flatten()) if v} for m in ("entropy", "local_mass")]
    shared = len(sets[0] & sets[1])
    return Verdict(sets[0] != sets[1], f"{cell}: {shared} of {len(sets[0])} dynamic heads are those of both metrics")


def u_shaped(experiment: Experiment, records: Records, cells: list[str]) -> Verdict:
    """Cells in the order of a rising ratio: the lowest validation loss lies inside, not at either end."""
    if lost := missing(records, cells):
        return lost
    losses = [first_seed(records, cell)["results"]["validation"]["loss"] for cell in cells]
    place = int(np.argmin(losses))
    listed = ", ".join(f"{cell}: {loss:.4f}" for cell, loss in zip(cells, losses, strict=True))
    return Verdict(0 < place < len(cells) - 1, f"{listed}; lowest at {cells[place]} (n = 1 seed)")


def same_minimum(experiment: Experiment, records: Records, cells: list[str], other_cells: list[str]) -> Verdict:
    """Two budgets have their lowest loss at the same ratio."""
    if lost := missing(records, [*cells, *other_cells]):
        return lost

    def place(names: list[str]) -> int:
        return int(np.argmin([first_seed(records, name)["results"]["validation"]["loss"] for name in names]))

    one, two = place(cells), place(other_cells)
    return Verdict(one == two, f"lowest at {cells[one]} and at {other_cells[two]} (n = 1 seed)")


def better_frontier(experiment: Experiment, records: Records, cells: list[str], over_cells: list[str]) -> Verdict:
    """At every size, pair by pair, a lower loss at no more training FLOPs."""
    if lost := missing(records, [*cells, *over_cells]):
        return lost
    parts, holds = [], []
    for name, other in zip(cells, over_cells, strict=True):
        a, b = (first_seed(records, n) for n in (name, other))
        loss = _loss(a) - _loss(b)
        ratio = a["flops"] / b["flops"]
        holds.append(loss < 0 and ratio <= 1.001)
        parts.append(f"{name} − {other} = {loss:+.4f} nats at {ratio:.3f} of the FLOPs")
    return Verdict(all(holds), "; ".join(parts) + " (n = 1 seed)")


def _loss(record: dict[str, Any]) -> float:
    return record["results"]["validation"]["loss"]


TESTS = {
    f.__name__: f
    for f in (
        trend_with_resolution,
        weaker_shift,
        concentrates,
        other_heads,
        u_shaped,
        same_minimum,
        better_frontier,
    )
}
