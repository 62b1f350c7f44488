"""Intervals of printed numbers, and of what is computed from them.

A printed 36.41 stands for any number from 36.405 to 36.415. What is computed from printed numbers has the interval of
all that such numbers can give, or a wider one where a number stands twice in a formula. So two intervals that do not
meet cannot come from correctly rounded numbers.

Conditions are intervals too: from 1, where all numbers in the intervals make them true, to 0, where none does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from hybridlab.papers.claims.numbers import on_cells
from hybridlab.papers.formula import Computing, NoValue, computed, names_in

NOISE = 1e-9
"""What is left of binary fractions counts as nothing."""


@dataclass(frozen=True, eq=False)
class Interval:
    """low, high: arrays of one shape, the lowest and the highest that each entry can be."""

    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(value: Any) -> Interval:
        """A plain number, or an array of them, as an interval without width."""
        number = np.atleast_2d(np.asarray(value, dtype=np.float64))
        return Interval(number, number)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        corners = np.array(np.broadcast_arrays(*ends))
        return Interval(corners.min(axis=0), corners.max(axis=0))

    def __truediv__(self, other: Interval) -> Interval:
        if np.any((other.low <= 0) & (other.high >= 0)):
            raise NoValue("what it is divided by can be 0")
        return self * Interval(1 / other.high, 1 / other.low)

    def __pow__(self, other: Interval) -> Interval:
        if np.any(self.low <= 0):
            raise NoValue("powers of what can be 0 or less have no interval here")
        corners = np.array([a**b for a in (self.low, self.high) for b in (other.low, other.high)])
        return Interval(corners.min(axis=0), corners.max(axis=0))

    def both(self, function: Callable[..., np.ndarray]) -> Interval:
        """What a function that never falls makes of it."""
        return Interval(np.asarray(function(self.low)), np.asarray(function(self.high)))

    def meets(self, other: Interval) -> np.ndarray:
        """Where the two have a number in common."""
        return (self.low <= other.high + NOISE) & (other.low <= self.high + NOISE)


def rounded(value: Any, digits: Any) -> Interval:
    """What a number can be that is printed with so many digits behind the point; NaN digits: it is not rounded."""
    half = np.where(np.isnan(digits), 0.0, 0.5 * 10.0 ** -np.nan_to_num(digits))
    return Interval(value - half, value + half)


def cut(value: Any, digits: Any) -> Interval:
    """What a number can be whose further digits were left out: 1.23 was less than 1.24."""
    unit = 10.0 ** -np.asarray(digits, dtype=np.float64) - 4 * NOISE
    ends = value, value + np.where(np.asarray(value) < 0, -unit, unit)
    return Interval(np.minimum(*ends), np.maximum(*ends))


def rounded_twice(value: Any, digits: Any) -> Interval:
    """What a number can be that is printed so only if it was rounded to one more digit first: 3.7148 → 3.715 → 3.72."""
    unit = np.where(np.asarray(value) < 0, -1.0, 1.0) * 10.0 ** -np.asarray(digits, dtype=np.float64)
    ends = value - 0.55 * unit, value - 0.5 * unit
    return Interval(np.minimum(*ends), np.maximum(*ends))


PRINTED = {"agrees": rounded, "rounded twice": rounded_twice, "truncated": cut}
"""How a number can be printed → what it can be, of the printed one and its digits."""


# ---- formulas ----


def _abs(x: Interval) -> Interval:
    low = np.where((x.low <= 0) & (x.high >= 0), 0.0, np.minimum(np.abs(x.low), np.abs(x.high)))
    return Interval(low, np.maximum(np.abs(x.low), np.abs(x.high)))


def _steps(x: Interval) -> Interval:
    axis = 1 if x.low.shape[1] > 1 else 0
    before, after = slice(None, -1), slice(1, None)
    low, high = (np.moveaxis(side, axis, 0) for side in (x.low, x.high))
    return Interval(np.moveaxis(low[after] - high[before], 0, axis), np.moveaxis(high[after] - low[before], 0, axis))


def _above(x: Interval) -> Interval:
    """Whether numbers are above 0."""
    return Interval((x.low > NOISE).astype(float), (x.high > NOISE).astype(float))


def _rounds_to(x: Interval, stated: Interval, digits: Interval) -> Interval:
    # A printed number is an interval already.
    asked = stated if np.any(stated.low < stated.high) else rounded(stated.low, digits.low)
    inside = (asked.low <= x.low + NOISE) & (x.high <= asked.high + NOISE)
    return Interval(inside.astype(float), x.meets(asked).astype(float))


def _same_order(x: Interval, y: Interval) -> Interval:
    """Of each column; the entries of a list stand below each other."""
    signs = []
    for one in (x, y):
        low, high = one.low[:, None] - one.high[None], one.high[:, None] - one.low[None]
        signs.append((low > NOISE, high < -NOISE))
    turned = (signs[0][0] & signs[1][1]) | (signs[0][1] & signs[1][0])
    sure = (signs[0][0] & signs[1][0]) | (signs[0][1] & signs[1][1])
    self_pairs = np.eye(len(x.low), dtype=bool)[:, :, None]
    return Interval((sure | self_pairs).all(axis=(0, 1))[None].astype(float), (~turned).all(axis=(0, 1))[None] * 1.0)


def _monotone(name: str) -> Callable[[Interval], Interval]:
    return lambda x: x.both(partial(on_cells, name))


_MONOTONE = ("mean", "sum", "min", "max", "len", "count", "exp", "log", "log2", "round", "row_means", "column_max")
_OF_INTERVALS: dict[str, Callable[..., Interval]] = {
    **{name: _monotone(name) for name in (*_MONOTONE, "column_means", "highest", "lowest")},
    "abs": _abs,
    "steps": _steps,
    "rises": lambda x: _above(_steps(x)),
    "falls": lambda x: _above(-_steps(x)),
    "rounds_to": _rounds_to,
    "same_order": _same_order,
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
            entries = [self.value(one) for one in node.elts]
            return Interval(np.array([one.low for one in entries]), np.array([one.high for one in entries]))
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
        return Interval(sure.astype(float), possible.astype(float))

    def joined(self, op: ast.boolop, conditions: Iterable[Interval]) -> Interval:
        chosen = np.minimum if isinstance(op, ast.And) else np.maximum
        lows, highs = zip(*((one.low, one.high) for one in conditions), strict=True)
        return Interval(reduce(chosen, lows), reduce(chosen, highs))

    def opposite(self, condition: Interval) -> Interval:
        return Interval(1 - condition.high, 1 - condition.low)


def interval_of(tree: ast.expr, given: Mapping[str, Interval]) -> Interval:
    """The interval of a formula; NoValue where it has none. given: (rows, columns) by name."""
    with np.errstate(all="ignore"):
        found: Interval = _OfIntervals(given, {}, None).value(tree)
    if not (np.isfinite(found.low).all() and np.isfinite(found.high).all()):
        raise NoValue("it divides by 0, or is too large")
    return found
