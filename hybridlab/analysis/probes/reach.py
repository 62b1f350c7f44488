"""The tokens that reach each output through a loop over resolutions (SpiralFormer, figure 1), from gradients.

hybridlab analyze RUN --probe reach
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.probe import SHOWN, Probe, Table
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.models.taps import Taps
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Place
from hybridlab.registry import PROBES


def measure(model: Transformer, corpus: Corpus, seq_len: int) -> dict[str, Any]:
    """`reach` on a short sequence of random tokens, since the connected positions do not depend on the text."""
    return reach(model, SHOWN) or {"skipped": "the plan does not have exactly one loop over iterations"}


def reach(model: Transformer, length: int, seed: int = 0) -> dict[str, Any] | None:
    """The input positions that affect the state of each position after every iteration: those with a gradient that is
    not exactly 0, on one random sequence of `length` tokens. None if the plan does not have exactly one loop."""
    if len(model.plan.loops) != 1:
        return None
    (loop,) = model.plan.loops.values()
    # The loop alone, directly after the embeddings, so that other layers mix no tokens.
    alone = model.with_plan(Plan((loop,), model.plan.num_layers, model.plan.parallel))
    tokens = torch.randint(model.shape.vocab, (1, length), generator=torch.Generator().manual_seed(seed))
    seen = _States()
    with torch.enable_grad():
        alone(tokens.to(next(model.parameters()).device), taps=seen)
        maps = [_dependence(state, seen.embedded) for state in seen.states]
    return {"length": length, "chunks": list(loop.chunks), "maps": maps}


class _States(Taps):
    """Stores the embeddings, as a leaf of the autograd graph, and the state after every iteration."""

    embedded: Tensor

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def on_embeddings(self, x: Tensor) -> Tensor:
        self.embedded = x.detach().requires_grad_()
        return self.embedded

    def on_iteration(self, place: Place, h: Tensor) -> None:
        self.states.append(h)


def _dependence(state: Tensor, embedded: Tensor) -> list[list[int]]:
    """[output][input]: 1 where the output's state depends on the input's embedding."""
    rows = []
    for i in range(state.shape[1]):
        probe = state[0, i] @ torch.linspace(0.5, 1.5, state.shape[2], device=state.device, dtype=state.dtype)
        (gradient,) = torch.autograd.grad(probe, embedded, retain_graph=True, allow_unused=True)
        dependence = torch.zeros(state.shape[1]) if gradient is None else gradient[0].abs().sum(-1)
        rows.append((dependence > 0).int().tolist())
    return rows


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A text picture for each iteration."""
    for t, (g, rows) in enumerate(zip(measured["chunks"], measured["maps"], strict=True)):
        yield f"after loop {t + 1} (chunks of {g}): rows are outputs, columns inputs that reach them"
        for row in rows:
            yield "".join("█" if value else "·" for value in row)


PROBES.add("reach", Probe(measure, report, needs_decoder="which earlier tokens reach a position"))
