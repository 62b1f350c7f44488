"""Intervals of printed numbers, and of what is computed from them.

A printed 36.41 stands for any number from 36.405 to 36.415. What is computed from printed numbers has the interval of
all that such numbers can give, or a wider one where a number stands twice in a formula. So two intervals that do not
meet cannot come from correctly rounded numbers.

What is counted has no numbers in between: of 1,024 questions 339 or 340 are answered, and no share of them is 33.15 %.
So an entry can have several ways: intervals, often without width, of which it lies in one. A score of N questions, a
count, and what is rounded to whole numbers have them, and what is computed from these. With too many ways the interval
around all of them counts.

Conditions are intervals too: from 1, where all numbers in the intervals make them true, to 0, where none does.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from hybridlab.lab.papers.analytic import p_of_correlation
from hybridlab.lab.papers.claims.numbers import on_cells
from hybridlab.lab.papers.formula import Computing, NoValue, computed, names_in

NOISE = 1e-9
"""What is left of binary fractions counts as nothing."""
MOST_WAYS = 256
"""An entry with more ways has the interval around all of them."""


@dataclass(frozen=True, eq=False)
class Interval:
    """lows, highs: arrays of one shape, (ways, …): each entry lies between the two ends of one of its ways. Entries
    with fewer ways than others have one of theirs several times."""

    lows: np.ndarray
    highs: np.ndarray

    @staticmethod
    def between(low: Any, high: Any) -> Interval:
        """With a single way: the lowest and the highest that each entry can be."""
        return Interval(np.asarray(low, dtype=np.float64)[None], np.asarray(high, dtype=np.float64)[None])

    @staticmethod
    def of(value: Any) -> Interval:
        """A plain number, or an array of them, as an interval without width."""
        number = np.atleast_2d(np.asarray(value, dtype=np.float64))
        return Interval.between(number, number)

    @property
    def low(self) -> np.ndarray:
        """The lowest that each entry can be."""
        return np.asarray(self.lows.min(axis=0))

    @property
    def high(self) -> np.ndarray:
        """The highest that each entry can be."""
        return np.asarray(self.highs.max(axis=0))

    @property
    def whole(self) -> Interval:
        """The interval around all ways of each entry."""
        return Interval.between(self.low, self.high)

    def __neg__(self) -> Interval:
        return Interval(-self.highs, -self.lows)

    def __add__(self, other: Interval) -> Interval:
        return self.with_each(other, lambda a, b, c, d: (a + c, b + d))

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        return self.with_each(other, lambda a, b, c, d: _around(a * c, a * d, b * c, b * d))

    def __truediv__(self, other: Interval) -> Interval:
        if np.any((other.lows <= 0) & (other.highs >= 0)):
            raise NoValue("what it is divided by can be 0")
        return self * Interval(1 / other.highs, 1 / other.lows)

    def __pow__(self, other: Interval) -> Interval:
        if np.any(self.low <= 0):
            raise NoValue("powers of what can be 0 or less have no interval here")
        return self.with_each(other, lambda a, b, c, d: _around(a**c, a**d, b**c, b**d))

    def both(self, function: Callable[..., np.ndarray]) -> Interval:
        """What a function that never falls makes of it."""
        return Interval.between(function(self.low), function(self.high))

    def with_each(self, other: Interval, function: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Interval:
        """What a function makes of every way of one with every way of the other. function: of low, high, low, high to
        the ends of what comes of them."""
        low, high = np.broadcast_arrays(*function(*_pairs(self, other)))
        return _fewer(low.reshape(-1, *low.shape[2:]), high.reshape(-1, *high.shape[2:]))

    def meets(self, other: Interval) -> np.ndarray:
        """Where the two have a number in common."""
        a, b, c, d = _pairs(self, other)
        return np.asarray(((a <= d + NOISE) & (c <= b + NOISE)).any(axis=(0, 1)))


def _around(*corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return reduce(np.minimum, corners), reduce(np.maximum, corners)


def _pairs(left: Interval, right: Interval) -> list[np.ndarray]:
    """The low and the high ends of both, in shapes that broadcast to (ways of left, ways of right, …)."""
    if len(left.lows) * len(right.lows) > 8 * MOST_WAYS:
        left, right = (left.whole, right) if len(left.lows) > len(right.lows) else (left, right.whole)
    rank = max(left.lows.ndim, right.lows.ndim)
    return [
        np.expand_dims(side.reshape(len(side), *(1,) * (rank - side.ndim), *side.shape[1:]), axis)
        for axis, both in ((1, left), (0, right))
        for side in (both.lows, both.highs)
    ]


def _fewer(lows: np.ndarray, highs: np.ndarray) -> Interval:
    """The ways, each once; those that meet become one, and more than MOST_WAYS the interval around all."""
    if len(lows) == 1:
        return Interval(lows, highs)
    order = np.argsort(lows, axis=0, kind="stable")
    lows, highs = (np.take_along_axis(side, order, axis=0) for side in (lows, highs))
    highs = np.maximum.accumulate(highs, axis=0)
    begins = np.concatenate([np.ones_like(lows[:1], dtype=bool), lows[1:] > highs[:-1] + NOISE])
    number = np.cumsum(begins, axis=0) - 1
    count = int(number.max()) + 1
    if count > MOST_WAYS:
        return Interval(lows[:1], highs[-1:])
    # What is written last for a way stays: its first low end, from behind, and its last high end.
    ends = np.repeat(lows[:1], count, axis=0), np.full((count, *highs.shape[1:]), np.nan)
    for i in range(len(lows)):
        np.put_along_axis(ends[0], number[-1 - i : len(lows) - i], lows[-1 - i : len(lows) - i], axis=0)
        np.put_along_axis(ends[1], number[i : i + 1], highs[i : i + 1], axis=0)
    return Interval(ends[0], np.where(np.isnan(ends[1]), ends[1][:1], ends[1]))


def one_of(ways: Sequence[Interval]) -> Interval:
    """An interval of one entry for each of a list of such, in a row: (1, entries)."""
    count = max(len(way.lows) for way in ways)
    sides = ([np.resize(getattr(way, side).ravel(), count) for way in ways] for side in ("lows", "highs"))
    lows, highs = (np.array(side).T[:, None, :] for side in sides)
    return Interval(lows, highs)


def rounded(value: Any, digits: Any) -> Interval:
    """What a number can be that is printed with so many digits behind the point; NaN digits: it is not rounded."""
    half = np.where(np.isnan(digits), 0.0, 0.5 * 10.0 ** -np.nan_to_num(digits))
    return Interval.between(value - half, value + half)


def cut(value: Any, digits: Any) -> Interval:
    """What a number can be whose further digits were left out: 1.23 was less than 1.24."""
    unit = 10.0 ** -np.asarray(digits, dtype=np.float64) - 4 * NOISE
    ends = value, value + np.where(np.asarray(value) < 0, -unit, unit)
    return Interval.between(np.minimum(*ends), np.maximum(*ends))


def rounded_twice(value: Any, digits: Any) -> Interval:
    """What a number can be that is printed so only if it was rounded to one more digit first: 3.7148 → 3.715 → 3.72."""
    unit = np.where(np.asarray(value) < 0, -1.0, 1.0) * 10.0 ** -np.asarray(digits, dtype=np.float64)
    ends = value - 0.55 * unit, value - 0.5 * unit
    return Interval.between(np.minimum(*ends), np.maximum(*ends))


PRINTED = {"agrees": rounded, "rounded twice": rounded_twice, "truncated": cut}
"""How a number can be printed → what it can be, of the printed one and its digits."""


# ---- formulas ----


def _abs(x: Interval) -> Interval:
    least = np.minimum(np.abs(x.lows), np.abs(x.highs))
    low = np.where((x.lows <= 0) & (x.highs >= 0), 0.0, least)
    return _fewer(low, np.maximum(np.abs(x.lows), np.abs(x.highs)))


def _steps(x: Interval) -> Interval:
    axis = 2 if x.lows.shape[2] > 1 else 1
    before, after = (tuple([slice(None)] * axis + [part]) for part in (slice(None, -1), slice(1, None)))
    return Interval(x.lows[after], x.highs[after]) - Interval(x.lows[before], x.highs[before])


def _above(x: Interval) -> Interval:
    """Whether numbers are above 0."""
    return Interval.between((x.low > NOISE).astype(float), (x.high > NOISE).astype(float))


def _rounds_to(x: Interval, stated: Interval, digits: Interval) -> Interval:
    # A printed number is an interval already.
    target = stated if np.any(stated.low < stated.high) else rounded(stated.low, digits.low)
    inside = (target.low <= x.low + NOISE) & (x.high <= target.high + NOISE)
    return Interval.between(inside.astype(float), x.meets(target).astype(float))


def _same_order(x: Interval, y: Interval) -> Interval:
    """Of each column; the entries of a list stand below each other."""
    signs = []
    for interval in (x, y):
        low, high = interval.low[:, None] - interval.high[None], interval.high[:, None] - interval.low[None]
        signs.append((low > NOISE, high < -NOISE))
    turned = (signs[0][0] & signs[1][1]) | (signs[0][1] & signs[1][0])
    sure = (signs[0][0] & signs[1][0]) | (signs[0][1] & signs[1][1])
    self_pairs = np.eye(len(x.low), dtype=bool)[:, :, None]
    return Interval.between((sure | self_pairs).all(axis=(0, 1))[None], (~turned).all(axis=(0, 1))[None])


def _lower(x: Interval, y: Interval) -> Interval:
    return x.with_each(y, lambda a, b, c, d: (np.minimum(a, c), np.minimum(b, d)))


def _higher(x: Interval, y: Interval) -> Interval:
    return x.with_each(y, lambda a, b, c, d: (np.maximum(a, c), np.maximum(b, d)))


def _reduced(name: str, pair: Callable[[Interval, Interval], Interval], axis: int | None, mean: bool = False) -> Any:
    """A function of all entries (axis None), or of those along an axis, that puts them together two by two."""

    def function(x: Interval) -> Interval:
        if len(x.lows) == 1:
            return x.both(partial(on_cells, name))
        sides = [side if axis else side.reshape(len(side), 1, -1) for side in (x.lows, x.highs)]
        split = (np.split(side, side.shape[axis or 2], axis or 2) for side in sides)
        parts = [Interval(*both) for both in zip(*split, strict=True)]
        reduced = reduce(pair, parts)
        return reduced / Interval.of(len(parts)) if mean else reduced

    return function


def _whole_numbers(low: np.ndarray, high: np.ndarray) -> Interval:
    """All whole numbers between two, or the interval between them where there are too many."""
    count = int((high - low).max()) + 1
    if count > MOST_WAYS:
        return Interval.between(low, high)
    ways = np.minimum(low + np.arange(count).reshape(-1, *(1,) * low.ndim), high)
    return Interval(ways, ways)


def _round(x: Interval) -> Interval:
    """To the nearest whole number; a tie to either side."""
    x = x.whole
    return _whole_numbers(np.ceil(x.low - 0.5 - NOISE), np.floor(x.high + 0.5 + NOISE))


def _count(x: Interval) -> Interval:
    """How many conditions are true: each whole number between those that surely and those that possibly are."""
    low, high = (np.reshape(side.sum(), (1, 1)) for side in (x.low, x.high))
    return _whole_numbers(low, high) if set(np.unique([x.low, x.high])) <= {0.0, 1.0} else Interval.between(low, high)


def _from_mean(x: Interval, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The length of the entries less their mean along an axis, and by how much it can differ: moving the entries by δ
    moves it by at most the length of δ."""
    middle, half = (x.low + x.high) / 2, (x.high - x.low) / 2
    apart = middle - middle.mean(axis=axis, keepdims=True)
    return np.linalg.norm(apart, axis=axis, keepdims=True), np.linalg.norm(half, axis=axis, keepdims=True)


