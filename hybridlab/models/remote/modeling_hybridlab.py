"""A model trained with hybridlab, for transformers. This file needs torch and transformers, and no other package.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

config.json describes the whole model as data, under `structure`: its shape (the parameters), its map (how each KV head
of each layer mixes tokens) and its plan (which layers run, in which order, on which heads, at which resolution). The
classes below read that description; nothing here belongs to one architecture.

Tokens of a row are moved to its front before the model runs, so that padding may stand on either side, and positions,
windows and chunks count from the first token of each row. A position of −1 marks what is no token.

Shape legend: B batch, S new positions, N positions with those in the cache, W width, H query heads, K KV heads, D head
width, g tokens in a chunk, n chunks.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple


class HybridlabConfig(PreTrainedConfig):
    """structure: {shape, plan, map}. traits: how the blocks of the family are built. norm_factors: the factor on the
    norms of each layer, or None. factors: [{place, values}], on the outputs of the query heads of a visit."""

    model_type = "hybridlab"

    def __init__(self, structure=None, traits=None, norm_factors=None, factors=(), **kwargs):
        self.structure, self.traits = structure or {}, traits or {}
        self.norm_factors, self.factors = norm_factors, list(factors)
        super().__init__(**kwargs)


# ---- the cache ----


class Slot:
    """What one place of the plan keeps between calls: tensors by name, all with the rows as their first dimension."""

    is_compileable = is_croppable = supports_early_init = is_sliding = False

    def __init__(self):
        self.held = {}

    def get_seq_length(self):
        return next((tensor.shape[2] for name, tensor in self.held.items() if name == "keys"), 0)

    def get_max_length(self):
        return -1

    def reset(self):
        self.held = {}

    def reorder_cache(self, indices):
        self.held = {name: tensor.index_select(0, indices) for name, tensor in self.held.items()}

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats):
        self.held = {name: tensor.repeat_interleave(repeats, 0) for name, tensor in self.held.items()}


class HybridlabCache(Cache):
    """A slot for each place of the plan, however often it visits a layer: (place, number of a group of heads) for keys
    and values, ("loop", index, iteration) for what a loop keeps, and "rows" for the tokens of each row so far."""

    def __init__(self):
        super().__init__(layers=[])
        self.slots, self.columns = {}, 0

    def slot(self, key):
        if key not in self.slots:
            self.slots[key] = Slot()
            self.layers.append(self.slots[key])
        return self.slots[key]

    def get_seq_length(self, layer_idx=0):
        """Columns of the input so far, padding included."""
        return self.columns

    def reset(self):
        super().reset()
        self.columns = 0

    def crop(self, tokens_to_remove):
        raise ValueError(
            "this cache has forgotten what windows and chunks no longer need, so that it cannot go back; "
            "generate without assistant_model and prompt_lookup_num_tokens, or with use_cache=False"
        )


# ---- attention ----


@dataclass(frozen=True)
class Pass:
    """The positions of one call. new: (B, S), −1 for what is no token. stride: tokens from one position to the next,
    for rotary positions. cache: None without one."""

    new: torch.Tensor
    stride: int = 1
    cache: HybridlabCache | None = None


def visible(query, key, window, causal):
    """(B, 1, S, N): True where a query at `query` (B, S) sees a key at `key` (B, N). What is no token sees all keys, so
    that its softmax is defined; nothing sees it."""
    query, key = query[:, :, None], key[:, None, :]
    seen = key >= 0
    if causal:
        seen = seen & (key <= query)
    if window is not None:
        seen = seen & (key > query - window)
        seen = seen if causal else seen & (key < query + window)
    return (seen | (query < 0))[:, None]


def refined(q, k, v, seen, real, kind, causal, sent):
    """Attention whose weights are refined by one step of belief propagation (arXiv 2509.07324, Eq. 9, 11, 15 and 16).

    q (B, H, S, D), k and v (B, H, N, D), of which the last S keys are new. real: (B, S), rows that are tokens. sent:
    what earlier rows have sent, (B, H, N, 1) or (B, H, N, D + 1). Returns the output and what has been sent after it.
    """
    new = q.shape[2]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, float("-inf"))
    prior = scores.softmax(-1)
    real = real[:, None, :, None]
    earlier = causal and kind["send"] == "visible"
    if kind["factor"] == "elemmul":
        own = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
        agreement = prior @ prior[..., -new:, :].mT
        weighed = seen[..., -new:] if earlier else real.mT
        out = prior @ sent + (agreement * weighed) @ own[:, :, -new:]
        return out[..., :-1] / out[..., -1:], sent + (prior * real).mT @ own[:, :, -new:]
    exponent = kind["strength"] * (-1 if kind["factor"] == "low" else 1)
    factor = math.expm1(-exponent)
    if kind["length_ref"] is not None:
        keys = seen.sum(-1, keepdim=True)
        keys = keys.clamp_min(kind["length_ref"]) if causal else keys
        factor = torch.expm1(-(exponent * kind["length_ref"] / keys.double()).clamp(-10, 10)).to(prior.dtype)
    messages = torch.log1p(factor * prior) * real
    messages = messages.detach() if kind["detach_messages"] else messages
    total = sent.mT + messages.sum(-2, keepdim=True)
    received = sent.mT + messages.cumsum(-2) - messages if earlier else total - messages
    return (scores + received).softmax(-1) @ v, total.mT


class HeadGroup:
    """The query heads of one visit that share an attention kind, with the KV heads that they read.

    query, kv: numbers of the heads, None for all. serving: for each query head, its KV head among those. members: its
    place among all heads of the visit.
    """

    def __init__(self, kind, query, members, shape):
        per_kv = shape["heads"] // shape["kv_heads"]
        kv = sorted({head // per_kv for head in query})
        self.kind, self.members, self.serving = kind, members, [kv.index(head // per_kv) for head in query]
        self.query = None if len(query) == shape["heads"] else list(query)
        self.kv = None if len(kv) == shape["kv_heads"] else kv
        self.window = kind["width"] if kind["kind"] == "window" else None

    def attend(self, q, k, v, run, slot, causal):
        """(B, h, S, D) from q (B, h, S, D) and k, v (B, K, S, D) of the new positions, which the slot then keeps."""
        held = {} if slot is None else slot.held
        old, key = held.get("positions"), run.new
        if old is not None:
            k, v = torch.cat((held["keys"], k), dim=2), torch.cat((held["values"], v), dim=2)
            key = torch.cat((old, key), dim=1)
        seen, each_k, each_v = visible(run.new, key, self.window, causal), k[:, self.serving], v[:, self.serving]
        sums = {}
        if self.kind["kind"] == "belief":
            dtype = torch.promote_types(q.dtype, torch.float32)
            sent = held.get("sent", q.new_zeros(*q.shape[:2], 0, self._sums(q), dtype=dtype))
            sent = F.pad(sent, (0, 0, 0, q.shape[2]))
            q, each_k, each_v = (tensor.to(dtype) for tensor in (q, each_k, each_v))
            out, sent = refined(q, each_k, each_v, seen, run.new >= 0, self.kind, causal, sent)
            out, sums = out.to(v.dtype), {"sent": sent}
        else:
            out = F.scaled_dot_product_attention(q, each_k, each_v, attn_mask=seen)
        if slot is not None:
            self._keep(slot, key, {"keys": k, "values": v, **sums})
        return out

    def _sums(self, q):
        return q.shape[-1] + 1 if self.kind["factor"] == "elemmul" else 1

    def _keep(self, slot, positions, tensors):
        """Keep the last positions of each row: those that a window still reaches, or all that are tokens."""
        size = int((positions >= 0).sum(1).max())
        size = size if self.window is None else min(size, self.window)
        if size < positions.shape[1]:
            last = positions.topk(size, dim=1).indices.sort(dim=1).values
            positions = positions.gather(1, last)
            tensors = {name: t.take_along_dim(last[:, None, :, None], 2) for name, t in tensors.items()}
        slot.held = {"positions": positions, **tensors}


def head_groups(structure, visit):
    """The groups of heads that a visit runs, in a fixed order."""
    shape, kinds = structure["shape"], structure["map"][visit["layer"]]
    heads = visit["heads"] or list(range(shape["heads"]))
    each = [kinds[head // (shape["heads"] // shape["kv_heads"])] for head in heads]
    groups = []
    for kind in [kind for number, kind in enumerate(each) if kind not in each[:number]]:
        members = [number for number, other in enumerate(each) if other == kind]
        groups.append(HeadGroup(kind, [heads[number] for number in members], members, shape))
    return groups


# ---- blocks ----


class Norm(nn.Module):
    """RMSNorm or LayerNorm in fp32. factor: its whole output is multiplied by this number."""

    def __init__(self, kind, width, eps, factor=None):
        super().__init__()
        self.kind, self.width, self.eps, self.factor = kind, width, eps, factor
        self.weight = nn.Parameter(torch.ones(width)) if kind != "nonparametric-layernorm" else None
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layernorm" else None

    def forward(self, x):
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight, bias = (None if t is None else t.to(dtype) for t in (self.weight, self.bias))
        if self.kind == "rmsnorm":
            y = F.rms_norm(x.to(dtype), (self.width,), weight, self.eps)
        else:
            y = F.layer_norm(x.to(dtype), (self.width,), weight, bias, self.eps)
        return (y if self.factor is None else y * self.factor).to(x.dtype)


def frequencies(width, shape, device):
    """The rotary frequencies (width / 2,), in radians per position."""
    exponents, scaling = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width, shape["rope_scaling"]
    plain = 1.0 / shape["rope_base"] ** exponents
    if scaling is None or scaling["kind"] == "linear":
        return plain if scaling is None else plain / scaling["factor"]
    turns = plain * scaling["original_positions"] / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * ((1 - kept) / scaling["factor"] + kept)


def rotate(x, positions, shape, width):
    """Rotary positions on the first `width` channels of x (B, h, S, D); channels i and i + width / 2 form a pair."""
    if width == 0:
        return x
    angles = positions.clamp(min=0)[:, None, :, None].float() * frequencies(width, shape, x.device)
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :width].chunk(2, dim=-1)
    rotated = x[..., :width] * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((rotated, x[..., width:]), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape, traits):
        super().__init__()
        self.shape, self.causal = shape, traits["causal"]
        width, size, bias = shape["width"], shape["head_width"], "qkv" in traits["biases"]
        self.q = nn.Linear(width, shape["heads"] * size, bias=bias)
        self.k = nn.Linear(width, shape["kv_heads"] * size, bias=bias)
        self.v = nn.Linear(width, shape["kv_heads"] * size, bias=bias)
        self.o = nn.Linear(shape["heads"] * size, width, bias="output" in traits["biases"])
        self.q_norm = Norm("rmsnorm", size, shape["norm_eps"]) if traits["qk_norm"] else None
        self.k_norm = Norm("rmsnorm", size, shape["norm_eps"]) if traits["qk_norm"] else None
        self.rotary_width = int(size * traits["rotary_fraction"])

    def forward(self, x, groups, run, place, factor=None):
        """What the heads of these groups add to x (B, S, W). factor: (h,), on the outputs of the visit's heads."""
        total = 0
        for number, group in enumerate(groups):
            q = self._heads(self.q, x, group.query)
            k, v = self._heads(self.k, x, group.kv), self._heads(self.v, x, group.kv)
            if self.q_norm is not None:
                q, k = self.q_norm(q), self.k_norm(k)
            q, k = (rotate(t, run.new * run.stride, self.shape, self.rotary_width) for t in (q, k))
            slot = None if run.cache is None else run.cache.slot((place, number))
            out = group.attend(q, k, v, run, slot, self.causal)
            if factor is not None:
                out = out * factor[group.members, None, None].to(out)
            columns = self.o.weight.unflatten(1, (-1, self.shape["head_width"]))
            columns = columns if group.query is None else columns[:, group.query]
            total = total + F.linear(out.transpose(1, 2).flatten(2), columns.flatten(1))
        return total if self.o.bias is None else total + self.o.bias

    def _heads(self, linear, x, chosen):
        """(B, h, S, D): the projection of x (B, S, W) to the chosen heads, None for all."""
        weight, bias = linear.weight, linear.bias
        if chosen is not None:
            weight, bias = (
                None if t is None else t.unflatten(0, (-1, self.shape["head_width"]))[chosen].flatten(0, 1)
                for t in (weight, bias)
            )
        return F.linear(x, weight, bias).unflatten(-1, (-1, self.shape["head_width"])).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, shape, traits):
        super().__init__()
        width, inner, bias = shape["width"], shape["ffn_width"], "mlp" in traits["biases"]
        self.gate = nn.Linear(width, inner, bias=bias) if traits["gated"] else None
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.approximate = "tanh" if traits["gelu_tanh"] else "none"

    def forward(self, x):
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """Attention and MLP, each with its norm before it (pre-norm) or on the sum with its input (post-norm)."""

    def __init__(self, shape, traits, factor):
        super().__init__()
        self.parallel, self.post_norm = traits["parallel"], traits["post_norm"]
        self.attention_norm = Norm(traits["norm"], shape["width"], shape["norm_eps"], factor)
        self.attention = Attention(shape, traits)
        self.mlp_norm = Norm(traits["norm"], shape["width"], shape["norm_eps"], factor)
        self.mlp = MLP(shape, traits)

    def forward(self, x, part, *attention):
        """x (B, S, W) after a visit of the block, or of its attention or MLP alone."""
        before = x
        if part != "mlp":
            out = self.attention(x if self.post_norm else self.attention_norm(x), *attention)
            x = self.attention_norm(x + out) if self.post_norm else x + out
        if part != "attention":
            read = before if self.parallel else x
            out = self.mlp(read if self.post_norm else self.mlp_norm(read))
            x = self.mlp_norm(x + out) if self.post_norm else x + out
        return x


