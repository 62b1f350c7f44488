"""Does looping high-entropy heads converge faster? SGT's appendix E as numbers.

    hybridlab analyze RUN --probe convergence

For each layer its most and its least entropic heads are looped many times on the trained model, H(k+1) = H(k) +
Σ Attn(H(k)) (Eq. 6), and three things are measured: how far H(k) still is from the last state, how much each pass
changes it, and the traces of the heads' attention (Eq. 20). A loop that only drifts on by equal steps has distances of
(K − k) / K and a factor of 1; it converges where a pass changes less than the one before.

Heads are ranked by their mean entropy over all rows, since the appendix speaks of whole attention matrices; the growth
itself ranks them by the last row (Eq. 4). Lemma 1, A_ii ≤ exp(−E_i / i) with E_i the entropy of row i in nats and i the
number of keys that it sees (Eq. 21), is tested on every row of every head's real attention.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from hybridlab.analysis.entropy import row_entropy
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder, Taps
from hybridlab.plan.plan import Place, Plan, Visit

_ROUNDING = 1e-6
"""Room for fp32 where the lemma holds with equality (rows with one key)."""


def convergence(model: Decoder, tokens: Tensor, heads: int = 2, passes: int = 8) -> dict[str, Any]:
    """All of it on sequences `tokens` (B, S), with `heads` heads in a set and `passes` loops.

    skipped: why, where no layer runs all of its heads.
    """
    if not 1 <= 2 * heads <= model.shape.heads:
        raise UserError(f"two sets of {heads} heads: a layer of this model has {model.shape.heads}")
    statistics = {layer: _row_statistics(model, tokens, layer) for layer in _attending_layers(model.plan)}
    if not statistics:
        return {"skipped": "no layer outside loops runs all of its heads"}
    rows = []
    for layer, found in statistics.items():
        ranked = found["entropy"].mean((0, 2)).argsort(descending=True).tolist()
        pair = []
        for name, chosen in (("high", ranked[:heads]), ("low", ranked[::-1][:heads])):
            states = loop_states(model, tokens, layer, tuple(sorted(chosen)), passes)
            factors = _factors(states)
            pair.append(factors)
            rows.append(
                {
                    "layer": layer,
                    "set": name,
                    "heads": sorted(chosen),
                    "entropy": float(found["entropy"][:, chosen].mean()),
                    "trace_share": float(found["diagonal"][:, chosen].mean()),
                    **_decay(states),
                    "factor": float(factors.mean()),
                    "factor_stderr": _error(factors),
                }
            )
        # Sequence by sequence: both sets loop on the same ones.
        difference = pair[0] - pair[1]
        rows[-2] |= {"faster_by": -float(difference.mean()), "faster_by_stderr": _error(difference)}
    shared = {"passes": passes, "sequences": len(tokens), "length": tokens.shape[1], "rows": rows}
    return shared | _summary(rows, statistics)


def loop_states(model: Decoder, tokens: Tensor, layer: int, heads: tuple[int, ...], passes: int) -> list[Tensor]:
    """H(0) … H(K), each (B, S, W): the state after the layer's attention, and after each pass of these heads."""
    plan, before = _up_to_attention(model.plan, layer)
    taps = _Outputs()
    with torch.no_grad():
        _running(model, (*plan, *((Visit(layer, "attention", heads),) * passes)), before)(tokens, taps=taps)
    return [taps.after[(place,)] for place in range(before, before + passes + 1)]


def _running(model: Decoder, visits: tuple[Visit, ...], unchanged: int) -> Decoder:
    """The model with these visits, the first `unchanged` of which are its own and keep their factors."""
    factors = {place: factor for place, factor in model.factors.items() if place[0] < unchanged}
    return model.with_plan(Plan(visits, model.plan.num_layers, model.plan.parallel), factors=factors)


class _Outputs(Taps):
    """The state after every visit."""

    def __init__(self) -> None:
        self.after: dict[Place, Tensor] = {}

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        self.after[place] = x + delta


def _up_to_attention(plan: Plan, layer: int) -> tuple[tuple[Visit, ...], int]:
    """The visits up to the layer's first attention (of a parallel block: its whole), and the place of that one."""
    own = (i for i, item in enumerate(plan.visits) if isinstance(item, Visit) and item.layer == layer)
    place = next(i for i in own if plan.visits[i].part != "mlp")
    last = plan.visits[place]
    if last.part == "block" and not plan.parallel:
        last = Visit(layer, "attention", last.heads)
    return (*plan.visits[:place], last), place


def _attending_layers(plan: Plan) -> list[int]:
    """Layers outside loops over chunks whose first attention runs all of its heads."""
    first: dict[int, Visit] = {}
    for visit in plan.visits:
        if isinstance(visit, Visit) and visit.part != "mlp":
            first.setdefault(visit.layer, visit)
    return sorted(layer for layer, visit in first.items() if visit.heads is None)


