"""Student's t-test of pairs, Holm's correction, and the sign test: the tests that the rule is made of. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from hybridlab.statistics.estimates import Measurement, paired_difference, spread_of

FEWEST_SEEDS = 3
"""With fewer pairs of runs there is no test: a difference is open, whatever its size."""
LEVEL = 0.05
"""The level α of a test, after Holm's correction where there are several."""


class PairedTest(BaseModel):
    """Student's t-test of paired differences, two-sided.

    interval: of 95 %. p: the probability of such a difference, or a larger one, if there were none. Both are None for
    fewer than FEWEST_SEEDS pairs, and where all differences are equal, so that their spread is unknown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    difference: Measurement
    interval: tuple[float, float] | None = None
    p: float | None = None


def paired_t(left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray) -> PairedTest:
    """The test of left − right, one pair for each training seed."""
    difference = paired_difference(left, right)
    if difference.n < FEWEST_SEEDS or spread_of(np.subtract(left, right)) == 0:
        return PairedTest(difference=difference)
    from scipy import stats

    result = stats.ttest_rel(left, right)
    low, high = result.confidence_interval(1 - LEVEL)
    return PairedTest(difference=difference, interval=(float(low), float(high)), p=float(result.pvalue))


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """The 95 % t-interval of a mean; None for fewer than FEWEST_SEEDS values, or without a spread."""
    return paired_t(values, np.zeros(len(values))).interval


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of the p-values of one family of tests, in the same order; None stays None, uncounted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[i] = largest
    return corrected


def survive(p_values: Sequence[float]) -> list[bool]:
    """Whether each of several tests is still resolved at LEVEL after Benjamini and Hochberg's correction, which bounds
    the share of false ones among all that are called resolved."""
    if not p_values:
        return []
    from scipy import stats

    return [bool(p <= LEVEL) for p in stats.false_discovery_control(p_values, method="bh")]


def sign_p(right: Sequence[bool]) -> float:
    """The two-sided p of so many yes and no, if both were equally likely."""
    from scipy import stats

    return float(stats.binomtest(sum(right), len(right)).pvalue)
