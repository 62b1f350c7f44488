"""Attention refined by belief propagation on a GPU, as Triton kernels: the factors high and low, forward and backward,
in memory that grows linearly with the length.

FlexAttention cannot express it: it changes a score by a function of its row and key, and the messages that a row gets
are a sum over other rows, in a decoder a different one for each row.

Three passes go forward. The first finds the normaliser (log Σ exp) of each row. The second sums the messages
ℓ_ik = log1p((e^−λ − 1) A_ik) over the rows, by key. The third refines the rows and weighs the values. In an encoder and
in a leaking decoder the sums are over all rows. In a decoder row j gets those of earlier rows: SLOTS blocks of rows at
a time, the second pass notes the sums before each block and goes on from there, and the third adds the rows within a
block, as a product with a triangular matrix. So B·H·SLOTS·S sums exist at once, not B·H·S·S/BLOCK.

Backward everything is computed again from the normalisers. The blocks come last to first: of the sums over all rows,
what later ones have sent is subtracted, and the gradients of later rows are added up, since a message has the gradients
of all rows that it goes to. Then a pass over rows gives the gradient of q, and one over keys those of k and v.

    hybridlab pretrain --arch saobp-high --set runtime.kernel=triton --set runtime.device=cuda

Shape legend: B batch, H query heads, K KV heads, S positions, D head width.
"""

from __future__ import annotations

import math
import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hybridlab.attention.belief import WIDEST, Belief
from hybridlab.attention.belief.formula import factor, from_earlier
from hybridlab.attention.kernels import Visible, require_triton
from hybridlab.errors import UserError

SLOTS = 16
"""Blocks of a decoder's rows that are refined at once, each with a sum for every key."""


