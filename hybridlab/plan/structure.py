"""A structure: the complete model as data. Its shape (parameters), its plan (what runs) and its attention map.

The same frozen object is stored in a run's state, in its record and in `final/config.json`. A decoder, a cache, the
FLOPs count and a drawing are made from it. Plain data, without torch.

    python -c "from hybridlab.config.resolve import resolve; from hybridlab.config.structures import structure_of
    print(structure_of(resolve('sgt', 'tiny')))"
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hybridlab.attention.kinds import AttentionKind
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.lineage import Lineage, lineage_from_json, lineage_to_json
from hybridlab.plan.plan import Plan, check_heads
from hybridlab.plan.shape import Shape
from hybridlab.plan.visit import Place, Visit


@dataclass(frozen=True)
class Heads:
    """The query heads of one visit, and the KV heads that they use, both ascending.

    serving[i]: index, in `kv`, of the KV head of `query[i]`.
    """

    query: tuple[int, ...]
    kv: tuple[int, ...]
    serving: tuple[int, ...]


@lru_cache(maxsize=4096)
def _heads(query: tuple[int, ...], group: int) -> Heads:
    kv = tuple(sorted({head // group for head in query}))
    return Heads(query, kv, tuple(kv.index(head // group) for head in query))


@dataclass(frozen=True)
class Structure:
    """A whole model as data: a shape with a plan and a map.

    lineage: where each layer comes from, if the model has grown in depth. UserError for a plan, map or lineage that was
    made for another shape.

        structure = hybridlab.build_model("rule-swa").structure
        shorter = structure.changed(plan=structure.plan.skip(3))
        hybridlab.Structure.from_json(shorter.to_json()) == shorter    # True
    """

    shape: Shape
    plan: Plan
    map: AttentionMap
    lineage: Lineage | None = None

    def __post_init__(self) -> None:
        shape, plan = self.shape, self.plan
        if plan.num_layers != shape.layers:
            raise UserError(f"plan: it was made for {plan.num_layers} layers, but the model has {shape.layers}")
        if plan.parallel != shape.traits.parallel:
            kind = "parallel" if shape.traits.parallel else "serial"
            raise UserError(f"plan: the blocks of this shape are {kind}; make it with Plan.plain(layers, parallel=…)")
        check_heads(plan, shape.heads)
        self.map.check_shape(shape.layers, shape.kv_heads)
        self.map.check_kinds(self.causal)
        own = [kind.name for kind in self.map.each_kind() if kind.own_kernel("auto", 1, self.causal) is not None]
        if own and shape.score_cap is not None:
            raise UserError(
                f"attention map: heads of kind {own[0]} compute scores of their own, which shape.score_cap does not "
                "cap; use full attention and windows, or set shape.score_cap=null"
            )
        if self.lineage is not None and len(self.lineage) != shape.layers:
            raise UserError(f"lineage: it is of {len(self.lineage)} layers, but the model has {shape.layers}")

    @property
    def causal(self) -> bool:
        """Whether a token sees no later one: a decoder, in contrast to an encoder."""
        return self.shape.traits.causal

    @property
    def caches(self) -> bool:
        """Whether it can continue text with a cache: a decoder whose output head gives tokens."""
        return self.causal and self.shape.gives_tokens

    @property
    def settled(self) -> bool:
        """Whether no output depends on tokens that come later, so that what a cache holds stays right."""
        return not self.plan.literal and self.map.sealed() == self.map

    def changed(self, plan: Plan | None = None, map: AttentionMap | None = None) -> Structure:
        """The same parameters with another plan or map."""
        return replace(self, plan=plan or self.plan, map=map or self.map)

    # ---- heads and kinds of a visit ----

    def heads(self, visit: Visit) -> Heads:
        """The heads that a visit with attention runs. All other code gets them from here."""
        return _heads(visit.heads or tuple(range(self.shape.heads)), self.shape.group)

    def kinds(self, visit: Visit) -> tuple[AttentionKind, ...]:
        """The kinds of the KV heads that a visit runs, in the order of `heads(visit).kv`."""
        row = self.map.layers[visit.layer]
        return tuple(row[head] for head in self.heads(visit).kv)

    def attention_places(self) -> Iterator[tuple[Place, Visit]]:
        """Every execution of a visit with attention, with its place."""
        return ((place, visit) for place, visit in self.plan.places() if visit.part != "mlp")

    # ---- JSON ----

    def to_json(self) -> dict[str, Any]:
        """The lineage only where there is one, so that structures without it are written as before."""
        lineage = {} if self.lineage is None else {"lineage": lineage_to_json(self.lineage)}
        return {"shape": self.shape.to_json(), "plan": self.plan.to_json(), "map": self.map.to_json(), **lineage}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Structure:
        """Raises KeyError, TypeError, ValueError or UserError for data that `to_json` does not write."""
        shape = Shape(**data["shape"])
        lineage = lineage_from_json(data["lineage"]) if data.get("lineage") is not None else None
        return cls(shape, Plan.from_json(data["plan"]), AttentionMap.from_json(data["map"]), lineage)

    def __str__(self) -> str:
        return f"{self.shape.layers} layers of width {self.shape.width}; plan {self.plan}; map {self.map}"
