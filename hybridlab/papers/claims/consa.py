"""ConSA's claims about learned allocations: convergence, overshoot, and patterns in the masks."""

from __future__ import annotations

from typing import Any

from hybridlab.papers.calls import CellName
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.runs.record import Record


def _learned(record: Record, cell: str, *names: str) -> list[Any]:
    """The results of the run's controller with these names."""
    if missing := [name for name in names if name not in record.controller]:
        raise Open(f"{cell}: its run has learned no {', '.join(missing).replace('_', ' ')}")
    return [record.controller[name] for name in names]


def _of_first(on: Given, cells: list[str], name: str) -> dict[str, Any]:
    """cell → the controller's result of this name in the run of its first seed."""
    on.require(cells)
    return {cell: _learned(on.first_seed(cell), cell, name)[0] for cell in cells}


def _settling_steps(on: Given, cells: list[str], within: float) -> dict[str, float]:
    """cell → the last logged step at which the expected sparsity differed from its target by more than `within`."""
    steps = {}
    for cell, target in _of_first(on, cells, "target").items():
        history = on.first_seed(cell).history
        pairs = zip(history["step"], history["expected_sparsity"], strict=True)
        steps[cell] = max((step for step, sparsity in pairs if abs(sparsity - target) > within), default=0.0)
    return steps


@claim_kind
def converges_first(on: Given, cell: CellName, cells: list[CellName], within: float = 0.02) -> Verdict:
    """One allocation settles at its target earlier than the others."""
    steps = _settling_steps(on, [cell, *cells], within)
    evidence = "; ".join(f"{name}: within {within:g} after step {step:g}" for name, step in steps.items())
    return Verdict(all(steps[cell] < steps[name] for name in cells), f"{evidence} (n = 1)")


@claim_kind
def higher_settles_first(on: Given, cells: list[CellName], within: float = 0.02) -> Verdict:
    """Cells in the order of rising targets settle earlier and earlier."""
    steps = _settling_steps(on, cells, within)
    evidence = "; ".join(f"{cell}: step {step:g}" for cell, step in steps.items())
    in_order = [steps[cell] for cell in cells]
    return Verdict(all(a > b for a, b in zip(in_order, in_order[1:], strict=False)), f"{evidence} (n = 1)")


@claim_kind
def same_overshoot(on: Given, cells: list[CellName], within: float = 0.1) -> Verdict:
    """The highest expected sparsity is about the same for every target."""
    peaks = _of_first(on, cells, "highest_expected_sparsity")
    evidence = "; ".join(f"{cell}: {peak:.3f}" for cell, peak in peaks.items())
    spread = max(peaks.values()) - min(peaks.values())
    return Verdict(spread <= within, f"peaks: {evidence}; asked within {within:g} (n = 1)")


@claim_kind
def overshoots_and_settles(on: Given, cells: list[CellName], within: float) -> Verdict:
    """Expected sparsity rises above its target during mask learning and ends close to it."""
    names = ("highest_expected_sparsity", "expected_sparsity", "target", "undecided_share")
    parts, holds = [], []
    for cell in cells:
        for record in on.runs(cell).values():
            highest, last, rho, undecided = _learned(record, cell, *names)
            holds.append(highest > rho + within and abs(last - rho) <= within)
            ends = f"rose to {highest:.3f}, ended at {last:.3f} for {rho:g}"
            parts.append(f"{cell}: {ends}, {100 * undecided:.0f} % of the units undecided")
    return Verdict(all(holds) if holds else None, "; ".join(parts) or "not run")


@claim_kind
def target_met(on: Given, cells: list[CellName]) -> Verdict:
    """The fixed masks have sparsity ρ exactly; the evidence adds the sparsity by the paper's threshold."""
    parts, holds = [], []
    for cell in cells:
        for record in on.runs(cell).values():
            realised, target, threshold = _learned(record, cell, "realised_sparsity", "target", "threshold_sparsity")
            holds.append(realised == target)
            parts.append(f"{cell}: {realised:g} (threshold α > 0: {threshold:g})")
    return Verdict(all(holds) if holds else None, "; ".join(parts) or "not run")


@claim_kind
def windows_first(on: Given, cells: list[CellName]) -> Verdict:
    """The first layer is a window (layer-wise), or has more window heads than the average layer (head-wise)."""
    parts, holds = [], []
    for cell, masks in _of_first(on, cells, "masks").items():
        first, mean = (1 - _share(rows) for rows in (masks[:1], masks))
        holds.append(first > mean or first == 1)
        parts.append(f"{cell}: layer 1 {first:.2f}, all layers {mean:.2f}")
    return Verdict(all(holds), f"share of windows: {'; '.join(parts)} (n = 1)")


@claim_kind
def full_in_the_middle(on: Given, cells: list[CellName]) -> Verdict:
    """The middle half of the layers holds a larger share of full attention than the outer half."""
    parts, holds = [], []
    for cell, masks in _of_first(on, cells, "masks").items():
        quarter = len(masks) // 4
        middle = _share(masks[quarter : len(masks) - quarter])
        outer = _share(masks[:quarter] + masks[len(masks) - quarter :])
        holds.append(middle > outer)
        parts.append(f"{cell}: middle {middle:.2f}, outer {outer:.2f}")
    return Verdict(all(holds), f"share of full attention: {'; '.join(parts)} (n = 1)")


def _share(masks: list[list[int]]) -> float:
    """The share of heads with full attention in these layers."""
    return sum(map(sum, masks)) / sum(map(len, masks))


@claim_kind
def full_retreats(on: Given, cells: list[CellName]) -> Verdict:
    """Cells in the order of rising targets: heads with full attention at one have it at every lower target."""
    kept = [
        {(layer, head) for layer, row in enumerate(masks) for head, full in enumerate(row) if full}
        for masks in _of_first(on, cells, "masks").values()
    ]
    strays = [len(high - low) for low, high in zip(kept, kept[1:], strict=False)]
    sizes = [len(heads) for heads in kept]
    return Verdict(not any(strays), f"full heads {sizes}; of them not full at the lower target: {strays} (n = 1)")


@claim_kind
def gates_stay_together(on: Given, cells: list[CellName], within: float = 0.05) -> Verdict:
    """The learned gates of a run lie within a narrow range."""
    parts, holds = [], []
    for cell, scores in _of_first(on, cells, "scores").items():
        gates = [value for row in scores for value in row]
        holds.append(max(gates) - min(gates) <= within)
        parts.append(f"{cell}: {min(gates):.3f} to {max(gates):.3f}")
    return Verdict(all(holds), f"gates: {'; '.join(parts)}; asked a range of {within:g} (n = 1)")
