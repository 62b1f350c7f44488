"""Cache slots: what the heads of one attention kind store in decoding.

`KeyValues` is the standard slot: keys and values of all positions, or of the last w in a ring buffer (position p at
index p mod w). A kind that stores something else defines a slot of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.attention.kernels import Rule, Visible, fused, moved, plain
from hybridlab.errors import UserError


class Slot(Protocol):
    """The cache of the heads of one kind in one visit. counts: entries stored so far, by row."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], counts: Sequence[int], positions: Tensor
    ) -> Tensor:
        """Attention (B, h, S, D) of new queries q (B, h, S, D) at `positions` to the stored entries and to the new k, v
        (B, K, S, D), which are not stored here. serving[i]: which of these KV heads query head i reads."""
        ...

    def append(self, q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], lengths: Sequence[int]) -> None:
        """Store the first lengths[r] of the new entries of each row r."""
        ...

    def tensors(self) -> list[Tensor]:
        """All stored tensors. They are attributes of the slot, with the rows as their first dimension, so that a cache
        can be copied for several continuations of one prompt. With zeros in them, nothing is stored."""
        ...


class SteppingSlot(Slot, Protocol):
    """A slot that serves compiled generation too."""

    def step(self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], at: Tensor) -> Tensor:
        """`attend` and `append` of one token of each row, at positions at (B,), in tensors of fixed sizes."""
        ...


def has_step(slot: Slot) -> TypeGuard[SteppingSlot]:
    """Whether a slot serves compiled generation. A class with an `attend` of its own needs a `step` of its own."""
    nearest = next(vars(each) for each in type(slot).__mro__ if vars(each).keys() & {"attend", "step"})
    return "step" in nearest


def next_positions(counts: Sequence[int], length: int, device: torch.device) -> Tensor:
    """Positions of the next `length` tokens after these counts: (S,) if all counts are equal, else (B, S)."""
    return _kept_positions(tuple(counts), length, device)


# ---- tensors that follow from the counts: kept, because all visits of a pass ask for the same ----


