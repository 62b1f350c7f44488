"""SpiralFormer's claims about loops, on the runs made here."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hybridlab.papers.calls import CellName
from hybridlab.papers.claims.kinds import Given, claim_kind, probe_of
from hybridlab.papers.claims.verdict import Open, Verdict, all_of, below_zero, lower_loss, unresolved
from hybridlab.runs.record import number_at
from hybridlab.statistics import independent_difference, known, mean_and_error

LoopMetric = Literal["entropy", "local_mass"]
"""A statistic that the probe `loops` keeps for each head."""


def _statistic(on: Given, cell: str, metric: LoopMetric, heads: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (T, N) of the chosen heads of all seeds, after training and with fresh weights; and the T chunk sizes."""
    trained, fresh = [], []
    for record in on.runs(cell).values():
        loops = probe_of(record, "loops")
        chunks = np.array(loops["chunks"])
        chosen = np.array(loops[metric]["dynamic"]).flatten() if heads == "dynamic" else slice(None)
        trained.append(np.array(loops[metric]["values"]).reshape(len(chunks), -1)[:, chosen])
        fresh.append(np.array(loops["fresh"][metric]).reshape(len(chunks), -1)[:, chosen])
    return np.concatenate(trained, axis=1), np.concatenate(fresh, axis=1), chunks


@claim_kind
def trend_with_resolution(
    on: Given,
    cell: CellName,
    metric: LoopMetric,
    direction: Literal["falls", "rises"],
    heads: Literal["dynamic", "all"] = "dynamic",
) -> Verdict:
    """Training makes the mean over heads fall (or rise) from every resolution to the next finer one.

    Tested on the change by training, since causal attention over 16 latents differs from that over 128 even with fresh
    weights; each step must be more than twice its error over heads.
    """
    on.require([cell])
    trained, fresh, chunks = _statistic(on, cell, metric, heads)
    order = np.argsort(-chunks, kind="stable")
    changes = np.diff((trained - fresh)[order], axis=0)
    outcomes = [below_zero(mean_and_error(step if direction == "falls" else -step)) for step in changes]
    after, before = (", ".join(f"{value:.3f}" for value in v[order].mean(1)) for v in (trained, fresh))
    evidence = f"{cell}, {heads} heads, {metric.replace('_', ' ')} from coarse to fine: {after}; with fresh weights: "
    evidence += f"{before} (n = {trained.shape[1]} heads, {len(on.runs(cell))} seed)"
    verdict = all_of([Verdict(holds, evidence) for holds in outcomes])
    return Verdict(verdict.holds, evidence + unresolved(verdict.holds))


@claim_kind
def weaker_shift(on: Given, cell: CellName, over_cell: CellName, metric: LoopMetric) -> Verdict:
    """The change by training from the first to the last iteration is smaller in one run than in another, over all
    heads. Only these two iterations are compared, since a range over more of them is wider in any case."""
    on.require([cell, over_cell])
    shifts = []
    for name in (cell, over_cell):
        trained, fresh, _ = _statistic(on, name, metric, "all")
        shifts.append(mean_and_error(np.abs((trained - fresh)[-1] - (trained - fresh)[0])))
    difference = independent_difference(*shifts)
    what = f"mean change of {metric.replace('_', ' ')} from the first to the last loop, less that of fresh weights"
    each = ", ".join(f"{name} {shift.value:.3f}" for name, shift in zip((cell, over_cell), shifts, strict=True))
    apart = f"difference {difference.value:+.3f} ± {difference.stderr:.3f}"
    return Verdict(below_zero(difference), f"{what}: {each}, {apart}")


@claim_kind
def concentrates(on: Given, cell: CellName, metric: LoopMetric, share: float = 0.4) -> Verdict:
    """The heads with the largest ranges have a larger share of the sum of ranges after training than before, by at
    least 0.1. (Ranges spread evenly between 0 and the largest would give the first 40 % of the heads 64 %.)"""
    on.require([cell])
    trained, fresh, _ = _statistic(on, cell, metric, "all")
    after, before = (_held_by_first(np.ptp(values, axis=0), share) for values in (trained, fresh))
    evidence = f"{cell}: the {100 * share:.0f} % of the heads that move most hold {100 * after:.0f} % of the range of "
    evidence += f"{metric.replace('_', ' ')}; with fresh weights {100 * before:.0f} %"
    return Verdict(after > before + 0.1, evidence)


