"""The drawing of one row's messages, and the printed algorithm against Eq. 11."""

import math

import numpy as np
import pytest

from hybridlab.lab.papers.analytic import effect_on_other_rows
from hybridlab.lab.reporting.figures import draw
from hybridlab.lab.reporting.kinds.attention import TOKENS, refined
from tests.records import make_record, make_results
from tests.unit.test_figure_kinds import numbers, shown

MAPS = "results.probes.dependency.maps"


def test_beliefs_are_the_product_over_the_other_rows():
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.ones(5), size=5)
    for j in range(5):
        product = np.array(
            [
                prior[j, k]
                * math.prod(prior[i, k] + math.exp(0.3) * (prior[i].sum() - prior[i, k]) for i in range(5) if i != j)
                for k in range(5)
            ]
        )
        assert refined(prior, 0.3)[j] == pytest.approx(product / product.sum(), rel=1e-12)


def test_the_printed_algorithm_passes_no_message():
    assert effect_on_other_rows("labels") == 0.0
    assert effect_on_other_rows("senders") > 0.01


def test_a_product_over_all_rows_leaks_in_a_decoder():
    assert effect_on_other_rows("senders", causal=True) > 0.01
    assert effect_on_other_rows("labels", causal=True) == 0.0


def test_the_figure_shows_the_first_tokens_of_a_map():
    weights = np.random.default_rng(1).dirichlet(np.ones(9), size=9)
    probes = {"dependency": {"maps": weights.tolist()}}
    record = make_record(results=make_results(probes=probes))
    found = numbers("belief", record, metric=MAPS)
    assert np.array(found["prior"]).shape == (TOKENS, TOKENS)
    assert np.array(found["prior"]).sum(1) == pytest.approx(np.ones(TOKENS))
    assert numbers("belief", make_record(), metric=MAPS) is None
    plot, data = shown("belief", record, metric=MAPS)
    matrix, graph, row = draw(data).axes[0].child_axes
    assert len(row.patches) == 2 * TOKENS and len(graph.texts) == 2 * (TOKENS - 1) + 1
    assert matrix.images[0].get_array().shape == (TOKENS, TOKENS)