def _row_variances(x: Interval) -> Interval:
    length, by = _from_mean(x, 1)
    low, high = ((length + sign * by).clip(0) ** 2 / x.low.shape[1] for sign in (-1, 1))
    return Interval.between(low, high)


def _sd(x: Interval) -> Interval:
    variance = _row_variances(Interval.between(x.low.reshape(1, -1), x.high.reshape(1, -1)))
    return Interval.between(np.sqrt(variance.low), np.sqrt(variance.high))


def _correlation(x: Interval, y: Interval) -> Interval:
    """A correlation is the cosine of the angle between two lists, each less its mean. A list of length c that moves by
    at most d turns by at most asin(d / c)."""
    flat = [Interval.between(interval.low.reshape(1, -1), interval.high.reshape(1, -1)) for interval in (x, y)]
    turn, middles = 0.0, []
    for interval in flat:
        (length,), (by,) = (part.ravel() for part in _from_mean(interval, 1))
        turn += math.asin(by / length) if by < length else math.pi
        middles.append((interval.low + interval.high) / 2)
    try:
        angle = math.acos(float(np.clip(on_cells("correlation", *middles)[0, 0], -1, 1)))
    except NoValue as reason:
        raise NoValue(f"correlation has no interval here: {reason}") from None
    low, high = math.cos(min(math.pi, angle + turn)), math.cos(max(0.0, angle - turn))
    return Interval.between([[low]], [[high]])


