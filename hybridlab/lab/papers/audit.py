"""Does a paper's arithmetic hold? Every check of its printed numbers, without any run.

- sentences: what claims say of printed, stated and computed numbers, one check for each number that they compare;
- cells: printed cells of columns that follow from shapes and definitions;
- scores: a score of a benchmark with N questions is k/N (questions.py);
- rows: a correlation that a sentence is about, without one row after the other;
- scalings: printed numbers that go with a size, such as a throughput with the batch.

Printed numbers are intervals (intervals.py), and scores of N questions the shares k/N that are printed so: a check
fails only where no correctly rounded numbers can give what is printed.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybridlab.config.loading import is_file_name
from hybridlab.errors import UserError, located, nearest
from hybridlab.files import user_path
from hybridlab.lab.papers.analytic import compute
from hybridlab.lab.papers.claims.expression import Bracket, Expression
from hybridlab.lab.papers.claims.in_words import Part, asked_in, span
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.claims.kinds import Given
from hybridlab.lab.papers.claims.numbers import Cells, cells_of, entry_at, value_of
from hybridlab.lab.papers.experiment import Claim, Column, Experiment, Row, Scaling
from hybridlab.lab.papers.formula import NoValue, arguments_of, computed, names_in
from hybridlab.lab.papers.intervals import PRINTED, Interval, cut, interval_of, one_of, rounded, rounded_twice
from hybridlab.lab.papers.loading import all_experiments, experiment_ids, load_experiment
from hybridlab.lab.papers.own_table import read_table
from hybridlab.lab.papers.questions import check as score_check
from hybridlab.lab.papers.questions import questions_of, scores, shares
from hybridlab.lab.papers.without_one import CORRELATIONS, without_one

ONE_ROW = "hangs on one row"
VERDICTS = ("agrees", "rounding", "rounded twice", "truncated", ONE_ROW, "disagrees", "cannot be checked")
"""agrees: it is so of the numbers as they are printed. rounding: only of numbers that are printed as these. rounded
twice: if it was rounded to one more digit first. truncated: if further digits were left out. hangs on one row: the sign
of a correlation, or whether it is significant, is another without a single row. disagrees: of no numbers that are
printed as these."""
ABOUT = ("sentence", "cell", "score", "row", "scaling")


@dataclass(frozen=True)
class Check:
    """One check. about: one of ABOUT. place: in the paper, with row and column. quote: the sentence. printed,
    recomputed: what is compared, as text. formula: in the paper's numbers. why: of what cannot be checked. claim: the
    claim of the entry's page that it belongs to, by its number, and the verdict there."""

    paper: str
    entry: str
    about: str
    place: str
    quote: str
    printed: str
    recomputed: str
    verdict: str
    formula: str
    why: str = ""
    claim: str = ""


def asked(what: Sequence[str]) -> list[Experiment]:
    """The experiments of papers, of ids, and of files of one's own, each once; without any, those of all papers."""
    if not what:
        return all_experiments()
    papers = list(dict.fromkeys(identifier.split("-")[0] for identifier in experiment_ids()))
    experiments: list[Experiment] = []
    for name in what:
        if name in papers:
            experiments += all_experiments(name)
        elif name.endswith(".csv"):
            experiments.append(read_table(user_path(name)))
        elif is_file_name(name.rpartition(":")[0] or name) or name in experiment_ids():
            experiments.append(load_experiment(name))
        else:
            default = f"the papers are {', '.join(papers)}, `hybridlab list` shows the entries."
            hint = nearest(name, [*papers, *experiment_ids()], default)
            raise UserError(
                f"{name}: there is no such paper or entry; {hint} A file is given as ./mine.yaml or ./mine.csv"
            )
    return list({(experiment.paper, experiment.id): experiment for experiment in experiments}.values())


def audit(experiments: Iterable[Experiment]) -> list[Check]:
    """All checks of experiments, in their order."""
    return [check for experiment in experiments for check in _checks(experiment)]


