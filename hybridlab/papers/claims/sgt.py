"""SGT's claims about growth, entropy and convergence, on the runs made here, and about its printed speeds."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.papers.calls import CellName, RowName
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, hook_of, listed, probe_of
from hybridlab.papers.claims.speed import PARTS
from hybridlab.papers.claims.trained import compared_pairs
from hybridlab.papers.claims.verdict import NotRun, Open, Verdict
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, Always, Below, evenness, rank_correlation

NEAR = 0.2
"""The loss at a FLOPs budget is that of a straight line fitted to the points within this share of the budget."""


@claim_kind
def extrapolates_better(on: Given, rows: list[RowName], over: list[RowName], factors: list[int]) -> list[Comparison]:
    """A lower loss than others at multiples of the training length."""
    comparisons = []
    for factor in factors:
        pairs = list(itertools.product(rows, over))
        metric = f"results.extrapolation.{factor}.loss"
        comparisons += compared_pairs(on, pairs, [metric], True, Below())
    return comparisons


@claim_kind
def lower_at_flops(
    on: Given, cell: CellName, over_cell: CellName, shares: list[float], of: CellName
) -> list[Comparison]:
    """A lower training loss at the same FLOPs, at each of several budgets: shares of the total of the run `of`."""

    def difference(share: float) -> Comparison:
        def at_budget(ours: Record, theirs: Record, whole: Record) -> float:
            return loss_at(ours, share * whole.flops) - loss_at(theirs, share * whole.flops)

        label = f"{cell} − {over_cell} at {100 * share:.0f} % of the FLOPs of {of}"
        return on.compared(label, [cell, over_cell, of], at_budget, Below(), unit=" nats", paired=True)

    return [difference(share) for share in shares]


def loss_at(record: Record, budget: float) -> float:
    """The training loss at a number of FLOPs, from a line fitted to the points near it; NotRun where there are fewer
    than four."""
    flops, loss = (np.array(record.history.get(name, [])) for name in ("flops", "loss"))
    near = np.abs(flops - budget) <= NEAR * budget
    if near.sum() < 4:
        raise NotRun("the log has fewer than four points near the budget")
    return float(np.polyfit(flops[near] / budget - 1, loss[near], 1)[1])


@claim_kind
def higher_entropy_converges_first(on: Given, cell: CellName) -> list[Comparison]:
    """Appendix E: loops of high-entropy heads converge (mean factor of a pass below 1, over layers and sequences), and
    faster than loops of low-entropy heads."""

    def factor(name: str, run: Record) -> float:
        return float(probe_of(run, "convergence")["sets"][name]["factor"])

    def faster(run: Record) -> float:
        return factor("high", run) - factor("low", run)

    return [
        on.compared(f"{cell}: factor of a pass, high", [cell], lambda run: factor("high", run), Below(1.0)),
        on.compared(f"{cell}: factor of a pass, high − low", [cell], faster, Below()),
    ]


@claim_kind
def lemma_holds(on: Given, cell: CellName) -> list[Comparison]:
    """Lemma 1 on every row of real attention: no row of a seed's model breaks it."""

    def unbroken(run: Record) -> float:
        return float(probe_of(run, "convergence")["lemma"]["violations"] == 0)

    return [on.compared(f"{cell}: no row breaks it", [cell], unbroken, Always(), note=_broken(on, cell))]


def _broken(on: Given, cell: str) -> str:
    """The rows that break the lemma, by seed, and the worst of the first seed."""
    try:
        lemmas = {seed: probe_of(run, "convergence")["lemma"] for seed, run in sorted(on.runs(cell).items())}
    except Open:
        return ""
    counts = (f"{lemma['violations']} of {lemma['rows']}" for lemma in lemmas.values())
    text = f"rows that break it: {'; '.join(counts)}"
    for lemma in list(lemmas.values())[:1]:
        if worst := lemma["worst"]:
            position = f"row {worst['row']} of layer {worst['layer'] + 1}, head {worst['head'] + 1}"
            text += f"; worst: {position}: A_ii = {worst['diagonal']:.3f} > {worst['bound']:.3f}"
    return text


@claim_kind
def lemma_on_row(on: Given, row: list[float]) -> Verdict:
    """Lemma 1, A_ii ≤ exp(−E_i / i), on one row of attention whose last weight is A_ii: one that breaks it refutes it,
    without any model."""
    if min(row) < 0 or not sum(row):
        raise Open("these are no weights of attention")
    weights = np.array(row) / sum(row)
    entropy = float(-(weights[weights > 0] * np.log(weights[weights > 0])).sum())
    bound = math.exp(-entropy / len(row))
    shown = ", ".join(f"{weight:g}" for weight in weights)
    return Verdict(
        bool(weights[-1] <= bound), f"exact: the row ({shown}) has A_ii = {weights[-1]:g}, bound {bound:.4f}"
    )


@claim_kind
def entropy_lowers_trace(on: Given, cell: CellName) -> list[Comparison]:
    """Appendix E.3: heads of higher entropy have smaller traces (rank correlation over all heads below 0)."""

    def order(run: Record) -> float:
        value = probe_of(run, "convergence")["entropy_trace_rank_correlation"]["value"]
        if value is None:
            raise Open("all heads have the same rank")
        return float(value)

    return [on.compared(f"{cell}: rank correlation of entropy and trace", [cell], order, Below())]


# ---- entropies over training ----


