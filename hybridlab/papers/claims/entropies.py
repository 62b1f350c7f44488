"""Claim kinds on attention by head: entropies over training, and what SGT says of loops of heads."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np

from hybridlab.papers.calls import CellName
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, hook_of, probe_of
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Always, Below, evenness, rank_correlation

# ---- convergence of head loops (SGT, appendix E) ----


@claim_kind
def higher_entropy_converges_first(on: Given, cell: CellName) -> list[Comparison]:
    """Appendix E: loops of high-entropy heads converge (mean factor of a pass below 1, over layers and sequences), and
    faster than loops of low-entropy heads."""

    def factor(name: str, run: Record) -> float:
        return float(probe_of(run, "convergence")["sets"][name]["factor"])

    high = on.each([cell], "factor of a pass, high", lambda run: factor("high", run), Below(1.0))
    label = "factor of a pass, high − low"
    return high + on.each([cell], label, lambda run: factor("high", run) - factor("low", run), Below())


@claim_kind
def lemma_holds(on: Given, cell: CellName) -> list[Comparison]:
    """Lemma 1 on every row of real attention: no row of a seed's model breaks it."""

    def unbroken(run: Record) -> float:
        return float(probe_of(run, "convergence")["lemma"]["violations"] == 0)

    return on.each([cell], "no row breaks it", unbroken, Always(), note=_broken(on, cell))


def _broken(on: Given, cell: str) -> str:
    """The rows that break the lemma, by seed, and the worst of the first seed."""
    try:
        lemmas = [probe_of(run, "convergence")["lemma"] for _, run in sorted(on.runs(cell).items())]
    except Open:
        return ""
    text = "rows that break it: " + "; ".join(f"{lemma['violations']} of {lemma['rows']}" for lemma in lemmas)
    if lemmas and (worst := lemmas[0]["worst"]):
        position = f"row {worst['row']} of layer {worst['layer'] + 1}, head {worst['head'] + 1}"
        text += f"; worst: {position}: A_ii = {worst['diagonal']:.3f} > {worst['bound']:.3f}"
    return text


@claim_kind
def entropy_lowers_trace(on: Given, cell: CellName) -> list[Comparison]:
    """Appendix E.3: heads of higher entropy have smaller traces (rank correlation over all heads below 0)."""

    def order(run: Record) -> float:
        value = probe_of(run, "convergence")["entropy_trace_rank_correlation"]["value"]
        if value is None:
            raise Open("all heads have the same rank")
        return float(value)

    return on.each([cell], "rank correlation of entropy and trace", order, Below())


@claim_kind
def contributions_sharpen(on: Given, cell: CellName) -> list[Comparison]:
    """The contributions of looped heads concentrate on fewer tokens with every pass: their normalised entropy falls, in
    the mean over the sequences and heads that were measured."""

    def entropies(run: Record) -> np.ndarray:
        measured = probe_of(run, "contributions")
        if "examples" not in measured:
            raise Open("the plan has no head loops")
        if "entropies" in measured:
            return np.array(measured["entropies"])
        return np.array([[evenness(row) for row in example["loops"]] for example in measured["examples"]])

    def falls(loop: int) -> list[Comparison]:
        def fall(run: Record) -> float:
            return float((entropies(run)[:, loop] - entropies(run)[:, loop - 1]).mean())

        return on.each([cell], f"entropy of loop {loop} − loop {loop - 1}", fall, Below())

    try:
        passes = {entropies(run).shape[1] for run in on.runs(cell).values()}
    except Open:
        passes = set()
    return [one for loop in range(1, min(passes, default=2)) for one in falls(loop)]


# ---- entropies over training ----


def _logged(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) and entropies (T, L, H)."""
    log = hook_of(record, "entropy-log")
    return np.array(log["steps"]), np.array(log["entropies"], dtype=float)


def _variance(record: Record) -> np.ndarray:
    """The variance of the heads' entropies inside a layer (T, L)."""
    return _logged(record)[1].var(axis=2)


def _gain(values: np.ndarray, after: tuple[float, float], before: tuple[float, float]) -> float:
    """The mean over one span of the readings less that over another; a span goes from one share of them to another."""
    parts = []
    for begin, end in (after, before):
        first = int(begin * len(values))
        parts.append(values[first : max(first + 1, int(end * len(values)))].mean(axis=0))
    return float((parts[0] - parts[1]).mean())


