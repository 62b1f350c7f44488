"""The causality probe: no logit may depend on a later token. It runs before any result of a model is recorded.

    hybridlab eval RUN

A model that sees later tokens has a very low loss, and the loss curve does not show the leak. The probe changes one
token at several positions, in sequences of several lengths, and checks that all earlier logits stay the same (in fp32,
up to rounding). It does not apply to encoders, whose tokens are meant to see both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hybridlab.errors import Diverged, RunFailed
from hybridlab.evaluation.text import chunks
from hybridlab.models.decoder import Transformer
from hybridlab.models.taps import Taps

TOLERANCE = 1e-4
"""Relative to the largest logit. Rounding gives about 1e-7, a leak that changes the loss far more."""


NOT_APPLICABLE = "not applicable: an encoder's tokens see both sides"
NO_TOKENS = "not applicable: the model gives no logits of tokens"
ON_PURPOSE = "tokens see later ones, as the attention map asks: the losses are no measure of what was learned"


@dataclass(frozen=True)
class Leak:
    """The largest change of an earlier logit, relative to the largest logit, and its position."""

    change: float
    changed_token: int
    seen_at: int
    length: int


def worst_leak(model: Transformer, lengths: tuple[int, ...], taps: Taps | None = None) -> Leak:
    """Change tokens one at a time; returns the largest effect on an earlier position."""
    generator = torch.Generator().manual_seed(0)
    worst = Leak(0.0, 0, 0, 0)
    for length in lengths:
        ids = torch.randint(model.shape.vocab, (length,), generator=generator)
        candidates = {1, 2, 3, length // 3, length // 2, 2 * length // 3, length - 2, length - 1}
        positions = torch.tensor(sorted(candidates & set(range(1, length))))
        before = _logits(model, ids[None], taps)
        scale = before.abs().max().clamp_min(1e-12)
        for part in chunks(positions, model, length):
            rows = ids.repeat(len(part), 1)
            shift = 1 + torch.randint(model.shape.vocab - 1, (len(part),), generator=generator)
            rows[torch.arange(len(part)), part] = (ids[part] + shift) % model.shape.vocab
            change = (_logits(model, rows, taps) - before).abs().amax(-1) / scale
            for position, row in zip(part.tolist(), change.nan_to_num(float("inf")), strict=True):
                earlier = row[:position]
                if float(earlier.max()) > worst.change:
                    worst = Leak(float(earlier.max()), position, int(earlier.argmax()), length)
    return worst


def _logits(model: Transformer, rows: torch.Tensor, taps: Taps | None) -> torch.Tensor:
    with torch.no_grad():
        return model(rows.to(model.device), taps=taps).logits.float()


def causality(model: Transformer, length: int, kernels: Sequence[str]) -> dict[str, float | str]:
    """What a record says of causality: `largest_change`, or `probe` for a model that the probe does not apply to.
    RunFailed if a decoder sees later tokens. kernels: see `require_causal`."""
    if not model.structure.causal:
        return {"probe": NOT_APPLICABLE}
    if not model.shape.gives_tokens:
        return {"probe": NO_TOKENS}
    result: dict[str, float | str] = {"largest_change": require_causal(model, length, kernels)}
    return result if model.attention_map.sealed() == model.attention_map else {**result, "leak": ON_PURPOSE}


def require_causal(
    model: Transformer, length: int, kernels: Sequence[str] = ("auto",), taps: Taps | None = None
) -> float:
    """The largest relative change of an earlier logit of a decoder, from rounding; RunFailed if it is a leak.

    kernels: all that the evaluation uses; each is probed. A leak that attention kinds have on purpose, as a control, is
    measured and returned; the model must be causal without it.
    """
    lengths = tuple(sorted({2, 3, length // 2 + 1, length} - {0, 1}))
    sealed = model.attention_map.sealed()
    if sealed != model.attention_map:
        require_causal(model.with_plan(attention_map=sealed), length, kernels, taps)
        return worst_leak(model, lengths, taps=taps).change
    chosen, worst = model.kernel, 0.0
    try:
        for kernel in kernels:
            model.kernel = kernel
            leak = worst_leak(model, lengths, taps=taps)
            if not math.isfinite(leak.change):
                raise Diverged(
                    "causality probe: the logits are not finite, so nothing is recorded; lower the learning rate"
                )
            if not leak.change <= TOLERANCE:
                raise RunFailed(
                    f"causality probe, kernel {kernel}: changing token {leak.changed_token} of {leak.length} moves the "
                    f"logits at position {leak.seen_at} by {leak.change:.2g} of their scale; "
                    "the model sees the future, so nothing is recorded"
                )
            worst = max(worst, leak.change)
    finally:
        model.kernel = chosen
    return worst
