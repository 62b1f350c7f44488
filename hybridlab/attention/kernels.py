"""Attention kernels: softmax(q kᵀ / √d) v, causal or not, with or without a window.

`eager` is the plain formula, the reference for tests of the others; `sdpa` is torch's fused kernel; `banded` computes
a window in O(S·w) time and memory, forward and backward, without an S × S mask; `blocks` is `banded` with the plain
formula in each block; `flex` is torch's flex_attention (forward and backward on a GPU, forward only on a CPU);
`xformers` needs a GPU and the extra `gpu`; `triton` is for kinds that bring a kernel of this name.

Shape legend: B batch, H query heads, K KV heads, S positions, D head width, w window.
"""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from hybridlab.attention.kinds import BANDED, AttentionKind, band_block
from hybridlab.errors import UserError

Rule = Callable[[Tensor, Tensor], Tensor]
"""(positions of queries, positions of keys), broadcast together → True where the query may see the key."""


_QUERIES_AT_ONCE = 1024
_WITH_KEYS: set[str] = set()
"""Rules, with their settings, of which it is known that every query has a key."""


@dataclass(frozen=True)
class Visible:
    """Restrictions on the keys that a query may see.

    window: the last `window` keys, the query's own included, and in an encoder as many on the other side; None for all.
    rule: a further condition of an attention kind. valid: (B, S) bool, False on padding. segments: (B, S) int, a query
    sees only keys of the same segment. causal: a query sees no later key. cap: see `capped`; of the scores of the keys
    that it sees.
    """

    window: int | None = None
    valid: Tensor | None = None
    segments: Tensor | None = None
    rule: Rule | None = None
    causal: bool = True
    cap: float | None = None

    @property
    def per_row(self) -> bool:
        """Whether the mask differs between the rows of a batch."""
        return self.valid is not None or self.segments is not None

    def mask(self, positions: Tensor, num_keys: int) -> Tensor:
        """True where the query at a position sees key j: (Q, S), or (B, 1, Q, S) if rows differ.

        positions: (Q,), or (B, Q) if each row has its own.
        """
        key = torch.arange(num_keys, device=positions.device)
        query = positions[..., None]
        seen = self.allows(query, key)
        own = key == query
        if positions.dim() == 2:
            seen, own = seen[:, None], own[:, None]
        if self.segments is not None:
            rows = positions if positions.dim() == 2 else positions.expand(len(self.segments), -1)
            same = self.segments.gather(1, rows)[:, :, None] == self.segments[:, None, :]
            seen = seen & same[:, None]
        if self.valid is not None:
            # A padded query sees its own key, so that no row of the softmax is empty.
            seen = seen & (self.valid[:, None, None, :] | own)
        return seen

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """True where positions alone let a query see a key; the two are broadcast together."""
        seen = (key <= query) | (not self.causal)
        if self.window is not None:
            seen = seen & (key > query - self.window)
            if not self.causal:
                seen = seen & (key < query + self.window)
        return seen if self.rule is None else seen & self.rule(query, key)


def require_keys(rule: Rule, window: int | None, causal: bool, length: int) -> None:
    """UserError if a rule leaves a query without keys, whose softmax would not be a number. It is looked at once for
    each sequence length and all that the rule reads, which is compared as text, since a list has no hash."""
    code, closure = getattr(rule, "__code__", rule), getattr(rule, "__closure__", None) or ()
    read = [getattr(rule, "__self__", None), *(cell.cell_contents for cell in closure)]
    key = repr((code, read, window, causal, length))
    if key in _WITH_KEYS:
        return
    visible, keys = Visible(window, rule=rule, causal=causal), torch.arange(length)
    for start in range(0, length, _QUERIES_AT_ONCE):
        queries = torch.arange(start, min(start + _QUERIES_AT_ONCE, length))
        empty = ~visible.allows(queries[:, None], keys).expand(len(queries), length).any(1)
        if empty.any():
            name = getattr(rule, "__qualname__", type(rule).__qualname__)
            raise UserError(
                f"the rule {name} of an attention kind hides every key from the query at position "
                f"{start + int(empty.nonzero()[0])}; let each query see at least its own position"
            )
    _WITH_KEYS.add(key)


