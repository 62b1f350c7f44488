"""The heads of kind `belief` in one visit: on whole sequences, and in decoding.

Their cache slot has keys, values, and what earlier rows have sent: a later token needs, for each query head, the sum of
the messages of all rows before it about each key, which is one number for a key, or for elemmul a state of D + 1
numbers (blocks.py). The sums are of the prior weights, so that they do not follow from what decoding gives. A new key
begins with 0, because no earlier row sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.attention.belief import Belief
from hybridlab.attention.belief.blocks import Tile, form_of, in_blocks, last_rows
from hybridlab.attention.belief.formula import explicit, matrices, no_autocast, weighted_keys
from hybridlab.attention.belief.triton import in_triton
from hybridlab.attention.heads import Attended, HeadGroup, last_positions, visible_keys
from hybridlab.attention.kernels import Visible, moved
from hybridlab.attention.slots import KeyValues, entries, heads_of, places_of

KERNELS = {"eager": explicit, "blocks": in_blocks, "triton": in_triton}


def attend(belief: Belief, heads: HeadGroup) -> Attended:
    """softmax(q kᵀ / √d) over all keys, its weights refined, times v. With `need`, also the weights before that, as
    `prior`."""
    q, k = heads.q, heads.k
    visible = Visible(None, heads.valid, heads.segments, None, heads.causal)
    kernel = heads.kernel
    if q.dtype != torch.float64:
        kernel = belief.kernel_for(kernel, q.device.type, q.shape[3])
    out = KERNELS[belief.own_kernel(kernel, q.shape[2], heads.causal)](q, k, heads.v, visible, belief)
    if heads.need == "none":
        return Attended(out)
    weighted = weighted_keys(belief, visible)
    if heads.need == "full":
        prior, weights = matrices(q, k, visible, belief)
        return Attended(out, weights.float(), visible_keys(weighted, q, k), {"prior": prior.float()})
    last = last_positions(q, heads.valid)[:, None]
    prior, weights = last_rows(q, k, visible, belief, last)
    return Attended(out, weights.float(), visible_keys(weighted, weights, k, last), {"prior": prior.float()})


class _Continued(Tile):
    """New rows of a cache: their keys are those that are stored, then their own. positions: of the rows (T, S) and of
    all keys (T, N), where −1 is an entry that a row does not have."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, belief: Belief, positions: tuple[Tensor, Tensor], valid: Tensor | None
    ) -> None:
        super().__init__(q, k, v, Visible(valid=valid), belief)
        self.row_positions, self.key_positions = positions

    def keys_of(self, rows: slice) -> tuple[slice, slice]:
        stored = self.k.shape[1] - self.q.shape[2]
        own_keys = slice(stored + rows.start, stored + rows.stop)
        return slice(0, own_keys.stop), own_keys

    def hide(self, scores: Tensor, rows: slice, own_keys: slice) -> None:
        scores.masked_fill_(~self.seen(rows), float("-inf"))

    def seen(self, rows: slice) -> Tensor:
        query, key = self.row_positions[:, rows, None], self.key_positions[:, None, : self.keys_of(rows)[0].stop]
        return ((key >= 0) & (key <= query))[:, None]