@torch.compiler.disable
def in_triton(q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> Tensor:
    """Refined attention by Triton kernels. q (B, H, S, D), k and v (B, K, S, D) in fp32, bf16 or fp16 → (B, H, S, D) in
    the type of v. UserError for a device, factor, head width or type that they do not compute."""
    if not _has_no_numbers(q):
        require_triton(q.device)
    belief.own_kernel("triton", q.shape[2], visible.causal)
    if q.shape[-1] > WIDEST:
        raise UserError(
            f"kernel triton computes heads of a width of {WIDEST} at most, not {q.shape[-1]}; use auto, blocks or eager"
        )
    if torch.promote_types(q.dtype, v.dtype) == torch.float64:
        raise UserError("kernel triton computes in fp32, not in fp64; use auto, blocks or eager")
    return _InTriton.apply(q, k, v, visible, belief)


@lru_cache(maxsize=1)
def can_be_built() -> bool:
    """Whether this GPU and this machine can build the kernels, which takes Triton and a C compiler. Models that were
    exported leave without them."""
    from torch.utils._triton import has_triton

    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and Path(__file__).with_name("triton_kernels.py").exists() and has_triton()


def _has_no_numbers(tensor: Tensor) -> bool:
    """Whether it is one of torch's FakeTensorMode, in which the memory of a step is counted. By its name, because the
    import of its class takes a second."""
    return type(tensor).__name__ == "FakeTensor"


class _InTriton(torch.autograd.Function):
    """`in_triton`, with gradients from q, k, v, the output, two normalisers of each row and the sums of messages."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> Tensor:
        q, k, v = (t.contiguous() for t in (q, k, v))
        launches = _Launches(q, k, v, visible, belief)
        out, saved = launches.forward()
        ctx.save_for_backward(q, k, v, out, *saved)
        ctx.visible, ctx.belief = visible, belief
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *saved = ctx.saved_tensors
        launches = _Launches(q, k, v, ctx.visible, ctx.belief)
        return *launches.backward(out, dout.contiguous(), _Saved(*saved)), None, None


class _Saved(NamedTuple):
    """Numbers by row or key, each (B, H, S): the normalisers of the scores and of the refined scores, and the messages
    of all rows about each key, in fp64."""

    prior: Tensor
    refined: Tensor
    sums: Tensor


class _Launches:
    """The kernels' launches on one device for q (B, H, S, D), k and v (B, K, S, D), all contiguous."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, belief: Belief) -> None:
        self.q, self.k, self.v = q, k, v
        self.batch, self.heads, self.length, width = q.shape
        self.kv_heads, self.group = k.shape[1], self.heads // k.shape[1]
        low = q.dtype == k.dtype == v.dtype and q.dtype.itemsize == 2
        tiles = tiles_of(width, low)
        self.blocks = -(-self.length // tiles["BLOCK"])
        self.causal, self.earlier, self.detached = visible.causal, from_earlier(belief, visible), belief.detach_messages
        self.slots = min(SLOTS, self.blocks) if self.earlier else 1
        valid, segments = visible.valid, visible.segments
        self.restrictions = (
            None if valid is None else valid.to(torch.uint8).contiguous(),
            None if segments is None else segments.contiguous(),
        )
        self.factors = _factors(visible, belief, q)
        self.sizes = (self.length, self.heads, self.group, 1 / math.sqrt(width))
        # Numbers of 16 bits are exact in TF32; what is computed from them keeps as many digits.
        precision = "tf32" if low else "ieee"
        self.settings = {**tiles, "D": width, "WIDTH": max(16, 1 << (width - 1).bit_length()), "PRECISION": precision}

    def forward(self) -> tuple[Tensor, _Saved]:
        """out (B, H, S, D), and what `backward` takes."""
        q, k, v = self.q, self.k, self.v
        prior, refined, sums = self._numbers(), self._numbers(), self._sums()
        out, before = torch.empty_like(q, dtype=v.dtype), self._slots()
        inputs = (*self.restrictions, prior)
        self._run("prior_normalisers", self.blocks, q, k, *inputs, *self.sizes, CAUSAL=self.causal)
        rules = {"CAUSAL": self.causal, "EARLIER": self.earlier}
        for first, stop in self._parts():
            span, place = (*self.sizes, first, stop, self.slots), (*self.sizes, first, self.slots)
            self._run("message_sums", self._keys(stop), q, k, *inputs, self.factors, sums, before, *span, **rules)
            outputs = (before if self.earlier else sums, refined, out)
            self._run("refined_rows", stop - first, q, k, v, *inputs, self.factors, *outputs, *place, **rules)
        return out, _Saved(prior, refined, sums)

    def backward(self, out: Tensor, dout: Tensor, saved: _Saved) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v from that of the output."""
        dq, dk, dv = (torch.empty_like(t) for t in (self.q, self.k, self.v))
        delta, mean, dsums = self._numbers(), self._numbers(), self._sums()
        sums, before, after = saved.sums.clone(), self._slots(), self._slots()
        self._run("output_products", self.blocks, out, dout, delta, self.length)
        inputs = (self.q, self.k, self.v, *self.restrictions, saved.prior, self.factors, saved.refined, dout, delta)
        rules = {"CAUSAL": self.causal, "EARLIER": self.earlier}
        detached = {**rules, "DETACHED": self.detached}
        for first, stop in reversed(self._parts()):
            span, place = (*self.sizes, first, stop, self.slots), (*self.sizes, first, self.slots)
            tables = (sums, dsums, before, after)
            self._run("gradient_sums", self._keys(stop), *inputs, *tables, *span, **rules)
            states = (before, after) if self.earlier else (sums, dsums)
            self._run("query_gradients", stop - first, *inputs, *states, mean, dq, *place, **detached)
        outputs = (saved.sums, dsums, mean, dk, dv)
        self._run("key_gradients", self.blocks, *inputs, *outputs, *self.sizes, shared=True, **detached)
        return dq, dk, dv

    def _run(self, kernel: str, blocks: int, *arguments: Any, shared: bool = False, **settings: Any) -> None:
        """Launch a program for each block of all pairs of a batch row and a head (shared: a KV head); none where the
        tensors have no numbers."""
        if _has_no_numbers(self.q):
            return
        from hybridlab.attention.belief import triton_kernels

        pairs = self.batch * (self.kv_heads if shared else self.heads)
        # Triton launches on torch's current device.
        with torch.cuda.device_of(self.q):
            getattr(triton_kernels, kernel)[(pairs, blocks)](*arguments, **self.settings, **settings)

    def _parts(self) -> list[tuple[int, int]]:
        """The first block and the one after the last of the rows that are refined at once."""
        if not self.earlier:
            return [(0, self.blocks)]
        return [(first, min(first + SLOTS, self.blocks)) for first in range(0, self.blocks, SLOTS)]

    def _keys(self, stop: int) -> int:
        """The blocks of keys that rows of the blocks before `stop` see."""
        return stop if self.causal else self.blocks

    def _numbers(self) -> Tensor:
        return self.q.new_empty(self.batch, self.heads, self.length, dtype=torch.float32)

    def _sums(self) -> Tensor:
        return self.q.new_zeros(self.batch, self.heads, self.length, dtype=torch.float64)

    def _slots(self) -> Tensor | None:
        """(B, H, SLOTS, S): sums by key for each block of a decoder's rows that are refined at once."""
        if not self.earlier:
            return None
        return self.q.new_empty(self.batch, self.heads, self.slots, self.length, dtype=torch.float32)


def tiles_of(width: int, low: bool) -> dict[str, int]:
    """Rows, and keys, of a tile (a power of two from 16 on, as products of Triton need), and the warps and stages that
    it is computed in. low: of 16 bits.

    The same backward as forward: messages within a tile are summed in TF32, and the normalisers of the one pass fit
    only what the other sums in the same way. Compiled for compute capability 9.0 by Triton 3.6 no kernel keeps more
    than 32 bytes of its registers in memory at heads of 64 and 128 numbers; tiles of 64 would keep 1,400 backward, and
    fp32 at 128 in tiles of 32 and three stages 6,000.
    """
    if low:
        return {"BLOCK": 32, "num_warps": 4, "num_stages": 3}
    return {"BLOCK": 32 if width <= 64 else 16, "num_warps": 8, "num_stages": 1}


def _factors(visible: Visible, belief: Belief, q: Tensor) -> Tensor:
    """e^−λ − 1 of each row (B, S), 0 for padding, which sends nothing."""
    batch, length = q.shape[0], q.shape[2]
    factors = q.new_empty(batch, length, dtype=torch.float32)
    # Some rows of the mask at a time: it is counted only if λ depends on the number of keys.
    step = 32 if belief.length_ref is not None else max(1, length)
    for start in range(0, length, step):
        rows = torch.arange(start, min(start + step, length), device=q.device)
        mask = visible.mask(rows, length) if belief.length_ref is not None else rows
        value = factor(mask, visible.causal, belief, torch.float32)
        factors[:, start : start + step] = value if isinstance(value, float) else value.reshape(-1, len(rows))
    return factors if visible.valid is None else factors * visible.valid
