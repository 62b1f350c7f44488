"""Formulas of experiment files: a number, or a list, computed from lists that a record holds.

    mean(part(y, 1/2, 1)) / mean(part(y, 0, 1/2))     the second half of a list against its first half
    y[x >= 2/3 * n] - base                            entries whose x is large, less a number
    first(y >= 0.95 * y[-1]) / len(y)                 where a list first reaches 95 % of its last entry
    mean(m[row(m) % b == 1 and column(m) > row(m)])   some entries of a matrix
    min([count(y), 3])                                a list that is written out

Arithmetic works entry by entry, and so do comparisons and `and`, `or`, `not`, which choose entries in brackets. Entries
count from 0; `y[-1]` is the last, `y[1:-1]` are all but the first and the last. Entries that a record holds as null
count for none of the functions. A list of matrices has rows too, those of each of them. `FUNCTIONS` has all functions.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from pydantic import BaseModel, model_validator

from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.calls import MetricPath
from hybridlab.runs.record import Record
from hybridlab.statistics import Pearson, moving_average, pearson, rank_correlation

Values = Any
"""A number or a numpy array, with NaN for null."""


class NoValue(Exception):
    """A formula has no value for these lists, or a claim cannot be tested on what was measured and stays open; the text
    says why."""


# ---- functions ----


def _known(x: Values) -> np.ndarray:
    """The entries that are not null, in one list; NoValue if there is none."""
    entries = np.asarray(x, dtype=np.float64).ravel()
    entries = entries[~np.isnan(entries)]
    if not len(entries):
        raise NoValue("nothing is selected")
    return entries


def _part(x: Values, begin: float, end: float) -> np.ndarray:
    """The entries of a list of n, or the rows of a matrix, from the share `begin` of n to the share `end`: entry i
    where begin · n ≤ i < end · n."""
    first, last = (int(np.ceil(share * len(x) - 1e-9)) for share in (begin, end))
    chosen: np.ndarray = x[first:last]
    return chosen


def _highest(m: Values) -> np.ndarray:
    """The highest known entry of each row of a matrix, null for a row without any."""
    highest: np.ndarray = np.fmax.reduce(m, axis=-1)
    return highest


def _row_means(m: Values) -> np.ndarray:
    """The mean of the known entries of each row of a matrix, null for a row without any."""
    valid = ~np.isnan(m)
    means: np.ndarray = np.where(valid, m, 0.0).sum(axis=-1) / np.where(valid.any(axis=-1), valid.sum(axis=-1), np.nan)
    return means


def _row_variances(m: Values) -> np.ndarray:
    """The variance (divided by n) of the known entries of each row of a matrix, null for a row without any."""
    means = _row_means(m)
    return _row_means((m - means[..., None]) ** 2)


def _smooth(y: Values, width: float) -> np.ndarray:
    """The moving average over so many entries, of a list or of each row of a matrix."""
    return np.apply_along_axis(lambda row: moving_average(row.tolist(), _whole(width)), -1, y)


def _spaced(n: float, count: float) -> np.ndarray:
    """`count` of the numbers 0, 1, … n − 1, evenly spaced, or all of them if there are fewer."""
    return np.unique(np.rint(np.linspace(0, n - 1, _whole(count))))


def _closest(x: Values, wanted: Values) -> np.ndarray:
    """For each wanted value the number of the entry of a list that is closest to it."""
    return np.array([np.nanargmin(np.abs(x - value)) for value in np.atleast_1d(wanted)])


def _firsts(m: Values) -> np.ndarray:
    """For each row of a matrix the number of its first entry that is true, null for a row without any."""
    true = np.asarray(m, dtype=bool)
    return np.where(true.any(axis=-1), true.argmax(axis=-1), np.nan)


def _evenness(m: Values) -> np.ndarray:
    """Of each row of a matrix, as positive amounts, the entropy of their shares over that of equal ones."""
    share = m / m.sum(axis=-1, keepdims=True)
    entropies: np.ndarray = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(axis=-1)
    return entropies / np.log(m.shape[-1])


def _first(x: Values) -> float:
    """The number of the first entry that is true."""
    true = np.flatnonzero(x)
    if not len(true):
        raise NoValue("no entry is as required")
    return float(true[0])


def _only_if(x: Values, so: Values) -> Values:
    """A value where a condition is so in every entry; NoValue where it is not."""
    if not np.all(so):
        raise NoValue("a condition of the measure is not met")
    return x


def _of_largest(x: Values, share: float) -> float:
    """The part of a list's sum that belongs to its largest entries, `share` of them by number; `share` itself where the
    sum is 0, as it would be of equal entries."""
    entries = np.sort(_known(x))[::-1]
    total = float(entries.sum())
    return float(entries[: max(1, round(share * len(entries)))].sum()) / total if total else share


def _choice(x: Values, chosen: Values) -> float:
    """How well some entries are chosen, within each row of a matrix: from 0, the mean sum of as many random ones, to 1,
    the sum of the largest."""
    rows, which = np.atleast_2d(x), np.atleast_2d(np.asarray(chosen, dtype=bool))
    counts = which.sum(axis=1)
    chance = float((rows.mean(axis=1) * counts).sum())
    most = sum(float(np.sort(row)[::-1][:count].sum()) for row, count in zip(rows, counts, strict=True))
    if most - chance < 1e-12:
        raise NoValue("every choice has the same sum")
    return (float(rows[which].sum()) - chance) / (most - chance)


def _steps(x: Values) -> np.ndarray:
    """Each entry less the one before, without what is left of binary fractions."""
    return np.round(np.diff(x), 9)


def _same_order(x: Values, y: Values) -> np.ndarray:
    """Whether no two entries of a list stand the other way round than in the other list; equal ones contradict no
    order. Of matrices for each column."""
    steps = [np.sign(np.asarray(entries)[:, None] - np.asarray(entries)[None]) for entries in (x, y)]
    agree: np.ndarray = (steps[0] * steps[1] >= 0).all(axis=(0, 1))
    return agree


def _rounds_to(x: Values, stated: Values, digits: float) -> Values:
    """Whether numbers are others, to so many digits; a tie rounds to either side."""
    return np.abs(x - stated) <= 0.5 * 10**-digits + 1e-9


def _rank_correlation(x: Values, y: Values) -> float:
    """Spearman's rank correlation of two lists, without the pairs in which one is null."""
    if x.shape != y.shape:
        raise NoValue(f"one table is of {x.shape}, the other one of {y.shape}")
    valid = ~(np.isnan(x) | np.isnan(y))
    if not valid.any():
        raise NoValue("nothing is selected")
    value = rank_correlation(x[valid].tolist(), y[valid].tolist())
    if value is None:
        raise NoValue("all entries of a list are the same")
    return value


