"""The one entry point of attention: heads of one layer with different kinds run each with its own kernel.

Statistics are asked for with `need` and come back as outputs; nothing is hooked or stored in a module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hybridlab.models import kernels
from hybridlab.models.kernels import Visible
from hybridlab.plan.attention_map import AttentionKind, Full, Mixed

NEEDS = ("none", "last_row", "full")


@dataclass(frozen=True)
class Attended:
    """out (B, H, S, D); weights (B, H, Q, S) in fp32 where asked for: Q = S (full), or 1, the last valid token (then
    without a gradient). keys (B, H, Q): how many keys each of these queries may see."""

    out: Tensor
    weights: Tensor | None = None
    keys: Tensor | None = None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kinds: Sequence[AttentionKind],
    *,
    kernel: str = "auto",
    gate: Tensor | None = None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    need: str = "none",
) -> Attended:
    """Attention of all heads of one layer.

    q (B, H, S, D) and k, v (B, K, S, D), query head h with KV head h // (H / K); kinds[i] is the kind of KV head i.
    gate: (K,), z of the mixed heads (1 = full). valid, segments: see `Visible`. need: none, last_row or full.
    """
    together = _by_kind(tuple(kinds))
    if len(together) == 1:
        return _one_kind(q, k, v, together[0][0], kernel, gate, valid, segments, need)
    group = q.shape[1] // k.shape[1]
    parts = []
    for kind, kv_heads in together:
        kv_index = _index(kv_heads, k.device)
        query_index = _index(tuple(h * group + g for h in kv_heads for g in range(group)), q.device)
        part_gate = None if gate is None else gate.index_select(0, kv_index)
        chosen = (q.index_select(1, query_index), k.index_select(1, kv_index), v.index_select(1, kv_index))
        parts.append(_one_kind(*chosen, kind, kernel, part_gate, valid, segments, need))
    order = [h * group + g for _, kv_heads in together for h in kv_heads for g in range(group)]
    back = _index(tuple(order.index(h) for h in range(len(order))), q.device)
    out = torch.cat([part.out for part in parts], dim=1).index_select(1, back)
    if need == "none":
        return Attended(out)
    weights, keys = (
        torch.cat(p, dim=1).index_select(1, back) for p in zip(*((p.weights, p.keys) for p in parts), strict=True)
    )
    return Attended(out, weights, keys)


def _one_kind(
    q: Tensor, k: Tensor, v: Tensor, kind: AttentionKind, kernel: str, gate: Tensor | None,
    valid: Tensor | None, segments: Tensor | None, need: str,
) -> Attended:  # fmt: skip
    if isinstance(kind, Mixed):
        if gate is None:
            raise ValueError("mixed heads need their gate z; a controller hands it to the forward pass")
        full = _one_kind(q, k, v, Full(), kernel, None, valid, segments, need)
        window = _plain(q, k, v, kind.width, kernel, valid, segments, need)
        z = gate.repeat_interleave(q.shape[1] // k.shape[1]).view(1, -1, 1, 1)
        weights = None if need == "none" else z * full.weights + (1 - z) * window.weights
        z = z.to(full.out.dtype)
        return Attended(z * full.out + (1 - z) * window.out, weights, full.keys)
    return _plain(q, k, v, None if isinstance(kind, Full) else kind.width, kernel, valid, segments, need)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, kernel: str,
    valid: Tensor | None, segments: Tensor | None, need: str,
) -> Attended:  # fmt: skip
    visible = Visible(window, valid, segments)
    name = kernels.choose(kernel, window, q.shape[2], q.device, q.dtype != torch.float32)
    out = kernels.KERNELS[name](q, k, v, visible)
    if need == "none":
        return Attended(out)
    if need == "full":
        return Attended(out, kernels.probabilities(q, k, visible), _visible_keys(visible, q, k))
    last = _last_positions(q, valid)[:, None]
    with torch.no_grad():
        row = q[torch.arange(len(q), device=q.device), :, last[:, 0]][:, :, None]
        return Attended(out, kernels.probabilities(row, k, visible, last), _visible_keys(visible, row, k, last))


def _visible_keys(visible: Visible, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
    """(B, H, Q): how many keys each query may see, whatever weight it gives them."""
    at = torch.arange(q.shape[2], device=q.device) if positions is None else positions
    return visible.mask(at, k.shape[2]).sum(-1).expand(q.shape[0], q.shape[1], -1)


def _last_positions(q: Tensor, valid: Tensor | None) -> Tensor:
    """(B,): the last position that is not padding."""
    length = q.shape[2]
    if valid is None:
        return torch.full((len(q),), length - 1, device=q.device)
    positions = torch.arange(length, device=q.device)
    return torch.where(valid, positions, 0).amax(dim=1)


@lru_cache(maxsize=1024)
def _by_kind(kinds: tuple[AttentionKind, ...]) -> tuple[tuple[AttentionKind, tuple[int, ...]], ...]:
    """KV heads gathered by kind, in the order in which the kinds first appear."""
    return tuple((kind, tuple(i for i, k in enumerate(kinds) if k == kind)) for kind in dict.fromkeys(kinds))


@lru_cache(maxsize=1024)
def _index(values: tuple[int, ...], device: torch.device) -> Tensor:
    # Cached over calls: a tensor born in inference mode could not serve a later backward pass.
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)
