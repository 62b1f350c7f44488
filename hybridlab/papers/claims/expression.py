"""Claims as expressions: what a sentence says of printed, computed and measured numbers.

    test: printed[LIDAS; CoQA, DROP] > [MIDAS]
    test: rounds_to(printed[LIDAS; Mean] - [MIDAS], 0.57, 2)
    test: kv_cache(size="consa-1.7b", arch="rule-swa", seq_len=8192) <= 0.55 * 2 ** 30
    test: loss[learned] < [rule-0, rule-1]
    test: {holds: "abs(loss[learned] - [oracle]) < 0.05", reason: a fortieth of the loss of a guess}

Brackets name what is read. `printed[ROWS; COLUMNS; EXPERIMENT]` and `computed[ROWS; COLUMNS]` are cells of the table
of another experiment's; `*` are all rows. METRIC[CELLS] is a number of these cells' runs: a measure of the file or a
dotted path into a record, without a leading `results.`; `loss` is the validation loss. A bracket without a name, or
without its last parts, reads as the one before it. Several names give several comparisons, each of which must hold;
with several names on both sides the first goes with the first, and so on. Inside of a function that reduces a list,
such as `mean(loss[a, b])`, the names are the list; of one cell it is the list that the metric is, and `m[a][2]` an
entry of it, `m[a][n[a] == 1]` several. `A|B[…]` are several metrics. A name with a comma stands in quotes. `@NAME` is a
list of names under `lists:` of the file. Functions are those of formula.py and of analytic.py.

An expression about runs gives comparisons, one number for each seed, and the rule decides (statistics.py). The number
is the left side, less the right side if that reads runs too:

    … < 0.9          below a bound; `>` above it
    0.6 < … < 0.8    between two bounds (equivalence); also `abs(…) < 0.05`
    … <= 0.05        lower, equal, or higher by less than that ("matches or exceeds")
    abs(…) > 0.1     farther from 0 than that, on either side
    always(…)        a yes in every run, such as `always(peaks-last[midas])`

What is counted needs no seeds, such as FLOPs: one run decides it. `every(flops[a, b] < [c])` says that every number of
the runs of `a` and `b` is below every one of those of `c`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from hybridlab.config.loading import Layer
from hybridlab.errors import UserError
from hybridlab.papers.analytic import ANALYTIC, compute
from hybridlab.papers.calls import Reference, RefersIn, called
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, listed, value_at
from hybridlab.papers.claims.verdict import NotRun, Open, Verdict
from hybridlab.papers.formula import (
    BY_ENTRY,
    COMPARISONS,
    FUNCTIONS,
    PLACES,
    SAME_UNIT,
    NotMeasured,
    NoValue,
    computed,
    names_in,
    problem,
)
from hybridlab.runs.record import Record
from hybridlab.statistics import FEWEST_SEEDS, Above, Always, Apart, Below, Between, Question, block_mean

LOSS = "results.validation.loss"
TABLES = ("printed", "computed")
ALL = "*"
OF_RUNS = ("always", "every")
"""What is asked of runs in the form of a function."""
_BRACKET = re.compile(r"(?P<of>[A-Za-z_][\w.*-]*(?:\|[A-Za-z_][\w.*-]*)*)?(?<![)\]])\[(?P<names>[^\[\]]*)\]")
_TOKEN = re.compile(r'"[^"]*"|[^,;"]+|[,;]')
"""A name, in quotes or not, or what stands between names."""


@dataclass(frozen=True)
class Bracket:
    """What one bracket reads. of: `printed`, `computed`, or metrics. parts: names of cells; or of rows, of columns and
    the id of another experiment."""

    of: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]

    @property
    def of_table(self) -> bool:
        return self.of[0] in TABLES

    def references(self) -> Iterator[Reference]:
        """Every name with what it refers to."""
        if not self.of_table:
            yield from (Reference((), "metric or measure", metric) for metric in self.of)
            yield from (Reference((), "cell", cell) for cell in self.parts[0])
            return
        other = self.parts[2][0] if len(self.parts) > 2 else None
        if other is not None:
            yield Reference((), "experiment", other)
        for to, names in zip(("row", "column"), self.parts, strict=False):
            yield from (Reference((), to, name, other) for name in names if name != ALL)


@dataclass(frozen=True)
class Expression:
    """tree: the expression, with a name such as `read0` in the place of each bracket, and `call0` of each call of an
    analytic function."""

    tree: ast.expr
    brackets: Mapping[str, Bracket]
    calls: Mapping[str, dict[str, Any]]

    @property
    def of_runs(self) -> bool:
        """Whether it reads runs."""
        return any(not bracket.of_table for bracket in self.brackets.values())

    @property
    def of_print(self) -> bool:
        """Whether it reads nothing but what a paper prints or states."""
        return not self.calls and all(bracket.of == ("printed",) for bracket in self.brackets.values())

    def references(self) -> Iterator[Reference]:
        """Every name in its brackets with what it refers to."""
        for bracket in self.brackets.values():
            yield from bracket.references()


# ---- reading ----


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression:
    """The expression in a text; ValueError with one sentence for what is none."""
    brackets: dict[str, Bracket] = {}
    before: Bracket | None = None

    def named(match: re.Match[str]) -> str:
        nonlocal before
        before = _bracket(match, before)
        brackets[name := f"read{len(brackets)}"] = before
        return name

    replaced = _BRACKET.sub(named, text)
    try:
        tree = ast.parse(replaced.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise ValueError(f"expression {text!r}: {why}") from None
    calls: dict[str, dict[str, Any]] = {}
    tree = _Calls(calls, text).visit(tree)
    if wrong := problem(tree, dict.fromkeys(OF_RUNS, 1)):
        raise ValueError(f"expression {text!r}: {_shown(wrong, brackets)}")
    if loose := [name for name in names_in(tree) if name not in brackets and name not in calls]:
        raise ValueError(f"expression {text!r}: {loose[0]!r} is no number; write what is read as {loose[0]}[CELLS]")
    found = Expression(tree, brackets, calls)
    _check_questions(found, text)
    return found


def _check_questions(found: Expression, text: str) -> None:
    """ValueError where a part of an expression about runs is none of the questions."""
    parts = parts_of(found.tree)
    for name in OF_RUNS:
        calls = [node for node in ast.walk(found.tree) if isinstance(node, ast.expr) and _argument(node, name)]
        if calls and (not found.of_runs or any(call not in parts for call in calls)):
            raise ValueError(f"expression {text!r}: {name}(…) is a whole part of an expression about runs")
    counted = [_argument(part, "every") is not None for part in parts]
    if any(counted) and not all(counted):
        raise ValueError(f"expression {text!r}: write a claim of its own for every(…), which needs no seeds")
    for part in parts if found.of_runs else ():
        if any(found.brackets[name].of_table for name in names_in(part) if name in found.brackets):
            why = "cells of a table and runs are compared apart; write the printed number itself"
            raise ValueError(f"expression {text!r}: {why}")
        if not counted[0]:
            _question(part, found, text)


def _argument(tree: ast.expr, function: str) -> ast.expr | None:
    """What stands in a call of this function, which takes one argument; None for anything else."""
    called_so = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == function
    return tree.args[0] if isinstance(tree, ast.Call) and called_so else None


def _bracket(match: re.Match[str], before: Bracket | None) -> Bracket:
    whole, of, names = match[0], match["of"], match["names"]
    tokens = _TOKEN.findall(names)
    if "".join(tokens) != names:
        raise ValueError(f"{whole}: a quotation mark is not closed")
    parts: list[list[str]] = [[""]]
    for token in tokens:
        if token == ";":
            parts.append([""])
        elif token == ",":
            parts[-1].append("")
        else:
            parts[-1][-1] += token.strip().strip('"')
    if any(not name for part in parts for name in part):
        raise ValueError(f"{whole}: write names between the brackets, with commas between them")
    if of is None and before is None:
        raise ValueError(f"{whole}: say what is read, as in loss{whole} or printed{whole}")
    metrics = before.of if of is None and before else tuple(_path(name) for name in str(of).split("|"))
    made = [tuple(part) for part in parts]
    if metrics[0] in TABLES:
        if before is not None and before.of == metrics:
            made += before.parts[len(made) :]
        if not 2 <= len(made) <= 3:
            raise ValueError(f"{whole}: write {metrics[0]}[ROWS; COLUMNS] or {metrics[0]}[ROWS; COLUMNS; EXPERIMENT]")
    elif len(made) > 1:
        raise ValueError(f"{whole}: a semicolon stands between rows and columns; write cells with commas")
    return Bracket(metrics, tuple(made))


def _path(name: str) -> str:
    """A metric as records have it: `loss` and paths below `results` are written short."""
    if name == "loss":
        return LOSS
    return f"results.{name}" if name.startswith(_RESULTS) else name


_PARTS = ("validation", "extrapolation", "tasks", "at", "probes", "suites", "lm_eval", "finetune", "causality")
_RESULTS = tuple(f"{part}." for part in _PARTS)
"""The parts of `results` that a path may begin with."""


class _Calls(ast.NodeTransformer):
    """Puts a name in the place of every call of an analytic function."""

    def __init__(self, calls: dict[str, dict[str, Any]], text: str) -> None:
        self.calls, self.text = calls, text

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in FUNCTIONS or name not in ANALYTIC:
            self.generic_visit(node)
            return node
        try:
            arguments = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
        except ValueError:
            raise ValueError(
                f'expression {self.text!r}: {name} takes plain values, as in {name}(size="tiny")'
            ) from None
        if node.args:
            raise ValueError(f'expression {self.text!r}: name the arguments of {name}, as in {name}(size="tiny")')
        call = {"function": name, **arguments}
        try:
            called(ANALYTIC, "function", Layer(call))
        except UserError as error:
            raise ValueError(str(error)) from None
        self.calls[own := f"call{len(self.calls)}"] = call
        return ast.Name(own, ast.Load())


def _shown(text: str, brackets: Mapping[str, Bracket]) -> str:
    """A text with the brackets in the place of their names."""
    for name in sorted(brackets, key=len, reverse=True):
        text = text.replace(name, f"[{', '.join(brackets[name].parts[0])}]")
    return text


SAYS = "says"
"""The kind of a test that an experiment file writes as an expression."""


def parts_of(tree: ast.expr) -> list[ast.expr]:
    """What an expression says, one thing for each `and`."""
    return tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]


def is_exact(test: Mapping[str, Any]) -> bool:
    """Whether a claim's test reads no run: neither one that is written as an expression, nor a kind on the print."""
    return not expression(test["holds"]).of_runs if test["kind"] == SAYS else reads_print(test)


