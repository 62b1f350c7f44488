"""Loops in decoding: the body of an iteration runs only when a chunk is complete (SpiralFormer, algorithm 2).

New tokens may come one at a time or many at once, in rows of different length. For every iteration with chunks a row
stores the states of its incomplete chunk and its last latents (as many as the shift reaches back). The keys and values
of the body are in ordinary cache slots, one entry per chunk. Empty slots of the first chunk are masked, as on whole
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridlab.attention.slots import selected
from hybridlab.models.recurrence import Recurrence, Topology
from hybridlab.plan.loop import Loop

CachedBody = Callable[[int, Tensor, Tensor | None], Tensor]
"""(iteration, new latents (B, k, W), mask of the real ones (B, k) or None for all) → latents after the layers."""


@dataclass
class LoopState:
    """The state of one loop. by_iteration: for each iteration, by name, `pending` (B, g, W), the states of the
    incomplete chunk, by slot, and `latents` (B, r, W), results of the last r chunks; or at full resolution with shift
    s, `delayed` (B, s, W), the last s updates. triggered: for each iteration, on how many chunks its body has run, over
    all rows."""

    by_iteration: list[dict[str, Tensor]]
    triggered: list[int]

    def tensors(self) -> list[Tensor]:
        return [tensor for kept in self.by_iteration for tensor in kept.values()]

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
    mask = None if set(lengths) == {h.shape[1]} else _below(lengths, h.shape[1], h.device)
    u, shift, kept = body(t, h, mask), loop.shift_of(t), state.by_iteration[t]
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
    starts, seen = torch.tensor(first, device=device), torch.tensor(counts, device=device)
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
        real = None if set(complete) == {most} else _below(complete, most, device)
        new = body(t, recurrence.gather(loop, t, grid, filled), real)
        latents = torch.cat((latents, new), dim=1)
        state.triggered[t] += sum(complete)
    begin = starts + torch.tensor(complete, device=device)
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


def _below(limits: Sequence[int], size: int, device: torch.device) -> Tensor:
    """(B, size): True on the first limits[r] entries of row r."""
    return torch.arange(size, device=device)[None] < torch.tensor(limits, device=device)[:, None]


def _rows_from(values: Tensor, starts: Sequence[int], count: int) -> Tensor:
    """(B, count, W): `count` values of each row r, from index starts[r] on."""
    index = torch.tensor(starts, device=values.device)[:, None] + torch.arange(count, device=values.device)
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))