def eager(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """The plain formula. q (B, H, S, D), k and v (B, K, S, D) → (B, H, S, D)."""
    return plain(q, k, v, visible.mask(_all_positions(q), k.shape[2]), visible.cap)


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, cap: float | None = None) -> Tensor:
    """The plain formula under any mask. seen: True where a query sees a key, (Q, S) or with further dimensions. cap:
    see `capped`."""
    weights = torch.softmax(scores_under(q, k, seen, cap), dim=-1)
    return grouped_product(weights.to(v.dtype), v)


def probabilities(q: Tensor, k: Tensor, visible: Visible, positions: Tensor | None = None) -> Tensor:
    """Attention weights in fp32, (B, H, Q, S). positions: see `Visible.mask`; by default all S."""
    with torch.autocast(q.device.type, enabled=False):
        seen = visible.mask(_all_positions(q) if positions is None else positions, k.shape[2])
        return torch.softmax(scores_under(q.float(), k.float(), seen, visible.cap), dim=-1)


def at_least_fp32(t: Tensor) -> Tensor:
    """A tensor in fp32, or in fp64 if it has that."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def moved(t: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. From pinned memory a GPU takes it while the processor goes on."""
    if device.type == "cuda" and t.device.type == "cpu":
        return t.contiguous().pin_memory().to(device, non_blocking=True)
    return t.to(device)


def has_autocast(device: str) -> bool:
    """Whether autocast knows this type of device. (torch 2.11 cannot compile `torch.amp.is_autocast_available`.)"""
    return device != "meta"


