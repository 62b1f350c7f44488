"""The parts of the models: norms, rotary positions, attention, MLP, blocks and output heads, built from a shape.

A block has two separate branches, attention and MLP. Each is a pure function of the residual stream, because a plan
may run either one alone, several times, or for some heads only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.attention.heads import Attended, HeadGroup, KindIndex, attend, index_tensor, kind_index
from hybridlab.attention.kernels import capped, has_autocast
from hybridlab.models.cache import VisitCache
from hybridlab.plan.shape import ClassesOutput, LinearScaling, Norm, RopeScaling, Shape, YarnScaling
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Visit


class NormLayer(nn.Module):
    """A norm of the last dimension, computed in fp32 at least: x / rms(x) · weight (`rmsnorm`, Llama),
    (x − mean) / std · weight + bias (`layernorm`), or the latter without weight and bias (OLMo).

    Under autocast the result has autocast's type: it is converted once, not in every projection that reads it. factor:
    the whole output is multiplied by this number. It is no buffer, so that neither the loading of weights nor a change
    of the weights' type can change it. stream: it gives the residual stream itself, which keeps its type under
    autocast.
    """

    def __init__(self, kind: Norm, width: int, eps: float, factor: float | None = None, stream: bool = False) -> None:
        super().__init__()
        self.rms, self.width, self.eps, self.factor, self.stream = kind == "rmsnorm", (width,), eps, factor, stream
        self.weight = None if kind == "nonparametric-layernorm" else nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layernorm" else None
        self._factor_in_graphs: Tensor | None = None

    def hold_factor(self, device: torch.device) -> None:
        """Keep the factor as a tensor, which a compiled graph reads; of a number it would be one graph for each."""
        held = self._factor_in_graphs
        if self.factor is not None and (held is None or held.device != device):
            self._factor_in_graphs = torch.tensor(self.factor, dtype=torch.float64, device=device)

    def forward(self, x: Tensor) -> Tensor:
        dtype, device = torch.promote_types(x.dtype, torch.float32), x.device.type
        weight, bias = _as(self.weight, dtype), _as(self.bias, dtype)
        if self.rms:
            normed = torch.rms_norm(_as(x, dtype), self.width, weight, self.eps)
        else:
            normed = F.layer_norm(_as(x, dtype), self.width, weight, bias, self.eps)
        held = self._factor_in_graphs
        factor = held if held is not None and held.device == x.device else self.factor
        normed = normed if factor is None else normed * factor
        autocast = has_autocast(device) and torch.is_autocast_enabled(device)
        return _as(normed, torch.get_autocast_dtype(device) if autocast and not self.stream else x.dtype)


MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


def _as(tensor: MaybeTensor, dtype: torch.dtype) -> MaybeTensor:
    """tensor.to(dtype), which takes as long as a small sum even where there is nothing to convert."""
    return tensor if tensor is None or tensor.dtype is dtype else tensor.to(dtype)


def make_norm(shape: Shape, factor: float | None = None, stream: bool = False) -> NormLayer:
    """A norm of the residual stream, of the kind that the shape's family uses; see `NormLayer`."""
    return NormLayer(shape.traits.norm, shape.width, shape.norm_eps, factor, stream)


