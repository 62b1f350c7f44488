"""How the last token of a sequence spreads its attention over the tokens before it (ConSA, section 5.6 and appendix
D.4): by layer, the mean over its heads, and by KV head, the mean over the query heads that share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridlab.analysis.entropy import row_entropy
from hybridlab.models.decoder import Output, Transformer

PARTS = 16
"""Equal parts of a sequence, over which attention is compared between sequences of several lengths."""
SPIKE = 3.0
"""A token is a spike where it gets so many times the attention that it would get if all tokens got the same."""
TAIL = 0.1
"""The share of a sequence that counts as its end."""


@dataclass(frozen=True)
class LastRow:
    """layers (L, S): the attention of the last token in each layer, summing to 1. heads (L, K, S): the same of each KV
    head. Layers that do not run have NaN; one that runs several times counts at its first visit."""

    layers: Tensor
    heads: Tensor


def last_rows(model: Transformer, sequences: Iterator[Tensor]) -> Iterator[LastRow]:
    """For each sequence (1, S) of tokens."""
    with torch.no_grad():
        for tokens in sequences:
            yield _rows(model, model(tokens, need="last_row"), tokens.shape[1])


def _rows(model: Transformer, output: Output, length: int) -> LastRow:
    shape, group = model.shape, model.shape.group
    heads = torch.full((shape.layers, shape.heads, length), float("nan"))
    for place, visit in model.plan.places():
        if place not in output.attention:
            continue
        weights = output.attention[place][0, :, -1].float().cpu()
        for row, head in enumerate(visit.heads or range(shape.heads)):
            if heads[visit.layer, head, 0].isnan():
                heads[visit.layer, head] = weights[row]
    return LastRow(heads.nanmean(1), heads.view(shape.layers, -1, group, length).nanmean(2))


def statistics(rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Of attention rows (…, S), one for each sequence, their means over sequences:

    entropy: of the row, as a share of the largest possible; 1 is uniform. local: attention on the last tenth of the
    sequence. range: in how many of 16 equal parts of the sequence, without the first token, a token gets three times
    the attention that a uniform row would give it, as a share. first: attention on the first token. parts (…, 16):
    attention on each of these parts, which sum to 1 with the first token.
    """
    found: dict[str, list[Tensor]] = {"entropy": [], "local": [], "range": [], "first": [], "parts": []}
    for row in rows:
        length = row.shape[-1]
        later = [part for part in row[..., 1:].tensor_split(PARTS, dim=-1) if part.shape[-1]]
        keys = torch.full(row.shape[:-1], length)
        found["entropy"].append(row_entropy(row, keys))
        found["local"].append(row[..., length - max(1, round(TAIL * length)) :].sum(-1))
        found["first"].append(row[..., 0])
        spikes = torch.stack([(part > SPIKE / length).any(-1) for part in later])
        found["range"].append(spikes.float().mean(0))
        if len(later) == PARTS:
            found["parts"].append(torch.stack([part.sum(-1) for part in later], dim=-1))
    return {name: torch.stack(values).mean(0) for name, values in found.items() if values}


def spread(parts: Sequence[Tensor]) -> Tensor:
    """(L,): how much attention moves between sequences of several tasks: half the sum of the absolute differences of
    their parts (L, 16), the mean over all pairs of tasks; 0 for the same distribution, 1 for disjoint ones."""
    pairs = [(a - b).abs().sum(-1) / 2 for i, a in enumerate(parts) for b in parts[i + 1 :]]
    return torch.stack(pairs).mean(0)