def capped(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap), which stays between −cap and cap (Gemma 2); x itself without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def scores_under(q: Tensor, k: Tensor, seen: Tensor, cap: float | None = None) -> Tensor:
    """q kᵀ / √d (B, H, Q, S), `capped`, and −∞ where a key is hidden. q (B, H, Q, D), k (B, K, S, D)."""
    batch, heads, num_queries, width = q.shape
    kv_heads, num_keys = k.shape[1], k.shape[2]
    grouped = (q / math.sqrt(width)).reshape(batch, kv_heads, heads // kv_heads * num_queries, width)
    scores = capped((grouped @ k.transpose(-1, -2)).view(batch, heads, num_queries, num_keys), cap)
    hidden = ~seen
    return scores + torch.zeros(hidden.shape, dtype=scores.dtype, device=q.device).masked_fill_(hidden, float("-inf"))


def _all_positions(q: Tensor) -> Tensor:
    return torch.arange(q.shape[2], device=q.device)


def grouped_product(weights: Tensor, v: Tensor) -> Tensor:
    """weights (B, H, Q, S) times v (B, K, S, D) → (B, H, Q, D)."""
    batch, heads, num_queries, num_keys = weights.shape
    kv_heads = v.shape[1]
    rows = weights.reshape(batch, kv_heads, heads // kv_heads * num_queries, num_keys)
    return (rows @ v).view(batch, heads, num_queries, v.shape[-1])


def sdpa(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """torch's fused attention; masks are 2-d or 4-d: a 3-d mask would not use its fast path."""
    if visible.window is None and visible.rule is None and not visible.per_row:
        return fused(q, k, v, causal=visible.causal)
    return fused(q, k, v, visible.mask(_all_positions(q), k.shape[2]))


def banded(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """A window in blocks: each block of b ≥ w queries attends to the same and the previous block of keys."""
    return _in_blocks("banded", fused, q, k, v, visible)


# ---- torch's fused attention ----


def fused(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None, causal: bool = False) -> Tensor:
    """torch's scaled_dot_product_attention: (B, H, Q, D) of q (B, H, Q, D) and k, v (B, K, S, D). seen: True where a
    query sees a key, (Q, S), (B, 1, Q, S) or (B, H, Q, S); None for all keys, or with `causal` for those before it.

    On an NVIDIA GPU the backend is one of `cuda_backends`. Those that take a mask, or fp32, know no KV head that serves
    several query heads: keys and values are repeated, or, where that takes less memory, the queries of one KV head
    become one longer query with a longer mask."""
    group = q.shape[1] // k.shape[1]
    if q.device.type != "cuda":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal, enable_gqa=group > 1)
    training = torch.is_grad_enabled() and q.requires_grad
    backends = cuda_backends(q.dtype != torch.float32, seen is not None, causal and training)
    with sdpa_kernel(list(backends), set_priority=True):
        # Bytes for each further query head of a KV head: of a mask, which torch copies in 16 bits; of keys and values.
        if group > 1 and seen is not None and 3 * seen.numel() <= 4 * k.numel():
            rows, mask = one_query_for_each_kv_head(q, k.shape[1], seen)
            return F.scaled_dot_product_attention(rows, k, v, attn_mask=mask).reshape(q.shape)
        if group > 1 and SDPBackend.FLASH_ATTENTION not in backends:
            k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        grouped = q.shape[1] > k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal, enable_gqa=grouped)


def cuda_backends(low_precision: bool, masked: bool, trained_causally: bool) -> tuple[SDPBackend, ...]:
    """The backends of torch's fused attention on an NVIDIA GPU, the first that can compute it is taken:

    | precision | mask | causal training | other |
    | --- | --- | --- | --- |
    | bf16, fp16 | none | cuDNN, flash, efficient, math | flash, efficient, math |
    | bf16, fp16 | any | efficient, math | efficient, math |
    | fp32 | none or any | efficient, math | efficient, math |

    torch (from 2.11 on) asks cuDNN first on Hopper. That is the fastest in training, but under a mask its gradients
    become NaN (pytorch issue 196678: lengths that leave 64 of 128, and a row whose log-sum-exp is below −88.7), it
    makes a plan of about half a second for every new shape, which generation meets at every length, and in decoding its
    results were wrong with fewer than eight KV heads (pytorch issue 193893). Flash takes neither masks nor fp32."""
    if masked or not low_precision:
        return SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH
    first = (SDPBackend.CUDNN_ATTENTION,) if trained_causally else ()
    return *first, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH


def one_query_for_each_kv_head(q: Tensor, kv_heads: int, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The g queries of each KV head one after the other, (B, K, g·Q, D), and their mask, (1 or B, 1 or K, g·Q, S).
    seen: as in `fused`, the same for all query heads of a KV head."""
    batch, heads, length, width = q.shape
    group = heads // kv_heads
    mask = seen.expand(1, 1, -1, -1) if seen.dim() == 2 else seen if seen.shape[1] == 1 else seen[:, ::group]
    return q.reshape(batch, kv_heads, group * length, width), mask.repeat(1, 1, group, 1)


def blocks(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """As `banded`, with the plain formula in each block. On a CPU it is faster, in bf16 by far."""
    return _in_blocks("blocks", partial(plain, cap=visible.cap), q, k, v, visible)


def _in_blocks(
    name: str, attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, visible: Visible
) -> Tensor:
    """A window in blocks. attention: of (q, k, v, mask), with the blocks as batch."""
    if visible.window is None or visible.rule is not None or not visible.causal:
        raise UserError(f"kernel {name} computes a decoder's windows only, without a rule; use eager or sdpa")
    batch, heads, length, width = q.shape
    block = band_block(visible.window)
    if length <= block:
        return sdpa(q, k, v, visible) if visible.cap is None else eager(q, k, v, visible)
    num_blocks = -(-length // block)
    tail = num_blocks * block - length
    queries = F.pad(q, (0, 0, 0, tail)).view(batch, heads, num_blocks, block, width)
    # Blocks are the batch dimension, and rows are merged with heads: one mask (n, 1, b, 2b) then serves all rows.
    queries = queries.permute(2, 0, 1, 3, 4).reshape(num_blocks, batch * heads, block, width)
    keys, values = (_previous_and_own(t, num_blocks, block, tail) for t in (k, v))
    mask = _band_mask(visible, num_blocks, block, q)
    out = attention(queries, keys, values, mask)
    out = out.view(num_blocks, batch, heads, block, width).permute(1, 2, 0, 3, 4)
    return out.reshape(batch, heads, num_blocks * block, width)[:, :, :length]


def _previous_and_own(t: Tensor, num_blocks: int, block: int, tail: int) -> Tensor:
    """(B, K, S, D) → (n, B·K, 2b, D): each block of keys after the previous one (zeros before the first)."""
    batch, kv_heads, _, width = t.shape
    padded = F.pad(t, (0, 0, block, tail)).view(batch * kv_heads, num_blocks + 1, block, width)
    pairs = torch.cat((padded[:, :-1], padded[:, 1:]), dim=2)
    return pairs.transpose(0, 1)


def _band_mask(visible: Visible, num_blocks: int, block: int, q: Tensor) -> Tensor:
    """(n, 1, b, 2b), or (n, B·H, b, 2b) if rows differ: True where a query of a block sees a key of its two blocks."""
    starts = torch.arange(0, num_blocks * block, block, device=q.device)[:, None]
    query = starts + torch.arange(block, device=q.device)
    key = starts + torch.arange(-block, block, device=q.device)
    mask = (visible.allows(query[:, :, None], key[:, None]) & (key[:, None] >= 0))[:, None]
    if not visible.per_row:
        return mask
    # What stands beyond the last position is that of the last one: no real query sees such a key.
    queries, keys = query.clamp(max=q.shape[2] - 1), key.clamp(0, q.shape[2] - 1)
    if visible.segments is not None:
        same = visible.segments[:, queries][..., None] == visible.segments[:, keys][:, :, None]
        mask = mask & same.transpose(0, 1)
    if visible.valid is not None:
        own = key[:, None] == query[:, :, None]
        mask = mask & (visible.valid[:, keys].transpose(0, 1)[:, :, None] | own[:, None])
    return mask.expand(-1, len(q), -1, -1).repeat_interleave(q.shape[1], dim=1)


def flex(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """torch's flex_attention with a block mask, compiled on a GPU. It has no backward pass on a CPU."""
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    require_kernel("flex", q.device, training)
    if not training:
        q, k, v = q.detach(), k.detach(), v.detach()
    length, device, compiling = q.shape[2], q.device, torch.compiler.is_compiling()
    if visible.per_row or visible.rule is not None:
        mask = create_block_mask(_mask_rule(visible), len(q), None, length, length, device=device)
    elif compiling:  # a part of the graph, like the attention itself
        mask = _flex_mask(visible.window, visible.causal, length, device)
    else:
        mask = _shared_flex_mask(visible.window, visible.causal, length, device)
    run = cast(Callable[..., Any], flex_attention)
    settings: dict[str, Any] = {"block_mask": mask, "enable_gqa": q.shape[1] != k.shape[1]}
    if visible.cap is not None:
        # Compilers see through no cache of a function.
        settings["score_mod"] = (_cap_rule.__wrapped__ if compiling else _cap_rule)(visible.cap)
    if device.type == "cuda":
        # torch takes its kernel for single tokens below 128 positions, which fails where KV heads serve several heads.
        settings["kernel_options"] = {"BACKEND": "TRITON"}
    if compiling or device.type == "cuda":
        return cast(Tensor, (run if compiling else _compiled_flex())(q, k, v, **settings))
    with warnings.catch_warnings():
        # On a CPU it runs uncompiled, only as a check; torch warns that this is slow.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return cast(Tensor, run(q, k, v, **settings))


@lru_cache(maxsize=16)
def _cap_rule(cap: float) -> Callable[..., Tensor]:
    """`capped` in the form that flex_attention takes."""

    def rule(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return capped(score, cap)

    return rule


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Tensor]:
    return compiled_for_each_size(flex_attention)


_FLEX_BLOCK = 128


@lru_cache(maxsize=64)
def _shared_flex_mask(window: int | None, causal: bool, length: int, device: torch.device) -> BlockMask:
    with torch.inference_mode(False):  # else a mask that generation has made could not be used in a backward pass
        return _flex_mask(window, causal, length, device)


def _flex_mask(window: int | None, causal: bool, length: int, device: torch.device) -> BlockMask:
    """What `create_block_mask` makes of all keys or a window, which would look at each of the S × S pairs."""
    nearest, farthest = 0 if causal else -math.inf, math.inf
    if window is not None:
        nearest, farthest = 0 if causal else 1 - window, window - 1
    first = torch.arange(0, length, _FLEX_BLOCK, device=device)
    last = (first + _FLEX_BLOCK).clamp(max=length) - 1
    # How far the keys of a block lie behind its queries: at least, at most.
    least, most = first[:, None] - last, last[:, None] - first
    some = (least <= farthest) & (most >= nearest)
    whole = first + _FLEX_BLOCK <= length
    full = (least >= nearest) & (most <= farthest) & whole[:, None] & whole
    return BlockMask.from_kv_blocks(
        *_flex_blocks(some & ~full),
        *_flex_blocks(full),
        BLOCK_SIZE=_FLEX_BLOCK,
        mask_mod=_mask_rule(Visible(window, causal=causal)),
        seq_lengths=(length, length),
    )


def _flex_blocks(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """For each block of queries the number of chosen blocks of keys, and all blocks of keys with those first."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


def _mask_rule(visible: Visible) -> Callable[..., Tensor]:
    """`Visible.mask` for one query and one key, in the form that flex_attention takes."""

    def rule(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = visible.allows(query, key)
        if visible.segments is not None:
            seen = seen & (visible.segments[row, query] == visible.segments[row, key])
        if visible.valid is not None:
            seen = seen & (visible.valid[row, key] | (key == query))
        return seen

    return rule


def xformers(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """xformers' memory-efficient attention, for GPUs. Its tensors are (B, S, H, D)."""
    require_kernel("xformers", q.device, training=True)
    if visible.per_row or visible.rule is not None:
        raise UserError("kernel xformers does not support padding, packed documents or rules; use sdpa, banded or flex")
    # No import statement: transformers demands every package that one in the file of an exported model names.
    ops = importlib.import_module("xformers.ops")
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    if visible.window is None:
        bias = ops.fmha.attn_bias.LowerTriangularMask() if visible.causal else None
    else:
        # The numbers of keys before the query's own and after it.
        after = 0 if visible.causal else visible.window - 1
        bias = ops.fmha.attn_bias.LocalAttentionFromBottomRightMask(visible.window - 1, after)
    try:
        out = ops.memory_efficient_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_bias=bias)
    except NotImplementedError:  # its message has a line for each of its operators
        raise UserError(
            f"kernel xformers: the installed xformers has no operator for heads of width {q.shape[3]} in {q.dtype} on "
            "this GPU; install a build for your CUDA (`python -m xformers.info` shows it), or use auto, sdpa or flex"
        ) from None
    return out.transpose(1, 2)


MOST_GRAPHS = 256
"""Graphs of a function in one process. torch would stop at 8, and compute whatever is new after them uncompiled: a loop
at several resolutions, or a queue of runs of several shapes, needs more."""


def compiled_for_each_size(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """A function compiled for each new combination of sizes when it first occurs. settings: of torch.compile.

    Sizes are never made variable: which graph a step runs would then depend on the sizes before it, and a run that was
    resumed would end with other bits.
    """
    # Imported here, because it takes seconds.
    import torch._dynamo

    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, MOST_GRAPHS)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 4 * MOST_GRAPHS)
    return torch.compile(function, dynamic=False, **settings)


KERNELS = {"eager": eager, "sdpa": sdpa, "banded": banded, "blocks": blocks, "flex": flex, "xformers": xformers}


WITH_CAP = {"sdpa": "eager", "banded": "blocks"}
"""Kernels whose code cannot cap scores → those that stand for them."""


def with_cap(kernel: str) -> str:
    """The kernel for scores that are capped, where this one is asked for. UserError if there is none."""
    if kernel == "xformers":
        raise UserError("kernel xformers cannot cap scores, which shape.score_cap asks for; use auto, flex or eager")
    return WITH_CAP.get(kernel, kernel)


def require_kernel(
    kernel: str, device: torch.device, training: bool, kinds: Iterable[AttentionKind] = (), cap: float | None = None
) -> None:
    """UserError if a kernel cannot run on this device, or cannot compute attention of these kinds, or with a cap."""
    if kernel == "triton":
        require_triton(device)
    if cap is not None:
        with_cap(kernel)
    for kind in kinds:
        kind.own_kernel(kernel, 1, causal=True)
    if kernel == "flex" and device.type == "cpu" and training:
        raise UserError("kernel flex has no backward pass on a CPU; train with auto, sdpa or banded, or on a GPU")
    if kernel == "xformers" and device.type != "cuda":
        raise UserError(f"kernel xformers runs on a CUDA GPU only, not on {device.type}; use auto, sdpa or banded")
    if kernel == "xformers" and importlib.util.find_spec("xformers") is None:
        raise UserError("kernel xformers is not installed; pip install 'hybridlab[gpu]'")


def require_triton(device: torch.device) -> None:
    """UserError if Triton's kernels cannot run on this device. Without a GPU they run in Triton's interpreter only,
    as a check, with TRITON_INTERPRET=1 in the environment."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError(f"kernel triton runs on a CUDA GPU only, not on {device.type}; use auto, blocks or eager")
    if importlib.util.find_spec("triton") is None:
        raise UserError("kernel triton needs Triton, which is not installed; pip install triton, or use auto or blocks")


def choose(
    kernel: str,
    window: int | None,
    length: int,
    device: torch.device,
    low_precision: bool,
    causal: bool = True,
    beside: bool = False,
) -> str:
    """The kernel for a softmax over the last `window` keys (None: all) of sequences of `length` tokens. The kernels
    `banded` and `blocks` stand for `sdpa` where they cannot compute: for all keys, and for windows to both sides;
    `triton`, which has no softmax of its own, for `auto`.

    The choices of `auto` come from measurements: on a CPU in bf16 a training step of `tiny` at 128 positions took
    0.13 s with `eager` and 0.26 s with `sdpa` (medians of 20 on two cores). At longer lengths `banded` was fastest for
    a window, and `sdpa` for full attention.

    beside: a window of heads that compute full attention too, while it is being learned which of the two they keep.
    `auto` takes `blocks` for it on a CPU, so that the window adds little to the cost of the full attention. The scores
    of the full attention are not used again: a band has to be taken out of the S × S matrix and its gradient added
    there, which took as long as a second kernel at 128 positions, and longer beyond; the band's own scores are w / S of
    the work. A training step of tiny (2,048 tokens, one thread, medians of 12 interleaved) took, relative to full
    attention alone, with the kernels of other windows and with `blocks`: in bf16 1.59 and 1.31 at 128 positions, 1.57
    and 1.19 at 256, 2.01 and 1.14 at 512; in fp32 1.22 and 1.17 at 128, 1.19 and 1.14 at 256.
    """
    if kernel in BANDED and (window is None or not causal):
        return "sdpa"
    if kernel not in ("auto", "triton"):
        return kernel
    in_bands = window is not None and causal and length > 2 * band_block(window)
    if beside and in_bands and device.type == "cpu":
        return "blocks"
    if device.type == "cpu" and low_precision and length <= 256:
        return "eager"
    return "banded" if in_bands else "sdpa"
