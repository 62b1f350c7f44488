"""Does looping high-entropy heads converge faster? SGT's appendix E as numbers.

    hybridlab analyze RUN --probe convergence

For each layer its most and its least entropic heads are looped many times on the trained model, H(k+1) = H(k) +
Σ Attn(H(k)) (Eq. 6), and three things are measured: how far H(k) still is from the last state, how much each pass
changes it, and the traces of the heads' attention (Eq. 20). Lemma 1, A_ii ≤ exp(−E_i / i) with E_i the entropy of row i
in nats (Eq. 21), is tested on every row of every head's real attention.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import row_entropy
from hybridlab.models.decoder import Decoder, Taps
from hybridlab.plan.plan import Place, Plan, Visit

_ROUNDING = 1e-6
"""Room for fp32 where the lemma holds with equality (rows with one key)."""


def convergence(model: Decoder, tokens: Tensor, heads: int = 2, passes: int = 8) -> dict[str, Any]:
    """All of it on sequences `tokens` (B, S), with `heads` heads in a set and `passes` loops."""
    statistics = {layer: _row_statistics(model, tokens, layer) for layer in _attending_layers(model.plan)}
    rows = []
    for layer, found in statistics.items():
        ranked = found["entropy"].mean((0, 2)).argsort(descending=True).tolist()
        for name, chosen in (("high", ranked[:heads]), ("low", ranked[::-1][:heads])):
            states = loop_states(model, tokens, layer, tuple(sorted(chosen)), passes)
            rows.append(
                {
                    "layer": layer,
                    "set": name,
                    "heads": sorted(chosen),
                    "entropy": float(found["entropy"][:, chosen].mean()),
                    "trace": float(found["diagonal"][:, chosen].mean()),
                    **_decay(states),
                }
            )
    return {"passes": passes, "sequences": len(tokens), "length": tokens.shape[1], "rows": rows} | _summary(
        rows, statistics
    )


def loop_states(model: Decoder, tokens: Tensor, layer: int, heads: tuple[int, ...], passes: int) -> list[Tensor]:
    """H(0) … H(K), each (B, S, W): the state after the layer's attention, and after each pass of these heads."""
    plan, before = _up_to_attention(model.plan, layer)
    loops = (Visit(layer, "attention", heads),) * passes
    taps = _Inputs()
    with torch.no_grad():
        model.with_plan(Plan((*plan, *loops), model.plan.num_layers, model.plan.parallel))(tokens, taps=taps)
    return [taps.after[(place,)] for place in range(before, before + passes + 1)]


class _Inputs(Taps):
    """The state after every visit."""

    def __init__(self) -> None:
        self.after: dict[Place, Tensor] = {}

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        self.after[place] = x + delta


def _up_to_attention(plan: Plan, layer: int) -> tuple[tuple[Visit, ...], int]:
    """The visits up to the layer's first attention (of a parallel block: its whole), and the place of that one."""
    place = next(i for i, visit in enumerate(plan.visits) if visit.layer == layer and visit.part != "mlp")
    last = plan.visits[place]
    if last.part == "block" and not plan.parallel:
        last = Visit(layer, "attention", last.heads)
    return (*plan.visits[:place], last), place


def _attending_layers(plan: Plan) -> list[int]:
    """Layers whose first attention runs all of its heads."""
    first: dict[int, Visit] = {}
    for visit in plan.visits:
        if visit.part != "mlp":
            first.setdefault(visit.layer, visit)
    return sorted(layer for layer, visit in first.items() if visit.heads is None)


def _row_statistics(model: Decoder, tokens: Tensor, layer: int) -> dict[str, Tensor]:
    """Of every row of the layer's first attention, (B, H, S): normalised entropy, A_ii, and the lemma's bound."""
    plan, place = _up_to_attention(model.plan, layer)
    with torch.no_grad():
        output = model.with_plan(Plan(plan, model.plan.num_layers, model.plan.parallel))(tokens, need="full")
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
    """distance: ‖H(k) − H(K)‖ / ‖H(0) − H(K)‖. change: ‖H(k+1) − H(k)‖ / ‖H(1) − H(0)‖. contraction: the mean factor
    by which a pass changes less than the one before; above 1 the loop does not converge."""
    norms = [float((h - states[-1]).norm()) for h in states]
    changes = [float((b - a).norm()) for a, b in zip(states, states[1:], strict=False)]
    contraction = (changes[-1] / changes[0]) ** (1 / (len(changes) - 1)) if len(changes) > 1 and changes[0] else None
    return {
        "distance": [round(n / norms[0], 5) if norms[0] else 0.0 for n in norms],
        "change": [round(c / changes[0], 5) if changes[0] else 0.0 for c in changes],
        "contraction": contraction,
    }


def _summary(rows: list[dict[str, Any]], statistics: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    by_set = {name: [row for row in rows if row["set"] == name] for name in ("high", "low")}
    means = {
        name: {key: _mean([row[key] for row in found]) for key in ("entropy", "trace", "contraction")}
        for name, found in by_set.items()
    }
    pairs = list(zip(by_set["high"], by_set["low"], strict=True))
    faster = sum(high["contraction"] < low["contraction"] for high, low in pairs if None not in _factors(high, low))
    return {
        "sets": means,
        "layers": len(pairs),
        "layers_where_high_is_faster": faster,
        "lemma": _lemma(statistics),
        "entropy_trace_rank_correlation": _rank_correlation(statistics),
    }


def _factors(*rows: dict[str, Any]) -> list[float | None]:
    return [row["contraction"] for row in rows]


def _lemma(statistics: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    """On how many rows A_ii > exp(−E_i / i), and the row where it is most so."""
    count = broken = 0
    worst: dict[str, Any] = {"excess": -math.inf}
    diagonals, bounds = [], []
    for layer, found in statistics.items():
        excess = found["diagonal"] - found["bound"]
        count += excess.numel()
        broken += int((excess > _ROUNDING).sum())
        diagonals.append(float(found["diagonal"].mean()))
        bounds.append(float(found["bound"].mean()))
        place = int(excess.argmax())
        if float(excess.flatten()[place]) > worst["excess"]:
            head, row = place // excess.shape[2] % excess.shape[1], place % excess.shape[2]
            worst = {"excess": float(excess.flatten()[place]), "layer": layer, "head": head, "row": row + 1}
            worst |= {"keys": int(found["keys"].flatten()[place]), "bound": float(found["bound"].flatten()[place])}
            worst["diagonal"] = float(found["diagonal"].flatten()[place])
    share = broken / count
    return {
        "rows": count,
        "violations": broken,
        "share": share,
        "worst": worst,
        "mean_diagonal": _mean(diagonals),
        "mean_bound": _mean(bounds),
    }


def _rank_correlation(statistics: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    """Spearman's, over all heads: entropy against trace. The paper's argument needs it to be negative."""
    entropy = torch.cat([found["entropy"].mean((0, 2)) for found in statistics.values()])
    trace = torch.cat([found["diagonal"].mean((0, 2)) for found in statistics.values()])
    ranks = torch.stack([values.argsort().argsort().float() for values in (entropy, trace)])
    value = float(torch.corrcoef(ranks)[0, 1])
    return {"value": None if math.isnan(value) else value, "n": len(entropy)}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