def _checks(experiment: Experiment) -> Iterator[Check]:
    sentences = [*_sentences(experiment)]
    stated = {cell: check for check, cells in sentences for cell in cells if check.about == "sentence"}
    # Of several sentences about a cell the one that is not so counts.
    stated |= {cell: check for check, cells in sentences for cell in cells if check.verdict == "disagrees"}
    yield from (check for check, _ in sentences)
    yield from _cells(experiment)
    yield from (_as_claimed(check, stated.get(cell)) for check, cell in _scores(experiment))
    yield from _scalings(experiment)


def _as_claimed(score: Check, sentence: Check | None) -> Check:
    """A score that no number of questions decides has the verdict of the sentence that states it."""
    if score.verdict != "cannot be checked" or sentence is None or sentence.verdict == "cannot be checked":
        return score
    by = f"{sentence.quote} ({sentence.claim})" if sentence.claim else sentence.quote
    formula = f"as stated: {sentence.formula}"
    return replace(sentence, about="score", place=score.place, quote="", formula=formula, claim=by)


def counts(checks: Iterable[Check]) -> dict[str, dict[str, int]]:
    """paper → verdict → how many checks, with a row "all"; verdicts in the order of VERDICTS."""
    table: dict[str, Counter[str]] = {}
    for check in checks:
        for row in (check.paper, "all"):
            table.setdefault(row, Counter())[check.verdict] += 1
    ordered = {name: table[name] for name in (*(paper for paper in table if paper != "all"), "all") if name in table}
    return {name: {word: row[word] for word in VERDICTS if row[word]} for name, row in ordered.items()}


# ---- sentences ----

Cell = tuple[str, str]
"""Row and column of the entry's own table."""


def _sentences(experiment: Experiment) -> Iterator[tuple[Check, list[Cell]]]:
    """The checks of an experiment's claims that read no run, and of what stands beside them; each with the printed
    cells that it says to be what is computed."""
    possible, formulas = _Known(experiment), set[str]()
    for key, number, claim in _stated(experiment):
        at = {"paper": experiment.paper, "entry": experiment.id, "about": "sentence", "quote": claim.text}
        if (expression := claim.test.expression) is None:
            yield _of_kind(experiment, claim, at, key, number), []
            continue
        try:
            cells = cells_of(Given(experiment, {}), expression)
            holds = all(value_of(tree, cells).all() for tree in expression.parts)
            at["claim"] = _verdict_there(experiment, claim, key, number, holds)
            yield from _parts(claim, expression, cells, at, possible)
        except NoValue as reason:
            yield _unchecked(at, claim.source, str(reason)), []
            continue
        for check in _without_rows(claim, expression, cells, at):
            if check.formula not in formulas:
                formulas.add(check.formula)
                yield check, []


def _stated(experiment: Experiment) -> Iterator[tuple[str, int, Claim]]:
    """Where each claim stands that reads no run, its number from 1 on, and the claim."""
    for key, stated in (("claims", experiment.claims), ("checks", experiment.checks)):
        yield from ((key, n, claim) for n, claim in enumerate(stated, 1) if claim.test.is_exact)


def _verdict_there(experiment: Experiment, claim: Claim, key: str, number: int, holds: bool) -> str:
    """The claim of the page, with its verdict; empty for what is no claim of a page."""
    if key != "claims":
        return ""
    word = judge(claim, experiment, {}).word if claim.controls else "holds" if holds else "fails"
    return f"claim {number} of {experiment.id}: {word}"


def _unchecked(at: Mapping[str, str], place: str, why: str) -> Check:
    return Check(**at, place=place, printed="", recomputed="", verdict="cannot be checked", formula="", why=why)


