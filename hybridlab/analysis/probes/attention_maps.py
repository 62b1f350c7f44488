"""Whole attention maps of heads with low and high entropy, on one prompt of each task (SGT, appendix C.3).

hybridlab analyze RUN --probe attention-maps --tasks gsm8k,mmlu --rows 20 --data-root DIR
hybridlab analyze RUN --probe attention-maps --heads L1-H1,L25-H2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import measured_entropies
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.analysis.prompts import Count, Shots, Words
from hybridlab.analysis.task_prompts import PromptSettings, each_sequence
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plan.heads import Head, head_name, parse_heads
from hybridlab.registry import PROBES

SEQUENCES = 32
SHOWN = 48
"""Tokens of a map: of a longer prompt, the last ones."""
HALF = 0.5
"""The tokens that are marked get this share of the last token's attention together."""
NEAR = 8
"""Tokens up to so far before the last one are its neighbourhood."""


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = SEQUENCES,
    tasks: Words = (),
    heads: Words = (),
    count: Count = 1,
    shown: Count = SHOWN,
    shots: Shots | None = None,
    longest: Count | None = None,
    data_root: str | None = None,
) -> dict[str, Any]:
    """heads: those that are shown, by name (L1-H3: layer 1, head 3, counted from 1), each with its kind (low, high or
    chosen), its least and largest entropy on any task, and what it does over all prompts: `near`, the attention of the
    last token on itself and the 8 tokens before it; `first`, on the first token; `half`, the share of the tokens that
    together get half of it. By default the `count` heads whose largest entropy is lowest, and those whose least is
    highest, on `rows` prompts of each task (or windows of text).

    maps: for each task the last `shown` tokens of its shortest prompt, marked: by head, the places of the tokens that
    together get half of the last token's attention; weights: by head, [query][key].
    """
    asked = PromptSettings(tasks, rows, shots, longest, data_root)
    sequences, _, missing = asked.sequences(model, corpus, seq_len)
    tables = torch.stack(
        [measured_entropies(model, each_sequence(model, name, ones)) for name, ones in sequences.items()]
    )
    low, high = tables.amin(0), tables.amax(0)
    if heads:
        chosen = {head: "chosen" for head in parse_heads(",".join(heads), model.shape.layers, model.shape.heads)}
    else:
        if count > low.numel():
            raise UserError(f"count = {count}: this model has {low.numel()} heads; give at most as many")
        chosen = _extremes(low, high, count)
    every = [tokens for ones in sequences.values() for tokens in ones]
    doing = _behaviour(model, every, [*chosen])
    return {
        "sequences": len(every),
        "heads": {
            head_name(head): {"kind": kind, "lowest": _at(low, head), "highest": _at(high, head), **doing[head]}
            for head, kind in chosen.items()
        },
        "maps": {name: _map(model, corpus, _shortest(ones), [*chosen], shown) for name, ones in sequences.items()},
        "missing": missing,
    }


def _extremes(low: Tensor, high: Tensor, count: int) -> dict[Head, str]:
    """The heads that have a low entropy on every task, and those that have a high one; head → kind."""
    columns = low.shape[1]
    least = high.nan_to_num(nan=float("inf")).flatten().argsort(stable=True)[:count].tolist()
    most = low.nan_to_num(nan=-float("inf")).flatten().argsort(descending=True, stable=True)[:count].tolist()
    kinds = [(place, "low") for place in least] + [(place, "high") for place in most if place not in least]
    return {divmod(place, columns): kind for place, kind in kinds}


def _weights(model: Transformer, tokens: Tensor, heads: list[Head], need: str) -> dict[Head, Tensor]:
    """(Q, S): the attention of each head at the first visit of its layer, for one sequence (1, S)."""
    with torch.no_grad():
        output = model(tokens, need=need)
    found: dict[Head, Tensor] = {}
    for place, visit in model.plan.places():
        running = list(visit.heads or range(model.shape.heads))
        for head in heads:
            if place in output.attention and head[0] == visit.layer and head[1] in running and head not in found:
                found[head] = output.attention[place][0, running.index(head[1])].float().cpu()
    if missing := [head for head in heads if head not in found]:
        raise UserError(f"{head_name(missing[0])} does not run in this model; choose another head")
    return found


def _behaviour(model: Transformer, sequences: list[Tensor], heads: list[Head]) -> dict[Head, dict[str, float]]:
    """Head → near, first and half, means over sequences."""
    sums = {head: {"near": 0.0, "first": 0.0, "half": 0.0} for head in heads}
    for tokens in each_sequence(model, "heads", sequences):
        length = tokens.shape[1]
        for head, weights in _weights(model, tokens, heads, "last_row").items():
            row = weights[-1]
            sums[head]["near"] += float(row[max(0, length - 1 - NEAR) :].sum())
            sums[head]["first"] += float(row[0])
            sums[head]["half"] += len(marked(row)) / length
    return {head: {name: round(v / len(sequences), 5) for name, v in own.items()} for head, own in sums.items()}


def marked(row: Tensor) -> list[int]:
    """The places of the fewest tokens that together get half of the attention (S,), in their order."""
    order = row.argsort(descending=True, stable=True)
    needed = int((row[order].cumsum(0) < HALF * float(row.sum()) - 1e-6).sum()) + 1
    return sorted(order[:needed].tolist())


def _shortest(sequences: list[Tensor]) -> Tensor:
    return min(sequences, key=len)


def _map(model: Transformer, corpus: Corpus, tokens: Tensor, heads: list[Head], shown: int) -> dict[str, Any]:
    first = max(0, len(tokens) - shown)
    weights = _weights(model, tokens[None].to(next(model.parameters()).device), heads, "full")
    return {
        "length": len(tokens),
        "tokens": [corpus.tokenizer.decode([int(token)]) for token in tokens[first:]],
        "marked": {head_name(h): [p - first for p in marked(w[-1]) if p >= first] for h, w in weights.items()},
        "weights": {
            head_name(head): [[round(v, 4) for v in row] for row in matrix[first:, first:].tolist()]
            for head, matrix in weights.items()
        },
    }


def _at(table: Tensor, head: Head) -> float | None:
    value = float(table[head])
    return None if value != value else round(value, 5)


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each head, and for each task the tokens that its heads attend to."""
    columns = ["head", "kind", "lowest entropy", "highest", "near", "first token", "half on"]
    rows: list[list[str | int | float | None]] = [
        [name, one["kind"], one["lowest"], one["highest"], one["near"], one["first"], one["half"]]
        for name, one in measured["heads"].items()
    ]
    yield Table(f"the last token of {measured['sequences']} sequences", columns, rows)
    for task, one in measured["maps"].items():
        for name, places in one["marked"].items():
            yield f"{task}, {name}: half of the attention on {' '.join(repr(one['tokens'][p]) for p in places)}"
    for name, reason in measured["missing"].items():
        yield f"not measured: {name}: {reason}"


PROBES.add("attention-maps", Probe(measure, report, needs_decoder="the attention of the last token"))
