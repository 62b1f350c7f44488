"""Intervals of printed numbers, and of what is computed from them.

A printed 36.41 stands for any number from 36.405 to 36.415. What is computed from printed numbers has the interval of
all that such numbers can give, or a wider one where a number stands twice in a formula. So two intervals that do not
meet cannot come from correctly rounded numbers.

Conditions are intervals too: from 1, where all numbers in the intervals make them true, to 0, where none does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from hybridlab.papers.claims.numbers import on_cells
from hybridlab.papers.formula import Computing, NoValue

NOISE = 1e-9
"""What is left of binary fractions counts as nothing."""


@dataclass(frozen=True, eq=False)
class Interval:
    """low, high: arrays of one shape, the lowest and the highest that each entry can be."""

    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(value: Any) -> Interval:
        """A value as an interval; a plain number, or an array of them, has no width."""
        if isinstance(value, Interval):
            return value
        number = np.atleast_2d(np.asarray(value, dtype=np.float64))
        return Interval(number, number)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Any) -> Interval:
        one = Interval.of(other)
        return Interval(self.low + one.low, self.high + one.high)

    def __sub__(self, other: Any) -> Interval:
        return self + -Interval.of(other)

    def __mul__(self, other: Any) -> Interval:
        one = Interval.of(other)
        corners = np.array(np.broadcast_arrays(*(a * b for a in (self.low, self.high) for b in (one.low, one.high))))
        return Interval(corners.min(axis=0), corners.max(axis=0))

    def __truediv__(self, other: Any) -> Interval:
        one = Interval.of(other)
        if np.any((one.low <= 0) & (one.high >= 0)):
            raise NoValue("what it is divided by can be 0")
        return self * Interval(1 / one.high, 1 / one.low)

    def __pow__(self, other: Any) -> Interval:
        one = Interval.of(other)
        if np.any(self.low <= 0):
            raise NoValue("powers of what can be 0 or less have no interval here")
        corners = np.array([a**b for a in (self.low, self.high) for b in (one.low, one.high)])
        return Interval(corners.min(axis=0), corners.max(axis=0))

    def __radd__(self, other: Any) -> Interval:
        return self + other

    def __rsub__(self, other: Any) -> Interval:
        return Interval.of(other) - self

    def __rmul__(self, other: Any) -> Interval:
        return self * other

    def __rtruediv__(self, other: Any) -> Interval:
        return Interval.of(other) / self

    def __rpow__(self, other: Any) -> Interval:
        return Interval.of(other) ** self

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
    asked = Interval.of(stated) if np.any(stated.low < stated.high) else rounded(stated.low, digits.low)
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
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name), "it was checked when it was read"
            if (function := _OF_INTERVALS.get(node.func.id)) is None:
                raise NoValue(f"{node.func.id} has no interval")
            return function(*(Interval.of(one) for one in map(self.value, node.args)))
        if isinstance(node, ast.Compare):
            sides = [Interval.of(self.value(one)) for one in (node.left, *node.comparators)]
            pairs = zip(sides, sides[1:], strict=False)
            return reduce(_and, (_compared(type(op), *pair) for op, pair in zip(node.ops, pairs, strict=True)))
        if isinstance(node, ast.BoolOp):
            return reduce(_and if isinstance(node.op, ast.And) else _or, map(self.value, node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = Interval.of(self.value(node.operand))
            return Interval(1 - inner.high, 1 - inner.low)
        return super().value(node)


def _and(one: Interval, other: Interval) -> Interval:
    return Interval(np.minimum(one.low, other.low), np.minimum(one.high, other.high))


def _or(one: Interval, other: Interval) -> Interval:
    return Interval(np.maximum(one.low, other.low), np.maximum(one.high, other.high))


def _compared(op: type[ast.cmpop], left: Interval, right: Interval) -> Interval:
    """Whether a comparison is so: of numbers that surely, and of numbers that possibly make it true."""
    if op in (ast.Gt, ast.GtE):
        left, right = right, left
    if op in (ast.Lt, ast.Gt):
        sure, possible = left.high < right.low - NOISE, left.low < right.high - NOISE
    elif op in (ast.LtE, ast.GtE):
        sure, possible = left.high <= right.low + NOISE, left.low <= right.high + NOISE
    else:
        possible = left.meets(right)
        sure = possible & (left.high - left.low < NOISE) & (right.high - right.low < NOISE)
        if op is ast.NotEq:
            sure, possible = ~possible, ~sure
    return Interval(sure.astype(float), possible.astype(float))


def interval_of(tree: ast.expr, given: Mapping[str, Interval]) -> Interval:
    """The interval of a formula; NoValue where it has none. given: (rows, columns) by name."""
    with np.errstate(all="ignore"):
        found = Interval.of(_OfIntervals(given, {}, None).value(tree))
    low, high = np.atleast_2d(found.low), np.atleast_2d(found.high)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise NoValue("it divides by 0, or is too large")
    return Interval(low, high)
