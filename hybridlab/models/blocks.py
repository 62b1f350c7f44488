"""The blocks of the model zoo: norms, rotary positions, attention and MLP, for the families llama and qwen3.

A block offers its two branches apart, each a pure function of the residual stream, because a plan may run either one
alone, again, or for some heads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.config.schema import Shape
from hybridlab.models.attention import Attended, attend
from hybridlab.plan.attention_map import AttentionKind


class RMSNorm(nn.Module):
    """x / rms(x) · weight, computed in fp32 (Llama). Under autocast the result has autocast's type, so that the
    projections that read it do not each convert it again."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps)
        return normed.to(_compute_dtype(x))


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The type that the next projection works in: autocast's where it is on, else x's own."""
    device = x.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else x.dtype


def rotary_tables(positions: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin of shape (..., S, D) in fp32 for positions (..., S); channel i turns with channel i + D/2."""
    exponents = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width
    angles = positions[..., None].float() * (1.0 / base**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (B, H, S, D) by tables (S, D) or (B, 1, S, D)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


@dataclass(frozen=True)
class Pass:
    """What all visits of one forward pass share.

    cos, sin: rotary tables. valid (B, S), segments (B, S): see `Visible`. gates: layer → z (K,) of its mixed heads.
    """

    cos: Tensor
    sin: Tensor
    kernel: str = "auto"
    valid: Tensor | None = None
    segments: Tensor | None = None
    gates: dict[int, Tensor] | None = None
    need: str = "none"


class Attention(nn.Module):
    """Multi-head attention with grouped KV heads; norms of q and k per head where the family has them (qwen3)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = shape.heads, shape.kv_heads, shape.head_width
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.o = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)
        qk_norm = shape.family == "qwen3"
        self.q_norm = RMSNorm(shape.head_width, shape.norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(shape.head_width, shape.norm_eps) if qk_norm else None

    def forward(
        self, x: Tensor, kinds: Sequence[AttentionKind], seq: Pass, gate: Tensor | None, heads: tuple[int, ...] | None
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, S, W) → the branch's output (B, S, W), and attention weights where `seq.need` asks for them.

        heads: the query heads that run. Only their slices of the weights are used, and each KV head they share is
        computed once.
        """
        if heads is None:
            q = self._split(self.q(x), self.heads)
            k, v = self._split(self.k(x), self.kv_heads), self._split(self.v(x), self.kv_heads)
            attended = self._attend(q, k, v, kinds, seq, gate)
            return self.o(self._join(attended.out)), attended.weights
        group = self.heads // self.kv_heads
        kv_heads = tuple(sorted({h // group for h in heads}))
        query_rows, kv_rows = (self._rows(h, x.device) for h in (heads, kv_heads))
        q = self._split(F.linear(x, self.q.weight[query_rows]), len(heads))
        k = self._split(F.linear(x, self.k.weight[kv_rows]), len(kv_heads))
        v = self._split(F.linear(x, self.v.weight[kv_rows]), len(kv_heads))
        # A chosen head may leave its group behind: give each of them its own view of its KV head.
        serving = torch.tensor([kv_heads.index(h // group) for h in heads], device=x.device)
        gate = None if gate is None else gate[[h // group for h in heads]]
        attended = self._attend(q, k, v, [kinds[h // group] for h in heads], seq, gate, serving)
        return F.linear(self._join(attended.out), self.o.weight[:, query_rows]), attended.weights

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, kinds: Sequence[AttentionKind], seq: Pass, gate: Tensor | None,
        serving: Tensor | None = None,
    ) -> Attended:  # fmt: skip
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, seq.cos, seq.sin), rotate(k, seq.cos, seq.sin)
        if serving is not None:
            k, v = k.index_select(1, serving), v.index_select(1, serving)
        return attend(
            q, k, v, kinds, kernel=seq.kernel, gate=gate, valid=seq.valid, segments=seq.segments, need=seq.need
        )

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.head_width).transpose(1, 2)

    def _join(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def _rows(self, heads: tuple[int, ...], device: torch.device) -> Tensor:
        starts = torch.tensor(heads, device=device)[:, None] * self.head_width
        return (starts + torch.arange(self.head_width, device=device)).flatten()


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, width: int, ffn_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, ffn_width, bias=False)
        self.up = nn.Linear(width, ffn_width, bias=False)
        self.down = nn.Linear(ffn_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A pre-norm block with serial residuals."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = SwiGLU(shape.width, shape.ffn_width)

    def attention_branch(
        self, x: Tensor, kinds: Sequence[AttentionKind], seq: Pass, gate: Tensor | None, heads: tuple[int, ...] | None
    ) -> tuple[Tensor, Tensor | None]:
        """What attention adds to the residual stream x (B, S, W)."""
        return self.attention(self.attention_norm(x), kinds, seq, gate, heads)

    def mlp_branch(self, x: Tensor) -> Tensor:
        """What the MLP adds to the residual stream x (B, S, W)."""
        return self.mlp(self.mlp_norm(x))