def cells_read(test: Mapping[str, Any], metric: str) -> set[str] | None:
    """The cells from whose runs an expression reads a metric; None for a test of another kind."""
    if test["kind"] != SAYS:
        return None
    brackets = expression(test["holds"]).brackets.values()
    return {cell for bracket in brackets if metric in bracket.of for cell in bracket.parts[0]}


def reads_print(test: Mapping[str, Any]) -> bool:
    """Whether a claim's test reads nothing but what a paper prints or states."""
    kind = str(test["kind"])
    return expression(test["holds"]).of_print if kind == SAYS else kind.startswith(("printed_", "stated_"))


def _checked_text(text: str) -> str:
    expression(text)
    return text


_names_of = RefersIn(lambda text: expression(text).references())


@claim_kind
def says(
    on: Given, holds: Annotated[str, AfterValidator(_checked_text), _names_of], reason: str = ""
) -> Verdict | list[Comparison]:
    """What an expression says. reason: why a margin, or a bound, is as large as it is."""
    found = expression(holds)
    try:
        if not found.of_runs:
            return _of_numbers(on, found)
        counted = _argument(parts_of(found.tree)[0], "every") is not None
        return _of_every_run(on, found) if counted else list(_of_runs(on, found))
    except NotMeasured as missing:
        raise NotRun(str(missing)) from None
    except NoValue as none:
        raise Open(str(none)) from None


