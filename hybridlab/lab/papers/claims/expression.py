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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from hybridlab.config.loading import Layer
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.analytic import ANALYTIC, several
from hybridlab.lab.papers.calls import RefersIn, called
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.in_words import Part, arguments_of, span
from hybridlab.lab.papers.claims.kinds import Given, claim_kind
from hybridlab.lab.papers.claims.numbers import TABLES, Bracket, Expression, cells_of, number_of, rows_of, size_of
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.formula import (
    BY_ENTRY,
    COMPARISONS,
    CONDITIONS,
    FUNCTIONS,
    PLACES,
    SAME_UNIT,
    NotMeasured,
    NoValue,
    computed,
    names_in,
    problem,
    values_of,
)
from hybridlab.lab.papers.limits import limits_in, limits_of
from hybridlab.runs.record import Record
from hybridlab.statistics import FEWEST_SEEDS, Above, Always, Apart, Below, Between, Question, mean_and_error

LOSS = "results.validation.loss"
OF_RUNS = ("always", "every")
"""What is asked of runs in the form of a function."""
_BRACKET = re.compile(r"(?P<of>[A-Za-z_][\w.*-]*(?:\|[A-Za-z_][\w.*-]*)*)?(?<![)\]])\[(?P<names>[^\[\]]*)\]")
_TOKEN = re.compile(r'"[^"]*"|[^,;"]+|[,;]')
"""A name, in quotes or not, or what stands between names."""


# ---- reading ----


MOST_LEVELS = 60
"""So deep an expression can be nested; the functions that read it call themselves for each level."""
DEEP = "it is nested too deeply; write it as several things with `and` between them"
_WORDS = {"and", "or", "not"}
_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")
_HIDDEN = (re.compile(r"\[[^\[\]]*\]"), re.compile(r"\"[^\"]*\"|'[^']*'"))
"""Where no call is looked for: in brackets and quotes."""


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression:
    """The expression in a text; ValueError with one sentence for what is none."""
    try:
        found = _read(text)
    except (SyntaxError, ValueError, UserError, NoValue, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)
        why = DEEP if deep else error.msg.partition(":")[0] if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"expression {text if len(text) < 150 else text[:150] + '…'!r}: {why}") from None
    _check_questions(found, text)
    return found


def _read(text: str) -> Expression:
    calls: dict[str, dict[str, Any]] = {}
    brackets: dict[str, Bracket] = {}
    before: Bracket | None = None

    def named(match: re.Match[str]) -> str:
        nonlocal before
        before = _bracket(match, before)
        brackets[name := f"read{len(brackets)}"] = before
        return name

    replaced = _BRACKET.sub(named, _without_calls(text, calls))
    if replaced.count("[") != replaced.count("]"):
        raise ValueError("a bracket [ is not closed, or not opened")
    tree = ast.parse(replaced.strip(), mode="eval").body
    _check_depth(tree)
    if wrong := problem(tree, dict.fromkeys(OF_RUNS, 1)):
        raise ValueError(_shown(wrong, brackets))
    if loose := [name for name in names_in(tree) if name not in brackets and name not in calls]:
        raise ValueError(f"{loose[0]!r} is no number; write what is read as {loose[0]}[CELLS]")
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant | ast.BinOp) and not names_in(part):
            computed(part, {})
    found = Expression(tree, brackets, calls)
    if not found.of_runs and not all(map(_is_condition, parts_of(tree))):
        raise ValueError("it says nothing; write a comparison, such as `… < 0.9`, or `rounds_to(…, 0.57, 2)`")
    if found.of_runs and (lists := [call["function"] for call in calls.values() if several(call)[0]]):
        raise ValueError(f"{lists[0]} has a list in the place of a value, which cannot be compared with runs")
    return found


def _check_questions(found: Expression, text: str) -> None:
    """ValueError where a part of an expression about runs is none of the questions."""
    parts = parts_of(found.tree)
    for name in OF_RUNS:
        calls = [node for node in ast.walk(found.tree) if isinstance(node, ast.expr) and arguments_of(node, name)]
        if calls and (not found.of_runs or any(call not in parts for call in calls)):
            raise ValueError(f"expression {text!r}: {name}(…) is a whole part of an expression about runs")
    counted = [bool(arguments_of(part, "every")) for part in parts]
    if any(counted) and not all(counted):
        raise ValueError(f"expression {text!r}: write a claim of its own for every(…), which needs no seeds")
    for part in parts if found.of_runs else ():
        if any(found.brackets[name].of_table for name in names_in(part) if name in found.brackets):
            why = "cells of a table and runs are compared apart; write the printed number itself"
            raise ValueError(f"expression {text!r}: {why}")
        if not counted[0]:
            _question(part, found, text)


