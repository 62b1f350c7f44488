"""SGT's claims about growth, entropy and convergence, on the runs made here, and about its printed speeds."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from hybridlab.config.resolve import resolve
from hybridlab.papers.calls import CellName, RowName
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.speed import PARTS
from hybridlab.papers.claims.verdict import Open, Verdict, all_of, below_zero, lower_loss, unresolved
from hybridlab.plan.forecast import final_structure
from hybridlab.runs.record import Record
from hybridlab.statistics import (
    Measurement,
    correlation,
    independent_difference,
    known,
    proportion,
    rank_correlation,
)

NEAR = 0.2
"""The loss at a FLOPs budget is that of a straight line fitted to the points within this share of the budget."""


@claim_kind
def extrapolates_better(on: Given, rows: list[RowName], over: list[RowName], factors: list[int]) -> Verdict:
    """A lower loss than others at multiples of the training length."""
    parts = []
    for left, right, factor in itertools.product(rows, over, factors):
        ours = (f"{factor}×: {left}", on.labelled(left)[1])
        parts.append(lower_loss(ours, on.labelled(right), str(factor)))
    return all_of(parts)


@claim_kind
def lower_at_flops(on: Given, cell: CellName, over_cell: CellName, share: float, of: CellName) -> Verdict:
    """Training loss at the same FLOPs: a share of the total of the run `of`."""
    on.require([cell, over_cell, of])
    budget = share * on.first_seed(of).flops
    left, right = (_loss_at(on.first_seed(name), budget) for name in (cell, over_cell))
    difference = independent_difference(left, right)
    holds = below_zero(difference)
    points = math.exp(known(left)) - math.exp(known(right))
    at_budget = f"{cell} − {over_cell} at {100 * share:.0f} % of the FLOPs of {of}"
    evidence = f"{at_budget}: {difference.value:+.4f} ± {difference.stderr:.4f} nats, {points:+.2f} perplexity"
    return Verdict(holds, f"{evidence} (n = 1 seed{unresolved(holds)})")


def _loss_at(record: Record, budget: float) -> Measurement:
    """The training loss at a number of FLOPs, from a line fitted to the points near it."""
    flops, loss = (np.array(record.history[name]) for name in ("flops", "loss"))
    near = np.abs(flops - budget) <= NEAR * budget
    x, y = flops[near] / budget - 1, loss[near]
    if len(x) < 4:
        return Measurement(value=float(np.interp(budget, flops, loss)), stderr=math.inf, n=len(x))
    (_, value), covariance = np.polyfit(x, y, 1, cov=True)
    return Measurement(value=float(value), stderr=float(math.sqrt(covariance[1, 1])), n=len(x))


@claim_kind
def higher_entropy_converges_first(on: Given, cell: CellName) -> Verdict:
    """Appendix E: loops of high-entropy heads converge (mean factor below 1), and converge faster than loops of
    low-entropy heads in more than half of the layers, by more than twice the standard error over sequences."""
    loops = on.probe(cell, "convergence")
    layers, high, low = (loops[k] for k in ("layers", "layers_where_high_is_faster", "layers_where_low_is_faster"))
    sets = ", ".join(f"{name} {part['factor']:.3f}" for name, part in loops["sets"].items())
    evidence = f"mean factor of a pass: {sets}; high is faster in {high}, low in {low} of {layers} layers "
    evidence += f"(n = {loops['sequences']} sequences, 1 seed)"
    if 2 * high > layers:
        return Verdict(loops["sets"]["high"]["factor"] < 1, evidence)
    return Verdict(None if layers - high - low > abs(high - low) else False, evidence)


@claim_kind
def lemma_holds(on: Given, cell: CellName) -> Verdict:
    """Lemma 1 on every row of real attention."""
    lemma = on.probe(cell, "convergence")["lemma"]
    evidence = f"{lemma['violations']} of {lemma['rows']} rows break it; mean bound {lemma['mean_bound']:.3f}"
    if worst := lemma["worst"]:
        position = f"row {worst['row']} of layer {worst['layer'] + 1}, head {worst['head'] + 1}"
        evidence += f"; worst: {position}: A_ii = {worst['diagonal']:.3f} > {worst['bound']:.3f}"
    return Verdict(lemma["violations"] == 0, evidence)


@claim_kind
def entropy_lowers_trace(on: Given, cell: CellName) -> Verdict:
    """Appendix E.3: heads of higher entropy have smaller traces (rank correlation over all heads below 0)."""
    order = Measurement(**on.probe(cell, "convergence")["entropy_trace_rank_correlation"])
    if order.value is None:
        raise Open("all heads have the same rank")
    evidence = f"rank correlation {order.value:+.3f} ± {order.stderr:.3f} (n = {order.n} heads)"
    return Verdict(below_zero(order), evidence)


# ---- entropies over training ----


def _entropies(on: Given, cell: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) and entropies (T, L, H)."""
    log = on.hook(cell, "entropy-log")
    return np.array(log["steps"]), np.array(log["entropies"], dtype=float)


@claim_kind
def more_spikes(on: Given, cell: CellName, over_cell: CellName, jump: float = 0.05) -> Verdict:
    """A larger share of sudden changes of a head's entropy between two measurements, once growth has begun."""
    on.require([cell, over_cell])
    shares, parts = [], []
    for name in (cell, over_cell):
        steps, entropies = _entropies(on, name)
        moves = np.abs(np.diff(entropies, axis=0))[steps[:-1] >= _growth_begins(on, name)]
        shares.append(proportion((moves > jump).flatten()))
        parts.append(f"{name}: {int((moves > jump).sum())} of {moves.size} changes above {jump:g}")
    fewer = below_zero(independent_difference(*shares))
    holds = None if fewer is None else not fewer
    return Verdict(holds, f"{'; '.join(parts)} (1 seed{unresolved(holds)})")


