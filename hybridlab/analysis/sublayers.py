"""What attention and MLP add to the residual stream: how large it is beside the stream, and in which direction
(depth-grown models, section 4.3, figures 4, 23 and 24; Csordás et al., 2025)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.models.decoder import Transformer
from hybridlab.models.taps import Taps
from hybridlab.plan.visit import Place

BRANCHES = ("attention", "mlp")
_SMALLEST = 1e-6


class _Sums(Taps):
    """Sums |a| / |h| and a · h / (|a| |h|) over positions, sequences and the visits of a layer."""

    def __init__(self, model: Transformer, first_token: bool) -> None:
        self.plan, self.start = model.plan, 0 if first_token else 1
        device = next(model.parameters()).device
        self.sums = {part: torch.zeros(3, model.shape.layers, dtype=torch.float64, device=device) for part in BRANCHES}

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        a, h = (values[:, self.start :].float() for values in (delta, x))
        relative = a.norm(dim=-1) / h.norm(dim=-1).clamp(min=_SMALLEST)
        cosine = F.cosine_similarity(a, h, dim=-1)
        found = torch.stack([relative.sum(), cosine.sum(), torch.ones_like(relative).sum()])
        self.sums[part][:, self.plan[place].layer] += found
        return delta


def sublayer_contributions(model: Transformer, batches: Iterable[Tensor], first_token: bool = True) -> dict[str, Any]:
    """{attention, mlp: {relative, cosine: [layer]}} of batches of tokens (B, S): the means of |a| / |h| and of
    a · h / (|a| |h|), null for a sublayer that does not run.

    a is what the sublayer adds, h what it reads before its norm: the layer's input for attention, and for the MLP of a
    serial block that input plus what attention has added. A layer that is visited more than once has the mean over its
    visits. first_token: whether the first position counts.
    """
    sums = _Sums(model, first_token)
    with torch.no_grad():
        for tokens in batches:
            model(tokens, taps=sums)
    return {part: dict(zip(("relative", "cosine"), _means(found), strict=True)) for part, found in sums.sums.items()}


def _means(sums: Tensor) -> list[list[float | None]]:
    means = (sums[:2] / sums[2]).tolist()
    return [[None if value != value else round(value, 6) for value in row] for row in means]