def _rank_correlations(m: Values, n: Values) -> np.ndarray:
    """Spearman's rank correlation of each row of a matrix with that of another one; null where there is none."""

    def of(row: np.ndarray, other_row: np.ndarray) -> float:
        try:
            return _rank_correlation(row, other_row)
        except NoValue:
            return np.nan

    return np.array([of(row, other_row) for row, other_row in zip(m, n, strict=True)])


def _pearson(x: Values, y: Values) -> Pearson:
    """Pearson's r and its p-value, without the pairs in which one entry is null."""
    valid = ~(np.isnan(x) | np.isnan(y))
    correlation = pearson(x[valid].tolist(), y[valid].tolist())
    if correlation.r is None:
        raise NoValue("a correlation needs three pairs, and lists whose entries differ")
    return correlation


def _slope(y: Values, x: Values) -> float:
    """By how much a list rises where another one rises by 1: the slope of the line of least squares through the pairs
    in which neither is null."""
    if np.shape(y) != np.shape(x):
        raise NoValue(f"a slope needs as many entries of both, not {np.shape(y)} and {np.shape(x)}")
    valid = ~(np.isnan(x) | np.isnan(y))
    apart = x[valid] - x[valid].mean() if valid.any() else np.zeros(0)
    if not apart.any():
        raise NoValue("a slope needs two places that differ")
    return float(np.sum(apart * y[valid]) / np.sum(apart**2))


