"""The rule by which a trained number may decide a claim. No torch.

The unit is the training seed, and each comparison of a claim is one number for each seed. What the claim asks of these
numbers is `Above`, `Below`, `Between`, `Apart`, `Always` or `FewerShared`; `decide` puts the comparisons of one claim
together under Holm's correction. With fewer than FEWEST_SEEDS seeds nothing is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridlab.statistics.estimates import Measurement, known, mean_and_error, proportion, spread_of
from hybridlab.statistics.paired import FEWEST_SEEDS, LEVEL, holm, sign_p
from hybridlab.statistics.power import seeds_for_difference, seeds_for_equivalence, seeds_for_signs


@dataclass(frozen=True)
class Finding:
    """A test of one number for each seed. estimate: their mean. spread: their standard deviation, 0 where they are all
    the same. side: 1 if the estimate is as the claim asks, -1 if it is the opposite, 0 if it is neither. p: of that
    side, before Holm's correction; None for fewer than FEWEST_SEEDS seeds, and where there is nothing to test."""

    estimate: Measurement
    spread: float
    side: int
    p: float | None = None


@dataclass(frozen=True)
class Above:
    """The mean lies above a bound: Student's t, two-sided. Where all seeds have the same number a spread is not known,
    and each of them counts as a yes or a no (a two-sided sign test)."""

    bound: float = 0.0

    def tested(self, values: Sequence[float]) -> Finding:
        """The test of these values."""
        return _one_sided_of_bound(values, self.bound, 1)

    def seeds(self, values: Sequence[float], effect: float | None = None, level: float = LEVEL) -> int | None:
        """Seeds for 80 % power at the spread of these values, if the mean is `effect` beyond the bound (by default as
        far as theirs); None if no number of seeds up to MOST_SEEDS has it."""
        spread = spread_of(values)
        distance = float(np.mean(values)) - self.bound if effect is None else effect
        if spread == 0:
            return seeds_for_signs([value > self.bound for value in values if value != self.bound], level)
        return seeds_for_difference(spread, distance, level)


@dataclass(frozen=True)
class Below:
    """The mean lies below a bound; see `Above`."""

    bound: float = 0.0

    def tested(self, values: Sequence[float]) -> Finding:
        """The test of these values."""
        return _one_sided_of_bound(values, self.bound, -1)

    def seeds(self, values: Sequence[float], effect: float | None = None, level: float = LEVEL) -> int | None:
        """As `Above.seeds`."""
        return Above(self.bound).seeds(values, effect, level)


@dataclass(frozen=True)
class Between:
    """The mean lies between two bounds: two one-sided t-tests (equivalence, TOST), each at LEVEL. low: None for no
    bound below, which makes it a test of not being higher (non-inferiority). Not resolved is not equal; the opposite is
    a mean that is resolved, two-sided, to lie outside."""

    low: float | None
    high: float

    def tested(self, values: Sequence[float]) -> Finding:
        """The test of these values."""
        estimate, spread = mean_and_error(values), spread_of(values)
        if estimate.value is None:
            return Finding(estimate, spread, 0)
        inside = self._contains(estimate.value)
        side = 1 if inside else -1
        if estimate.n < FEWEST_SEEDS:
            return Finding(estimate, spread, side)
        if spread == 0:
            return Finding(estimate, spread, side, sign_p([self._contains(value) for value in values]))
        from scipy import stats

        below = float(stats.ttest_1samp(values, self.high, alternative="less").pvalue)
        above = 0.0 if self.low is None else float(stats.ttest_1samp(values, self.low, alternative="greater").pvalue)
        p = max(below, above) if inside else min(1.0, 2 * (1 - max(below, above)))
        return Finding(estimate, spread, side, p)

    def _contains(self, value: float) -> bool:
        return value < self.high and (self.low is None or value > self.low)

    def seeds(self, values: Sequence[float], effect: float | None = None, level: float = LEVEL) -> int | None:
        """Seeds for 80 % power at the spread of these values if the true mean is `effect` (by default 0, or the middle
        where that lies outside)."""
        spread = spread_of(values)
        if spread == 0:
            return seeds_for_signs([self._contains(value) for value in values], level)
        truth = effect or 0.0
        if not self._contains(truth):
            truth = self.high - spread if self.low is None else (self.low + self.high) / 2
        return seeds_for_equivalence(spread, None if self.low is None else truth - self.low, self.high - truth, level)


@dataclass(frozen=True)
class Apart:
    """The mean lies farther than `by` from 0, on either side: the opposite of `Between(-by, by)`, at its p-values."""

    by: float

    def tested(self, values: Sequence[float]) -> Finding:
        """The test of these values."""
        near = Between(-self.by, self.by).tested(values)
        return replace(near, side=-near.side)

    def seeds(self, values: Sequence[float], effect: float | None = None, level: float = LEVEL) -> int | None:
        """As `Above.seeds`, on the side on which the mean lies."""
        sign = -1.0 if np.mean(values) < 0 else 1.0
        return Above(self.by).seeds([sign * value for value in values], effect, level)