def _held_by_first(ranges: np.ndarray, share: float) -> float:
    """The part of the sum of ranges that belongs to the largest ones, `share` of them by number."""
    spread = np.sort(ranges)[::-1]
    whole = float(spread.sum())
    return float(spread[: max(1, round(share * len(spread)))].sum()) / whole if whole else share


@claim_kind
def other_heads(on: Given, cell: CellName) -> Verdict:
    """The dynamic heads of the two metrics differ: they have no more heads in common than two random choices of equal
    size have on average."""
    loops = on.probe(cell, "loops")
    flags = [np.array(loops[metric]["dynamic"]).flatten() for metric in ("entropy", "local_mass")]
    shared, count, heads = int((flags[0] & flags[1]).sum()), int(flags[0].sum()), len(flags[0])
    by_chance = count**2 / heads
    return Verdict(shared <= by_chance, f"{cell}: {shared} of {count} in common, {by_chance:.1f} by chance (1 seed)")


@claim_kind
def u_shaped(on: Given, cells: list[CellName]) -> Verdict:
    """Cells in the order of a rising ratio: the lowest validation loss lies inside, and both ends are above it by more
    than twice the error of their difference."""
    losses = _losses(on, cells)
    by_cell = ", ".join(f"{cell}: {loss:.4f}" for cell, loss in losses.items())
    lowest, ends = min(losses, key=losses.__getitem__), (cells[0], cells[-1])
    if lowest in ends:
        [other] = {*ends} - {lowest}
        apart = _below(on, lowest, other)
        return Verdict(False if apart.holds else None, f"{by_cell}; lowest at an end, {lowest}; {apart.evidence}")
    inside = all_of([_below(on, lowest, end) for end in ends])
    return Verdict(inside.holds, f"{by_cell}; {inside.evidence}")


@claim_kind
def same_minimum(on: Given, cells: list[CellName], other_cells: list[CellName]) -> Verdict:
    """Two budgets have their lowest loss at the same ratio; open if the lowest is not resolved from the second."""
    on.require([*cells, *other_cells])
    positions, parts = [], []
    for names in (cells, other_cells):
        losses = _losses(on, names)
        first, second = sorted(names, key=losses.__getitem__)[:2]
        positions.append(names.index(first))
        parts.append(_below(on, first, second))
    evidence = "; ".join(
        f"lowest at {names[position]} ({part.evidence})"
        for names, position, part in zip((cells, other_cells), positions, parts, strict=True)
    )
    if not all(part.holds for part in parts):
        raise Open(evidence)
    return Verdict(positions[0] == positions[1], evidence)


@claim_kind
def better_frontier(on: Given, cells: list[CellName], over_cells: list[CellName]) -> Verdict:
    """At every size, pair by pair, a lower loss at no more training FLOPs."""
    on.require([*cells, *over_cells])
    parts = []
    for cell, over in zip(cells, over_cells, strict=True):
        ratio = on.first_seed(cell).flops / on.first_seed(over).flops
        loss = _below(on, cell, over)
        parts.append(Verdict(loss.holds if ratio <= 1.001 else False, f"{loss.evidence} at {ratio:.3f} of the FLOPs"))
    return all_of(parts)


def _below(on: Given, cell: str, over_cell: str) -> Verdict:
    return lower_loss((cell, on.runs(cell)), (over_cell, on.runs(over_cell)))


def _losses(on: Given, cells: list[str]) -> dict[str, float]:
    """cell → mean validation loss over seeds."""
    on.require(cells)
    losses = {cell: [number_at(run, "results.validation.loss") for run in on.runs(cell).values()] for cell in cells}
    return {cell: known(mean_and_error([known(loss) for loss in by_seed])) for cell, by_seed in losses.items()}
