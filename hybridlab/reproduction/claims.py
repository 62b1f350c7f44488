"""Tests of a paper's claims: on its own printed figures, and on the runs made here.

A test returns whether the claim holds (True, False, or None where this cannot be said) and its evidence with n. A
difference between trained models counts only where it is more than twice its standard error: over seeds from three
seeds on, else over the validation windows of one seed, which says nothing about other seeds and is labelled so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridlab.errors import UserError
from hybridlab.reproduction import allocation_claims, growth_claims, loop_claims, speed_claims
from hybridlab.reproduction.analytic import compute
from hybridlab.reproduction.experiment import Claim, Experiment, load_experiment
from hybridlab.reproduction.records import number_at
from hybridlab.reproduction.verdict import Records, Verdict, all_of, paired_difference


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
    better, worse = (experiment.row(name).paper[column] for name in (row, over))
    gain = 100 * (better / worse - 1)
    return Verdict(
        round(gain, digits) == percent, f"printed: {better:g} / {worse:g} − 1 = {gain:.2f} %, stated {percent:g} %"
    )


def printed_everywhere(experiment: Experiment, records: Records, row: str, over: str, columns: list[str]) -> Verdict:
    """One row above another in each of the printed columns."""
    left, right = experiment.row(row).paper, experiment.row(over).paper
    below = [c for c in columns if not left[c] > right[c]]
    return Verdict(
        not below, f"printed: above in {len(columns) - len(below)} of {len(columns)} columns" + _listed(below)
    )


def printed_above(experiment: Experiment, records: Records, rows: list[str], over: list[str], column: str) -> Verdict:
    """Every one of `rows` above every one of `over` in a printed column."""
    lowest = min(experiment.row(name).paper[column] for name in rows)
    highest = max(experiment.row(name).paper[column] for name in over)
    return Verdict(lowest > highest, f"printed: lowest {lowest:g}, highest of the others {highest:g}")


def printed_below(experiment: Experiment, records: Records, rows: list[str], over: list[str], column: str) -> Verdict:
    """Every one of `rows` below every one of `over` in a printed column."""
    highest = max(experiment.row(name).paper[column] for name in rows)
    lowest = min(experiment.row(name).paper[column] for name in over)
    return Verdict(highest < lowest, f"printed: highest {highest:g}, lowest of the others {lowest:g}")


def printed_points(
    experiment: Experiment, records: Records, row: str, over: str, column: str, points: float, digits: int = 2
) -> Verdict:
    """A difference in points that a sentence states, recomputed from the printed cells."""
    left, right = (experiment.row(name).paper[column] for name in (row, over))
    found = round(left - right, digits)
    return Verdict(found == points, f"printed: {left:g} − {right:g} = {found:+g}, stated {points:+g}")


def printed_percent(
    experiment: Experiment, records: Records, row: str, over: str, column: str, percent: float, digits: int = 2
) -> Verdict:
    """A relative increase that a sentence states, recomputed from the printed cells."""
    left, right = (experiment.row(name).paper[column] for name in (row, over))
    found = 100 * (left / right - 1)
    stated = f"stated {percent:g} %"
    return Verdict(round(found, digits) == percent, f"printed: {left:g} / {right:g} − 1 = {found:.3f} %, {stated}")


def printed_equal(
    experiment: Experiment, records: Records, row: str, column: str, other: str, other_row: str, other_column: str
) -> Verdict:
    """A printed cell equals the printed cell of another table."""
    here, there = experiment.row(row).paper[column], load_experiment(other).row(other_row).paper[other_column]
    return Verdict(here == there, f"printed: {here:g} here, {there:g} in {other}")


def printed_range(
    experiment: Experiment, records: Records, rows: list[str], over: list[str], column: str, low: float, high: float
) -> Verdict:
    """The reduction of each row against its counterpart, in percent of the printed cells, lies in a stated range."""
    pairs = [(experiment.row(a), experiment.row(b)) for a, b in zip(rows, over, strict=True)]
    values = {a.short: 100 * (1 - a.paper[column] / b.paper[column]) for a, b in pairs}
    outside = [f"{name}: {value:.2f}" for name, value in values.items() if not low <= value <= high]
    span = f"printed: {min(values.values()):.2f} to {max(values.values()):.2f} %, stated {low:g} to {high:g}"
    return Verdict(not outside, span + _listed(outside))


def computed_between(
    experiment: Experiment, records: Records, rows: list[str], column: str, low: float, high: float
) -> Verdict:
    """The exact figures of these rows lie between two bounds."""
    spec = next(c for c in experiment.columns if c.name == column)
    values = {name: compute(spec.compute or {}, experiment.row(name).given) * spec.factor for name in rows}
    outside = [f"{name}: {value:.2f}" for name, value in values.items() if not low <= value <= high]
    span = f"exact: {min(values.values()):.2f} to {max(values.values()):.2f}, stated {low:g} to {high:g}"
    return Verdict(not outside, span + _listed(outside))


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
    chosen = experiment.row(row)
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
        for left in (experiment.row(name) for name in rows)
        for right in (experiment.row(name) for name in over)
    ]
    if or_equal:
        parts = [
            Verdict(True if p.holds is None and "not run" not in p.evidence else p.holds, p.evidence) for p in parts
        ]
    return all_of(parts)


def measured_cheaper(experiment: Experiment, records: Records, rows: list[str], over: list[str]) -> Verdict:
    """Every one of `rows` has spent fewer training FLOPs than every one of `over`."""
    spent: dict[str, float | None] = {}
    for name in (*rows, *over):
        runs = records.get(experiment.row(name).cell or "", {})
        spent[name] = next(iter(runs.values()))["flops"] if runs else None
    if None in spent.values():
        return Verdict(None, "not run: " + ", ".join(name for name, value in spent.items() if value is None))
    ratios = {f"{a} / {b}": spent[a] / spent[b] for a in rows for b in over}
    return Verdict(all(r < 1 for r in ratios.values()), "; ".join(f"{name} = {r:.4f}" for name, r in ratios.items()))


def cells_better(experiment: Experiment, records: Records, pairs: list[list[str]], cells: list[str]) -> Verdict:
    """In each pair the first cell has a lower validation loss than the second; `cells` names all of them."""
    return all_of([paired_difference(records, (left, left), (right, right)) for left, right in pairs])


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
        printed_below,
        printed_points,
        printed_percent,
        printed_equal,
        printed_range,
        printed_averages,
        computed_between,
        computed_reduction,
        measured_better,
        measured_cheaper,
        cells_better,
        measured_bounds,
        overshoots_and_settles,
        target_met,
    )
} | allocation_claims.TESTS
TESTS |= growth_claims.TESTS | speed_claims.TESTS | loop_claims.TESTS


def _value(record: dict[str, Any], metric: str) -> float | None:
    return number_at(record, metric)[0]


def _listed(items: list[str]) -> str:
    return f" (not: {'; '.join(items)})" if items else ""
