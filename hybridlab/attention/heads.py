"""Attention of one visit: the heads are grouped by attention kind, and every kind computes its own heads.

Attention weights are requested with `need` and returned as outputs. There are no hooks, and modules store no results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hybridlab.attention.kernels import KERNELS, Rule, Visible, choose, probabilities, require_keys, with_cap
from hybridlab.attention.kinds import AttentionKind

NEEDS = ("none", "last_row", "full")


@dataclass(frozen=True)
class Attended:
    """out: (B, H, S, D). With `need`, also weights (B, H, Q, S) in fp32 and keys (B, H, Q), the number of keys that
    each of these queries may see. need = full: Q = S. need = last_row: Q = 1, the last valid token, no gradient.
    others: what else a kind returns beside the weights, by name and of their shape; heads of the other kinds have their
    weights there."""

    out: Tensor
    weights: Tensor | None = None
    keys: Tensor | None = None
    others: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadGroup:
    """The input of an attention kind: q (B, H, S, D) and k, v (B, K, S, D); query head h reads KV head h // (H / K).

    gate: (K,), the weights that a controller is learning (z of `mixed` heads, 1 = full attention). valid, segments,
    causal, cap: see `Visible`. need: none, last_row or full.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    kernel: str = "auto"
    gate: Tensor | None = None
    valid: Tensor | None = None
    segments: Tensor | None = None
    need: str = "none"
    causal: bool = True
    cap: float | None = None

    @property
    def group(self) -> int:
        """How many query heads share one KV head."""
        return self.q.shape[1] // self.k.shape[1]

    def softmax(self, window: int | None, rule: Rule | None = None, beside: bool = False) -> Attended:
        """softmax(q kᵀ / √d) v over the last `window` keys (None: all), with the chosen kernel. rule: see `Visible`.
        beside: a window of heads that compute full attention too; see `choose`."""
        q, k = self.q, self.k
        visible = Visible(window, self.valid, self.segments, rule, self.causal, self.cap)
        if rule is not None and not torch.compiler.is_compiling():
            require_keys(rule, window, self.causal, q.shape[2])
        name = choose(self.kernel, window, q.shape[2], q.device, q.dtype != torch.float32, self.causal, beside)
        out = KERNELS[name if self.cap is None else with_cap(name)](q, k, self.v, visible)
        if self.need == "none":
            return Attended(out)
        if self.need == "full":
            return Attended(out, probabilities(q, k, visible), visible_keys(visible, q, k))
        last = last_positions(q, self.valid)[:, None]
        with torch.no_grad():
            row = q[torch.arange(len(q), device=q.device), :, last[:, 0]][:, :, None]
            return Attended(out, probabilities(row, k, visible, last), visible_keys(visible, row, k, last))


