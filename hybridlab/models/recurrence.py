"""Multi-resolution recursion: the computation between the iterations of a loop (SpiralFormer, sections 2.2 and 2.3).

One iteration has four steps: gather the states of each chunk into a latent; run the body on the latents; spread the
result over the tokens, shifted to the right so that the model stays causal; form the next state. The caller supplies
the body: ordinary visits on a shorter sequence.

Two versions give the same numbers: `Recurrence.run` on whole sequences and `run_cached` in decoding, where the body of
an iteration runs only when a chunk is complete (algorithm 2). New tokens may come one at a time or many at once, in
rows of different length. For every iteration with chunks a row stores the states of its incomplete chunk and its last
latents (as many as the shift reaches back). The keys and values of the body are in ordinary cache slots, one entry per
chunk. Empty slots of the first chunk are masked, as on whole sequences.

Shape legend: B batch, L tokens, n chunks, g tokens in a chunk, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.attention.kernels import moved
from hybridlab.attention.slots import selected
from hybridlab.plan.loop import Loop

ROUTER_BIAS = 4.0
"""Bias of the slots that `router_init` prefers. With zeros elsewhere and seven slots (T = 4), one such slot has a share
of 0.90, and two have 0.48 each; the softmax is far from saturated, so that every router has a gradient."""

Body = Callable[[int, Tensor], Tensor]
"""(iteration, latents (B, n, W)) → latents after the shared layers."""


def router_biases(loop: Loop) -> dict[str, Tensor]:
    """The routers' biases at the start, by name, as `loop.router_init` says; their weights are drawn as all others are,
    so that models of one seed differ in these biases alone.

    Neither SpiralFormer nor its description of MeSH (appendix B) says how routers begin, and MeSH's code could not be
    had. Slot 0 holds the embeddings; pair s writes to slot s + 1 with bias 4, so that each update keeps a slot of its
    own, slot 1 that of the state before the loop.

    uniform: fresh linear layers, which spread every update over all slots; each read shrinks the state to about
    1 / slots, and training is late. newest: reads weigh slot s + 1, so that a loop passes its update on (`direct`).
    anchor: reads weigh slots 1 and s + 1 alike, the mean of the state before the loop and of the last update (the
    Anchor topology, Eq. 5, halved). Loops over chunks lose the details of single tokens with `newest`.
    """
    found: dict[str, Tensor] = {}
    if loop.router_init in (None, "uniform"):
        return found
    for s, slots in enumerate(loop.router_sizes[::2]):
        for name, chosen in (
            ("writers", [s + 1]),
            ("readers", [1, s + 1] if loop.router_init == "anchor" else [s + 1]),
        ):
            bias = torch.zeros(slots)
            bias[chosen] = ROUTER_BIAS
            found[f"{name}.{s}.bias"] = bias
    return found


class Recurrence(nn.Module):
    """The parameters of a loop: scorers and allocators of the iterations with chunks, and MeSH's routers.

    Iterations at full resolution need no scorer or allocator: a softmax over a single slot is constant.
    """

    def __init__(self, loop: Loop, width: int) -> None:
        super().__init__()
        chunked = [t for t, g in enumerate(loop.chunks) if g > 1]
        scored, allocated = loop.downscale == "aggregate", loop.upscale == "allocate"
        # No bias: it would add the same to the score of every token of a chunk, which softmax cancels.
        self.scorers = nn.ModuleDict({str(t): nn.Linear(width, 1, bias=False) for t in chunked if scored})
        self.allocators = nn.ModuleDict({str(t): nn.Linear(width, loop.chunks[t]) for t in chunked if allocated})
        pairs = loop.router_sizes[::2]
        self.writers = nn.ModuleList(nn.Linear(width, slots) for slots in pairs)
        self.readers = nn.ModuleList(nn.Linear(width, slots) for slots in pairs)

    def run(
        self,
        loop: Loop,
        embedded: Tensor,
        entering: Tensor,
        body: Body,
        after: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """All iterations on whole sequences (B, L, W). embedded: the token embeddings. entering: the state before the
        loop. after: called with (iteration, new state) after each iteration."""
        state = Topology(self, loop, embedded, entering)
        for t in range(loop.iterations):
            state.update(t, self.iterate(loop, t, state.h, body))
            if after:
                after(t, state.h)
        return state.h

    def iterate(self, loop: Loop, t: int, h: Tensor, body: Body) -> Tensor:
        """The shifted update ũ (B, L, W) of iteration t on states h (B, L, W)."""
        if loop.chunks[t] == 1:
            return shifted(body(t, h), loop.shift_of(t))
        length, g, offset = h.shape[1], loop.chunks[t], loop.offset_of(t)
        n = loop.num_chunks(t, length)
        if n == 0:
            return torch.zeros_like(h)
        grid, filled = chunked(h, n, g, offset)
        spread = self.spread(loop, t, body(t, self.gather(loop, t, grid, filled))).flatten(1, 2)
        # The grid starts `offset` slots before the first token, so u[i] is at slot i + offset.
        return shifted(
            F.pad(spread[:, offset:], (0, 0, 0, max(0, length - n * g + offset)))[:, :length], loop.shift_of(t)
        )

    def gather(self, loop: Loop, t: int, grid: Tensor, filled: Tensor) -> Tensor:
        """Downscale (Eq. 16–18): (B, n, g, W) → (B, n, W). filled (B or 1, n, g): False on slots without a token."""
        if loop.downscale == "mean":
            count = loop.chunks[t] if loop.literal else filled.sum(-1, keepdim=True)
            return (grid * filled[..., None]).sum(2) / count
        # Some quantised layers take no more than three dimensions.
        scores = self.scorers[str(t)](grid.flatten(1, 2)).view(grid.shape[:3])
        weights = _shares(scores.masked_fill(~filled, float("-inf")))
        return (weights[..., None].to(grid.dtype) * grid).sum(2)

    def spread(self, loop: Loop, t: int, latents: Tensor) -> Tensor:
        """Upscale (Eq. 19–21): (B, n, W) → (B, n, g, W), with gain √g."""
        g = loop.chunks[t]
        if loop.upscale == "uniform":
            return (latents / math.sqrt(g))[:, :, None].expand(-1, -1, g, -1)
        shares = _shares(self.allocators[str(t)](latents)) * math.sqrt(g)
        return shares[..., None].to(latents.dtype) * latents[:, :, None]


def chunked(h: Tensor, n: int, g: int, offset: int) -> tuple[Tensor, Tensor]:
    """The first n chunks of h (B, L, W), after `offset` empty slots.

    Returns the grid (B, n, g, W) and the mask (1, n, g) of the slots that hold a token.
    """
    grid = F.pad(h, (0, 0, offset, 0))[:, : n * g]
    filled = torch.arange(n * g, device=h.device).view(1, n, g) >= offset
    return grid.unflatten(1, (n, g)), filled


def shifted(u: Tensor, by: int) -> Tensor:
    """u (B, L, W) shifted by `by` positions to the right, with zeros before (Eq. 22)."""
    return u if by == 0 else F.pad(u, (0, 0, by, 0))[:, : u.shape[1]]


def _shares(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, in fp32 at least."""
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))


