"""The blocks of the model zoo: norms, rotary positions, attention and MLP, made from the traits of a shape.

A block offers its two branches apart, each a pure function of the residual stream, because a plan may run either one
alone, again, or for some heads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.config.schema import Shape
from hybridlab.models.attention import Attended, attend
from hybridlab.models.cache import Slot
from hybridlab.plan.attention_map import AttentionKind
from hybridlab.plan.plan import Place


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


class LayerNorm(nn.Module):
    """(x − mean) / std · weight + bias in fp32; under autocast the result has autocast's type, as in RMSNorm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x.float(), self.weight.shape, self.weight.float(), self.bias.float(), self.eps)
        return normed.to(_compute_dtype(x))


def make_norm(shape: Shape) -> nn.Module:
    """The norm of a residual stream."""
    return (RMSNorm if shape.traits.norm == "rmsnorm" else LayerNorm)(shape.width, shape.norm_eps)


def rotary_tables(positions: Tensor, rotary_width: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin of shape (..., S, R) in fp32 for positions (..., S); channel i turns with channel i + R/2."""
    exponents = torch.arange(0, rotary_width, 2, device=positions.device, dtype=torch.float32) / rotary_width
    angles = positions[..., None].float() * (1.0 / base**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (B, H, S, D) by tables (S, R) or (B, 1, S, R); channels from R on stay."""
    width = cos.shape[-1]
    if width == 0:
        return x
    turning, staying = x[..., :width], x[..., width:]
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)
    return turned if staying.shape[-1] == 0 else torch.cat((turned, staying), dim=-1)


@dataclass(frozen=True)
class Pass:
    """What all visits of one forward pass share.

    positions (S,) or (B, S). valid (B, S), segments (B, S): see `Visible`. gates: layer → z (K,) of its mixed heads.
    factors: place → (h,), what the output of each query head of that visit is multiplied by before W_O. stride: how
    many positions one entry of a cache stands for.
    """

    positions: Tensor
    kernel: str = "auto"
    valid: Tensor | None = None
    segments: Tensor | None = None
    gates: dict[int, Tensor] | None = None
    factors: dict[Place, Tensor] = field(default_factory=dict)
    need: str = "none"
    stride: int = 1


