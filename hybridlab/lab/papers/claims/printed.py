"""Claim kinds on what a paper prints that an expression does not say: lists of names, which are no numbers, and work
that follows from plans; statements of whole numbers that are to be so in all cases. And sentences that nothing at hand
can test."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator

from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.calls import ColumnName, RowName, RowNames
from hybridlab.lab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.lab.papers.claims.of_runs import PARTS
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.formula import NotMeasured, NoValue, computed, names_in, parsed


@claim_kind
def not_here(on: Given, needs: str) -> Verdict:
    """A sentence about a model, a benchmark or a measurement that is not at hand: it stays in the list, not run.

    needs: what a test would take, such as "MMLU at 1.7B".
    """
    raise NotMeasured(f"needs {needs}")


@claim_kind
def printed_apart(on: Given, rows: RowNames, over: RowNames, column: ColumnName) -> Verdict:
    """No name in the printed lists of `rows` stands in those of the others. No expression, since it reads numbers."""
    ours, theirs = ({name for row in names for name in _names(on, row, column)} for names in (rows, over))
    return Verdict(not ours & theirs, f"printed: in both: {', '.join(sorted(ours & theirs)) or 'none'}")


def _names(on: Given, row: str, column: str) -> list[str]:
    """The names of a printed list."""
    text = on.row(row).paper.get(column)
    if not isinstance(text, str):
        raise NoValue(f"not printed: {row}, {column}")
    return text.split(", ")


@claim_kind
def printed_alike(on: Given, rows: RowNames, like: RowName, column: ColumnName) -> Verdict:
    """The printed lists of `rows` have as many names as that of another row, of as many layers (the part of a name
    before its `-`). No expression, since it reads numbers."""
    lists = {row: _names(on, row, column) for row in (*rows, like)}
    sizes = {row: (len(names), len({name.split("-")[0] for name in names})) for row, names in lists.items()}
    off = [f"{row}: {count} of {layers} layers" for row, (count, layers) in sizes.items() if sizes[row] != sizes[like]]
    count, layers = sizes[like]
    return Verdict(not off, f"printed: {like}: {count} of {layers} layers{listed(off)}")


def _formula(text: str) -> str:
    parsed(text)
    return text


_Formula = Annotated[str, AfterValidator(_formula)]
MOST_CASES = 20_000
"""So many cases of a statement are tried at most."""


@claim_kind
def stated_for_all(
    on: Given, over: dict[str, str | list[float]], formula: _Formula, where: _Formula = "1 == 1"
) -> Verdict:
    """A formula of whole numbers is so in every case: an index in a proof, an identity, a bound.

    over: name → its values, as a list or as "1 to g - 2", in the names above it. where: only cases in which this is so.
    The evidence has how many cases there are, the first that are not so, and the values of a name that tell them apart.
    """
    tree, condition = parsed(formula), parsed(where)
    if unknown := [name for part in (tree, condition) for name in names_in(part) if name not in over]:
        raise UserError(f"{formula!r}: `over` has no {unknown[0]!r}; {nearest(unknown[0], list(over))}")
    tried = [(case, bool(computed(tree, case))) for case in _cases(over) if bool(computed(condition, case))]
    if not tried:
        raise NoValue("there is no case to try")
    off = [case for case, true in tried if not true]
    examples = [f"{_in_values(case)}{_sides_of(tree, case)}" for case in off[:3]]
    distinctions = [text for name in over if (text := _told_apart(name, tried))] if off else []
    evidence = f"so in {len(tried) - len(off):,} of {len(tried):,} cases of {formula}{listed(examples)}"
    return Verdict(not off, "; ".join([evidence, *distinctions]))


def _cases(over: Mapping[str, str | Sequence[float]]) -> list[dict[str, float]]:
    """Every choice of values, as name → value."""
    cases: list[dict[str, float]] = [{}]
    for name, values in over.items():
        cases = [{**case, name: value} for case in cases for value in _values(name, values, case)]
        if len(cases) > MOST_CASES:
            raise UserError(f"over: {name}: that makes more than {MOST_CASES:,} cases; give fewer values")
    return cases


def _values(name: str, values: str | Sequence[float], case: Mapping[str, float]) -> Sequence[float]:
    if not isinstance(values, str):
        return values
    ends = values.split(" to ")
    try:
        first, last = (computed(parsed(end), case) for end in ends)
    except (ValueError, KeyError, NoValue) as error:
        why = f"there is no {error} above it" if isinstance(error, KeyError) else "write it as 0 to g - 1, or as a list"
        raise UserError(f"over: {name}: {values!r}: {why}") from None
    start = math.ceil(first)
    return [float(value) for value in range(start, min(math.floor(last), start + MOST_CASES) + 1)]


def _in_values(case: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in case.items())


def _sides_of(tree: ast.expr, case: Mapping[str, float]) -> str:
    """What the two sides of a comparison are."""
    if not isinstance(tree, ast.Compare):
        return ""
    return ": " + " against ".join(f"{float(computed(side, case)):g}" for side in (tree.left, *tree.comparators))


def _told_apart(name: str, tried: Sequence[tuple[Mapping[str, float], bool]]) -> str:
    """The values of a name with which it is never so, where it is always so with the others; else nothing."""
    outcomes: dict[float, set[bool]] = {}
    for case, true in tried:
        outcomes.setdefault(case[name], set()).add(true)
    off = sorted(value for value, results in outcomes.items() if results == {False})
    if not off or len(off) == len(outcomes) or any(len(results) > 1 for results in outcomes.values()):
        return ""
    others = [value for value in outcomes if value not in off]
    if off[0] > max(others):
        which = f"{name} ≥ {off[0]:g}"
    elif off[-1] < min(others):
        which = f"{name} ≤ {off[-1]:g}"
    else:
        which = f"{name} {', '.join(f'{value:g}' for value in off)}"
    return f"never with {which}, always with the others"


@claim_kind
def printed_ratios_follow(on: Given, rounding: float = 0.05) -> Verdict:
    """The ratios of printed speeds to vanilla's equal the ratios of work in layers, L / (L + 3·h/H) and L / (L + 3),
    within the rounding of the cells. Measured speeds would scatter around these ratios, so the printed ones look
    computed. No expression, since each row has a base of its own and a ratio that follows from its model's plan.
    """
    off, count, largest = [], 0, 0.0
    rows = on.experiment.rows
    vanilla = {(r.given["group"], r.given["batch"]): r.short for r in rows if r.given["model"] == "Vanilla"}
    for row in (row for row in rows if row.given["model"] != "Vanilla"):
        base, expected = vanilla[row.given["group"], row.given["batch"]], _work_ratio(on, row.given)
        for part in PARTS:
            ours, theirs = on.printed((row.short, part), (base, part))
            low, high = (ours - rounding) / (theirs + rounding), (ours + rounding) / (theirs - rounding)
            count += 1
            largest = max(largest, abs(ours / theirs - expected))
            if not low <= expected <= high:
                off.append(f"{row.short} {part}: {ours / theirs:.4f} for {expected:.4f}")
    evidence = f"{count - len(off)} of {count} printed ratios are the ratio of work within the cells' rounding"
    return Verdict(not off, f"{evidence}; largest difference {largest:.4f}{listed(off)}")


def _work_ratio(on: Given, settings: dict[str, Any]) -> float:
    """Layers of the plain stack divided by layers that run; a head loop counts as its share of heads."""
    spec = on.experiment.benchmark
    assert spec is not None, "rows with a model and a batch are those of a benchmark"
    config = resolve(spec.models[settings["model"]].arch, spec.sizes["paper"][settings["group"]])
    work = 0.0
    for _, visit in final_structure(config).plan.places():
        if visit.part == "attention" and visit.heads is not None:
            work += len(visit.heads) / config.shape.heads
        elif visit.part != "mlp":
            # An MLP that is a visit of its own belongs to an attention that is counted already.
            work += 1
    return config.shape.layers / work