def _correlation_p(x: Interval, y: Interval) -> Interval:
    size, count = _abs(_correlation(x, y)), x.low.size
    low, high = (p_of_correlation(min(float(side[0, 0]), 1 - NOISE), count) for side in (size.high, size.low))
    return Interval.between([[low]], [[high]])


def _slope(y: Interval, x: Interval) -> Interval:
    """The slope is a sum of the entries of y, each times a number that depends on x alone."""
    if np.any(x.low < x.high):
        raise NoValue("slope has no interval where both lists are rounded")
    apart = x.low - x.low.mean()
    total = float((apart**2).sum())
    if not total:
        raise NoValue("a slope needs two places that differ")
    terms = Interval.between(y.low, y.high) * Interval.of(apart / total)
    return Interval.between(np.reshape(terms.low.sum(), (1, 1)), np.reshape(terms.high.sum(), (1, 1)))


def _by_entry(name: str) -> Callable[[Interval], Interval]:
    return lambda x: Interval(on_cells(name, x.lows), on_cells(name, x.highs))


_OF_INTERVALS: dict[str, Callable[..., Interval]] = {
    **{name: _by_entry(name) for name in ("exp", "log", "log2")},
    "len": lambda x: x.both(partial(on_cells, "len")),
    "sum": _reduced("sum", Interval.__add__, None),
    "mean": _reduced("mean", Interval.__add__, None, mean=True),
    "min": _reduced("min", _lower, None),
    "max": _reduced("max", _higher, None),
    "row_means": _reduced("row_means", Interval.__add__, 2, mean=True),
    "highest": _reduced("highest", _higher, 2),
    "lowest": _reduced("lowest", _lower, 2),
    "column_means": _reduced("column_means", Interval.__add__, 1, mean=True),
    "column_max": _reduced("column_max", _higher, 1),
    "round": _round,
    "count": _count,
    "abs": _abs,
    "steps": _steps,
    "rises": lambda x: _above(_steps(x)),
    "falls": lambda x: _above(-_steps(x)),
    "rounds_to": _rounds_to,
    "same_order": _same_order,
    "sd": _sd,
    "row_variances": _row_variances,
    "correlation": _correlation,
    "correlation_p": _correlation_p,
    "slope": _slope,
}
"""The functions of formulas whose results have an interval."""


