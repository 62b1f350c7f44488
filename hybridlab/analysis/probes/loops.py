"""How attention changes from one iteration of a loop to the next (SpiralFormer, section 4 and appendix I).

    hybridlab analyze RUN --probe loops

Key-marginal entropy: the entropy of the attention that each key receives, averaged over queries, divided by log L_t.
Local attention mass: the attention on the M_t = ⌈32 r_t⌉ keys before a query, without its own key (Eq. 23).
Dynamic heads: the 40 % with the largest range over the iterations, chosen for each metric.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.probe import LONGEST, Probe, Rows, Table, spaced_windows
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer, draw_weights
from hybridlab.plan.loop import Loop
from hybridlab.plan.visit import Visit
from hybridlab.registry import PROBES

LOCAL_TOKENS = 32
"""γ: the local window in tokens."""
DYNAMIC_SHARE = 0.4


def measure(model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 64) -> dict[str, Any]:
    """`loop_statistics` on `rows` sequences; fresh: the same values for the model with fresh weights."""
    tokens = spaced_windows(model, corpus, min(seq_len, 4 * LONGEST), rows)
    trained = loop_statistics(model, tokens.split(4))
    if trained is None:
        return {"skipped": "the plan has no loop over iterations"}
    return trained | {"fresh": described_fresh(model, tokens.split(4))}


def key_marginal_entropy(weights: Tensor) -> Tensor:
    """Attention (B, H, n, n) → (B, H), in [0, 1]; 0 if there is only one key."""
    n = weights.shape[-1]
    received = weights.float().mean(2)
    return -torch.xlogy(received, received).sum(-1) / math.log(n) if n > 1 else received.new_zeros(received.shape[:2])


def local_attention_mass(weights: Tensor, chunk: int) -> Tensor:
    """Attention (B, H, n, n) at chunk size g → (B, H): mass on the ⌈32 / g⌉ keys before each query."""
    n, reach = weights.shape[-1], math.ceil(LOCAL_TOKENS / chunk)
    query = torch.arange(n, device=weights.device)[:, None]
    key = torch.arange(n, device=weights.device)[None, :]
    near = (key < query) & (key >= query - reach)
    return (weights.float() * near).sum(-1).mean(-1)


def loop_statistics(model: Transformer, batches: Iterable[Tensor]) -> dict[str, Any] | None:
    """Both metrics, for every head in the body of the plan's first loop and every iteration, averaged over all
    sequences of `batches`, each (B, S). None if the plan has no loop."""
    if not model.plan.loops:
        return None
    index, loop = next(iter(model.plan.loops.items()))
    rows = len(_whole_attention(loop, 0))
    if not rows or any(len(_whole_attention(loop, t)) != rows for t in range(loop.iterations)):
        raise UserError("the loop's iterations do not all have the same layers with all of their heads")
    sums: dict[tuple[int, int], Tensor] = {}
    count = 0
    with torch.no_grad():
        for tokens in batches:
            attention = model(tokens, need="full").attention
            for t in range(loop.iterations):
                for row, (inner, _) in enumerate(_whole_attention(loop, t)):
                    weights = attention.get((index, t, inner))
                    if weights is None:
                        raise UserError(f"sequences of {tokens.shape[1]} tokens fill no chunk of {loop.chunks[t]}")
                    metrics = torch.stack(
                        (key_marginal_entropy(weights), local_attention_mass(weights, loop.chunks[t]))
                    )
                    sums[t, row] = sums.get((t, row), 0) + metrics.sum(1).cpu()
            count += len(tokens)
    table = torch.stack([torch.stack([sums[t, row] for row in range(rows)]) for t in range(loop.iterations)]) / count
    values = {"entropy": table[:, :, 0], "local_mass": table[:, :, 1]}
    return {
        "sequences": count,
        "length": tokens.shape[1],
        "chunks": list(loop.chunks),
        "layers": [visit.layer for _, visit in _whole_attention(loop, 0)],
        **{name: _described(table) for name, table in values.items()},
    }


def _whole_attention(loop: Loop, t: int) -> list[tuple[int, Visit]]:
    """(index in the body, visit) of the visits whose attention runs all heads, in iteration t."""
    return [(i, v) for i, v in enumerate(loop.body(t)) if v.part != "mlp" and v.heads is None]


def described_fresh(model: Transformer, batches: Iterable[Tensor]) -> dict[str, Any]:
    """The values of both metrics with fresh random weights: the effect of causal attention at each resolution without
    any training. The plan must have a loop."""
    fresh = copy.deepcopy(model)
    draw_weights(fresh, 0)
    statistics = loop_statistics(fresh, batches)
    assert statistics is not None, "callers check that the plan has a loop"
    return {name: statistics[name]["values"] for name in ("entropy", "local_mass")}


def _described(values: Tensor) -> dict[str, Any]:
    """Of values (T, layers, H): the numbers, ranges over the iterations, dynamic heads, and means by iteration."""
    spread = values.amax(0) - values.amin(0)
    count = max(1, round(DYNAMIC_SHARE * spread.numel()))
    dynamic = torch.zeros(spread.numel(), dtype=torch.bool)
    dynamic[spread.flatten().argsort(descending=True, stable=True)[:count]] = True
    dynamic = dynamic.view(spread.shape)
    return {
        "values": [[[round(v, 5) for v in row] for row in table] for table in values.tolist()],
        "range": [[round(v, 5) for v in row] for row in spread.tolist()],
        "dynamic": dynamic.tolist(),
        "means": [float(table.mean()) for table in values],
        "dynamic_means": [float(table[dynamic].mean()) for table in values],
    }


# ---- the report ----


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each iteration: both metrics, over all heads and over the dynamic heads."""
    rows = []
    for t, g in enumerate(measured["chunks"]):
        means = [measured[name][part][t] for name in ("entropy", "local_mass") for part in ("means", "dynamic_means")]
        rows.append([t + 1, "1" if g == 1 else f"1/{g}", *means])
    columns = ["loop", "resolution", "entropy", "dynamic heads", "local mass", "dynamic heads"]
    yield Table(
        f"attention by iteration, {measured['sequences']} sequences of {measured['length']} tokens", columns, rows
    )


PROBES.add("loops", Probe(measure, report, needs_decoder="the attention to the tokens before a query"))
