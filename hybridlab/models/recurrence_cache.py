"""Recursion token by token: chunk-triggered decoding (SpiralFormer, algorithm 2), for any batch, length and split.

For every iteration with chunks a row keeps the states of its incomplete chunk, its last latents (as many as the shift
reaches back over), and how many tokens it has seen. The body runs only on chunks that new tokens complete; its keys and
values lie in ordinary cache slots, one entry for each chunk. What is missing from the first chunk is masked, as it is
on whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridlab.models.recurrence import Recurrence, Topology
from hybridlab.plan.loop import Loop

CachedBody = Callable[[int, Tensor, Tensor | None], Tensor]
"""(iteration, new latents (B, k, W), which of them are real (B, k) or None for all) → latents after the layers."""


@dataclass
class IterationState:
    """pending (B, g, W): the states of the incomplete chunk, by slot. latents (B, r, W): the last r chunks' results.
    delayed (B, s, W): at full resolution, the last s updates, still to be moved to the right."""

    pending: Tensor | None = None
    latents: Tensor | None = None
    delayed: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.pending, self.latents, self.delayed) if t is not None]


@dataclass
class LoopState:
    """One loop's memory. triggered: by iteration, how many chunks its body has run on, over all rows."""

    iterations: int
    by_iteration: list[IterationState] = field(init=False)
    triggered: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.by_iteration = [IterationState() for _ in range(self.iterations)]
        self.triggered = [0] * self.iterations

    def tensors(self) -> list[Tensor]:
        return [tensor for state in self.by_iteration for tensor in state.tensors()]


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
    """All iterations on new tokens (B, S, W) of which row r has `lengths[r]`, after `counts[r]` earlier ones."""
    topology = Topology(recurrence, loop, embedded, entering)
    for t in range(loop.iterations):
        step = _full if loop.chunks[t] == 1 else _chunked
        topology.update(t, step(recurrence, loop, t, state, topology.h, counts, lengths, body))
    return topology.h


def _full(
    recurrence: Recurrence, loop: Loop, t: int, state: LoopState, h: Tensor,
    counts: Sequence[int], lengths: Sequence[int], body: CachedBody,
) -> Tensor:  # fmt: skip
    """An iteration at full resolution, with its last updates kept where they are shifted."""
    mask = None if set(lengths) == {h.shape[1]} else _below(lengths, h.shape[1], h.device)
    u, shift, mine = body(t, h, mask), loop.shift_of(t), state.by_iteration[t]
    state.triggered[t] += sum(lengths)
    if shift == 0:
        return u
    before = h.new_zeros(len(h), shift, h.shape[2]) if mine.delayed is None else mine.delayed
    both = torch.cat((before, u), dim=1)
    mine.delayed = _rows_from(both, lengths, shift)
    return both[:, : h.shape[1]]


def _chunked(
    recurrence: Recurrence, loop: Loop, t: int, state: LoopState, h: Tensor,
    counts: Sequence[int], lengths: Sequence[int], body: CachedBody,
) -> Tensor:  # fmt: skip
    """The shifted update of new tokens: run the body on the chunks that they complete, then read what reaches them."""
    g, offset, shift = loop.chunks[t], loop.offset_of(t), loop.shift_of(t)
    mine, device = state.by_iteration[t], h.device
    first = [(count + offset) // g for count in counts]
    complete = [(c + n + offset) // g - f for c, n, f in zip(counts, lengths, first, strict=True)]
    kept = -(-shift // g) + 1
    if mine.pending is None:
        mine.pending = h.new_zeros(len(h), g, h.shape[2])
        mine.latents = h.new_zeros(len(h), kept, h.shape[2])
    column = {"device": device}
    starts, seen = torch.tensor(first, **column), torch.tensor(counts, **column)
    # Grid coordinates: slot a of a row holds token a − ω. Slots of earlier tokens lie in `pending`, the others in h.
    both = torch.cat((mine.pending, h), dim=1)

    def fetched(slots: Tensor) -> Tensor:
        """The states at grid coordinates (B, k) of the incomplete chunk or after it."""
        earlier = slots < (seen + offset)[:, None]
        place = torch.where(earlier, slots - (starts * g)[:, None], slots - (seen + offset)[:, None] + g)
        place = place.clamp(0, both.shape[1] - 1)
        return both.gather(1, place[..., None].expand(-1, -1, both.shape[2]))

    latents, most = mine.latents, max(complete)
    if most:
        slots = (starts * g)[:, None] + torch.arange(most * g, **column)
        grid = fetched(slots).unflatten(1, (most, g))
        there = (slots >= offset).unflatten(1, (most, g))
        real = None if set(complete) == {most} else _below(complete, most, device)
        new = body(t, recurrence.gather(loop, t, grid, there), real)
        latents = torch.cat((latents, new), dim=1)
        state.triggered[t] += sum(complete)
    begin = starts + torch.tensor(complete, **column)
    mine.pending = fetched((begin * g)[:, None] + torch.arange(g, **column))
    mine.latents = _rows_from(latents, complete, kept)

    # Token i reads u[i − s], slot ρ of chunk π; chunk p lies at kept + p − first.
    source = seen[:, None] + torch.arange(h.shape[1], **column) - shift + offset
    chunk, slot = source.div(g, rounding_mode="floor"), source.remainder(g)
    place = (kept + chunk - starts[:, None]).clamp(0, latents.shape[1] - 1)
    spread = recurrence.spread(loop, t, latents)
    rows = torch.arange(len(h), **column)[:, None]
    reached = (source >= offset)[..., None]
    return torch.where(reached, spread[rows, place, slot], 0.0)


def _below(limits: Sequence[int], size: int, device: torch.device) -> Tensor:
    """(B, size): True on the first limits[r] places of row r."""
    return torch.arange(size, device=device)[None] < torch.tensor(limits, device=device)[:, None]


def _rows_from(values: Tensor, starts: Sequence[int], count: int) -> Tensor:
    """(B, count, W): row r's values from place starts[r] on."""
    place = torch.tensor(starts, device=values.device)[:, None] + torch.arange(count, device=values.device)
    return values.gather(1, place[..., None].expand(-1, -1, values.shape[2]))
