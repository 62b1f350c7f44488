"""Tests of a paper's claims: on its own printed figures, and on the runs made here.

A test returns whether the claim holds (True, False, or None where this cannot be said) and its evidence with n. A
difference between trained models counts only where it is more than twice its standard error: over seeds from three
seeds on, else over the validation windows of one seed, which says nothing about other seeds and is labelled so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridlab.errors import UserError
from hybridlab.reproduction import allocation_claims
from hybridlab.reproduction.analytic import compute
from hybridlab.reproduction.experiment import Claim, Experiment, Row
from hybridlab.reproduction.records import number_at
from hybridlab.reproduction.verdict import Records, Verdict


def judge(claim: Claim, experiment: Experiment, records: Records) -> Verdict:
    arguments = dict(claim.test)
    kind = arguments.pop("kind", None)
    if kind not in TESTS:
        raise UserError(
            f"{experiment.id}: the claim {claim.text!r} has an unknown test {kind!r}; known: {', '.join(TESTS)}"
        )
    return TESTS[kind](experiment, records, **arguments)


# ---- on the paper's own figures ----


def printed_gain(
    experiment: Experiment, records: Records, row: str, over: str, column: str, percent: float, digits: int = 1
) -> Verdict:
    """The relative gain that a sentence states, recomputed from the printed cells."""
    better, worse = (_row(experiment, name).paper[column] for name in (row, over))
    gain = 100 * (better / worse - 1)
    return Verdict(
        round(gain, digits) == percent, f"printed: {better:g} / {worse:g} − 1 = {gain:.2f} %, stated {percent:g} %"
    )


def printed_everywhere(experiment: Experiment, records: Records, row: str, over: str, columns: list[str]) -> Verdict:
    """One row above another in each of the printed columns."""
    left, right = _row(experiment, row).paper, _row(experiment, over).paper
    below = [c for c in columns if not left[c] > right[c]]
    return Verdict(
        not below, f"printed: above in {len(columns) - len(below)} of {len(columns)} columns" + _listed(below)
    )


def printed_above(experiment: Experiment, records: Records, rows: list[str], over: list[str], column: str) -> Verdict:
    """Every one of `rows` above every one of `over` in a printed column."""
    lowest = min(_row(experiment, name).paper[column] for name in rows)
    highest = max(_row(experiment, name).paper[column] for name in over)
    return Verdict(lowest > highest, f"printed: lowest {lowest:g}, highest of the others {highest:g}")


def printed_averages(experiment: Experiment, records: Records, column: str, of: list[str], digits: int = 2) -> Verdict:
    """Every printed average is the mean of its row's printed cells."""
    wrong = []
    for row in experiment.rows:
        mean = sum(row.paper[c] for c in of) / len(of)
        if abs(mean - row.paper[column]) > 0.5 * 10**-digits + 1e-9:
            wrong.append(f"{row.short}: mean {mean:.{digits + 1}f}, printed {row.paper[column]:g}")
    return Verdict(
        not wrong, f"{len(experiment.rows) - len(wrong)} of {len(experiment.rows)} averages follow" + _listed(wrong)
    )


def computed_reduction(
    experiment: Experiment, records: Records, row: str, before: str, after: str, column: str, digits: int = 1
) -> Verdict:
    """A printed reduction against the exact figures and against the printed ones."""
    spec = next(c for c in experiment.columns if c.name == column)
    chosen = _row(experiment, row)
    exact = compute(spec.compute or {}, chosen.given)
    printed = 100 * (1 - chosen.paper[after] / chosen.paper[before])
    stated = chosen.paper[column]
    return Verdict(
        round(exact, digits) == stated,
        f"exact figures give {exact:.2f} %, the printed ones {printed:.2f} %, stated {stated:g} %",
    )


# ---- on the runs made here ----


def measured_better(
    experiment: Experiment, records: Records, rows: list[str], over: list[str], or_equal: bool = False
) -> Verdict:
    """Every one of `rows` has a lower validation loss than every one of `over` (or none that is resolved as higher)."""
    parts = [
        paired_difference(records, (left.short, left.cell or ""), (right.short, right.cell or ""))
        for left in (_row(experiment, name) for name in rows)
        for right in (_row(experiment, name) for name in over)
    ]
    if or_equal:
        parts = [
            Verdict(True if p.holds is None and "not run" not in p.evidence else p.holds, p.evidence) for p in parts
        ]
    return _all(parts)


