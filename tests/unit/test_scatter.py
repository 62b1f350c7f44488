"""Two lists of a run against each other."""

import json

import pytest

from hybridlab.errors import UserError
from hybridlab.lab.reporting.figures import csv_lines
from tests.records import make_record, make_results
from tests.unit.test_figure_kinds import drawn, numbers, shown

X, Y = "results.probes.dependency.graphs.gtd", "results.probes.dependency.graphs.clustering"


def graphs(xs, ys, **changes):
    """A run whose probe `dependency` has these lists."""
    probes = {"dependency": {"graphs": {"gtd": xs, "clustering": ys}}}
    return make_record(results=make_results(probes=probes), **changes)


def scattered(*records, **settings):
    return shown("scatter", *records, metric=Y, x=X, x_label="GTD", y_label="clustering", **settings)


def test_each_entry_is_a_point_and_the_text_has_the_correlation():
    plot, data = scattered(graphs([1, 2, 3, None, 4], [2, 1, 4, 9, 3]), graphs([1, 2, 3], [3, 2, 1]))
    (ax,), _ = drawn(plot, data)
    assert [len(points.get_offsets()) for points in ax.collections] == [4, 3], "null is no point"
    assert ax.texts[0].get_text() == "run 0: r = 0.60, p = 0.400\nrun 1: r = −1.00, p < 0.001"
    assert len(ax.lines) == 2 and not ax.child_axes, "few points have no histograms"
    assert len(csv_lines(data)) == 7
    json.dumps(data, allow_nan=False)


def test_many_points_have_histograms_on_the_margins():
    xs = [i / 100 for i in range(100)]
    (ax,), _ = drawn(*scattered(graphs(xs, [x * x for x in xs])))
    top, right = ax.child_axes
    assert sum(bar.get_height() for bar in top.patches) == sum(bar.get_width() for bar in right.patches) == 100
    assert ax.texts[0].get_text() == "r = 0.97, p < 0.001"


def test_a_list_that_does_not_vary_has_no_correlation():
    (ax,), _ = drawn(*scattered(graphs([1, 2, 3], [0, 0, 0])))
    assert ax.texts[0].get_text() == "r not defined" and not ax.lines


def test_seeds_are_pooled_and_their_correlations_averaged():
    records = {0: graphs([1, 2, 3], [1, 2, 3]), 1: graphs([1, 2, 3], [1, 2, 4.5], seed=1)}
    merged = numbers("scatter", records, metric=Y, x=X)
    assert merged["x"] == [1, 2, 3, 1, 2, 3] and merged["seeds"] == 2 and merged["p"] is None
    assert merged["r"] == pytest.approx((1 + 0.9707253) / 2, abs=1e-4)


def test_lists_of_different_lengths_are_an_error():
    with pytest.raises(UserError, match="points need two lists of the same length"):
        scattered(graphs([1, 2, 3], [1, 2]))


def test_what_was_not_measured_is_left_out():
    plot, data = scattered(make_record(), graphs([1, 2, 3], [1, 2, 4]))
    (ax,), _ = drawn(plot, data)
    assert len(ax.collections) == 1