def _explained(x: Values, groups: Values) -> float:
    """The share of a list's variance that lies between groups of its entries (η² of one factor), 0 to 1."""
    valid = ~np.isnan(x)
    entries, labels = x[valid], groups[valid]
    total = float(np.sum((entries - np.mean(entries)) ** 2)) if len(entries) else 0.0
    if not total:
        raise NoValue("all entries of a list are the same")
    if len(set(labels)) == len(labels):
        raise NoValue("every group has a single entry")
    inside = sum(float(np.sum((entries[labels == name] - entries[labels == name].mean()) ** 2)) for name in set(labels))
    return 1 - inside / total


FUNCTIONS: dict[str, tuple[int, Callable[..., Values], str]] = {
    "mean": (1, lambda x: _known(x).mean(), "mean of all entries"),
    "sum": (1, lambda x: _known(x).sum(), "sum of all entries"),
    "sd": (1, lambda x: _known(x).std(), "standard deviation of all entries (divided by n)"),
    "min": (1, lambda x: _known(x).min(), "lowest entry"),
    "max": (1, lambda x: _known(x).max(), "highest entry"),
    "abs": (1, np.abs, "sizes without signs"),
    "exp": (1, np.exp, "e to the power of each"),
    "log": (1, np.log, "natural logarithms"),
    "log2": (1, np.log2, "logarithms to the base 2"),
    "len": (1, lambda x: float(len(x)), "number of entries"),
    "argmax": (1, lambda x: float(np.nanargmax(x)), "number of the highest entry"),
    "argmin": (1, lambda x: float(np.nanargmin(x)), "number of the lowest entry"),
    "first": (1, _first, "number of the first entry that is true"),
    "count": (1, lambda x: float(np.sum(x)), "number of entries that are true"),
    "rises": (1, lambda x: _steps(x) > 0, "whether each entry is above the one before"),
    "falls": (1, lambda x: _steps(x) < 0, "whether each entry is below the one before"),
    "steps": (1, lambda x: _steps(x), "each entry less the one before"),
    "round": (1, np.rint, "nearest whole numbers"),
    "rounds_to": (3, _rounds_to, "whether numbers are others to so many digits: rounds_to(x, 0.57, 2)"),
    "index": (1, lambda x: np.arange(len(x)), "the numbers 0, 1, … of the entries"),
    "row": (1, lambda m: np.indices(m.shape)[0], "for each entry of a matrix the number of its row"),
    "column": (1, lambda m: np.indices(m.shape)[1], "for each entry of a matrix the number of its column"),
    "part": (3, _part, "the entries from one share of the list to another: part(y, 1/2, 1)"),
    "fold": (
        2,
        lambda x, width: np.reshape(x, (-1, _whole(width))),
        "a list as a matrix with rows of so many entries: fold(y, b)",
    ),
    "highest": (1, _highest, "the highest entry of each row of a matrix"),
    "lowest": (1, lambda m: -_highest(-m), "the lowest entry of each row of a matrix"),
    "row_means": (1, _row_means, "the mean of each row of a matrix"),
    "column_means": (1, lambda m: _row_means(m.T), "the mean of each column of a matrix"),
    "row_variances": (1, _row_variances, "the variance of each row of a matrix (divided by n)"),
    "turned": (
        1,
        lambda m: np.moveaxis(m, 0, -1),
        "a matrix with its columns as rows; of more axes the first becomes the last",
    ),
    "smooth": (2, _smooth, "a moving average: smooth(y, 5)"),
    "spaced": (2, _spaced, "so many of the numbers 0, 1, … n − 1, evenly spaced: spaced(len(y), 4)"),
    "closest": (2, _closest, "for each wanted value the number of the closest entry: closest(x, 0.5 * x[-1])"),
    "firsts": (1, _firsts, "for each row of a matrix the number of its first entry that is true"),
    "evenness": (1, _evenness, "of each row of a matrix the entropy of its shares, 1 where all are equal"),
    "flat": (1, np.ravel, "all entries of a matrix as one list"),
    "order": (
        1,
        lambda x: np.argsort(x, kind="stable"),
        "the numbers of the entries, from the lowest to the highest: y[order(x)]",
    ),
    "lowest_so_far": (1, np.minimum.accumulate, "for each entry the lowest of those up to it"),
    "filled": (2, lambda x, y: np.where(np.isnan(x), y, x), "entries with a number instead of null"),
    "only_if": (2, _only_if, "a value, where a condition is so: only_if(x, count(y) > 0)"),
    "of_largest": (2, _of_largest, "the part of a sum that its largest entries hold, so large a share of them"),
    "choice": (2, _choice, "how well entries are chosen in each row, from 0, by chance, to 1, the largest"),
    "column_max": (1, lambda m: _highest(m.T), "the highest entry of each column of a matrix"),
    "same_order": (2, _same_order, "whether two lists have one order: same_order(x, y); of matrices for each column"),
    "rank_correlation": (2, _rank_correlation, "Spearman's, of two lists"),
    "rank_correlations": (2, _rank_correlations, "Spearman's, of each row of two matrices"),
    "correlation": (2, lambda x, y: float(_pearson(x, y).r or 0.0), "Pearson's, of two lists"),
    "correlation_p": (2, lambda x, y: float(_pearson(x, y).p or 0.0), "the two-sided p-value of that"),
    "slope": (2, _slope, "by how much a list rises where another one rises by 1: slope(y, log2(x))"),
    "explained": (2, _explained, "share of a list's variance that lies between groups: explained(y, index(y) % 4)"),
}
"""Name → number of arguments, the function, what it gives."""

