"""Does a paper's arithmetic hold? Every check of its printed numbers, without any run.

- sentences: what claims say of printed, stated and computed numbers, one check for each number that they compare;
- cells: printed cells of columns that follow from shapes and definitions;
- scores: a score of a benchmark with N questions is k/N (questions.py).

Printed numbers are intervals (intervals.py): a check fails only where no correctly rounded numbers can give what is
printed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridlab.config.loading import is_file_name
from hybridlab.errors import UserError, nearest
from hybridlab.files import user_path
from hybridlab.papers.analytic import compute
from hybridlab.papers.claims.expression import SAYS, expression, is_exact, parts_of
from hybridlab.papers.claims.in_words import Part, arguments_of, asked_in, span
from hybridlab.papers.claims.judge import judge
from hybridlab.papers.claims.kinds import Given
from hybridlab.papers.claims.numbers import Cells, Expression, cells_of, entry_at, value_of
from hybridlab.papers.experiment import Claim, Column, Experiment
from hybridlab.papers.formula import NoValue, computed, names_in
from hybridlab.papers.intervals import PRINTED, Interval, cut, interval_of, rounded, rounded_twice
from hybridlab.papers.loading import all_experiments, experiment_ids, load_experiment
from hybridlab.papers.own_table import read_table
from hybridlab.papers.questions import check as score_check
from hybridlab.papers.questions import scores

VERDICTS = ("agrees", "rounding", "rounded twice", "truncated", "disagrees", "cannot be checked")
"""agrees: it is so of the numbers as they are printed. rounding: only of numbers that are printed as these. rounded
twice: if it was rounded to one more digit first. truncated: if further digits were left out. disagrees: of no numbers
that are printed as these."""


@dataclass(frozen=True)
class Check:
    """One check. about: sentence, cell or score. place: in the paper, with row and column. quote: the sentence.
    printed, recomputed: what is compared, as text. formula: in the paper's numbers. why: of what cannot be checked."""

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


def asked(what: Sequence[str]) -> list[Experiment]:
    """The experiments of papers, of ids, and of files of one's own, each once; without any, those of all papers."""
    if not what:
        return all_experiments()
    papers = list(dict.fromkeys(identifier.split("-")[0] for identifier in experiment_ids()))
    found: list[Experiment] = []
    for name in what:
        if name in papers:
            found += all_experiments(name)
        elif name.endswith(".csv"):
            found.append(read_table(user_path(name)))
        elif is_file_name(name.rpartition(":")[0] or name) or name in experiment_ids():
            found.append(load_experiment(name))
        else:
            known = f"the papers are {', '.join(papers)}, `hybridlab list` shows the entries."
            hint = nearest(name, [*papers, *experiment_ids()], known)
            raise UserError(
                f"{name}: there is no such paper or entry; {hint} A file is given as ./mine.yaml or ./mine.csv"
            )
    return list({(one.paper, one.id): one for one in found}.values())


def audit(experiments: Iterable[Experiment]) -> list[Check]:
    """All checks of experiments, in their order."""
    return [check for one in experiments for kind in (_sentences, _cells, _scores) for check in kind(one)]


def counts(checks: Iterable[Check]) -> dict[str, dict[str, int]]:
    """paper → verdict → how many checks, with a row "all"; verdicts in the order of VERDICTS."""
    table: dict[str, Counter[str]] = {}
    for check in checks:
        for row in (check.paper, "all"):
            table.setdefault(row, Counter())[check.verdict] += 1
    ordered = {name: table[name] for name in (*(one for one in table if one != "all"), "all") if name in table}
    return {name: {word: row[word] for word in VERDICTS if row[word]} for name, row in ordered.items()}


# ---- sentences ----


def _sentences(experiment: Experiment) -> Iterator[Check]:
    """The checks of an experiment's claims that read no run."""
    for claim in (one for one in experiment.claims if is_exact(one.test)):
        at = {"paper": experiment.paper, "entry": experiment.id, "about": "sentence", "quote": claim.text}
        if claim.test["kind"] != SAYS:
            yield _of_kind(experiment, claim, at)
            continue
        found = expression(claim.test["holds"])
        try:
            yield from _parts(claim, found, cells_of(Given(experiment, {}), found), at)
        except NoValue as reason:
            yield _unchecked(at, claim.source, str(reason))


def _unchecked(at: Mapping[str, str], place: str, why: str) -> Check:
    return Check(**at, place=place, printed="", recomputed="", verdict="cannot be checked", formula="", why=why)


