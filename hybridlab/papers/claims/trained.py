"""Claim kinds that several papers use, tested on the runs made here.

    {kind: lower, pairs: [[A, B], [C, D]], metric: results.tasks.retrieval.loss.outside}
    {kind: lower, pairs: [[A, B]], by: 0.02}
    {kind: higher, pairs: [[A, B]], times: 2}
    {kind: differs, pairs: [[A, B]], by: 0.1, reason: "a twentieth of the entropy of a row over eight tokens"}
    {kind: lower_than_mean, cell: A, over: [B, C, D]}
    {kind: higher_than_mean, cell: A, over: [B, C, D], also: [E]}
    {kind: equivalent, pairs: [[A, B]], margin: 0.01, reason: "a tenth of the smallest gain that the table prints"}
    {kind: measured_bounds, cell: [A, B], metric: late-overlap, below: 0.9}

A metric is a dotted path into a record, or a measure of the file (papers/formula.py). `pairs` name cells, or with
`rows: true` the short names of rows. The metric is the validation loss by default; with `metrics` each of them is
compared in every pair. One claim makes all these comparisons together (Holm).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hybridlab.papers.calls import CellName, CellNames, MetricPath, Refers, RowNames, TablePath
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, beyond, claim_kind, metric_of, value_at
from hybridlab.papers.claims.verdict import NotRun, Open, Verdict
from hybridlab.runs.record import Record
from hybridlab.statistics import (
    FEWEST_SEEDS,
    Above,
    Always,
    Apart,
    Below,
    Between,
    Question,
    block_mean,
    rank_correlation,
)

LOSS = "results.validation.loss"
_Arm = Annotated[str, Refers("cell", row_if="rows")]
Pairs = Annotated[list[tuple[_Arm, _Arm]], Field(min_length=1)]
Metrics = Annotated[list[MetricPath], Field(min_length=1)]
Draws = Annotated[CellNames, Field(min_length=2)]
Margin = Annotated[float, Field(gt=0)]
Gain = Annotated[float, Field(ge=0)]
Times = Annotated[float, Field(ge=1)]


@claim_kind
def lower(
    on: Given,
    pairs: Pairs,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
    by: Gain = 0.0,
    times: Times = 1.0,
) -> list[Comparison]:
    """In every pair the first has a lower metric than the second, by more than `by`, also if it were `times` as large
    ("much smaller": less than half, with 2)."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Below(-by), times=(times, 1.0))


@claim_kind
def higher(
    on: Given,
    pairs: Pairs,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
    by: Gain = 0.0,
    times: Times = 1.0,
) -> list[Comparison]:
    """In every pair the first has a higher metric than the second, by more than `by`, also if that were `times` as
    large ("far more": more than twice as much, with 2)."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Above(by), times=(1.0, times))


@claim_kind
def differs(
    on: Given,
    pairs: Pairs,
    by: Margin,
    reason: str,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
) -> list[Comparison]:
    """In every pair the metrics differ, to either side, by more than `by` ("reduces, or elevates"); `reason` says why
    it is so large. It fails where they are resolved to differ by less."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Apart(by))


@claim_kind
def equivalent(
    on: Given,
    pairs: Pairs,
    margin: Margin,
    reason: str,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
) -> list[Comparison]:
    """In every pair the metrics differ by less than a margin ("comparable", "no loss"); `reason` says why it is so
    large. Not resolved is not equal."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Between(-margin, margin))


@claim_kind
def lower_or_equal(
    on: Given,
    pairs: Pairs,
    margin: Margin,
    reason: str,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
) -> list[Comparison]:
    """In every pair the first has a lower metric than the second, or one that is higher by less than a margin ("matches
    or exceeds"). It fails where the first is resolved to be higher by more."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Between(None, margin))


@claim_kind
def lower_than_mean(
    on: Given, cell: CellName, over: Draws, metric: MetricPath = LOSS, also: CellNames | None = None
) -> list[Comparison]:
    """A cell has a lower metric than the mean of others in the same seed, and than each cell of `also`. The others are
    draws of one arm, such as random heads: how good a single draw is says little about the arm."""
    return _against_mean(on, cell, over, metric, also or [], Below())