def _is_condition(tree: ast.expr) -> bool:
    """Whether a part of an expression on numbers can be so or not."""
    if isinstance(tree, ast.BoolOp):
        return all(map(_is_condition, tree.values))
    return isinstance(tree, ast.Compare) or bool(arguments_of(tree, *CONDITIONS, *OF_RUNS))


def _check_depth(tree: ast.expr) -> None:
    """ValueError for a tree that is nested too deeply."""
    level: list[ast.AST] = [tree]
    for _ in range(MOST_LEVELS):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
    if level:
        raise ValueError(DEEP)


def _without_calls(text: str, calls: dict[str, dict[str, Any]]) -> str:
    """The text with a name such as `call0` in the place of each call of an analytic function, which goes to `calls`."""
    hidden = text
    for pattern in _HIDDEN:
        hidden = pattern.sub(lambda match: "." * len(match[0]), hidden)
    made, place = "", 0
    for match in _CALL.finditer(hidden):
        name, start = match[1], match.start()
        if start < place or name in _WORDS or name in FUNCTIONS or name in OF_RUNS:
            continue
        if name not in ANALYTIC:
            known = [*FUNCTIONS, *OF_RUNS, *ANALYTIC.names()]
            raise ValueError(f"there is no function {name!r}; {nearest(name, known)}")
        end = _end_of_call(hidden, match.end())
        if end is None:
            raise ValueError(f"the bracket of {name}( is not closed")
        calls[own := f"call{len(calls)}"] = _call(text[start:end])
        made, place = made + text[place:start] + own, end
    return made + text[place:]


def _end_of_call(text: str, place: int) -> int | None:
    """The place behind the bracket that closes a call; None where none does. place: behind the one that opens it."""
    depth = 1
    for end in range(place, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if not depth:
            return end + 1
    return None


def _call(text: str) -> dict[str, Any]:
    """A call of an analytic function with its arguments, checked. Lists in the place of single values stay lists."""
    name = text[: text.index("(")]
    try:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call)
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f'{name} takes plain values, as in {name}(size="tiny")') from None
    if node.args or any(one.arg is None for one in node.keywords):
        raise ValueError(f'name the arguments of {name}, as in {name}(size="tiny")')
    call = {"function": name, **arguments}
    for one in several(call)[1]:
        function, _ = called(ANALYTIC, "function", Layer(one))
        if "str" in str(function.run.__annotations__["return"]):
            number_of(one)
    return call


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
    metrics = before.of if of is None and before else tuple(path_of(name) for name in str(of).split("|"))
    made = [tuple(part) for part in parts]
    if metrics[0] in TABLES:
        if before is not None and of is None:
            made += before.parts[len(made) :]
        if not 2 <= len(made) <= 3 or len(made) == 3 and len(made[2]) > 1:
            raise ValueError(f"{whole}: write {metrics[0]}[ROWS; COLUMNS] or {metrics[0]}[ROWS; COLUMNS; EXPERIMENT]")
    elif len(made) > 1:
        raise ValueError(f"{whole}: a semicolon stands between rows and columns; write cells with commas")
    return Bracket(metrics, tuple(made))


def path_of(name: str) -> str:
    """A metric as records have it: `loss` and paths below `results` are written short."""
    if name == "loss":
        return LOSS
    return f"results.{name}" if name.startswith(_RESULTS) else name


_PARTS = ("validation", "extrapolation", "tasks", "at", "probes", "suites", "lm_eval", "finetune", "causality")
_RESULTS = tuple(f"{part}." for part in _PARTS)
"""The parts of `results` that a path may begin with."""


def _shown(text: str, brackets: Mapping[str, Bracket]) -> str:
    """A text with the brackets in the place of their names."""
    for name in sorted(brackets, key=len, reverse=True):
        text = text.replace(name, f"[{', '.join(brackets[name].parts[0])}]")
    return text


