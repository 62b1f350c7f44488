"""Claims as expressions: what a sentence says of printed, computed and measured numbers.

    test: printed[LIDAS; CoQA, DROP] > [MIDAS]
    test: rounds_to(printed[LIDAS; Mean] - [MIDAS], 0.57, 2)
    test: kv_cache(size="consa-1.7b", arch="rule-swa", seq_len=8192) <= 0.55 * 2 ** 30
    test: loss[learned] < [rule-0, rule-1]
    test: {holds: "abs(loss[learned] - [oracle]) < 0.05", reason: a fortieth of the loss of a guess}

Brackets name what is read. `printed[ROWS; COLUMNS; EXPERIMENT]` and `computed[ROWS; COLUMNS]` are cells of the table,
or of that of another experiment; `*` are all rows. METRIC[CELLS] is a number of these cells' runs: a measure of the
file or a dotted path into a record, without a leading `results.`; `loss` is the validation loss. A bracket without a
name reads the same as the one before it, and in the same columns where it names none. Several names give several
comparisons, each of which must hold; with several names on both sides the first goes with the first, and so on. Inside
of a function that reduces a list, such as `mean(loss[a, b])`, the names are the list; of one cell it is the list that
the metric is, and `m[a][2]` an entry of it, `m[a][n[a] == 1]` several. `A|B[…]` are several metrics. A name with a
comma stands in quotes. `@NAME` is a list of names under `lists:` of the file. Functions are those of formula.py and of
analytic.py; these take plain values by name, and a list of them gives a list of numbers:

    rises(kv_cache(size="consa-1.7b", arch="vanilla", seq_len=[2048, 4096, 8192]))

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from hybridlab.config.loading import Layer
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.analytic import ANALYTIC, compute, several
from hybridlab.lab.papers.calls import Reads, Reference, called
from hybridlab.lab.papers.formula import (
    CONDITIONS,
    FUNCTIONS,
    NoValue,
    arguments_of,
    check_depth,
    computed,
    names_in,
    problem,
)
from hybridlab.statistics import Above, Always, Apart, Below, Between, Question

LOSS = "results.validation.loss"
TABLES = ("printed", "computed")
ALL = "*"
"""In the place of rows, all of a table."""
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

    @property
    def elsewhere(self) -> str | None:
        """The id of another experiment whose table is read."""
        return self.parts[2][0] if len(self.parts) > 2 else None

    def references(self) -> Iterator[Reference]:
        """Every name with what it refers to."""
        if not self.of_table:
            for to, names in (("metric or measure", self.of), ("cell", self.parts[0])):
                for name in names:
                    yield Reference((), to, name)
            return
        if self.elsewhere is not None:
            yield Reference((), "experiment", self.elsewhere)
        rows = () if self.parts[0] == (ALL,) else self.parts[0]
        for to, names in (("row", rows), ("column", self.parts[1])):
            for name in names:
                yield Reference((), to, name, self.elsewhere)


@dataclass(frozen=True)
class Asked:
    """number: what is computed of each seed's runs. question: what is asked of it."""

    number: ast.expr
    question: Question


