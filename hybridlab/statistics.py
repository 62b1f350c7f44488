"""Means, standard errors, tests, power, and the rule by which trained numbers decide claims. No torch.

A measurement is a value with its standard error and number of observations. The value is None if nothing was measured;
the standard error is None if there is only one observation.

The unit of the rule is the training seed, and each comparison of a claim is one number for each seed. What the claim
asks of these numbers is `Above`, `Below`, `Between`, `Apart`, `Always` or `Mostly`; `decide` puts the comparisons
of one claim together under Holm's correction. With fewer than FEWEST_SEEDS seeds nothing is decided.
"""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict


class Typed(BaseModel):
    """Base class of what records and tables hold: no other fields, and an instance cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Measurement(Typed):
    """value ± stderr over n observations."""

    value: float | None
    stderr: float | None = None
    n: int = 0

    def scaled(self, factor: float) -> Measurement:
        """The measurement multiplied by a factor, for other units."""
        value = None if self.value is None else self.value * factor
        return Measurement(value=value, stderr=None if self.stderr is None else self.stderr * factor, n=self.n)


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


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """A centred moving average; at both ends it is over fewer values."""
    half = width // 2
    windows = (values[max(0, i - half) : i - half + width] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


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


def block_means(values: Sequence[float] | np.ndarray, size: int = 10) -> np.ndarray:
    """The means of whole blocks of so many neighbours: values that are correlated with their neighbours, such as the
    losses of validation windows, have the error of these."""
    array = np.asarray(values, dtype=np.float64)
    blocks = len(array) // size
    means: np.ndarray = array[: blocks * size].reshape(blocks, size).mean(axis=1)
    return means


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
    middle = float(np.median(ratios))
    deviation = 1.4826 * float(np.median([abs(ratio - middle) for ratio in ratios]))
    return Measurement(value=middle, stderr=1.2533 * deviation / len(ratios) ** 0.5, n=len(ratios))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values get their mean rank. None if either list is constant."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    from scipy.stats import rankdata  # here, so that commands that measure nothing start fast

    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


class Pearson(NamedTuple):
    """Pearson's r and its two-sided p-value under independence; None for fewer than three pairs, and where a list is
    constant."""

    r: float | None
    p: float | None


def pearson(x: Sequence[float], y: Sequence[float]) -> Pearson:
    """The linear correlation of paired values; see `Pearson`."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return Pearson(None, None)
    from scipy.stats import pearsonr

    result = pearsonr(x, y)
    return Pearson(float(result.statistic), float(result.pvalue))


def evenness(shares: Sequence[float]) -> float:
    """The entropy of positive amounts as shares of their sum, over that of equal ones: 1 where all are equal, 0 where
    there is only one."""
    share = np.array(shares) / sum(shares)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum() / math.log(len(share)))


def correlation(value: float, n: int) -> Measurement:
    """A correlation r over n pairs, with its standard error (1 − r²) / √(n − 1)."""
    return Measurement(value=value, stderr=(1 - value**2) / math.sqrt(max(1, n - 1)), n=n)


def spread_of(values: Sequence[float] | np.ndarray) -> float:
    """The standard deviation; 0 for fewer than two values, and where they differ by rounding only."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return 0.0
    spread = float(array.std(ddof=1))
    return spread if spread > 1e-9 * float(np.abs(array).max()) else 0.0


# ---- tests ----


FEWEST_SEEDS = 3
"""With fewer pairs of runs there is no test: a difference is open, whatever its size."""
FEWEST_OBSERVED = 100
"""With fewer prompts or documents nothing is observed in a model."""
LEVEL = 0.05
"""The level α of a test, after Holm's correction where there are several."""


class PairedTest(Typed):
    """Student's t-test of paired differences, two-sided.

    interval: of 95 %. p: the probability of such a difference, or a larger one, if there were none. Both are None for
    fewer than FEWEST_SEEDS pairs, and where all differences are equal, so that their spread is unknown.
    """

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


Limits = tuple[float, float]
"""The lowest and the highest value that a quantity can have; ±inf where nothing is known of that side."""
NO_LIMITS: Limits = (-math.inf, math.inf)