def _of_kind(experiment: Experiment, claim: Claim, at: Mapping[str, str], key: str, number: int) -> Check:
    """The check of a claim that is no expression."""
    try:
        verdict = judge(claim, experiment, {})
    except UserError as error:
        raise UserError(located(experiment.origin((key, number - 1, "test")), error)) from None
    if verdict.holds is None:
        return _unchecked(at, claim.source, verdict.evidence)
    label = f"claim {number} of {experiment.id}: {verdict.word}" if key == "claims" else ""
    check = Check(**at, place=claim.source, printed="", recomputed="", verdict="agrees", formula=verdict.evidence)
    return replace(check, verdict="agrees" if verdict.holds else "disagrees", claim=label)


def _parts(
    claim: Claim, expression: Expression, cells: Mapping[str, Cells], at: Mapping[str, str], possible: _Known
) -> Iterator[tuple[Check, list[Cell]]]:
    """A check for each number of each thing that an expression says."""
    # A sentence that rounds counts itself, of as many questions as it says there are.
    counts = any(arguments_of(node, "round") for node in ast.walk(expression.tree) if isinstance(node, ast.expr))
    brackets = {} if counts else expression.brackets
    intervals = {name: possible.intervals(brackets.get(name), named_cells) for name, named_cells in cells.items()}
    for tree in expression.parts:
        part = Part(tree, cells)
        true = value_of(tree, cells).astype(bool)
        for place in np.ndindex(true.shape):
            row, column = int(place[0]), int(place[1])
            names = part.names(true.shape, row, column)
            verdict, how = _verdict(tree, cells, intervals, bool(true[place]), (row, column))
            printed, recomputed = _sides(tree, part, intervals, (row, column))
            check = Check(
                **at,
                place=f"{claim.source}: {names}" if names else claim.source,
                printed=printed,
                recomputed=recomputed,
                verdict=verdict,
                formula="; ".join(filter(None, (part.text_at(tree, (row, column)), how))),
            )
            yield check, _cells_stated(tree, expression, cells, (row, column))


def _cells_stated(tree: ast.expr, test: Expression, cells: Mapping[str, Cells], place: tuple[int, int]) -> list[Cell]:
    """The printed cells of the own table that a part of an expression says to be what is computed."""
    sides = arguments_of(tree, "rounds_to")[1:2]
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        sides = [tree.left, tree.comparators[0]]
    stated = []
    for name in (side.id for side in sides if isinstance(side, ast.Name) and side.id in test.brackets):
        bracket, (row, column) = test.brackets[name], place
        if bracket.of == ("printed",) and bracket.elsewhere is None:
            rows, columns = cells[name].rows, cells[name].columns
            stated.append((rows[min(row, len(rows) - 1)], columns[min(column, len(columns) - 1)]))
    return stated