def logged_entropies(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) and entropies (T, L, H)."""
    log = hook_of(record, "entropy-log")
    return np.array(log["steps"]), np.array(log["entropies"], dtype=float)


@claim_kind
def more_spikes(on: Given, cell: CellName, over_cell: CellName, jump: float = 0.05) -> list[Comparison]:
    """A larger share of sudden changes of a head's entropy between two measurements, while layers are selected: from
    the first step of growth to the last layer's selection. The evidence adds the shares before and after."""

    def more(ours: Record, theirs: Record) -> float:
        return spikes(ours, jump)[1] - spikes(theirs, jump)[1]

    return [
        on.compared(
            f"share of changes above {jump:g} during selection, {cell} − {over_cell}",
            [cell, over_cell],
            more,
            Above(),
            paired=True,
            note=_by_phase(on, [cell, over_cell], jump),
        )
    ]


def spikes(record: Record, jump: float) -> list[float]:
    """The shares of changes larger than `jump` before the selection of layers, during it, and after; nan without a
    measurement there."""
    steps, entropies = logged_entropies(record)
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
            shares = np.array([spikes(run, jump) for run in on.runs(cell).values()])
        except Open:
            continue
        if len(shares):
            before, during, after = shares.mean(axis=0)
            parts.append(f"{cell}: {before:.3f} before, {during:.3f} during, {after:.3f} after")
    return "; ".join(parts)


@claim_kind
def deep_layers_differentiate_first(on: Given, cell: CellName) -> list[Comparison]:
    """The variance of entropies inside a layer reaches half of its highest value earlier in deeper layers: the rank
    correlation of depth and that step is below 0 (layers 2 on)."""

    def order(run: Record) -> float:
        steps, entropies = logged_entropies(run)
        reached = [int(steps[np.argmax(v >= v.max() / 2)]) for v in entropies.var(axis=2).T[1:]]
        correlation = rank_correlation(range(len(reached)), reached)
        if correlation is None:
            raise Open("all layers reach half of their highest variance at the same step")
        return correlation

    label = f"{cell}: rank correlation of depth and the step of half the highest variance"
    return [on.compared(label, [cell], order, Below())]


@claim_kind
def first_layer_stays_uniform(on: Given, cell: CellName, near: float = 0.9, variance: float = 0.1) -> list[Comparison]:
    """Throughout training the entropy of all heads of the first layer is near 1 (its lowest head, in the mean over
    time, above `near`), and their variance is near 0: less than a share `variance` of the other layers' mean."""

    def lowest(run: Record) -> float:
        return float(logged_entropies(run)[1][:, 0].min(axis=1).mean())

    def spread(run: Record) -> float:
        by_layer = logged_entropies(run)[1].var(axis=2).mean(axis=0)
        if not by_layer[1:].any():
            raise Open("the heads of the other layers do not differ")
        return float(by_layer[0] / by_layer[1:].mean())

    return [
        on.compared(f"{cell}: entropy of the lowest head of layer 1", [cell], lowest, Above(near)),
        on.compared(f"{cell}: variance in layer 1 / in the others", [cell], spread, Below(variance)),
    ]


@claim_kind
def entropy_falls_in_order(
    on: Given, cell: CellName, every: float = 0.05, until: float = 0.4, least: float = 0.5
) -> list[Comparison]:
    """Early in training every layer's entropy falls (the layer that falls least has fallen), and the layers keep their
    order: the rank correlation of successive readings is above `least` in the mean."""

    def readings(run: Record) -> np.ndarray:
        """Entropies (readings, layers)."""
        steps, entropies = logged_entropies(run)
        shares = np.arange(every, until + 1e-9, every)
        return entropies.mean(axis=2)[[int(np.argmin(np.abs(steps - share * steps[-1]))) for share in shares]]

    def least_fall(run: Record) -> float:
        layers = readings(run)
        return float((layers[0] - layers[-1]).min())

    def order(run: Record) -> float:
        orders = [rank_correlation(a, b) for a, b in itertools.pairwise(readings(run))]
        return float(np.mean([0.0 if order is None else order for order in orders]))

    return [
        on.compared(f"{cell}: fall of the layer that falls least", [cell], least_fall, Above()),
        on.compared(f"{cell}: rank correlation of successive readings", [cell], order, Above(least)),
    ]


@claim_kind
def contributions_sharpen(on: Given, cell: CellName) -> list[Comparison]:
    """The contributions of looped heads concentrate on fewer tokens with every pass: their normalised entropy falls, in
    the mean over the sequences and heads that were measured."""

    def entropies(run: Record) -> np.ndarray:
        measured = probe_of(run, "contributions")
        if "examples" not in measured:
            raise Open("the plan has no head loops")
        return np.array(measured["entropies"] if "entropies" in measured else _of_examples(measured["examples"]))

    def falls(loop: int) -> Comparison:
        def fall(run: Record) -> float:
            return float((entropies(run)[:, loop] - entropies(run)[:, loop - 1]).mean())

        return on.compared(f"{cell}: entropy of loop {loop} − loop {loop - 1}", [cell], fall, Below())

    try:
        passes = {entropies(run).shape[1] for run in on.runs(cell).values()}
    except Open:
        passes = set()
    return [falls(loop) for loop in range(1, min(passes, default=2))]


def _of_examples(examples: list[dict[str, Any]]) -> list[list[float]]:
    """The normalised entropy of every example's contributions, by pass."""
    return [[evenness(row) for row in example["loops"]] for example in examples]


# ---- the printed speeds ----


@claim_kind
def printed_ratios_follow(on: Given, rounding: float = 0.05) -> Verdict:
    """The ratios of printed speeds to vanilla's equal the ratios of work in layers, L / (L + 3·h/H) and L / (L + 3),
    within the rounding of the cells. Measured speeds would scatter around these ratios, so the printed ones look
    computed.
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
