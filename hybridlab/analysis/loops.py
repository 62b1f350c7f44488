"""How attention changes from one iteration of a loop to the next (SpiralFormer, section 4 and appendix I).

    hybridlab analyze RUN --probe loops

Key-marginal entropy: the entropy of the attention that each key receives, averaged over queries, divided by log L_t.
Local attention mass: the attention that goes to the M_t = ⌈32 r_t⌉ keys before a query, its own left out (Eq. 23).
Dynamic heads: the 40 % whose value moves most over the iterations, chosen for each metric.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder, Taps, draw_weights
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan

LOCAL_TOKENS = 32
"""γ: the local window in tokens."""
DYNAMIC_SHARE = 0.4


def key_marginal_entropy(weights: Tensor) -> Tensor:
    """Attention (B, H, n, n) → (B, H), in [0, 1]; 0 where there is only one key."""
    n = weights.shape[-1]
    received = weights.float().mean(2)
    return -torch.xlogy(received, received).sum(-1) / math.log(n) if n > 1 else received.new_zeros(received.shape[:2])


def local_attention_mass(weights: Tensor, chunk: int) -> Tensor:
    """Attention (B, H, n, n) at chunk size g → (B, H): mass on the ⌈32 / g⌉ keys before each query."""
    n, reach = weights.shape[-1], math.ceil(LOCAL_TOKENS / chunk)
    query = torch.arange(n, device=weights.device)[:, None]
    key = torch.arange(n, device=weights.device)[None, :]
    near = (key < query) & (key >= query - reach)
    return (weights.float() * near).sum(-1).mean(-1)


def loop_statistics(model: Decoder, batches: Iterable[Tensor]) -> dict[str, Any] | None:
    """Both metrics of every head of the body of the plan's first loop in every iteration, averaged over all sequences of
    `batches`, each (B, S). None where the plan has no loop."""
    if not model.plan.loops:
        return None
    index, loop = next(iter(model.plan.loops.items()))
    rows = len(_whole_attention(loop, 0))
    if not rows or any(len(_whole_attention(loop, t)) != rows for t in range(loop.iterations)):
        raise UserError("the loop's iterations do not all have the same layers with all of their heads")
    sums: dict[tuple[int, int], Tensor] = {}
    count = 0
    with torch.no_grad():
        for tokens in batches:
            attention = model(tokens, need="full").attention
            for t in range(loop.iterations):
                for row, (inner, _) in enumerate(_whole_attention(loop, t)):
                    weights = attention.get((index, t, inner))
                    if weights is None:
                        raise UserError(f"sequences of {tokens.shape[1]} tokens fill no chunk of {loop.chunks[t]}")
                    found = torch.stack((key_marginal_entropy(weights), local_attention_mass(weights, loop.chunks[t])))
                    sums[t, row] = sums.get((t, row), 0) + found.sum(1).cpu()
            count += len(tokens)
    table = torch.stack([torch.stack([sums[t, row] for row in range(rows)]) for t in range(loop.iterations)]) / count
    values = {"entropy": table[:, :, 0], "local_mass": table[:, :, 1]}
    return {
        "sequences": count,
        "length": tokens.shape[1],
        "chunks": list(loop.chunks),
        "layers": [visit.layer for _, visit in _whole_attention(loop, 0)],
        **{name: _described(found) for name, found in values.items()},
    }


def _whole_attention(loop: Loop, t: int) -> list[tuple[int, Any]]:
    """The body's visits whose attention runs all heads: one for each of its layers."""
    return [(i, v) for i, v in enumerate(loop.body(t)) if v.part != "mlp" and v.heads is None]


def described_fresh(model: Decoder, batches: Iterable[Tensor]) -> dict[str, Any]:
    """The same values for the model with freshly drawn weights: what the shape of causal attention at each resolution
    gives before anything is learned."""
    fresh = copy.deepcopy(model)
    draw_weights(fresh, 0)
    found = loop_statistics(fresh, batches)
    return {name: found[name]["values"] for name in ("entropy", "local_mass")}


def _described(values: Tensor) -> dict[str, Any]:
    """values (T, layers, H): the numbers, their range over the iterations, the dynamic heads, and means by iteration."""
    spread = values.amax(0) - values.amin(0)
    count = max(1, round(DYNAMIC_SHARE * spread.numel()))
    dynamic = torch.zeros(spread.numel(), dtype=torch.bool)
    dynamic[spread.flatten().argsort(descending=True, stable=True)[:count]] = True
    dynamic = dynamic.view(spread.shape)
    return {
        "values": [[[round(v, 5) for v in row] for row in table] for table in values.tolist()],
        "range": [[round(v, 5) for v in row] for row in spread.tolist()],
        "dynamic": dynamic.tolist(),
        "means": [float(table.mean()) for table in values],
        "dynamic_means": [float(table[dynamic].mean()) for table in values],
    }


# ---- which tokens reach which outputs ----


def reach(model: Decoder, length: int, seed: int = 0) -> dict[str, Any] | None:
    """Which input positions can change the state of each position after every iteration, from gradients.

    One random sequence of `length` tokens; a position counts where its gradient is not exactly 0. None where the plan
    does not have exactly one loop.
    """
    if len(model.plan.loops) != 1:
        return None
    (loop,) = model.plan.loops.values()
    # The loop alone, right after the embeddings: what other layers mix is theirs.
    alone = model.with_plan(Plan((loop,), model.plan.num_layers, model.plan.parallel))
    tokens = torch.randint(model.shape.vocab, (1, length), generator=torch.Generator().manual_seed(seed))
    device = next(model.parameters()).device
    embedded = model.embedding(tokens.to(device)).detach().requires_grad_()
    seen = _States()
    handle = alone.embedding.register_forward_hook(lambda *_: embedded)
    with torch.enable_grad():
        try:
            alone(tokens.to(device), taps=seen)
        finally:
            handle.remove()
        maps = [_dependence(state, embedded) for state in seen.states]
    return {"length": length, "chunks": list(loop.chunks), "maps": maps}


class _States(Taps):
    """The state after every iteration."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def on_iteration(self, place: tuple[int, int], h: Tensor) -> None:
        self.states.append(h)


def _dependence(state: Tensor, embedded: Tensor) -> list[list[int]]:
    """[output][input]: 1 where the output's state depends on the input's embedding."""
    rows = []
    for i in range(state.shape[1]):
        probe = state[0, i] @ torch.linspace(0.5, 1.5, state.shape[2], device=state.device, dtype=state.dtype)
        (gradient,) = torch.autograd.grad(probe, embedded, retain_graph=True, allow_unused=True)
        reached = torch.zeros(state.shape[1]) if gradient is None else gradient[0].abs().sum(-1)
        rows.append((reached > 0).int().tolist())
    return rows
