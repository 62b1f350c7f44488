"""Whether loops of high-entropy heads converge faster: SGT's appendix E, measured.

    hybridlab analyze RUN --probe convergence

In each layer the heads of highest and of lowest entropy are looped many times on the trained model, H(k+1) = H(k) +
Σ Attn(H(k)) (Eq. 6). Three quantities are measured: the distance of H(k) from the last state, the change by each pass,
and the traces of the heads' attention (Eq. 20). A loop with equal steps has distances of (K − k) / K and a factor of 1;
a loop converges if each pass changes the state less than the pass before it.

Heads are ranked by their mean entropy over all rows, since the appendix is about whole attention matrices; growth ranks
them by the last row (Eq. 4). Lemma 1, A_ii ≤ exp(−E_i / i) with E_i the entropy of row i in nats and i the number of
keys that it sees (Eq. 21), is tested on every row of the attention of every head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from hybridlab.analysis.entropy import row_entropy
from hybridlab.analysis.probe import LONGEST, Line, Probe, Rows, Table, Visits, layer_table, spaced_windows
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plan.plan import MOST_PASSES, Item, Plan
from hybridlab.plan.visit import Visit, layer_name
from hybridlab.registry import PROBES
from hybridlab.statistics import (
    Measurement,
    correlation,
    known,
    mean_and_error,
    paired_difference,
    rank_correlation,
    resolved,
)
from hybridlab.training.progress import followed

Passes = Annotated[int, Field(ge=2, le=MOST_PASSES)]
_ROUNDING = 1e-6
"""Tolerance for fp32 in rows where the lemma holds with equality (those with one key)."""


def measure(
    model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 8, heads: PositiveInt = 2, passes: Passes = 8
) -> dict[str, Any]:
    """`convergence` on `rows` sequences."""
    return convergence(model, spaced_windows(model, corpus, min(seq_len, LONGEST), rows), heads, passes)


def convergence(model: Transformer, tokens: Tensor, heads: int, passes: int) -> dict[str, Any]:
    """The three measurements and the lemma on sequences `tokens` (B, S), with `heads` heads in a set and `passes`
    passes of each loop. {"skipped": reason} if no layer runs all of its heads; UserError if layers have too few."""
    if not 1 <= 2 * heads <= model.shape.heads:
        raise UserError(
            f"two sets of {heads} heads: a layer of this model has {model.shape.heads}; "
            f"give at most {model.shape.heads // 2}"
        )
    starts = _up_to_attention(model.plan)
    by_layer = {layer: _row_statistics(model, tokens, items) for layer, items in starts.items()}
    if not by_layer:
        return {"skipped": "no layer outside loops runs all of its heads"}
    rows = []
    for layer, statistics in followed(by_layer.items(), "layers"):
        rows += _compared_sets(model, tokens, layer, starts[layer], statistics, heads, passes)
    shared = {"passes": passes, "sequences": len(tokens), "length": tokens.shape[1], "rows": rows}
    return shared | _summary(rows, by_layer)


def _compared_sets(
    model: Transformer,
    tokens: Tensor,
    layer: int,
    items: tuple[Item, ...],
    statistics: dict[str, Tensor],
    heads: int,
    passes: int,
) -> list[dict[str, Any]]:
    """Two rows for a layer: loops of its heads of highest and of lowest entropy. items: see `_up_to_attention`.

    factor: of each set, over the sequences. faster_by: low − high, paired by sequence, in the row of the high set.
    """
    ranked = statistics["entropy"].mean((0, 2)).argsort(descending=True).tolist()
    rows, factors = [], {}
    for name, chosen in (("high", ranked[:heads]), ("low", ranked[::-1][:heads])):
        states = loop_states(model, tokens, items, Visit(layer, "attention", tuple(sorted(chosen))), passes)
        factors[name] = _factors(states).tolist()
        rows.append(
            {
                "layer": layer,
                "set": name,
                "heads": sorted(chosen),
                "entropy": float(statistics["entropy"][:, chosen].mean()),
                "trace_share": float(statistics["diagonal"][:, chosen].mean()),
                **_decay(states),
                "factor": mean_and_error(factors[name]).model_dump(),
            }
        )
    rows[0]["faster_by"] = paired_difference(factors["low"], factors["high"]).model_dump()
    return rows


def loop_states(model: Transformer, tokens: Tensor, items: tuple[Item, ...], again: Visit, passes: int) -> list[Tensor]:
    """H(0) … H(K), each (B, S, W): the state after these items, and after each pass of a visit that follows them."""
    last, taps = len(items) - 1, Visits()
    with torch.no_grad():
        _running(model, items + (again,) * passes, last)(tokens, taps=taps)
    places = [(index,) for index in range(last, last + passes + 1)]
    return [taps.inputs[place] + taps.added[place] for place in places]


def _running(model: Transformer, items: tuple[Item, ...], unchanged: int) -> Transformer:
    """The model with a plan of these items, the first `unchanged` of which are its own and keep their factors."""
    factors = {place: factor for place, factor in model.factors.items() if place[0] < unchanged}
    return model.with_plan(Plan(items, model.plan.num_layers, model.plan.parallel), factors=factors)


def _up_to_attention(plan: Plan) -> dict[int, tuple[Item, ...]]:
    """Layer → the plan's items up to its first attention outside loops (a parallel block is included whole), of those
    layers that run all of their heads there."""
    first: dict[int, tuple[int, Visit]] = {}
    for index, item in enumerate(plan.visits):
        if isinstance(item, Visit) and item.part != "mlp":
            first.setdefault(item.layer, (index, item))
    return {
        layer: (*plan.visits[:index], visit if plan.parallel else Visit(layer, "attention"))
        for layer, (index, visit) in sorted(first.items())
        if visit.heads is None
    }


def _row_statistics(model: Transformer, tokens: Tensor, items: tuple[Item, ...]) -> dict[str, Tensor]:
    """For every row of the attention that the items end with, (B, H, S): normalized entropy, A_ii, and the lemma's
    bound."""
    last = len(items) - 1
    with torch.no_grad():
        output = _running(model, items, last)(tokens, need="full")
    weights, keys = output.attention[(last,)], output.keys[(last,)]
    entropy = row_entropy(weights, keys)
    nats = entropy * keys.clamp_min(2).float().log()
    return {
        "entropy": entropy,
        "diagonal": weights.diagonal(dim1=-2, dim2=-1),
        "bound": (-nats / keys).exp(),
        "keys": keys.float(),
    }


def _decay(states: list[Tensor]) -> dict[str, Any]:
    """distance: ‖H(k) − H(K)‖ / ‖H(0) − H(K)‖. change: ‖H(k+1) − H(k)‖ / ‖H(1) − H(0)‖."""
    norms = [float((h - states[-1]).norm()) for h in states]
    changes = [float((b - a).norm()) for a, b in zip(states, states[1:], strict=False)]
    return {
        "distance": [round(n / norms[0], 5) if norms[0] else 0.0 for n in norms],
        "change": [round(c / changes[0], 5) if changes[0] else 0.0 for c in changes],
    }


def _factors(states: list[Tensor]) -> Tensor:
    """(B,): the mean factor between the changes of successive passes, (last / first)^(1 / (K − 1)), by sequence."""
    first, last = (states[i + 1] - states[i] for i in (0, len(states) - 2))
    ratio = last.flatten(1).norm(dim=1) / first.flatten(1).norm(dim=1).clamp_min(1e-30)
    return ratio ** (1 / max(1, len(states) - 2))


def _summary(rows: list[dict[str, Any]], by_layer: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    """Means of both sets over the layers, numbers of layers with a resolved difference, and the lemma."""
    sets = {}
    for name in ("high", "low"):
        of_set = [row for row in rows if row["set"] == name]
        sets[name] = {key: _mean([row[key] for row in of_set]) for key in ("entropy", "trace_share")}
        sets[name]["factor"] = _mean([row["factor"]["value"] for row in of_set])
    differences = [Measurement(**row["faster_by"]) for row in rows if "faster_by" in row]
    clear = [known(difference) for difference in differences if resolved(difference)]
    # Over all heads; the paper's argument requires a negative one.
    entropy, trace = (
        torch.cat([statistics[name].mean((0, 2)) for statistics in by_layer.values()]).tolist()
        for name in ("entropy", "diagonal")
    )
    ranks = rank_correlation(entropy, trace)
    correlated = Measurement(value=None, n=len(entropy)) if ranks is None else correlation(ranks, len(entropy))
    return {
        "sets": sets,
        "layers": len(by_layer),
        "layers_where_high_is_faster": sum(value > 0 for value in clear),
        "layers_where_low_is_faster": sum(value < 0 for value in clear),
        "lemma": _lemma(by_layer),
        "entropy_trace_rank_correlation": correlated.model_dump(),
    }


def _lemma(by_layer: dict[int, dict[str, Tensor]]) -> dict[str, Any]:
    """The number of rows with A_ii > exp(−E_i / i), in total and by row, and the row with the largest excess."""
    count, by_row = 0, torch.zeros((), dtype=torch.long)
    worst: dict[str, Any] | None = None
    diagonals, bounds = [], []
    for layer, statistics in by_layer.items():
        excess = (statistics["diagonal"] - statistics["bound"]).cpu()
        by_row = by_row + (excess > _ROUNDING).sum((0, 1))
        count += excess.numel()
        diagonals.append(float(statistics["diagonal"].mean()))
        bounds.append(float(statistics["bound"].mean()))
        index = int(excess.argmax())
        largest = float(excess.flatten()[index])
        if largest > max(_ROUNDING, worst["excess"] if worst else 0.0):
            head, row = index // excess.shape[2] % excess.shape[1], index % excess.shape[2]
            worst = {"excess": largest, "layer": layer, "head": head, "row": row + 1}
            worst |= {name: float(statistics[name].flatten()[index]) for name in ("keys", "diagonal", "bound")}
    violations = int(by_row.sum())
    return {
        "rows": count,
        "violations": violations,
        "share": violations / count,
        "violations_by_row": {str(i + 1): int(n) for i, n in enumerate(by_row.tolist()) if n},
        "worst": worst,
        "mean_diagonal": _mean(diagonals),
        "mean_bound": _mean(bounds),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# ---- the report ----


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """Two rows for each layer, then the comparison of the sets and the lemma as text."""
    half = measured["passes"] // 2
    lines: list[Line] = []
    for row in measured["rows"]:
        factor, error = row["factor"]["value"], row["factor"]["stderr"]
        text = f"{factor:.3f}" if error is None else f"{factor:.3f} ± {error:.3f}"
        heads = ",".join(map(str, row["heads"]))
        lines.append([row["set"], heads, row["entropy"], row["trace_share"], row["distance"][half], text])
    title = f"loops of {measured['passes']} passes, {measured['sequences']} sequences of {measured['length']} tokens"
    columns = ["set", "heads from 0", "entropy", "trace/N", f"‖H({half})−H(K)‖", "factor"]
    yield layer_table(title, columns, lines, [row["layer"] for row in measured["rows"]])
    drift = (measured["passes"] - half) / measured["passes"]
    yield (
        f"‖H({half})−H(K)‖ is relative to ‖H(0)−H(K)‖ ({drift:.3f}: equal steps, no convergence); factor: mean ratio "
        "of the changes by successive passes (1: no decay)"
    )
    high, low = measured["layers_where_high_is_faster"], measured["layers_where_low_is_faster"]
    yield (
        f"high-entropy heads converge faster in {high} of {measured['layers']} layers, low-entropy heads in {low} "
        "(more than two standard errors)"
    )
    correlation = measured["entropy_trace_rank_correlation"]
    value = "–" if correlation["value"] is None else f"{correlation['value']:.3f}"
    yield f"rank correlation of entropy and trace over {correlation['n']} heads: {value}"
    lemma = measured["lemma"]
    share = f"{lemma['violations']:,} of {lemma['rows']:,} rows ({100 * lemma['share']:.2g} %)"
    yield f"Lemma 1 fails on {share}; mean A_ii {lemma['mean_diagonal']:.3f}, mean bound {lemma['mean_bound']:.3f}"
    if worst := lemma["worst"]:
        rows = ", ".join(f"row {row}: {count:,}" for row, count in list(lemma["violations_by_row"].items())[:6])
        position = f"{layer_name(worst['layer'])}, head {worst['head']}, row {worst['row']}"
        yield f"  where: {rows}; worst: {position}: A_ii = {worst['diagonal']:.3f}, bound {worst['bound']:.3f}"


PROBES.add("convergence", Probe(measure, report))
