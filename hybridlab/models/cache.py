"""The KV cache: one slot for each place of the plan, never for a module, since a plan may visit a layer many times.
In a loop over chunks every iteration has slots of its own, with one entry for each chunk.

A slot keeps the keys and values of its KV heads by kind: a full head every position, a window head the last w in a ring
(position p lies at p mod w). It counts the tokens of every row by itself; rotary positions and masks follow from that
count. Rows may have different lengths: padding to the right is computed with and never stored.

    cache = KVCache(model, batch=2, capacity=64); model(prompt, attention_mask=mask, cache=cache)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.models.recurrence_cache import LoopState
from hybridlab.plan.attention_map import AttentionKind, Full, Mixed
from hybridlab.plan.plan import Place

if TYPE_CHECKING:
    from hybridlab.models.decoder import Decoder


class KVCache:
    """Slots by place. capacity: the most tokens that a row will hold; where it is not known, full heads grow."""

    def __init__(self, model: Decoder, batch: int, capacity: int | None = None) -> None:
        self.batch, self.capacity = batch, capacity
        self.slots: dict[Place, Slot] = {}
        self.counts = [0] * batch
        group = model.shape.group
        for place, visit in model.plan.places():
            if visit.part != "mlp":
                kv_heads = sorted({h // group for h in visit.heads or range(model.shape.heads)})
                kinds = [model.attention_map.layers[visit.layer][i] for i in kv_heads]
                room = None if capacity is None else model.plan.tokens_at(place, capacity)
                self.slots[place] = Slot(kinds, batch, room)
        self.loops = {index: LoopState(loop.iterations) for index, loop in model.plan.loops.items()}

    def advance(self, lengths: Sequence[int]) -> None:
        """Count the tokens of a forward pass that has stored them."""
        self.counts = [count + length for count, length in zip(self.counts, lengths, strict=True)]

    def check_room(self, lengths: Sequence[int]) -> None:
        longest = max(count + length for count, length in zip(self.counts, lengths, strict=True))
        if self.capacity is not None and longest > self.capacity:
            raise UserError(f"cache: {longest} tokens do not fit into its capacity of {self.capacity}")

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values, read off the tensors."""
        return sum(t.numel() * t.element_size() for slot in self.slots.values() for t in slot.tensors())

    @property
    def state_bytes(self) -> int:
        """Bytes of what loops remember besides: incomplete chunks and last latents."""
        return sum(t.numel() * t.element_size() for loop in self.loops.values() for t in loop.tensors())


def next_positions(counts: Sequence[int], length: int, device: torch.device) -> Tensor:
    """Positions of `length` tokens that follow these counts: (S,) where all rows agree, else (B, S)."""
    steps = torch.arange(length, device=device)
    if len(set(counts)) == 1:
        return steps + counts[0]
    return torch.tensor(counts, device=device)[:, None] + steps


