"""Attention as a graph of tokens: clustering coefficient and betweenness (SAOBP, section 7, figures 2 and 5)."""

from __future__ import annotations

import networkx
import numpy as np

NODES = 40
"""Tokens in a graph: the first ones of a sequence (figure 2 has graphs of 40 nodes and does not say which)."""
THRESHOLD = 1e-4
"""τ of figure 2: a smaller weight is no edge."""


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