@dataclass(frozen=True)
class Heads:
    """The query heads of one visit, ascending, and the KV heads that serve them.

    serving[i] is the place, among `kv`, of the KV head of query head i.
    """

    query: tuple[int, ...]
    kv: tuple[int, ...]
    serving: tuple[int, ...]

    @classmethod
    def of(cls, shape: Shape, chosen: tuple[int, ...] | None) -> Heads:
        query = chosen or tuple(range(shape.heads))
        kv = tuple(sorted({h // shape.group for h in query}))
        return cls(query, kv, tuple(kv.index(h // shape.group) for h in query))


class Attention(nn.Module):
    """Multi-head attention with grouped KV heads; norms of q and k per head where the family has them (qwen3)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        bias, inner, kv_inner = shape.traits.bias, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.q = nn.Linear(shape.width, inner, bias=bias)
        self.k = nn.Linear(shape.width, kv_inner, bias=bias)
        self.v = nn.Linear(shape.width, kv_inner, bias=bias)
        self.o = nn.Linear(inner, shape.width, bias=bias)
        self.q_norm = RMSNorm(shape.head_width, shape.norm_eps) if shape.traits.qk_norm else None
        self.k_norm = RMSNorm(shape.head_width, shape.norm_eps) if shape.traits.qk_norm else None

    def forward(
        self,
        x: Tensor,
        kinds: Sequence[AttentionKind],
        seq: Pass,
        gate: Tensor | None = None,
        factor: Tensor | None = None,
        chosen: tuple[int, ...] | None = None,
        slot: Slot | None = None,
    ) -> Attended:
        """x (B, S, W) → the branch's output (B, S, W), with attention weights where `seq.need` asks for them.

        chosen: the query heads that run. Only their slices of the weights are used, and each KV head they share is
        computed once. factor: (h,), see `Pass`. slot: the cache of this visit, which then knows the positions.
        """
        heads = Heads.of(self.shape, chosen)
        q = self._project(self.q, x, heads.query, self.shape.heads)
        k, v = (self._project(linear, x, heads.kv, self.shape.kv_heads) for linear in (self.k, self.v))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        places = seq.positions if slot is None else slot.positions(x.shape[1], x.device) * seq.stride
        cos, sin = self._tables(places)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if slot is not None and not slot.empty:
            attended = Attended(slot.attend(q, k, v, heads.serving))
        else:
            attended = self._attend(q, k, v, kinds, seq, gate, heads)
        if slot is not None:
            slot.append(k, v, seq.valid)
        return replace(attended, out=self._joined(attended.out, factor, heads))

    def _joined(self, out: Tensor, factor: Tensor | None, heads: Heads) -> Tensor:
        """W_O of these heads' outputs (B, h, S, D) → (B, S, W), with its slice where not all heads run."""
        if factor is not None:
            out = out * factor.to(out.dtype)[:, None, None]
        joined = out.transpose(1, 2).flatten(2)
        if len(heads.query) == self.shape.heads:
            return self.o(joined)
        return F.linear(joined, self.o.weight[:, self._channels(heads.query, joined.device)], self.o.bias)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kinds: Sequence[AttentionKind],
        seq: Pass,
        gate: Tensor | None,
        heads: Heads,
    ) -> Attended:
        if len(heads.query) < self.shape.heads:
            # A chosen head may leave its group behind: give each of them its own view of its KV head.
            serving = torch.tensor(heads.serving, device=q.device)
            k, v = k.index_select(1, serving), v.index_select(1, serving)
            kinds = [kinds[heads.kv[place]] for place in heads.serving]
            gate = None if gate is None else gate[[heads.kv[place] for place in heads.serving]]
        return attend(
            q, k, v, kinds, kernel=seq.kernel, gate=gate, valid=seq.valid, segments=seq.segments, need=seq.need
        )

    def _project(self, linear: nn.Linear, x: Tensor, heads: tuple[int, ...], of: int) -> Tensor:
        """(B, S, W) → (B, h, S, D) for these heads' rows of the weight alone."""
        if len(heads) == of:
            y = linear(x)
        else:
            rows = self._channels(heads, x.device)
            y = F.linear(x, linear.weight[rows], None if linear.bias is None else linear.bias[rows])
        return y.view(x.shape[0], x.shape[1], len(heads), self.shape.head_width).transpose(1, 2)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = rotary_tables(positions, self.shape.rotary_width, self.shape.rope_base)
        return (cos[:, None], sin[:, None]) if positions.dim() == 2 else (cos, sin)

    def _channels(self, heads: tuple[int, ...], device: torch.device) -> Tensor:
        starts = torch.tensor(heads, device=device)[:, None] * self.shape.head_width
        return (starts + torch.arange(self.shape.head_width, device=device)).flatten()


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x)) where the family gates, else down(gelu(up(x)))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        traits = shape.traits
        self.gate = nn.Linear(shape.width, shape.ffn_width, bias=traits.bias) if traits.gated else None
        self.up = nn.Linear(shape.width, shape.ffn_width, bias=traits.bias)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=traits.bias)
        self.approximate = "tanh" if traits.gelu_tanh else "none"

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """A pre-norm block: two branches, each a function of the residual stream that it is given."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = make_norm(shape)
        self.attention = Attention(shape)
        self.mlp_norm = make_norm(shape)
        self.mlp = MLP(shape)

    def attention_branch(
        self,
        x: Tensor,
        kinds: Sequence[AttentionKind],
        seq: Pass,
        gate: Tensor | None = None,
        factor: Tensor | None = None,
        chosen: tuple[int, ...] | None = None,
        slot: Slot | None = None,
    ) -> Attended:
        """What attention adds to the residual stream x (B, S, W), as `out`."""
        return self.attention(self.attention_norm(x), kinds, seq, gate, factor, chosen, slot)

    def mlp_branch(self, x: Tensor) -> Tensor:
        """What the MLP adds to the residual stream x (B, S, W)."""
        return self.mlp(self.mlp_norm(x))
