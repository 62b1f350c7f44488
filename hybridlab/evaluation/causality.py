"""The causality probe: no logit may change when a later token does. It runs before any number of a decoder is recorded.

    hybridlab eval RUN

A model that sees the future has a splendid loss; nothing in a loss curve tells. So the probe changes one token at
several places of several lengths and demands that all earlier logits stay as they were (fp32, to rounding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hybridlab.errors import RunFailed
from hybridlab.evaluation.rows import chunks
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
    worst = Leak(0.0, 0, 0, 0)
    for length in lengths:
        ids = torch.randint(model.shape.vocab, (length,), generator=generator)
        asked = {1, 2, 3, length // 3, length // 2, 2 * length // 3, length - 2, length - 1}
        places = torch.tensor(sorted(asked & set(range(1, length))))
        before = _logits(model, ids[None], taps)
        scale = before.abs().max().clamp_min(1e-12)
        for part in chunks(places, model, length):
            rows = ids.repeat(len(part), 1)
            other = 1 + torch.randint(model.shape.vocab - 1, (len(part),), generator=generator)
            rows[torch.arange(len(part)), part] = (ids[part] + other) % model.shape.vocab
            change = (_logits(model, rows, taps) - before).abs().amax(-1) / scale
            for place, row in zip(part.tolist(), change.nan_to_num(float("inf")), strict=True):
                if float(row[:place].max()) > worst.change:
                    worst = Leak(float(row[:place].max()), place, int(row[:place].argmax()), length)
    return worst


def _logits(model: Decoder, rows: torch.Tensor, taps: Taps | None) -> torch.Tensor:
    with torch.no_grad():
        return model(rows.to(next(model.parameters()).device), taps=taps).logits.float()


def require_causal(model: Decoder, length: int, kernels: Sequence[str] = ("auto",), taps: Taps | None = None) -> float:
    """Raise where a later token reaches an earlier logit; returns the largest relative change seen (rounding).

    kernels: those that the measurement runs; each is probed.
    """
    lengths = tuple(sorted({2, 3, length // 2 + 1, length} - {0, 1}))
    chosen, worst = model.kernel, 0.0
    try:
        for kernel in kernels:
            model.kernel = kernel
            leak = worst_leak(model, lengths, taps=taps)
            if not leak.change <= TOLERANCE:
                raise RunFailed(
                    f"causality probe, kernel {kernel}: changing token {leak.changed_token} of {leak.length} moves the "
                    f"logits at position {leak.seen_at} by {leak.change:.2g} of their scale; the model sees the future, "
                    "so nothing is recorded"
                )
            worst = max(worst, leak.change)
    finally:
        model.kernel = chosen
    return worst