BY_ENTRY = {"abs", "exp", "log", "log2", "round", "rounds_to"}
"""Functions that give a number for each entry of a list; the others take the list as a whole."""
SAME_UNIT = {"mean", "sum", "sd", "min", "max", "abs", "flat", "filled", "part"}
"""Functions whose numbers are in the unit of the list."""
PLACES = {"argmax", "argmin", "first"}
"""Functions that give the place of an entry, which can be the same in lists that differ."""
BY_ROW = {"row_means", "row_variances", "highest", "lowest"}
BY_COLUMN = {"column_means", "column_max", "same_order"}
"""Functions that give a number for each row, or for each column, of a matrix."""
BY_STEP = {"rises", "falls", "steps"}
"""Functions that give a number for each entry of a list but the first."""
OF_ALL = {"mean", "sum", "sd", "min", "max", "len", "count", "argmax", "argmin", "first"}
OF_ALL |= {"rank_correlation", "correlation", "correlation_p", "slope"}
"""Functions that give one number of all entries."""
CONDITIONS = {"rises", "falls", "rounds_to", "same_order"}
"""Functions that give whether something is so."""
Functions = Mapping[str, Callable[..., Values]]
_FUNCTIONS: Functions = {name: entry[1] for name, entry in FUNCTIONS.items()}
_ARITHMETIC: dict[type[ast.operator], Callable[..., Values]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISONS: dict[type[ast.cmpop], Callable[..., Values]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


_ALLOWED = {ast.Name, ast.List, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Subscript, ast.Slice, ast.Tuple}
_ALLOWED |= {ast.USub, ast.Not, ast.And, ast.Or, ast.Load, *_ARITHMETIC, *COMPARISONS}


# ---- reading and computing ----

MOST_LEVELS = 60
"""So deep a formula can be nested; the functions that read it call themselves for each level."""


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """The formula as a tree; ValueError with one sentence for what is no formula."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        check_depth(tree)
    except SyntaxError as error:
        raise ValueError(f"formula {text!r}: {error.msg}, at character {error.offset}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"formula {text[:150]!r}: it is nested too deeply; write a shorter one") from None
    if wrong := problem(tree):
        raise ValueError(f"formula {text!r}: {wrong}")
    return tree


def check_depth(tree: ast.expr) -> None:
    """RecursionError for a tree that is nested too deeply."""
    level: list[ast.AST] = [tree]
    for _ in range(MOST_LEVELS):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if not level:
            return
    raise RecursionError


def problem(tree: ast.expr, more: Mapping[str, int] | None = None) -> str | None:
    """What is wrong with a tree, as a part of a sentence; None if it may stand in a formula. more: further functions
    with the number of their arguments."""
    arities = {name: entry[0] for name, entry in FUNCTIONS.items()} | dict(more or {})
    for node in ast.walk(tree):
        if type(node) not in _ALLOWED and (wrong := _problem(node, arities)):
            return wrong
    return None


def _problem(node: ast.AST, arities: Mapping[str, int]) -> str | None:
    """What is wrong with a node that is not always allowed; None if it may be in a formula. arities: function → number
    of arguments."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in arities:
            return f"there is no function {name!r}; {nearest(name, list(arities))}"
        count = arities[name]
        if len(node.args) != count or node.keywords:
            return f"{name} takes {count} argument{'s' * (count > 1)}"
        return None
    if isinstance(node, ast.Constant):
        return None if type(node.value) in (int, float) else f"{node.value!r} is no number"
    return f"{type(node).__name__} is not for formulas; use + - * / // % **, comparisons, and, or, not, [ ]"


@lru_cache(maxsize=4096)
def names_in(tree: ast.expr) -> tuple[str, ...]:
    """The names of lists and numbers in a formula, without those of functions."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return tuple(dict.fromkeys([n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called]))


def arguments_of(tree: ast.expr, *names: str) -> list[ast.expr]:
    """The arguments of a call of one of these functions; none for anything else."""
    return tree.args if isinstance(tree, ast.Call) and ast.unparse(tree.func) in names else []


def computed(
    tree: ast.expr, values: Mapping[str, Values], functions: Functions = _FUNCTIONS, decimals: int | None = None
) -> np.ndarray:
    """The value of a formula: () for a number, else the shape of a list or matrix. values: name → number or array.
    functions: those of FUNCTIONS, in a form that fits the arrays. decimals: those of a difference that comparisons
    count, so that the noise of binary fractions is none; by default all.

    NoValue where there is none, such as an entry beyond a list's end, or 0 / 0.
    """
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(Computing(values, functions, decimals).value(tree), dtype=np.float64)
    except OverflowError:
        raise NoValue(f"{ast.unparse(tree)} is too large for a number") from None
    except (IndexError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise NoValue(f"{ast.unparse(tree)}: {str(error).replace(chr(10), ' ')}") from None
    if not value.ndim and not np.isfinite(value):
        raise NoValue(f"{ast.unparse(tree)} is no number here")
    return value


@dataclass(frozen=True)
class Computing:
    """given: name → number or array. functions: name → function. decimals: see `computed`."""

    given: Mapping[str, Values]
    functions: Functions
    decimals: int | None

    def value(self, node: ast.AST) -> Values:
        """The value of a part of a formula."""
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int | float), "parsed() has checked it"
            return float(node.value)
        if isinstance(node, ast.Name):
            return self.given[node.id]
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name), "parsed() has checked it"
            return self.functions[node.func.id](*map(self.value, node.args))
        if isinstance(node, ast.BinOp):
            return _ARITHMETIC[type(node.op)](self.value(node.left), self.value(node.right))
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand)
            return self.opposite(inner) if isinstance(node.op, ast.Not) else -inner
        if isinstance(node, ast.Compare):
            pairs = itertools.pairwise(map(self.value, (node.left, *node.comparators)))
            return self.joined(ast.And(), map(self.compared, node.ops, pairs))
        if isinstance(node, ast.BoolOp):
            return self.joined(node.op, map(self.value, node.values))
        if isinstance(node, ast.List):
            return np.array([self.value(entry) for entry in node.elts])
        if isinstance(node, ast.Subscript):
            return self.value(node.value)[self.entries(node.slice)]
        raise AssertionError(f"parsed() lets no {type(node).__name__} through")

    def compared(self, op: ast.cmpop, pair: tuple[Values, Values]) -> Values:
        """Whether a comparison of two values is so."""
        if self.decimals is not None:
            pair = np.round(np.subtract(*pair, dtype=np.float64), self.decimals), 0.0
        return COMPARISONS[type(op)](*pair)

    def joined(self, op: ast.boolop, conditions: Iterable[Values]) -> Values:
        """Whether all conditions are so, or one of them."""
        return reduce(np.logical_and if isinstance(op, ast.And) else np.logical_or, conditions)

    def opposite(self, condition: Values) -> Values:
        """Whether a condition is not so."""
        return np.logical_not(condition)

    def entries(self, node: ast.AST) -> Any:
        """What stands in brackets: a number, a slice, a choice of entries, or one of these for rows and for columns."""
        if isinstance(node, ast.Tuple):
            return tuple(self.entries(axis) for axis in node.elts)
        if isinstance(node, ast.Slice):
            bounds = (node.lower, node.upper, node.step)
            return slice(*(None if bound is None else _whole(self.value(bound)) for bound in bounds))
        chosen = self.value(node)
        return chosen if isinstance(chosen, np.ndarray) and chosen.dtype == bool else _whole(chosen)


def _whole(value: Values) -> Any:
    """A number, or an array of them, as whole numbers; ValueError for 1.5."""
    rounded = np.rint(value).astype(np.int64)
    if np.any(rounded != value):
        raise ValueError(f"{value} is no whole number of an entry")
    return int(rounded) if not rounded.ndim else rounded


# ---- measures: what a formula computes from a record, under a name of its own ----
#
#     measures:
#       late-overlap:
#         title: top-5 overlap of the second half of the layers
#         of: {y: results.probes.tuned-lens.overlap}
#         formula: mean(part(y[1:-1], 1/2, 1))
#
# A claim then writes `metric: late-overlap`, in the place of a dotted path.


class Measure(Strict):
    """of: the formula's names, each a dotted path into a record, or another measure of the file. `{name}` in a path
    stands for the whole number of a name above it. Of several paths the first one counts that the record has. title:
    what is computed, for evidence and axes."""

    title: str
    of: dict[str, MetricPath | list[MetricPath]]
    formula: str
    unit: str = ""

    @model_validator(mode="after")
    def _formula_fits(self) -> Measure:
        used = names_in(parsed(self.formula))
        if unknown := [name for name in used if name not in self.of]:
            hint = nearest(unknown[0], list(self.of), None if self.of else "it has none")
            raise ValueError(f"formula {self.formula!r} uses {unknown[0]!r}, which `of` does not have; {hint}")
        for i, (name, paths) in enumerate(self.of.items()):
            above = {other: 0 for other in list(self.of)[:i]}
            for path in [paths] if isinstance(paths, str) else paths:
                try:
                    path.format_map(above)
                except (KeyError, ValueError, IndexError, AttributeError, TypeError):
                    raise ValueError(f"{name}: {path}: write `{{name}}` with a name that stands above it") from None
            if name not in used and not any(f"{{{name}}}" in str(other) for other in self.of.values()):
                raise ValueError(f"{name} is not in the formula {self.formula!r}; leave it out")
        return self

    def paths(self) -> list[tuple[str, str]]:
        """(name, path) of all paths."""
        return [(name, path) for name, spec in self.of.items() for path in ([spec] if isinstance(spec, str) else spec)]


Measures = Mapping[str, Measure]
EACH = "*"
"""In a path, all entries of a table by name, or of a list, in their order: `results.at.*.validation.loss`."""


class NotMeasured(NoValue):
    """The record has nothing at a path, or runs are missing: the verdict on a claim that needs them is `not run`."""


def values_of(record: Record, metric: str, measures: Measures) -> np.ndarray:
    """What a metric is in a record: () for a number, else a list or a matrix, with NaN for null. metric: a measure's
    name, or a dotted path. NotMeasured if the record lacks it, NoValue if it cannot be computed."""
    if metric not in measures:
        return _at(record, metric)
    measure = measures[metric]
    values: dict[str, np.ndarray] = {}
    for name, paths in measure.of.items():
        values[name] = _first_of(record, [paths] if isinstance(paths, str) else paths, values, measures)
    return computed(parsed(measure.formula), values)


def number_of(record: Record, metric: str, measures: Measures) -> float:
    """The number that a metric is in a record; see `values_of`. UserError for a list."""
    value = values_of(record, metric, measures)
    if value.ndim:
        raise UserError(f"{metric} is a list of {len(value)}, not a number; reduce it, as in `formula: mean(y)`")
    return float(value)


def _first_of(record: Record, paths: list[str], values: Mapping[str, np.ndarray], measures: Measures) -> np.ndarray:
    numbers = {name: int(value) for name, value in values.items() if not value.ndim}
    *before, last = (path.format_map(numbers) for path in paths)
    for path in before:
        with suppress(NotMeasured):
            return values_of(record, path, measures)
    return values_of(record, last, measures)


def _at(record: Record, path: str) -> np.ndarray:
    """What stands at a dotted path. A mean with its error counts as the mean."""
    value = _under(record, path.split("."), path)
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{path} is neither a number nor a list of numbers") from None


def _under(data: Any, parts: list[str], path: str) -> Any:
    """What stands at the `parts` of a path below a part of a record."""
    for i, part in enumerate(parts):
        if part == EACH and isinstance(data, dict | list) and data:
            entries = data.values() if isinstance(data, dict) else data
            return [_under(entry, parts[i + 1 :], path) for entry in entries]
        if isinstance(data, dict) and part not in data and "skipped" in data:
            raise NoValue(str(data["skipped"]))
        data = data.get(part) if isinstance(data, dict) else getattr(data, part, None)
    if isinstance(data, BaseModel):
        data = data.model_dump()
    if isinstance(data, dict) and {"value", "n"} <= data.keys():
        data = data["value"]  # of a measurement
    if data is None:
        raise NotMeasured(f"not measured: {path}")
    return data


def reads_results(metric: str, measures: Measures) -> bool:
    """Whether a metric is, or is made of, results of a run, and not only what its training logged and left behind."""
    if metric not in measures:
        return metric.startswith("results.")
    return any(reads_results(path, measures) for _, path in measures[metric].paths())


def entries_read(metric: str, measures: Measures) -> set[str]:
    """The dotted paths whose entries a metric is made of, without those of which only the length counts."""
    if metric not in measures:
        return {metric}
    measure = measures[metric]
    tree = parsed(measure.formula)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "len"]
    lengths = [name for call in calls for name in names_in(call)]
    counts = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    used = [path for name, path in measure.paths() if counts[name] > lengths.count(name)]
    return set().union(*(entries_read(path, measures) for path in used))


def measure_problem(name: str, measures: Measures) -> str | None:
    """A measure that needs itself, as a sentence; None if none does."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(name, ())]
    while waiting:
        measure, chain = waiting.pop()
        if measure in chain:
            return f"the measures {' → '.join((*chain, measure))} need each other"
        waiting += [(path, (*chain, measure)) for _, path in measures[measure].paths() if path in measures]
    return None
