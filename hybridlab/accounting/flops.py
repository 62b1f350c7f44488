"""The FLOPs ledger: one walk over the plan, priced under a named convention.

Papers count the same model differently (causal half or full square, window pairs, embedding). A convention is data;
the walk is the same for all of them. CONVENTIONS: a product of (m, k) and (k, n) costs 2·m·k·n; training is three
times the forward pass.

    python -c "import hybridlab; print(hybridlab.flops('vanilla', 128, 'consa'))"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridlab.accounting.parameters import mlp_matrices, router_sizes
from hybridlab.config.schema import Shape
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionKind, AttentionMap, Full, Window, band_block
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan, Visit

if TYPE_CHECKING:
    from hybridlab.models.decoder import Decoder

TRAINING_FACTOR = 3
"""Forward, gradient of the inputs, gradient of the weights."""


@dataclass(frozen=True)
class Convention:
    """How a paper counts. `full_keys` and `window_keys`: keys charged to each query, from the length (and window).
    `embedding`: training FLOPs per token that it charges for the lookup of the embeddings, in units of V·d.
    `per_pair`: FLOPs that it charges for each pair of positions of an attention besides. `recurrence`: whether it counts
    the scorers, allocators and routers of loops."""

    name: str
    source: str
    full_keys: Callable[[int], float]
    window_keys: Callable[[int, int], float]
    embedding: float = 0
    per_pair: float = 0
    recurrence: bool = False


def _exact_window_pairs(length: int, window: int) -> float:
    """Mean over the queries of min(i + 1, w)."""
    inside = min(window, length)
    return (inside * (inside + 1) / 2 + (length - inside) * window) / length


def _banded_keys(length: int, window: int) -> float:
    """Two blocks of keys for every query of the padded sequence."""
    block = band_block(window)
    return length if length <= block else -(-length // block) * block * 2 * block / length


CONVENTIONS = {
    c.name: c
    for c in (
        Convention("executed", "what eager and sdpa multiply: all pairs", lambda s: s, lambda s, w: s, recurrence=True),
        Convention("executed-banded", "the same with windows as blocks", lambda s: s, _banded_keys, recurrence=True),
        Convention("consa", "ConSA, table 4: S/2 and w/2 keys per query", lambda s: s / 2, lambda s, w: min(w, s) / 2),
        Convention("square", "the full square, windows w keys per query", lambda s: s, lambda s, w: min(w, s)),
        Convention("sgt", "SGT: square, and 4·V·d a token in training for embeddings", lambda s: s, min, embedding=4),
        Convention("spiral", "SpiralFormer, table 1: the full square at each resolution", lambda s: s, min),
        Convention(
            "spiral-print", "with the print's 105 FLOPs a pair more, unexplained", lambda s: s, min, per_pair=105
        ),
        Convention("pairs", "exact pairs of a causal mask", lambda s: (s + 1) / 2, _exact_window_pairs),
    )
}


@dataclass(frozen=True)
class Cost:
    """FLOPs of one sequence. `breakdown` holds forward FLOPs by component."""

    forward: float
    training: float
    unit: str
    breakdown: dict[str, float]


def convention_of(kernels: Iterable[str]) -> str:
    """The convention that counts what these kernels execute."""
    return "executed-banded" if "banded" in kernels else "executed"


def convention_named(name: str) -> Convention:
    if name not in CONVENTIONS:
        raise UserError(f"convention {name!r} is unknown; known: {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


def ledger(shape: Shape, plan: Plan, attention_map: AttentionMap, seq_len: int, convention: str) -> Cost:
    """FLOPs of one sequence of `seq_len` tokens, walked over the plan's places."""
    rules = convention_named(convention)
    breakdown: dict[str, float] = defaultdict(float)
    for place, visit in plan.places():
        tokens = plan.tokens_at(place, seq_len)
        if not tokens:
            continue
        for component, amount in _visit_cost(shape, visit, attention_map, tokens, rules).items():
            breakdown[component] += amount
    for loop in plan.loops.values() if rules.recurrence else ():
        breakdown["recurrence"] += recurrence_cost(loop, shape.width, seq_len)
    breakdown["head"] += 2 * shape.vocab * shape.width * seq_len
    forward = sum(breakdown.values())
    embedding = rules.embedding * shape.vocab * shape.width * seq_len
    return Cost(forward, TRAINING_FACTOR * forward + embedding, "FLOPs per sequence", dict(breakdown))


def _visit_cost(
    shape: Shape, visit: Visit, attention_map: AttentionMap, seq_len: int, rules: Convention
) -> dict[str, float]:
    cost: dict[str, float] = {}
    if visit.part != "mlp":
        heads = visit.heads or tuple(range(shape.heads))
        kv_heads = {h // shape.group for h in heads}
        rows = 2 * shape.head_width * (len(heads) + len(kv_heads))
        cost["projections"] = 2 * shape.width * rows * seq_len
        kinds = attention_map.layers[visit.layer]
        keys = sum(_keys(kinds[h // shape.group], seq_len, rules) for h in heads)
        cost["attention"] = 4 * shape.head_width * keys * seq_len + rules.per_pair * seq_len**2
    if visit.part != "attention":
        cost["mlp"] = 2 * mlp_matrices(shape) * seq_len
    return cost


def recurrence_cost(loop: Loop, width: int, seq_len: int) -> float:
    """Forward FLOPs of a loop's scorers (every slot of the chunks), allocators (every chunk) and routers (every token)."""
    cost = 0.0
    for t, g in enumerate(loop.chunks):
        if g > 1:
            chunks = loop.num_chunks(t, seq_len)
            cost += 2 * width * chunks * g * ((loop.downscale == "aggregate") + (loop.upscale == "allocate"))
    for router in router_sizes(loop):
        cost += 2 * width * router * seq_len
    return cost


def _keys(kind: AttentionKind, seq_len: int, rules: Convention) -> float:
    """Keys charged to each query of a head; a mixed head runs both kernels and is charged for both."""
    if isinstance(kind, Full):
        return rules.full_keys(seq_len)
    window = rules.window_keys(seq_len, kind.width)
    return window if isinstance(kind, Window) else window + rules.full_keys(seq_len)


def flops(
    model_or_arch: Decoder | str, seq_len: int, convention: str = "executed", size: str = "tiny", **parts: Any
) -> Cost:
    """FLOPs of one sequence for a model, or for `--arch` and `--size` names (then without building the model)."""
    if isinstance(model_or_arch, str):
        from hybridlab.config.loading import Layer
        from hybridlab.config.resolve import resolve
        from hybridlab.plan.from_config import map_of, plan_of

        config = resolve(model_or_arch, size, layers=[Layer(parts)])
        return ledger(config.shape, plan_of(config), map_of(config.map, config.shape), seq_len, convention)
    model = model_or_arch
    return ledger(model.shape, model.plan, model.attention_map, seq_len, convention)
