"""Claim kinds on differences between runs that last, grow or shrink, and on what runs log; for any paper."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from hybridlab.papers.calls import CellName, MetricPath
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, metric_of, probe_of
from hybridlab.papers.claims.sgt import logged_entropies, spikes
from hybridlab.papers.claims.spiral import LoopMetric
from hybridlab.papers.claims.trained import LOSS
from hybridlab.papers.claims.verdict import NotRun, Open, Verdict
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Always, Below, Between, Question, rank_correlation

Span = tuple[float, float]
"""From one share of a run's steps to another."""
FIFTHS: list[Span] = [(0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)]
"""The last four fifths of a run; the first belongs to the warm-up."""


# ---- training curves ----


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
    comparisons = []
    for (left, right), span in itertools.product(pairs, spans):

        def gap(ours: Record, theirs: Record, span: Span = span) -> float:
            return _mean_in(ours, "loss", span) - _mean_in(theirs, "loss", span)

        label = f"{left} − {right}, steps {100 * span[0]:.0f} to {100 * span[1]:.0f} %"
        comparisons.append(on.compared(label, [left, right], gap, asked, unit=" nats", paired=True))
    return comparisons


def _mean_in(record: Record, column: str, span: Span) -> float:
    """The mean of a logged column over a span of the run's steps."""
    if column not in record.history:
        raise NotRun(f"its run has logged no {column}")
    step, values = (np.array(record.history[name], dtype=float) for name in ("step", column))
    inside = (step > span[0] * step[-1]) & (step <= span[1] * step[-1])
    if not inside.any():
        raise Open("nothing was logged in a span")
    return float(values[inside].mean())


@claim_kind
def gap_grows(on: Given, pairs: list[tuple[CellName, CellName]], metric: MetricPath = LOSS) -> list[Comparison]:
    """The difference first − second of a metric grows from each pair to the next."""
    comparisons = []
    for before, after in itertools.pairwise(pairs):

        def grown(a: Record, b: Record, c: Record, d: Record) -> float:
            return on.number(c, metric) - on.number(d, metric) - (on.number(a, metric) - on.number(b, metric))

        label = f"({after[0]} − {after[1]}) − ({before[0]} − {before[1]})"
        comparisons.append(on.compared(label, [*before, *after], grown, Above(), paired=True))
    return comparisons


# ---- what every run must show ----


@claim_kind
def sees_no_later_token(on: Given, cells: list[CellName], within: float = 1e-4) -> Verdict:
    """In no run does an output change when later tokens change, but for rounding (each run is tested at its end)."""
    on.require(cells)
    largest = {cell: max(metric_of(run, CAUSALITY) for run in on.runs(cell).values()) for cell in cells}
    evidence = ", ".join(f"{cell} {change:.1e}" for cell, change in largest.items())
    return Verdict(max(largest.values()) <= within, f"largest change of a logit: {evidence}; asked at most {within:g}")


@claim_kind
def sees_later_tokens(on: Given, cells: list[CellName], beyond: float = 1e-4) -> Verdict:
    """In every run an output changes when later tokens change: the control of `sees_no_later_token` for models that
    leak on purpose. Like it, one run decides: what the probe finds in a model is exact, and no sample."""
    on.require(cells)
    smallest = {cell: min(metric_of(run, CAUSALITY) for run in on.runs(cell).values()) for cell in cells}
    evidence = ", ".join(f"{cell} {change:.1e}" for cell, change in smallest.items())
    return Verdict(min(smallest.values()) > beyond, f"smallest change of a logit: {evidence}; asked above {beyond:g}")


CAUSALITY = "results.causality.largest_change"


@claim_kind
def growth_goes(on: Given, cells: list[CellName], to: Literal["shallower", "deeper"]) -> Verdict:
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
def same_in_every_run(on: Given, cells: list[CellName], metric: MetricPath) -> Verdict:
    """A counted number, such as the tokens, is the same in all runs of these cells."""
    on.require(cells)
    found = {cell: sorted({on.number(run, metric) for run in on.runs(cell).values()}) for cell in cells}
    evidence = "; ".join(f"{cell} {', '.join(f'{value:,.6g}' for value in values)}" for cell, values in found.items())
    return Verdict(len({value for values in found.values() for value in values}) == 1, f"{metric}: {evidence}")


@claim_kind
def entropies_within(on: Given, cell: CellName, low: float, high: float) -> Verdict:
    """Every entropy that the runs of a cell have logged lies between two bounds."""
    on.require([cell])
    values = np.concatenate([logged_entropies(run)[1].flatten() for run in on.runs(cell).values()])
    evidence = f"{cell}: {values.size:,} entropies, {values.min():.4f} to {values.max():.4f}"
    return Verdict(bool(low <= values.min() and values.max() <= high), f"{evidence}, asked {low:g} to {high:g}")


# ---- entropies over training ----


def _part(values: np.ndarray, span: Span) -> np.ndarray:
    """The mean over a span of the readings."""
    count = len(values)
    first, last = int(span[0] * count), max(int(span[0] * count) + 1, int(span[1] * count))
    part: np.ndarray = values[first:last].mean(axis=0)
    return part


