"""The causality probe: no logit may change when a later token does. It runs before any number of a decoder is recorded.

    hybridlab eval RUN

A model that sees the future has a splendid loss; nothing in a loss curve tells. So the probe changes one token at
several places of several lengths and demands that all earlier logits stay as they were (fp32, to rounding).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridlab.errors import RunFailed
from hybridlab.models.decoder import Decoder, Taps

TOLERANCE = 1e-4
"""Relative to the largest logit. Rounding gives about 1e-7; a leak of any use to a model is far above."""


@dataclass(frozen=True)
class Leak:
    """The worst change of an earlier logit, relative to the largest logit, and where it was seen."""

    change: float
    changed_token: int
    seen_at: int
    length: int


def worst_leak(model: Decoder, lengths: tuple[int, ...], seed: int = 0, taps: Taps | None = None) -> Leak:
    """Change tokens one at a time and find the largest effect on an earlier position."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    worst = Leak(0.0, 0, 0, 0)
    for length in lengths:
        ids = torch.randint(model.shape.vocab, (1, length), generator=generator)
        places = sorted(
            {1, 2, 3, length // 3, length // 2, 2 * length // 3, length - 2, length - 1} & set(range(1, length))
        )
        rows = ids.repeat(len(places) + 1, 1)
        for row, place in enumerate(places, 1):
            rows[row, place] = (
                rows[row, place] + 1 + int(torch.randint(model.shape.vocab - 1, (), generator=generator))
            ) % (model.shape.vocab)
        with torch.no_grad():
            logits = model(rows.to(device), taps=taps).logits.float()
        scale = logits.abs().max().clamp_min(1e-12)
        for row, place in enumerate(places, 1):
            change = (logits[row, :place] - logits[0, :place]).abs().amax(-1) / scale
            if not torch.isfinite(change).all() or float(change.max()) > worst.change:
                position = int(change.nan_to_num(float("inf")).argmax())
                worst = Leak(float(change[position]), place, position, length)
    return worst


def require_causal(model: Decoder, length: int, taps: Taps | None = None) -> float:
    """Raise where a later token reaches an earlier logit; returns the largest relative change seen (rounding)."""
    leak = worst_leak(model, tuple(sorted({2, 3, length // 2 + 1, length} - {0, 1})), taps=taps)
    if not leak.change <= TOLERANCE:
        raise RunFailed(
            f"causality probe: changing token {leak.changed_token} of {leak.length} moves the logits at position "
            f"{leak.seen_at} by {leak.change:.2g} of their scale; the model sees the future, so nothing is recorded"
        )
    return leak.change
