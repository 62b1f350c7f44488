"""What expressions say (expression.py) of the numbers that a paper prints, and of runs."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridlab.errors import UserError
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.expression import LOSS, Asked, Bracket, Expression
from hybridlab.lab.papers.claims.in_words import Part, span
from hybridlab.lab.papers.claims.kinds import Given, claim_kind
from hybridlab.lab.papers.claims.numbers import cells_of
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.formula import (
    BY_ENTRY,
    COMPARISONS,
    PLACES,
    SAME_UNIT,
    NotMeasured,
    NoValue,
    arguments_of,
    computed,
    names_in,
    values_of,
)
from hybridlab.lab.papers.limits import limits_in, limits_of
from hybridlab.runs.record import Record
from hybridlab.statistics import FEWEST_SEEDS, mean_and_error


@claim_kind
def says(on: Given, holds: Expression, reason: str = "") -> Verdict | list[Comparison]:
    """What an expression says. reason: why a margin, or a bound, is as large as it is."""
    if not holds.of_runs:
        return _of_numbers(on, holds)
    return list(_of_runs(on, holds)) if holds.asked else _of_every_run(on, holds)


# ---- printed, stated and computed numbers ----


def _of_numbers(on: Given, expression: Expression) -> Verdict:
    cells = cells_of(on, expression)
    source = "stated" if not cells else "printed" if expression.of_print else "exact"
    said = [Part(part, cells).said() for part in expression.parts]
    return Verdict(all(holds for holds, _ in said), f"{source}: {'; '.join(text for _, text in said)}")


# ---- runs ----

Arrays = Mapping[str, np.ndarray]


def _of_runs(on: Given, expression: Expression) -> Iterator[Comparison]:
    for part in expression.asked:
        inner, lists = _in_functions(part.number), _with_entries(part.number)
        names = set(names_in(part.number))
        used = {name: bracket for name, bracket in expression.brackets.items() if name in names}
        spread = {name: bracket for name, bracket in used.items() if name not in inner}
        for metric in range(_count(bracket.of for bracket in used.values())):
            for arm in range(_count(bracket.parts[0] for bracket in spread.values())):
                read = {
                    name: _Read(
                        bracket.of[min(metric, len(bracket.of) - 1)],
                        bracket.parts[0] if name in inner else (bracket.parts[0][min(arm, len(bracket.parts[0]) - 1)],),
                        name in inner,
                        name in lists,
                    )
                    for name, bracket in used.items()
                }
                yield _compared(on, part, read, expression.called)


def _count(lists: Iterable[tuple[str, ...]]) -> int:
    """How many comparisons lists of names make: as many as the longest has."""
    return max((len(names) for names in lists), default=1)


@dataclass(frozen=True)
class _Read:
    """What a bracket reads in one comparison: a metric of one cell's run, or as a list (whole) those of several cells;
    of one cell what the metric is, if a list is asked for (whole, or listed)."""

    metric: str
    cells: tuple[str, ...]
    whole: bool
    listed: bool

    def value(self, on: Given, runs: Mapping[str, Record]) -> Any:
        if len(self.cells) > 1:
            return np.array([on.number(runs[cell], self.metric) for cell in self.cells])
        read = on.values if self.whole or self.listed else on.number
        return read(runs[self.cells[0]], self.metric)


def _compared(on: Given, part: Asked, read: Mapping[str, _Read], calls: Arrays) -> Comparison:
    cells = list(dict.fromkeys(cell for source in read.values() for cell in source.cells))
    places = _of_places(part.number)

    def number(*records: Record) -> float:
        runs = dict(zip(cells, records, strict=True))
        values = {name: source.value(on, runs) for name, source in read.items()}
        if places and _same_on_both_sides(part.number, values):
            raise NoValue("both sides read the same numbers")
        try:
            value = computed(part.number, {**calls, **values})
        except NoValue as none:
            raise NoValue(_with_cells(on, str(none), read, metric)) from None
        if value.ndim:
            raise UserError(f"{label} is a list of {len(value)}, not a number; reduce it, as in `mean(…)`")
        return float(value)

    metrics = list(dict.fromkeys(source.metric for source in read.values()))
    metric = metrics[0] if len(metrics) == 1 else ""
    title = on.titled(metric) if metric in on.experiment.measures else metric
    unit = on.unit(metric) if metric and _keeps_unit(part.number) else ""
    about, label = {"metric": title, "unit": unit}, _label(on, part.number, read, metric)
    paired = len(cells) > 1 and _is_difference(part.number) and not places
    bounds = {name: limits_of(source.metric, on.experiment.measures) for name, source in read.items()}
    bounds |= {name: (float(value), float(value)) for name, value in calls.items()}
    limits = limits_in(
        part.number, bounds, {name: len(source.cells) for name, source in read.items() if len(source.cells) > 1}
    )
    comparison = on.compared(label, cells, number, part.question, paired=paired, limits=limits, **about)
    if paired and 0 < comparison.n < FEWEST_SEEDS:
        comparison = replace(comparison, note=_over_windows(on, part.number, read, calls, comparison))
    return comparison


def _is_difference(tree: ast.expr) -> bool:
    """Whether a number of two arms is 0 where they are the same: a difference, or the logarithm of a ratio."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in ("log", "log2"):
        return isinstance(tree.args[0], ast.BinOp) and isinstance(tree.args[0].op, ast.Div)
    return isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Sub)


def _keeps_unit(tree: ast.expr) -> bool:
    """Whether a number of a metric has the metric's unit; a ratio, a logarithm, a rank or a place has none."""
    return all(
        node.func.id in SAME_UNIT
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        else not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not names_in(node.right)
        for node in ast.walk(tree)
    )


