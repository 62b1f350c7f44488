"""How far attention reaches over several hops: GTD, indirect entropy, entropy and sparsity (SAOBP, sections 5 and 7).

hybridlab analyze RUN --probe dependency --graphs 32

Measured on the attention that the model uses, after any refinement, on what its objective measures: windows of text, or
the examples of a fine-tuning task without their padding. With `graphs`, each attention matrix of so many sequences is
also read as a graph of tokens, whose clustering coefficient and betweenness stand beside its GTD.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from hybridlab.analysis import dependency
from hybridlab.analysis.dependency import NODES, THRESHOLD, betweenness, clustering, token_graph
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import NonNegativeInt
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plan.visit import Place, layer_name
from hybridlab.registry import PROBES
from hybridlab.statistics import mean_and_error, pearson
from hybridlab.training.objective import make_objective

LOW = 0.01
"""Weights below this count for the sparsity; the paper's figure 6 does not name its threshold."""
MEASURES = ("gtd", "indirect_entropy", "entropy", "sparsity")
_AT_ONCE = 4
"""Sequences whose attention matrices are in memory at once."""


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig,
    rows: Rows = 64,
    beta: Annotated[float, Field(gt=0, lt=1)] = dependency.BETA,
    hops: Annotated[int, Field(ge=2, le=64)] = dependency.HOPS,
    threshold: Annotated[float, Field(gt=0, lt=1)] = LOW,
    graphs: NonNegativeInt = 0,
    nodes: Annotated[int, Field(ge=3)] = NODES,
    tau: Annotated[float, Field(gt=0, lt=1)] = THRESHOLD,
    shown: Annotated[int, Field(ge=0, le=128)] = 0,
) -> dict[str, Any]:
    """gtd, indirect_entropy and entropy (both in nats), sparsity: [layer][head], means over sequences and the visits of
    a layer; null for a head that does not run. layers: the means over the heads of each layer. mean: over all heads.
    cross_gtd: [layer], with hops through the layers above; the last layer has none. graphs: see `_graphs`. maps:
    [visit][query][key], the attention of the first sequence's first `shown` tokens, a mean over heads, in the order of
    the visits."""
    inputs = _inputs(model, corpus, config, rows)
    count = len(inputs["input_ids"])
    found: list[dict[str, dict[Place, Tensor]]] = []
    crossing: list[Tensor] = []
    maps: list[list[list[float]]] = []
    points: list[tuple[float, float, float]] = []
    for start in range(0, count, _AT_ONCE):
        part = {name: tensor[start : start + _AT_ONCE] for name, tensor in inputs.items()}
        valid = part["attention_mask"].bool() if "attention_mask" in part else None
        attention = _attention(model, part, valid)
        found.append({name: {} for name in MEASURES})
        for place, weights in attention.items():
            for name, values in _of_heads(weights, valid, beta, hops, threshold).items():
                found[-1][name][place] = values
            asked = weights[: max(0, graphs - start)]
            points += _points(asked, valid, found[-1]["gtd"][place], nodes, tau)
        crossing.append(_crossing(list(attention.values()), beta, hops))
        if shown and not start:
            maps = [_shown(weights[0], shown) for weights in attention.values()]
    heads = {name: _by_head(model, [part[name] for part in found]) for name in MEASURES}
    return {
        "sequences": count,
        "length": inputs["input_ids"].shape[1],
        "settings": {"beta": beta, "hops": hops, "threshold": threshold},
        **heads,
        "layers": {name: [_mean(row) for row in table] for name, table in heads.items()},
        "mean": {name: _mean(value for row in table for value in row) for name, table in heads.items()},
        "cross_gtd": [round(value, 5) for value in torch.cat(crossing).mean(0).tolist()],
        "graphs": _graphs(points, nodes, tau) if graphs else None,
        "maps": maps,
    }


def _inputs(model: Transformer, corpus: Corpus, config: RunConfig, count: int) -> dict[str, Tensor]:
    """The arguments of the forward pass for at most `count` sequences, each (N, S). UserError if there is none."""
    batches = list(make_objective(config, corpus).examples(config, corpus, count))
    if not batches:
        raise UserError(
            f"the validation part of {corpus.folder} has no {config.training.seq_len} tokens in a row; give more text"
        )
    device = next(model.parameters()).device
    names = batches[0].inputs
    return {name: torch.cat([batch.inputs[name] for batch in batches])[:count].to(device) for name in names}


def _attention(model: Transformer, inputs: dict[str, Tensor], valid: Tensor | None) -> dict[Place, Tensor]:
    """Attention weights (B, H, S, S) in fp64, by place, without those of padding."""
    with torch.no_grad():
        found = model(**inputs, need="full").attention
    return {place: dependency.without_padding(weights, _fitting(valid, weights)) for place, weights in found.items()}