# ---- printed, stated and computed numbers ----


Arrays = Mapping[str, np.ndarray]


def _of_numbers(on: Given, found: Expression) -> Verdict:
    given = {name: _cells(on, bracket) for name, bracket in found.brackets.items()}
    given |= {name: np.asarray(_computed(call)) for name, call in found.calls.items()}
    source = "stated" if not given else "printed" if found.of_print else "exact"
    said = [_said(part, given, found.brackets) for part in parts_of(found.tree)]
    return Verdict(all(holds for holds, _ in said), f"{source}: {'; '.join(text for _, text in said)}")


def _computed(call: dict[str, Any]) -> float:
    value = compute(call, {})
    if isinstance(value, str):
        raise UserError(f"{call['function']} computes a text, {value!r}; an expression has numbers")
    return value


def _cells(on: Given, bracket: Bracket) -> np.ndarray:
    """The numbers of a table's cells: () of one cell, a list of one row or column, else a matrix."""
    rows, columns, *other = bracket.parts
    there = on.elsewhere(other[0][0]) if other else on
    rows = _all(rows, there)
    if bracket.of[0] == "printed":
        numbers = there.printed(*itertools.product(rows, columns))
    else:
        factors = {name: there.experiment.column(name).factor for name in columns}
        numbers = [there.computed(row, name) * factors[name] for row, name in itertools.product(rows, columns)]
    shape = [len(names) for names in (rows, columns) if len(names) > 1]
    return np.reshape(numbers, shape)


