"""Attention refined by belief propagation in memory that grows linearly with the length, forward and backward.

Some rows of the matrices exist at a time, and are computed again where they are needed again. What rows exchange are
sums over rows. In a decoder they run along with the blocks: forwards the sum of the messages of all rows before the
block, backwards the gradients of all rows after it, while the sum before each block is what is left of the total when
the later ones are subtracted. Where all rows send, a first pass computes the sums.

`Messages` is for the factors high and low: sums of ℓ, one number for each key. `Products` is for elemmul, where
out_j = A_j · Σ_i A_iᵀ [v_i, 1]: the product of a matrix with its own transpose is never made. Sums are in fp64, so that
subtracting them loses nothing.

Shape legend: T pairs of a batch row and a KV head, G query heads of each, b rows of a block, e keys before its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hybridlab.attention.belief import Belief
from hybridlab.attention.belief.formula import factor, from_earlier, messages, no_autocast, weighted_keys
from hybridlab.attention.kernels import Visible, at_least_fp32, scores_under

ROWS = {True: 32, False: 64}
"""Rows of a block, with messages and without, if these hold no more scores than MOST_SCORES: of 16 to 64, 32 took the
least time with messages; without them more rows have fewer pairs in a tile, whose states are large."""
MOST_SCORES = 2**18
"""Scores that are computed at once: 1 MiB in fp32."""
FEWEST_ROWS = 8
NEIGHBOURS = 8
"""Rows that are summed at once."""


@dataclass(frozen=True)
class Block:
    """Some rows of a tile. keys: those that any of them sees. own: of these, the rows' own. scores, prior:
    (T, G, b, e)."""

    rows: slice
    keys: slice
    own: slice
    scores: Tensor
    prior: Tensor


class Tile:
    """Some pairs of a batch row and a KV head: q (T, G, S, D), k and v (T, S, D), in fp32 at least."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> None:
        self.q, self.k, self.v = at_least_fp32(q) / math.sqrt(q.shape[-1]), at_least_fp32(k), at_least_fp32(v)
        self.visible, self.belief = visible, belief
        self.earlier = from_earlier(belief, visible)
        scores = q.shape[0] * q.shape[1] * k.shape[1]  # of a row of all pairs
        self.block = min(ROWS[belief.sends_messages], max(FEWEST_ROWS, MOST_SCORES // max(1, scores)))

    def blocks(self, backwards: bool = False) -> Iterator[Block]:
        """All rows, a block at a time."""
        length = self.q.shape[2]
        starts = range(0, length, self.block)
        for start in reversed(starts) if backwards else starts:
            rows = slice(start, min(start + self.block, length))
            keys, own_keys = self.keys_of(rows)
            scores = self.product(self.q[:, :, rows], self.k[:, keys].mT)
            self.hide(scores, rows, own_keys)
            yield Block(rows, keys, own_keys, scores, torch.softmax(scores, dim=-1))

    def keys_of(self, rows: slice) -> tuple[slice, slice]:
        """The keys that any of the rows sees, and of these the rows' own."""
        # Later keys are hidden from all rows of a decoder's block.
        return slice(0, rows.stop if self.visible.causal else self.k.shape[1]), rows

    def hide(self, scores: Tensor, rows: slice, own_keys: slice) -> None:
        """Give keys that a row does not see a score of −∞."""
        if self.visible.valid is not None or self.visible.segments is not None:
            scores.masked_fill_(~self.seen(rows), float("-inf"))
        elif self.visible.causal:  # all keys before the rows' own are seen
            count = own_keys.stop - own_keys.start
            later = scores.new_ones(count, count, dtype=torch.bool).triu_(1)
            scores[..., own_keys].masked_fill_(later, float("-inf"))

    def seen(self, rows: slice) -> Tensor:
        """The mask of these rows over the keys of their block: (b, e) or (T, 1, b, e)."""
        keys = self.keys_of(rows)[0]
        positions = torch.arange(rows.start, rows.stop, device=self.q.device)
        valid, segments = (None if t is None else t[:, keys] for t in (self.visible.valid, self.visible.segments))
        return replace(self.visible, valid=valid, segments=segments).mask(positions, keys.stop)

    def factor(self, rows: slice) -> float | Tensor:
        """See `formula.factor`."""
        mask = None if self.belief.length_ref is None else self.seen(rows)
        return factor(mask, self.visible.causal, self.belief, self.q.dtype)

    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """rows (T, G, b, X) times a matrix (T, X, Y) that the query heads share → (T, G, b, Y)."""
        return (rows.flatten(1, 2) @ matrix).unflatten(1, rows.shape[1:3])

    def gather(self, weights: Tensor, rows: Tensor) -> Tensor:
        """The transposed weights (T, G, b, e) times rows (T, G, b, D), summed over the query heads → (T, e, D)."""
        return weights.flatten(1, 2).mT @ rows.flatten(1, 2)

    def valid(self, rows: slice) -> Tensor | None:
        """(T, 1, b, 1): 0 for rows that are padding; None if none is."""
        return None if self.visible.valid is None else self.visible.valid[:, None, rows, None].to(self.q.dtype)

    def sums(self, *shape: int) -> Tensor:
        """Sums over rows, by key: (T, G, S, …) in fp64."""
        pairs, group = self.q.shape[:2]
        return self.q.new_zeros(pairs, group, self.k.shape[1], *shape, dtype=torch.float64)

    def score_gradients(self, block: Block, ds: Tensor, dq: Tensor, dk: Tensor) -> None:
        """Add the gradients of a block's scores, (T, G, b, e), to those of q (T, G, S, D) and k (T, S, D)."""
        dq[:, :, block.rows] = self.product(ds, self.k[:, block.keys]) / math.sqrt(self.q.shape[-1])
        dk[:, block.keys] += self.gather(ds, self.q[:, :, block.rows])


def softmax_backward(weights: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the scores from that of their softmax."""
    return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)


class Sums:
    """Sums of the rows of a block (T, G, b, e), of a few neighbours first: products with small triangles of ones, which
    take less time than cumulative sums and than one large triangle."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.near = rows.unflatten(2, (-1, math.gcd(rows.shape[2], NEIGHBOURS)))
        self.far = self.near.sum(3)

    def whole(self) -> Tensor:
        """(T, G, e)"""
        return self.far.sum(2)

    def of_others(self, outside: Tensor, earlier: bool, own: bool, to: Tensor | None = None) -> Tensor:
        """The rows before each row, or after it, and what comes from outside of the block (T, G, e), as a new tensor or
        added to one: (T, G, b, e). own: each row itself too."""
        near, far = self.near.flatten(0, 2), self.far.flatten(0, 1)
        carried = torch.baddbmm(outside.flatten(0, 1)[:, None].to(far.dtype), _triangle(far, earlier), far)
        carried = carried.flatten(0, 1)[:, None]
        if to is None:
            return torch.baddbmm(carried, _triangle(near, earlier, own), near).view_as(self.rows)
        to.view_as(near).add_(carried).baddbmm_(_triangle(near, earlier, own), near)
        return to


def _triangle(rows: Tensor, earlier: bool, own: bool = False) -> Tensor:
    """The matrices (N, b, b) that sum the rows before each row of (N, b, e), or after it; own: and the row itself."""
    ones, from_own = rows.new_ones(rows.shape[1], rows.shape[1]), 0 if own else 1
    return (ones.tril_(-from_own) if earlier else ones.triu_(from_own)).expand(len(rows), -1, -1)


class Messages:
    """The factors high and low on one tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile

    def forward(self, out: Tensor, before: Tensor | None = None) -> Tensor:
        """Fill out (T, G, S, D); returns `total`. before: the messages (T, G, S) of rows before the first one, to which
        those of this tile are added; 0 by default."""
        tile = self.tile
        if before is None:
            before = tile.sums() if tile.earlier else self.total()
        for block in tile.blocks():
            sent = self._sent(block)
            weights = self._refined(block, sent, before)
            out[:, :, block.rows] = tile.product(weights, tile.v[:, block.keys])
            if tile.earlier:
                before[..., block.keys] += sent.whole()
        return before

    def total(self) -> Tensor:
        """(T, G, S): the messages of all rows."""
        total = self.tile.sums()
        for block in self.tile.blocks():
            total[..., block.keys] += self._sent(block).whole()
        return total

    def backward(self, dout: Tensor, total: Tensor, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Fill the gradients dq (T, G, S, D), dk and dv (T, S, D), from that of the output. total: what `forward` has
        returned."""
        tile, before = self.tile, total.clone()
        after = tile.sums()
        """The gradients of the messages: of later rows in a decoder, else of all."""
        if not tile.earlier:
            for block in tile.blocks():
                received, _ = self._row_gradients(block, self._sent(block), before, dout)
                after[..., block.keys] += received.sum(-2)
        for block in tile.blocks(backwards=True):
            sent = self._sent(block)
            if tile.earlier:
                before[..., block.keys] -= sent.whole()
            received, weights = self._row_gradients(block, sent, before, dout)
            ds = received
            if not tile.belief.detach_messages:
                ds = softmax_backward(block.prior, self._prior_gradients(block, received, after)).add_(received)
            dv[:, block.keys] += tile.gather(weights, dout[:, :, block.rows])
            tile.score_gradients(block, ds, dq, dk)

    def _sent(self, block: Block) -> Sums:
        """The messages (T, G, b, e) of a block's rows."""
        tile = self.tile
        return Sums(messages(block.prior, tile.factor(block.rows), tile.visible, tile.belief, block.rows))

    def _refined(self, block: Block, sent: Sums, before: Tensor) -> Tensor:
        """The refined weights (T, G, b, e), for which the block's scores are used up. before: the messages of the rows
        before the block, or of all."""
        scores, before = block.scores, before[..., block.keys]
        if self.tile.earlier:
            sent.of_others(before, True, self.tile.belief.own_message, to=scores)
        else:
            scores.add_(before[..., None, :].to(scores.dtype))
            if not self.tile.belief.own_message:
                scores.sub_(sent.rows)
        return torch.softmax(scores, dim=-1)

    def _row_gradients(self, block: Block, sent: Sums, before: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of what the softmax of the refined weights takes, and these weights, each (T, G, b, e)."""
        weights = self._refined(block, sent, before)
        dweights = self.tile.product(dout[:, :, block.rows], self.tile.v[:, block.keys].mT)
        return softmax_backward(weights, dweights), weights

    def _prior_gradients(self, block: Block, received: Tensor, after: Tensor) -> Tensor:
        """The gradients of the prior: of each message they are those of all rows that it goes to. after: those of later
        rows, to which the block's are added, or of all."""
        tile, later = self.tile, after[..., block.keys]
        if tile.earlier:
            sums = Sums(received)
            dsent = sums.of_others(later, False, tile.belief.own_message)
            later += sums.whole()
        else:
            dsent = later[..., None, :].to(received.dtype)
            dsent = dsent.repeat(1, 1, received.shape[2], 1) if tile.belief.own_message else dsent - received
        scale = torch.as_tensor(tile.factor(block.rows), dtype=dsent.dtype)
        dsent /= block.prior + 1 / scale  # that is, times scale / (1 + scale · prior); a strength of 0 makes it 0
        valid = tile.valid(block.rows)
        return dsent if valid is None else dsent * valid


class Products:
    """The factor elemmul on one tile. A state (T, G, S, D + 1) is a sum of A_iᵀ [v_i, 1] over rows i."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.values = torch.cat((tile.v, torch.ones_like(tile.v[..., :1])), dim=-1)

    def forward(self, out: Tensor, state: Tensor | None = None) -> None:
        """Fill out (T, G, S, D). state: of rows before the first one, to which those of this tile are added; 0 by
        default. It is as large as the values of all query heads, and therefore not returned for the backward pass."""
        tile = self.tile
        if state is None:
            state = tile.sums(self.values.shape[-1]) if tile.earlier else self.total()
        for block in tile.blocks():
            weighed = self._weighed(block, state)[0]
            out[:, :, block.rows] = weighed[..., :-1] / weighed[..., -1:]
            if tile.earlier:
                state[:, :, block.keys] += block.prior.mT @ self._sent(block)

    def total(self) -> Tensor:
        """(T, G, S, D + 1): the state of all rows."""
        state = self.tile.sums(self.values.shape[-1])
        for block in self.tile.blocks():
            state[:, :, block.keys] += block.prior.mT @ self._sent(block)
        return state

    def backward(self, dout: Tensor, total: None, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Fill the gradients dq (T, G, S, D), dk and dv (T, S, D), from that of the output."""
        tile, state = self.tile, self.total()
        after = torch.zeros_like(state)
        """The gradients of the state: from later rows in a decoder, else from all."""
        if not tile.earlier:
            for block in tile.blocks():
                after[:, :, block.keys] += block.prior.mT @ self._weighed_gradients(block, state, dout)[0]
        for block in tile.blocks(backwards=True):
            sent = self._sent(block)
            if tile.earlier:
                state[:, :, block.keys] -= block.prior.mT @ sent
            dweighed, inside, mask = self._weighed_gradients(block, state, dout)
            later, values = after[:, :, block.keys].to(sent.dtype), self.values[:, block.own]
            dprior = dweighed @ state[:, :, block.keys].to(sent.dtype).mT + sent @ later.mT
            dvalues = block.prior @ later
            valid = tile.valid(block.rows)
            dvalues = dvalues if valid is None else dvalues * valid
            if inside is not None and mask is not None:
                dinside = tile.product(dweighed, values.mT) * mask
                dprior += (dinside + dinside.mT) @ block.prior
                dvalues += inside.mT @ dweighed
            if tile.earlier:
                after[:, :, block.keys] += block.prior.mT @ dweighed
            dv[:, block.own] += dvalues[..., :-1].sum(1)
            tile.score_gradients(block, softmax_backward(block.prior, dprior), dq, dk)

    def _sent(self, block: Block) -> Tensor:
        """[v_i, 1] (T, 1, b, D + 1) of a block's rows; 0 for padding, which sends nothing."""
        values, valid = self.values[:, None, block.own], self.tile.valid(block.rows)
        return values if valid is None else values * valid

    def _kept(self, block: Block) -> Tensor | None:
        """(b, b) or (T, 1, b, b): the products of a block's rows with each other that are not in the state: in a
        decoder of all rows that each sees, else only of padding with itself."""
        if self.tile.earlier:
            return self.tile.seen(block.rows)[..., block.own]
        valid = self.tile.valid(block.rows)
        return None if valid is None else torch.diag_embed(valid[..., 0] == 0)

    def _weighed(self, block: Block, state: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Σ_i (A_j · A_i) [v_i, 1] (T, G, b, D + 1), the products within the block (T, G, b, b), and `_kept`."""
        weighed = block.prior @ state[:, :, block.keys].to(block.prior.dtype)
        mask = self._kept(block)
        if mask is None:
            return weighed, None, None
        inside = block.prior @ block.prior.mT * mask
        return weighed + self.tile.product(inside, self.values[:, block.own]), inside, mask

    def _weighed_gradients(
        self, block: Block, state: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The gradients (T, G, b, D + 1) of what `_weighed` gives, and its two other results."""
        weighed, inside, mask = self._weighed(block, state)
        dmean = dout[:, :, block.rows] / weighed[..., -1:]
        dtotal = -(dmean * weighed[..., :-1]).sum(-1, keepdim=True) / weighed[..., -1:]
        return torch.cat((dmean, dtotal), dim=-1), inside, mask


def form_of(tile: Tile) -> Messages | Products:
    return Products(tile) if tile.belief.factor == "elemmul" else Messages(tile)


Part = tuple[slice, slice]
"""The batch rows and the KV heads of a tile."""


def tiles(q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> Iterator[tuple[Tile, Part]]:
    """Tiles of q (B, K, G, S, D), k and v (B, K, S, D); with each the batch rows and KV heads that it is of."""
    batch, kv_heads, group, length = q.shape[:4]
    pairs = max(1, MOST_SCORES // (group * min(ROWS[belief.sends_messages], length) * length))
    rows, served = (pairs // kv_heads, kv_heads) if pairs >= kv_heads else (1, pairs)
    for row in range(0, batch, rows):
        for head in range(0, kv_heads, served):
            part = slice(row, row + rows), slice(head, head + served)
            count = min(served, kv_heads - head)
            valid, segments = (
                None if t is None else t[part[0]].repeat_interleave(count, 0) for t in (visible.valid, visible.segments)
            )
            restricted = Visible(None, valid, segments, None, visible.causal)
            yield Tile(taken(q, part), taken(k, part), taken(v, part), restricted, belief), part


def taken(t: Tensor, part: Part) -> Tensor:
    """What a tile has of a tensor (B, K, …): (T, …)."""
    return t[part].flatten(0, 1)


def put(t: Tensor, part: Part, values: Tensor) -> None:
    """The opposite of `taken`."""
    place = t[part]
    place.copy_(values.view_as(place))


def by_kv_head(t: Tensor, k: Tensor) -> Tensor:
    """(B, H, S, D) → (B, K, G, S, D), without a copy."""
    return t.unflatten(1, (k.shape[1], -1))


class _InBlocks(torch.autograd.Function):
    """`in_blocks`, with gradients by hand from q, k and v and the sums of all messages."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> Tensor:
        out, totals = torch.empty_like(q, dtype=v.dtype), []
        with no_autocast(q):
            for tile, part in tiles(by_kv_head(q, k), k, v, visible, belief):
                result = torch.empty_like(tile.q)
                totals.append(form_of(tile).forward(result))
                put(by_kv_head(out, k), part, result)
        ctx.save_for_backward(q, k, v, *totals)
        ctx.visible, ctx.belief = visible, belief
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *totals = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
        with no_autocast(q):
            tiled = tiles(by_kv_head(q, k), k, v, ctx.visible, ctx.belief)
            for (tile, part), total in zip(tiled, totals, strict=True):
                of_tile = torch.empty_like(tile.q), torch.zeros_like(tile.k), torch.zeros_like(tile.v)
                form_of(tile).backward(at_least_fp32(taken(by_kv_head(dout, k), part)), total, *of_tile)
                for gradient, tile_gradient in zip((by_kv_head(dq, k), dk, dv), of_tile, strict=True):
                    put(gradient, part, tile_gradient)
        return dq, dk, dv, None, None


@torch.compiler.disable
def in_blocks(q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> Tensor:
    """Refined attention without a matrix of all scores. q (B, H, S, D), k and v (B, K, S, D) → (B, H, S, D)."""
    return _InBlocks.apply(q, k, v, visible, belief)


# ---- statistics of the last rows alone ----


def last_rows(q: Tensor, k: Tensor, visible: Visible, belief: Belief, last: Tensor) -> tuple[Tensor, Tensor]:
    """The prior and the refined weights, (B, H, 1, S), of the rows at `last` (B, 1), the last valid ones, which get
    messages from all valid rows that send to them. Without gradients."""
    with torch.no_grad(), no_autocast(q):
        query = q[torch.arange(len(q), device=q.device), :, last[:, 0]][:, :, None]
        mask = visible.mask(last, k.shape[2])
        scores = scores_under(at_least_fp32(query), at_least_fp32(k), mask)
        prior = torch.softmax(scores, dim=-1)
        gathered = scores.new_empty(*q.shape[:2], k.shape[2], 1)
        for tile, part in tiles(by_kv_head(q, k), k, k, visible, belief):
            if belief.factor == "elemmul":
                row = taken(by_kv_head(prior, k), part)[:, :, 0, :, None]
                received = torch.cat([block.prior @ row[:, :, block.keys] for block in tile.blocks()], dim=2)
            else:
                received = Messages(tile).total()[..., None]
            put(by_kv_head(gathered, k), part, received)
        gathered = gathered.mT
        if belief.factor == "elemmul":
            agreement = gathered * weighted_keys(belief, visible).mask(last, k.shape[2])
            return prior, agreement / agreement.sum(-1, keepdim=True)
        if belief.own_message:
            return prior, torch.softmax(scores + gathered, dim=-1)
        to_self = torch.log1p(factor(mask, visible.causal, belief, prior.dtype) * prior)
        if visible.valid is not None:
            to_self = to_self * visible.valid.gather(1, last)[:, None, :, None]
        return prior, torch.softmax(scores + gathered - to_self, dim=-1)