class _Known:
    """What printed cells can be: all numbers that are printed so, or of a score the shares of its questions."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.questions: dict[str, dict[Cell, int]] = {}

    def intervals(self, bracket: Bracket | None, cells: Cells) -> Interval:
        """What the cells of a bracket can be; bracket: None for what is computed."""
        if bracket is None or bracket.of != ("printed",):
            return rounded(cells.numbers, cells.decimals)
        identifier = bracket.elsewhere or self.experiment.id
        if identifier not in self.questions:
            self.questions[identifier] = questions_of(self.experiment.other(identifier))
        shape, questions = cells.numbers.shape, self.questions[identifier]
        decimals = np.broadcast_to(cells.decimals, shape)
        ways = []
        for (i, row), (j, column) in itertools.product(enumerate(cells.rows), enumerate(cells.columns)):
            value, digits = float(cells.numbers[i, j]), float(decimals[i, j])
            count = questions.get((row, column))
            fractions = shares(value, digits, count) if count and not np.isnan(digits) else []
            ends = np.array(fractions)[:, None]
            ways.append(Interval(ends, ends) if fractions else rounded(np.array([value]), digits))
        together = one_of(ways)
        return Interval(*(side.reshape(len(side), *shape) for side in (together.lows, together.highs)))


def _verdict(
    tree: ast.expr, cells: Mapping[str, Cells], intervals: Mapping[str, Interval], true: bool, place: tuple[int, int]
) -> tuple[str, str]:
    """One of VERDICTS, and how it was found where this is not by intervals."""
    if true:
        return "agrees", ""
    try:
        if entry_at(interval_of(tree, intervals).high, place):
            return "rounding", ""
    except NoValue as reason:
        return _by_draws(tree, cells, intervals, place, str(reason))
    if (pair := _pair_stated(tree)) is not None:
        number, stated, digits = pair
        interval = interval_of(number, intervals)
        value = value_of(stated, cells)
        for word, form in (("rounded twice", rounded_twice), ("truncated", cut)):
            if entry_at(interval.meets(form(value, digits)), place):
                return word, ""
    return "disagrees", ""


DRAWS = 1_000


def _by_draws(
    tree: ast.expr, cells: Mapping[str, Cells], intervals: Mapping[str, Interval], place: tuple[int, int], why: str
) -> tuple[str, str]:
    """The verdict on what has no interval, from numbers that are drawn among those that are printed so."""
    chance, stays = np.random.default_rng(0), set[str]()
    for node in ast.walk(tree):
        stays |= {
            name
            for side in (arguments_of(node, "rounds_to") if isinstance(node, ast.expr) else [])[1:2]
            for name in names_in(side)
        }
    for _ in range(DRAWS):
        moved = {
            name: named_cells if name in stays else replace(named_cells, numbers=_drawn(intervals[name], chance))
            for name, named_cells in cells.items()
        }
        try:
            if entry_at(value_of(tree, moved), place):
                return "rounding", ""
        except NoValue:
            continue
    return "disagrees", f"by {DRAWS:,} draws of numbers that are printed so, since {why}"


def _drawn(interval: Interval, chance: np.random.Generator) -> np.ndarray:
    """Numbers in an interval, of one way of each entry, often at its ends."""
    way = chance.integers(len(interval.lows), size=(1, *interval.lows.shape[1:]))
    low, high = (np.take_along_axis(side, way, axis=0)[0] for side in (interval.lows, interval.highs))
    share: np.ndarray = np.clip(chance.uniform(-0.5, 1.5, low.shape), 0, 1)
    return low + share * (high - low)


def _pair_stated(tree: ast.expr) -> tuple[ast.expr, ast.expr, int] | None:
    """What is computed, the stated number that it is to be, and the digits of that; None for anything else."""
    arguments = arguments_of(tree, "rounds_to")
    if arguments and not names_in(arguments[2]):
        return arguments[0], arguments[1], int(computed(arguments[2], {}))
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        number, stated = tree.left, tree.comparators[0]
        digits = len(ast.unparse(stated).partition(".")[2])
        if not names_in(stated) and names_in(number) and digits:
            return number, stated, digits
    return None


def _sides(tree: ast.expr, part: Part, intervals: Mapping[str, Interval], place: tuple[int, int]) -> tuple[str, str]:
    """What is printed, or asked, and what is computed of other numbers; empty where an expression compares more."""
    if arguments := arguments_of(tree, "rounds_to"):
        return part.text_at(arguments[1], place), _shown(arguments[0], intervals, place)
    if not isinstance(tree, ast.Compare):
        return "", ""
    if bound := asked_in(tree):
        number = tree.comparators[0] if len(tree.ops) > 1 else tree.left
        printed = part.text_at(tree.comparators[0], place) if isinstance(tree.ops[0], ast.Eq) else f"required {bound}"
        return printed, _shown(number, intervals, place)
    return part.text_at(tree.left, place), _shown(tree.comparators[0], intervals, place)


def _shown(number: ast.expr, intervals: Mapping[str, Interval], place: tuple[int, int]) -> str:
    """What a number can be: from its lowest to its highest, or one of up to four."""
    try:
        bounds = interval_of(number, intervals)
    except NoValue:
        return ""
    ways = sorted(
        {(entry_at(low, place), entry_at(high, place)) for low, high in zip(bounds.lows, bounds.highs, strict=True)}
    )
    if len(ways) <= 4:
        return " or ".join(dict.fromkeys(span(np.array(way)) for way in ways))
    return span(np.array(ways))


# ---- rows ----


def _without_rows(
    claim: Claim, expression: Expression, cells: Mapping[str, Cells], at: Mapping[str, str]
) -> Iterator[Check]:
    """A check of each correlation of a sentence: does it stay what it is without any single row?"""
    calls = [node for node in ast.walk(expression.tree) if isinstance(node, ast.Call)]
    for call in calls:
        kind = CORRELATIONS.get(ast.unparse(call.func))
        names = names_in(call)
        if kind is None or not names:
            continue
        lists = [value_of(argument, cells) for argument in call.args]
        shape = np.broadcast_shapes(*(numbers.shape for numbers in lists))
        lists = [np.broadcast_to(numbers, shape) for numbers in lists]
        axis = 0 if shape[0] > 1 else 1
        of_names = [(cells[name].rows, cells[name].columns)[axis] for name in names]
        # A function such as steps() makes lists of other lengths.
        entries = tuple(f"entry {number + 1}" for number in range(shape[axis]))
        rows = next((ids for ids in of_names if len(ids) == len(entries)), entries)
        others = dict.fromkeys(", ".join((cells[name].columns, cells[name].rows)[axis]) for name in names)
        outcome = without_one(kind, lists, axis, rows)
        title = f"{kind} of {' with '.join(others)}"
        yield Check(
            **{**at, "about": "row", "claim": ""},
            place=claim.source,
            printed=outcome.whole,
            recomputed=outcome.spread,
            verdict="cannot be checked" if outcome.why else ONE_ROW if outcome.hangs else "agrees",
            formula="; ".join((title, *outcome.hangs)),
            why=outcome.why,
        )


# ---- cells ----


def _cells(experiment: Experiment) -> Iterator[Check]:
    """The printed cells that follow from shapes and definitions."""
    for column in (column for column in experiment.columns if column.compute is not None):
        for row in experiment.rows:
            printed = row.paper.get(column.name)
            if not isinstance(printed, int | float) or isinstance(printed, bool):
                continue
            call, digits = {**(column.compute or {}), **row.given}, column.digits_of(row)
            at = {"paper": experiment.paper, "entry": experiment.id, "about": "cell", "quote": ""}
            place = f"{experiment.source}: {row.short}, {column.name}"
            try:
                value = compute(column.compute or {}, row.given)
            except (UserError, ArithmeticError) as error:
                yield _unchecked(at, place, str(error))
                continue
            if isinstance(value, str):
                continue
            yield Check(
                **at,
                place=place,
                printed=f"{printed:,.{digits}f}",
                recomputed=span(np.array(value * column.factor)),
                verdict=_of_number(printed, digits, value * column.factor),
                formula=_in_words(call, column),
            )


def _of_number(printed: float, digits: int, value: float) -> str:
    """Whether a number is printed as it is."""
    number = Interval.of(value)
    ways = (word for word, form in PRINTED.items() if number.meets(form(printed, float(digits))))
    return next(ways, "disagrees")


def _in_words(call: Mapping[str, Any], column: Column) -> str:
    """A call of an analytic function with its arguments."""
    arguments = ", ".join(f"{name} {value}" for name, value in call.items() if name != "function")
    factor = f" × {column.factor:g}" if column.factor != 1 else ""
    return f"{str(call['function']).replace('_', ' ')} ({arguments}){factor}"


# ---- scores ----


def _scores(experiment: Experiment) -> Iterator[tuple[Check, Cell]]:
    """The printed scores of benchmarks, each k of N questions; and where each stands."""
    for score in scores(experiment):
        outcome = score_check(score)
        low, high = outcome.recomputed
        estimated = " (N is estimated from the column)" if score.estimated and outcome.formula else ""
        check = Check(
            paper=experiment.paper,
            entry=experiment.id,
            about="score",
            place=f"{experiment.source}: {score.row}, {score.column}",
            quote="",
            printed=f"{score.value:.{score.digits}f}",
            recomputed=" or ".join(dict.fromkeys(text for text in (low, high) if text)),
            verdict=outcome.verdict,
            formula=outcome.formula + estimated,
            why=outcome.why,
        )
        yield check, (score.row, score.column)


# ---- scalings ----


def _scalings(experiment: Experiment) -> Iterator[Check]:
    """The printed numbers that go with a size: each against that of the next smaller size in rows of its kind."""
    for column in (column for column in experiment.columns if column.scaling is not None):
        assert column.scaling is not None
        by, each = column.scaling.by, column.scaling.each
        kinds: dict[tuple[str, ...], list[tuple[Interval, Row]]] = {}
        for row in experiment.rows:
            size = _size(experiment, row, by)
            if size is not None and _is_number(row.paper.get(column.name)):
                kinds.setdefault(tuple(str(row.given.get(name)) for name in each), []).append((size, row))
        for rows in kinds.values():
            rows.sort(key=lambda pair: float(pair[0].low))
            for (small, before), (large, row) in itertools.pairwise(rows):
                if float(large.low) > float(small.high):
                    yield _scaling(experiment, column, column.scaling, (before, small), (row, large))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(experiment: Experiment, row: Row, by: str) -> Interval | None:
    """A row's size, under what is given or as a printed cell; None without one, and for one that is not above 0."""
    if by in row.given:
        value, digits = row.given[by], float("nan")
    else:
        value, digits = row.paper.get(by), experiment.column(by).decimals_of(row)
    return rounded(float(value), digits) if _is_number(value) and value > 0 else None