def _all(rows: tuple[str, ...], on: Given) -> tuple[str, ...]:
    return tuple(row.short for row in on.experiment.rows) if rows == (ALL,) else rows


def _said(part: ast.expr, given: Arrays, brackets: Mapping[str, Bracket]) -> tuple[bool, str]:
    """Whether one part of an expression is so, and its numbers. Comparisons leave out the noise of binary fractions."""
    if not isinstance(part, ast.Compare):
        true = np.asarray(computed(part, given), dtype=bool)
        return bool(true.all()), _in_numbers(part, given, brackets) + _exceptions(true, None, brackets)
    sides = [computed(side, given) for side in (part.left, *part.comparators)]
    true = np.asarray(True)
    for op, (left, right) in zip(part.ops, itertools.pairwise(sides), strict=True):
        true = np.logical_and(true, COMPARISONS[type(op)](np.round(left - right, 9), 0.0))
    # Of a comparison within bounds the middle is what is looked at.
    looked_at = sides[1] if len(sides) == 3 else sides[0] - sides[1] if sides[1].ndim else sides[0]
    text = _in_numbers(part, given, brackets)
    return bool(true.all()), text + _exceptions(true, looked_at, brackets)


def _in_numbers(part: ast.expr, given: Arrays, brackets: Mapping[str, Bracket]) -> str:
    """A part of an expression with numbers in the place of what it reads, and of lists their names."""
    text = ast.unparse(part)
    for name in sorted(given, key=len, reverse=True):
        if given[name].ndim:
            rows, columns, *_ = brackets[name].parts
            shown = f"{_few(rows)} ({_few(columns)})"
        else:
            shown = f"{float(given[name]):,.10g}"
        text = text.replace(name, shown)
    return text.replace(" - ", " − ").replace(" * ", " × ")


def _few(names: tuple[str, ...]) -> str:
    """Names, of many the number alone."""
    if names == (ALL,):
        return "all rows"
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"


def _exceptions(true: np.ndarray, values: np.ndarray | None, brackets: Mapping[str, Bracket]) -> str:
    """Of many entries how many are as asked, and which are not."""
    if not true.ndim:
        return "" if values is None or values.ndim else f" ({float(values):,.6g})"
    labels = _labels(true.shape, brackets)
    off = [
        labels[i] if values is None or values.shape != true.shape else f"{labels[i]}: {values.ravel()[i]:+,.6g}"
        for i in np.flatnonzero(~true.ravel())
    ]
    return f" in {int(true.sum())} of {true.size}{listed(off)}"


def _labels(shape: tuple[int, ...], brackets: Mapping[str, Bracket]) -> list[str]:
    """Names for the entries of a result: of the first cells in this form, else their numbers."""
    for bracket in brackets.values():
        several = [names for names in bracket.parts[:2] if len(names) > 1]
        if tuple(map(len, several)) == shape:
            return [", ".join(names) for names in itertools.product(*several)]
    for names in (names for bracket in brackets.values() for names in bracket.parts[:2]):
        if (len(names),) == shape:
            return list(names)
    return [str(number + 1) for number in range(int(np.prod(shape)))]


# ---- runs ----


@dataclass(frozen=True)
class _Asked:
    """number: what is computed of each seed's runs. question: what is asked of it."""

    number: ast.expr
    question: Question


