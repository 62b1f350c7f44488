"""Tests of SpiralFormer's claims about loops, on the runs made here."""

from __future__ import annotations

import math

import numpy as np

from hybridlab.reproduction.experiment import Experiment
from hybridlab.reproduction.verdict import Records, Verdict, all_of, first_seed, missing, paired_difference


def _statistic(records: Records, cell: str, metric: str, heads: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (T, N) after training and with fresh weights, of the heads asked for in all seeds, and the chunk sizes."""
    trained, fresh = [], []
    for record in records[cell].values():
        found = record["results"]["probes"]["loops"]
        chunks = np.array(found["chunks"])
        chosen = np.array(found[metric]["dynamic"]).flatten() if heads == "dynamic" else slice(None)
        trained.append(np.array(found[metric]["values"]).reshape(len(chunks), -1)[:, chosen])
        fresh.append(np.array(found["fresh"][metric]).reshape(len(chunks), -1)[:, chosen])
    return np.concatenate(trained, axis=1), np.concatenate(fresh, axis=1), chunks


def _error(values: np.ndarray) -> np.ndarray:
    return values.std(-1, ddof=1) / math.sqrt(values.shape[-1])


def trend_with_resolution(
    experiment: Experiment, records: Records, cell: str, metric: str, direction: str, heads: str = "dynamic"
) -> Verdict:
    """Training makes the mean over heads fall (or rise) from every resolution to the next finer one.

    Tested on what training has changed, since causal attention over 16 latents differs from that over 128 before
    anything is learned; each step must be more than twice its error over heads.
    """
    if lost := missing(records, [cell]):
        return lost
    trained, fresh, chunks = _statistic(records, cell, metric, heads)
    order = np.argsort(-chunks, kind="stable")
    steps = np.diff((trained - fresh)[order], axis=0) * (1 if direction == "rises" else -1)
    means, errors = steps.mean(1), _error(steps)
    listed, before = (", ".join(f"{value:.3f}" for value in v[order].mean(1)) for v in (trained, fresh))
    evidence = f"{cell}, {heads} heads, {metric.replace('_', ' ')} from coarse to fine: {listed}; with fresh weights: "
    evidence += f"{before} (n = {trained.shape[1]} heads, {len(records[cell])} seed)"
    if (means + 2 * errors < 0).any():
        return Verdict(False, evidence)
    resolved = bool((means > 2 * errors).all())
    return Verdict(True if resolved else None, evidence + ("" if resolved else ", not resolved"))


def weaker_shift(experiment: Experiment, records: Records, cell: str, over_cell: str, metric: str) -> Verdict:
    """What training changes between the first and the last iteration is smaller in one run than in another, over all
    heads. First and last: more iterations between them would widen a range by themselves."""
    if lost := missing(records, [cell, over_cell]):
        return lost
    shifts = {}
    for name in (cell, over_cell):
        trained, fresh, _ = _statistic(records, name, metric, "all")
        shifts[name] = np.abs((trained - fresh)[-1] - (trained - fresh)[0])
    a, b = shifts.values()
    error = math.hypot(_error(a), _error(b))
    difference = float(a.mean() - b.mean())
    evidence = (
        f"mean change of {metric.replace('_', ' ')} from the first to the last loop, less that of fresh weights: "
    )
    evidence += f"{cell} {a.mean():.3f}, {over_cell} {b.mean():.3f}, difference {difference:+.3f} ± {error:.3f}"
    return Verdict(None if abs(difference) <= 2 * error else difference < 0, evidence)


def concentrates(experiment: Experiment, records: Records, cell: str, metric: str, share: float = 0.4) -> Verdict:
    """The heads that move most hold more of all movement after training than before it, by a tenth at least. (Ranges
    that were spread evenly between 0 and their largest would give the first 40 % of the heads 64 %.)"""
    if lost := missing(records, [cell]):
        return lost
    held = []
    for values in _statistic(records, cell, metric, "all")[:2]:
        spread = np.sort(np.ptp(values, axis=0))[::-1]
        whole = float(spread.sum())
        held.append(float(spread[: max(1, round(share * len(spread)))].sum()) / whole if whole else share)
    evidence = (
        f"{cell}: the {100 * share:.0f} % of the heads that move most hold {100 * held[0]:.0f} % of the range of "
    )
    evidence += f"{metric.replace('_', ' ')}; with fresh weights {100 * held[1]:.0f} %"
    return Verdict(held[0] > held[1] + 0.1, evidence)


def other_heads(experiment: Experiment, records: Records, cell: str) -> Verdict:
    """The dynamic heads of the two metrics are different ones: no more of them in common than two random choices of as
    many heads have on average."""
    if lost := missing(records, [cell]):
        return lost
    found = first_seed(records, cell)["results"]["probes"]["loops"]
    flags = [np.array(found[metric]["dynamic"]).flatten() for metric in ("entropy", "local_mass")]
    shared, count, heads = int((flags[0] & flags[1]).sum()), int(flags[0].sum()), len(flags[0])
    by_chance = count**2 / heads
    return Verdict(shared <= by_chance, f"{cell}: {shared} of {count} in common, {by_chance:.1f} by chance (1 seed)")


def u_shaped(experiment: Experiment, records: Records, cells: list[str]) -> Verdict:
    """Cells in the order of a rising ratio: the lowest validation loss lies inside, and both ends are above it by more
    than twice the error of their difference."""
    if lost := missing(records, cells):
        return lost
    losses = [_loss(records, cell) for cell in cells]
    place = int(np.argmin(losses))
    listed = ", ".join(f"{cell}: {loss:.4f}" for cell, loss in zip(cells, losses, strict=True))
    if place in (0, len(cells) - 1):
        other = cells[-1] if place == 0 else cells[0]
        apart = paired_difference(records, (cells[place], cells[place]), (other, other))
        return Verdict(False if apart.holds else None, f"{listed}; lowest at an end, {cells[place]}; {apart.evidence}")
    ends = [paired_difference(records, (cells[place],) * 2, (end,) * 2) for end in (cells[0], cells[-1])]
    verdict = all_of(ends)
    return Verdict(verdict.holds, f"{listed}; {verdict.evidence}")


def same_minimum(experiment: Experiment, records: Records, cells: list[str], other_cells: list[str]) -> Verdict:
    """Two budgets have their lowest loss at the same ratio; open where the lowest is not resolved from the second."""
    if lost := missing(records, [*cells, *other_cells]):
        return lost
    lowest, parts = [], []
    for names in (cells, other_cells):
        first, second = sorted(names, key=lambda name: _loss(records, name))[:2]
        apart = paired_difference(records, (first, first), (second, second))
        lowest.append((names.index(first), apart.holds))
        parts.append(f"lowest at {first} ({apart.evidence})")
    same = lowest[0][0] == lowest[1][0]
    return Verdict(same if all(holds for _, holds in lowest) else None, "; ".join(parts))


def better_frontier(experiment: Experiment, records: Records, cells: list[str], over_cells: list[str]) -> Verdict:
    """At every size, pair by pair, a lower loss at no more training FLOPs."""
    if lost := missing(records, [*cells, *over_cells]):
        return lost
    parts = []
    for name, other in zip(cells, over_cells, strict=True):
        ratio = first_seed(records, name)["flops"] / first_seed(records, other)["flops"]
        loss = paired_difference(records, (name, name), (other, other))
        holds = loss.holds if ratio <= 1.001 else False
        parts.append(Verdict(holds, f"{loss.evidence} at {ratio:.3f} of the FLOPs"))
    return all_of(parts)


def _loss(records: Records, cell: str) -> float:
    """Mean validation loss over seeds."""
    return float(np.mean([record["results"]["validation"]["loss"] for record in records[cell].values()]))


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
