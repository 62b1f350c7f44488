"""Means, standard errors, differences and correlations of what was measured. No torch.

A measurement is a value with its standard error and number of observations. The value is None if nothing was measured;
the standard error is None if there is only one observation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict


class Measurement(BaseModel):
    """value ± stderr over n observations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float | None
    stderr: float | None = None
    n: int = 0

    def scaled(self, factor: float) -> Measurement:
        """The measurement multiplied by a factor, for other units."""
        value, stderr = (None if x is None else x * factor for x in (self.value, self.stderr))
        return Measurement(value=value, stderr=stderr, n=self.n)


NOT_MEASURED = Measurement(value=None)


def known(measurement: Measurement) -> float:
    """The value of something that was measured; ValueError if it was not."""
    if measurement.value is None:
        raise ValueError("not measured")
    return measurement.value


def mean_and_error(values: Sequence[float] | np.ndarray) -> Measurement:
    """The mean and its standard error, from the sample standard deviation."""
    if not len(values):
        return NOT_MEASURED
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return Measurement(value=float(array.mean()), stderr=error, n=len(array))


def clustered_mean(values: Sequence[float] | np.ndarray, clusters: Sequence[int] | np.ndarray) -> Measurement:
    """The mean of values that are not independent within a cluster, such as the answers of one row.

    clusters: for each value a whole number ≥ 0, equal for values of one cluster. The error is that of a ratio of sums
    over clusters; None if there is only one. n counts values.
    """
    if not len(values):
        return NOT_MEASURED
    array = np.asarray(values, dtype=np.float64)
    numbers = np.unique(np.asarray(clusters), return_inverse=True)[1]
    mean, count = float(array.mean()), int(numbers.max()) + 1
    if count == 1:
        return Measurement(value=mean, n=len(array))
    deviations = np.bincount(numbers, weights=array - mean)
    error = math.sqrt(count / (count - 1) * float(np.square(deviations).sum())) / len(array)
    return Measurement(value=mean, stderr=error, n=len(array))


def block_mean(values: Sequence[float] | np.ndarray, size: int = 10) -> Measurement:
    """The mean of values that are correlated with their neighbours, such as the losses of validation windows; its
    standard error is that of the means of whole blocks of `size` values, None for fewer than two blocks."""
    if not len(values):
        return NOT_MEASURED
    array = np.asarray(values, dtype=np.float64)
    blocks = len(array) // size
    error = mean_and_error(array[: blocks * size].reshape(blocks, size).mean(axis=1)).stderr
    return Measurement(value=float(array.mean()), stderr=error, n=len(array))


def proportion(right: Sequence[bool] | np.ndarray) -> Measurement:
    """The share of true values with its binomial standard error."""
    n = len(right)
    if n == 0:
        return NOT_MEASURED
    p = float(np.mean(right))
    return Measurement(value=p, stderr=math.sqrt(p * (1 - p) / n), n=n)


def paired_difference(left: Sequence[float] | np.ndarray, right: Sequence[float] | np.ndarray) -> Measurement:
    """Mean of the differences left − right of paired observations, with its standard error."""
    return mean_and_error(np.subtract(left, right))


def resolved(difference: Measurement) -> bool:
    """Whether a difference is further from 0 than twice its standard error."""
    value, error = difference.value, difference.stderr
    return value is not None and error is not None and abs(value) > 2 * error


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Measurement:
    """The median of the ratios of paired values, with its standard error from their median absolute deviation.

    A single outlier, such as a benchmark round that was interrupted, has little effect on either.
    """
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    middle = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    return Measurement(value=middle, stderr=1.2533 * deviation / len(ratios) ** 0.5, n=len(ratios))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values get their mean rank. None if either list is constant."""
    left, right = (_ranks(np.asarray(values, dtype=np.float64)) for values in (one, other))
    if len(set(left.tolist())) < 2 or len(set(right.tolist())) < 2:
        return None
    return float(np.corrcoef(left, right)[0, 1])


class Pearson(NamedTuple):
    """Pearson's r and its two-sided p-value under independence; None for fewer than three pairs, and where a list is
    constant."""

    r: float | None
    p: float | None


def pearson(one: Sequence[float], other: Sequence[float]) -> Pearson:
    """The linear correlation of paired values; see `Pearson`."""
    if len(one) < 3 or len(set(one)) < 2 or len(set(other)) < 2:
        return Pearson(None, None)
    from scipy.stats import pearsonr  # here, so that commands that measure nothing start fast

    found = pearsonr(one, other)
    return Pearson(float(found.statistic), float(found.pvalue))


def evenness(shares: Sequence[float]) -> float:
    """The entropy of positive amounts as shares of their sum, over that of equal ones: 1 where all are equal, 0 where
    there is only one."""
    share = np.array(shares) / sum(shares)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum() / math.log(len(share)))


def correlation(value: float, n: int) -> Measurement:
    """A correlation r over n pairs, with its standard error (1 − r²) / √(n − 1)."""
    return Measurement(value=value, stderr=(1 - value**2) / math.sqrt(max(1, n - 1)), n=n)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values get their mean rank."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2)[index]


def spread_of(values: Sequence[float] | np.ndarray) -> float:
    """The standard deviation; 0 for fewer than two values, and where they differ by rounding only."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return 0.0
    spread = float(array.std(ddof=1))
    return spread if spread > 1e-9 * float(np.abs(array).max()) else 0.0