def _row_statistics(model: Decoder, tokens: Tensor, layer: int) -> dict[str, Tensor]:
    """Of every row of the layer's first attention, (B, H, S): normalised entropy, A_ii, and the lemma's bound."""
    plan, place = _up_to_attention(model.plan, layer)
    with torch.no_grad():
        output = _running(model, plan, place)(tokens, need="full")
    weights, keys = output.attention[(place,)], output.keys[(place,)]
    entropy = row_entropy(weights, keys)
    nats = entropy * keys.clamp_min(2).float().log()
    return {
        "entropy": entropy,
        "diagonal": weights.diagonal(dim1=-2, dim2=-1),
        "bound": (-nats / keys).exp(),
        "keys": keys.float(),
    }


def _decay(states: list[Tensor]) -> dict[str, Any]:
    """distance: ‖H(k) − H(K)‖ / ‖H(0) − H(K)‖. change: ‖H(k+1) − H(k)‖ / ‖H(1) − H(0)‖."""
    norms = [float((h - states[-1]).norm()) for h in states]
    changes = [float((b - a).norm()) for a, b in zip(states, states[1:], strict=False)]
    return {
        "distance": [round(n / norms[0], 5) if norms[0] else 0.0 for n in norms],
        "change": [round(c / changes[0], 5) if changes[0] else 0.0 for c in changes],
    }


def _factors(states: list[Tensor]) -> Tensor:
    """(B,): the mean factor from one pass's change to the next one's, (last / first)^(1 / (K − 1)), by sequence."""
    first, last = (states[i + 1] - states[i] for i in (0, len(states) - 2))
    ratio = last.flatten(1).norm(dim=1) / first.flatten(1).norm(dim=1).clamp_min(1e-30)
    return ratio ** (1 / max(1, len(states) - 2))


def _error(values: Tensor) -> float | None:
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else None


def _summary(rows: list[dict[str, Any]], statistics: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    sets = {}
    for name in ("high", "low"):
        found = [row for row in rows if row["set"] == name]
        sets[name] = {key: _mean([row[key] for row in found]) for key in ("entropy", "trace_share", "factor")}
    compared = [row for row in rows if "faster_by" in row and row["faster_by_stderr"] is not None]
    resolved = [row["faster_by"] for row in compared if abs(row["faster_by"]) > 2 * row["faster_by_stderr"]]
    return {
        "sets": sets,
        "layers": len(statistics),
        "layers_where_high_is_faster": sum(value > 0 for value in resolved),
        "layers_where_low_is_faster": sum(value < 0 for value in resolved),
        "lemma": _lemma(statistics),
        "entropy_trace_rank_correlation": _rank_correlation(statistics),
    }


def _lemma(statistics: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    """On how many rows A_ii > exp(−E_i / i), in which rows of the sequence, and the row where it is most so."""
    count, by_row = 0, torch.zeros(0, dtype=torch.long)
    worst: dict[str, Any] | None = None
    diagonals, bounds = [], []
    for layer, found in statistics.items():
        excess = (found["diagonal"] - found["bound"]).cpu()
        broken = (excess > _ROUNDING).sum((0, 1))
        by_row = broken if not len(by_row) else by_row + broken
        count += excess.numel()
        diagonals.append(float(found["diagonal"].mean()))
        bounds.append(float(found["bound"].mean()))
        place = int(excess.argmax())
        largest = float(excess.flatten()[place])
        if largest > max(_ROUNDING, worst["excess"] if worst else 0.0):
            head, row = place // excess.shape[2] % excess.shape[1], place % excess.shape[2]
            worst = {"excess": largest, "layer": layer, "head": head, "row": row + 1}
            worst |= {name: float(found[name].flatten()[place]) for name in ("keys", "diagonal", "bound")}
    broken = int(by_row.sum())
    return {
        "rows": count,
        "violations": broken,
        "share": broken / count,
        "violations_by_row": {str(i + 1): int(n) for i, n in enumerate(by_row.tolist()) if n},
        "worst": worst,
        "mean_diagonal": _mean(diagonals),
        "mean_bound": _mean(bounds),
    }


def _rank_correlation(statistics: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    """Spearman's, over all heads: entropy against trace. The paper's argument needs it to be negative."""
    entropy = torch.cat([found["entropy"].mean((0, 2)) for found in statistics.values()])
    trace = torch.cat([found["diagonal"].mean((0, 2)) for found in statistics.values()])
    value = rank_correlation(entropy.tolist(), trace.tolist())
    return {"value": value, "n": len(entropy)}


def rank_correlation(one: list[float], other: list[float]) -> float | None:
    """Spearman's, equal values sharing their mean rank; None where either does not vary."""
    value = pd.Series(one).rank().corr(pd.Series(other).rank())
    return None if math.isnan(value) else float(value)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