@dataclass(frozen=True)
class Expression(Reads):
    """tree: the expression, with a name such as `read0` instead of each bracket, and `call0` of each call of an
    analytic function. asked: of runs, what each of its parts asks; empty where these are counted, by `every(…)`."""

    tree: ast.expr
    brackets: Mapping[str, Bracket]
    calls: Mapping[str, dict[str, Any]]
    asked: tuple[Asked, ...] = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The argument of a claim kind is written as text."""
        return core_schema.no_info_after_validator_function(expression, core_schema.str_schema())

    @property
    def parts(self) -> list[ast.expr]:
        """What it says, one thing for each `and`."""
        tree = self.tree
        return tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]

    @property
    def of_runs(self) -> bool:
        """Whether it reads runs."""
        return any(not bracket.of_table for bracket in self.brackets.values())

    @property
    def of_print(self) -> bool:
        """Whether it reads nothing but what a paper prints or states."""
        return not self.calls and all(bracket.of == ("printed",) for bracket in self.brackets.values())

    @cached_property
    def called(self) -> dict[str, np.ndarray]:
        """What its calls of analytic functions compute, by their names in the tree."""
        return {name: np.asarray(number_of(call)) for name, call in self.calls.items()}

    def cells_read(self, metric: str) -> set[str]:
        """The cells from whose runs it reads a metric."""
        return {cell for bracket in self.brackets.values() if metric in bracket.of for cell in bracket.parts[0]}

    def references(self) -> Iterator[Reference]:
        """Every name in its brackets with what it refers to."""
        for bracket in self.brackets.values():
            yield from bracket.references()


# ---- reading ----


DEEP = "it is nested too deeply; write it as several things with `and` between them"
_WORDS = {"and", "or", "not"}
_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")
_HIDDEN = (re.compile(r"\[[^\[\]]*\]"), re.compile(r"\"[^\"]*\"|'[^']*'"))
"""Where no call is looked for: in brackets and quotes."""


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression:
    """The expression in a text; ValueError with one sentence for what is none."""
    try:
        parsed = _read(text)
        return replace(parsed, asked=tuple(_questions(parsed)))
    except (SyntaxError, ValueError, UserError, NoValue, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        why = DEEP if deep else error.msg.partition(":")[0] if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"expression {text if len(text) < 150 else text[:150] + '…'!r}: {why}") from None


def _read(text: str) -> Expression:
    calls: dict[str, dict[str, Any]] = {}
    brackets: dict[str, Bracket] = {}
    before: Bracket | None = None

    def name_for(match: re.Match[str]) -> str:
        nonlocal before
        before = _bracket(match, before)
        brackets[name := f"read{len(brackets)}"] = before
        return name

    replaced = _BRACKET.sub(name_for, _without_calls(text, calls))
    if replaced.count("[") != replaced.count("]"):
        raise ValueError("a bracket [ is not closed, or not opened")
    tree = ast.parse(replaced.strip(), mode="eval").body
    check_depth(tree)
    if wrong := problem(tree, dict.fromkeys(OF_RUNS, 1)):
        raise ValueError(_shown(wrong, brackets))
    if loose := [name for name in names_in(tree) if name not in brackets and name not in calls]:
        raise ValueError(f"{loose[0]!r} is no number; write what is read as {loose[0]}[CELLS]")
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant | ast.BinOp) and not names_in(part):
            computed(part, {})
    parsed = Expression(tree, brackets, calls)
    if not parsed.of_runs and not all(map(_is_condition, parsed.parts)):
        raise ValueError("it says nothing; write a comparison, such as `… < 0.9`, or `rounds_to(…, 0.57, 2)`")
    if parsed.of_runs and (lists := [call["function"] for call in calls.values() if several(call)[0]]):
        raise ValueError(f"{lists[0]} has a list instead of a value, which cannot be compared with runs")
    return parsed


def _questions(parsed: Expression) -> Iterator[Asked]:
    """What the parts of an expression about runs ask; ValueError where a part is none of the questions."""
    every_call = [node for node in ast.walk(parsed.tree) if isinstance(node, ast.Call)]
    for name in OF_RUNS:
        calls = [node for node in every_call if arguments_of(node, name)]
        if calls and (not parsed.of_runs or any(call not in parsed.parts for call in calls)):
            raise ValueError(f"{name}(…) is a whole part of an expression about runs")
    counted = [bool(arguments_of(part, "every")) for part in parsed.parts]
    if any(counted) and not all(counted):
        raise ValueError("write a claim of its own for every(…), which needs no seeds")
    for part in parsed.parts if parsed.of_runs else ():
        if any(parsed.brackets[name].of_table for name in names_in(part) if name in parsed.brackets):
            raise ValueError("cells of a table and runs are compared apart; write the printed number itself")
        if not counted[0]:
            yield _question(part, parsed)


def _question(part: ast.expr, parsed: Expression) -> Asked:
    """What one part of an expression asks of runs; ValueError where it is none of the questions."""

    def reads(node: ast.expr) -> bool:
        return any(name in parsed.brackets for name in names_in(node))

    if yes := arguments_of(part, "always"):
        return Asked(yes[0], Always())
    if not isinstance(part, ast.Compare):
        raise ValueError("of runs write a comparison, such as `… < 0.9`, or `always(…)`")
    sides = [part.left, *part.comparators]
    bounds = [None if reads(side) else float(computed(side, parsed.called)) for side in sides]
    signs = tuple(
        "<" if isinstance(op, ast.Lt) else ">" if isinstance(op, ast.Gt) else "<=" if isinstance(op, ast.LtE) else ""
        for op in part.ops
    )
    if len(sides) == 3:
        if signs != ("<", "<") or bounds[0] is None or bounds[1] is not None or bounds[2] is None:
            raise ValueError("between two bounds is written `LOW < … < HIGH`")
        return Asked(sides[1], Between(bounds[0], bounds[2]))
    if bounds[0] is not None and signs[0] in ("<", ">"):
        sides, bounds, signs = sides[::-1], bounds[::-1], ("<" if signs[0] == ">" else ">",)
    if bounds[0] is not None or signs[0] == "":
        raise ValueError("runs are compared with `<` and `>`, and with `… <= MARGIN` where a margin is allowed")
    number, bound = sides[0], bounds[1]
    if bound is None:
        number, bound = ast.BinOp(sides[0], ast.Sub(), sides[1]), 0.0
    if either_side := arguments_of(number, "abs"):
        return Asked(either_side[0], Apart(bound) if signs[0] == ">" else Between(-bound, bound))
    if signs[0] == "<=":
        return Asked(number, Between(None, bound))
    return Asked(number, Below(bound) if signs[0] == "<" else Above(bound))


def _is_condition(tree: ast.expr) -> bool:
    """Whether a part of an expression on numbers can be so or not."""
    if isinstance(tree, ast.BoolOp):
        return all(map(_is_condition, tree.values))
    return isinstance(tree, ast.Compare) or bool(arguments_of(tree, *CONDITIONS, *OF_RUNS))


def _without_calls(text: str, calls: dict[str, dict[str, Any]]) -> str:
    """The text with a name such as `call0` instead of each call of an analytic function, which goes to `calls`."""
    hidden = text
    for pattern in _HIDDEN:
        hidden = pattern.sub(lambda match: "." * len(match[0]), hidden)
    replaced, place = "", 0
    for match in _CALL.finditer(hidden):
        name, start = match[1], match.start()
        if start < place or name in _WORDS or name in FUNCTIONS or name in OF_RUNS:
            continue
        if name not in ANALYTIC:
            functions = [*FUNCTIONS, *OF_RUNS, *ANALYTIC.names()]
            raise ValueError(f"there is no function {name!r}; {nearest(name, functions)}")
        # The place behind the bracket that closes the call.
        depths = itertools.accumulate(({"(": 1, ")": -1}.get(letter, 0) for letter in hidden[match.end() :]), initial=1)
        end = next((match.end() + i for i, depth in enumerate(depths) if not depth), None)
        if end is None:
            raise ValueError(f"the bracket of {name}( is not closed")
        calls[placeholder := f"call{len(calls)}"] = _call(text[start:end])
        replaced, place = replaced + text[place:start] + placeholder, end
    return replaced + text[place:]


def _call(text: str) -> dict[str, Any]:
    """A call of an analytic function with its arguments, checked. Lists instead of single values stay lists."""
    name = text[: text.index("(")]
    try:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call)
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f'{name} takes plain values, as in {name}(size="tiny")') from None
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f'name the arguments of {name}, as in {name}(size="tiny")')
    call = {"function": name, **arguments}
    for single_call in several(call)[1]:
        function, _ = called(ANALYTIC, "function", Layer(single_call))
        if "str" in str(function.run.__annotations__["return"]):
            number_of(single_call)
    return call


def number_of(call: dict[str, Any]) -> float:
    """The number that an analytic function computes; UserError for a text, NoValue where there is none."""
    try:
        value = compute(call, {})
    except ArithmeticError as error:
        raise NoValue(f"not computed: {call['function']}: {error}") from None
    if isinstance(value, str):
        raise UserError(f"{call['function']} computes a text, {value!r}; an expression has numbers")
    return value


def _bracket(match: re.Match[str], before: Bracket | None) -> Bracket:
    text, of, names = match[0], match["of"], match["names"]
    tokens = _TOKEN.findall(names)
    if "".join(tokens) != names:
        raise ValueError(f"{text}: a quotation mark is not closed")
    parts: list[list[str]] = [[""]]
    for token in tokens:
        if token == ";":
            parts.append([""])
        elif token == ",":
            parts[-1].append("")
        else:
            parts[-1][-1] += token.strip().strip('"')
    if any(not name for part in parts for name in part):
        raise ValueError(f"{text}: write names between the brackets, with commas between them")
    if of is None and before is None:
        raise ValueError(f"{text}: say what is read, as in loss{text} or printed{text}")
    metrics = before.of if of is None and before else tuple(path_of(name) for name in str(of).split("|"))
    lists = [tuple(part) for part in parts]
    if metrics[0] in TABLES:
        if before is not None and of is None:
            lists += before.parts[len(lists) :]
        if not 2 <= len(lists) <= 3 or len(lists) == 3 and len(lists[2]) > 1:
            raise ValueError(f"{text}: write {metrics[0]}[ROWS; COLUMNS] or {metrics[0]}[ROWS; COLUMNS; EXPERIMENT]")
    elif len(lists) > 1:
        raise ValueError(f"{text}: a semicolon stands between rows and columns; write cells with commas")
    return Bracket(metrics, tuple(lists))


def path_of(name: str) -> str:
    """A metric as records have it: `loss` and paths below `results` are written short."""
    if name == "loss":
        return LOSS
    return f"results.{name}" if name.startswith(_RESULTS) else name


_PARTS = ("validation", "extrapolation", "tasks", "at", "probes", "suites", "lm_eval", "finetune", "causality")
_RESULTS = tuple(f"{part}." for part in _PARTS)
"""The parts of `results` that a path may begin with."""


def _shown(text: str, brackets: Mapping[str, Bracket]) -> str:
    """A text with the brackets instead of their names."""
    for name in sorted(brackets, key=len, reverse=True):
        text = text.replace(name, f"[{', '.join(brackets[name].parts[0])}]")
    return text
