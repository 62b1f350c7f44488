"""Attention refined by belief propagation (SAOBP, Eq. 9, 11 and 15): the plain formula, and what all its forms share.

The prior A = softmax(q kᵀ / √d) gives messages M_ik = e^λ + (1 − e^λ) A_ik. A product over thousands of rows leaves
the range of fp32, so messages are centred logarithms, ℓ_ik = log(M_ik / e^λ) = log1p((e^−λ − 1) A_ik): the constant
cancels when a row is normalised, and a key that row i does not see has ℓ_ik = 0 exactly. Refined row j is
softmax(scores_j + Σ ℓ_i) over the rows i that send to j, without j unless its `own_message` counts. λ < 0 is the
factor `low`.

`explicit` holds whole matrices and is the reference for `blocks.in_blocks`, which holds some rows at a time.
Both compute in fp32 at least, also under autocast.

Shape legend: B batch, H query heads, K KV heads, S positions, Q rows, D head width.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.attention.belief import MAX_STRENGTH, Belief
from hybridlab.attention.kernels import Visible, at_least_fp32, grouped_product, has_autocast, scores_under


def no_autocast(t: Tensor) -> AbstractContextManager[None]:
    """A context in which the types of this tensor's device are those of the tensors."""
    device = t.device.type
    return torch.autocast(device, enabled=False) if has_autocast(device) else nullcontext()


def from_earlier(belief: Belief, visible: Visible) -> bool:
    """Whether a row gets messages from earlier rows only; otherwise from all others."""
    return visible.causal and belief.send == "visible"


def weighted_keys(belief: Belief, visible: Visible) -> Visible:
    """The keys whose values a query may weigh: for elemmul with a leak also later ones."""
    return replace(visible, causal=visible.causal and not (belief.factor == "elemmul" and belief.send == "leaking"))


def explicit(q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> Tensor:
    """The plain formula. q (B, H, S, D), k and v (B, K, S, D) → (B, H, S, D)."""
    with no_autocast(q):
        weights = matrices(q, k, visible, belief)[1]
        return grouped_product(weights, v.to(weights.dtype)).to(v.dtype)


def matrices(q: Tensor, k: Tensor, visible: Visible, belief: Belief) -> tuple[Tensor, Tensor]:
    """The prior and the refined weights, each (B, H, S, S)."""
    with no_autocast(q):
        positions, length = torch.arange(q.shape[2], device=q.device), k.shape[2]
        mask = visible.mask(positions, length)
        scores = scores_under(at_least_fp32(q), at_least_fp32(k), mask)
        prior = torch.softmax(scores, dim=-1)
        if belief.factor == "elemmul":
            agreement = prior @ prior.mT * weighted_keys(belief, visible).mask(positions, length)
            return prior, agreement / agreement.sum(-1, keepdim=True)
        sent = messages(prior, factor(mask, visible.causal, belief, prior.dtype), visible, belief, slice(None))
        return prior, torch.softmax(scores + _received(sent, from_earlier(belief, visible), belief.own_message), dim=-1)


def _received(sent: Tensor, earlier: bool, own: bool) -> Tensor:
    """The sum of the messages (B, H, S, S) that each row gets. own: that of the row itself too."""
    if not earlier:
        total = sent.sum(-2, keepdim=True)
        return total.expand_as(sent) if own else total - sent
    return sent.cumsum(-2) if own else F.pad(sent.cumsum(-2)[..., :-1, :], (0, 0, 1, 0))


def messages(prior: Tensor, scale: float | Tensor, visible: Visible, belief: Belief, rows: slice) -> Tensor:
    """ℓ (B, H, Q, S) of these rows, whose prior is (B, H, Q, S); 0 for rows that are padding. scale: see `factor`."""
    sent = (scale * prior).log1p_()
    if belief.detach_messages:
        sent = sent.detach()
    return sent if visible.valid is None else sent * visible.valid[:, None, rows, None]


def factor(mask: Tensor | None, causal: bool, belief: Belief, dtype: torch.dtype) -> float | Tensor:
    """e^−λ − 1: one number, or one for each row, (Q, 1) or (B, 1, Q, 1), if λ depends on the number of its keys. mask:
    that of these keys, which is read for length_ref only."""
    if belief.length_ref is None or mask is None:
        return math.expm1(-belief.exponent)
    keys = mask.sum(-1, keepdim=True)
    # The first rows of a decoder see few tokens: with a strength beyond λ they would decide for all later rows.
    scale = belief.length_ref / (keys.clamp_min(belief.length_ref) if causal else keys).double()
    return torch.expm1(-(belief.exponent * scale).clamp(-MAX_STRENGTH, MAX_STRENGTH)).to(dtype)