@claim_kind
def higher_than_mean(
    on: Given, cell: CellName, over: Draws, metric: MetricPath = LOSS, also: CellNames | None = None
) -> list[Comparison]:
    """A cell has a higher metric than the mean of others in the same seed, and than each cell of `also`; see
    `lower_than_mean`."""
    return _against_mean(on, cell, over, metric, also or [], Above())


def _against_mean(
    on: Given, cell: str, over: list[str], metric: str, also: list[str], asked: Question
) -> list[Comparison]:
    def difference(ours: Record, *draws: Record) -> float:
        return on.number(ours, metric) - fmean(on.number(draw, metric) for draw in draws)

    label = f"{cell} − mean of {' and '.join(over)}{_beside(on, metric)}"
    found = on.compared(label, [cell, *over], difference, asked, paired=True, **_about(on, metric))
    return [found, *compared_pairs(on, [(cell, other) for other in also], [metric], False, asked)]


@claim_kind
def measured_bounds(
    on: Given, cell: CellName | CellNames, metric: MetricPath, above: float | None = None, below: float | None = None
) -> list[Comparison]:
    """A metric of one cell, or of each of several, lies above or below a bound."""

    asked = beyond("measured_bounds", above, below)
    # Without " nats" behind a path to a loss, which needs none beside its name.
    unit = on.unit(metric) if metric in on.experiment.measures else ""
    return [
        on.compared(f"{name}: {on.titled(metric)}", [name], lambda run: on.number(run, metric), one, unit=unit)
        for name in _all(cell)
        for one in asked
    ]


@claim_kind
def always(on: Given, cell: CellName | CellNames, metric: MetricPath) -> list[Comparison]:
    """What a measure asks, such as `argmax(y) == 3`, is so in every run of one cell, or of each of several."""

    return on.each(_all(cell), on.titled(metric), lambda run: on.number(run, metric), Always())


def _all(cell: str | list[str]) -> list[str]:
    return [cell] if isinstance(cell, str) else cell


@claim_kind
def go_together(
    on: Given,
    cells: Annotated[CellNames, Field(min_length=3)],
    metric: MetricPath,
    other: MetricPath,
    above: float = 0.0,
) -> list[Comparison]:
    """Over the cells of each seed, two metrics go together: their rank correlation lies above a bound."""

    def together(*runs: Record) -> float:
        columns = [[on.number(run, one) for run in runs] for one in (metric, other)]
        value = rank_correlation(*columns)
        if value is None:
            raise Open(f"{on.titled(metric)} or {on.titled(other)} is the same in all cells")
        return value

    label = f"rank correlation over {len(cells)} cells of {on.titled(metric)} and {on.titled(other)}"
    return [on.compared(label, cells, together, Above(above))]


def compared_pairs(
    on: Given,
    pairs: Iterable[tuple[str, str]],
    metrics: list[str],
    rows: bool,
    asked: Question,
    times: tuple[float, float] = (1.0, 1.0),
) -> list[Comparison]:
    """One comparison for each metric and pair: the difference first − second, paired by seed. rows: the pairs are the
    short names of rows. times: factors on the first and on the second."""
    comparisons = []
    for metric, pair in itertools.product(metrics, pairs):

        def number(ours: Record, theirs: Record, metric: str = metric) -> float:
            return times[0] * on.number(ours, metric) - times[1] * on.number(theirs, metric)

        cells = [on.cell_of(name) if rows else name for name in pair]
        named = (name if factor == 1 else f"{factor:g} × {name}" for name, factor in zip(pair, times, strict=True))
        label, about = " − ".join(named) + _beside(on, metric), _about(on, metric)
        found = on.compared(label, cells, number, asked, paired=True, **about)
        if 0 < found.n < FEWEST_SEEDS:
            found = replace(found, note=_over_windows(on, cells, found, metric, times))
        comparisons.append(found)
    return comparisons