def _question(part: ast.expr, found: Expression, text: str) -> _Asked:
    """What one part of an expression asks of runs; ValueError where it is none of the questions."""
    given = {name: np.asarray(_computed(call)) for name, call in found.calls.items()}

    def wrong(why: str) -> ValueError:
        return ValueError(f"expression {text!r}: {why}")

    def reads(node: ast.expr) -> bool:
        return any(name in found.brackets for name in names_in(node))

    if (yes := _argument(part, "always")) is not None:
        return _Asked(yes, Always())
    if not isinstance(part, ast.Compare):
        raise wrong("of runs write a comparison, such as `… < 0.9`, or `always(…)`")
    sides = [part.left, *part.comparators]
    bounds = [None if reads(side) else float(computed(side, given)) for side in sides]
    signs = tuple(
        "<" if isinstance(op, ast.Lt) else ">" if isinstance(op, ast.Gt) else "<=" if isinstance(op, ast.LtE) else ""
        for op in part.ops
    )
    if len(sides) == 3:
        if signs != ("<", "<") or bounds[0] is None or bounds[1] is not None or bounds[2] is None:
            raise wrong("between two bounds is written `LOW < … < HIGH`")
        return _Asked(sides[1], Between(bounds[0], bounds[2]))
    if bounds[0] is not None and signs[0] in ("<", ">"):
        sides, bounds, signs = sides[::-1], bounds[::-1], ("<" if signs[0] == ">" else ">",)
    if bounds[0] is not None or signs[0] == "":
        raise wrong("runs are compared with `<` and `>`, and with `… <= MARGIN` where a margin is allowed")
    number, bound = sides[0], bounds[1]
    if bound is None:
        number, bound = ast.BinOp(sides[0], ast.Sub(), sides[1]), 0.0
    if (either_side := _argument(number, "abs")) is not None:
        return _Asked(either_side, Apart(bound) if signs[0] == ">" else Between(-bound, bound))
    if signs[0] == "<=":
        return _Asked(number, Between(None, bound))
    return _Asked(number, Below(bound) if signs[0] == "<" else Above(bound))


def _of_runs(on: Given, found: Expression) -> Iterator[Comparison]:
    for part in parts_of(found.tree):
        asked = _question(part, found, "")
        whole, lists = _in_functions(asked.number), _with_entries(asked.number)
        names = set(names_in(asked.number))
        used = {name: bracket for name, bracket in found.brackets.items() if name in names}
        spread = {name: bracket for name, bracket in used.items() if name not in whole}
        calls = {name: np.asarray(_computed(call)) for name, call in found.calls.items()}
        for metric in range(_count(bracket.of for bracket in used.values())):
            for arm in range(_count(bracket.parts[0] for bracket in spread.values())):
                read = {
                    name: _Read(
                        bracket.of[min(metric, len(bracket.of) - 1)],
                        bracket.parts[0] if name in whole else (bracket.parts[0][min(arm, len(bracket.parts[0]) - 1)],),
                        name in whole,
                        name in lists,
                    )
                    for name, bracket in used.items()
                }
                yield _compared(on, asked, read, calls)


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


def _compared(on: Given, asked: _Asked, read: Mapping[str, _Read], calls: Arrays) -> Comparison:
    cells = list(dict.fromkeys(cell for one in read.values() for cell in one.cells))

    def number(*records: Record) -> float:
        runs = dict(zip(cells, records, strict=True))
        values = {name: one.value(on, runs) for name, one in read.items()}
        if _of_places(asked.number) and _same_on_both_sides(asked.number, values):
            raise Open("both sides read the same numbers")
        try:
            found = computed(asked.number, {**calls, **values})
        except NoValue as none:
            raise Open(_with_cells(on, str(none), read, metric)) from None
        if found.ndim:
            raise UserError(f"{label} is a list of {len(found)}, not a number; reduce it, as in `mean(…)`")
        return float(found)

    metrics = list(dict.fromkeys(one.metric for one in read.values()))
    metric = metrics[0] if len(metrics) == 1 else ""
    title = on.titled(metric) if metric in on.experiment.measures else metric
    unit = on.unit(metric) if metric and _keeps_unit(asked.number) else ""
    about, label = {"metric": title, "unit": unit}, _label(on, asked.number, read, metric)
    paired = len(cells) > 1 and _is_difference(asked.number) and not _of_places(asked.number)
    made = on.compared(label, cells, number, asked.question, paired=paired, **about)
    if paired and 0 < made.n < FEWEST_SEEDS:
        made = replace(made, note=_over_windows(on, asked.number, read, calls, made))
    return made


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
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in BY_ENTRY:
            found |= {name for argument in node.args for name in names_in(argument)}
    return found