START, END = (0.0, 0.1), (0.8, 1.0)
"""The first tenth of training and its last fifth."""


@claim_kind
def entropies_within(on: Given, cell: CellName, low: float, high: float) -> Verdict:
    """Every entropy that the runs of a cell have logged lies between two bounds."""
    on.require([cell])
    values = np.concatenate([_logged(run)[1].flatten() for run in on.runs(cell).values()])
    evidence = f"{cell}: {values.size:,} entropies, {values.min():.4f} to {values.max():.4f}"
    return Verdict(bool(low <= values.min() and values.max() <= high), f"{evidence}, asked {low:g} to {high:g}")


@claim_kind
def entropy_falls(on: Given, cell: CellName) -> list[Comparison]:
    """The mean entropy over all heads is lower in the last fifth of training than in the first tenth."""
    label = "mean entropy, last fifth − first tenth"
    return on.each([cell], label, lambda run: _gain(_logged(run)[1], END, START), Below())


@claim_kind
def variance_surges(
    on: Given, cell: CellName, layers: Literal["deep", "shallow"], early: tuple[float, float] = (0.1, 0.4)
) -> list[Comparison]:
    """The variance of the heads' entropies inside a layer. deep (the last third of the layers): it surges, higher in
    the span `early` than in the first tenth, and then declines until the last fifth. shallow (the first third without
    the first layer): it rises, from the first tenth to `early` and on to the last fifth."""

    def chosen(run: Record) -> np.ndarray:
        variance = _variance(run)
        third = 1 + (variance.shape[1] - 1) // 3
        return variance[:, -third:] if layers == "deep" else variance[:, 1 : 1 + third]

    name, last = f"{cell}, {layers} layers: variance of entropies", Below() if layers == "deep" else Above()
    return [
        on.compared(f"{name}, early − at the start", [cell], lambda run: _gain(chosen(run), early, START), Above()),
        on.compared(f"{name}, at the end − early", [cell], lambda run: _gain(chosen(run), END, early), last),
    ]


@claim_kind
def order_of_heads_keeps(on: Given, cell: CellName, share: float = 0.05, least: float = 0.5) -> list[Comparison]:
    """The heads' order by entropy after a share of the training is that at its end: their rank correlation lies above
    a bound."""

    def order(run: Record) -> float:
        entropies = _logged(run)[1].reshape(len(_logged(run)[1]), -1)
        correlation = rank_correlation(entropies[int(share * len(entropies))].tolist(), entropies[-1].tolist())
        if correlation is None:
            raise Open("all heads have the same entropy")
        return correlation

    label = f"rank correlation of the heads' entropies, at {100 * share:.0f} % of training and at its end"
    return on.each([cell], label, order, Above(least))


@claim_kind
def deep_layers_differentiate_first(on: Given, cell: CellName) -> list[Comparison]:
    """The variance of entropies inside a layer reaches half of its highest value earlier in deeper layers: the rank
    correlation of depth and that step is below 0 (layers 2 on)."""

    def order(run: Record) -> float:
        steps = _logged(run)[0]
        reached = [int(steps[np.argmax(v >= v.max() / 2)]) for v in _variance(run).T[1:]]
        correlation = rank_correlation(range(len(reached)), reached)
        if correlation is None:
            raise Open("all layers reach half of their highest variance at the same step")
        return correlation

    return on.each([cell], "rank correlation of depth and the step of half the highest variance", order, Below())


@claim_kind
def first_layer_stays_uniform(on: Given, cell: CellName, near: float = 0.9, variance: float = 0.1) -> list[Comparison]:
    """Throughout training the entropy of all heads of the first layer is near 1 (its lowest head, in the mean over
    time, above `near`), and their variance is near 0: less than a share `variance` of the other layers' mean."""

    def lowest(run: Record) -> float:
        return float(_logged(run)[1][:, 0].min(axis=1).mean())

    def spread(run: Record) -> float:
        by_layer = _variance(run).mean(axis=0)
        if not by_layer[1:].any():
            raise Open("the heads of the other layers do not differ")
        return float(by_layer[0] / by_layer[1:].mean())

    uniform = on.each([cell], "entropy of the lowest head of layer 1", lowest, Above(near))
    return uniform + on.each([cell], "variance in layer 1 / in the others", spread, Below(variance))