def _of_places(tree: ast.expr) -> bool:
    """Whether a number is made of places in lists, which are often the same where the lists differ."""
    return any(isinstance(node, ast.Name) and node.id in PLACES for node in ast.walk(tree))


def _same_on_both_sides(tree: ast.expr, values: Arrays) -> bool:
    """Whether the sides of a difference read the same numbers, as two names of the same runs do."""
    if not isinstance(tree, ast.BinOp):
        return False
    ours, theirs = ([values[name] for name in names_in(side) if name in values] for side in (tree.left, tree.right))
    return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))


def _with_entries(tree: ast.expr) -> set[str]:
    """The names of lists of which entries are taken, such as `m[a][2]`."""
    taken = (node.value for node in ast.walk(tree) if isinstance(node, ast.Subscript))
    return {name for node in taken for name in names_in(node)}


def _in_functions(tree: ast.expr) -> set[str]:
    """The names that stand inside of a function which takes a whole list."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in BY_ENTRY:
            names |= {name for argument in node.args for name in names_in(argument)}
    return names


def _label(on: Given, tree: ast.expr, read: Mapping[str, _Read], metric: str) -> str:
    """What is computed, in words: cells instead of brackets, with the metric behind where there is one."""
    text = _with_cells(on, ast.unparse(tree), read, metric).replace(" - ", " − ").replace(" * ", " × ")
    if metric in ("", LOSS):
        return text
    words = _in_words(on, metric)
    return f"{text}: {words}" if isinstance(tree, ast.Name) else f"{text}, {words}"


def _with_cells(on: Given, text: str, read: Mapping[str, _Read], metric: str) -> str:
    """A text with cells instead of what is read, and with the metrics, unless all is of one."""
    for name in sorted(read, key=len, reverse=True):
        cells = " and ".join(read[name].cells)
        text = text.replace(name, cells if metric else f"{_in_words(on, read[name].metric)} of {cells}")
    return text


def _in_words(on: Given, metric: str) -> str:
    title = on.titled(metric)
    if metric in on.experiment.measures:
        return title
    return re.sub(r"^at (\d+) (.*)", r"\2 after \1 steps", title.replace(".", " "))


def _over_windows(on: Given, tree: ast.expr, read: Mapping[str, _Read], calls: Arrays, comparison: Comparison) -> str:
    """The error of a difference over validation windows, which is shown for lack of one over seeds and decides
    nothing."""
    differences: list[float] = []
    for seed in comparison.values:
        blocks = {name: _blocks(on.runs(source.cells[0])[seed], source.metric) for name, source in read.items()}
        if not any(source.whole for source in read.values()) and len({len(values) for values in blocks.values()}) == 1:
            differences += np.ravel(computed(tree, {**calls, **blocks})).tolist()
    error = mean_and_error(differences).stderr
    return "" if error is None else f"± {error:.4f} over windows in blocks of ten"


def _blocks(run: Record, metric: str) -> np.ndarray:
    """The means over ten windows behind a metric that is the mean over windows; empty for another one, such as a
    perplexity, which is no mean."""
    if metric.rpartition(".")[2] != "loss":
        return np.array([])
    try:
        return values_of(run, f"{metric.rpartition('.')[0]}.in_blocks".removeprefix("."), {})
    except NotMeasured:
        return np.array([])


# ---- what is counted, so that one run decides ----


def _of_every_run(on: Given, expression: Expression) -> Verdict:
    """Whether parts such as `every(flops[a, b] < [c])` are so of all numbers of the runs of these cells."""
    on.require([cell for bracket in expression.brackets.values() for cell in bracket.parts[0]])
    arrays = expression.called | {name: _of_all_runs(on, bracket) for name, bracket in expression.brackets.items()}
    conditions = [condition for part in expression.parts for condition in arguments_of(part, "every")]
    said = "; ".join(_counted_in_words(on, condition, arrays, expression.brackets) for condition in conditions)
    return Verdict(all(_so_of_all(condition, arrays) for condition in conditions), f"counted: {said}")


def _of_all_runs(on: Given, bracket: Bracket) -> np.ndarray:
    """The numbers of all runs of several cells, in one list."""
    runs = [run for cell in bracket.parts[0] for _, run in sorted(on.runs(cell).items())]
    return np.concatenate([np.ravel(on.values(run, metric)) for metric in bracket.of for run in runs])


def _so_of_all(condition: ast.expr, arrays: Arrays) -> bool:
    """Whether a condition is so; a comparison, of every number of one side and every one of the other."""
    if not isinstance(condition, ast.Compare):
        return bool(computed(condition, arrays).all())
    sides = [np.ravel(computed(side, arrays)) for side in (condition.left, *condition.comparators)]
    pairs = zip(condition.ops, itertools.pairwise(sides), strict=True)
    return all(bool(COMPARISONS[type(op)](left[:, None], right[None, :]).all()) for op, (left, right) in pairs)


def _counted_in_words(on: Given, condition: ast.expr, arrays: Arrays, brackets: Mapping[str, Bracket]) -> str:
    """A condition with metrics, cells and the span of their numbers instead of what it reads."""
    text = ast.unparse(condition)
    for name in sorted((name for name in names_in(condition) if name in brackets), key=len, reverse=True):
        read = " and ".join(_in_words(on, metric) for metric in brackets[name].of)
        text = text.replace(name, f"{read} of {', '.join(brackets[name].parts[0])} ({span(arrays[name])})")
    return text
