"""Claim kinds on what a paper prints that an expression does not say: lists of names, which are no numbers, and work
that follows from plans. And sentences that nothing at hand can test."""

from __future__ import annotations

from typing import Any

from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.papers.calls import ColumnName, RowName, RowNames
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.of_runs import PARTS
from hybridlab.papers.claims.verdict import Verdict
from hybridlab.papers.formula import NotMeasured, NoValue


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
        base, wanted = vanilla[row.given["group"], row.given["batch"]], _work_ratio(on, row.given)
        for part in PARTS:
            ours, theirs = on.printed((row.short, part), (base, part))
            low, high = (ours - rounding) / (theirs + rounding), (ours + rounding) / (theirs - rounding)
            count += 1
            largest = max(largest, abs(ours / theirs - wanted))
            if not low <= wanted <= high:
                off.append(f"{row.short} {part}: {ours / theirs:.4f} for {wanted:.4f}")
    evidence = f"{count - len(off)} of {count} printed ratios are the ratio of work within the cells' rounding"
    return Verdict(not off, f"{evidence}; largest difference {largest:.4f}{listed(off)}")


def _work_ratio(on: Given, given: dict[str, Any]) -> float:
    """Layers of the plain stack divided by layers that run; a head loop counts as its share of heads."""
    spec = on.experiment.benchmark
    assert spec is not None, "rows with a model and a batch are those of a benchmark"
    config = resolve(spec.models[given["model"]].arch, spec.sizes["paper"][given["group"]])
    work = 0.0
    for _, visit in final_structure(config).plan.places():
        if visit.part == "attention" and visit.heads is not None:
            work += len(visit.heads) / config.shape.heads
        elif visit.part != "mlp":
            # An MLP that is a visit of its own belongs to an attention that is counted already.
            work += 1
    return config.shape.layers / work
