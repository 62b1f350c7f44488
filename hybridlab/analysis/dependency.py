"""Token dependency in attention matrices: GTD, indirect entropy, attention entropy and sparsity (SAOBP, sections 3, 5).

All of them are of one attention matrix A, that of one head for one sequence, read as the transition probabilities of a
walk over the tokens. Padding takes no part: its rows and columns are left out. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BETA = 0.9
"""Discount of a further hop (section 6)."""
HOPS = 4
"""The longest path K (section 6)."""


def without_padding(weights: Tensor, valid: Tensor | None) -> Tensor:
    """Attention weights (B, H, S, S) in fp64, 0 in the rows and columns of padding, which is False in valid (B, S)."""
    weights = weights.double()
    if valid is None:
        return weights
    return weights * (valid[:, None, :, None] & valid[:, None, None, :])


def indirect(weights: Tensor, beta: float = BETA, hops: int = HOPS) -> Tensor:
    """G, the discounted paths of two and more hops (Eq. 12): Σ β^(t−1) Aᵗ for t = 2 … K. weights: (…, S, S)."""
    return discounted([weights] * hops, beta)


def discounted(steps: Sequence[Tensor], beta: float) -> Tensor:
    """Σ β^(t−1) A₁ A₂ … A_t for t = 2 … K, of the matrices A₁ … A_K (…, S, S) of the single hops, in their order."""
    path, total = steps[0], torch.zeros_like(steps[0])
    for hop, step in enumerate(steps[1:], start=1):
        path = path @ step
        total = total + beta**hop * path
    return total


def dependency_share(direct: Tensor, further: Tensor) -> Tensor:
    """GTD (Eq. 13): ‖G‖² / (‖A‖² + ‖G‖²) in Frobenius norms, of A and G (…, S, S) → (…)."""
    near, far = (matrix.square().sum((-1, -2)) for matrix in (direct, further))
    return far / (near + far)


def token_dependency(weights: Tensor, beta: float = BETA, hops: int = HOPS) -> Tensor:
    """GTD of attention matrices (…, S, S) → (…)."""
    return dependency_share(weights, indirect(weights, beta, hops))


def cross_layer_dependency(layers: Sequence[Tensor], beta: float = BETA, hops: int = HOPS) -> list[Tensor]:
    """GTD of each layer with hops through the layers above it, from the attention (B, H, S, S) of all layers in order.

    The paper names a GTD across layers and gives no formula (appendix B). Here a token of layer l + 1 reads what its
    tokens have read in layer l, so a path of t hops that ends in layer l + t − 1 is the product of the head means
    Ā(l + t − 1) … Ā(l), and G sums them as Eq. 12 does, as far as there are layers: the last layer has no G and no
    value here. Returns L − 1 tensors (B,).
    """
    means = [weights.mean(1) for weights in layers]
    shares = []
    for first in range(len(means) - 1):
        hop_means = means[first : first + hops]
        # A product of attentions applies the later layer on the left.
        transposed = [mean.transpose(-1, -2) for mean in hop_means]
        shares.append(dependency_share(transposed[0], discounted(transposed, beta)))
    return shares


def row_entropies(weights: Tensor) -> Tensor:
    """−Σ_j A_ij log A_ij of each row (Eq. 2, first line), of rows that sum up to 1. (…, S, S) → (…, S), in nats."""
    return -torch.xlogy(weights, weights).sum(-1)


def indirect_entropies(weights: Tensor, beta: float = BETA, hops: int = HOPS) -> Tensor:
    """Entropy of each row of G̃, the normalised indirect paths (Eq. 14). (…, S, S) → (…, S), in nats."""
    paths = indirect(weights, beta, hops)
    return row_entropies(paths / paths.sum(-1, keepdim=True).clamp_min(torch.finfo(paths.dtype).tiny))


def mean_over_tokens(rows: Tensor, valid: Tensor | None) -> Tensor:
    """The mean over the tokens of a sequence, without padding: rows (B, H, S), valid (B, S) → (B, H)."""
    if valid is None:
        return rows.mean(-1)
    kept = valid[:, None, :].to(rows.dtype)
    return (rows * kept).sum(-1) / kept.sum(-1)


def sparsity(weights: Tensor, valid: Tensor | None, threshold: float) -> Tensor:
    """Share of the pairs of tokens whose weight is below `threshold` (appendix E): (B, H, S, S) → (B, H).

    In a decoder the pairs that its mask hides count too, with weight 0.
    """
    low = (weights < threshold).to(weights.dtype)
    if valid is None:
        return low.mean((-1, -2))
    pairs = (valid[:, None, :, None] & valid[:, None, None, :]).to(weights.dtype)
    return (low * pairs).sum((-1, -2)) / pairs.sum((-1, -2))
