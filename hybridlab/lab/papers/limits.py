"""Between which numbers a metric, a measure or an expression must lie, whatever was trained: a loss is never below 0,
an accuracy between 0 and 1. It follows from what the number is, never from the data; see `constant_p` of statistics.py.

    limits_of("results.tasks.assignment.all", measures)     # (0.0, 1.0)

Where nothing is known of a side it is ±inf. What is computed of several numbers has the limits of interval arithmetic,
which may be too wide and are never too narrow.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from hybridlab.lab.papers.formula import PLACES, Measures, parsed
from hybridlab.statistics import NO_LIMITS, Limits

SHARE: Limits = (0.0, 1.0)
CORRELATION: Limits = (-1.0, 1.0)
POSITIVE: Limits = (0.0, math.inf)
PATHS: dict[str, Limits] = {
    # A cross-entropy, also of the answers of a task; what an ablation adds to one is a difference.
    **dict.fromkeys(("*.loss", "*.loss.*", "*.kl", "*.bits_per_byte"), POSITIVE),
    **dict.fromkeys(("*.perplexity", "*.pseudo_perplexity"), (1.0, math.inf)),
    **dict.fromkeys(("*.accuracy", "*.accuracy.*", "*.choices_mean", "*.chance", "*.chance.*"), SHARE),
    **dict.fromkeys((f"results.*tasks.*.{part}" for part in ("all", "inside", "relayed", "outside", "far")), SHARE),
    **dict.fromkeys(("*.overlap", "controller.masks", "controller.target", "*expected_sparsity", "*.dynamic"), SHARE),
    **dict.fromkeys(("controller.threshold_sparsity", "*.tasks.*.local", "*.loops.local_mass.values"), SHARE),
    **dict.fromkeys(("*.cosine", "*_correlation", "*.correlation.*.r"), CORRELATION),
    **dict.fromkeys(("*.entropy", "*.entropies", "*.entropy.heads", "*.entropy.layer_means"), POSITIVE),
    **dict.fromkeys(("*.entropy.values", "*.head_entropy", "*.range", "*.head_range", "*.relative"), POSITIVE),
    **dict.fromkeys(("*.changes", "*.depth-score.effects", "*.starts", "*.violations"), POSITIVE),
    **dict.fromkeys(("seconds", "steps", "tokens", "flops", "parameters.*", "history.flops", "history.step"), POSITIVE),
    **dict.fromkeys(("config.shape.layers", "config.shape.vocab", "*.blocks.block"), (1.0, math.inf)),
}
"""Path of a record, * for any part of it → its limits; the first that fits counts. Any other may be any number."""


def limits_of(metric: str, measures: Measures) -> Limits:
    """The limits of a measure, of each number of one that is a list, or of what stands at a dotted path."""
    if metric not in measures:
        return next((limits for path, limits in PATHS.items() if fnmatchcase(metric, path)), NO_LIMITS)
    measure = measures[metric]
    inputs = {
        name: _hull(limits_of(path, measures) for path in ([paths] if isinstance(paths, str) else paths))
        for name, paths in measure.of.items()
    }
    return limits_in(parsed(measure.formula), inputs)


def limits_in(tree: ast.AST, inputs: Mapping[str, Limits], lengths: Mapping[str, int] | None = None) -> Limits:
    """The limits of what a formula computes. inputs: name → those of the number, or of each entry of the list. lengths:
    of lists whose length is known."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return float(tree.value), float(tree.value)
    if isinstance(tree, ast.Name):
        return inputs.get(tree.id, NO_LIMITS)
    if isinstance(tree, ast.Subscript):
        return limits_in(tree.value, inputs, lengths)
    if isinstance(tree, ast.List):
        return _hull(limits_in(entry, inputs, lengths) for entry in tree.elts)
    if isinstance(tree, ast.Compare | ast.BoolOp) or isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return SHARE
    if isinstance(tree, ast.UnaryOp):
        low, high = limits_in(tree.operand, inputs, lengths)
        return -high, -low
    if isinstance(tree, ast.BinOp):
        return _arithmetic(tree.op, limits_in(tree.left, inputs, lengths), limits_in(tree.right, inputs, lengths))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        if tree.func.id in PLACES and ast.unparse(tree.args[0]) in (lengths or {}):
            return 0.0, float((lengths or {})[ast.unparse(tree.args[0])] - 1)
        return _called(tree.func.id, [limits_in(argument, inputs, lengths) for argument in tree.args])
    return NO_LIMITS


def _arithmetic(op: ast.operator, left: Limits, right: Limits) -> Limits:
    if isinstance(op, ast.Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(op, ast.Sub):
        return left[0] - right[1], left[1] - right[0]
    if isinstance(op, ast.Mult):
        return _hull((product, product) for product in map(_product, itertools.product(left, right)))
    if isinstance(op, ast.Mod):
        return (0.0, right[1]) if right[0] >= 0 else NO_LIMITS
    # By 0 there is no quotient, so that a divisor that is never negative is above 0.
    if isinstance(op, ast.Div) and right[0] >= 0 and right[1]:
        inverse = (0.0 if right[1] == math.inf else 1 / right[1], 1 / right[0] if right[0] else math.inf)
        return _arithmetic(ast.Mult(), left, inverse)
    return NO_LIMITS


def _product(pair: tuple[float, float]) -> float:
    """0 times a limit that is not known is 0, since every number within the limits is finite."""
    return 0.0 if 0.0 in pair else pair[0] * pair[1]


def _hull(parts: Iterable[Limits]) -> Limits:
    lows, highs = zip(*parts, strict=True)
    return min(lows), max(highs)


_OF_THE_LIST = {"mean", "min", "max", "part", "fold", "highest", "lowest", "row_means", "column_means", "column_max"}
_OF_THE_LIST |= {"turned", "smooth", "flat", "lowest_so_far", "only_if"}
"""Functions whose numbers lie between those of the first list."""
_COUNTS = {*PLACES, "len", "firsts", "count", "index", "row", "column", "spaced", "closest", "order"}
_SHARES = {"rises", "falls", "rounds_to", "same_order", "evenness", "correlation_p", "explained"}
_CORRELATIONS = {"rank_correlation", "rank_correlations", "correlation"}
_FIXED = {**dict.fromkeys(_COUNTS, POSITIVE), **dict.fromkeys(_SHARES, SHARE)}
_FIXED |= {**dict.fromkeys(_CORRELATIONS, CORRELATION), "choice": (-math.inf, 1.0)}


def _called(name: str, arguments: list[Limits]) -> Limits:
    """The limits of a function of formula.py; none for one that is not known here."""
    if name in _FIXED:
        return _FIXED[name]
    low, high = arguments[0]
    if name in _OF_THE_LIST:
        return low, high
    if name == "filled":
        return _hull(arguments)
    if name == "exp":
        return math.exp(low) if low < 700 else math.inf, math.exp(high) if high < 700 else math.inf
    if name == "abs":
        return (0.0, max(-low, high)) if low < 0 < high else (min(abs(low), abs(high)), max(abs(low), abs(high)))
    if name == "sum":
        return (0.0 if low >= 0 else -math.inf), (0.0 if high <= 0 else math.inf)
    if name == "sd":
        return 0.0, (high - low) / 2
    if name == "steps":
        return low - high, high - low
    return NO_LIMITS