def _growth_begins(on: Given, cell: str) -> int:
    """The first step at which the run may grow."""
    controller: dict[str, Any] = on.first_seed(cell).config.get("controller") or {}
    if "start_step" not in controller:
        raise Open(f"{cell}: its run does not grow")
    return controller["start_step"]


@claim_kind
def deep_layers_differentiate_first(on: Given, cell: CellName) -> Verdict:
    """The variance of entropies inside a layer reaches half of its highest value earlier in deeper layers."""
    steps, entropies = _entropies(on, cell)
    reached = [int(steps[np.argmax(v >= v.max() / 2)]) for v in entropies.var(axis=2).T[1:]]
    order = rank_correlation(range(len(reached)), reached)
    evidence = f"half of the highest variance at step {', '.join(map(str, reached))} (layers 2 on)"
    if order is None:
        raise Open(evidence)
    trend = correlation(order, len(reached))
    evidence += f"; rank correlation of depth and step {order:+.2f} ± {trend.stderr:.2f} (n = {trend.n} layers)"
    return Verdict(below_zero(trend), evidence)


@claim_kind
def first_layer_stays_uniform(on: Given, cell: CellName, near: float = 0.9) -> Verdict:
    """Every head of the first layer keeps an entropy close to 1."""
    _, entropies = _entropies(on, cell)
    lowest, variance = float(entropies[:, 0].min()), float(entropies[:, 0].var(axis=1).max())
    return Verdict(lowest >= near, f"lowest entropy {lowest:.3f}, highest variance {variance:.2g}; asked {near:g}")


@claim_kind
def entropy_falls_in_order(
    on: Given, cell: CellName, every: float = 0.05, until: float = 0.4, least: float = 0.5
) -> Verdict:
    """Early in training every layer's entropy falls, and the layers keep their order between two measurements."""
    steps, entropies = _entropies(on, cell)
    chosen = [int(np.argmin(np.abs(steps - share * steps[-1]))) for share in np.arange(every, until + 1e-9, every)]
    layers = entropies.mean(axis=2)[chosen]
    orders = [rank_correlation(a, b) for a, b in zip(layers, layers[1:], strict=False)]
    correlations = [0.0 if order is None else order for order in orders]
    fell, count = int((layers[-1] < layers[0]).sum()), layers.shape[1]
    evidence = f"{fell} of {count} layers fell; rank correlations of successive readings "
    evidence += f"{', '.join(f'{c:.2f}' for c in correlations)}; asked above {least:g}"
    return Verdict(fell == count and min(correlations) > least, evidence)


@claim_kind
def contributions_sharpen(on: Given, cell: CellName, example: int = 0) -> Verdict:
    """The contributions of a looped head concentrate on fewer tokens with every pass (their entropy falls)."""
    values = []
    for row in on.probe(cell, "contributions")["examples"][example]["loops"]:
        share = np.array(row) / sum(row)
        values.append(float(-(share[share > 0] * np.log(share[share > 0])).sum() / math.log(len(row))))
    by_loop = ", ".join(f"loop {i}: {value:.3f}" for i, value in enumerate(values))
    falls = all(b < a for a, b in zip(values, values[1:], strict=False))
    return Verdict(falls, f"normalised entropy of the contributions, {by_loop} (one sequence)")


# ---- the printed speeds ----


@claim_kind
def printed_ratios_follow(on: Given, rounding: float = 0.05) -> Verdict:
    """The ratios of printed speeds to vanilla's equal the ratios of work in layers, L / (L + 3·h/H) and L / (L + 3),
    within the rounding of the cells. Measured speeds would scatter around these ratios, so the printed ones look
    computed.
    """
    off, count, largest = [], 0, 0.0
    rows = on.experiment.rows
    vanilla = {(r.given["group"], r.given["batch"]): r.short for r in rows if r.given["model"] == "Vanilla"}
    for row in (row for row in rows if row.given["model"] != "Vanilla"):
        base, wanted = vanilla[row.given["group"], row.given["batch"]], _work_ratio(on, row.given)
        for part in PARTS:
            ours, theirs = on.printed((row.short, part), (base, part))
            low, high = (ours - rounding) / (theirs + rounding), (ours + rounding) / (theirs - rounding)
            count += 1
            largest = max(largest, abs(ours / theirs - wanted))
            if not low <= wanted <= high:
                off.append(f"{row.short} {part}: {ours / theirs:.4f} for {wanted:.4f}")
    evidence = f"{count - len(off)} of {count} printed ratios are the ratio of work within the cells' rounding"
    return Verdict(not off, f"{evidence}; largest difference {largest:.4f}{listed(off)}")


def _work_ratio(on: Given, given: dict[str, Any]) -> float:
    """Layers of the plain stack divided by layers that run; a head loop counts as its share of heads."""
    spec = on.experiment.benchmark
    assert spec is not None, "rows with a model and a batch are those of a benchmark"
    config = resolve(spec.models[given["model"]].arch, spec.sizes["paper"][given["group"]])
    work = 0.0
    for _, visit in final_structure(config).plan.places():
        if visit.part == "attention" and visit.heads is not None:
            work += len(visit.heads) / config.shape.heads
        elif visit.part != "mlp":
            # An MLP that is a visit of its own belongs to an attention that is counted already.
            work += 1
    return config.shape.layers / work
