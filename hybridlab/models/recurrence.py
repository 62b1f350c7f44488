"""Multi-resolution recursion: what stands between the iterations of a loop (SpiralFormer, sections 2.2 and 2.3).

One iteration gathers the states into a latent per chunk, lets the caller run the body on them, spreads the result over
the tokens, moves it to the right so that nobody hears of a later token, and forms the next state. The body is the
caller's: it is ordinary visits on a shorter sequence.

Two forms give the same numbers: `Recurrence.run` on whole sequences, and `models/recurrence_cache.py` token by token.

Shape legend: B batch, L tokens, n chunks, g tokens in a chunk, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.accounting.parameters import router_sizes
from hybridlab.plan.loop import Loop

Body = Callable[[int, Tensor], Tensor]
"""(iteration, latents (B, n, W)) → latents after the shared layers."""


class Recurrence(nn.Module):
    """A loop's own parameters: scorers and allocators of the iterations with chunks, MeSH's routers.

    Nothing is made for full resolution: a softmax over a single slot has no gradient.
    """

    def __init__(self, loop: Loop, width: int) -> None:
        super().__init__()
        chunked = [t for t, g in enumerate(loop.chunks) if g > 1]
        scored, allocated = loop.downscale == "aggregate", loop.upscale == "allocate"
        # A bias of the scorer would add the same to every token of a chunk, which the softmax takes away again.
        self.scorers = nn.ModuleDict({str(t): nn.Linear(width, 1, bias=False) for t in chunked if scored})
        self.allocators = nn.ModuleDict({str(t): nn.Linear(width, loop.chunks[t]) for t in chunked if allocated})
        pairs = router_sizes(loop)[::2]
        self.writers = nn.ModuleList(nn.Linear(width, slots) for slots in pairs)
        self.readers = nn.ModuleList(nn.Linear(width, slots) for slots in pairs)

    def run(
        self,
        loop: Loop,
        embedded: Tensor,
        entering: Tensor,
        body: Body,
        seen: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """All iterations on whole sequences (B, L, W). embedded: the token embeddings; entering: the state before;
        seen: told the state after each iteration."""
        state = Topology(self, loop, embedded, entering)
        for t in range(loop.iterations):
            state.update(t, self.iterate(loop, t, state.h, body))
            if seen:
                seen(t, state.h)
        return state.h

    def iterate(self, loop: Loop, t: int, h: Tensor, body: Body) -> Tensor:
        """The shifted update ũ (B, L, W) of iteration t on states h (B, L, W)."""
        if loop.chunks[t] == 1:
            return shifted(body(t, h), loop.shift_of(t))
        length, g, offset = h.shape[1], loop.chunks[t], loop.offset_of(t)
        n = loop.num_chunks(t, length)
        if n == 0:
            return torch.zeros_like(h)
        grid, there = chunked(h, n, g, offset)
        spread = self.spread(loop, t, body(t, self.gather(loop, t, grid, there))).flatten(1, 2)
        # The grid starts `offset` slots before the first token; u[i] lies at i + offset.
        return shifted(
            F.pad(spread[:, offset:], (0, 0, 0, max(0, length - n * g + offset)))[:, :length], loop.shift_of(t)
        )

    def gather(self, loop: Loop, t: int, grid: Tensor, there: Tensor) -> Tensor:
        """Downscale: (B, n, g, W) → (B, n, W). there (B or 1, n, g): False on slots that no token fills (Eq. 16–18)."""
        if loop.downscale == "mean":
            count = loop.chunks[t] if loop.literal else there.sum(-1, keepdim=True)
            return (grid * there[..., None]).sum(2) / count
        scores = self.scorers[str(t)](grid)[..., 0]
        weights = _shares(scores.masked_fill(~there, float("-inf")))
        return (weights[..., None].to(grid.dtype) * grid).sum(2)

    def spread(self, loop: Loop, t: int, latents: Tensor) -> Tensor:
        """Upscale: (B, n, W) → (B, n, g, W), with gain √g (Eq. 19–21)."""
        g = loop.chunks[t]
        if loop.upscale == "uniform":
            return (latents / math.sqrt(g))[:, :, None].expand(-1, -1, g, -1)
        shares = _shares(self.allocators[str(t)](latents)) * math.sqrt(g)
        return shares[..., None].to(latents.dtype) * latents[:, :, None]


def chunked(h: Tensor, n: int, g: int, offset: int) -> tuple[Tensor, Tensor]:
    """The first n chunks of (B, L, W) as (B, n, g, W), with `offset` absent slots in front, and which slots are there."""
    grid = F.pad(h, (0, 0, offset, 0))[:, : n * g]
    there = torch.arange(n * g, device=h.device).view(1, n, g) >= offset
    return grid.unflatten(1, (n, g)), there


def shifted(u: Tensor, by: int) -> Tensor:
    """Every position's value moved `by` positions to the right, zeros before (Eq. 22)."""
    return u if by == 0 else F.pad(u, (0, 0, by, 0))[:, : u.shape[1]]


def _shares(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32 at least."""
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))


class Topology:
    """How updates become states: h, and what it is read from.

    MeSH's buffer is never made. Slot b holds [b = 0] x + Σ_s w_s[b] u_s, so that a read Σ_b r[b] m[b] is
    r[0] x + Σ_s (r · w_s) u_s: the same number from T + 1 tensors (appendix B, Eq. 24–30).
    """

    def __init__(self, recurrence: Recurrence, loop: Loop, embedded: Tensor, entering: Tensor) -> None:
        self.kind, self.recurrence = loop.topology, recurrence
        self.embedded, self.start, self.h = embedded, entering, entering
        self.written: list[tuple[Tensor, Tensor]] = []
        if self.kind == "mesh":
            # The transitional cycle is routed by the embeddings (Eq. 25), iteration t by h(t) (Eq. 28).
            self._write_and_read(0, embedded, entering)

    def update(self, t: int, u: Tensor) -> None:
        """The state after iteration t, from its shifted update u."""
        if self.kind == "direct":
            self.h = u
        elif self.kind == "anchor":
            self.h = u + self.start
        else:
            self._write_and_read(t + 1, self.h, u)

    def _write_and_read(self, pair: int, routed_by: Tensor, value: Tensor) -> None:
        write = _shares(self.recurrence.writers[pair](routed_by))
        read = _shares(self.recurrence.readers[pair](routed_by))
        self.written.append((write, value))
        h = read[..., :1].to(value.dtype) * self.embedded
        for weights, update in self.written:
            h = h + (read * weights).sum(-1, keepdim=True).to(value.dtype) * update
        self.h = h
