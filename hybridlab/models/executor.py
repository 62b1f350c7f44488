"""The executor: one forward pass over a plan, visit by visit, with taps for analyses, and compiled for training.

`Execution` holds everything that belongs to one pass. It makes the `AttentionCall` of each visit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from hybridlab.attention.heads import Attended
from hybridlab.attention.kernels import compiled_for_each_size, moved
from hybridlab.errors import UserError
from hybridlab.models.blocks import AttentionCall, Block, HeadIndex, Rotary, Visited, head_index, rotary_of
from hybridlab.models.cache import KVCache, VisitCache
from hybridlab.models.recurrence import Recurrence, run_cached
from hybridlab.models.taps import Taps
from hybridlab.plan.loop import Loop
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Place, Visit

Recompute = bool | Literal["selective"]
"""What the backward pass recomputes of each visit: nothing (False), everything (True), or all but what takes long."""


@dataclass(frozen=True)
class Execution:
    """One forward pass of these blocks and recurrences, the latter by the index of their loop in the plan.

    positions: (S,) or (B, S). valid, segments: (B, S), see `Visible`. gates: layer → (K,) of its mixed heads. factors:
    place → (h,), the output of each query head of that visit is multiplied by it before W_O. need: attention weights to
    collect in `attended`. cache: keys and values of earlier passes. lengths: with a cache, the new tokens of each row.
    stride: positions per entry of the cache. indices: the heads of each visit on a device, as far as earlier passes
    have made them. rotary: tables that visits share, by what they depend on. recompute: see `Recompute`. compiled: run
    compiled branches, see `compiled`. at: (B,), with a cache of counts that are tensors, see `Transformer.step`.
    """

    structure: Structure
    blocks: Sequence[Block]
    recurrences: Mapping[int, Recurrence]
    positions: Tensor
    kernel: str = "auto"
    valid: Tensor | None = None
    segments: Tensor | None = None
    gates: dict[int, Tensor] | None = None
    factors: dict[Place, Tensor] = field(default_factory=dict)
    need: str = "none"
    taps: Taps | None = None
    cache: KVCache | None = None
    lengths: Sequence[int] = ()
    stride: int = 1
    indices: dict[tuple[Visit, torch.device], HeadIndex] = field(default_factory=dict)
    rotary: dict[object, Rotary] = field(default_factory=dict)
    recompute: Recompute = False
    compiled: bool = False
    at: Tensor | None = None
    attended: dict[Place, Attended] = field(default_factory=dict)

    def run(self, embedded: Tensor) -> Tensor:
        """Run the plan: embeddings (B, S, W) → the residual stream before the final norm (B, S, W)."""
        if self.taps:
            embedded = self.taps.on_embeddings(embedded)
        x = embedded
        for index, item in enumerate(self.structure.plan.visits):
            x = self.visit((index,), item, x) if isinstance(item, Visit) else self.loop(index, item, embedded, x)
            if self.taps:
                self.taps.on_item(index, x)
        return x

    # ---- loops ----

    def loop(self, index: int, loop: Loop, embedded: Tensor, x: Tensor) -> Tensor:
        """Run a loop on the state x (B, S, W). embedded: the token embeddings."""
        recurrence = self.recurrences[index]

        def body(t: int, z: Tensor, lengths: Sequence[int] = ()) -> Tensor:
            return self.on_latents(loop, t, z, lengths).body(index, loop, t, z)

        if self.cache is not None and self.at is None:
            state = self.cache.loops[index]
            return run_cached(recurrence, loop, state, embedded, x, self.cache.counts, self.lengths, body)
        taps = self.taps
        after = (lambda t, h: taps.on_iteration((index, t), h)) if taps else None
        return recurrence.run(loop, embedded, x, body, after)

    def body(self, index: int, loop: Loop, t: int, z: Tensor) -> Tensor:
        """Run the body of iteration t on latents z (B, n, W)."""
        for inner, visit in enumerate(loop.body(t)):
            z = self.visit((index, t, inner), visit, z)
        return z

    def on_latents(self, loop: Loop, t: int, z: Tensor, lengths: Sequence[int] = ()) -> Execution:
        """This pass with positions and padding of the latents z (B, n, W) of iteration t, one latent per chunk.

        A chunk that contains padding counts as padding. lengths, in decoding: how many latents each row has.
        """
        g, real = loop.chunks[t], None
        if g == 1:
            return self
        numbers = torch.arange(z.shape[1], device=z.device)
        if self.cache is None and self.valid is not None:
            real = numbers < ((self.valid.sum(1) + loop.offset_of(t)) // g)[:, None]
        elif self.cache is not None and set(lengths) != {z.shape[1]}:
            real = numbers < moved(torch.tensor(lengths), z.device)[:, None]
        stride = g if loop.positions == "token" else 1
        here = replace(self, positions=numbers * stride, stride=stride, rotary={})
        return replace(here, valid=real, lengths=lengths, segments=None)

    # ---- visits ----

    def visit(self, place: Place, visit: Visit, x: Tensor) -> Tensor:
        """Run one visit on x (B, S, W), through the taps if there are any."""
        if self.taps is not None:
            out = self.taps.run_visit(place, x, visit, lambda x: self._tapped(place, visit, x))
            self.taps.on_visit(place, x, out - x)
            return out
        block, mlp, trains = self.blocks[visit.layer], visit.part != "attention", torch.is_grad_enabled()
        call = self.call(place, visit, x.shape[1])
        # Passes without gradients have many sizes, and few repetitions.
        form = compiled if self.compiled and trains and self.cache is None else None
        if self.recompute and trains:
            x, attended = cast(Visited, _CHECKPOINTED[self.recompute](block.visit, x, call, mlp, None, form))
        else:
            x, attended = block.visit(x, call, mlp, None, form)
        self._keep(place, attended)
        return x

    def _tapped(self, place: Place, visit: Visit, x: Tensor) -> Tensor:
        """A visit whose branches the taps see. What observes or changes them is no part of a graph, and is not
        recomputed."""
        added = partial(cast(Taps, self.taps).on_branch, place)
        call = self.call(place, visit, x.shape[1])
        x, attended = self.blocks[visit.layer].visit(x, call, visit.part != "attention", added)
        self._keep(place, attended)
        return x

    def _keep(self, place: Place, attended: Attended | None) -> None:
        if attended is not None and attended.weights is not None:
            self.attended[place] = attended

    def rotary_at(self, stored: VisitCache | None, length: int, layer: int) -> Rotary:
        """The tables of a visit: of this pass's positions, or of the next `length` entries of its cache."""
        local = self.structure.shape.rope_is_local(layer)
        stored = stored if self.at is None else None
        key = (local, None) if stored is None else (local, (tuple(stored.counts), length))
        if key not in self.rotary:
            here = self.positions if stored is None else stored.positions(length, self.positions.device) * self.stride
            self.rotary[key] = rotary_of(self.structure.shape, here, layer)
        return self.rotary[key]

    def call(self, place: Place, visit: Visit, length: int) -> AttentionCall | None:
        """The arguments of the attention of a visit to `length` tokens; None if it has none."""
        if visit.part == "mlp":
            return None
        known = (visit, self.positions.device)
        if known not in self.indices:
            self.indices[known] = head_index(self.structure, *known)
        stored = None if self.cache is None else self.cache.visits[place]
        gate = None if self.gates is None else self.gates.get(visit.layer)
        if gate is not None and len(kv := self.structure.heads(visit).kv) < len(gate):
            gate = gate[list(kv)]
        return AttentionCall(
            self.indices[known],
            self.rotary_at(stored, length, visit.layer),
            self.kernel,
            self.valid,
            self.segments,
            self.need,
            gate,
            self.factors.get(place),
            stored,
            self.structure.causal,
            self.at,
            self.lengths,
        )