class _OfIntervals(Computing):
    """A formula of matrices whose entries are intervals."""

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not names_in(node):
            return Interval.of(computed(node, {}))
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if (function := _OF_INTERVALS.get(name)) is None:
                raise NoValue(f"{name} has no interval")
            return function(*map(self.value, node.args))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
            raise NoValue("// and % have no interval")
        if isinstance(node, ast.List):
            return one_of([self.value(entry) for entry in node.elts])
        return super().value(node)

    def compared(self, op: ast.cmpop, pair: tuple[Interval, Interval]) -> Interval:
        """Whether a comparison is so: of numbers that surely, and of numbers that possibly make it true."""
        left, right = reversed(pair) if isinstance(op, ast.Gt | ast.GtE) else pair
        if isinstance(op, ast.Lt | ast.Gt):
            sure, possible = left.high < right.low - NOISE, left.low < right.high - NOISE
        elif isinstance(op, ast.LtE | ast.GtE):
            sure, possible = left.high <= right.low + NOISE, left.low <= right.high + NOISE
        else:
            possible = left.meets(right)
            sure = possible & (left.high - left.low < NOISE) & (right.high - right.low < NOISE)
            if isinstance(op, ast.NotEq):
                sure, possible = ~possible, ~sure
        return Interval.between(sure, possible)

    def joined(self, op: ast.boolop, conditions: Iterable[Interval]) -> Interval:
        chosen = np.minimum if isinstance(op, ast.And) else np.maximum
        lows, highs = zip(*((condition.low, condition.high) for condition in conditions), strict=True)
        return Interval.between(reduce(chosen, lows), reduce(chosen, highs))

    def opposite(self, condition: Interval) -> Interval:
        return Interval.between(1 - condition.high, 1 - condition.low)


def interval_of(tree: ast.expr, intervals: Mapping[str, Interval]) -> Interval:
    """The interval of a formula; NoValue where it has none. intervals: (rows, columns) by name."""
    with np.errstate(all="ignore"):
        interval: Interval = _OfIntervals(intervals, {}, None).value(tree)
    if not (np.isfinite(interval.lows).all() and np.isfinite(interval.highs).all()):
        raise NoValue("it divides by 0, or is too large")
    return interval