def _of_kind(experiment: Experiment, claim: Claim, at: Mapping[str, str]) -> Check:
    """The check of a claim that is no expression."""
    verdict = judge(claim, experiment, {})
    if verdict.holds is None:
        return _unchecked(at, claim.source, verdict.evidence)
    word = "agrees" if verdict.holds else "disagrees"
    return Check(**at, place=claim.source, printed="", recomputed="", verdict=word, formula=verdict.evidence)


def _parts(claim: Claim, found: Expression, cells: Mapping[str, Cells], at: Mapping[str, str]) -> Iterator[Check]:
    """A check for each number of each thing that an expression says."""
    intervals = {name: rounded(one.numbers, one.decimals) for name, one in cells.items()}
    for tree in parts_of(found.tree):
        part = Part(tree, cells)
        true = value_of(tree, cells).astype(bool)
        for place in np.ndindex(true.shape):
            row, column = int(place[0]), int(place[1])
            names = part.names(true.shape, row, column)
            verdict, why = _verdict(tree, cells, intervals, bool(true[place]), (row, column))
            printed, recomputed = _sides(tree, part, intervals, (row, column))
            yield Check(
                **at,
                place=f"{claim.source}: {names}" if names else claim.source,
                printed=printed,
                recomputed=recomputed,
                verdict=verdict,
                formula=part.text_at(tree, (row, column)),
                why=why,
            )


def _verdict(
    tree: ast.expr,
    cells: Mapping[str, Cells],
    intervals: Mapping[str, Interval],
    true: bool,
    place: tuple[int, int],
) -> tuple[str, str]:
    """One of VERDICTS, and the reason of what cannot be checked."""
    if true:
        return "agrees", ""
    try:
        if entry_at(interval_of(tree, intervals).high, place):
            return "rounding", ""
        if (pair := _stated(tree)) is not None:
            number, stated, digits = pair
            found = interval_of(number, intervals)
            value = value_of(stated, cells)
            for word, form in (("rounded twice", rounded_twice), ("truncated", cut)):
                if entry_at(found.meets(form(value, digits)), place):
                    return word, ""
    except NoValue as reason:
        return "cannot be checked", f"not so as printed; {reason}"
    return "disagrees", ""


def _stated(tree: ast.expr) -> tuple[ast.expr, ast.expr, int] | None:
    """What is computed, the stated number that it is to be, and the digits of that; None for anything else."""
    if given := arguments_of(tree, "rounds_to"):
        return given[0], given[1], int(computed(given[2], {}))
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        number, stated = tree.left, tree.comparators[0]
        digits = len(ast.unparse(stated).partition(".")[2])
        if not names_in(stated) and names_in(number) and digits:
            return number, stated, digits
    return None


def _sides(tree: ast.expr, part: Part, intervals: Mapping[str, Interval], place: tuple[int, int]) -> tuple[str, str]:
    """What is printed, or asked, and what is computed of other numbers; empty where an expression compares more."""
    if given := arguments_of(tree, "rounds_to"):
        return part.text_at(given[1], place), _shown(given[0], intervals, place)
    if not isinstance(tree, ast.Compare):
        return "", ""
    if bound := asked_in(tree):
        number = tree.comparators[0] if len(tree.ops) > 1 else tree.left
        printed = part.text_at(tree.comparators[0], place) if isinstance(tree.ops[0], ast.Eq) else f"asked {bound}"
        return printed, _shown(number, intervals, place)
    return part.text_at(tree.left, place), _shown(tree.comparators[0], intervals, place)


def _shown(number: ast.expr, intervals: Mapping[str, Interval], place: tuple[int, int]) -> str:
    try:
        found = interval_of(number, intervals)
    except NoValue:
        return ""
    return span(np.array([entry_at(end, place) for end in (found.low, found.high)]))


# ---- cells ----


def _cells(experiment: Experiment) -> Iterator[Check]:
    """The printed cells that follow from shapes and definitions."""
    for column in (one for one in experiment.columns if one.compute is not None):
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


def _scores(experiment: Experiment) -> Iterator[Check]:
    """The printed scores of benchmarks, each k of N questions."""
    for score in scores(experiment):
        outcome = score_check(score)
        low, high = outcome.recomputed
        estimated = " (N is estimated from the column)" if score.estimated and outcome.formula else ""
        yield Check(
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