@claim_kind
def entropy_falls_in_order(
    on: Given, cell: CellName, every: float = 0.05, until: float = 0.4, least: float = 0.5
) -> list[Comparison]:
    """Early in training every layer's entropy falls (the layer that falls least has fallen), and the layers keep their
    order: the rank correlation of successive readings is above `least` in the mean."""

    def readings(run: Record) -> np.ndarray:
        """Entropies (readings, layers)."""
        steps, entropies = _logged(run)
        shares = np.arange(every, until + 1e-9, every)
        return entropies.mean(axis=2)[[int(np.argmin(np.abs(steps - share * steps[-1]))) for share in shares]]

    def least_fall(run: Record) -> float:
        layers = readings(run)
        return float((layers[0] - layers[-1]).min())

    def order(run: Record) -> float:
        orders = [rank_correlation(a, b) for a, b in itertools.pairwise(readings(run))]
        return float(np.mean([0.0 if order is None else order for order in orders]))

    falls = on.each([cell], "fall of the layer that falls least", least_fall, Above())
    return falls + on.each([cell], "rank correlation of successive readings", order, Above(least))


# ---- sudden changes while layers are selected ----


@claim_kind
def more_spikes(on: Given, cell: CellName, over_cell: CellName, jump: float = 0.05) -> list[Comparison]:
    """A larger share of sudden changes of a head's entropy between two measurements, while layers are selected: from
    the first step of growth to the last layer's selection. The evidence adds the shares before and after."""
    label = f"share of changes above {jump:g} during selection, {cell} − {over_cell}"
    note = _by_phase(on, [cell, over_cell], jump)
    return [on.minus(label, cell, over_cell, lambda run: _spikes(run, jump)[1], Above(), note=note)]


@claim_kind
def smooth_selection(on: Given, cell: CellName, most: float = 0.01, jump: float = 0.05) -> list[Comparison]:
    """While layers are selected, at most a share of the changes of a head's entropy from reading to reading is larger
    than `jump`."""
    label = f"share of changes above {jump:g} during selection"
    return on.each([cell], label, lambda run: _spikes(run, jump)[1], Below(most))


@claim_kind
def spikes_in_many_heads(on: Given, cell: CellName, heads: int = 2, jump: float = 0.05) -> list[Comparison]:
    """At some reading the entropies of several heads of one layer change by more than `jump` together."""

    def together(run: Record) -> float:
        changed = np.abs(np.diff(_logged(run)[1], axis=0)) > jump
        return float(changed.sum(axis=2).max() >= heads)

    return on.each([cell], f"{heads} heads of a layer change together", together, Always())


def _spikes(record: Record, jump: float) -> list[float]:
    """The shares of changes larger than `jump` before the selection of layers, during it, and after; nan without a
    measurement there."""
    steps, entropies = _logged(record)
    begins, ends = _selection(record)
    changed = np.abs(np.diff(entropies, axis=0)) > jump
    later = steps[1:]
    phases = (later <= begins, (later > begins) & (later <= ends), later > ends)
    shares = [float(changed[phase].mean()) if phase.any() else math.nan for phase in phases]
    if math.isnan(shares[1]):
        raise Open("no entropies were measured while layers were selected")
    return shares


def _selection(record: Record) -> tuple[int, int]:
    """The first step at which the run may grow, and the last one at which it selected a layer."""
    settings: dict[str, Any] = record.config.get("controller") or {}
    if "start_step" not in settings:
        raise Open("its run does not grow")
    looped = record.controller.get("looped", [])
    return settings["start_step"], max((layer["since"] for layer in looped), default=record.steps)


def _by_phase(on: Given, cells: list[str], jump: float) -> str:
    parts = []
    for cell in cells:
        try:
            shares = np.array([_spikes(run, jump) for run in on.runs(cell).values()])
        except Open:
            continue
        if len(shares):
            before, during, after = shares.mean(axis=0)
            parts.append(f"{cell}: {before:.3f} before, {during:.3f} during, {after:.3f} after")
    return "; ".join(parts)
