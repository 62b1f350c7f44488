"""Token dependency: closed forms, a naive computation, graphs, and the probe."""

import math

import networkx
import numpy as np
import pytest
import torch

from hybridlab.analysis.probes import dependency
from hybridlab.analysis.probes.dependency import betweenness, clustering, token_graph
from hybridlab.lab.papers.analytic import dependency_of
from hybridlab.statistics import pearson

S = 0.9 + 0.81 + 0.729
"""Σ β^(t−1) for t = 2, 3, 4."""


def random_attention(*shape, seed=0, causal=False):
    scores = torch.randn(*shape, shape[-1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(~torch.ones(shape[-1], shape[-1]).tril().bool(), -math.inf)
    return torch.softmax(2 * scores, -1)


@pytest.mark.parametrize("size", [2, 7, 16])
def test_gtd_of_attention_that_repeats_itself(size):
    """A uniform and an identity matrix are their own powers, so that GTD cannot tell them apart."""
    share = S**2 / (1 + S**2)
    assert share == pytest.approx(0.8561, abs=1e-4)
    for matrix in (torch.full((size, size), 1 / size, dtype=torch.float64), torch.eye(size)):
        assert float(dependency.token_dependency(matrix.double())) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("size", [3, 8])
def test_gtd_of_the_claims_is_that_of_the_probe(size):
    """Uniform, and collapsed on one token: by numpy for claims, by torch for runs."""
    first = torch.zeros(size, size, dtype=torch.float64)
    first[:, 0] = 1
    for name, matrix in {"uniform": torch.full_like(first, 1 / size), "one token": first}.items():
        ours = dependency_of(name, size)
        assert ours == pytest.approx(float(dependency.token_dependency(matrix)), rel=1e-12)
        assert ours == pytest.approx(S**2 / (1 + S**2), rel=1e-12)


def test_gtd_of_a_cyclic_shift():
    shift = torch.eye(9, dtype=torch.float64).roll(1, 1)
    apart = 0.9**2 + 0.81**2 + 0.729**2
    assert float(dependency.token_dependency(shift)) == pytest.approx(apart / (1 + apart), rel=1e-12)
    assert apart / (1 + apart) == pytest.approx(0.666, abs=1e-3)


def test_gtd_of_a_uniform_decoder_is_above_that_of_a_uniform_encoder():
    rows = torch.ones(16, 16, dtype=torch.float64).tril()
    assert float(dependency.token_dependency(rows / rows.sum(-1, keepdim=True))) == pytest.approx(0.919, abs=1e-3)


def test_gtd_and_indirect_entropy_by_loops():
    weights = random_attention(2, 3, 6)
    for b in range(2):
        for h in range(3):
            a = weights[b, h].numpy()
            g = sum(0.7 ** (t - 1) * np.linalg.matrix_power(a, t) for t in range(2, 6))
            share = (g**2).sum() / ((a**2).sum() + (g**2).sum())
            rows = g / g.sum(1, keepdims=True)
            entropy = [-sum(x * math.log(x) for x in row) for row in rows]
            assert float(dependency.token_dependency(weights, 0.7, 5)[b, h]) == pytest.approx(share, rel=1e-12)
            assert dependency.indirect_entropies(weights, 0.7, 5)[b, h].tolist() == pytest.approx(entropy, rel=1e-12)


def test_entropies_of_rows_with_one_token_and_of_uniform_rows():
    assert dependency.row_entropies(torch.eye(5)).tolist() == [0.0] * 5
    assert dependency.row_entropies(torch.full((4, 4), 0.25)).tolist() == pytest.approx([math.log(4)] * 4)
    assert dependency.indirect_entropies(torch.eye(5).double()).tolist() == pytest.approx([0.0] * 5, abs=1e-12)


def test_hops_through_layers_are_products_of_head_means():
    layers = [random_attention(2, 3, 6, seed=seed) for seed in range(4)]
    shares = dependency.cross_layer_dependency(layers, beta=0.5, hops=3)
    assert len(shares) == 3
    for b in range(2):
        means = [weights[b].mean(0).numpy() for weights in layers]
        for first, share in enumerate(shares):
            g, path = 0, means[first]
            for hop, mean in enumerate(means[first + 1 : first + 3], start=1):
                path = mean @ path
                g = g + 0.5**hop * path
            direct = (means[first] ** 2).sum()
            assert float(share[b]) == pytest.approx((g**2).sum() / (direct + (g**2).sum()), rel=1e-12)


def test_equal_layers_have_the_gtd_of_one():
    """With the same attention in every layer, hops through layers are hops within one."""
    weights = random_attention(1, 1, 8)
    first, *_ = dependency.cross_layer_dependency([weights] * 4)
    assert float(first) == pytest.approx(float(dependency.token_dependency(weights)), rel=1e-12)


def test_padding_takes_no_part():
    valid = torch.arange(9)[None] < torch.tensor([9, 5])[:, None]
    weights = random_attention(2, 2, 9)
    short = weights[1:, :, :5, :5]
    cut = dependency.without_padding(weights, valid)
    assert dependency.token_dependency(cut)[1].tolist() == pytest.approx(dependency.token_dependency(short)[0].tolist())
    rows = dependency.mean_over_tokens(dependency.row_entropies(cut), valid)
    assert rows[1].tolist() == pytest.approx(dependency.row_entropies(short)[0].mean(-1).tolist())
    low = dependency.sparsity(cut, valid, 0.1)
    assert low[1].tolist() == pytest.approx((short[0] < 0.1).double().mean((-1, -2)).tolist())


def test_the_graph_has_the_edges_above_the_threshold():
    weights = np.array([[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 2e-4, 0.9998]])
    assert sorted(token_graph(weights, 3, tau := 9.9e-5).edges(data="weight")) == [(0, 1, 0.05), (1, 2, 1e-4)]
    assert sorted(token_graph(weights, 3, tau * 1.1).edges) == [(0, 1)]
    assert sorted(token_graph(weights, 2, tau).edges) == [(0, 1)]


def test_clustering_and_betweenness_of_known_graphs():
    whole = networkx.complete_graph(5)
    networkx.set_edge_attributes(whole, 1.0, "weight")
    star = networkx.star_graph(4)
    networkx.set_edge_attributes(star, 1.0, "weight")
    assert (clustering(whole), betweenness(whole)) == (1.0, 0.0)
    # All six paths between the leaves go through the centre.
    assert (clustering(star), betweenness(star)) == (0.0, 6 / 5)


def test_correlation_of_lists():
    assert pearson([1, 2, 3, 4], [2, 4, 6, 8.5]).r == pytest.approx(10.75 / math.sqrt(5 * 23.1875))
    assert pearson([1, 2], [3, 4]) == (None, None) == pearson([1, 1, 1], [1, 2, 3])
    r, p = pearson([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    t = r * math.sqrt(3 / (1 - r**2))
    assert r == pytest.approx(0.8) and t == pytest.approx(2.3094, abs=1e-4) and p == pytest.approx(0.104, abs=1e-3)
