"""Attention entropy of the last token (SGT, section 2, Eq. 4 and 5).

One query row for each sequence, in fp32, divided by the log of the number of keys that it may see: 1 for a uniform
row, 0 for a row with all weight on one key or with only one visible key. No S × S matrix is computed.

    hybridlab analyze RUN --probe entropy
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hybridlab.models.decoder import Output, Transformer
from hybridlab.plan.plan import Place, Plan
from hybridlab.statistics import rank_correlation


def row_entropy(weights: Tensor, keys: Tensor) -> Tensor:
    """Normalized entropy of attention rows: weights (…, S) and the number of keys that each row may see (…) → (…)."""
    entropy = -torch.xlogy(weights.float(), weights.float()).sum(-1)
    return torch.where(keys > 1, entropy / keys.clamp_min(2).float().log(), 0.0)


def visit_entropies(output: Output) -> dict[Place, Tensor]:
    """Place → (B, h): of the last token of each sequence, for a pass with `need="last_row"`."""
    return {place: row_entropy(w, output.keys[place])[:, :, -1].detach() for place, w in output.attention.items()}


def head_entropies(
    plan: Plan, output: Output, num_heads: int, looped: Mapping[int, Iterable[int]] | None = None
) -> Tensor:
    """(L, H), the mean over the batch: each head at the first visit of its layer; NaN for a head that does not run.

    looped: layer → heads whose entropy is that of the layer's last visit instead (as in SGT's released code for the
    heads that it loops).
    """
    entropies = visit_entropies(output)
    table = output.logits.new_full((plan.num_layers, num_heads), float("nan"), dtype=torch.float32)
    for place, visit in plan.places():
        if place not in entropies:
            continue
        means = entropies[place].mean(0)
        kept = set((looped or {}).get(visit.layer, ()))
        for row, head in enumerate(visit.heads or range(num_heads)):
            if head in kept or table[visit.layer, head].isnan():
                table[visit.layer, head] = means[row]
    return table


def measured_entropies(model: Transformer, batches: Iterable[Tensor]) -> Tensor:
    """(L, H): mean over all sequences of `batches`, each (B, S)."""
    total, count = torch.zeros(()), 0
    with torch.no_grad():
        for tokens in batches:
            output = model(tokens, need="last_row")
            total = total + len(tokens) * head_entropies(model.plan, output, model.shape.heads).cpu()
            count += len(tokens)
    return total / count


def agreement(curves: Sequence[Sequence[float | None]]) -> float | None:
    """How alike several lists are, such as the entropies of all layers on each task: the mean rank correlation of all
    pairs, over the entries that both have; None with fewer than two lists, or where one has equal entries only."""
    known = [np.array(curve, dtype=float) for curve in curves]
    values = []
    for i, one in enumerate(known):
        for other in known[i + 1 :]:
            both = ~(np.isnan(one) | np.isnan(other))
            values.append(rank_correlation(one[both].tolist(), other[both].tolist()) if both.any() else None)
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found and len(found) == len(values) else None
