"""Tests of SGT's claims about growth, entropy and convergence, on the runs made here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybridlab.analysis.convergence import rank_correlation
from hybridlab.reproduction.experiment import Experiment
from hybridlab.reproduction.verdict import Records, Verdict, all_of, first_seed, missing, paired_difference

NEAR = 0.2
"""A training curve is read at a FLOPs budget from its points within this share of the budget, by a straight line."""


def extrapolates_better(
    experiment: Experiment, records: Records, rows: list[str], over: list[str], factors: list[int]
) -> Verdict:
    """A lower loss than others at multiples of the training length."""
    parts = []
    for left in (experiment.row(name) for name in rows):
        for right in (experiment.row(name) for name in over):
            for factor in factors:
                pair = ((f"{factor}×: {left.short}", left.cell or ""), (right.short, right.cell or ""))
                parts.append(paired_difference(records, *pair, result=("extrapolation", str(factor))))
    return all_of(parts)


def lower_at_flops(
    experiment: Experiment, records: Records, cell: str, over_cell: str, share: float, of: str
) -> Verdict:
    """Training loss at the same FLOPs: a share of what the run `of` has spent in all."""
    if lost := missing(records, [cell, over_cell, of]):
        return lost
    budget = share * first_seed(records, of)["flops"]
    (left, a), (right, b) = (_loss_at(first_seed(records, name), budget) for name in (cell, over_cell))
    difference, error = left - right, math.hypot(a, b)
    holds = None if abs(difference) <= 2 * error else difference < 0
    unresolved = "" if holds is not None else ", not resolved"
    points = math.exp(left) - math.exp(right)
    evidence = f"{cell} − {over_cell} at {100 * share:.0f} % of the FLOPs of {of}: {difference:+.4f} ± {error:.4f} nats"
    return Verdict(holds, f"{evidence}, {points:+.2f} perplexity (n = 1 seed{unresolved})")


def _loss_at(record: dict[str, Any], budget: float) -> tuple[float, float]:
    """(training loss, standard error) at so many FLOPs, by a line through the points near them."""
    flops, loss = (np.array(record["history"][name]) for name in ("flops", "loss"))
    near = np.abs(flops - budget) <= NEAR * budget
    x, y = flops[near] / budget - 1, loss[near]
    if len(x) < 4:
        return float(np.interp(budget, flops, loss)), math.inf
    (slope, value), covariance = np.polyfit(x, y, 1, cov=True)
    return float(value), float(math.sqrt(covariance[1, 1]))


def _convergence(records: Records, cell: str) -> dict[str, Any]:
    return first_seed(records, cell)["results"]["probes"]["convergence"]


def higher_entropy_converges_first(experiment: Experiment, records: Records, cell: str) -> Verdict:
    """Appendix E: loops of high-entropy heads converge, and faster than those of low-entropy heads: in more than half of
    the layers by more than twice the standard error over sequences, with a mean factor below 1."""
    if lost := missing(records, [cell]):
        return lost
    found = _convergence(records, cell)
    if "skipped" in found:
        return Verdict(None, found["skipped"])
    layers, high, low = (found[k] for k in ("layers", "layers_where_high_is_faster", "layers_where_low_is_faster"))
    sets = ", ".join(f"{name} {part['factor']:.3f}" for name, part in found["sets"].items())
    evidence = f"mean factor of a pass: {sets}; high is faster in {high}, low in {low} of {layers} layers "
    evidence += f"(n = {found['sequences']} sequences, 1 seed)"
    if 2 * high > layers:
        return Verdict(found["sets"]["high"]["factor"] < 1, evidence)
    return Verdict(None if layers - high - low > abs(high - low) else False, evidence)


def lemma_holds(experiment: Experiment, records: Records, cell: str) -> Verdict:
    """Lemma 1 on every row of real attention."""
    if lost := missing(records, [cell]):
        return lost
    found = _convergence(records, cell)
    if "skipped" in found:
        return Verdict(None, found["skipped"])
    lemma, worst = found["lemma"], found["lemma"]["worst"]
    evidence = f"{lemma['violations']} of {lemma['rows']} rows break it; mean bound {lemma['mean_bound']:.3f}"
    if worst:
        place = f"row {worst['row']} of layer {worst['layer'] + 1}, head {worst['head'] + 1}"
        evidence += f"; worst: {place}: A_ii = {worst['diagonal']:.3f} > {worst['bound']:.3f}"
    return Verdict(lemma["violations"] == 0, evidence)


def entropy_lowers_trace(experiment: Experiment, records: Records, cell: str) -> Verdict:
    """Appendix E.3: heads of higher entropy have smaller traces (rank correlation over all heads below 0)."""
    if lost := missing(records, [cell]):
        return lost
    found = _convergence(records, cell)
    if "skipped" in found:
        return Verdict(None, found["skipped"])
    value, n = (found["entropy_trace_rank_correlation"][key] for key in ("value", "n"))
    if value is None:
        return Verdict(None, "all heads have the same rank")
    error = (1 - value**2) / math.sqrt(n - 1)
    return Verdict(
        None if abs(value) <= 2 * error else value < 0, f"rank correlation {value:+.3f} ± {error:.3f} (n = {n} heads)"
    )


# ---- entropies over training ----


def _entropies(record: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) and entropies (T, L, H)."""
    found = record["controllers"]["entropy-log"]
    return np.array(found["steps"]), np.array(found["entropies"], dtype=float)