def rotary_tables(
    positions: Tensor, rotary_width: int, base: float, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin of shape (..., S, R) in fp32 for positions (..., S); channels i and i + R/2 form a pair. scaling: see
    `scaled_frequencies`; YaRN also multiplies both tables by a number."""
    exponents = torch.arange(0, rotary_width, 2, device=positions.device, dtype=torch.float32) / rotary_width
    angles = positions[..., None].float() * scaled_frequencies(1.0 / base**exponents, base, scaling)
    angles = torch.cat((angles, angles), dim=-1)
    if isinstance(scaling, YarnScaling):
        return angles.cos() * scaling.amplitude, angles.sin() * scaling.amplitude
    return angles.cos(), angles.sin()


Rotary = tuple[Tensor, Tensor]
"""cos and sin of the positions of q and k, see `rotary_of`."""


def rotary_of(shape: Shape, positions: Tensor, layer: int = 0) -> Rotary:
    """The rotary tables of a layer at positions (S,) or (B, S). The first half of the sines is negative, as it is for
    the first channel of a pair."""
    if shape.local_rope is not None and shape.rope_is_local(layer):
        cos, sin = rotary_tables(positions, shape.rotary_width, shape.local_rope.base)
    else:
        cos, sin = rotary_tables(positions, shape.rotary_width, shape.rope_base, shape.rope_scaling)
    first, second = sin.chunk(2, dim=-1)
    sin = torch.cat((-first, second), dim=-1)
    return (cos[:, None], sin[:, None]) if positions.dim() == 2 else (cos, sin)


def scaled_frequencies(frequencies: Tensor, base: float, scaling: RopeScaling | None) -> Tensor:
    """Rotary frequencies (R/2,) of a base, in radians per position, after the scaling of a shape."""
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, YarnScaling):
        divided = _yarn_blend(len(frequencies), base, scaling).to(frequencies)
        return frequencies * (divided / scaling.factor + 1 - divided)
    # In the order of operations of transformers: late positions show the last bit of a frequency.
    turns = scaling.original_positions / (2 * math.pi / frequencies)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn_blend(pairs: int, base: float, scaling: YarnScaling) -> Tensor:
    """(R/2,): how far each frequency is divided, from 0 (as it is) to 1. They are counted in channels, as in YaRN's
    code: the one that turns n times in original_positions L is R · ln(L / 2πn) / (2 · ln base)."""
    turns = (scaling.beta_fast, scaling.beta_slow)
    low, high = (pairs * math.log(scaling.original_positions / (2 * math.pi * n)) / math.log(base) for n in turns)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    # Where both are the same channel, the blend is a step.
    return ((torch.arange(pairs) - low) / (high - low or 0.001)).clamp(0, 1)


def sinusoids(positions: int, width: int) -> Tensor:
    """(positions, width): sin and cos of position / 10000^(2i / width), side by side (Vaswani et al., 2017, 3.5)."""
    cos, sin = rotary_tables(torch.arange(positions), 2 * ((width + 1) // 2), 10000.0)
    return torch.stack((sin, cos), dim=-1).flatten(1)[:, :width]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (B, H, S, D) by tables (S, R) or (B, 1, S, R), see `rotary_of`; channels from R on
    stay as is."""
    width = cos.shape[-1]
    if width == 0:
        return x
    rotary = x if width == x.shape[-1] else x[..., :width]
    first, second = rotary.chunk(2, dim=-1)
    rotated = rotary * _as(cos, x.dtype) + torch.cat((second, first), dim=-1) * _as(sin, x.dtype)
    return rotated if rotary is x else torch.cat((rotated, x[..., width:]), dim=-1)


@dataclass(frozen=True)
class HeadIndex:
    """The heads of one attention visit as tensors, so that a compiled block serves every choice of as many heads.

    kinds: the heads by kind. If only a part of the heads runs: query_rows (h·D,) and kv_rows (K·D,; None for all), the
    rows of W_Q and of W_K and W_V that belong to them, and serving (h,), the KV head of each query head among those
    computed. The heads may then be an uneven part of their groups, so that each gets its own copy of its KV head.
    """

    kinds: KindIndex
    query_rows: Tensor | None = None
    kv_rows: Tensor | None = None
    serving: Tensor | None = None


def head_index(structure: Structure, visit: Visit, device: torch.device) -> HeadIndex:
    """The index of a visit's heads."""
    heads, kinds, shape = structure.heads(visit), structure.kinds(visit), structure.shape
    if len(heads.query) == shape.heads:
        return HeadIndex(kind_index(kinds, shape.group, device))
    each = kind_index(tuple(kinds[kv] for kv in heads.serving), 1, device)
    query, kv = (_rows(chosen, shape.head_width, device) for chosen in (heads.query, heads.kv))
    kv_rows = kv if len(heads.kv) < shape.kv_heads else None
    return HeadIndex(each, query, kv_rows, index_tensor(heads.serving, device))


def _rows(heads: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """The rows of a projection that belong to these heads."""
    return index_tensor([head * width + channel for head in heads for channel in range(width)], device)


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one attention visit, apart from the residual stream.

    heads: those that run. rotary: of the positions of x. valid, segments: (B, S), see `Visible`. gate: (K,) of the KV
    heads that run, see `HeadGroup`. factor: (h,), the output of each query head is multiplied by it before W_O. cache:
    the keys and values stored by earlier calls. causal: see `Visible`. at: (B,), the position of the one token of each
    row, if the cache is to take a step of compiled generation. lengths: with a cache, the new tokens of each row.
    """

    heads: HeadIndex
    rotary: Rotary
    kernel: str = "auto"
    valid: Tensor | None = None
    segments: Tensor | None = None
    need: str = "none"
    gate: Tensor | None = None
    factor: Tensor | None = None
    cache: VisitCache | None = None
    causal: bool = True
    at: Tensor | None = None
    lengths: Sequence[int] = ()


def is_plain(module: nn.Module) -> bool:
    """Whether a module is torch's own layer and nothing else, so that a product with a part of its weights is what it
    would compute. Adapters (LoRA), quantised layers, hooks and parametrisations are more: they must be called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    own = type(module) in (nn.Linear, nn.Embedding) and "forward" not in vars(module) and not any(hooks)
    # Tensors of quantisation libraries, which stand for a weight that is computed.
    return own and not hasattr(module.weight, "__tensor_flatten__")


_STREAMED = 2**17
"""Numbers of a matrix that no cache near the core holds (512 kB in fp32)."""


def product(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x), see `linear`."""
    if _generating() and is_plain(layer):
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def _generating() -> bool:
    """Whether tokens are generated: torch is then in inference mode, which compiled code only knows as no gradients."""
    return not torch.is_grad_enabled() if torch.compiler.is_compiling() else torch.is_inference_mode_enabled()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, S, K) times weight (N, K) transposed, plus bias (N,).

    In inference mode, which is that of generation, one or two tokens times a large matrix in fp32 on a CPU are computed
    as a batch of two products. All that takes time is then to read the matrix, and MKL's product of a matrix with a
    vector reads slowly: at `mini`, 185 MB, 20 ms for all of a token, in two halves 9 ms (AMD EPYC, one thread). The
    bits differ, so that passes outside of generation, which are recorded, do not use it.
    """
    rows, outs = x.shape[:-1].numel(), weight.shape[0]
    if (
        weight.numel() < _STREAMED
        or rows > 2
        or outs % 2
        or not _generating()
        or not weight.is_contiguous()
        or not x.dtype == weight.dtype == torch.float32
        or x.device.type != "cpu"
    ):
        return F.linear(x, weight, bias)
    halves = torch.bmm(weight.view(2, outs // 2, -1), x.reshape(1, rows, -1).mT.expand(2, -1, -1))
    y = halves.permute(2, 0, 1).reshape(*x.shape[:-1], outs)
    return y if bias is None else y + bias


class Attention(nn.Module):
    """Multi-head attention with grouped KV heads; q and k are normalised if the family does so, per head (qwen3) or all
    heads together (olmo2)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width, biases = shape.head_width, shape.traits.biases
        bias, kv_inner = "qkv" in biases, shape.kv_heads * shape.head_width
        self.inner = inner = shape.heads * shape.head_width
        self.q = nn.Linear(shape.width, inner, bias=bias)
        self.k = nn.Linear(shape.width, kv_inner, bias=bias)
        self.v = nn.Linear(shape.width, kv_inner, bias=bias)
        self.o = nn.Linear(inner, shape.width, bias="output" in biases)
        self.score_cap, self.qk_norm = shape.score_cap, shape.traits.qk_norm
        self.query_factor = None if shape.score_width is None else math.sqrt(shape.head_width / shape.score_width)
        widths = {None: None, "head": (shape.head_width, shape.head_width), "all": (inner, kv_inner)}[self.qk_norm]
        self.q_norm = None if widths is None else NormLayer("rmsnorm", widths[0], shape.norm_eps)
        self.k_norm = None if widths is None else NormLayer("rmsnorm", widths[1], shape.norm_eps)

    def forward(self, x: Tensor, call: AttentionCall) -> Attended:
        """x (B, S, W) → the output (B, S, W) of the branch, with attention weights if `call.need` requests them.

        Only the rows of the weights that belong to running heads are used, but for q and k whose norm spans all heads,
        and where a projection is more than its weights (see `is_plain`). A shared KV head is computed once.
        """
        heads, cache = call.heads, call.cache
        q = self._project(self.q, x, heads.query_rows, self.q_norm)
        k = self._project(self.k, x, heads.kv_rows, self.k_norm)
        v = self._project(self.v, x, heads.kv_rows)
        q = q if self.query_factor is None else q * self.query_factor
        if x.shape[1] == 1:  # one token is not worth two calls
            q, k = rotate(torch.cat((q, k), dim=1), *call.rotary).split((q.shape[1], k.shape[1]), dim=1)
        else:
            q, k = rotate(q, *call.rotary), rotate(k, *call.rotary)
        if cache is not None and call.at is not None:
            attended = Attended(cache.step(q, k, v, call.at))
        elif cache is not None and not cache.empty:
            attended = Attended(cache.attend(q, k, v))
        else:
            keys, values, gate = k, v, call.gate
            if (each := heads.serving) is not None:
                keys, values = k.index_select(1, each), v.index_select(1, each)
                gate = None if gate is None else gate.index_select(0, each)
            rows = (call.valid, call.segments, call.need, call.causal)
            attended = attend(HeadGroup(q, keys, values, call.kernel, gate, *rows, self.score_cap), heads.kinds)
        if cache is not None and call.at is None:
            cache.append(q, k, v, call.lengths)
        return Attended(self._joined(attended.out, call), attended.weights, attended.keys, attended.others)

    def _joined(self, out: Tensor, call: AttentionCall) -> Tensor:
        """The heads' outputs (B, h, S, D) times W_O (its columns for these heads) → (B, S, W)."""
        if call.factor is not None:
            out = out * call.factor.to(out.dtype)[:, None, None]
        joined, rows = out.transpose(1, 2).flatten(2), call.heads.query_rows
        if rows is None:
            return product(self.o, joined)
        if is_plain(self.o):
            return F.linear(joined, self.o.weight[:, rows], self.o.bias)
        return self.o(joined.new_zeros(*joined.shape[:2], self.inner).index_copy(2, rows, joined))

    def _project(self, layer: nn.Linear, x: Tensor, rows: Tensor | None, norm: NormLayer | None = None) -> Tensor:
        """(B, S, W) → (B, h, S, D): the projection to the heads of these rows, None: to all; and its norm."""
        if norm is not None and self.qk_norm == "all":
            y = norm(product(layer, x))
            y = y if rows is None else y[..., rows]
        elif rows is None:
            y = product(layer, x)
        elif is_plain(layer):
            y = F.linear(x, layer.weight[rows], None if layer.bias is None else layer.bias[rows])
        else:
            y = layer(x).index_select(2, rows)
        y = y.view(x.shape[0], x.shape[1], -1, self.head_width).transpose(1, 2)
        return norm(y) if norm is not None and self.qk_norm == "head" else y


class MLP(nn.Module):
    """down(f(gate(x)) · up(x)) if the family has a gated MLP, f being silu or GELU; else down(gelu(up(x)))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        traits, bias = shape.traits, "mlp" in shape.traits.biases
        self.gate = nn.Linear(shape.width, shape.ffn_width, bias=bias) if traits.gated else None
        self.up = nn.Linear(shape.width, shape.ffn_width, bias=bias)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=bias)
        self.approximate = "tanh" if traits.gelu_tanh else "none"

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            gate = product(self.gate, x)
            gate = F.gelu(gate, approximate="tanh") if self.approximate == "tanh" else F.silu(gate)
            return product(self.down, gate * product(self.up, x))
        return product(self.down, F.gelu(product(self.up, x), approximate=self.approximate))


Added = Callable[[str, Tensor, Tensor], Tensor]
"""(part, input of a branch, what it adds to it), each (B, S, W) → what the residual stream gets in its place."""
Visited = tuple[Tensor, Attended | None]
"""What `Block.visit` returns."""
Visiting = Callable[..., Visited]


class Block(nn.Module):
    """Two branches, each a function of the residual stream x that owns its norm. layer: its index, from 0, on which the
    scale of its norms may depend (`Shape.norm_factor`).

    A pre-norm branch turns x into x + f(norm(x)), one of OLMo 2 into x + norm(f(x)), one of Gemma, with both norms,
    into x + norm(f(norm(x))), and a post-norm branch (BERT) into norm(x + f(x)). What a branch adds is its result minus
    x in all. A branch that adds nothing leaves x as it is, so that leaving out a branch leaves out the norm behind it
    as well.
    """

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        factor = shape.norm_factor(layer)
        self.parallel, self.post_norm, norms = shape.traits.parallel, shape.traits.post_norm, shape.traits.norms
        before, after = norms != "after", norms in ("after", "both")
        self.attention_norm = make_norm(shape, factor, self.post_norm) if before else nn.Identity()
        self.attention = Attention(shape)
        self.attention_after = make_norm(shape) if after else nn.Identity()
        self.mlp_norm = make_norm(shape, factor, self.post_norm) if before else nn.Identity()
        self.mlp = MLP(shape)
        self.mlp_after = make_norm(shape) if after else nn.Identity()

    def visit(
        self,
        x: Tensor,
        call: AttentionCall | None,
        mlp: bool,
        added: Added | None = None,
        form: Callable[[Visiting], Visiting] | None = None,
    ) -> Visited:
        """The residual stream x (B, S, W) after a visit, and its attention. call: None if attention does not run. mlp:
        whether the MLP runs. added: see `Added`. It reads nothing but these and its weights, so that it can be
        recomputed, and compiled: form is what makes another function of this one, such as `compiled`. That is done
        here, so that what wraps a block's own method, as FSDP does, sees the call."""
        if form is not None:
            for norm in (self.attention_norm, self.mlp_norm):
                if isinstance(norm, NormLayer):
                    norm.hold_factor(x.device)
            return form(Block.visit)(self, x, call, mlp, added)
        attended, mlp_input = None, x
        if call is not None:
            attended = self.attention(self.attention_input(x), call)
            x = self._after("attention", x, x, self.attention_after(attended.out), self.attention_norm, added)
            mlp_input = mlp_input if self.parallel else x
        if mlp:
            out = self.mlp_after(self.mlp(mlp_input if self.post_norm else self.mlp_norm(mlp_input)))
            x = self._after("mlp", x, mlp_input, out, self.mlp_norm, added)
        return x, attended

    def attention_input(self, x: Tensor) -> Tensor:
        """What the projections of the attention read, of the residual stream x (B, S, W)."""
        return x if self.post_norm else self.attention_norm(x)

    def _after(self, part: str, x: Tensor, read: Tensor, out: Tensor, norm: nn.Module, added: Added | None) -> Tensor:
        """The residual stream x (B, S, W) after a branch. read: what the branch has read, which is x, or the input of a
        parallel block. out: what its attention or MLP gives."""
        if not self.post_norm:
            return x + (out if added is None else added(part, read, out))
        after = norm(x + out)
        if added is None:
            return after
        adds = after - x
        changed = added(part, read, adds)
        # Unchanged, it has the bits of a pass without `added`.
        return after if changed is adds else x + changed


# ---- output heads: from the last residual stream to what `shape.output` asks for ----


class TokenHead(nn.Module):
    """x (B, S, W) → logits (B, S, V): a product with the table of the embeddings, or with a table of its own, `capped`.
    Families with the trait `transform` have norm(gelu(dense(x))) before it, and a bias after it (BERT)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        transform = shape.traits.transform
        self.dense = nn.Linear(shape.width, shape.width) if transform else None
        self.norm = make_norm(shape) if transform else None
        self.weight = None if shape.tied_embeddings else nn.Parameter(torch.zeros(shape.vocab, shape.width))
        self.bias = nn.Parameter(torch.zeros(shape.vocab)) if transform else None
        self.cap = shape.logit_cap

    def forward(self, x: Tensor, valid: Tensor | None = None, embedding: Tensor | None = None) -> Tensor:
        return capped(linear(*self.factors(x, embedding)), self.cap)

    def factors(self, x: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """x as the product reads it, the table (V, W), and the bias (V,)."""
        if self.dense is not None and self.norm is not None:
            x = self.norm(F.gelu(self.dense(x)))
        return x, cast(Tensor, embedding if self.weight is None else self.weight), self.bias


class ClassHead(nn.Module):
    """x (B, S, W) → (B, labels), from one token of each sequence: in an encoder the first one, through the pooler
    tanh(dense(x)) as in BERT; in a decoder the last one that is valid, without pooler and bias as in transformers'
    GPT2ForSequenceClassification."""

    def __init__(self, shape: Shape, labels: int) -> None:
        super().__init__()
        causal = shape.traits.causal
        self.pooler = None if causal else nn.Linear(shape.width, shape.width)
        self.linear = nn.Linear(shape.width, labels, bias=not causal)

    def forward(self, x: Tensor, valid: Tensor | None, embedding: Tensor) -> Tensor:
        if self.pooler is not None:
            return self.linear(torch.tanh(self.pooler(x[:, 0])))
        last = torch.full((len(x),), x.shape[1] - 1, device=x.device) if valid is None else valid.sum(1) - 1
        return self.linear(x[torch.arange(len(x), device=x.device), last])


class SpanHead(nn.Module):
    """x (B, S, W) → (B, S, 2): of each token, a number for the first and one for the last of a span."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.width, 2)

    def forward(self, x: Tensor, valid: Tensor | None, embedding: Tensor) -> Tensor:
        return self.linear(x)


Head = TokenHead | ClassHead | SpanHead
"""A head reads x (B, S, W) after the final norm, valid (B, S), False on padding, and the table of the embeddings
(V, W)."""


def make_head(shape: Shape) -> Head:
    """The output head of a shape."""
    if shape.output is None:
        return TokenHead(shape)
    return ClassHead(shape, shape.output.labels) if isinstance(shape.output, ClassesOutput) else SpanHead(shape)