def _label(on: Given, tree: ast.expr, read: Mapping[str, _Read], metric: str) -> str:
    """What is computed, in words: cells in the place of brackets, with the metric behind where there is one."""
    text = _with_cells(on, ast.unparse(tree), read, metric).replace(" - ", " − ").replace(" * ", " × ")
    if metric in ("", LOSS):
        return text
    words = _in_words(on, metric)
    return f"{text}: {words}" if isinstance(tree, ast.Name) else f"{text}, {words}"


def _with_cells(on: Given, text: str, read: Mapping[str, _Read], metric: str) -> str:
    """A text with cells in the place of what is read, and with the metrics, unless all is of one."""
    for name in sorted(read, key=len, reverse=True):
        cells = " and ".join(read[name].cells)
        text = text.replace(name, cells if metric else f"{_in_words(on, read[name].metric)} of {cells}")
    return text


def _in_words(on: Given, metric: str) -> str:
    title = on.titled(metric)
    return title if metric in on.experiment.measures else title.replace(".", " ")


def _over_windows(on: Given, tree: ast.expr, read: Mapping[str, _Read], calls: Arrays, found: Comparison) -> str:
    """The error of a difference over validation windows, which is shown for lack of one over seeds and decides
    nothing."""
    differences: list[float] = []
    for seed in found.values:
        windows = {name: _windows(on.runs(one.cells[0])[seed], one.metric) for name, one in read.items()}
        if not any(one.whole for one in read.values()) and len({len(values) for values in windows.values()}) == 1:
            differences += np.ravel(computed(tree, {**calls, **windows})).tolist()
    error = block_mean(differences).stderr
    return "" if error is None else f"± {error:.4f} over windows in blocks of ten"


def _windows(run: Record, metric: str) -> np.ndarray:
    """The values behind a metric that is the mean over windows; empty for another one."""
    try:
        values = value_at(run, f"{metric.rpartition('.')[0]}.windows".removeprefix("."))
    except NotRun:
        return np.array([])
    return np.array(values if isinstance(values, list) else [], dtype=float)


# ---- what is counted, so that one run decides ----


def _of_every_run(on: Given, found: Expression) -> Verdict:
    """Whether parts such as `every(flops[a, b] < [c])` are so of all numbers of the runs of these cells."""
    on.require([cell for bracket in found.brackets.values() for cell in bracket.parts[0]])
    given = {name: np.asarray(_computed(call)) for name, call in found.calls.items()}
    given |= {name: _of_all_runs(on, bracket) for name, bracket in found.brackets.items()}
    conditions = [condition for part in parts_of(found.tree) if (condition := _argument(part, "every")) is not None]
    said = "; ".join(_counted_in_words(on, condition, given, found.brackets) for condition in conditions)
    return Verdict(all(_so_of_all(condition, given) for condition in conditions), f"counted: {said}")


def _of_all_runs(on: Given, bracket: Bracket) -> np.ndarray:
    """The numbers of all runs of several cells, in one list."""
    runs = [run for cell in bracket.parts[0] for _, run in sorted(on.runs(cell).items())]
    return np.concatenate([np.ravel(on.values(run, metric)) for metric in bracket.of for run in runs])


def _so_of_all(condition: ast.expr, given: Arrays) -> bool:
    """Whether a condition is so; a comparison, of every number of one side and every one of the other."""
    if not isinstance(condition, ast.Compare):
        return bool(computed(condition, given).all())
    sides = [np.ravel(computed(side, given)) for side in (condition.left, *condition.comparators)]
    pairs = zip(condition.ops, itertools.pairwise(sides), strict=True)
    return all(bool(COMPARISONS[type(op)](left[:, None], right[None, :]).all()) for op, (left, right) in pairs)


def _counted_in_words(on: Given, condition: ast.expr, given: Arrays, brackets: Mapping[str, Bracket]) -> str:
    """A condition with metrics, cells and the span of their numbers in the place of what it reads."""
    text = ast.unparse(condition)
    for name in sorted((name for name in names_in(condition) if name in brackets), key=len, reverse=True):
        low, high = (f"{bound:,.6g}" for bound in (given[name].min(), given[name].max()))
        read = " and ".join(_in_words(on, metric) for metric in brackets[name].of)
        span = low if low == high else f"{low} to {high}"
        text = text.replace(name, f"{read} of {', '.join(brackets[name].parts[0])} ({span})")
    return text