class Topology:
    """How the updates u form the state h, for each of the topologies direct, anchor and mesh.

    MeSH's buffer of slots is not stored. Slot b would hold [b = 0] x + Σ_s w_s[b] u_s, so a read Σ_b r[b] m[b] equals
    r[0] x + Σ_s (r · w_s) u_s, which needs only T + 1 tensors (appendix B, Eq. 24–30).
    """

    def __init__(self, recurrence: Recurrence, loop: Loop, embedded: Tensor, entering: Tensor) -> None:
        self.kind, self.recurrence = loop.topology, recurrence
        self.embedded, self.start, self.h = embedded, entering, entering
        self.written: list[tuple[Tensor, Tensor]] = []
        if self.kind == "mesh":
            # The transitional cycle is routed by the embeddings (Eq. 25), iteration t by h(t) (Eq. 28).
            self._write_and_read(0, embedded, entering)

    def update(self, t: int, u: Tensor) -> None:
        """Set h to the state after iteration t, from its shifted update u."""
        if self.kind == "direct":
            self.h = u
        elif self.kind == "anchor":
            self.h = u + self.start
        else:
            self._write_and_read(t + 1, self.h, u)

    def _write_and_read(self, pair: int, routed_by: Tensor, value: Tensor) -> None:
        """Write `value` with writer `pair`, then set h to what reader `pair` reads."""
        write = _shares(self.recurrence.writers[pair](routed_by))
        read = _shares(self.recurrence.readers[pair](routed_by))
        self.written.append((write, value))
        h = read[..., :1].to(value.dtype) * self.embedded
        for weights, update in self.written:
            h = h + (read * weights).sum(-1, keepdim=True).to(value.dtype) * update
        self.h = h


# ---- decoding ----


CachedBody = Callable[[int, Tensor, Sequence[int]], Tensor]
"""(iteration, new latents (B, k, W), how many of each row are real) → latents after the layers."""


@dataclass
class LoopState:
    """The state of one loop. by_iteration: for each iteration, by name, `pending` (B, g, W), the states of the
    incomplete chunk, by slot, and `latents` (B, r, W), results of the last r chunks; or at full resolution with shift
    s, `delayed` (B, s, W), the last s updates. triggered: for each iteration, on how many chunks its body has run, over
    all rows."""

    by_iteration: list[dict[str, Tensor]]
    triggered: list[int]

    def selected(self, rows: Sequence[int]) -> LoopState:
        """A copy with these rows; it counts on from what has run."""
        copied = [{name: selected(tensor, rows) for name, tensor in kept.items()} for kept in self.by_iteration]
        return LoopState(copied, list(self.triggered))