class Order(NamedTuple):
    """The heads of a visit by kind: parts, the indices (n,) of each kind's heads; there (H,), these one after the
    other; back (H,), where each head stands in `there`."""

    parts: tuple[Tensor, ...]
    there: Tensor
    back: Tensor

    def divide(self, t: Tensor, dim: int = 1) -> tuple[Tensor, ...]:
        """The heads of each kind, along a dimension of a tensor."""
        return _divided(t, dim, self) if _transformed() else cast(tuple[Tensor, ...], _Divided.apply(t, dim, self))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The heads of all kinds (B, H, …) in their own order."""
        joined = torch.cat(tuple(parts), 1)
        return joined.index_select(1, self.back) if _transformed() else cast(Tensor, _Joined.apply(joined, self))


def _transformed() -> bool:
    """Whether a transform of torch.func is at work, which takes no autograd function that compilers take too."""
    return bool(torch._C._are_functorch_transforms_active())


class _Divided(torch.autograd.Function):
    """Selections that have each head once. Their gradient is a permutation, where one selection after the other would
    add up into zeros."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, dim: int, order: Order) -> tuple[Tensor, ...]:
        ctx.dim, ctx.order = dim, order
        return _divided(t, dim, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return torch.cat(gradients, ctx.dim).index_select(ctx.dim, ctx.order.back), None, None


class _Joined(torch.autograd.Function):
    """The heads of all kinds, one after the other, back in their own order."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return joined.index_select(1, order.back)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient.index_select(1, ctx.order.there), None


def _divided(t: Tensor, dim: int, order: Order) -> tuple[Tensor, ...]:
    return tuple([t.index_select(dim, part) for part in order.parts])


@dataclass(frozen=True)
class KindIndex:
    """The kinds of a visit's heads, and which KV heads and query heads each of them has, None if there is one kind
    only. All indices are tensors, so that a compiled block serves every map with as many heads of each kind."""

    kinds: tuple[AttentionKind, ...]
    kv: Order | None = None
    query: Order | None = None


def kind_index(kinds: tuple[AttentionKind, ...], group: int, device: torch.device) -> KindIndex:
    """kinds[i]: the kind of KV head i, which serves `group` query heads. The order of the parts does not depend
    on which heads have them."""
    different = tuple(sorted(dict.fromkeys(kinds), key=repr))
    if len(different) == 1:
        return KindIndex(different)
    kv = [[i for i, other in enumerate(kinds) if other == kind] for kind in different]
    query = [[head * group + member for head in part for member in range(group)] for part in kv]
    return KindIndex(different, _order(kv, device), _order(query, device))


def _order(parts: list[list[int]], device: torch.device) -> Order:
    heads = [head for part in parts for head in part]
    back = [heads.index(head) for head in range(len(heads))]
    every = tuple(index_tensor(part, device) for part in parts)
    return Order(every, index_tensor(heads, device), index_tensor(back, device))


def attend(heads: HeadGroup, index: KindIndex) -> Attended:
    """Attention of all heads of one visit, each kind for its own heads."""
    if index.kv is None or index.query is None:
        return index.kinds[0].attend(heads)
    by_kind = [index.query.divide(heads.q), index.kv.divide(heads.k), index.kv.divide(heads.v)]
    gates = [None] * len(index.kinds) if heads.gate is None else index.kv.divide(heads.gate, dim=0)
    parts = [
        kind.attend(replace(heads, q=q, k=k, v=v, gate=gate))
        for kind, q, k, v, gate in zip(index.kinds, *by_kind, gates, strict=True)
    ]
    out = index.query.join([part.out for part in parts])
    if heads.need == "none":
        return Attended(out)
    names = dict.fromkeys(name for part in parts for name in part.others)
    columns = zip(*((p.weights, p.keys, *(p.others.get(n, p.weights) for n in names)) for p in parts), strict=True)
    weights, keys, *others = (torch.cat(tensors, dim=1).index_select(1, index.query.back) for tensors in columns)
    return Attended(out, weights, keys, dict(zip(names, others, strict=True)))


def visible_keys(visible: Visible, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
    """(B, H, Q): how many keys each query may see, whatever their weights; 0 for a query on padding. positions: see
    `Visible.mask`."""
    positions = torch.arange(q.shape[2], device=q.device) if positions is None else positions
    seen = visible.mask(positions, k.shape[2]).sum(-1)
    if visible.valid is not None:
        seen = seen * visible.valid.gather(1, positions.expand(len(q), -1))[:, None]
    return seen.expand(q.shape[0], q.shape[1], -1)


def last_positions(q: Tensor, valid: Tensor | None) -> Tensor:
    """(B,): the last position of each row that is not padding."""
    length = q.shape[2]
    if valid is None:
        return torch.full((len(q),), length - 1, device=q.device)
    positions = torch.arange(length, device=q.device)
    return torch.where(valid, positions, 0).amax(dim=1)


def index_tensor(values: Sequence[int], device: torch.device) -> Tensor:
    """Indices that are kept between calls: a tensor made in inference mode could not be used in a backward pass."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)
