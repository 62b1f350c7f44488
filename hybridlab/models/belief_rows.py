"""The refined weights of the last rows alone, for statistics, in memory that grows linearly with the length."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridlab.models.belief import at_least_fp32, factor, no_autocast, weighted_keys
from hybridlab.models.belief_blocks import Messages, Tile, tiles
from hybridlab.models.kernels import Visible, scores_under
from hybridlab.plan.belief import Belief


def last_rows(q: Tensor, k: Tensor, visible: Visible, belief: Belief, last: Tensor) -> tuple[Tensor, Tensor]:
    """The prior and the refined weights, (B, H, 1, S), of the rows at `last` (B, 1), the last valid ones, which get
    messages from all other valid rows. Without gradients."""
    with torch.no_grad(), no_autocast(q):
        query = q[torch.arange(len(q), device=q.device), :, last[:, 0]][:, :, None]
        seen = visible.mask(last, k.shape[2])
        scores = scores_under(at_least_fp32(query), at_least_fp32(k), seen)
        prior = torch.softmax(scores, dim=-1)
        gathered = scores.new_empty(*q.shape[:2], k.shape[2], 1)
        for tile, part in tiles(q, k, k, visible, belief):
            rows = part.queries(prior)[:, :, 0, :, None]
            part.set_queries(gathered, _agreement(tile, rows) if belief.factor == "elemmul" else _total(tile))
        gathered = gathered.mT
        if belief.factor == "elemmul":
            agreement = gathered * weighted_keys(belief, visible).mask(last, k.shape[2])
            return prior, agreement / agreement.sum(-1, keepdim=True)
        own = torch.log1p(factor(seen, visible.causal, belief, prior.dtype) * prior)
        if visible.valid is not None:
            own = own * visible.valid.gather(1, last)[:, None, :, None]
        return prior, torch.softmax(scores + gathered - own, dim=-1)


def _total(tile: Tile) -> Tensor:
    """(T, G, S, 1): the messages of all rows about each key."""
    return Messages(tile).total()[..., None]


def _agreement(tile: Tile, rows: Tensor) -> Tensor:
    """(T, G, S, 1): the products of each row of the prior with one more, (T, G, S, 1)."""
    return torch.cat([block.prior @ rows[:, :, block.keys] for block in tile.blocks()], dim=2)