def check_cells(found: Expression, experiment: Experiment) -> None:
    """ValueError for an expression on numbers whose sizes do not fit, or that reads what no column computes."""
    if found.of_runs:
        return
    sizes: dict[str, tuple[int, int]] = {}
    for name, bracket in found.brackets.items():
        there = experiment.other(bracket.elsewhere or experiment.id)
        if bracket.of == ("computed",):
            for column in (one for one in bracket.parts[1] if there.column(one).compute is None):
                raise ValueError(f"column {column} of {there.id} computes nothing; read it as printed[…]")
        sizes[name] = len(rows_of(bracket, there)), len(bracket.parts[1])
    for name, call in found.calls.items():
        lengths = (*map(len, several(call)[0].values()), 1, 1)
        sizes[name] = lengths[0], lengths[1]
    for part in parts_of(found.tree):
        size_of(part, sizes)


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
    if not found.of_runs:
        return _of_numbers(on, found)
    counted = arguments_of(parts_of(found.tree)[0], "every")
    return _of_every_run(on, found) if counted else list(_of_runs(on, found))


# ---- printed, stated and computed numbers ----


def _of_numbers(on: Given, found: Expression) -> Verdict:
    cells = cells_of(on, found)
    source = "stated" if not cells else "printed" if found.of_print else "exact"
    said = [Part(part, cells).said() for part in parts_of(found.tree)]
    return Verdict(all(holds for holds, _ in said), f"{source}: {'; '.join(text for _, text in said)}")


# ---- runs ----

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Asked:
    """number: what is computed of each seed's runs. question: what is asked of it."""

    number: ast.expr
    question: Question


def _question(part: ast.expr, found: Expression, text: str) -> _Asked:
    """What one part of an expression asks of runs; ValueError where it is none of the questions."""
    given = {name: np.asarray(number_of(call)) for name, call in found.calls.items()}

    def wrong(why: str) -> ValueError:
        return ValueError(f"expression {text!r}: {why}")

    def reads(node: ast.expr) -> bool:
        return any(name in found.brackets for name in names_in(node))

    if yes := arguments_of(part, "always"):
        return _Asked(yes[0], Always())
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
    if either_side := arguments_of(number, "abs"):
        return _Asked(either_side[0], Apart(bound) if signs[0] == ">" else Between(-bound, bound))
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
        calls = {name: np.asarray(number_of(call)) for name, call in found.calls.items()}
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
            raise NoValue("both sides read the same numbers")
        try:
            found = computed(asked.number, {**calls, **values})
        except NoValue as none:
            raise NoValue(_with_cells(on, str(none), read, metric)) from None
        if found.ndim:
            raise UserError(f"{label} is a list of {len(found)}, not a number; reduce it, as in `mean(…)`")
        return float(found)

    metrics = list(dict.fromkeys(one.metric for one in read.values()))
    metric = metrics[0] if len(metrics) == 1 else ""
    title = on.titled(metric) if metric in on.experiment.measures else metric
    unit = on.unit(metric) if metric and _keeps_unit(asked.number) else ""
    about, label = {"metric": title, "unit": unit}, _label(on, asked.number, read, metric)
    paired = len(cells) > 1 and _is_difference(asked.number) and not _of_places(asked.number)
    given = {name: limits_of(one.metric, on.experiment.measures) for name, one in read.items()}
    given |= {name: (float(value), float(value)) for name, value in calls.items()}
    limits = limits_in(asked.number, given, {name: len(one.cells) for name, one in read.items() if len(one.cells) > 1})
    made = on.compared(label, cells, number, asked.question, paired=paired, limits=limits, **about)
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
    if metric in on.experiment.measures:
        return title
    return re.sub(r"^at (\d+) (.*)", r"\2 after \1 steps", title.replace(".", " "))


def _over_windows(on: Given, tree: ast.expr, read: Mapping[str, _Read], calls: Arrays, found: Comparison) -> str:
    """The error of a difference over validation windows, which is shown for lack of one over seeds and decides
    nothing."""
    differences: list[float] = []
    for seed in found.values:
        blocks = {name: _blocks(on.runs(one.cells[0])[seed], one.metric) for name, one in read.items()}
        if not any(one.whole for one in read.values()) and len({len(values) for values in blocks.values()}) == 1:
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


def _of_every_run(on: Given, found: Expression) -> Verdict:
    """Whether parts such as `every(flops[a, b] < [c])` are so of all numbers of the runs of these cells."""
    on.require([cell for bracket in found.brackets.values() for cell in bracket.parts[0]])
    given = {name: np.asarray(number_of(call)) for name, call in found.calls.items()}
    given |= {name: _of_all_runs(on, bracket) for name, bracket in found.brackets.items()}
    conditions = [condition for part in parts_of(found.tree) for condition in arguments_of(part, "every")]
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
        read = " and ".join(_in_words(on, metric) for metric in brackets[name].of)
        text = text.replace(name, f"{read} of {', '.join(brackets[name].parts[0])} ({span(given[name])})")
    return text