# ---- activation checkpointing ----


_aten = torch.ops.aten
_STORED = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}
"""The operators whose results selective checkpointing stores: linear layers and fused attention."""


def _policy(context: Any, operator: Any, *inputs: Any, **settings: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _STORED else CheckpointPolicy.PREFER_RECOMPUTE


_CHECKPOINTED: dict[Recompute, Callable[..., Any]] = {
    True: partial(checkpoint, use_reentrant=False),
    "selective": partial(
        checkpoint, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, _policy)
    ),
}
"""What calls a function whose activations the backward pass recomputes."""


# ---- compiled branches ----


Branch = TypeVar("Branch", bound=Callable[..., object])
NOT_COMPILED = ("xformers",)
"""Kernels that bring compiled code of their own, which cannot be a part of the block's graph."""


@cache
def compiled(branch: Branch, in_cuda_graphs: bool = False) -> Branch:
    """A method of a block, compiled for each new combination of sizes when it first occurs. in_cuda_graphs: launch its
    kernels all at once, on a GPU; torch leaves this out where a graph holds what it cannot launch so.

    A graph belongs to a branch, to the sizes of its tensors, and to the kinds of attention with the number of heads of
    each. It takes the block's weights and the indices of its heads as arguments, so that equal blocks share one graph,
    whatever their number, and a change of plan needs none as long as no new size occurs.
    """
    mode = "reduce-overhead" if in_cuda_graphs else None
    return cast(Branch, compiled_for_each_size(branch, mode=mode))


def require_compiler(kernel: str, device: torch.device, setting: str = "runtime.compile") -> None:
    """UserError if blocks with this kernel cannot be compiled for this device, which takes a C++ compiler, and on a GPU
    Triton too. setting: what asks for it."""
    # Imported here, because it takes seconds.
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if kernel in NOT_COMPILED:
        raise UserError(
            f"{setting} has no effect with kernel {kernel}, whose code is compiled already; use another "
            f"runtime.kernel, or leave {setting} out"
        )
    if device.type == "cuda" and not has_triton():
        raise UserError(f"{setting} needs Triton on a GPU; pip install triton, or leave {setting} out")
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(
            f"{setting} needs a C++ compiler, and there is none here; install g++ or name one in the variable CXX, or "
            f"leave {setting} out"
        ) from None
