"""Attention entropy of the last token (SGT, section 2, Eq. 4 and 5).

One query row for each sequence, in fp32, divided by the log of the number of keys that it may see: 1 for a uniform
row, 0 for a row with all weight on one key or with only one visible key. No S × S matrix is computed.

    hybridlab analyze RUN --probe entropy
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.analysis.probe import measured_heads, rounded
from hybridlab.models.decoder import Output, Transformer
from hybridlab.plan.plan import Place, Plan
from hybridlab.statistics import rank_correlation
from hybridlab.training.engine import Hook, Run
from hybridlab.training.world import world


def row_entropy(weights: Tensor, keys: Tensor) -> Tensor:
    """Normalized entropy of attention rows: weights (…, S) and the number of keys that each row may see (…) → (…)."""
    entropy = -torch.xlogy(weights.float(), weights.float()).sum(-1)
    return torch.where(keys > 1, entropy / keys.clamp_min(2).float().log(), 0.0)


def visit_entropies(output: Output) -> dict[Place, Tensor]:
    """Place → (B, h): of the last token of each sequence, for a pass with `need="last_row"`."""
    return {place: row_entropy(w, output.keys[place])[:, :, -1].detach() for place, w in output.attention.items()}


def head_entropies(
    plan: Plan, output: Output, num_heads: int, looped: Mapping[int, Collection[int]] | None = None
) -> Tensor:
    """(L, H), the mean over the batch: each head at the first visit of its layer; NaN for a head that does not run.

    looped: layer → heads whose entropy is that of the layer's last visit instead (as in SGT's released code for the
    heads that it loops).
    """
    means = {place: entropies.mean(0) for place, entropies in visit_entropies(output).items()}
    table = output.logits.new_full((plan.num_layers, num_heads), float("nan"), dtype=torch.float32)
    for place, layer, head, row in measured_heads(plan, num_heads, means):
        if head in (looped or {}).get(layer, ()) or table[layer, head].isnan():
            table[layer, head] = means[place][row]
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
    arrays = [np.array(curve, dtype=float) for curve in curves]
    values = []
    for i, x in enumerate(arrays):
        for y in arrays[i + 1 :]:
            shared = ~(np.isnan(x) | np.isnan(y))
            values.append(rank_correlation(x[shared].tolist(), y[shared].tolist()) if shared.any() else None)
    correlations = [value for value in values if value is not None]
    return sum(correlations) / len(correlations) if correlations and len(correlations) == len(values) else None


# ---- during training, in the record (SGT, section 3 and appendix C.4) ----


class EntropyLog(Hook):
    """Measures on the batch of step 1 and of every `every`-th step, averaged over its sequences.

    Results: steps, and entropies [step][layer][head]; None for a head that does not run.
    """

    name = "entropy-log"

    def __init__(self, every: int) -> None:
        self.every = every
        self.steps: list[int] = []
        self.tables: list[list[list[float | None]]] = []

    def begin(self, run: Run) -> None:
        self.run = run
        self.pending: Tensor | None = None

    def _measures(self, step: int) -> bool:
        return step == 0 or (step + 1) % self.every == 0

    def forward_inputs(self, step: int) -> dict[str, Any]:
        return {"need": "last_row"} if self._measures(step) else {}

    def after_forward(self, step: int, output: Output, share: float) -> None:
        if self._measures(step):
            table = share * head_entropies(self.run.model.plan, output, self.run.model.shape.heads)
            self.pending = table if self.pending is None else self.pending + table

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        if self.pending is not None:
            self.steps.append(step + 1)
            self.tables.append(rounded(world().sum(self.pending), 4))
            self.pending = None
        return {}

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "entropies": self.tables}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.steps, self.tables = list(state["steps"]), list(state["entropies"])

    def finish(self, run: Run) -> dict[str, Any]:
        """Tables of one size: in a model that grew, layers that were not there yet have no entropies."""
        layers, heads = run.model.shape.layers, run.model.shape.heads
        missing: list[float | None] = [None] * heads
        return {"steps": self.steps, "entropies": [t + [missing] * (layers - len(t)) for t in self.tables]}
