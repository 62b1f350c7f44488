"""Decoders and encoders: embeddings, the blocks in the order of a plan, final norm, output head.

model = hybridlab.build_model("vanilla", size="tiny"); model(torch.zeros(1, 8, dtype=torch.long)).logits
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from hybridlab.arguments import checked
from hybridlab.attention.heads import NEEDS
from hybridlab.attention.kernels import choose, with_cap
from hybridlab.attention.slots import next_positions
from hybridlab.errors import UserError
from hybridlab.models.blocks import Block, HeadIndex, TokenHead, is_plain, make_head, make_norm, sinusoids
from hybridlab.models.cache import KVCache
from hybridlab.models.executor import Execution, Recompute
from hybridlab.models.generate import Generated, generate
from hybridlab.models.loss import Targets, loss_in_chunks
from hybridlab.models.recurrence import Recurrence, router_biases
from hybridlab.models.taps import Taps
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Place, Visit

_ALIGNMENT = 64
"""Bytes: where torch places new tensors of a CPU; those of a GPU lie at multiples of more."""
Factors = dict[Place, Tensor]
"""Place → (h,): the output of each query head of that visit is multiplied by these."""


@dataclass(frozen=True)
class Output:
    """logits: (B, S, V), or what another output head gives: (B, labels) classes, (B, S, 2) spans. With `need`, also
    attention: place → weights (B, H, Q, S) in fp32, and keys: place → how many keys each of these queries may see
    (B, H, Q), 0 on padding; others: place → what else the kinds return there, by name (`Attended.others`). With
    `targets`, also loss: the weighted sum over them; of the logits there are then none, (B, 0, V)."""

    logits: Tensor
    attention: dict[Place, Tensor] = field(default_factory=dict)
    keys: dict[Place, Tensor] = field(default_factory=dict)
    others: dict[Place, Mapping[str, Tensor]] = field(default_factory=dict)
    loss: Tensor | None = None


class Transformer(nn.Module):
    """What decoders and encoders share: a `torch.nn.Module` made from a structure, whose parameters are in fp32 at
    first. `make_model` chooses between the two.

    factors: see `Factors`; used by default in every forward pass. A model has them if its training ended while heads
    were fading.
    """

    causal: ClassVar[bool]

    def __init__(self, structure: Structure, kernel: str = "auto", factors: Factors | None = None) -> None:
        super().__init__()
        if structure.causal != self.causal:
            other = "a decoder; make a Decoder" if structure.causal else "an encoder; make an Encoder"
            raise UserError(f"{type(self).__name__}: the family {structure.shape.family} is that of {other}")
        shape = structure.shape
        self.structure, self.kernel = structure, kernel
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.position_embedding = None
        if shape.max_positions is not None:
            self.position_embedding = nn.Embedding(shape.max_positions, shape.width)
        types = shape.traits.token_types
        self.token_type_embedding = nn.Embedding(types, shape.width) if types else None
        self.embedding_norm = make_norm(shape, stream=True) if shape.traits.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape, layer) for layer in range(shape.layers))
        self.final_norm = nn.Identity() if shape.traits.post_norm else make_norm(shape)
        self.head = make_head(shape)
        self.recurrences = nn.ModuleList(Recurrence(loop, shape.width) for loop in structure.plan.loops.values())
        """The parameters of the plan's loops, in the order of the loops."""
        self.recompute: Recompute = False
        """What the backward pass recomputes of the activations of the branches instead of storing it."""
        self.compiled = False
        """Run compiled branches of the blocks in passes with gradients."""
        self.factors = _checked_factors(structure, factors or {})
        self.gates: dict[int, Tensor] | None = None
        """The gates of a forward pass that gives none."""
        self._indices: dict[tuple[Visit, torch.device], HeadIndex] = {}

    @classmethod
    def from_tensors(
        cls,
        structure: Structure,
        tensors: Mapping[str, Tensor],
        kernel: str = "auto",
        factors: Factors | None = None,
        source: str | None = None,
    ) -> Self:
        """A model that uses these tensors, by parameter name; of `Transformer` itself, a decoder or an encoder, as the
        structure says. Only those are copied that do not lie as new tensors do; see `_as_new`.

        UserError names a tensor that is missing or has the wrong shape. source: the file or folder of the tensors, for
        messages; with it, tensors that the model does not have are an error too.
        """
        model = cls.without_weights(structure, kernel, factors)
        model.require(tensors, source)
        own = {name: _as_new(tensors[name]) for name, _ in model.named_parameters()}
        model.load_state_dict(own, assign=True)
        return model

    @classmethod
    def without_weights(cls, structure: Structure, kernel: str = "auto", factors: Factors | None = None) -> Self:
        """A model whose parameters have shapes and no memory, until `make_room` gives it to them."""
        with torch.device("meta"):
            return cast(Self, (_class_of(structure) if cls is Transformer else cls)(structure, kernel, factors))

    def make_room(self, device: torch.device) -> None:
        """Give the parameters, or the parts of them that this process has, memory on a device; their numbers are
        arbitrary."""
        factors = {place: factor.to(device) for place, factor in self.factors.items()}
        self.to_empty(device=device)
        self.factors = factors

    def put(self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Copy whole tensors, by parameter name, into the parameters; where processes share these, each its part. Of
        pairs (name, tensor) only one has to be there at a time."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
                own[name].copy_(divided_as(own[name], tensor))

    def require(self, tensors: Mapping[str, Tensor], source: str | None = None) -> None:
        """UserError unless these are tensors for the parameters; see `from_tensors`."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named_parameters()}
        for name in [*shapes, *(sorted(tensors.keys() - shapes.keys()) if source else ())]:
            expected, given = shapes.get(name), tuple(tensors[name].shape) if name in tensors else None
            if given != expected:
                raise UserError(
                    f"{source or 'model'}: weights of another architecture: {name} is {given or 'missing'} there, but "
                    f"{expected or 'missing'} in this model; give the shape and plan settings of their training"
                )
        for name in shapes:
            if not tensors[name].is_floating_point():
                raise UserError(
                    f"{source or 'model'}: {name} holds {str(tensors[name].dtype).removeprefix('torch.')} numbers; "
                    "the parameters of a model are floating-point numbers"
                )

    @property
    def shape(self) -> Shape:
        return self.structure.shape

    @property
    def plan(self) -> Plan:
        return self.structure.plan

    @property
    def attention_map(self) -> AttentionMap:
        return self.structure.map

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the factors with the parameters (`to`, `cuda` …)."""
        super()._apply(fn, recurse)
        self.factors = {place: fn(factor) for place, factor in self.factors.items()}
        return self

    @property
    def output_table(self) -> Tensor:
        """(V, W): the matrix of an output head that gives tokens."""
        own = getattr(self.head, "weight", None)
        return self.embedding.weight if own is None else own

    @checked
    def with_plan(
        self,
        plan: Plan | None = None,
        attention_map: AttentionMap | None = None,
        factors: Factors | None = None,
        gates: dict[int, Tensor] | None = None,
    ) -> Self:
        """A model with these weights (shared, not copied) and another plan, map, factors or gates.

        Without `factors`, the heads that still run keep theirs; see `_moved_factors`.
        """
        structure, tensors = self.structure.changed(plan, attention_map), dict(self.named_parameters())
        factors = _moved_factors(self.factors, self.structure, structure) if factors is None else factors
        other = type(self).from_tensors(structure, tensors, self.kernel, factors)
        other.recompute, other.gates = self.recompute, self.gates if gates is None else gates
        return other.train(self.training)

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        gates: dict[int, Tensor] | None = None,
        factors: Factors | None = None,
        need: str = "none",
        taps: Taps | None = None,
        cache: KVCache | None = None,
        token_type_ids: Tensor | None = None,
        at: Tensor | None = None,
        targets: Targets | None = None,
        inputs_embeds: Tensor | None = None,
        checked: Collection[str] = (),
    ) -> Output:
        """input_ids (B, S) → logits (B, S, V), or what the output head gives.

        attention_mask: (B, S), 1 on tokens and 0 on padding, which must be on the right. segment_ids: (B, S), tokens
        see only tokens of the same document. position_ids: (S,) or (B, S), 0 … S − 1 by default. gates: layer → z (K,)
        of its mixed heads. factors: see `Factors`. By default these two are the model's own. need: attention weights
        to return, `none`, `last_row` or `full`. cache: keys and values of earlier calls; the tokens of this call
        continue its rows and are stored too. token_type_ids: (B, S), 0 by default, in families with token types. at:
        (B, N), the positions whose logits (B, N, V) are returned; by default all. targets: with an output head that
        gives tokens, return the loss of these in place of logits, see `loss_in_chunks`. inputs_embeds: (B, S, W), rows
        of the table of embeddings or others in their place; input_ids is None then. checked: the names of inputs that
        `check_inputs` has seen, before they came to their device.
        """
        if need not in NEEDS:
            raise UserError(f"need {need!r} is unknown; use one of {', '.join(NEEDS)}")
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        lengths: list[int] = []
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "token_type_ids": token_type_ids}
        self.check_inputs({name: t for name, t in given.items() if name not in checked}, cached=cache is not None)
        valid = None if attention_mask is None else attention_mask.bool()
        if cache is not None:
            if segment_ids is not None or position_ids is not None or need != "none":
                raise UserError("cache: leave out segment_ids, position_ids and need; they do not work with a cache")
            lengths = self._lengths(cache, x, valid)
        else:
            self._check_loops(segment_ids, position_ids)
        if position_ids is None:
            position_ids = self._positions(x, cache)
        execution = self._execution(
            position_ids,
            self.gates if gates is None else gates,
            self.factors if factors is None else factors,
            valid=valid,
            segments=segment_ids,
            need=need,
            taps=taps,
            cache=cache,
            lengths=lengths,
            recompute=self.recompute,
            compiled=self.compiled,
        )
        x = execution.run(self._embed(x, position_ids, token_type_ids))
        if cache is not None:
            cache.advance(lengths)
        attended = execution.attended.items()
        own = {"attention": "weights", "keys": "keys", "others": "others"}
        found: dict[str, Any] = {to: {place: getattr(a, name) for place, a in attended} for to, name in own.items()}
        read = x if at is None else x.take_along_dim(at[..., None], 1)
        if targets is None:
            return Output(self.logits(read, valid), **found)
        factors_of_head = cast(TokenHead, self.head).factors(self.final_norm(read), self.embedding.weight)
        loss = loss_in_chunks(*factors_of_head, targets, self.compiled, self.shape.logit_cap)
        return Output(loss.new_empty(len(read), 0, self.shape.vocab), **found, loss=loss)

    def step(self, tokens: Tensor, cache: KVCache, at: Tensor) -> Tensor:
        """Logits (B, 1, V) after one more token (B, 1) of each row, at positions (B,), which is stored.

        As `forward` with a cache, but that all counts are tensors, so that one compiled graph serves every token; the
        cache does not count them. See `KVCache.require_steps`.
        """
        positions = at[:, None]
        execution = self._execution(positions, self.gates, self.factors, cache=cache, at=at)
        return self.logits(execution.run(self._embed(self.embedding(tokens), positions, None)))

    def _execution(
        self, positions: Tensor, gates: dict[int, Tensor] | None, factors: Factors, **inputs: Any
    ) -> Execution:
        """A pass of this model. inputs: further ones of `Execution`."""
        blocks, recurrences = cast(list[Block], list(self.blocks)), cast(list[Recurrence], list(self.recurrences))
        loops = dict(zip(self.plan.loops, recurrences, strict=True))
        own = (self.structure, blocks, loops, positions, self.kernel)
        return Execution(*own, gates=gates, factors=factors, indices=self._indices, **inputs)

    def generate(self, input_ids: Tensor, max_new_tokens: int, **settings: Any) -> Generated:
        """Continue prompts; the arguments are those of `hybridlab.models.generate.generate`."""
        return generate(self, input_ids, max_new_tokens, **settings)

    def _positions(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """Positions of the tokens of x (B, S, W), the first ones or those after a cache; UserError where the model has
        none."""
        length, device = x.shape[1], x.device
        if not torch.compiler.is_compiling():
            self.require_position((0 if cache is None else max(cache.counts)) + length - 1)
        return torch.arange(length, device=device) if cache is None else next_positions(cache.counts, length, device)

    def _embed(self, x: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Rows of the table of embeddings (B, S, W) → the residual stream before the plan."""
        x = x * self.shape.embedding_scale
        if self.position_embedding is not None:
            x = x + self.position_embedding(position_ids)
        return self.embedding_norm(self._with_types(x, token_type_ids))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    def require_position(self, last: int) -> None:
        """UserError if the model has learned positions, but not so many."""
        if self.position_embedding is not None and last >= self.position_embedding.num_embeddings:
            learned = self.position_embedding.num_embeddings
            raise UserError(f"position {last}: this model has learned positions 0 to {learned - 1} only")

    def _with_types(self, x: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Embeddings (B, S, W) plus those of the token types, if the model has them."""
        table = self.token_type_embedding
        if table is None:
            return x
        if token_type_ids is None and is_plain(table):
            return x + table.weight[0]
        return x + table(x.new_zeros((), dtype=torch.long) if token_type_ids is None else token_type_ids)

    def check_inputs(self, inputs: Mapping[str, Tensor | None], cached: bool = False) -> None:
        """UserError for a mask, positions or token types that a pass cannot take. They are read, for which a device has
        to finish its work. inputs: of the pass, by name. cached: whether it has a cache."""
        mask, positions, types = (inputs.get(name) for name in ("attention_mask", "position_ids", "token_type_ids"))
        if mask is not None:
            valid = mask.bool()
            if bool((valid[:, 1:] & ~valid[:, :-1]).any()):
                raise UserError("attention_mask: padding must be to the right of the tokens")
            if not (cached or bool(valid[:, 0].all())):
                raise UserError("attention_mask: every row needs at least one token")
            if self.plan.literal and not (cached or bool(valid.all())):
                raise UserError(
                    "the paper's literal ⌊L / g⌋ chunks count padding too: pass rows of equal length without "
                    "attention_mask"
                )
        if positions is not None and self.position_embedding is not None and not torch.compiler.is_compiling():
            self.require_position(int(positions.max()))
        if types is not None:
            known = self.shape.traits.token_types
            if not known:
                raise UserError(f"token_type_ids: the family {self.shape.family} has no token types; leave them out")
            if bool((types < 0).any()) or bool((types >= known).any()):
                raise UserError(f"token_type_ids: this model has the token types 0 to {known - 1} only")

    def _lengths(self, cache: KVCache, x: Tensor, valid: Tensor | None) -> list[int]:
        """New tokens of each row. UserError if the cache is not for this model and batch, or is too small."""
        if self.plan.literal:
            raise UserError(
                "cache: with the paper's literal ⌊L / g⌋ chunks an output depends on the total length; "
                "set literal: false, or decode without a cache"
            )
        if len(x) != cache.batch or cache.structure != self.structure:
            raise UserError("cache: it was made for another batch size or another structure; make a new one")
        lengths = [x.shape[1]] * cache.batch if valid is None else valid.sum(1).tolist()
        cache.check_room(lengths)
        return lengths

    def _check_loops(self, segments: Tensor | None, positions: Tensor | None) -> None:
        """UserError for inputs that a loop would compute otherwise than a row of one document."""
        if segments is not None and any(loop.crosses_documents for loop in self.plan.loops.values()):
            raise UserError(
                "this plan has loops over chunks or with a shift, which carry states from one document into the next: "
                "pack no documents into a row, and leave out segment_ids"
            )
        if self.plan.chunked and positions is not None:
            raise UserError(
                "this plan has loops over chunks, which count from the start of a row: leave out position_ids"
            )

    def kernels_used(self, length: int, device: torch.device, low_precision: bool) -> dict[str, set[str]]:
        """The kernels of each softmax of the structure at a sequence length, and at the lengths of its loops over
        chunks: {"full": {"sdpa"}, "window(8)": {"banded"}}; a kind with kernels of its own has its name."""
        used: dict[int | str | None, set[str]] = {}
        causal = self.structure.causal
        for place, visit in self.structure.attention_places():
            tokens = self.plan.tokens_at(place, length)
            for kind in dict.fromkeys(self.structure.kinds(visit)) if tokens else ():
                kernel = kind.kernel_for(self.kernel, device.type, self.shape.head_width)
                if (own := kind.own_kernel(kernel, tokens, causal)) is not None:
                    used.setdefault(kind.name, set()).add(own)
                    continue
                for window in kind.softmaxes:
                    beside = window in kind.beside
                    name = choose(self.kernel, window, tokens, device, low_precision, causal, beside)
                    used.setdefault(window, set()).add(name if self.shape.score_cap is None else with_cap(name))
        ordered = sorted(used, key=lambda softmax: (softmax is not None, isinstance(softmax, str), softmax))
        names = ("full" if of is None else of if isinstance(of, str) else f"window({of})" for of in ordered)
        return dict(zip(names, (used[softmax] for softmax in ordered), strict=True))

    def logits(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The final norm and the output head on a residual stream x (B, S, W). valid: (B, S), False on padding."""
        return self.head(self.final_norm(x), valid, self.embedding.weight)


class Decoder(Transformer):
    """A causal language model: a token sees itself and the tokens before it.

    `model(tokens).logits` of tokens (B, S) are (B, S, V); `model.generate(tokens, max_new_tokens=n)` continues prompts
    with a cache; `with_plan` gives the same weights another plan or map. `structure`, `shape`, `plan` and
    `attention_map` say what runs. UserError for masks and positions that do not fit.

        model = hybridlab.build_model("vanilla", size="tiny")
        twice = model.with_plan(model.plan.loop_heads(layer=5, heads=(3, 7)))
        twice(torch.zeros(1, 16, dtype=torch.long)).logits.shape    # (1, 16, vocabulary)
    """

    causal = True


class Encoder(Transformer):
    """A model whose tokens see those on both sides (BERT); otherwise as `Decoder`.

    It continues no text: UserError for `generate` and for a cache.

        model = hybridlab.build_model("bert", size="bert-tiny")
        tokens = torch.zeros(1, 16, dtype=torch.long)
        model(tokens, token_type_ids=torch.zeros_like(tokens)).logits.shape    # (1, 16, vocabulary)
    """

    causal = False


def make_model(structure: Structure, kernel: str = "auto") -> Transformer:
    """The model of a structure: a `Decoder` if it is causal, else an `Encoder`. Its weights are not drawn yet."""
    return _class_of(structure)(structure, kernel)


def _as_new(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is not contiguous or its address is no multiple of 64 bytes, as in a file that is
    mapped into memory: some matrix products have other last bits there, so that a resumed run would differ."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _class_of(structure: Structure) -> type[Transformer]:
    return Decoder if structure.causal else Encoder


def _checked_factors(structure: Structure, factors: Factors) -> Factors:
    """The factors; UserError if a visit has another number of query heads."""
    for place, factor in factors.items():
        visit = structure.plan[place]
        heads = 0 if visit.part == "mlp" else len(structure.heads(visit).query)
        if tuple(factor.shape) != (heads,):
            raise UserError(f"factors: the visit at {place} has {heads} heads, but factors {tuple(factor.shape)}")
    return factors


def _moved_factors(factors: Factors, old: Structure, new: Structure) -> Factors:
    """The factors at the places of another plan: a visit has those of the next visit of its layer in the old plan that
    runs all of its heads."""
    if not factors or new.plan == old.plan:
        return factors
    runs: dict[int, list[tuple[Place, tuple[int, ...]]]] = defaultdict(list)
    for place, visit in old.attention_places():
        runs[visit.layer].append((place, old.heads(visit).query))
    left = {layer: iter(visits) for layer, visits in runs.items()}
    moved = {}
    for place, visit in new.attention_places():
        heads = new.heads(visit).query
        # What is passed over is left out in the new plan.
        for before, had in left.get(visit.layer, ()):
            if set(heads) <= set(had):
                if before in factors:
                    moved[place] = factors[before][[had.index(head) for head in heads]]
                break
    return moved


def divided_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, divided over the processes as a parameter is; itself where nothing is divided."""
    if not hasattr(parameter, "placements"):
        return tensor
    # Imported here, because it takes long. Every process has the same tensor, so nothing is sent.
    from torch.distributed.tensor import DTensor, distribute_tensor

    other = cast(DTensor, parameter)
    whole = tensor.to(other.device, other.dtype)
    return distribute_tensor(whole, other.device_mesh, other.placements, src_data_rank=None)


def draw_weights(model: Transformer, seed: int) -> None:
    """Draw all parameters; see `drawn_weights`."""
    model.put(drawn_weights(model, seed))


def drawn_weights(model: Transformer, seed: int) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) for every parameter of a model, drawn in fp32 as the shape's `init` and the loops' `router_init`
    say; the same seed gives the same weights on every machine."""
    init, shape = model.shape.init, model.shape
    generator = torch.Generator().manual_seed(seed)
    linear_std = init.std / (math.sqrt(shape.width) if init.scheme == "inverse-sqrt-width" else 1.0)
    depth = sum(visit.part != "attention" for _, visit in model.plan.places())
    output_std = linear_std / (math.sqrt(2 * depth) if init.scale_outputs_by_depth else 1.0)
    biases = {
        f"recurrences.{number}.{name}": bias
        for number, loop in enumerate(model.plan.loops.values())
        for name, bias in router_biases(loop).items()
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            yield (
                name,
                biases[name] if name in biases else torch.full(parameter.shape, 0.0 if name.endswith("bias") else 1.0),
            )
        elif name == "position_embedding.weight" and init.positions == "sinusoidal":
            yield name, sinusoids(*parameter.shape) * init.embedding_std * math.sqrt(2)
        else:
            writes_residual = name.endswith(("attention.o.weight", "mlp.down.weight"))
            std = init.embedding_std if "embedding" in name else output_std if writes_residual else linear_std
            if init.truncate is None:
                yield name, torch.randn(parameter.shape, generator=generator) * std
            else:
                cut = init.truncate * std
                yield name, nn.init.trunc_normal_(torch.empty(parameter.shape), 0.0, std, -cut, cut, generator)