# ---- loops over chunks (arXiv 2602.11698) ----


def shares(scores):
    """Softmax over the last dimension, in fp32 at least."""
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))


class Recurrence(nn.Module):
    """A loop over shared layers. Iteration t gathers each chunk of g tokens into a latent, runs its body on the
    latents, spreads the results over the tokens, and shifts them to the right, so that no token sees a later one.
    Between calls a slot keeps the states of the incomplete chunk (`pending`) and the last latents."""

    def __init__(self, loop, width):
        super().__init__()
        self.loop = loop
        chunks, iterations = loop["chunks"], len(loop["chunks"])
        chunked = [t for t, g in enumerate(chunks) if g > 1]
        scored = chunked if loop["downscale"] == "aggregate" else []
        allocated = chunked if loop["upscale"] == "allocate" else []
        pairs = iterations + 1 if loop["topology"] == "mesh" else 0
        self.scorers = nn.ModuleDict({str(t): nn.Linear(width, 1, bias=False) for t in scored})
        self.allocators = nn.ModuleDict({str(t): nn.Linear(width, chunks[t]) for t in allocated})
        self.writers = nn.ModuleList(nn.Linear(width, iterations + 3) for _ in range(pairs))
        self.readers = nn.ModuleList(nn.Linear(width, iterations + 3) for _ in range(pairs))

    def forward(self, embedded, entering, run, body, index):
        """The state (B, S, W) after all iterations. embedded: the token embeddings. entering: the state before. body:
        (iteration, states, pass) → states."""
        topology, written, h = self.loop["topology"], [], entering
        if topology == "mesh":
            h = self._routed(0, embedded, entering, written, embedded)
        for t, g in enumerate(self.loop["chunks"]):
            slot = Slot() if run.cache is None else run.cache.slot(("loop", index, t))
            u = (self._full if g == 1 else self._chunked)(t, h, run, slot, body)
            if topology == "mesh":
                h = self._routed(t + 1, h, u, written, embedded)
            else:
                h = u + entering if topology == "anchor" else u
        return h

    def _routed(self, pair, by, value, written, embedded):
        """MeSH: write a value with router `pair`, then read. The buffer is the sum of what was written so far."""
        written.append((shares(self.writers[pair](by)), value))
        read = shares(self.readers[pair](by))
        h = read[..., :1].to(value.dtype) * embedded
        for weights, update in written:
            h = h + (read * weights).sum(-1, keepdim=True).to(value.dtype) * update
        return h

    def _setting(self, name, t, words):
        """The offset or shift of an iteration, a number or one of the words."""
        value = self.loop[name][t] if isinstance(self.loop[name], (list, tuple)) else self.loop[name]
        return words.get(value, value)

    def _full(self, t, h, run, slot, body):
        """The shifted update at full resolution."""
        u, shift = body(t, h, run), self._setting("shift", t, {"overlap": 0, "parallel": 0})
        if shift == 0:
            return u
        both = torch.cat((slot.held.get("delayed", u.new_zeros(len(u), shift, u.shape[2])), u), dim=1)
        slot.held = {"delayed": rows_from(both, (run.new >= 0).sum(1), shift)}
        return both[:, : u.shape[1]]

    def _chunked(self, t, h, run, slot, body):
        """The shifted update of new tokens: the body runs on the chunks that they complete, then every token reads the
        chunk that is `shift` back. Token i stands in slot (i + offset) mod g of chunk (i + offset) div g."""
        g, width, kept = self.loop["chunks"][t], h.shape[2], slot.held
        offset = self._setting("offset", t, {"half": g // 2, "zero": 0})
        shift = self._setting("shift", t, {"overlap": g - 1, "parallel": g})
        lengths = (run.new >= 0).sum(1)
        before = run.new[:, 0].clamp(min=0) if "count" not in kept else kept["count"]
        first = (before + offset) // g
        begun = before + lengths if self.loop["literal"] else before + lengths + offset
        complete, num_kept = begun // g - first, -(-shift // g) + 1
        pending = kept.get("pending", h.new_zeros(len(h), g, width))
        latents = kept.get("latents", h.new_zeros(len(h), num_kept, width))
        both, reach = torch.cat((pending, h), dim=1), (before + offset)[:, None]

        def states_at(slots):
            index = torch.where(slots < reach, slots - (first * g)[:, None], slots - reach + g)
            return both.take_along_dim(index.clamp(0, both.shape[1] - 1)[..., None], 1)

        numbers = torch.arange(int(complete.max()), device=h.device)
        if len(numbers):
            slots = (first * g)[:, None] + torch.arange(len(numbers) * g, device=h.device)
            gathered = self._gather(t, states_at(slots).unflatten(1, (-1, g)), (slots >= offset).unflatten(1, (-1, g)))
            place = torch.where(numbers < complete[:, None], first[:, None] + numbers, -1)
            stride = g if self.loop["positions"] == "token" else 1
            latents = torch.cat((latents, body(t, gathered, replace(run, new=place, stride=stride))), dim=1)
        slot.held = {
            "count": before + lengths,
            "pending": states_at(((first + complete) * g)[:, None] + torch.arange(g, device=h.device)),
            "latents": rows_from(latents, complete, num_kept),
        }
        source = before[:, None] + torch.arange(h.shape[1], device=h.device) - shift + offset
        chunk, place = source.div(g, rounding_mode="floor"), source.remainder(g)
        index = (num_kept + chunk - first[:, None]).clamp(0, latents.shape[1] - 1)
        rows = torch.arange(len(h), device=h.device)[:, None]
        reached = (source >= offset) & (chunk < (first + complete)[:, None])
        return torch.where(reached[..., None], self._spread(t, latents)[rows, index, place], 0.0)

    def _gather(self, t, grid, filled):
        """(B, n, g, W) → (B, n, W). filled: (B, n, g), False on slots before the first token."""
        if self.loop["downscale"] == "mean":
            count = grid.shape[2] if self.loop["literal"] else filled.sum(-1, keepdim=True)
            return (grid * filled[..., None]).sum(2) / count
        weights = shares(self.scorers[str(t)](grid)[..., 0].masked_fill(~filled, float("-inf")))
        return (weights[..., None].to(grid.dtype) * grid).sum(2)

    def _spread(self, t, latents):
        """(B, n, W) → (B, n, g, W)."""
        g = self.loop["chunks"][t]
        if self.loop["upscale"] == "uniform":
            return (latents / math.sqrt(g))[:, :, None].expand(-1, -1, g, -1)
        weights = shares(self.allocators[str(t)](latents)) * math.sqrt(g)
        return weights[..., None].to(latents.dtype) * latents[:, :, None]


def rows_from(values, starts, count):
    """(B, count, W): `count` values of each row r, from index starts[r] on."""
    index = starts[:, None] + torch.arange(count, device=values.device)
    return values.take_along_dim(index[..., None], 1)


# ---- models ----


class Head(nn.Module):
    """The output head: logits over the vocabulary (with BERT's transform if the family has it), classes, or spans."""

    def __init__(self, shape, traits):
        super().__init__()
        width, kind = shape["width"], (shape["output"] or {"kind": "tokens"})["kind"]
        self.dense = self.norm = self.weight = self.bias = self.pooler = self.linear = None
        if kind == "tokens":
            if traits["transform"]:
                self.dense, self.norm = nn.Linear(width, width), Norm(traits["norm"], width, shape["norm_eps"])
                self.bias = nn.Parameter(torch.zeros(shape["vocab"]))
            if not shape["tied_embeddings"]:
                self.weight = nn.Parameter(torch.zeros(shape["vocab"], width))
        elif kind == "classes":
            self.pooler = None if traits["causal"] else nn.Linear(width, width)
            self.linear = nn.Linear(width, shape["output"]["labels"], bias=not traits["causal"])
        else:
            self.linear = nn.Linear(width, 2)

    def forward(self, x, table):
        if self.linear is not None:
            return self.linear(x if self.pooler is None else torch.tanh(self.pooler(x)))
        x = x if self.dense is None else self.norm(F.gelu(self.dense(x)))
        return F.linear(x, table if self.weight is None else self.weight, self.bias)


class HybridlabModel(PreTrainedModel):
    """The embeddings, the plan, the final norm, and an output head, which `ForCausalLM` and the others call."""

    config_class = HybridlabConfig
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config):
        super().__init__(config)
        shape, traits = config.structure["shape"], config.traits
        width, eps = shape["width"], shape["norm_eps"]
        self.shape, self.plan, self.groups = shape, config.structure["plan"]["visits"], {}
        self.embedding = nn.Embedding(shape["vocab"], width)
        positions, types = shape["max_positions"], traits["token_types"]
        self.position_embedding = nn.Embedding(positions, width) if positions else None
        self.token_type_embedding = nn.Embedding(types, width) if types else None
        self.embedding_norm = Norm(traits["norm"], width, eps) if traits["embedding_norm"] else nn.Identity()
        factors = config.norm_factors or [None] * shape["layers"]
        self.blocks = nn.ModuleList(Block(shape, traits, factor) for factor in factors)
        self.final_norm = nn.Identity() if traits["post_norm"] else Norm(traits["norm"], width, eps)
        self.head = Head(shape, traits)
        loops = [item for item in self.plan if "bodies" in item]
        self.recurrences = nn.ModuleList(Recurrence(loop, width) for loop in loops)
        kinds = [kind for row in config.structure["map"] for kind in row]
        self.caches = traits["causal"] and not any(loop["literal"] for loop in loops)
        self.caches = self.caches and not any(kind.get("send") == "leaking" for kind in kinds)
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def set_input_embeddings(self, value):
        self.embedding = value

    def states(self, input_ids, attention_mask=None, cache=None, token_type_ids=None):
        """The residual stream (B, S, W) after the final norm, in the order of `input_ids` (B, S), and the index of the
        last token of each row, (B,). attention_mask: (B, S), or with a cache (B, N), 0 on padding."""
        new = input_ids.shape[1]
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError("attention_mask must be (batch, length), 1 on tokens and 0 on padding")
        valid = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -new:].long()
        order, lengths = (1 - valid).argsort(dim=1, stable=True), valid.sum(1)
        steps, before = torch.arange(new, device=input_ids.device), torch.zeros_like(lengths)
        if cache is not None:
            rows = cache.slot("rows")
            before = rows.held.get("count", before)
            rows.held, cache.columns = {"count": before + lengths}, cache.columns + new
        if any(loop.loop["literal"] for loop in self.recurrences) and not bool(valid.all()):
            raise ValueError("the loop of this model counts padding too (literal: true); pass rows of equal length")
        run = Pass(torch.where(steps < lengths[:, None], before[:, None] + steps, -1), 1, cache)
        types = None if token_type_ids is None else token_type_ids.gather(1, order)
        x = self.final_norm(self._run(self._embed(input_ids.gather(1, order), run.new, types), run))
        last = order.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        return x.take_along_dim(order.argsort(dim=1)[..., None], 1), last

    def _embed(self, ids, positions, types):
        x = self.embedding(ids) * self.shape["embedding_scale"]
        if self.position_embedding is not None:
            if int(positions.max()) >= self.position_embedding.num_embeddings:
                raise ValueError(f"this model has {self.position_embedding.num_embeddings} positions only")
            x = x + self.position_embedding(positions.clamp(min=0))
        if self.token_type_embedding is not None:
            x = x + (self.token_type_embedding.weight[0] if types is None else self.token_type_embedding(types))
        return self.embedding_norm(x)

    def _run(self, embedded, run):
        """The plan: visits of blocks, and loops over visits."""
        x, loops = embedded, iter(self.recurrences)
        for index, item in enumerate(self.plan):
            if "bodies" not in item:
                x = self._visit(item, x, run, (index,))
                continue

            def body(t, h, inner, bodies=item["bodies"], index=index):
                for number, visit in enumerate(bodies[t if len(bodies) > 1 else 0]):
                    h = self._visit(visit, h, inner, (index, t, number))
                return h

            x = next(loops)(embedded, x, run, body, index)
        return x

    def _visit(self, visit, x, run, place):
        if visit["part"] == "mlp":
            return self.blocks[visit["layer"]](x, "mlp")
        found = [factor["values"] for factor in self.config.factors if tuple(factor["place"]) == place]
        factor = torch.tensor(found[0], device=x.device) if found else None
        if place not in self.groups:
            self.groups[place] = head_groups(self.config.structure, visit)
        return self.blocks[visit["layer"]](x, visit["part"], self.groups[place], run, place, factor)