def cells_better(experiment: Experiment, records: Records, pairs: list[list[str]], cells: list[str]) -> Verdict:
    """In each pair the first cell has a lower validation loss than the second; `cells` names all of them."""
    return _all([paired_difference(records, (left, left), (right, right)) for left, right in pairs])


def _all(parts: list[Verdict]) -> Verdict:
    outcomes = [part.holds for part in parts]
    holds = None if None in outcomes and False not in outcomes else all(outcomes)
    return Verdict(holds, "; ".join(part.evidence for part in parts))


def paired_difference(records: Records, left: tuple[str, str], right: tuple[str, str]) -> Verdict:
    """Validation loss of one (label, cell) below that of another, on the same windows and seeds."""
    first, second = records.get(left[1], {}), records.get(right[1], {})
    seeds = sorted(set(first) & set(second))
    label = f"{left[0]} − {right[0]}"
    if not seeds:
        return Verdict(None, f"{label}: not run")
    windows = [np.subtract(*(r[s]["results"]["validation"]["windows"] for r in (first, second))) for s in seeds]
    over_seeds = len(seeds) >= 3
    samples = np.array([w.mean() for w in windows]) if over_seeds else np.concatenate(windows)
    mean, error = float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))
    n = f"{len(seeds)} seeds" if over_seeds else f"{len(samples)} windows, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    holds = None if abs(mean) <= 2 * error else mean < 0
    unresolved = "" if holds is not None else ", not resolved"
    return Verdict(holds, f"{label} = {mean:+.4f} ± {error:.4f} nats ({n}{unresolved})")


def measured_bounds(
    experiment: Experiment,
    records: Records,
    cell: str,
    metric: str,
    above: float | None = None,
    below: float | None = None,
) -> Verdict:
    """A metric of one cell lies above or below a bound, in every seed."""
    values = [value for record in records.get(cell, {}).values() if (value := _value(record, metric)) is not None]
    if not values:
        return Verdict(None, f"{cell}: not run")
    holds = all((above is None or v > above) and (below is None or v < below) for v in values)
    bound = " and ".join(
        f"{name} {value:g}" for name, value in (("above", above), ("below", below)) if value is not None
    )
    return Verdict(holds, f"{cell}: {', '.join(f'{v:.3f}' for v in values)}; asked {bound} (n = {len(values)})")


def overshoots_and_settles(experiment: Experiment, records: Records, cells: list[str], within: float) -> Verdict:
    """Expected sparsity rises above its target during mask learning and ends close to it."""
    parts, holds = [], []
    for cell in cells:
        for record in records.get(cell, {}).values():
            found = record["controllers"]["mask-learning"]
            highest, last, rho = found["highest_expected_sparsity"], found["expected_sparsity"], found["target"]
            holds.append(highest > rho + within and abs(last - rho) <= within)
            undecided = f"{100 * found['undecided_share']:.0f} % of the units undecided"
            parts.append(f"{cell}: rose to {highest:.3f}, ended at {last:.3f} for {rho:g}, {undecided}")
    return Verdict(all(holds) if holds else None, "; ".join(parts) or "not run")


def target_met(experiment: Experiment, records: Records, cells: list[str]) -> Verdict:
    """The fixed masks meet ρ exactly; says what the paper's threshold would have given."""
    parts, holds = [], []
    for cell in cells:
        for record in records.get(cell, {}).values():
            found = record["controllers"]["mask-learning"]
            holds.append(found["realised_sparsity"] == found["target"])
            parts.append(f"{cell}: {found['realised_sparsity']:g} (threshold α > 0: {found['threshold_sparsity']:g})")
    return Verdict(all(holds) if holds else None, "; ".join(parts) or "not run")


TESTS: dict[str, Callable[..., Verdict]] = {
    f.__name__: f
    for f in (
        printed_gain,
        printed_everywhere,
        printed_above,
        printed_averages,
        computed_reduction,
        measured_better,
        cells_better,
        measured_bounds,
        overshoots_and_settles,
        target_met,
    )
} | allocation_claims.TESTS


def _row(experiment: Experiment, name: str) -> Row:
    for row in experiment.rows:
        if row.short == name:
            return row
    raise UserError(
        f"{experiment.id}: a claim names the row {name!r}; rows: {', '.join(r.short for r in experiment.rows)}"
    )


def _value(record: dict[str, Any], metric: str) -> float | None:
    return number_at(record, metric)[0]


def _listed(items: list[str]) -> str:
    return f" (not: {'; '.join(items)})" if items else ""
