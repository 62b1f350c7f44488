"""How many training seeds a comparison needs: the power of the tests of the rule. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hybridlab.statistics.paired import FEWEST_SEEDS, LEVEL

POWER = 0.8
"""The power that a number of seeds is asked for."""
MOST_SEEDS = 10_000
"""Differences that would need more seeds count as not to be found."""


def seeds_for_difference(spread: float, effect: float, level: float = LEVEL) -> int | None:
    """Seeds for 80 % power of a two-sided paired t-test, from the noncentral t distribution. spread: the standard
    deviation of the differences; effect: their true mean. None beyond MOST_SEEDS."""
    from scipy import stats

    def power(n: int) -> float:
        shift = abs(effect) / spread * math.sqrt(n)
        bound = stats.t.ppf(1 - level / 2, n - 1)
        return float(stats.nct.sf(bound, n - 1, shift) + stats.nct.cdf(-bound, n - 1, shift))

    return _fewest(power, abs(effect) / spread)


def seeds_for_equivalence(spread: float, below: float | None, above: float, level: float = LEVEL) -> int | None:
    """Seeds for 80 % power of two one-sided t-tests. below, above: how far the true mean is from the two bounds; None
    for no bound. (The chance that both tests reject is at least the sum of their powers, less 1.)"""
    from scipy import stats

    def power(n: int) -> float:
        bound = stats.t.ppf(1 - level, n - 1)
        rooms = [room for room in (below, above) if room is not None]
        powers = [float(stats.nct.sf(bound, n - 1, room / spread * math.sqrt(n))) for room in rooms]
        return sum(powers) - (len(powers) - 1)

    return _fewest(power, min(above, math.inf if below is None else below) / spread)


def _fewest(power: Callable[[int], float], ratio: float) -> int | None:
    """The smallest n with enough power, which rises with n. ratio: effect / spread, which is above 0 where some n
    has it."""
    # A shift of 2 standard errors has less than enough power in every test here, one of 30 all there is (and no digits
    # are left of its distribution).
    if ratio < 2 / math.sqrt(MOST_SEEDS):
        return None
    low = high = max(FEWEST_SEEDS, int((2 / ratio) ** 2))
    while ratio * math.sqrt(high) < 30 and power(high) < POWER:
        low, high = high + 1, max(high + 2, high * 5 // 4)
    while low < high:
        middle = (low + high) // 2
        enough = power(middle) >= POWER
        low, high = (low, middle) if enough else (middle + 1, high)
    return low if low <= MOST_SEEDS else None


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
