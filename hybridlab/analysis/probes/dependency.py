"""How far attention reaches over several hops, and what refinement by belief propagation does to it (SAOBP).

hybridlab analyze RUN --probe dependency --graphs 32
hybridlab analyze MODEL --probe dependency --tasks race_middle --longest 128 --data-root DIR
hybridlab analyze RUN --probe belief

`dependency`: GTD, indirect entropy, attention entropy and sparsity (sections 3 and 5), and attention as a graph of
tokens: clustering and betweenness (section 7, figures 2 and 5). All of them are of one attention matrix A, that of one
head for one sequence, read as the transition probabilities of a walk over the tokens. Padding takes no part: its rows
and columns are left out. Logarithms are natural. Measured on the attention that the model uses, after any refinement,
on what its objective measures, windows of text or the examples of a fine-tuning task, or on prompts of tasks.

`belief`: the column mass of a key is the sum of the prior weights that all rows give it. The messages about a key add
up to about −λ times its mass, so that a key with a large mass, an attention sink, loses nearly all of its weight in
long sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import networkx
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hybridlab.analysis.probe import (
    LONGEST,
    Line,
    Probe,
    Rows,
    Table,
    layer_table,
    measured_heads,
    rounded,
    spaced_windows,
)
from hybridlab.analysis.prompts import NO_TASKS, Sequences, TaskPrompts, each_sequence, not_measured, sequences_of
from hybridlab.attention.belief import Belief
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import NonNegativeInt
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder, Transformer
from hybridlab.plan.visit import Place, Visit
from hybridlab.registry import PROBES
from hybridlab.statistics import mean_and_error, pearson
from hybridlab.training.objective import make_objective
from hybridlab.training.progress import followed

BETA = 0.9
"""Discount of a further hop (section 6)."""
HOPS = 4
"""The longest path K (section 6)."""
NODES = 40
"""Tokens in a graph: the first ones of a sequence (figure 2 has graphs of 40 nodes and does not say which)."""
THRESHOLD = 1e-4
"""τ of figure 2: a smaller weight is no edge."""


def without_padding(weights: Tensor, valid: Tensor) -> Tensor:
    """Attention weights (B, H, S, S) in fp64, 0 in the rows and columns of padding, which is False in valid (B, S)."""
    return weights.double() * _pairs(valid)


def _pairs(valid: Tensor) -> Tensor:
    """(B, 1, S, S): whether both positions are tokens."""
    return valid[:, None, :, None] & valid[:, None, None, :]


def indirect(weights: Tensor, beta: float = BETA, hops: int = HOPS) -> Tensor:
    """G, the discounted paths of two and more hops (Eq. 12): Σ β^(t−1) Aᵗ for t = 2 … K. weights: (…, S, S)."""
    return discounted([weights] * hops, beta)


def discounted(steps: Sequence[Tensor], beta: float) -> Tensor:
    """Σ β^(t−1) A₁ A₂ … A_t for t = 2 … K, of the matrices A₁ … A_K (…, S, S) of the single hops, in their order."""
    path, total = steps[0], torch.zeros_like(steps[0])
    for hop, step in enumerate(steps[1:], start=1):
        path = path @ step
        total = total + beta**hop * path
    return total


def dependency_share(direct: Tensor, further: Tensor) -> Tensor:
    """GTD (Eq. 13): ‖G‖² / (‖A‖² + ‖G‖²) in Frobenius norms, of A and G (…, S, S) → (…)."""
    near, far = (matrix.square().sum((-1, -2)) for matrix in (direct, further))
    return far / (near + far)


def token_dependency(weights: Tensor, beta: float = BETA, hops: int = HOPS) -> Tensor:
    """GTD of attention matrices (…, S, S) → (…)."""
    return dependency_share(weights, indirect(weights, beta, hops))


def cross_layer_dependency(layers: Sequence[Tensor], beta: float = BETA, hops: int = HOPS) -> list[Tensor]:
    """GTD of each layer with hops through the layers above it, from the attention (B, H, S, S) of all layers in order.

    The paper names a GTD across layers and gives no formula (appendix B). Here a token of layer l + 1 reads what its
    tokens have read in layer l, so a path of t hops that ends in layer l + t − 1 is the product of the head means
    Ā(l + t − 1) … Ā(l), and G sums them as Eq. 12 does, as far as there are layers: the last layer has no G and no
    value here. Returns L − 1 tensors (B,).
    """
    means = [weights.mean(1) for weights in layers]
    shares = []
    for first in range(len(means) - 1):
        hop_means = means[first : first + hops]
        # A product of attentions applies the later layer on the left.
        transposed = [mean.transpose(-1, -2) for mean in hop_means]
        shares.append(dependency_share(transposed[0], discounted(transposed, beta)))
    return shares


def row_entropies(weights: Tensor) -> Tensor:
    """−Σ_j A_ij log A_ij of each row (Eq. 2, first line), of rows that sum up to 1. (…, S, S) → (…, S), in nats."""
    return -torch.xlogy(weights, weights).sum(-1)


def indirect_entropies(weights: Tensor, beta: float = BETA, hops: int = HOPS) -> Tensor:
    """Entropy of each row of G̃, the normalised indirect paths (Eq. 14). (…, S, S) → (…, S), in nats."""
    paths = indirect(weights, beta, hops)
    return row_entropies(paths / paths.sum(-1, keepdim=True).clamp_min(torch.finfo(paths.dtype).tiny))


def mean_over_tokens(rows: Tensor, valid: Tensor) -> Tensor:
    """The mean over the tokens of a sequence, without padding: rows (B, H, S), valid (B, S) → (B, H)."""
    mask = valid[:, None, :].to(rows.dtype)
    return (rows * mask).sum(-1) / mask.sum(-1)


def sparsity(weights: Tensor, valid: Tensor, threshold: float) -> Tensor:
    """Share of the pairs of tokens whose weight is below `threshold` (appendix E): (B, H, S, S) → (B, H).

    In a decoder the pairs that its mask hides count too, with weight 0.
    """
    low, pairs = (weights < threshold).to(weights.dtype), _pairs(valid).to(weights.dtype)
    return (low * pairs).sum((-1, -2)) / pairs.sum((-1, -2))


def token_graph(weights: np.ndarray, nodes: int = NODES, threshold: float = THRESHOLD) -> networkx.Graph:
    """The graph of the first `nodes` tokens of an attention matrix (S, S). Two different tokens share an edge if the
    mean of the two weights between them is above the threshold; that mean is the edge's weight."""
    near = np.asarray(weights, dtype=np.float64)[:nodes, :nodes]
    mean = (near + near.T) / 2
    np.fill_diagonal(mean, 0.0)
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(mean)))
    pairs = np.argwhere(np.triu(mean > threshold, 1))
    graph.add_weighted_edges_from((int(i), int(j), float(mean[i, j])) for i, j in pairs)
    return graph