def run_cached(
    recurrence: Recurrence,
    loop: Loop,
    state: LoopState,
    embedded: Tensor,
    entering: Tensor,
    counts: Sequence[int],
    lengths: Sequence[int],
    body: CachedBody,
) -> Tensor:
    """All iterations on new tokens (B, S, W); row r has `lengths[r]` of them, after `counts[r]` earlier tokens."""
    topology = Topology(recurrence, loop, embedded, entering)
    for t in range(loop.iterations):
        step = _full if loop.chunks[t] == 1 else _chunked
        topology.update(t, step(recurrence, loop, t, state, topology.h, counts, lengths, body))
    return topology.h


def _full(
    recurrence: Recurrence, loop: Loop, t: int, state: LoopState, h: Tensor,
    counts: Sequence[int], lengths: Sequence[int], body: CachedBody,
) -> Tensor:  # fmt: skip
    """The shifted update of new tokens at full resolution."""
    u, shift, kept = body(t, h, lengths), loop.shift_of(t), state.by_iteration[t]
    state.triggered[t] += sum(lengths)
    if shift == 0:
        return u
    before = kept.get("delayed", h.new_zeros(len(h), shift, h.shape[2]))
    both = torch.cat((before, u), dim=1)
    kept["delayed"] = _rows_from(both, lengths, shift)
    return both[:, : h.shape[1]]


def _chunked(
    recurrence: Recurrence, loop: Loop, t: int, state: LoopState, h: Tensor,
    counts: Sequence[int], lengths: Sequence[int], body: CachedBody,
) -> Tensor:  # fmt: skip
    """The shifted update of new tokens: run the body on the chunks that they complete, then read each token's chunk."""
    g, offset, shift = loop.chunks[t], loop.offset_of(t), loop.shift_of(t)
    kept, device = state.by_iteration[t], h.device
    first = [(count + offset) // g for count in counts]
    complete = [(c + n + offset) // g - f for c, n, f in zip(counts, lengths, first, strict=True)]
    num_kept = -(-shift // g) + 1
    pending = kept.get("pending", h.new_zeros(len(h), g, h.shape[2]))
    latents = kept.get("latents", h.new_zeros(len(h), num_kept, h.shape[2]))
    starts, seen = (moved(torch.tensor(numbers), device) for numbers in (first, counts))
    # Grid coordinates: slot a of a row holds token a − offset. Earlier tokens are in `pending`, new ones in h.
    both = torch.cat((pending, h), dim=1)

    def states_at(slots: Tensor) -> Tensor:
        """The states (B, k, W) at grid coordinates (B, k), from the incomplete chunk on."""
        earlier = slots < (seen + offset)[:, None]
        index = torch.where(earlier, slots - (starts * g)[:, None], slots - (seen + offset)[:, None] + g)
        index = index.clamp(0, both.shape[1] - 1)
        return both.gather(1, index[..., None].expand(-1, -1, both.shape[2]))

    most = max(complete)
    if most:
        slots = (starts * g)[:, None] + torch.arange(most * g, device=device)
        grid = states_at(slots).unflatten(1, (most, g))
        filled = (slots >= offset).unflatten(1, (most, g))
        new = body(t, recurrence.gather(loop, t, grid, filled), complete)
        latents = torch.cat((latents, new), dim=1)
        state.triggered[t] += sum(complete)
    begin = starts + moved(torch.tensor(complete), device)
    kept["pending"] = states_at((begin * g)[:, None] + torch.arange(g, device=device))
    kept["latents"] = _rows_from(latents, complete, num_kept)

    # Token i reads u[i − shift], which is a slot of a chunk; chunk p is at index num_kept + p − first of `latents`.
    source = seen[:, None] + torch.arange(h.shape[1], device=device) - shift + offset
    chunk, slot = source.div(g, rounding_mode="floor"), source.remainder(g)
    index = (num_kept + chunk - starts[:, None]).clamp(0, latents.shape[1] - 1)
    spread = recurrence.spread(loop, t, latents)
    rows = torch.arange(len(h), device=device)[:, None]
    reached = (source >= offset)[..., None]
    return torch.where(reached, spread[rows, index, slot], 0.0)


def _rows_from(values: Tensor, starts: Sequence[int], count: int) -> Tensor:
    """(B, count, W): `count` values of each row r, from index starts[r] on."""
    index = moved(torch.tensor(starts), values.device)[:, None] + torch.arange(count, device=values.device)
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))