class RefinedKeyValues(KeyValues):
    """Keys, values, and the sums of what earlier rows have sent. serving[i]: which KV head query head i reads."""

    def __init__(self, belief: Belief, serving: Sequence[int], *, capacity: int | None = None) -> None:
        super().__init__(None, capacity=capacity)
        self.belief, self.serving = belief, list(serving)
        self.sent: Tensor | None = None
        """(B, h, N) or, for elemmul, (B, h, N, D + 1)."""

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), *([] if self.sent is None else [self.sent])]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], counts: Sequence[int], positions: Tensor
    ) -> Tensor:
        with no_autocast(q):
            tile = self._after(q, k, v, counts, None)
            out = torch.empty_like(tile.q)
            form_of(tile).forward(out, self._before(q, max(counts)))
        return out.view(q.shape).to(v.dtype)

    def step(self, q: Tensor, k: Tensor, v: Tensor, serving: Sequence[int], at: Tensor) -> Tensor:
        assert self.keys is not None and self.values is not None, "prompts are stored before"
        size, rows = self.keys.shape[2], torch.arange(len(at), device=at.device)
        index = torch.arange(size, device=at.device)
        positions = torch.cat((torch.where(index < at[:, None], index, -1), at[:, None]), dim=1)
        keys, values = torch.cat((self.keys, k), dim=2), torch.cat((self.values, v), dim=2)
        with no_autocast(q):
            tile = self._tile(q, keys, values, positions, None)
            out = torch.empty_like(tile.q)
            sums = self._before(q, size)
            form_of(tile).forward(out, sums)  # which adds what this token sends
        sums = sums.unflatten(0, (len(at), -1)).flatten(1, 2)
        sent = self._room(sums)
        sent.copy_(sums[:, :, :size])
        sent[rows, :, at] = sums[:, :, size].to(sent.dtype)
        self.keys[rows, :, at], self.values[rows, :, at] = k[:, :, 0], v[:, :, 0]
        return out.view(q.shape).to(v.dtype)

    def append(self, q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], lengths: Sequence[int]) -> None:
        longest, length = max(counts), k.shape[2]
        valid = torch.arange(length, device=k.device) < moved(torch.tensor(lengths), k.device)[:, None]
        with no_autocast(q):
            added = form_of(self._after(q, k, v, counts, valid)).total()
        added = added.unflatten(0, (len(counts), -1)).flatten(1, 2)
        super().append(q, k, v, counts, lengths)
        sent = self._room(added)
        sent[:, :, :longest] += added[:, :, :longest].to(sent.dtype)
        rows, columns, places = places_of(tuple(counts), tuple(lengths), length, sent.shape[2], k.device)
        sent[rows, :, places] = added[rows, :, longest + columns].to(sent.dtype)

    def _room(self, added: Tensor) -> Tensor:
        """What was sent, with room for as many entries as there are keys."""
        assert self.keys is not None, "keys are stored before"
        size = self.keys.shape[2]
        if self.sent is None:
            dtype = torch.promote_types(self.keys.dtype, torch.float32)
            self.sent = added.new_zeros(*added.shape[:2], size, *added.shape[3:], dtype=dtype)
        elif self.sent.shape[2] < size:
            self.sent = F.pad(self.sent, (0, 0) * (added.dim() - 3) + (0, size - self.sent.shape[2]))
        return self.sent

    def _before(self, q: Tensor, longest: int) -> Tensor:
        """What earlier rows have sent, in fp64, of the stored keys and of the new ones, which nobody has sent about."""
        assert self.sent is not None, "an empty cache attends to nothing"
        stored = self.sent[:, :, :longest].double()
        stored = F.pad(stored, (0, 0) * (stored.dim() - 3) + (0, q.shape[2]))
        return stored.unflatten(1, self._pairs()).flatten(0, 1)

    def _pairs(self) -> tuple[int, int]:
        """KV heads, and the query heads of each; if they do not serve equally many in order, a KV head for each."""
        heads = len(self.serving)
        group = heads // (max(self.serving) + 1)
        regular = group > 0 and self.serving == [i // group for i in range(heads)]
        return (heads // group, group) if regular else (heads, 1)

    def _after(self, q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], valid: Tensor | None) -> _Continued:
        """New rows q (B, h, S, D) with the stored keys and the new k, v (B, K, S, D). valid: (B, S), None for all."""
        keys, values = self._joined(k, v, counts)
        positions = entries(tuple(counts), max(counts), q.shape[2], False, k.device)
        return self._tile(q, keys, values, positions, valid)

    def _tile(self, q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, valid: Tensor | None) -> _Continued:
        """New rows q with keys and values (B, K, N, D) at these positions (B, N), the rows' own at the end."""
        length, kv_heads = q.shape[2], self._pairs()[0]
        if kv_heads != keys.shape[1]:
            keys, values = heads_of(keys, self.serving), heads_of(values, self.serving)
        rows, columns = (t.repeat_interleave(kv_heads, 0) for t in (positions[:, -length:], positions))
        real = None if valid is None else valid.repeat_interleave(kv_heads, 0)
        queries = q.unflatten(1, self._pairs()).flatten(0, 1)
        return _Continued(queries, keys.flatten(0, 1), values.flatten(0, 1), self.belief, (rows, columns), real)