def clustering(graph: networkx.Graph) -> float:
    """Mean clustering coefficient over the nodes, with edge weights.

    It is that of networkx: the geometric mean of the three weights of each triangle, relative to the graph's largest
    weight. The paper cites Barrat et al. (2004), whose coefficient weighs a node's two edges only; networkx has no
    other one with weights.
    """
    return float(networkx.average_clustering(graph, weight="weight"))


def betweenness(graph: networkx.Graph) -> float:
    """Mean betweenness over the nodes, not normalised: shortest paths, counted in edges, that pass through a node."""
    centrality = networkx.betweenness_centrality(graph, normalized=False)
    return sum(centrality.values()) / max(1, len(centrality))


# ---- the probe of dependency ----


LOW = 0.01
"""Weights below this count for the sparsity; the paper's figure 6 does not name its threshold."""
MEASURES = ("gtd", "indirect_entropy", "entropy", "sparsity")
_AT_ONCE = 4
"""Sequences whose attention matrices are in memory at once."""


@dataclass(frozen=True)
class Measures:
    """The settings of `measure_dependency` that say what is measured. threshold: of the sparsity. graphs: how many
    sequences are drawn as graphs of `nodes` tokens, with edges above `tau`. shown: tokens of the maps."""

    beta: Annotated[float, Field(gt=0, lt=1)] = BETA
    hops: Annotated[int, Field(ge=2, le=64)] = HOPS
    threshold: Annotated[float, Field(gt=0, lt=1)] = LOW
    graphs: NonNegativeInt = 0
    nodes: Annotated[int, Field(ge=3)] = NODES
    tau: Annotated[float, Field(gt=0, lt=1)] = THRESHOLD
    shown: Annotated[int, Field(ge=0, le=128)] = 0