def constant_p(value: float, bound: float, n: int, limits: Limits = NO_LIMITS) -> float:
    """The one-sided p of n seeds that all have this value, if the true mean were at the bound or beyond it.

    Markov's inequality: of a quantity that is never below a, with a mean of at most b, one seed reaches a value v > b
    with a probability of at most (b − a) / (v − a), and n independent ones with at most that to the power of n. It
    needs no distribution and none does better, since a mixture of a and v reaches it. For a value below the bound the
    same from the highest possible value. 1 where the limit on the other side is not known.
    """
    nearest, farthest = (bound, limits[0]) if value > bound else (-bound, -limits[1])
    reached = abs(value - bound) + nearest - farthest
    if not math.isfinite(reached):
        return 1.0
    return min(1.0, max(0.0, nearest - farthest) / reached) ** n if reached > 0 else 0.0


def sign_p(right: Sequence[bool]) -> float:
    """The two-sided p of so many yes and no, if both were equally likely."""
    from scipy import stats

    return float(stats.binomtest(sum(right), len(right)).pvalue)


# ---- power ----


POWER = 0.8
"""The power that a number of seeds is asked for."""
MOST_SEEDS = 10_000
"""Differences that would need more seeds count as not to be found."""


def seeds_for_difference(spread: float, effect: float, level: float = LEVEL) -> int | None:
    """Seeds with which a two-sided paired t-test resolves an effect, on its side, with 80 % power (noncentral t).

    spread: the standard deviation of the differences; effect: their true mean. None beyond MOST_SEEDS.
    """
    return _fewest_seeds(spread, [abs(effect)], level / 2)


def seeds_for_equivalence(spread: float, below: float | None, above: float, level: float = LEVEL) -> int | None:
    """Seeds for 80 % power of two one-sided t-tests. below, above: how far the true mean is from the two bounds; None
    for no bound."""
    return _fewest_seeds(spread, [above] if below is None else [below, above], level)


def _fewest_seeds(spread: float, distances: Sequence[float], tail: float) -> int | None:
    """The fewest seeds with which one-sided t-tests at the level `tail` all reject, with enough power, bounds that lie
    at these distances from the mean."""
    from scipy import stats

    def power(n: int) -> float:
        # Beyond a shift of 30 all is power, and no digits are left.
        shifts = [min(distance / spread * math.sqrt(n), 30.0) for distance in distances]
        powers = [float(stats.nct.sf(stats.t.ppf(1 - tail, n - 1), n - 1, shift)) for shift in shifts]
        # The chance that all tests reject is at least the sum of their powers, less 1 for each but the first.
        return sum(powers) - (len(powers) - 1)

    # A shift of 2 standard errors has less than enough power in every test here, one of 8 more (from ten seeds on).
    ratio = min(distances) / spread
    if ratio < 2 / math.sqrt(MOST_SEEDS):
        return None
    numbers = range(max(FEWEST_SEEDS, int((2 / ratio) ** 2)), max(10, math.ceil((8 / ratio) ** 2)))
    seeds = numbers.start + bisect.bisect_left(numbers, True, key=lambda n: power(n) >= POWER)
    return seeds if seeds <= MOST_SEEDS else None


def seeds_for_constant(value: float, bound: float, limits: Limits, level: float = LEVEL) -> int | None:
    """Seeds with which a value that all of them have is resolved to lie beyond a bound; see `constant_p`. level: of the
    one-sided test. None beyond MOST_SEEDS."""
    share = constant_p(value, bound, 1, limits)
    if value == bound or share >= 1:
        return None
    seeds = FEWEST_SEEDS if share == 0 else max(FEWEST_SEEDS, math.floor(math.log(level) / math.log(share)) + 1)
    return seeds if seeds <= MOST_SEEDS else None


def seeds_for_signs(right: Sequence[bool], level: float = LEVEL) -> int | None:
    """Seeds for 80 % power of the two-sided sign test at the share of yes among these."""
    from scipy import stats

    if not right:
        return None
    share = max(np.mean(right), 1 - np.mean(right))
    for n in range(FEWEST_SEEDS, 400):
        # The largest number of no with which n seeds are resolved.
        most = int(stats.binom.ppf(level / 2, n, 0.5)) - 1
        if most >= 0 and stats.binom.cdf(most, n, 1 - share) >= POWER:
            return n
    return None


# ---- the rule ----


@dataclass(frozen=True)
class Finding:
    """A test of one number for each seed. estimate: their mean. spread: their standard deviation, 0 where they are all
    the same. side: 1 if the estimate is as the claim asks, -1 if it is the opposite, 0 if it is neither. p: of that
    side, before Holm's correction; None for fewer than FEWEST_SEEDS seeds, and where there is nothing to test."""

    estimate: Measurement
    spread: float
    side: int
    p: float | None = None


