"""What refinement by belief propagation does to each head: column masses, and how much of the attention it moves.

hybridlab analyze RUN --probe belief

The column mass of a key is the sum of the prior weights that all rows give it. The messages about a key add up to about
−λ times its mass, so that a key with a large mass, an attention sink, loses nearly all of its weight in long sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.probe import LONGEST, Probe, Rows, Table, spaced_windows
from hybridlab.attention.belief import Belief
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Decoder
from hybridlab.plan.visit import Place, Visit, layer_name
from hybridlab.registry import PROBES

_AT_ONCE = 2**25
"""Attention weights that are in memory at once, in all visits together."""
_COLUMNS = ("column_mass", "refined_column_mass", "moved")
NO_BELIEF = "no head of this model refines its weights; train one with --arch saobp-high"


def measure(model: Decoder, corpus: Corpus, seq_len: int, rows: Rows = 16) -> dict[str, Any]:
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
    for part in tokens.split(max(1, _AT_ONCE // (2 * visits * model.shape.heads * tokens.shape[1] ** 2))):
        with torch.no_grad():
            output = model(part, need="full")
        for place in refined.keys() & output.others.keys():
            found = _statistics(output.others[place]["prior"], output.attention[place]).sum(1)
            sums[place] = sums[place] + found if place in sums else found
    measured: list[dict[str, Any]] = [
        {"layer": visit.layer, **_by_head(sums[place] / len(tokens), _refines(model, visit))}
        for place, visit in refined.items()
        if place in sums
    ]
    largest: list[float | None] = [None] * model.shape.layers
    for visit in measured:
        known = [mass for mass in (largest[visit["layer"]], *visit["column_mass"]) if mass is not None]
        largest[visit["layer"]] = max(known)
    return {"sequences": len(tokens), "length": tokens.shape[1], "layers": largest, "visits": measured}


def _refines(model: Decoder, visit: Visit) -> list[bool]:
    """For each query head of a visit, whether its weights are refined."""
    kinds = model.structure.kinds(visit)
    return [isinstance(kinds[kv], Belief) for kv in model.structure.heads(visit).serving]


def _statistics(prior: Tensor, refined: Tensor) -> Tensor:
    """(3, B, h): the largest column mass of the prior and of the refined weights, and the share that has moved."""
    masses = [weights.sum(-2).amax(-1) for weights in (prior, refined)]
    return torch.stack([*masses, (prior - refined).abs().sum(-1).mean(-1) / 2])


def _by_head(means: Tensor, refines: list[bool]) -> dict[str, list[float | None]]:
    return {
        name: [round(value, 5) if asked else None for value, asked in zip(row, refines, strict=True)]
        for name, row in zip(_COLUMNS, means.tolist(), strict=True)
    }


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each visit: means over its refined heads, and the head with the largest column mass."""
    rows: list[list[str | int | float | None]] = []
    for visit in measured["visits"]:
        columns = [[value for value in visit[name] if value is not None] for name in _COLUMNS]
        means = [sum(values) / len(values) for values in columns]
        rows.append([layer_name(visit["layer"]).removeprefix("layer "), means[0], max(columns[0]), *means[1:]])
    title = (
        f"column mass before and after refinement, {measured['sequences']} sequences of {measured['length']} tokens "
        "(1 for uniform attention of an encoder)"
    )
    yield Table(title, ["layer from 0", "largest mass", "of any head", "refined", "share moved"], rows)


PROBES.add("belief", Probe(measure, report))