BY_DEFAULT = Measures()


def measure_dependency(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig | None,
    rows: Rows = 64,
    settings: Measures = BY_DEFAULT,
    prompts: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """gtd, indirect_entropy and entropy (both in nats), sparsity: [layer][head], means over sequences and the visits of
    a layer; null for a head that does not run. layers: the means over the heads of each layer. mean: over all heads.
    prior: layers and mean of the attention before the refinement, in a model with heads that refine theirs.
    cross_gtd: [layer], a mean over its visits, with hops through the visits after each; the last visit has none.
    graphs: see `_graphs`. maps: [visit][query][key], the attention of the first sequence's first `shown` tokens, a mean
    over heads, in the order of the visits.

    With prompts of tasks, all of this is over all prompts, and tasks.NAME has layers, mean, cross_gtd and graphs of one
    task; graphs are of the first `graphs` prompts of each, of which single ones are listed of the first. With units
    also units [i]: the same, and entropy, of the i-th prompt of every task; single graphs of the first alone."""
    if prompts.tasks:
        return _on_prompts(model, sequences_of(model, corpus, seq_len, rows, prompts), settings)
    prompts.require_tasks()
    assert config is not None, "a probe without tasks has the configuration of its run"
    inputs = _inputs(model, corpus, config, rows)
    parts = [
        _measured(model, {name: tensor[start : start + _AT_ONCE] for name, tensor in inputs.items()}, settings, start)
        for start in followed(range(0, len(inputs["input_ids"]), _AT_ONCE), "dependency")
    ]
    return _summed(model, parts, settings)


@dataclass(frozen=True)
class _Part:
    """What some sequences have shown. heads: of `_by_measure`. prior: before a refinement, if any head has one.
    crossed, crossing: the places (V − 1) and (B, V − 1). points: of `_points`. maps: of the first sequence."""

    count: int
    length: int
    heads: dict[str, dict[Place, Tensor]]
    prior: dict[str, dict[Place, Tensor]]
    crossed: list[Place]
    crossing: Tensor
    points: list[tuple[float, float, float]]
    maps: list[list[list[float]]]


def _measured(model: Transformer, inputs: dict[str, Tensor], settings: Measures, start: int) -> _Part:
    """inputs: the arguments of the forward pass for B sequences, of which the first is number `start`."""
    with torch.no_grad():
        output = model(**inputs, need="full")
    valid = {place: _valid(inputs.get("attention_mask"), weights) for place, weights in output.attention.items()}
    attention = {place: without_padding(weights, valid[place]) for place, weights in output.attention.items()}
    refined = {place: kinds["prior"] for place, kinds in output.others.items() if "prior" in kinds}
    heads = _by_measure(attention, valid, settings)
    points: list[tuple[float, float, float]] = []
    for place, weights in attention.items():
        drawn = weights[: max(0, settings.graphs - start)]
        points += _points(drawn, valid[place], heads["gtd"][place], settings.nodes, settings.tau)
    crossed, crossing = _crossing(attention, settings.beta, settings.hops)
    maps = []
    if settings.shown and not start:
        maps = [rounded(weights[0].mean(0)[: settings.shown, : settings.shown], 4) for weights in attention.values()]
    count, length = inputs["input_ids"].shape
    prior: dict[str, dict[Place, Tensor]] = {}
    if refined:
        before = {place: refined.get(place, weights) for place, weights in output.attention.items()}
        before = {place: without_padding(weights, valid[place]) for place, weights in before.items()}
        prior = _by_measure(before, valid, settings)
    return _Part(count, length, heads, prior, crossed, crossing, points, maps)


def _by_measure(
    attention: dict[Place, Tensor], valid: dict[Place, Tensor], settings: Measures
) -> dict[str, dict[Place, Tensor]]:
    """Measure → place → (B, h), of attention (B, h, S, S) without padding. valid: (B, S), where its tokens are."""
    path = settings.beta, settings.hops
    heads: dict[str, dict[Place, Tensor]] = {name: {} for name in MEASURES}
    for place, weights in attention.items():
        heads["gtd"][place] = token_dependency(weights, *path)
        heads["indirect_entropy"][place] = mean_over_tokens(indirect_entropies(weights, *path), valid[place])
        heads["entropy"][place] = mean_over_tokens(row_entropies(weights), valid[place])
        heads["sparsity"][place] = sparsity(weights, valid[place], settings.threshold)
    return heads


def _summed(model: Transformer, parts: Sequence[_Part], settings: Measures) -> dict[str, Any]:
    """The result of `measure_dependency`, over the sequences of all parts."""
    heads = {name: _by_head(model, [part.heads[name] for part in parts]) for name in MEASURES}
    prior = {name: _by_head(model, [part.prior[name] for part in parts]) for name in parts[0].prior}
    points = [point for part in parts for point in part.points]
    return {
        "sequences": sum(part.count for part in parts),
        "length": max(part.length for part in parts),
        "settings": {"beta": settings.beta, "hops": settings.hops, "threshold": settings.threshold},
        **heads,
        **_over_heads(heads),
        **({"prior": _over_heads(prior)} if prior else {}),
        "cross_gtd": _by_layer(model, parts[-1].crossed, torch.cat([part.crossing for part in parts]).mean(0)),
        "graphs": _graphs(points, settings.nodes, settings.tau) if points else None,
        "maps": next((part.maps for part in parts), []),
    }


def _over_heads(heads: Mapping[str, list[list[float | None]]]) -> dict[str, dict[str, Any]]:
    """The means over the heads of each layer and over all heads, of tables [layer][head] by measure."""
    return {
        "layers": {name: [_mean(row) for row in table] for name, table in heads.items()},
        "mean": {name: _mean(value for row in table for value in row) for name, table in heads.items()},
    }


def _on_prompts(model: Transformer, read: Sequences, settings: Measures) -> dict[str, Any]:
    """The result of `measure_dependency` on prompts of tasks, each measured by itself."""
    by_task = {
        name: [
            _measured(model, {"input_ids": tokens}, settings, i)
            for i, tokens in enumerate(each_sequence(model, name, ones))
        ]
        for name, ones in read.sequences.items()
    }

    def brief(result: dict[str, Any]) -> dict[str, Any]:
        graphs = result["graphs"] and {name: result["graphs"][name] for name in ("mean", "correlation")}
        return {**{name: result[name] for name in ("layers", "mean", "cross_gtd")}, "graphs": graphs}

    def of_unit(i: int) -> dict[str, Any]:
        result = _summed(model, [parts[i] for parts in by_task.values()], settings)
        tasks = {name: brief(_summed(model, [parts[i]], settings)) for name, parts in by_task.items()}
        unit = {**brief(result), "entropy": result["entropy"], "tasks": tasks}
        return unit if i else {**unit, "graphs": result["graphs"]}

    result = _summed(model, [part for parts in by_task.values() for part in parts], settings)
    if result["graphs"] is not None:
        # Of thousands of points those of the first prompts are shown.
        first = _graphs([p for parts in by_task.values() for p in parts[0].points], settings.nodes, settings.tau)
        result["graphs"] |= {name: first[name] for name in ("gtd", "clustering", "betweenness")}
    return {
        **result,
        "tasks": {name: read.about[name] | brief(_summed(model, parts, settings)) for name, parts in by_task.items()},
        "missing": read.missing,
        **read.by_unit(of_unit),
    }


def _inputs(model: Transformer, corpus: Corpus, config: RunConfig, count: int) -> dict[str, Tensor]:
    """The arguments of the forward pass for at most `count` sequences, each (N, S). UserError if there is none."""
    batches = list(make_objective(config, corpus).examples(config, corpus, count))
    if not batches:
        raise UserError(
            f"the validation part of {corpus.folder} has no {config.training.seq_len} tokens in a row; give more text"
        )
    device = model.device
    names = batches[0].inputs
    return {name: torch.cat([batch.inputs[name] for batch in batches])[:count].to(device) for name in names}


def _valid(mask: Tensor | None, weights: Tensor) -> Tensor:
    """(B, S) bool: where attention (B, H, S, S) is over tokens and no padding. mask: of the tokens, (B, S), if there is
    padding; latents of a loop have none."""
    size = weights.shape[-1]
    if mask is None or mask.shape[1] != size:
        return torch.ones(len(weights), size, dtype=torch.bool, device=weights.device)
    return mask.bool()


def _crossing(attention: dict[Place, Tensor], beta: float, hops: int) -> tuple[list[Place], Tensor]:
    """The places of all visits but the last, and (B, V − 1), the GTD of each with hops through the visits after it.
    Visits on latents of a loop, which have other sizes, are left out."""
    size = max(weights.shape[-1] for weights in attention.values())
    same = {place: weights for place, weights in attention.items() if weights.shape[-1] == size}
    last = next(reversed(same.values()))
    shares = cross_layer_dependency([*same.values()], beta, hops)
    return [*same][:-1], torch.stack(shares, 1) if shares else last.new_empty(len(last), 0)


def _by_layer(model: Transformer, places: list[Place], values: Tensor) -> list[float | None]:
    """[layer], up to the last one that has a value: the means over the visits of a layer, of values (V,) by place."""
    layers = {place: visit.layer for place, visit in model.plan.places()}
    by_layer: dict[int, list[float]] = {}
    for place, value in zip(places, values.tolist(), strict=True):
        by_layer.setdefault(layers[place], []).append(value)
    return [_mean(by_layer.get(layer, ())) for layer in range(max(by_layer, default=-1) + 1)]


def _by_head(model: Transformer, parts: Sequence[dict[Place, Tensor]]) -> list[list[float | None]]:
    """[layer][head]: means over all sequences and the visits of a layer, of values (B, h) by place, in parts."""
    shape = model.shape
    values: list[list[list[float]]] = [[[] for _ in range(shape.heads)] for _ in range(shape.layers)]
    joined = {place: torch.cat([part[place] for part in parts]) for place in parts[0]}
    for place, layer, head, row in measured_heads(model.plan, shape.heads, joined):
        values[layer][head] += joined[place][:, row].tolist()
    return [[_mean(of_head) for of_head in of_layer] for of_layer in values]


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return round(sum(defined) / len(defined), 5) if defined else None


def _points(weights: Tensor, valid: Tensor, shares: Tensor, nodes: int, tau: float) -> list[tuple[float, float, float]]:
    """(GTD, clustering, betweenness) of each attention matrix of weights (B, H, S, S), whose GTD is shares (B, H)."""
    drawn = []
    for row, (matrices, of_heads) in enumerate(zip(weights.cpu().numpy(), shares.tolist(), strict=False)):
        size = min(nodes, int(valid[row].sum()))
        for matrix, share in zip(matrices, of_heads, strict=True):
            graph = token_graph(matrix, size, tau)
            drawn.append((share, clustering(graph), betweenness(graph)))
    return drawn


def _graphs(points: list[tuple[float, float, float]], nodes: int, tau: float) -> dict[str, Any]:
    """gtd, clustering, betweenness: of each matrix. mean: of each of the three, with its error. correlation: Pearson's
    r of clustering and of betweenness with GTD, and its p-value; null where one of the two does not vary."""
    columns = dict(zip(("gtd", "clustering", "betweenness"), zip(*points, strict=True), strict=True))
    return {
        "nodes": nodes,
        "tau": tau,
        **{name: rounded([*values], 4) for name, values in columns.items()},
        "mean": {name: mean_and_error(values).model_dump() for name, values in columns.items()},
        "correlation": {
            name: pearson(columns["gtd"], columns[name])._asdict() for name in ("clustering", "betweenness")
        },
    }


def report_dependency(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each layer; then the graphs, if they were asked for."""
    layers = [measured["layers"][name] for name in MEASURES]
    crossing = [*measured["cross_gtd"], *[None] * len(layers[0])]
    title = (
        f"token dependency, {measured['sequences']} sequences of {'at most ' * ('tasks' in measured)}"
        f"{measured['length']} tokens; entropies in nats; "
        f"sparsity: weights below {measured['settings']['threshold']:g}"
    )
    names = ["GTD", "indirect entropy", "entropy", "sparsity", "GTD across layers"]
    table = layer_table(title, names, zip(*layers, crossing, strict=False))
    means = {"all": measured["mean"]}
    if "prior" in measured:
        means["all, before the refinement"] = measured["prior"]["mean"]
    rows = [[what, *(mean[name] for name in MEASURES), None] for what, mean in means.items()]
    yield replace(table, rows=[*table.rows, *rows])
    yield from not_measured(measured)
    graphs = measured["graphs"]
    if graphs is None:
        return
    rows = [
        [name, graphs["mean"][name]["value"], correlation["r"], correlation["p"]]
        for name, correlation in graphs["correlation"].items()
    ]
    title = f"{len(graphs['gtd'])} graphs of {graphs['nodes']} tokens, edges of weight above {graphs['tau']:g}"
    yield Table(title, ["measure", "mean", "r with GTD", "p"], rows)


PROBES.add("dependency", Probe(measure_dependency, report_dependency, needs_config=True))


# ---- refinement ----


_WEIGHTS_AT_ONCE = 2**25
"""Attention weights that are in memory at once, in all visits together."""
_COLUMNS = ("column_mass", "refined_column_mass", "moved")
NO_BELIEF = "no head of this model refines its weights; train one with --arch saobp-high"


def measure_belief(model: Decoder, corpus: Corpus, seq_len: int, rows: Rows = 16) -> dict[str, Any]:
    """visits: in the order of execution, each with its `layer` and, for each of its query heads (null for one that is
    not refined), means over sequences: column_mass, the largest of a sequence; refined_column_mass, that of the refined
    weights; moved, the share of a row's attention that the refinement gives to other keys, a mean over rows.

    layers: the largest column_mass of the heads of each layer, over its visits; null without refined heads."""
    refined = {place: visit for place, visit in model.structure.attention_places() if any(_refines(model, visit))}
    if not refined:
        return {"skipped": NO_BELIEF}
    tokens = spaced_windows(model, corpus, min(seq_len, LONGEST), rows)
    sums: dict[Place, Tensor] = {}
    visits = sum(1 for _ in model.structure.attention_places())
    for part in tokens.split(max(1, _WEIGHTS_AT_ONCE // (2 * visits * model.shape.heads * tokens.shape[1] ** 2))):
        with torch.no_grad():
            output = model(part, need="full")
        for place in refined.keys() & output.others.keys():
            prior, weights = output.others[place]["prior"], output.attention[place]
            masses = [matrix.sum(-2).amax(-1) for matrix in (prior, weights)]
            total = torch.stack([*masses, (prior - weights).abs().sum(-1).mean(-1) / 2]).sum(1)
            sums[place] = sums[place] + total if place in sums else total
    measured: list[dict[str, Any]] = [
        {"layer": visit.layer, **_masses(sums[place] / len(tokens), _refines(model, visit))}
        for place, visit in refined.items()
        if place in sums
    ]
    largest: list[float | None] = [None] * model.shape.layers
    for visit in measured:
        column_masses = [mass for mass in (largest[visit["layer"]], *visit["column_mass"]) if mass is not None]
        largest[visit["layer"]] = max(column_masses)
    return {"sequences": len(tokens), "length": tokens.shape[1], "layers": largest, "visits": measured}


def _refines(model: Decoder, visit: Visit) -> list[bool]:
    """For each query head of a visit, whether its weights are refined."""
    kinds = model.structure.kinds(visit)
    return [isinstance(kinds[kv], Belief) for kv in model.structure.heads(visit).serving]


def _masses(means: Tensor, refines: list[bool]) -> dict[str, list[float | None]]:
    return {
        name: [round(value, 5) if refined else None for value, refined in zip(row, refines, strict=True)]
        for name, row in zip(_COLUMNS, means.tolist(), strict=True)
    }


def report_belief(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each visit: means over its refined heads, and the head with the largest column mass."""
    lines: list[Line] = []
    for visit in measured["visits"]:
        columns = [[value for value in visit[name] if value is not None] for name in _COLUMNS]
        means = [sum(values) / len(values) for values in columns]
        lines.append([means[0], max(columns[0]), *means[1:]])
    title = (
        f"column mass before and after refinement, {measured['sequences']} sequences of {measured['length']} tokens "
        "(1 for uniform attention of an encoder)"
    )
    names = ["largest mass", "of any head", "refined", "share moved"]
    yield layer_table(title, names, lines, [visit["layer"] for visit in measured["visits"]])


PROBES.add("belief", Probe(measure_belief, report_belief))