@claim_kind
def entropy_falls(on: Given, cell: CellName) -> list[Comparison]:
    """The mean entropy over all heads is lower in the last fifth of training than in the first tenth."""

    def change(run: Record) -> float:
        entropies = logged_entropies(run)[1]
        return float((_part(entropies, (0.8, 1.0)) - _part(entropies, (0.0, 0.1))).mean())

    return [on.compared(f"{cell}: mean entropy, last fifth − first tenth", [cell], change, Below())]


@claim_kind
def variance_surges(
    on: Given, cell: CellName, layers: Literal["deep", "shallow"], early: Span = (0.1, 0.4)
) -> list[Comparison]:
    """The variance of the heads' entropies inside a layer. deep (the last third of the layers): it surges, higher in
    the span `early` than in the first tenth, and then declines until the last fifth. shallow (the first third without
    the first layer): it rises, from the first tenth to `early` and on to the last fifth."""

    def change(run: Record, after: Span, before: Span) -> float:
        variance = logged_entropies(run)[1].var(axis=2)
        third = 1 + (variance.shape[1] - 1) // 3
        chosen = variance[:, -third:] if layers == "deep" else variance[:, 1 : 1 + third]
        return float((_part(chosen, after) - _part(chosen, before)).mean())

    start, end = (0.0, 0.1), (0.8, 1.0)

    def surge(run: Record) -> float:
        return change(run, early, start)

    def later(run: Record) -> float:
        return change(run, end, early)

    name = f"{cell}, {layers} layers: variance of entropies"
    last = Below() if layers == "deep" else Above()
    return [
        on.compared(f"{name}, early − at the start", [cell], surge, Above()),
        on.compared(f"{name}, at the end − early", [cell], later, last),
    ]


@claim_kind
def order_of_heads_keeps(on: Given, cell: CellName, share: float = 0.05, least: float = 0.5) -> list[Comparison]:
    """The heads' order by entropy after a share of the training is that at its end: their rank correlation lies above
    a bound."""

    def order(run: Record) -> float:
        entropies = logged_entropies(run)[1].reshape(len(logged_entropies(run)[1]), -1)
        correlation = rank_correlation(entropies[int(share * len(entropies))].tolist(), entropies[-1].tolist())
        if correlation is None:
            raise Open("all heads have the same entropy")
        return correlation

    label = f"{cell}: rank correlation of the heads' entropies, at {100 * share:.0f} % of training and at its end"
    return [on.compared(label, [cell], order, Above(least))]


@claim_kind
def smooth_selection(on: Given, cell: CellName, most: float = 0.01, jump: float = 0.05) -> list[Comparison]:
    """While layers are selected, at most a share of the changes of a head's entropy from reading to reading is larger
    than `jump`."""

    def share(run: Record) -> float:
        return spikes(run, jump)[1]

    return [on.compared(f"{cell}: share of changes above {jump:g} during selection", [cell], share, Below(most))]


@claim_kind
def spikes_in_many_heads(on: Given, cell: CellName, heads: int = 2, jump: float = 0.05) -> list[Comparison]:
    """At some reading the entropies of several heads of one layer change by more than `jump` together."""

    def together(run: Record) -> float:
        changed = np.abs(np.diff(logged_entropies(run)[1], axis=0)) > jump
        return float(changed.sum(axis=2).max() >= heads)

    return [on.compared(f"{cell}: {heads} heads of a layer change together", [cell], together, Always())]


# ---- attention by loop ----


def _shift(record: Record, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """How far every head of the loop's body moves from the first loop to the last (N,), and which heads are dynamic
    (N,)."""
    loops = probe_of(record, "loops")
    values = np.array(loops[metric]["values"], dtype=float).reshape(len(loops["chunks"]), -1)
    return values[-1] - values[0], np.array(loops[metric]["dynamic"], dtype=bool).flatten()


@claim_kind
def less_systematic(on: Given, cell: CellName, over_cell: CellName, metric: LoopMetric) -> list[Comparison]:
    """From the first to the last loop the heads of one run agree less on a direction than those of another: their mean
    change, divided by the mean size of a change, is nearer to 0."""

    def agreement(run: Record) -> float:
        change, _ = _shift(run, metric)
        if not change.any():
            raise Open("no head changes from loop to loop")
        return float(abs(change.mean()) / np.abs(change).mean())

    def less(ours: Record, theirs: Record) -> float:
        return agreement(ours) - agreement(theirs)

    label = f"agreement of heads on the change of {metric.replace('_', ' ')}, {cell} − {over_cell}"
    return [on.compared(label, [cell, over_cell], less, Below(), paired=True)]


@claim_kind
def diluted_over_all(on: Given, cell: CellName, metric: LoopMetric) -> list[Comparison]:
    """The mean shift from the first to the last loop is smaller over all heads than over the dynamic ones."""

    def less(run: Record) -> float:
        change, dynamic = _shift(run, metric)
        return float(abs(change.mean()) - abs(change[dynamic].mean()))

    label = f"{cell}: shift of {metric.replace('_', ' ')} over all heads − over dynamic ones"
    return [on.compared(label, [cell], less, Below())]