@dataclass(frozen=True)
class Always:
    """A yes (1) from every seed rather than a no (0): the two-sided sign test. Five seeds that all say yes have
    p = 0.0625, six 0.03125."""

    def tested(self, values: Sequence[float]) -> Finding:
        """The test of these values, 1 or 0."""
        yes = [value > 0 for value in values]
        share = proportion(yes)
        if share.value is None:
            return Finding(share, 0.0, 0)
        side = int(np.sign(share.value - 0.5))
        p = sign_p(yes) if share.n >= FEWEST_SEEDS else None
        return Finding(share, spread_of(values), side, p)

    def seeds(self, values: Sequence[float], effect: float | None = None, level: float = LEVEL) -> int | None:
        """Seeds for 80 % power if the share of yes is that of these values."""
        return seeds_for_signs([value > 0 for value in values], level)


@dataclass(frozen=True)
class FewerShared:
    """Two choices of things have fewer in common than random choices of the same sizes: the sum over seeds against the
    sum of hypergeometric numbers, two-sided. sizes: for each seed the numbers that are chosen once, chosen the other
    time, and that there are in all."""

    sizes: tuple[tuple[int, int, int], ...]

    @property
    def expected(self) -> float:
        """What random choices have in common, in the mean over seeds."""
        return float(np.mean([first * second / whole for first, second, whole in self.sizes]))

    def tested(self, values: Sequence[float]) -> Finding:
        """The test of the numbers that are in common."""
        estimate, spread = mean_and_error(values), spread_of(values)
        side = int(np.sign(self.expected - known(estimate)))
        if estimate.n < FEWEST_SEEDS:
            return Finding(estimate, spread, side)
        from scipy import stats

        chances = np.ones(1)
        for first, second, whole in self.sizes:
            chances = np.convolve(chances, stats.hypergeom(whole, first, second).pmf(np.arange(first + 1)))
        total = round(sum(values))
        tail = min(float(chances[: total + 1].sum()), float(chances[total:].sum()))
        return Finding(estimate, spread, side, min(1.0, 2 * tail))

    def seeds(self, values: Sequence[float], effect: float | None = None, level: float = LEVEL) -> int | None:
        """As `Below.seeds`, at the spread of these values."""
        return Below(self.expected).seeds(values, effect, level)


Question = Above | Below | Between | Apart | Always | FewerShared


@dataclass(frozen=True)
class Decision:
    """What the comparisons of one claim come to. outcome: True if each of them is resolved as asked, False if one is
    resolved the other way, else None. p: of each, after Holm's correction. resolved: whether each is."""

    outcome: bool | None
    p: list[float | None]
    resolved: list[bool]


def decide(tests: Sequence[Finding], needed: Sequence[bool] | None = None) -> Decision:
    """The decision on one claim from its comparisons, at LEVEL over all of them. A comparison without a p counts in
    Holm's correction like one with p = 1. needed: False for a comparison that must not be resolved the other way but
    need not be resolved as asked; by default all are."""
    needed = needed or [True] * len(tests)
    corrected = holm([1.0 if test.p is None else test.p for test in tests])
    resolved = [p is not None and p < LEVEL and test.side != 0 for test, p in zip(tests, corrected, strict=True)]
    if any(clear and test.side < 0 for test, clear in zip(tests, resolved, strict=True)):
        outcome: bool | None = False
    else:
        clear_of_needed = [clear for clear, must in zip(resolved, needed, strict=True) if must]
        outcome = True if clear_of_needed and all(clear_of_needed) else None
    return Decision(
        outcome, [None if test.p is None else p for test, p in zip(tests, corrected, strict=True)], resolved
    )


def _one_sided_of_bound(values: Sequence[float], bound: float, sign: int) -> Finding:
    """The two-sided test of a mean against a bound; sign: 1 where the claim asks for more, -1 for less."""
    estimate, spread = mean_and_error(values), spread_of(values)
    if estimate.value is None:
        return Finding(estimate, spread, 0)
    distance = estimate.value - bound
    side = sign * int(np.sign(distance)) if abs(distance) > 1e-12 else 0
    if estimate.n < FEWEST_SEEDS:
        return Finding(estimate, spread, side)
    if spread == 0:
        # Equal to the bound in every seed: there is nothing to test.
        p = sign_p([value > bound for value in values]) if side else None
        return Finding(estimate, spread, side, p)
    from scipy import stats

    p = float(stats.ttest_1samp(values, bound).pvalue)
    return Finding(estimate, spread, side, p)