class Slot:
    """Keys and values of one attention visit."""

    def __init__(self, kinds: Sequence[AttentionKind], batch: int, capacity: int | None) -> None:
        if any(isinstance(kind, Mixed) for kind in kinds):
            raise UserError("cache: mixed heads are still being learned; decode after their masks are fixed")
        self.counts = [0] * batch
        self.parts = [
            _Part(
                None if isinstance(kind, Full) else kind.width, [i for i, k in enumerate(kinds) if k == kind], capacity
            )
            for kind in dict.fromkeys(kinds)
        ]

    @property
    def empty(self) -> bool:
        return not any(self.counts)

    def tensors(self) -> list[Tensor]:
        return [t for part in self.parts for t in (part.keys, part.values) if t is not None]

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Positions of the next `length` tokens: (S,) where all rows agree, else (B, S)."""
        return next_positions(self.counts, length, device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int]) -> Tensor:
        """Attention of new queries q (B, h, S, D) to what is stored and to their own k, v (B, K, S, D), not yet stored.

        serving[i]: the KV head, among this slot's, of query head i.
        """
        outs, order = [], []
        for part in self.parts:
            mine = [i for i, place in enumerate(serving) if place in part.heads]
            if not mine:
                continue
            local = [part.heads.index(serving[i]) for i in mine]
            chosen = (t[:, part.heads] if len(self.parts) > 1 else t for t in (k, v))
            keys, values, seen = part.visible(*chosen, self.counts, self.positions(q.shape[2], q.device))
            queries = q[:, mine] if len(self.parts) > 1 else q
            outs.append(_masked_attention(queries, keys, values, local, seen))
            order += mine
        out = torch.cat(outs, dim=1)
        return out if order == sorted(order) else out[:, [order.index(i) for i in range(len(order))]]

    def append(self, k: Tensor, v: Tensor, valid: Tensor | None) -> None:
        """Store k, v (B, K, S, D) behind what is there, without padding (valid (B, S) is False on it)."""
        lengths = [k.shape[2]] * len(self.counts) if valid is None else valid.sum(1).tolist()
        for part in self.parts:
            part.append(k[:, part.heads], v[:, part.heads], self.counts, lengths)
        self.counts = [count + length for count, length in zip(self.counts, lengths, strict=True)]


class _Part:
    """The heads of one kind. window: None for full heads. Position p lies at p, or at p mod ring size."""

    def __init__(self, window: int | None, heads: list[int], capacity: int | None) -> None:
        self.window, self.heads, self.capacity = window, heads, capacity
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def _size(self, needed: int) -> int:
        """Entries to hold: never more than the window, and not less than are needed."""
        size = needed if self.capacity is None else self.capacity
        return size if self.window is None else self.window if self.capacity is None else min(self.window, size)

    def _reserve(self, like: Tensor, needed: int) -> None:
        size = self._size(needed)
        if self.keys is None:
            shape = (like.shape[0], like.shape[1], size, like.shape[3])
            self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        elif self.keys.shape[2] < size:
            grow = (0, 0, 0, size - self.keys.shape[2])
            self.keys, self.values = F.pad(self.keys, grow), F.pad(self.values, grow)

    def append(self, k: Tensor, v: Tensor, counts: Sequence[int], lengths: Sequence[int]) -> None:
        self._reserve(k, max(c + n for c, n in zip(counts, lengths, strict=True)))
        size, length = self.keys.shape[2], k.shape[2]
        if len(set(counts)) == 1 and set(lengths) == {length}:
            # Of a chunk longer than the ring only the end stays.
            first = max(0, length - size)
            places = torch.arange(counts[0] + first, counts[0] + length, device=k.device) % size
            self.keys[:, :, places], self.values[:, :, places] = k[:, :, first:], v[:, :, first:]
            return
        source = torch.arange(length, device=k.device)[None]
        ends = torch.tensor(lengths, device=k.device)[:, None]
        rows, sources = ((source < ends) & (source >= ends - size)).nonzero(as_tuple=True)
        places = (torch.tensor(counts, device=k.device)[rows] + sources) % size
        self.keys[rows, :, places], self.values[rows, :, places] = k[rows, :, sources], v[rows, :, sources]

    def visible(
        self, k: Tensor, v: Tensor, counts: Sequence[int], positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and mask (True where seen; None for all) of stored and new entries, for queries at `positions`."""
        longest = max(counts)
        stored = self.keys.shape[2] if self.window is not None else longest
        keys = torch.cat((self.keys[:, :, :stored], k), dim=2)
        values = torch.cat((self.values[:, :, :stored], v), dim=2)
        equal = positions.dim() == 1
        if equal and k.shape[2] == 1 and self.window is None:
            return keys, values, None
        count = torch.tensor(counts, device=k.device)[:, None]
        place = torch.arange(stored, device=k.device)[None]
        if self.window is None:
            position = torch.where(place < count, place, -1)
        else:
            position = count - 1 - (count - 1 - place) % stored
        new = positions.expand(len(counts), -1) if equal else positions
        key_position = torch.cat((position, new), dim=1)[:, None, :]
        query_position = new[:, :, None]
        seen = (key_position >= 0) & (key_position <= query_position)
        if self.window is not None:
            seen &= key_position > query_position - self.window
        return keys, values, seen[:, None]


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], seen: Tensor | None) -> Tensor:
    """Softmax attention under a mask (B, 1, Q, S); query head i reads KV head serving[i]."""
    group = len(serving) // k.shape[1]
    grouped = list(serving) == [i // group for i in range(len(serving))]
    if not grouped:
        k, v = k[:, list(serving)], v[:, list(serving)]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=grouped and group > 1)