@lru_cache(maxsize=16)
def _kept_positions(counts: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else they could not be used in a backward pass
        steps = torch.arange(length, device=device)
        if len(set(counts)) == 1:
            return steps + counts[0]
        return moved(torch.tensor(counts), device)[:, None] + steps


@lru_cache(maxsize=16)
def entries(counts: tuple[int, ...], stored: int, length: int, ring: bool, device: torch.device) -> Tensor:
    """Positions (B, stored + length) of so many stored entries, below 0 for one that a row does not have, and of the
    new ones. ring: whether the stored ones are a ring buffer."""
    with torch.inference_mode(False):
        count, index = moved(torch.tensor(counts), device)[:, None], torch.arange(stored, device=device)[None]
        position = count - 1 - (count - 1 - index) % stored if ring else torch.where(index < count, index, -1)
        return torch.cat((position, count + torch.arange(length, device=device)), dim=1)


@lru_cache(maxsize=16)
def _seen_by_one(counts: tuple[int, ...], stored: int, window: int | None, device: torch.device) -> Tensor:
    """`_seen` of one new token of each row."""
    with torch.inference_mode(False):
        return _seen(entries(counts, stored, 1, window is not None, device), 1, Visible(window))


def _seen(entries: Tensor, length: int, visible: Visible) -> Tensor:
    """(B, 1, length, N): which of the entries, at these positions (B, N), each of the last `length` sees."""
    key, query = entries[:, None, :], entries[:, -length:, None]
    return ((key >= 0) & visible.allows(query, key))[:, None]


@lru_cache(maxsize=16)
def places_of(
    counts: tuple[int, ...], lengths: tuple[int, ...], length: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, sources and places of the entries to store: of row r the first lengths[r] of `length`, at most `size`."""
    with torch.inference_mode(False):
        source, ends = torch.arange(length)[None], torch.tensor(lengths)[:, None]
        rows, sources = ((source < ends) & (source >= ends - size)).nonzero(as_tuple=True)
        places = (torch.tensor(counts)[rows] + sources) % size
        return moved(rows, device), moved(sources, device), moved(places, device)


@lru_cache(maxsize=256)
def _grouped(serving: tuple[int, ...], kv_heads: int) -> bool:
    """Whether each KV head serves as many query heads, in order."""
    group = len(serving) // kv_heads
    return serving == tuple(i // group for i in range(len(serving)))


@lru_cache(maxsize=256)
def _index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return moved(torch.tensor(numbers), device)


def heads_of(t: Tensor, heads: Sequence[int]) -> Tensor:
    """These heads of a tensor (B, H, …). Their indices stay on the device; a compiled graph, which cannot keep them and
    would bring them there each time, takes runs of heads."""
    if not torch.compiler.is_compiling():
        return t.index_select(1, _index(tuple(heads), t.device))
    starts = [i for i, head in enumerate(heads) if i == 0 or head != heads[i - 1] + 1]
    ends = [*starts[1:], len(heads)]
    return torch.cat([t[:, heads[a] : heads[a] + b - a] for a, b in zip(starts, ends, strict=True)], dim=1)


def selected(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows of a tensor, whose first dimension they are."""
    return tensor.index_select(0, _index(tuple(rows), tensor.device))


class NotCopied(UserError):
    """A cache has a slot that cannot be copied."""


def selected_slot(slot: Slot, rows: Sequence[int]) -> Slot:
    """A copy of a slot with these rows; NotCopied if it stores a tensor elsewhere than in an attribute."""
    copied, stored = copy(slot), {id(tensor) for tensor in slot.tensors()}
    held = {name: value for name, value in vars(slot).items() if isinstance(value, Tensor) and id(value) in stored}
    if {id(tensor) for tensor in held.values()} != stored:
        raise NotCopied(
            f"cache: the slot {type(slot).__name__} cannot be copied; keep each of its tensors in an attribute of its "
            "own, with the rows as the first dimension"
        )
    for name, tensor in held.items():
        setattr(copied, name, selected(tensor, rows))
    return copied


@dataclass(frozen=True)
class StandardSlot:
    """Makes the slots of a kind in one visit (`AttentionKind.slot`). capacity: the most entries of a row, None if
    unknown. serving: see `Slot.attend`. cap: of the scores, see `Visible`."""

    capacity: int | None
    serving: Sequence[int]
    cap: float | None = None

    def __call__(self, window: int | None, rule: Rule | None = None) -> Slot:
        return KeyValues(window, rule, capacity=self.capacity, cap=self.cap)


class KeyValues:
    """Stored keys and values. window: the last `window` positions, None for all. rule, cap: see `Visible`. capacity:
    the most entries of a row, None if unknown."""

    def __init__(
        self, window: int | None, rule: Rule | None = None, *, capacity: int | None = None, cap: float | None = None
    ) -> None:
        self.window, self.rule, self.capacity, self.cap = window, rule, capacity, cap
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._behind: Tensor | None = None
        """New keys that already stand, with their values, behind the stored ones."""

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.keys, self.values) if tensor is not None]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], counts: Sequence[int], positions: Tensor
    ) -> Tensor:
        keys, values = self._joined(k, v, counts)
        length, earlier = k.shape[2], tuple(counts)
        stored = keys.shape[2] - length
        if length == 1 and self.rule is None:
            all_seen = self.window is None and positions.dim() == 1
            seen = None if all_seen else _seen_by_one(earlier, stored, self.window, q.device)
        else:
            places = entries(earlier, stored, length, self.window is not None, q.device)
            seen = _seen(places, length, Visible(self.window, rule=self.rule))
        grouped = _grouped(tuple(serving), keys.shape[1])
        return self._weighted(q, keys, values, None if grouped else serving, seen)

    def step(self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], at: Tensor) -> Tensor:
        assert self.keys is not None and self.values is not None, "prompts are stored before"
        rows, size = torch.arange(len(at), device=at.device), self.keys.shape[2]
        self.keys[rows, :, at % size], self.values[rows, :, at % size] = k[:, :, 0], v[:, :, 0]
        # The youngest position that an index can hold; below 0 for one that holds nothing yet.
        places = at[:, None] - (at[:, None] - torch.arange(size, device=at.device)) % size
        seen = (places >= 0) & Visible(self.window, rule=self.rule).allows(at[:, None], places)
        # Compilers see through no cache of a function.
        grouped = _grouped.__wrapped__(tuple(serving), self.keys.shape[1])
        return self._weighted(q, self.keys, self.values, None if grouped else serving, seen[:, None, None])

    def _weighted(
        self, q: Tensor, keys: Tensor, values: Tensor, serving: Sequence[int] | None, seen: Tensor | None
    ) -> Tensor:
        """Attention (B, h, S, D) to those keys and values (B, K, N, D) that are seen (B, 1, S, N); None for all.
        serving: None where each KV head serves as many query heads, in order."""
        if serving is not None:
            keys, values = heads_of(keys, serving), heads_of(values, serving)
        if self.cap is not None:
            seen = torch.ones((), dtype=torch.bool, device=q.device) if seen is None else seen
            return plain(q, keys, values, seen, self.cap)
        return fused(q, keys, values, seen)

    def append(self, q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], lengths: Sequence[int]) -> None:
        behind, self._behind, length = self._behind is k, None, k.shape[2]
        alike = len(set(counts)) == 1 and set(lengths) == {length}
        if alike and behind:
            return
        keys, values = self._reserved(k, max(c + n for c, n in zip(counts, lengths, strict=True)))
        size = keys.shape[2]
        if alike:
            # Only the last `size` of them fit into the ring.
            first = max(0, length - size)
            start, stored = (counts[0] + first) % size, length - first
            indices: slice | Tensor = slice(start, start + stored)
            if start + stored > size:
                indices = torch.arange(start, start + stored, device=k.device) % size
            keys[:, :, indices], values[:, :, indices] = k[:, :, first:], v[:, :, first:]
            return
        rows, sources, indices = places_of(tuple(counts), tuple(lengths), length, size, k.device)
        keys[rows, :, indices], values[rows, :, indices] = k[rows, :, sources], v[rows, :, sources]

    def _reserved(self, like: Tensor, needed: int) -> tuple[Tensor, Tensor]:
        """Keys and values (B, K, N, D) like `like`, with room for `needed` entries, or for the smaller of window and
        capacity if there is one. Without, they double whenever they grow, so that not every token copies them."""
        if self.keys is not None and self.values is not None and self.keys.shape[2] >= needed:
            return self.keys, self.values
        size = min([limit for limit in (self.window, self.capacity) if limit is not None], default=None)
        if self.keys is None or self.values is None:
            shape = (like.shape[0], like.shape[1], needed if size is None else size, like.shape[3])
            self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        elif size is None:
            grow = (0, 0, 0, max(needed, 2 * self.keys.shape[2]) - self.keys.shape[2])
            self.keys, self.values = F.pad(self.keys, grow), F.pad(self.values, grow)
        return self.keys, self.values

    def _joined(self, k: Tensor, v: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Keys and values of stored and new entries."""
        longest, length = max(counts), k.shape[2]
        fits = self.window is None and (self.capacity is None or longest + length <= self.capacity)
        if fits and not torch.is_grad_enabled():  # what a backward pass needs is not written over
            keys, values = self._reserved(k, longest + length)
            keys[:, :, longest : longest + length], values[:, :, longest : longest + length] = k, v
            self._behind = k
            return keys[:, :, : longest + length], values[:, :, : longest + length]
        keys, values = self._reserved(k, longest)
        stored = keys.shape[2] if self.window is not None else longest
        return torch.cat((keys[:, :, :stored], k), dim=2), torch.cat((values[:, :, :stored], v), dim=2)