def _fitting(valid: Tensor | None, weights: Tensor) -> Tensor | None:
    """The mask of padding, for attention over tokens; latents of a loop have none."""
    return valid if valid is not None and valid.shape[1] == weights.shape[-1] else None


def _of_heads(weights: Tensor, valid: Tensor | None, beta: float, hops: int, threshold: float) -> dict[str, Tensor]:
    """Each measure (B, H) of attention (B, H, S, S)."""
    valid = _fitting(valid, weights)
    return {
        "gtd": dependency.token_dependency(weights, beta, hops),
        "indirect_entropy": dependency.mean_over_tokens(dependency.indirect_entropies(weights, beta, hops), valid),
        "entropy": dependency.mean_over_tokens(dependency.row_entropies(weights), valid),
        "sparsity": dependency.sparsity(weights, valid, threshold),
    }


def _crossing(visits: list[Tensor], beta: float, hops: int) -> Tensor:
    """(B, V − 1): the GTD of each visit but the last, with hops through the visits after it. Visits on latents of a
    loop, which have other sizes, are left out."""
    size = max(weights.shape[-1] for weights in visits)
    same = [weights for weights in visits if weights.shape[-1] == size]
    shares = dependency.cross_layer_dependency(same, beta, hops)
    return torch.stack(shares, 1) if shares else visits[0].new_empty(len(visits[0]), 0)


def _by_head(model: Transformer, parts: list[dict[Place, Tensor]]) -> list[list[float | None]]:
    """[layer][head]: means over all sequences and the visits of a layer, of values (B, h) by place."""
    shape = model.shape
    values: list[list[list[float]]] = [[[] for _ in range(shape.heads)] for _ in range(shape.layers)]
    for place, visit in model.plan.places():
        if place not in parts[0]:
            continue
        rows = torch.cat([part[place] for part in parts])
        for row, head in enumerate(visit.heads or range(shape.heads)):
            values[visit.layer][head] += rows[:, row].tolist()
    return [[round(sum(found) / len(found), 5) if found else None for found in layer] for layer in values]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 5) if known else None


def _shown(weights: Tensor, size: int) -> list[list[float]]:
    """The first rows and columns of the mean over heads of attention (H, S, S)."""
    return [[round(value, 4) for value in row] for row in weights.mean(0)[:size, :size].tolist()]


def _points(
    weights: Tensor, valid: Tensor | None, shares: Tensor, nodes: int, tau: float
) -> list[tuple[float, float, float]]:
    """(GTD, clustering, betweenness) of each attention matrix of weights (B, H, S, S), whose GTD is shares (B, H)."""
    drawn, kept = [], _fitting(valid, weights)
    for row, (matrices, of_heads) in enumerate(zip(weights.cpu().numpy(), shares.tolist(), strict=False)):
        size = nodes if kept is None else min(nodes, int(kept[row].sum()))
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
        **{name: [round(value, 4) for value in values] for name, values in columns.items()},
        "mean": {name: mean_and_error(values).model_dump() for name, values in columns.items()},
        "correlation": {
            name: pearson(columns["gtd"], columns[name])._asdict() for name in ("clustering", "betweenness")
        },
    }


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each layer; then the graphs, if they were asked for."""
    layers: Mapping[str, list[float | None]] = measured["layers"]
    crossing = [*measured["cross_gtd"], *[None] * len(layers["gtd"])]
    rows: list[list[str | int | float | None]] = [
        [layer_name(layer).removeprefix("layer "), *(layers[name][layer] for name in MEASURES), crossing[layer]]
        for layer in range(len(layers["gtd"]))
    ]
    rows.append(["all", *(measured["mean"][name] for name in MEASURES), None])
    title = (
        f"token dependency, {measured['sequences']} sequences of {measured['length']} tokens; entropies in nats; "
        f"sparsity: weights below {measured['settings']['threshold']:g}"
    )
    yield Table(title, ["layer from 0", "GTD", "indirect entropy", "entropy", "sparsity", "GTD across layers"], rows)
    graphs = measured["graphs"]
    if graphs is None:
        return
    found = [
        [name, graphs["mean"][name]["value"], correlation["r"], correlation["p"]]
        for name, correlation in graphs["correlation"].items()
    ]
    title = f"{len(graphs['gtd'])} graphs of {graphs['nodes']} tokens, edges of weight above {graphs['tau']:g}"
    yield Table(title, ["measure", "mean", "r with GTD", "p"], found)


PROBES.add("dependency", Probe(measure, report, needs_config=True))