def _over_windows(on: Given, cells: list[str], found: Comparison, metric: str, times: tuple[float, float]) -> str:
    """The error of a difference over validation windows, which is shown for lack of one over seeds and decides
    nothing."""
    differences: list[float] = []
    for seed in found.values:
        ours, theirs = (_windows(on.runs(cell)[seed], metric) for cell in cells)
        if len(ours) == len(theirs):
            differences += [times[0] * a - times[1] * b for a, b in zip(ours, theirs, strict=True)]
    error = block_mean(differences).stderr
    return "" if error is None else f"± {error:.4f} over windows in blocks of ten"


def _windows(run: Record, metric: str) -> list[float]:
    """The values behind a metric that is the mean over windows; empty for another one."""
    try:
        values = value_at(run, f"{metric.rpartition('.')[0]}.windows".removeprefix("."))
    except NotRun:
        return []
    return values if isinstance(values, list) else []


def _about(on: Given, metric: str) -> dict[str, str]:
    """Fields of a comparison: its unit, and what it is of."""
    return {"unit": on.unit(metric), "metric": on.titled(metric) if metric in on.experiment.measures else metric}


def _beside(on: Given, metric: str) -> str:
    """A metric behind a label, which needs none for the validation loss."""
    title = on.titled(metric)
    return "" if metric == LOSS else f", {title if metric in on.experiment.measures else title.replace('.', ' ')}"


# ---- training curves, and losses at other lengths and budgets ----

Span = tuple[float, float]
"""From one share of a run's steps to another."""
FIFTHS: list[Span] = [(0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)]
"""The last four fifths of a run; the first belongs to the warm-up."""
NEAR = 0.2
"""The loss at a FLOPs budget is that of a straight line fitted to the points within this share of the budget."""


@claim_kind
def lower_throughout(on: Given, pairs: list[tuple[CellName, CellName]], spans: list[Span] = FIFTHS) -> list[Comparison]:
    """In every pair the training loss of the first run is lower in every span of its steps: a gap that emerges early
    and persists."""
    return _along(on, pairs, spans, Below())


@claim_kind
def close_throughout(
    on: Given, pairs: list[tuple[CellName, CellName]], margin: float, reason: str, spans: list[Span] = FIFTHS
) -> list[Comparison]:
    """In every pair the training losses differ by less than a margin in every span ("nearly overlap"); `reason` says
    why it is so large."""
    return _along(on, pairs, spans, Between(-margin, margin))


def _along(on: Given, pairs: list[tuple[str, str]], spans: list[Span], asked: Question) -> list[Comparison]:
    def gap(cells: tuple[str, str], span: Span) -> Comparison:
        label = f"{cells[0]} − {cells[1]}, steps {100 * span[0]:.0f} to {100 * span[1]:.0f} %"
        return on.minus(label, *cells, lambda run: _mean_loss(run, span), asked, unit=" nats")

    return [gap(cells, span) for cells, span in itertools.product(pairs, spans)]


def _mean_loss(record: Record, span: Span) -> float:
    """The mean of the logged training loss over a span of the run's steps."""
    if "loss" not in record.history:
        raise NotRun("its run has logged no loss")
    step, values = (np.array(record.history[name], dtype=float) for name in ("step", "loss"))
    inside = (step > span[0] * step[-1]) & (step <= span[1] * step[-1])
    if not inside.any():
        raise Open("nothing was logged in a span")
    return float(values[inside].mean())


@claim_kind
def gap_grows(on: Given, pairs: list[tuple[CellName, CellName]], metric: MetricPath = LOSS) -> list[Comparison]:
    """The difference first − second of a metric grows from each pair to the next."""

    def grown(a: Record, b: Record, c: Record, d: Record) -> float:
        return on.number(c, metric) - on.number(d, metric) - (on.number(a, metric) - on.number(b, metric))

    return [
        on.compared(f"({c} − {d}) − ({a} − {b})", [a, b, c, d], grown, Above(), paired=True)
        for (a, b), (c, d) in itertools.pairwise(pairs)
    ]


