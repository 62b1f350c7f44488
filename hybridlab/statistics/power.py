"""How many training seeds a comparison needs: the power of the tests of the rule. No torch."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

import numpy as np

from hybridlab.statistics.paired import FEWEST_SEEDS, LEVEL

POWER = 0.8
"""The power that a number of seeds is asked for."""
MOST_SEEDS = 10_000
"""Differences that would need more seeds count as not to be found."""


def seeds_for_difference(spread: float, effect: float, level: float = LEVEL) -> int | None:
    """Seeds with which a two-sided paired t-test resolves an effect, on its side, with 80 % power (noncentral t).

    spread: the standard deviation of the differences; effect: their true mean. None beyond MOST_SEEDS.
    """
    from scipy import stats

    def power(n: int) -> float:
        shift = _within_digits(abs(effect) / spread * math.sqrt(n))
        bound = stats.t.ppf(1 - level / 2, n - 1)
        return float(stats.nct.sf(bound, n - 1, shift))

    return _fewest(power, abs(effect) / spread)


def seeds_for_equivalence(spread: float, below: float | None, above: float, level: float = LEVEL) -> int | None:
    """Seeds for 80 % power of two one-sided t-tests. below, above: how far the true mean is from the two bounds; None
    for no bound. (The chance that both tests reject is at least the sum of their powers, less 1.)"""
    from scipy import stats

    def power(n: int) -> float:
        bound = stats.t.ppf(1 - level, n - 1)
        rooms = [room for room in (below, above) if room is not None]
        shifts = [_within_digits(room / spread * math.sqrt(n)) for room in rooms]
        powers = [float(stats.nct.sf(bound, n - 1, shift)) for shift in shifts]
        return sum(powers) - (len(powers) - 1)

    return _fewest(power, min(above, math.inf if below is None else below) / spread)


def _within_digits(shift: float) -> float:
    """A shift of the noncentral t, at most 30: beyond, all is power, and no digits are left."""
    return min(shift, 30.0)


def _fewest(power: Callable[[int], float], ratio: float) -> int | None:
    """The smallest n with enough power, which rises with n. ratio: effect / spread, which is above 0 where some n
    has it."""
    # A shift of 2 standard errors has less than enough power in every test here, one of 8 more (from ten seeds on).
    if ratio < 2 / math.sqrt(MOST_SEEDS):
        return None
    numbers = range(max(FEWEST_SEEDS, int((2 / ratio) ** 2)), max(10, math.ceil((8 / ratio) ** 2)))
    found = numbers.start + bisect.bisect_left(numbers, True, key=lambda n: power(n) >= POWER)
    return found if found <= MOST_SEEDS else None


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