def more_spikes(experiment: Experiment, records: Records, cell: str, over_cell: str, jump: float = 0.05) -> Verdict:
    """A larger share of sudden changes of a head's entropy, from one reading to the next, once growth has begun."""
    if lost := missing(records, [cell, over_cell]):
        return lost
    shares, sizes, parts = [], [], []
    for name in (cell, over_cell):
        record = first_seed(records, name)
        steps, entropies = _entropies(record)
        moves = np.abs(np.diff(entropies, axis=0))[steps[:-1] >= record["config"]["controller"]["start_step"]]
        shares.append(float((moves > jump).mean()) if moves.size else 0.0)
        sizes.append(max(1, moves.size))
        parts.append(f"{name}: {int((moves > jump).sum())} of {moves.size} changes above {jump:g}")
    error = math.sqrt(sum(p * (1 - p) / n for p, n in zip(shares, sizes, strict=True)))
    difference = shares[0] - shares[1]
    holds = None if abs(difference) <= 2 * error else difference > 0
    return Verdict(holds, "; ".join(parts) + " (1 seed" + (")" if holds is not None else ", not resolved)"))


def deep_layers_differentiate_first(experiment: Experiment, records: Records, cell: str) -> Verdict:
    """The variance of entropies inside a layer reaches half of its highest value earlier in deeper layers."""
    if lost := missing(records, [cell]):
        return lost
    steps, entropies = _entropies(first_seed(records, cell))
    reached = [int(steps[np.argmax(v >= v.max() / 2)]) for v in entropies.var(axis=2).T[1:]]
    order = rank_correlation(list(range(len(reached))), reached)
    listed = ", ".join(map(str, reached))
    evidence = f"half of the highest variance at step {listed} (layers 2 on)"
    if order is None:
        return Verdict(None, evidence)
    error = (1 - order**2) / math.sqrt(max(1, len(reached) - 1))
    evidence += f"; rank correlation of depth and step {order:+.2f} ± {error:.2f} (n = {len(reached)} layers)"
    return Verdict(None if abs(order) <= 2 * error else order < 0, evidence)


def first_layer_stays_uniform(experiment: Experiment, records: Records, cell: str, near: float = 0.9) -> Verdict:
    """Every head of the first layer keeps an entropy close to 1."""
    if lost := missing(records, [cell]):
        return lost
    _, entropies = _entropies(first_seed(records, cell))
    lowest, variance = float(entropies[:, 0].min()), float(entropies[:, 0].var(axis=1).max())
    return Verdict(lowest >= near, f"lowest entropy {lowest:.3f}, highest variance {variance:.2g}; asked {near:g}")


def entropy_falls_in_order(
    experiment: Experiment, records: Records, cell: str, every: float = 0.05, until: float = 0.4, least: float = 0.5
) -> Verdict:
    """Early in training every layer's entropy falls, and the layers keep their order from one reading to the next."""
    if lost := missing(records, [cell]):
        return lost
    steps, entropies = _entropies(first_seed(records, cell))
    last = steps[-1]
    chosen = [int(np.argmin(np.abs(steps - share * last))) for share in np.arange(every, until + 1e-9, every)]
    layers = entropies.mean(axis=2)[chosen]
    ranks = np.argsort(np.argsort(layers, axis=1), axis=1)
    correlations = [float(np.corrcoef(a, b)[0, 1]) for a, b in zip(ranks, ranks[1:], strict=False)]
    fell = int((layers[-1] < layers[0]).sum())
    evidence = f"{fell} of {layers.shape[1]} layers fell; rank correlations of successive readings "
    listed = ", ".join(f"{c:.2f}" for c in correlations)
    return Verdict(fell == layers.shape[1] and min(correlations) > least, f"{evidence}{listed}; asked above {least:g}")


def contributions_sharpen(experiment: Experiment, records: Records, cell: str, example: int = 0) -> Verdict:
    """The contributions of a looped head gather on fewer tokens with every pass (their entropy falls)."""
    if lost := missing(records, [cell]):
        return lost
    found = first_seed(records, cell)["results"]["probes"]["contributions"]
    if "skipped" in found:
        return Verdict(None, found["skipped"])
    values = []
    for row in found["examples"][example]["loops"]:
        share = np.array(row) / sum(row)
        values.append(float(-(share[share > 0] * np.log(share[share > 0])).sum() / math.log(len(row))))
    listed = ", ".join(f"loop {i}: {value:.3f}" for i, value in enumerate(values))
    falls = all(b < a for a, b in zip(values, values[1:], strict=False))
    return Verdict(falls, f"normalised entropy of the contributions, {listed} (one sequence)")


TESTS = {
    f.__name__: f
    for f in (
        extrapolates_better,
        lower_at_flops,
        higher_entropy_converges_first,
        lemma_holds,
        entropy_lowers_trace,
        more_spikes,
        deep_layers_differentiate_first,
        first_layer_stays_uniform,
        entropy_falls_in_order,
        contributions_sharpen,
    )
}
