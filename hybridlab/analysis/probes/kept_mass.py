"""How much attention lies inside the window: the share of the mass that a window would keep, head by head.

hybridlab analyze RUN --probe kept-mass

Measured with the model's weights and full attention in every head, so that it says what a map gives up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.material import NO_WINDOW, material, window_of
from hybridlab.analysis.probe import LONGEST, Probe, Rows, Table
from hybridlab.attention.kernels import Visible
from hybridlab.attention.kinds import Full
from hybridlab.config.maps import TEXT
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES

_AT_ONCE = 2**26
"""Attention weights that are in memory at once, in all layers together: a quarter of a gibibyte."""


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig,
    rows: Rows = 16,
    window: PositiveInt | None = None,
) -> dict[str, Any]:
    """On `text` and on every task of the run: heads [layer][KV head], the share of the attention inside a window of
    `window` tokens, a mean over query heads, positions and sequences, null for a head that does not run; kept, the
    mean over the heads of what the run's own map keeps: 1 for full attention, for a window the mass inside it, and for
    a head whose mask is being learned both, weighed by its gate.

    The first tokens of a sequence count too, although a window holds all that they may see."""
    width = window_of(model, config, window)
    if width is None:
        return {"skipped": NO_WINDOW}
    used = material(model, corpus, config, min(seq_len, LONGEST), rows)
    shape, own = model.shape, model.attention_map
    full = model.with_plan(attention_map=AttentionMap.uniform(shape.layers, shape.kv_heads, Full()))
    widths = sorted({width} | {kind.window for kind in own.each_kind() if kind.window is not None})
    heads, kept = {}, {}
    for name in (TEXT, *used.tasks):
        tokens = used.text if name == TEXT else used.tokens(name).to(used.text.device)
        mass = inside_mass(full, tokens, widths)
        heads[name] = [[None if v != v else round(v, 5) for v in row] for row in mass[width].tolist()]
        kept[name] = round(kept_by(own, mass, model.gates), 5)
    found = {"window": width, "sequences": len(used.text), "length": used.text.shape[1]}
    return {**found, "heads": heads, "kept": kept}


def inside_mass(model: Transformer, tokens: Tensor, widths: list[int]) -> dict[int, Tensor]:
    """Width w → (L, K): the share of the attention on the keys in a window of w, the token's own included, a mean over
    the visits of a layer, the query heads of a KV head, positions and sequences (B, S); NaN for a KV head that does not
    run."""
    shape, length = model.shape, tokens.shape[1]
    query, key = (torch.arange(length, device=tokens.device).view(size) for size in ((-1, 1), (1, -1)))
    causal = model.structure.causal
    near = torch.stack([Visible(width, causal=causal).allows(query, key) for width in widths]).float()
    sums = torch.zeros(len(widths), shape.layers, shape.kv_heads, device=tokens.device)
    counts = torch.zeros_like(sums)
    visits = sum(visit.part != "mlp" for _, visit in model.plan.places())
    at_once = max(1, _AT_ONCE // (visits * shape.heads * length * length))
    for part in tokens.split(at_once):
        with torch.no_grad():
            attention = model(part, need="full").attention
        for place, visit in model.plan.places():
            if place not in attention:
                continue
            weights = attention[place]
            size = weights.shape[-1]
            inside = torch.einsum("bhqk,wqk->wh", weights, near[:, :size, :size]) / size
            for row, head in enumerate(visit.heads or range(shape.heads)):
                sums[:, visit.layer, head // shape.group] += inside[:, row]
                counts[:, visit.layer, head // shape.group] += len(part)
    return dict(zip(widths, (sums / counts).cpu(), strict=True))


def kept_by(attention_map: AttentionMap, mass: dict[int, Tensor], gates: Mapping[int, Tensor] | None = None) -> float:
    """The mean over the KV heads that run of what a map keeps: 1 for a head that sees all tokens, else the mass inside
    its window; for a head whose mask is being learned, both, weighed by its gate. mass: see `inside_mass`. gates: of
    mixed heads, see `Transformer`."""
    shares = []
    for layer, row in enumerate(attention_map.layers):
        for head, kind in enumerate(row):
            inside = float((next(iter(mass.values())) if kind.window is None else mass[kind.window])[layer, head])
            if not math.isnan(inside):
                whole = float((gates or {})[layer][head]) if kind.mask is None else kind.mask
                shares.append(whole + (1 - whole) * inside)
    return sum(shares) / len(shares)


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A table for text and for each task, with a row for every layer."""
    for name, rows in measured["heads"].items():
        title = (
            f"share of the attention inside a window of {measured['window']} ({name}, {measured['sequences']} "
            f"sequences of {measured['length']} tokens); this run's map keeps {measured['kept'][name]:.3f}"
        )
        layers: list[list[str | int | float | None]] = [
            [layer_name(layer).removeprefix("layer "), *row] for layer, row in enumerate(rows)
        ]
        yield Table(title, ["layer from 0", *(f"head {head}" for head in range(len(rows[0])))], layers)


PROBES.add("kept-mass", Probe(measure, report, needs_config=True, needs_text=True))
