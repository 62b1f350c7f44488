"""The FLOPs ledger: FLOPs of a plan, summed over its visits, under a named convention.

Papers count the same model differently (half or full square of the attention, windows, embedding). A convention holds
these choices as data. Common to most: a product of (m, k) and (k, n) costs 2·m·k·n; training costs three times the
forward pass.

    python -c "import hybridlab; print(hybridlab.flops('vanilla', 128, 'consa'))"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from hybridlab.arguments import checked
from hybridlab.attention.kinds import BANDED, band_block
from hybridlab.config.finetune import Lora
from hybridlab.errors import UserError, shown
from hybridlab.models.ledger.parameters import head_matrices, mlp_matrices
from hybridlab.plan.loop import Loop
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Visit

if TYPE_CHECKING:
    import torch

    from hybridlab.models.decoder import Transformer

TRAINING_FACTOR = 3
"""Forward pass, gradients of the inputs, gradients of the weights."""


def _both_sides(length: int, window: int) -> float:
    """Mean over the queries i of the keys j with |i − j| < window."""
    inside = min(window, length)
    return (2 * inside - 1) - inside * (inside - 1) / length


@dataclass(frozen=True)
class Convention:
    """How a paper counts FLOPs.

    explicit_keys, window_keys: (length) or (length, window) → keys counted per query of full attention, or of a window.
    both_sides: the same as window_keys in an encoder, where a query sees keys on both sides; full attention counts all
    keys there. embedding: training FLOPs per token for the lookup of embeddings, in units of V·d. per_pair: further
    FLOPs per pair of positions in an attention. recurrence: whether scorers, allocators and routers of loops are
    counted. product: FLOPs of a product of numbers with its addition. norm: FLOPs of a norm, per token and channel.
    fused: whether attention is counted that needs no matrix of weights; what needs one counts explicit_keys in any
    case. inference_head: whether the output head is counted outside training. training: its cost in forward passes.
    """

    name: str
    source: str
    explicit_keys: Callable[[int], float]
    window_keys: Callable[[int, int], float]
    embedding: float = 0
    per_pair: float = 0
    recurrence: bool = False
    both_sides: Callable[[int, int], float] = _both_sides
    product: float = 2
    norm: float = 0
    fused: bool = True
    inference_head: bool = True
    training: float = TRAINING_FACTOR

    def of(self, structure: Structure) -> Convention:
        """The convention for a structure, whose tokens may see both sides."""
        return self if structure.causal else replace(self, explicit_keys=lambda s: s, window_keys=self.both_sides)

    def keys(self, length: int, window: int | None) -> float:
        """Keys counted per query in a softmax over the last `window` keys (None: all)."""
        if not self.fused:
            return 0
        return self.explicit_keys(length) if window is None else self.window_keys(length, window)


def _exact_window_pairs(length: int, window: int) -> float:
    """Mean over the queries i of min(i + 1, window)."""
    inside = min(window, length)
    return (inside * (inside + 1) / 2 + (length - inside) * window) / length


def _banded_keys(length: int, window: int) -> float:
    """Two blocks of keys for each query of the padded sequence, as the kernels `banded` and `blocks` compute."""
    block = band_block(window)
    return length if length <= block else -(-length // block) * block * 2 * block / length


CONVENTIONS = {
    c.name: c
    for c in (
        Convention(
            *("executed", "what eager and sdpa compute: all pairs", lambda s: s, lambda s, w: s),
            recurrence=True,
            both_sides=lambda s, w: s,
        ),
        Convention(
            *("executed-banded", "the same with windows as blocks, in decoders", lambda s: s, _banded_keys),
            recurrence=True,
            both_sides=lambda s, w: s,
        ),
        Convention("consa", "ConSA, table 4: S/2 and w/2 keys per query", lambda s: s / 2, lambda s, w: min(w, s) / 2),
        Convention("square", "the full square, windows w keys per query", lambda s: s, lambda s, w: min(w, s)),
        Convention("sgt", "SGT: square, and 4·V·d a token in training for embeddings", lambda s: s, min, embedding=4),
        Convention("depth", "depth growth, table 7: the full square, the head once", lambda s: s, min),
        Convention("spiral", "SpiralFormer, table 1: the full square at each resolution", lambda s: s, min),
        Convention(
            "spiral-print",
            "spiral plus 105 FLOPs per pair, as in the printed values; the paper does not explain them",
            lambda s: s,
            min,
            per_pair=105,
        ),
        Convention(
            "saobp",
            "SAOBP, table 9: multiply-accumulates; fused attention uncounted; training is a forward pass with the head",
            lambda s: s,
            min,
            product=1,
            norm=5,
            fused=False,
            inference_head=False,
            training=1,
        ),
        Convention("pairs", "exact pairs of query and visible key", lambda s: (s + 1) / 2, _exact_window_pairs),
    )
}


@dataclass(frozen=True)
class Cost:
    """FLOPs of one sequence. breakdown: forward FLOPs by component. unit: what is counted."""

    forward: float
    training: float
    unit: str
    breakdown: dict[str, float]


def convention_of(kernel: str, device: torch.device, low_precision: bool) -> Convention:
    """The convention that counts what the kernels compute that `choose` takes for each window and length. A window that
    is learned beside full attention counts as if it were computed alone, so that it costs the same on all machines."""
    from hybridlab.attention.kernels import choose

    def keys(length: int, window: int) -> float:
        banded = choose(kernel, window, length, device, low_precision) in BANDED
        return _banded_keys(length, window) if banded else length

    return replace(CONVENTIONS["executed"], source="what the chosen kernels compute", window_keys=keys)


def convention_named(name: str | Convention) -> Convention:
    """The convention of this name, or the one that is given; UserError if there is none."""
    if isinstance(name, Convention):
        return name
    if name not in CONVENTIONS:
        raise UserError(f"convention {name!r} is unknown; use one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


def ledger(structure: Structure, seq_len: int, convention: str | Convention) -> Cost:
    """FLOPs of one sequence of `seq_len` tokens under a convention, or the one of this name."""
    rules, shape, plan = convention_named(convention).of(structure), structure.shape, structure.plan
    breakdown: dict[str, float] = defaultdict(float)
    for place, visit in plan.places():
        tokens = plan.tokens_at(place, seq_len)
        if not tokens:
            continue
        for component, amount in _visit_cost(structure, visit, tokens, rules).items():
            breakdown[component] += amount
    for loop in plan.loops.values() if rules.recurrence else ():
        breakdown["recurrence"] += recurrence_cost(loop, shape.width, seq_len)
    if rules.norm:
        # The final norm or, in a post-norm model, that of the embeddings.
        breakdown["norms"] += _norm_cost(shape, rules) * seq_len
    head = head_cost(shape, seq_len, rules)
    if rules.inference_head:
        breakdown["head"] += head
    forward = sum(breakdown.values())
    training = rules.training * (forward + (0 if rules.inference_head else head))
    embedding = rules.embedding * shape.vocab * shape.width * seq_len
    unit = "FLOPs per sequence" if rules.product == 2 else "multiply-accumulates per sequence"
    return Cost(forward, training + embedding, unit, dict(breakdown))


def adapted_training(structure: Structure, seq_len: int, cost: Cost, lora: Lora) -> float:
    """FLOPs of training on one sequence where only adapters are trained and, in place of tokens, the output head. The
    frozen matrices need no gradients of their own; one with an adapter is computed for all heads, also where some run
    alone. An upper bound: before the first adapter the gradients of inputs are not needed either, and still counted.
    cost: of the structure."""
    shape, plan = structure.shape, structure.plan
    frozen = ("projections", "mlp", "recurrence", *(("head",) if shape.gives_tokens else ()))
    wide, narrow = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    inner = {"q": wide, "o": wide, "k": narrow, "v": narrow}
    sides = {name: shape.width + inner.get(name, shape.ffn_width) for name in lora.of(shape.traits.gated)}
    added = idle = 0.0
    for place, visit in plan.places():
        skipped = {"mlp": inner.keys(), "attention": sides.keys() - inner.keys()}.get(visit.part, set())
        tokens, adapted = plan.tokens_at(place, seq_len), sides.keys() - skipped
        added += tokens * sum(sides[name] for name in adapted)
        heads = structure.heads(visit)
        queries, keys = shape.heads - len(heads.query), shape.kv_heads - len(heads.kv)
        rows = {"o": queries, "v": keys} | ({} if shape.traits.qk_norm == "all" else {"q": queries, "k": keys})
        idle += tokens * shape.width * shape.head_width * sum(rows[name] for name in adapted & rows.keys())
    spared = sum(amount for name, amount in cost.breakdown.items() if name in frozen)
    return cost.training - spared + 2 * (TRAINING_FACTOR * lora.rank * added + (TRAINING_FACTOR - 1) * idle)


def _norm_cost(shape: Shape, rules: Convention) -> float:
    """FLOPs of one norm of the residual stream, per token."""
    return rules.norm * shape.width


def _visit_cost(structure: Structure, visit: Visit, seq_len: int, rules: Convention) -> dict[str, float]:
    """Forward FLOPs of one visit on `seq_len` positions, by component."""
    shape = structure.shape
    cost: dict[str, float] = {}
    if visit.part != "mlp":
        heads, kinds = structure.heads(visit), structure.kinds(visit)
        rows = 2 * shape.head_width * (len(heads.query) + len(heads.kv))
        if shape.traits.qk_norm == "all":  # q and k of the other heads are computed too
            rows += shape.head_width * (shape.heads - len(heads.query) + shape.kv_heads - len(heads.kv))
        cost["projections"] = rules.product * shape.width * rows * seq_len
        keys = sum(kinds[kv].keys(seq_len, rules) for kv in heads.serving)
        cost["attention"] = rules.product * 2 * shape.head_width * keys * seq_len + rules.per_pair * seq_len**2
        for name in dict.fromkeys(kind.products_are for kind in kinds):
            own = (kinds[kv] for kv in heads.serving if kinds[kv].products_are == name)
            if products := sum(kind.products(seq_len, rules) for kind in own):
                cost[name] = rules.product * products * seq_len
    if visit.part != "attention":
        cost["mlp"] = rules.product * mlp_matrices(shape) * seq_len
    if rules.norm:
        norms = (visit.part != "mlp") + (visit.part != "attention")
        cost["norms"] = _norm_cost(shape, rules) * seq_len * norms * (2 if shape.traits.norms == "both" else 1)
    return cost


def head_cost(shape: Shape, seq_len: int, rules: Convention) -> float:
    """Forward FLOPs of the output head, with the norm of its transform if it has one."""
    runs = {"tokens": seq_len, "sequence": 1}
    norm = _norm_cost(shape, rules) * seq_len if shape.traits.transform and shape.output is None else 0
    return rules.product * sum(runs[where] * size for where, size in head_matrices(shape).items()) + norm


def recurrence_cost(loop: Loop, width: int, seq_len: int) -> float:
    """Forward FLOPs of a loop's scorers (per slot of a chunk), allocators (per chunk) and routers (per token)."""
    cost = 0.0
    for t, g in enumerate(loop.chunks):
        if g > 1:
            chunks = loop.num_chunks(t, seq_len)
            cost += 2 * width * chunks * g * ((loop.downscale == "aggregate") + (loop.upscale == "allocate"))
    for router in loop.router_sizes:
        cost += 2 * width * router * seq_len
    return cost


