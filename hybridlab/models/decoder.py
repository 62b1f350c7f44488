"""The executor: a decoder that runs any plan over its blocks, with taps for analyses.

model = hybridlab.build_model("vanilla", size="tiny"); model(torch.zeros(1, 8, dtype=torch.long)).logits
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hybridlab.config.schema import Shape
from hybridlab.errors import UserError
from hybridlab.models.attention import NEEDS, Attended
from hybridlab.models.blocks import Block, Pass, make_norm
from hybridlab.models.cache import KVCache, next_positions
from hybridlab.models.kernels import choose
from hybridlab.models.recurrence import Recurrence
from hybridlab.models.recurrence_cache import run_cached
from hybridlab.plan.attention_map import AttentionMap, Full, Window
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Place, Plan, Visit, check_heads

if TYPE_CHECKING:
    from hybridlab.models.generate import Generated


class Taps:
    """What an analysis may see and change while a plan runs. Subclass and override. Inside a loop over chunks, x holds
    latents (B, n, W)."""

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        """After a visit: its input x (B, S, W) and what it added to the residual stream."""

    def run_visit(self, place: Place, x: Tensor, run: Visit) -> Tensor | None:
        """Instead of a visit: its output (B, S, W), or None to let it run."""
        return None

    def on_iteration(self, place: Place, h: Tensor) -> None:
        """After an iteration of a loop, at (index of the loop, iteration): the next state (B, S, W)."""


@dataclass(frozen=True)
class Output:
    """logits (B, S, V). Where `need` asked for them: attention, place → weights (B, H, Q, S) in fp32, and keys,
    place → how many keys each of these queries may see (B, H, Q)."""

    logits: Tensor
    attention: dict[Place, Tensor] = field(default_factory=dict)
    keys: dict[Place, Tensor] = field(default_factory=dict)


class Decoder(nn.Module):
    """A causal language model: embedding, the blocks in the order of the plan, final norm, output head."""

    def __init__(self, shape: Shape, plan: Plan, attention_map: AttentionMap, kernel: str = "auto") -> None:
        super().__init__()
        self.shape, self.kernel = shape, kernel
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        learned = shape.traits.learned_positions
        self.position_embedding = nn.Embedding(shape.max_positions, shape.width) if learned else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = make_norm(shape)
        self.head = None if shape.tied_embeddings else nn.Linear(shape.width, shape.vocab, bias=False)
        self.recompute = False
        """Keep no activations of the branches for the backward pass: compute them again there."""
        self.recurrences = nn.ModuleList(Recurrence(loop, shape.width) for loop in plan.loops.values())
        """Own parameters of the plan's loops, in their order."""
        self._signatures = [loop.signature() for loop in plan.loops.values()]
        self._set_structure(plan, attention_map, {})

    def _set_structure(self, plan: Plan, attention_map: AttentionMap, factors: dict[Place, Tensor]) -> None:
        if plan.num_layers != self.shape.layers:
            raise UserError(f"plan: it is made for {plan.num_layers} layers, but the model has {self.shape.layers}")
        if plan.parallel != self.shape.traits.parallel:
            kind = "parallel" if self.shape.traits.parallel else "serial"
            raise UserError(f"plan: the blocks of this shape are {kind}; make it with Plan.plain(layers, parallel=…)")
        check_heads(plan, self.shape.heads)
        if plan.loops and [loop.signature() for loop in plan.loops.values()] != self._signatures:
            raise UserError("plan: its loops need other scorers, allocators or routers than this model has")
        attention_map.check_shape(self.shape.layers, self.shape.kv_heads)
        for place, factor in factors.items():
            heads = len(plan[place].heads or range(self.shape.heads))
            if plan[place].part == "mlp" or tuple(factor.shape) != (heads,):
                raise UserError(f"factors: the visit at {place} has {heads} heads, not {tuple(factor.shape)}")
        self.plan, self.attention_map, self.factors = plan, attention_map, factors

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Decoder:
        """Factors go where the parameters go."""
        super()._apply(fn, recurse)
        self.factors = {place: fn(factor) for place, factor in self.factors.items()}
        return self

    def with_plan(
        self,
        plan: Plan | None = None,
        attention_map: AttentionMap | None = None,
        factors: dict[Place, Tensor] | None = None,
    ) -> Decoder:
        """A model that shares these weights and runs another plan or map, or its heads at these factors.

        Factors belong to places of a plan: another plan starts without any.
        """
        other = copy.copy(self)
        if factors is None:
            factors = self.factors if plan is None or plan == self.plan else {}
        other._set_structure(plan or self.plan, attention_map or self.attention_map, factors)
        return other

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        gates: dict[int, Tensor] | None = None,
        factors: dict[Place, Tensor] | None = None,
        need: str = "none",
        taps: Taps | None = None,
        cache: KVCache | None = None,
    ) -> Output:
        """input_ids (B, S) → logits (B, S, V).

        attention_mask: (B, S), 1 on tokens and 0 on padding, which stands to the right. segment_ids: (B, S), tokens
        see only their own document. position_ids: (S,) or (B, S), 0 … S − 1 by default. gates: layer → z (K,) of its
        mixed heads. factors: place → (h,), see `Pass`; the model's own where none are given. need: attention weights to
        return, `none`, `last_row` or `full`. cache: what earlier calls have stored; the tokens of this call follow it,
        row by row, and are stored too.
        """
        lengths: list[int] = []
        if need not in NEEDS:
            raise UserError(f"need {need!r} is unknown; use one of {', '.join(NEEDS)}")
        valid = None if attention_mask is None else _right_padded(attention_mask, may_be_empty=cache is not None)
        if cache is not None:
            lengths = self._check_cache(cache, input_ids, valid, segment_ids, position_ids, need)
            position_ids = next_positions(cache.counts, input_ids.shape[1], input_ids.device)
        else:
            self._check_loops(segment_ids, position_ids, valid is not None and not bool(valid.all()))
            if position_ids is None:
                position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        factors = self.factors if factors is None else factors
        shared = Pass(position_ids, self.kernel, valid, segment_ids, gates, factors, need)
        asked: dict[Place, Attended] = {}
        x = embedded = self._embed(input_ids, position_ids)
        for index, item in enumerate(self.plan.visits):
            if isinstance(item, Visit):
                x = self._visit((index,), item, x, shared, asked, taps, cache)
            else:
                run = partial(self._body, index, item, shared=shared, asked=asked, taps=taps, cache=cache)
                x = self._recur(index, item, embedded, x, run, taps, cache, lengths)
        if cache is not None:
            cache.advance(lengths)
        weights = {place: attended.weights for place, attended in asked.items()}
        return Output(self.logits(x), weights, {place: attended.keys for place, attended in asked.items()})

    def generate(self, input_ids: Tensor, max_new_tokens: int, **settings: Any) -> Generated:
        """Continue prompts; see `hybridlab.models.generate.generate`, which takes the same arguments."""
        from hybridlab.models.generate import generate

        return generate(self, input_ids, max_new_tokens, **settings)

    def _embed(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids) * self.shape.embedding_scale
        if self.position_embedding is None:
            return x
        last = int(position_ids.max())
        if last >= self.shape.max_positions:
            raise UserError(
                f"position {last}: this model has learned positions 0 to {self.shape.max_positions - 1} only"
            )
        return x + self.position_embedding(position_ids)

    def _check_cache(
        self, cache: KVCache, input_ids: Tensor, valid: Tensor | None, segments: Tensor | None,
        positions: Tensor | None, need: str,
    ) -> list[int]:  # fmt: skip
        """Lengths of the rows, after refusing what a cache cannot do."""
        if segments is not None or positions is not None or need != "none":
            raise UserError(
                "cache: it counts positions by itself and keeps no weights; leave out segment_ids, position_ids and need"
            )
        if any(loop.literal for loop in self.plan.loops.values()):
            raise UserError(
                "cache: with the paper's literal ⌊L / g⌋ chunks an output depends on the total length; "
                "decode with literal: false, or without a cache"
            )
        if len(input_ids) != cache.batch or cache.slots.keys() != {p for p, v in self.plan.places() if v.part != "mlp"}:
            raise UserError("cache: it was made for another batch size or another plan")
        lengths = [input_ids.shape[1]] * cache.batch if valid is None else valid.sum(1).tolist()
        cache.check_room(lengths)
        return lengths

    def _check_loops(self, segments: Tensor | None, positions: Tensor | None, padded: bool) -> None:
        """Chunks count from the start of a row: what would count otherwise is refused."""
        if padded and any(loop.literal for loop in self.plan.loops.values()):
            raise UserError("the paper's literal ⌊L / g⌋ chunks count padding too: pass rows of one length, or no mask")
        chunked = any(g > 1 for loop in self.plan.loops.values() for g in loop.chunks)
        if chunked and (segments is not None or positions is not None):
            raise UserError(
                "this plan has loops over chunks, which count from the start of a row: "
                "pack no documents into a row, and leave out segment_ids and position_ids"
            )

    def kernels_used(self, length: int, device: torch.device, low_precision: bool) -> dict[str, str]:
        """The kernel that each kind of head of the map runs at a length: {"full": "sdpa", "window(8)": "banded"}."""
        kinds = {kind for row in self.attention_map.layers for kind in row}
        widths = {kind.width for kind in kinds if not isinstance(kind, Full)}
        names = {f"window({w})": choose(self.kernel, w, length, device, low_precision) for w in sorted(widths)}
        if all(isinstance(kind, Window) for kind in kinds):
            return names
        return {"full": choose(self.kernel, None, length, device, low_precision), **names}

    def logits(self, x: Tensor) -> Tensor:
        """The final norm and the output head on a residual stream x (B, S, W)."""
        head = self.embedding.weight if self.head is None else self.head.weight
        return nn.functional.linear(self.final_norm(x), head)

    def _recur(
        self, index: int, loop: Loop, embedded: Tensor, x: Tensor, run: Callable[..., Tensor], taps: Taps | None,
        cache: KVCache | None, lengths: list[int],
    ) -> Tensor:  # fmt: skip
        """A loop on the state x (B, S, W)."""
        recurrence = self.recurrences[list(self.plan.loops).index(index)]
        if cache is None:
            seen = (lambda t, h: taps.on_iteration((index, t), h)) if taps else None
            return recurrence.run(loop, embedded, x, run, seen)
        return run_cached(recurrence, loop, cache.loops[index], embedded, x, cache.counts, lengths, run)

    def _body(
        self, index: int, loop: Loop, t: int, z: Tensor, real: Tensor | None = None, *, shared: Pass,
        asked: dict[Place, Attended], taps: Taps | None, cache: KVCache | None,
    ) -> Tensor:  # fmt: skip
        """The body of iteration t on latents z (B, n, W); in decoding, real (B, n) says which of them there are."""
        g = loop.chunks[t]
        if g > 1:
            # Latents stand in for chunks: they have positions of their own, and those of padding are padding.
            if cache is None and shared.valid is not None:
                complete = (shared.valid.sum(1) + loop.offset_of(t)) // g
                real = torch.arange(z.shape[1], device=z.device)[None] < complete[:, None]
            stride = g if loop.positions == "token" else 1
            positions = torch.arange(z.shape[1], device=z.device) * stride
            shared = replace(shared, positions=positions, stride=stride, valid=real, segments=None)
        for inner, visit in enumerate(loop.body(t)):
            z = self._visit((index, t, inner), visit, z, shared, asked, taps, cache)
        return z

    def _visit(
        self, place: Place, visit: Visit, x: Tensor, shared: Pass, asked: dict[Place, Attended], taps: Taps | None,
        cache: KVCache | None,
    ) -> Tensor:  # fmt: skip
        out = taps.run_visit(place, x, visit) if taps else None
        if out is None:
            out = self._run(place, visit, x, shared, asked, cache)
        if taps:
            taps.on_visit(place, x, out - x)
        return out

    def _run(
        self, place: Place, visit: Visit, x: Tensor, shared: Pass, asked: dict[Place, Attended], cache: KVCache | None
    ) -> Tensor:
        block = self.blocks[visit.layer]
        mlp_input = x
        if visit.part != "mlp":
            gate = None if shared.gates is None else shared.gates.get(visit.layer)
            slot = None if cache is None else cache.slots[place]
            kinds, factor = self.attention_map.layers[visit.layer], shared.factors.get(place)
            attended = self._branch(block.attention_branch, x, kinds, shared, gate, factor, visit.heads, slot)
            x = x + attended.out
            mlp_input = mlp_input if self.plan.parallel else x
            if attended.weights is not None:
                asked[place] = attended
        if visit.part != "attention":
            x = x + self._branch(block.mlp_branch, mlp_input)
        return x

    def _branch(self, branch: Callable[..., Any], *arguments: Any) -> Any:
        """A branch of a block; everything that it reads is an argument, so that it can be computed again."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(branch, *arguments, use_reentrant=False)
        return branch(*arguments)


def _right_padded(attention_mask: Tensor, may_be_empty: bool) -> Tensor:
    valid = attention_mask.bool()
    if bool((valid[:, 1:] & ~valid[:, :-1]).any()):
        raise UserError("attention_mask: padding must stand to the right of the tokens")
    if not (may_be_empty or bool(valid[:, 0].all())):
        raise UserError("attention_mask: every row needs a token")
    return valid


def draw_weights(model: Decoder, seed: int) -> None:
    """Fill all parameters from one seed, as the shape's `init` says; the same seed gives the same weights anywhere."""
    init, shape = model.shape.init, model.shape
    generator = torch.Generator().manual_seed(seed)
    linear_std = init.std / (math.sqrt(shape.width) if init.scheme == "inverse-sqrt-width" else 1.0)
    depth = sum(visit.part != "attention" for _, visit in model.plan.places())
    output_std = linear_std / (math.sqrt(2 * depth) if init.scale_outputs_by_depth else 1.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            writes_residual = name.endswith(("attention.o.weight", "mlp.down.weight"))
            std = init.embedding_std if "embedding" in name else output_std if writes_residual else linear_std
            if init.truncate is None:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
            else:
                cut = init.truncate * std
                nn.init.trunc_normal_(parameter, std=std, a=-cut, b=cut, generator=generator)