class _Asked(ABC):
    """What a claim asks of the numbers of its seeds."""

    def tested(self, values: Sequence[float], limits: Limits = NO_LIMITS) -> Finding:
        """The test of these values. limits: between which each must lie, whatever was trained."""
        estimate, spread = self._estimate(values), spread_of(values)
        if estimate.value is None:
            return Finding(estimate, spread, 0)
        side = self._side(estimate.value)
        p = None if estimate.n < FEWEST_SEEDS else self._p(values, spread, side, limits)
        return Finding(estimate, spread, side, p)

    def _estimate(self, values: Sequence[float]) -> Measurement:
        return mean_and_error(values)

    @abstractmethod
    def _side(self, mean: float) -> int:
        """See `Finding`."""

    @abstractmethod
    def _p(self, values: Sequence[float], spread: float, side: int, limits: Limits) -> float | None:
        """See `Finding`; of enough seeds."""


@dataclass(frozen=True)
class _OfBound(_Asked):
    bound: float = 0.0
    sign: ClassVar[int]

    def _side(self, mean: float) -> int:
        distance = mean - self.bound
        return self.sign * int(np.sign(distance)) if abs(distance) > 1e-12 else 0

    def _p(self, values: Sequence[float], spread: float, side: int, limits: Limits) -> float | None:
        if spread == 0:
            # Equal to the bound in every seed: there is nothing to test.
            return min(1.0, 2 * constant_p(values[0], self.bound, len(values), limits)) if side else None
        from scipy import stats

        return float(stats.ttest_1samp(values, self.bound).pvalue)

    def seeds(
        self, values: Sequence[float], effect: float | None = None, level: float = LEVEL, limits: Limits = NO_LIMITS
    ) -> int | None:
        """Seeds for 80 % power at the spread of these values, if the mean is `effect` beyond the bound (by default as
        far as theirs); None if no number of seeds up to MOST_SEEDS has it. Without a spread, if all of them have the
        same value. limits: see `tested`."""
        spread = spread_of(values)
        if spread == 0:
            return seeds_for_constant(values[0], self.bound, limits, level / 2)
        return seeds_for_difference(spread, float(np.mean(values)) - self.bound if effect is None else effect, level)


class Above(_OfBound):
    """The mean lies above a bound: Student's t, two-sided. Where all seeds have the same number a spread is not known,
    and the limits of the quantity decide (`constant_p`, doubled for two sides)."""

    sign = 1


class Below(_OfBound):
    """The mean lies below a bound; see `Above`."""

    sign = -1


@dataclass(frozen=True)
class Between(_Asked):
    """The mean lies between two bounds: two one-sided t-tests (equivalence, TOST), each at LEVEL. low: None for no
    bound below, which makes it a test of not being higher (non-inferiority). Not resolved is not equal; the opposite is
    a mean that is resolved, two-sided, to lie outside."""

    low: float | None
    high: float

    def _contains(self, value: float) -> bool:
        return value < self.high and (self.low is None or value > self.low)

    def _passed(self, value: float) -> list[float]:
        """The bounds that a value must be shown to lie beyond: both from within, one of them from outside."""
        if self._contains(value):
            return [self.high] if self.low is None else [self.low, self.high]
        return [self.high] if self.low is None or value >= self.high else [self.low]

    def _side(self, mean: float) -> int:
        return 1 if self._contains(mean) else -1

    def _p(self, values: Sequence[float], spread: float, side: int, limits: Limits) -> float:
        if spread == 0:
            p = max(constant_p(values[0], bound, len(values), limits) for bound in self._passed(values[0]))
            return p if side == 1 else min(1.0, 2 * p)
        from scipy import stats

        below = float(stats.ttest_1samp(values, self.high, alternative="less").pvalue)
        above = 0.0 if self.low is None else float(stats.ttest_1samp(values, self.low, alternative="greater").pvalue)
        return max(below, above) if side == 1 else min(1.0, 2 * (1 - max(below, above)))

    def seeds(
        self, values: Sequence[float], effect: float | None = None, level: float = LEVEL, limits: Limits = NO_LIMITS
    ) -> int | None:
        """Seeds for 80 % power at the spread of these values if the true mean is `effect`, by default theirs; where
        that lies outside, to resolve the opposite. Without a spread, and limits: see `Above.seeds`."""
        spread, truth = spread_of(values), float(np.mean(values)) if effect is None else effect
        if spread == 0:
            tail = level if self._contains(values[0]) else level / 2
            numbers = [seeds_for_constant(values[0], bound, limits, tail) for bound in self._passed(values[0])]
            return None if None in numbers else max(number for number in numbers if number is not None)
        above, below = self.high - truth, None if self.low is None else truth - self.low
        if not self._contains(truth):
            return seeds_for_difference(spread, above if above <= 0 else below or 0.0, level)
        return seeds_for_equivalence(spread, below, above, level)