@checked
def flops(
    model_or_arch: Transformer | str,
    seq_len: int,
    convention: str | Convention = "executed",
    size: str = "tiny",
    **parts: Any,
) -> Cost:
    """FLOPs of one sequence for a model, or for the names of an architecture and a size, without building the model.

    model_or_arch: a model, or a name as in `build_model`. seq_len: tokens in the sequence. convention: how FLOPs are
    counted (`hybridlab plan` lists them; `executed` is what the kernels compute). size, parts: with a name only;
    parts of the configuration, like `window=32`. Returns a `Cost`: `forward` and `training` (FLOPs of a sequence), and
    `breakdown` (forward FLOPs by component). UserError for an unknown name, and for a part that has no effect.

        hybridlab.flops("rule-swa", seq_len=8192, convention="consa", size="consa-0.6b").training
    """
    if seq_len < 1:
        raise UserError(f"flops: seq_len {seq_len} must be 1 or more")
    if isinstance(model_or_arch, str | PathLike):
        model_or_arch = fspath(model_or_arch)
        from hybridlab.config.resolve import resolve_parts
        from hybridlab.config.structures import full_structure

        return ledger(full_structure(resolve_parts(model_or_arch, size, parts, "flops")), seq_len, convention)
    if not hasattr(model_or_arch, "structure"):
        raise UserError(f"flops: model_or_arch= is {shown(model_or_arch)}; it must be a model, or the name of an arch")
    if parts:
        raise UserError(f"flops: {', '.join(parts)} has no effect on a model that is built; give the name of an arch")
    return ledger(model_or_arch.structure, seq_len, convention)
