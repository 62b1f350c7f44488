"""Means, errors and paired comparisons, on numbers whose results are known."""

import math

import numpy as np
import pytest

from hybridlab.statistics import (
    NOT_MEASURED,
    Measurement,
    _ranks,
    clustered_mean,
    correlation,
    holm,
    independent_difference,
    mean_and_error,
    mean_interval,
    paired_difference,
    paired_ratio,
    paired_t,
    proportion,
    rank_correlation,
    resolved,
)


def test_mean_and_its_error():
    assert mean_and_error([1.0, 2.0, 3.0]) == Measurement(value=2.0, stderr=1 / math.sqrt(3), n=3)
    assert mean_and_error([4.0]) == Measurement(value=4.0, n=1) and mean_and_error([]) == NOT_MEASURED


def test_scaling_scales_the_value_and_its_error():
    assert Measurement(value=2.0, stderr=0.5, n=3).scaled(-10) == Measurement(value=-20.0, stderr=-5.0, n=3)
    assert (
        Measurement(value=2.0, n=1).scaled(10) == Measurement(value=20.0, n=1) and NOT_MEASURED.scaled(2).value is None
    )


def test_a_proportion_has_a_binomial_error():
    assert proportion([True, True, False, True]) == Measurement(value=0.75, stderr=math.sqrt(0.75 * 0.25 / 4), n=4)
    assert proportion([]) == NOT_MEASURED


def test_a_paired_difference_has_no_error_from_what_pairs_share():
    assert paired_difference([1.0, 5.0], [2.0, 6.0]) == Measurement(value=-1.0, stderr=0.0, n=2)


def test_an_independent_difference_adds_errors_as_squares():
    left, right = Measurement(value=5.0, stderr=0.3, n=9), Measurement(value=3.0, stderr=0.4, n=4)
    assert independent_difference(left, right) == Measurement(value=2.0, stderr=0.5, n=4)
    for one, other in ((left, Measurement(value=3.0)), (Measurement(value=3.0), left)):
        assert independent_difference(one, other).stderr is None
    assert independent_difference(left, NOT_MEASURED) == independent_difference(NOT_MEASURED, left) == NOT_MEASURED


def test_resolved_is_more_than_two_errors_from_zero():
    assert resolved(Measurement(value=-2.1, stderr=1.0)) and resolved(Measurement(value=2.1, stderr=1.0))
    assert not resolved(Measurement(value=2.0, stderr=1.0)) and not resolved(Measurement(value=-1.9, stderr=1.0))
    assert not resolved(Measurement(value=5.0)) and not resolved(Measurement(value=None, stderr=1.0))


def test_one_slow_round_does_not_change_a_paired_ratio():
    ratio = paired_ratio([2.0, 2.0, 90.0, 2.2, 1.8], [1.0] * 5)
    assert ratio.value == 2.0 and ratio.n == 5
    assert ratio.stderr == pytest.approx(1.2533 * 1.4826 * 0.2 / math.sqrt(5))


def test_rank_correlation_shares_ranks_among_equals():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1) and rank_correlation([1, 2], [2, 2]) is None
    assert _ranks([3.0, 1.0, 3.0]).tolist() == [2.5, 1.0, 2.5]


def test_the_error_of_a_correlation():
    assert correlation(0.5, 10) == Measurement(value=0.5, stderr=0.75 / 3, n=10)
    assert correlation(0.5, 1).stderr == 0.75


# ---- tests of paired differences ----


def test_the_paired_t_test_has_the_textbook_interval_and_p():
    """Differences 1, 2, 3: mean 2, s.e. 1/√3; t = 3.464 with two degrees of freedom."""
    found = paired_t([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.difference.value == 2 and math.isclose(known_error(found), 1 / math.sqrt(3))
    assert math.isclose(found.interval[0], 2 - 4.302652729911275 / math.sqrt(3), rel_tol=1e-9)
    assert math.isclose(found.interval[1], 2 + 4.302652729911275 / math.sqrt(3), rel_tol=1e-9)
    assert math.isclose(found.p, 0.0741799002274, rel_tol=1e-6)
    assert mean_interval([1.0, 2.0, 3.0]) == found.interval


def known_error(found):
    assert found.difference.stderr is not None
    return found.difference.stderr


def test_there_is_no_test_for_two_pairs_or_without_a_spread():
    for left in ([2.0, 4.0], [2.0], [2.0, 3.0, 4.0]):
        found = paired_t(left, [1.0, 2.0, 3.0][: len(left)])
        assert found.interval is None and found.p is None and found.difference.n == len(left)
    assert paired_t([], []).p is None and mean_interval([1.0, 2.0]) is None


def test_holms_correction_steps_down():
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    assert holm([0.04, None, 0.01]) == [0.04, None, 0.02]
    assert holm([0.5, 0.9, 0.4]) == [1.0, 1.0, 1.0] and holm([None]) == [None] and holm([]) == []


def test_values_of_a_cluster_count_as_one_observation_for_the_error():
    rng = np.random.default_rng(0)
    means = rng.normal(size=40)
    numbers = np.repeat(np.arange(40), 5)
    repeated = clustered_mean(np.repeat(means, 5), numbers)
    assert repeated.n == 200 and repeated.value == pytest.approx(means.mean())
    assert repeated.stderr == pytest.approx(mean_and_error(means).stderr)
    alone = clustered_mean(means, np.arange(40))
    assert alone.stderr == pytest.approx(mean_and_error(means).stderr)
    assert clustered_mean(means, np.zeros(40, dtype=int)).stderr is None
    assert clustered_mean([], []).value is None


def test_the_error_of_clusters_of_different_sizes_is_that_of_repeated_draws():
    """Half of a value's variance is its cluster's, and larger clusters have no other mean."""
    rng = np.random.default_rng(1)
    means, errors = [], []
    for _ in range(400):
        sizes = rng.integers(1, 12, size=60)
        numbers = np.repeat(np.arange(60), sizes)
        drawn = clustered_mean(rng.normal(size=60)[numbers] + rng.normal(size=len(numbers)), numbers)
        means.append(drawn.value)
        errors.append(drawn.stderr)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
