"""Token dependency in attention matrices: GTD, indirect entropy, attention entropy and sparsity (SAOBP, sections 3, 5),
and such a matrix as a graph of tokens: clustering and betweenness (section 7, figures 2 and 5).

All of them are of one attention matrix A, that of one head for one sequence, read as the transition probabilities of a
walk over the tokens. Padding takes no part: its rows and columns are left out. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx
import numpy as np
import torch
from torch import Tensor

BETA = 0.9
"""Discount of a further hop (section 6)."""
HOPS = 4
"""The longest path K (section 6)."""
NODES = 40
"""Tokens in a graph: the first ones of a sequence (figure 2 has graphs of 40 nodes and does not say which)."""
THRESHOLD = 1e-4
"""τ of figure 2: a smaller weight is no edge."""


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


def token_graph(weights: np.ndarray, nodes: int = NODES, threshold: float = THRESHOLD) -> networkx.Graph:
    """The graph of the first `nodes` tokens of an attention matrix (S, S). Two different tokens share an edge if the
    mean of the two weights between them is above the threshold; that mean is the edge's weight."""
    near = np.asarray(weights, dtype=np.float64)[:nodes, :nodes]
    both = (near + near.T) / 2
    np.fill_diagonal(both, 0.0)
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(both)))
    pairs = np.argwhere(np.triu(both > threshold, 1))
    graph.add_weighted_edges_from((int(i), int(j), float(both[i, j])) for i, j in pairs)
    return graph


def clustering(graph: networkx.Graph) -> float:
    """Mean clustering coefficient over the nodes, with edge weights.

    It is that of networkx: the geometric mean of the three weights of each triangle, relative to the graph's largest
    weight. The paper cites Barrat et al. (2004), whose coefficient weighs a node's two edges only; networkx has no
    other one with weights.
    """
    return float(networkx.average_clustering(graph, weight="weight"))


def betweenness(graph: networkx.Graph) -> float:
    """Mean betweenness over the nodes, not normalised: shortest paths, counted in edges, that pass through a node."""
    found = networkx.betweenness_centrality(graph, normalized=False)
    return sum(found.values()) / max(1, len(found))
