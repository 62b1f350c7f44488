"""The KV cache: one `VisitCache` per place of the plan, not per module, because a plan may visit a layer many times.
In a loop over chunks every iteration has its own, with one entry per chunk.

A visit's cache has one slot per attention kind among its heads; the kind decides what the slot stores
(attention/slots.py). It counts the tokens of every row; rotary positions and masks follow from that count. Rows may
have different lengths: padding on the right is computed but not stored.

    cache = KVCache(model.structure, batch=2, capacity=64); model(prompt, attention_mask=mask, cache=cache)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, cast

import torch
from torch import Tensor

from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.slots import (
    Slot,
    StandardSlot,
    SteppingSlot,
    has_step,
    heads_of,
    next_positions,
    selected_slot,
)
from hybridlab.errors import UserError
from hybridlab.models.recurrence import LoopState
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Place


class KVCache:
    """The caches of all visits, by place. capacity: the most tokens of a row; None if unknown, then full heads grow."""

    def __init__(self, structure: Structure, batch: int, capacity: int | None = None) -> None:
        require_caches(structure, "cache")
        self.structure, self.batch, self.capacity = structure, batch, capacity
        self.visits: dict[Place, VisitCache] = {}
        for place, visit in structure.attention_places():
            room = None if capacity is None else structure.plan.tokens_at(place, capacity)
            serving, kinds, cap = structure.heads(visit).serving, structure.kinds(visit), structure.shape.score_cap
            self.visits[place] = VisitCache(serving, kinds, batch, room, cap)
        self.clear()

    def clear(self) -> None:
        """Store nothing, with all tensors where they are and zeros in them."""
        self.counts = [0] * self.batch
        for visit in self.visits.values():
            visit.counts = [0] * self.batch
            for tensor in visit.tensors():
                tensor.zero_()
        loops = self.structure.plan.loops
        self.loops = {i: LoopState([{} for _ in loop.chunks], [0] * loop.iterations) for i, loop in loops.items()}

    def advance(self, lengths: Sequence[int]) -> None:
        """Add the tokens of a finished forward pass, lengths[r] in row r, to the counts."""
        self.counts = [count + length for count, length in zip(self.counts, lengths, strict=True)]

    def check_room(self, lengths: Sequence[int]) -> None:
        """UserError if these new tokens do not fit into the capacity."""
        longest = max(count + length for count, length in zip(self.counts, lengths, strict=True))
        if self.capacity is not None and longest > self.capacity:
            raise UserError(
                f"cache: {longest} tokens do not fit into its capacity of {self.capacity}; make a larger one"
            )

    def require_steps(self) -> None:
        """UserError unless `Transformer.step` can continue the rows: that is one graph for all tokens, in which no
        tensor grows and nothing is computed for some tokens only."""
        loops = self.structure.plan.loops.values()
        if any(g > 1 or loop.shift_of(t) for loop in loops for t, g in enumerate(loop.chunks)):
            raise UserError(
                "generate: the loops of this model compute a chunk once it is complete, which one compiled graph for "
                "all tokens cannot; leave out --compile (compiled in Python)"
            )
        slots = [slot for visit in self.visits.values() for _, slot in visit.slots]
        if unable := next((slot for slot in slots if not has_step(slot)), None):
            raise UserError(
                f"generate: the cache slot {type(unable).__name__} has no step of its own for compiled generation; "
                "write one beside its attend, or leave out --compile (compiled in Python)"
            )

    def keep_addresses(self) -> None:
        """Promise that its tensors stay where they are, so that a CUDA graph can write to them."""
        for visit in self.visits.values():
            for tensor in visit.tensors():
                torch._dynamo.mark_static_address(tensor, guard=False)

    def repeated(self, times: int) -> KVCache:
        """A copy in which every row stands `times` times, one after another; see `selected`."""
        return self.selected([row for row in range(self.batch) for _ in range(times)])

    def selected(self, rows: Sequence[int]) -> KVCache:
        """A copy with these rows, a row as often as it is named, so that each copy is continued by itself.

        This cache stays as it is. NotCopied if a slot of a plug-in cannot be copied.
        """
        copied = copy(self)
        copied.batch, copied.counts = len(rows), [self.counts[row] for row in rows]
        copied.visits = {place: visit.selected(rows) for place, visit in self.visits.items()}
        copied.loops = {index: loop.selected(rows) for index, loop in self.loops.items()}
        return copied

    @property
    def bytes(self) -> int:
        """Bytes of the tensors of all slots."""
        return sum(t.numel() * t.element_size() for visit in self.visits.values() for t in visit.tensors())


def require_caches(structure: Structure, what: str) -> None:
    """UserError for a model that cannot continue text. what: what was asked for."""
    if not structure.causal:
        raise UserError(f"{what}: an encoder sees the tokens on both sides and predicts no next one; use a decoder")
    if structure.shape.output is not None:
        raise UserError(
            f"{what}: the output head of this model gives {structure.shape.output.kind}; use a model whose head gives "
            "tokens"
        )


class SlotHeads(NamedTuple):
    """The heads of one kind in a visit: indices among the visit's KV heads and query heads; serving[i]: which of these
    KV heads query head i reads."""

    kv: list[int]
    query: list[int]
    serving: list[int]


class VisitCache:
    """The cache of one attention visit: for each kind its heads and a slot.

    serving[i]: index, among the visit's KV heads, of the KV head that query head i reads. kinds: of the KV heads. cap:
    of the scores, see `Visible`.
    """

    def __init__(
        self,
        serving: Sequence[int],
        kinds: Sequence[AttentionKind],
        batch: int,
        capacity: int | None,
        cap: float | None = None,
    ) -> None:
        self.counts = [0] * batch
        self.slots: list[tuple[SlotHeads, Slot]] = []
        for kind in dict.fromkeys(kinds):
            kv = [i for i, other in enumerate(kinds) if other == kind]
            query = [i for i, head in enumerate(serving) if head in kv]
            heads = SlotHeads(kv, query, [kv.index(serving[i]) for i in query])
            self.slots.append((heads, kind.slot(StandardSlot(capacity, heads.serving, cap))))

    def selected(self, rows: Sequence[int]) -> VisitCache:
        """A copy with these rows."""
        copied = copy(self)
        copied.counts = [self.counts[row] for row in rows]
        copied.slots = [(heads, selected_slot(slot, rows)) for heads, slot in self.slots]
        return copied

    @property
    def empty(self) -> bool:
        return not any(self.counts)

    def tensors(self) -> list[Tensor]:
        return [tensor for _, slot in self.slots for tensor in slot.tensors()]

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Positions of the next `length` entries: (S,) if all rows have equal counts, else (B, S)."""
        return next_positions(self.counts, length, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of new queries q (B, h, S, D) to the stored entries and to the new k, v (B, K, S, D).

        The new ones are not stored here; see `append`.
        """
        positions = self.positions(q.shape[2], q.device)
        return self._together(
            [
                slot.attend(*self._for_slot(heads, q, k, v), heads.serving, self.counts, positions)
                for heads, slot in self.slots
            ]
        )

    def _together(self, outs: list[Tensor]) -> Tensor:
        """The outputs of the slots as one, its heads in their order."""
        if len(outs) == 1:
            return outs[0]
        order, out = [i for heads, _ in self.slots for i in heads.query], torch.cat(outs, dim=1)
        return out if order == sorted(order) else heads_of(out, [order.index(i) for i in range(len(order))])

    def _for_slot(self, heads: SlotHeads, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if len(self.slots) == 1:
            return q, k, v
        return heads_of(q, heads.query), heads_of(k, heads.kv), heads_of(v, heads.kv)

    def step(self, q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        """`attend` and `append` of one token of each row, at positions at (B,); the cache does not count them."""
        outs = [
            cast(SteppingSlot, slot).step(*self._for_slot(heads, q, k, v), heads.serving, at)
            for heads, slot in self.slots
        ]
        return self._together(outs)

    def append(self, q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> None:
        """Store k, v (B, K, S, D) without padding: the first lengths[r] of row r. q (B, h, S, D): their queries."""
        for heads, slot in self.slots:
            slot.append(*self._for_slot(heads, q, k, v), self.counts, lengths)
        self.counts = [count + length for count, length in zip(self.counts, lengths, strict=True)]