def _scaling(
    experiment: Experiment, column: Column, scaling: Scaling, small: tuple[Row, Interval], large: tuple[Row, Interval]
) -> Check:
    """Whether a number is as large as it can be, and has to be, for a size."""
    (before, small_size), (row, large_size) = small, large
    values = [float(line.paper[column.name]) for line in (before, row)]
    printed = [rounded(value, column.decimals_of(line)) for value, line in zip(values, (before, row), strict=True)]
    sizes = [(float(size.low) + float(size.high)) / 2 for size in (small_size, large_size)]
    powers = scaling.at_least, scaling.at_most
    ends = [values[0] * (sizes[1] / sizes[0]) ** power for power in powers]
    factors = [float(large_size.low / small_size.high), float(large_size.high / small_size.low)]
    # A power rises or falls with its base, and so the ends of a product.
    corners = [
        [side * factor**power for side in (float(printed[0].low), float(printed[0].high)) for factor in factors]
        for power in powers
    ]
    within = min(ends) <= values[1] <= max(ends)
    possible = float(printed[1].high) >= min(map(min, corners)) and float(printed[1].low) <= max(map(max, corners))
    times = f"{values[1]:,.10g} / {values[0]:,.10g} = {values[1] / values[0]:.4g}" if values[0] else ""
    return Check(
        paper=experiment.paper,
        entry=experiment.id,
        about="scaling",
        place=f"{experiment.source}: {row.short} against {before.short}, {column.name}",
        quote="",
        printed=f"{values[1]:,.{column.digits_of(row)}f}",
        recomputed=span(np.array(ends)),
        verdict="agrees" if within else "rounding" if possible else "disagrees",
        formula=f"{times} for {scaling.by} {sizes[1]:g} / {sizes[0]:g} = {sizes[1] / sizes[0]:.4g}",
    )
