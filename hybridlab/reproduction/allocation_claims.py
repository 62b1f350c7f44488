"""Tests of ConSA's claims about learned allocations: convergence, overshoot, and what the masks look like."""

from __future__ import annotations

from typing import Any

from hybridlab.reproduction.experiment import Experiment
from hybridlab.reproduction.verdict import Records, Verdict, first_seed, missing


def _learned(record: dict[str, Any]) -> dict[str, Any]:
    return next(iter(record["controllers"].values()))


def _settling_step(record: dict[str, Any], within: float) -> float:
    """The last logged step at which the expected sparsity was farther than `within` from its target."""
    history, target = record["history"], _learned(record)["target"]
    away = [s for s, e in zip(history["step"], history["expected_sparsity"], strict=True) if abs(e - target) > within]
    return away[-1] if away else 0.0


def converges_first(
    experiment: Experiment, records: Records, cell: str, cells: list[str], within: float = 0.02
) -> Verdict:
    """One allocation settles at its target earlier than the others."""
    if lost := missing(records, [cell, *cells]):
        return lost
    steps = {name: _settling_step(first_seed(records, name), within) for name in [cell, *cells]}
    evidence = "; ".join(f"{name}: within {within:g} after step {step:g}" for name, step in steps.items())
    return Verdict(all(steps[cell] < steps[name] for name in cells), f"{evidence} (n = 1)")


def higher_settles_first(experiment: Experiment, records: Records, cells: list[str], within: float = 0.02) -> Verdict:
    """Cells in the order of rising targets settle earlier and earlier."""
    if lost := missing(records, cells):
        return lost
    steps = [_settling_step(first_seed(records, cell), within) for cell in cells]
    evidence = "; ".join(f"{cell}: step {step:g}" for cell, step in zip(cells, steps, strict=True))
    return Verdict(all(a > b for a, b in zip(steps, steps[1:], strict=False)), f"{evidence} (n = 1)")


def same_overshoot(experiment: Experiment, records: Records, cells: list[str], within: float = 0.1) -> Verdict:
    """The highest expected sparsity is about the same whatever the target."""
    if lost := missing(records, cells):
        return lost
    peaks = [_learned(first_seed(records, cell))["highest_expected_sparsity"] for cell in cells]
    evidence = "; ".join(f"{cell}: {peak:.3f}" for cell, peak in zip(cells, peaks, strict=True))
    return Verdict(max(peaks) - min(peaks) <= within, f"peaks: {evidence}; asked within {within:g} (n = 1)")


def windows_first(experiment: Experiment, records: Records, cells: list[str]) -> Verdict:
    """The first layer is a window (layer-wise), or has more window heads than the average layer (head-wise)."""
    if lost := missing(records, cells):
        return lost
    parts, holds = [], []
    for cell in cells:
        masks = _learned(first_seed(records, cell))["masks"]
        first = masks[0].count(0) / len(masks[0])
        mean = sum(row.count(0) for row in masks) / sum(len(row) for row in masks)
        holds.append(first > mean or first == 1)
        parts.append(f"{cell}: layer 1 {first:.2f}, all layers {mean:.2f}")
    return Verdict(all(holds), f"share of windows: {'; '.join(parts)} (n = 1)")


def full_in_the_middle(experiment: Experiment, records: Records, cells: list[str]) -> Verdict:
    """The middle half of the layers holds a larger share of full attention than the outer half."""
    if lost := missing(records, cells):
        return lost
    parts, holds = [], []
    for cell in cells:
        masks = _learned(first_seed(records, cell))["masks"]
        quarter = len(masks) // 4
        middle, outer = masks[quarter : len(masks) - quarter], masks[:quarter] + masks[len(masks) - quarter :]
        shares = [sum(map(sum, rows)) / sum(map(len, rows)) for rows in (middle, outer)]
        holds.append(shares[0] > shares[1])
        parts.append(f"{cell}: middle {shares[0]:.2f}, outer {shares[1]:.2f}")
    return Verdict(all(holds), f"share of full attention: {'; '.join(parts)} (n = 1)")


def full_retreats(experiment: Experiment, records: Records, cells: list[str]) -> Verdict:
    """Cells in the order of rising targets: what attends in full at one attends in full at every lower one."""
    if lost := missing(records, cells):
        return lost
    kept = []
    for cell in cells:
        masks = _learned(first_seed(records, cell))["masks"]
        kept.append({(i, j) for i, row in enumerate(masks) for j, value in enumerate(row) if value})
    strays = [len(high - low) for low, high in zip(kept, kept[1:], strict=False)]
    sizes = [len(k) for k in kept]
    return Verdict(not any(strays), f"full heads {sizes}; of them not full at the lower target: {strays} (n = 1)")


def gates_stay_together(experiment: Experiment, records: Records, cells: list[str], within: float = 0.05) -> Verdict:
    """The learned gates of a run lie within a narrow range."""
    if lost := missing(records, cells):
        return lost
    parts, holds = [], []
    for cell in cells:
        gates = [value for row in _learned(first_seed(records, cell))["scores"] for value in row]
        holds.append(max(gates) - min(gates) <= within)
        parts.append(f"{cell}: {min(gates):.3f} to {max(gates):.3f}")
    return Verdict(all(holds), f"gates: {'; '.join(parts)}; asked a range of {within:g} (n = 1)")


TESTS = {
    f.__name__: f
    for f in (
        converges_first,
        higher_settles_first,
        same_overshoot,
        windows_first,
        full_in_the_middle,
        full_retreats,
        gates_stay_together,
    )
}