@dataclass(frozen=True)
class Apart:
    """The mean lies farther than `by` from 0, on either side: the opposite of `Between(-by, by)`, at its p-values."""

    by: float

    def tested(self, values: Sequence[float], limits: Limits = NO_LIMITS) -> Finding:
        near = Between(-self.by, self.by).tested(values, limits)
        return replace(near, side=-near.side)

    def seeds(
        self, values: Sequence[float], effect: float | None = None, level: float = LEVEL, limits: Limits = NO_LIMITS
    ) -> int | None:
        """As `Above.seeds`, on the side on which the mean lies."""
        if np.mean(values) < 0:
            values, limits = [-value for value in values], (-limits[1], -limits[0])
        return Above(self.by).seeds(values, effect, level, limits)


class _OfYes(_Asked):
    """A yes (1) or a no (0) from every value, by the two-sided sign test."""

    def _estimate(self, values: Sequence[float]) -> Measurement:
        return proportion([value > 0 for value in values])

    def _p(self, values: Sequence[float], spread: float, side: int, limits: Limits) -> float:
        return sign_p([value > 0 for value in values]) if side else 1.0

    def seeds(
        self, values: Sequence[float], effect: float | None = None, level: float = LEVEL, limits: Limits = NO_LIMITS
    ) -> int | None:
        """Values for 80 % power if the share of yes is that of these; None where they are on neither side."""
        right = [value > 0 for value in values]
        return seeds_for_signs(right, level) if self._side(float(np.mean(right))) else None


@dataclass(frozen=True)
class Always(_OfYes):
    """A yes (1) from every seed, which a single no (0) contradicts: the two-sided sign test. Five seeds that all say
    yes have p = 0.0625, so that they cannot resolve it; six have 0.03125. `constant_p` for a share of yes above one
    half gives the same. Where most, but not all, say yes, no number of seeds would resolve it."""

    def _side(self, mean: float) -> int:
        return 1 if mean == 1 else -1 if mean < 0.5 else 0


@dataclass(frozen=True)
class Mostly(_OfYes):
    """A yes (1) from more than half of all prompts or documents: one model does not do the same on each of them."""

    def _side(self, mean: float) -> int:
        return int(np.sign(mean - 0.5))


Question = Above | Below | Between | Apart | Always | Mostly


@dataclass(frozen=True)
class Decision:
    """What the comparisons of one claim come to. outcome: True if each of them is resolved as asked, False if one is
    resolved the other way, else None. p: of each, after Holm's correction. resolved: whether each is."""

    outcome: bool | None
    p: list[float | None]
    resolved: list[bool]


def decide(
    tests: Sequence[Finding], needed: Sequence[bool] | None = None, beside: Sequence[float | None] = ()
) -> Decision:
    """The decision on one claim from its comparisons, at LEVEL over all of them. A comparison without a p counts in
    Holm's correction like one with p = 1. needed: False for a comparison that must not be resolved the other way but
    need not be resolved as asked; by default all are. beside: the p of further tests that the correction goes over."""
    needed = needed or [True] * len(tests)
    corrected = holm([1.0 if p is None else p for p in (*(test.p for test in tests), *beside)])[: len(tests)]
    resolved = [p is not None and p < LEVEL and test.side != 0 for test, p in zip(tests, corrected, strict=True)]
    if any(clear and test.side < 0 for test, clear in zip(tests, resolved, strict=True)):
        outcome: bool | None = False
    else:
        clear_of_needed = [clear for clear, must in zip(resolved, needed, strict=True) if must]
        outcome = True if clear_of_needed and all(clear_of_needed) else None
    return Decision(
        outcome, [None if test.p is None else p for test, p in zip(tests, corrected, strict=True)], resolved
    )