@claim_kind
def extrapolates_better(on: Given, rows: RowNames, over: RowNames, factors: list[int]) -> list[Comparison]:
    """A lower loss than others at multiples of the training length."""
    metrics = [f"results.extrapolation.{factor}.loss" for factor in factors]
    return compared_pairs(on, itertools.product(rows, over), metrics, True, Below())


@claim_kind
def lower_at_flops(
    on: Given, cell: CellName, over_cell: CellName, shares: list[float], of: CellName
) -> list[Comparison]:
    """A lower training loss at the same FLOPs, at each of several budgets: shares of the total of the run `of`."""

    def difference(share: float) -> Comparison:
        def at_budget(run: Record, whole: Record) -> float:
            return loss_at(run, share * whole.flops)

        label = f"{cell} − {over_cell} at {100 * share:.0f} % of the FLOPs of {of}"
        return on.minus(label, cell, over_cell, at_budget, Below(), of, unit=" nats")

    return [difference(share) for share in shares]


def loss_at(record: Record, budget: float) -> float:
    """The training loss at a number of FLOPs, from a line fitted to the points near it; NotRun where there are fewer
    than four."""
    flops, loss = (np.array(record.history.get(name, [])) for name in ("flops", "loss"))
    near = np.abs(flops - budget) <= NEAR * budget
    if near.sum() < 4:
        raise NotRun("the log has fewer than four points near the budget")
    return float(np.polyfit(flops[near] / budget - 1, loss[near], 1)[1])


# ---- tables that a run or a study measured, such as the entropies of all heads ----


@claim_kind
def tables_alike(
    on: Given, cell: CellName, other: CellName, table: TablePath, above: float, within_rows: bool = False
) -> list[Comparison]:
    """The tables of two models, such as the entropies of all heads, have entries in the same order: their rank
    correlation lies above a bound. within_rows: the mean of the correlations of each row, which does not see what a
    whole row has in common."""

    def alike(ours: Record, theirs: Record) -> float:
        one, two = (np.array(value_at(record, table), dtype=float) for record in (ours, theirs))
        if one.shape != two.shape:
            raise Open(f"{cell} has a table of {one.shape}, {other} one of {two.shape}")
        rows = list(zip(one, two, strict=True)) if within_rows else [(one.ravel(), two.ravel())]
        values = [
            rank_correlation(a[known].tolist(), b[known].tolist()) for a, b in rows if (known := ~np.isnan(a + b)).any()
        ]
        found = [value for value in values if value is not None]
        if not found:
            raise Open("all entries of a table are the same")
        return sum(found) / len(found)

    label = f"rank correlation of {table.removeprefix('results.')}, {cell} and {other}"
    return [on.compared(f"{label}, mean over rows" if within_rows else label, [cell, other], alike, Above(above))]


@claim_kind
def order_in_rows_keeps(
    on: Given, cell: CellName, before: TablePath, after: TablePath, rows: list[int] | None = None, least: float = 0.5
) -> list[Comparison]:
    """In two tables of a run, such as the entropies [layer][head] of a probe at two steps, the numbers of each row keep
    their order: the mean over rows of the rank correlation lies above a bound. rows: only these, counted from 0."""

    def order(run: Record) -> float:
        tables = [value_at(run, path) for path in (before, after)]
        chosen = range(len(tables[0])) if rows is None else rows
        orders = [rank_correlation(tables[0][row], tables[1][row]) for row in chosen]
        known = [value for value in orders if value is not None]
        if not known:
            raise Open("the numbers of every row are all the same")
        return float(np.mean(known))

    where = "" if rows is None else f" {', '.join(map(str, rows))}"
    tables = " and ".join(path.removeprefix("results.") for path in (before, after))
    return on.each([cell], f"rank correlation within rows{where} of {tables}, mean", order, Above(least))


# ---- what every run must show: what is counted or exact, so that one run decides ----

CAUSALITY = "results.causality.largest_change"