class HybridlabForCausalLM(HybridlabModel, GenerationMixin):
    @classmethod
    def _supports_default_dynamic_cache(cls):
        """`forward` makes its own cache; `generate` hands it back."""
        return False

    @can_return_tuple
    def forward(
        self, input_ids, attention_mask=None, past_key_values=None, use_cache=None, labels=None, logits_to_keep=0
    ):
        """input_ids (B, S) → logits (B, S, V), or those of the last `logits_to_keep` positions. labels: (B, S), −100
        where none is asked for."""
        if use_cache and not self.caches:
            raise ValueError("an output of this model depends on later tokens: decode with use_cache=False")
        cache = past_key_values
        if cache is None and use_cache:
            cache = HybridlabCache()
        x, _ = self.states(input_ids, attention_mask, cache)
        logits = self.head(x[:, -logits_to_keep:], self.embedding.weight)
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.shape["vocab"])
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)


class HybridlabForMaskedLM(HybridlabModel):
    @can_return_tuple
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None):
        """input_ids (B, S) → logits (B, S, V). labels: (B, S), −100 where none is asked for."""
        x, _ = self.states(input_ids, attention_mask, token_type_ids=token_type_ids)
        logits = self.head(x, self.embedding.weight)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class HybridlabForSequenceClassification(HybridlabModel):
    @can_return_tuple
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None):
        """input_ids (B, S) → logits (B, labels), from the first token in an encoder, from the last one in a decoder."""
        x, last = self.states(input_ids, attention_mask, token_type_ids=token_type_ids)
        read = last if self.config.traits["causal"] else torch.zeros_like(last)
        logits = self.head(x[torch.arange(len(x), device=x.device), read], self.embedding.weight)
        loss = None
        if labels is not None:
            one = logits.shape[1] == 1
            loss = F.mse_loss(logits[:, 0], labels.to(logits)) if one else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class HybridlabForQuestionAnswering(HybridlabModel):
    @can_return_tuple
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, start_positions=None, end_positions=None):
        """input_ids (B, S) → for each token, how likely it is the first and the last one of the answer, (B, S) each."""
        x, _ = self.states(input_ids, attention_mask, token_type_ids=token_type_ids)
        start, end = self.head(x, self.embedding.weight).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (F.cross_entropy(start, start_positions) + F.cross_entropy(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)