def _changes(on: Given, cells: list[str], of: Callable[[Iterable[float]], float]) -> tuple[list[float], str]:
    """By cell, the smallest or largest of its runs' changes of a logit when later tokens change; and in words."""
    on.require(cells)
    found = {cell: of(metric_of(run, CAUSALITY) for run in on.runs(cell).values()) for cell in cells}
    return list(found.values()), ", ".join(f"{cell} {change:.1e}" for cell, change in found.items())


@claim_kind
def sees_no_later_token(on: Given, cells: CellNames, within: float = 1e-4) -> Verdict:
    """In no run does an output change when later tokens change, but for rounding (each run is tested at its end)."""
    changes, evidence = _changes(on, cells, max)
    return Verdict(max(changes) <= within, f"largest change of a logit: {evidence}; asked at most {within:g}")


@claim_kind
def sees_later_tokens(on: Given, cells: CellNames, beyond: float = 1e-4) -> Verdict:
    """In every run an output changes when later tokens change: the control of `sees_no_later_token` for models that
    leak on purpose. Like it, one run decides: what the probe finds in a model is exact, and no sample."""
    changes, evidence = _changes(on, cells, min)
    return Verdict(min(changes) > beyond, f"smallest change of a logit: {evidence}; asked above {beyond:g}")


@claim_kind
def growth_goes(on: Given, cells: CellNames, to: Literal["shallower", "deeper"]) -> Verdict:
    """In every run each layer that begins to loop lies above all that loop already (shallower, SGT's Eq. 11), or below
    the shallowest of them (deeper, as the sentence before it says). Layers count from 1, the first.

    Which layers grow depends on measured entropies, but not on which side of the others the next one lies: that is the
    controller's `direction`. So one run decides, and a run whose settings do not fix it decides nothing."""
    on.require(cells)
    runs = {f"{cell}, seed {seed}": run for cell in cells for seed, run in on.runs(cell).items()}
    directions = {(run.config.get("controller") or {}).get("direction") for run in runs.values()}
    if None in directions:
        raise Open("the settings of a run do not fix the direction of its growth")
    orders = {
        name: [event["layer"] + 1 for event in run.events if event["kind"] == "loop-added"]
        for name, run in runs.items()
    }
    shallower = [layer < min(order[:i]) for order in orders.values() for i, layer in enumerate(order) if i]
    if not shallower:
        raise Open("no run has a second layer that loops")
    holds = all(shallower) if to == "shallower" else not any(shallower)
    shown = "; ".join(f"{name}: {', '.join(map(str, order))}" for name, order in orders.items())
    fixed = f"fixed by the settings ({', '.join(sorted(map(str, directions)))}), whatever the entropies"
    return Verdict(holds, f"{fixed}; layers in the order in which they began to loop: {shown}")


@claim_kind
def same_in_every_run(on: Given, cells: CellNames, metric: MetricPath) -> Verdict:
    """A counted number, such as the tokens, is the same in all runs of these cells."""
    on.require(cells)
    found = {cell: sorted({on.number(run, metric) for run in on.runs(cell).values()}) for cell in cells}
    evidence = "; ".join(f"{cell} {', '.join(f'{value:,.6g}' for value in values)}" for cell, values in found.items())
    return Verdict(len({value for values in found.values() for value in values}) == 1, f"{metric}: {evidence}")


@claim_kind
def measured_cheaper(on: Given, rows: RowNames, over: RowNames) -> Verdict:
    """Every one of `rows` used fewer training FLOPs than every one of `over`, in every seed. FLOPs are counted, not
    measured, so that one run decides."""
    on.require([on.cell_of(name) for name in (*rows, *over)])
    spent = {name: [run.flops for run in on.runs(on.cell_of(name)).values()] for name in (*rows, *over)}
    ratios = {f"{a} / {b}": max(spent[a]) / min(spent[b]) for a in rows for b in over}
    evidence = "; ".join(f"{name} = {ratio:.4f}" for name, ratio in ratios.items())
    return Verdict(all(ratio < 1 for ratio in ratios.values()), f"counted: {evidence}")
