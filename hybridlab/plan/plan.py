"""The execution plan: which parameters run, in which order, how often, on which heads, at which resolution.

A plan is a sequence of visits and of loops over visits. A visit names a parameter layer, the part of its block that
runs and, for attention, the query heads that take part; the same layer may be visited any number of times. Everything
that has to agree about an architecture (forward pass, cost ledger, cache, drawing) walks `Plan.places()`.

    python -c "from hybridlab import Plan; print(Plan.plain(4).loop_heads(layer=2, heads=(0, 3)))"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from hybridlab.errors import UserError
from hybridlab.plan.loop import Loop, visit_from_json
from hybridlab.plan.visit import Place, Visit, is_whole

Item = Visit | Loop
"""What a plan is a sequence of."""


@dataclass(frozen=True)
class Plan:
    """A sequence of visits, and of loops over visits, over `num_layers` parameter layers.

    parallel: attention and MLP of a whole block read one input (GPT-NeoX), so that a block cannot be run as its
    attention and then its MLP; an MLP alone is the block without its attention. Edits return a new plan. They name layer ids and act on all visits of those layers; `plan[place]` is one visit.
    """

    visits: tuple[Item, ...]
    num_layers: int
    parallel: bool = False

    def __post_init__(self) -> None:
        for visit in self.each_visit():
            self._check_layer(visit.layer)
            if self.parallel and visit.part == "attention" and visit.heads is None:
                raise UserError(f"plan: {visit} splits a parallel block, whose MLP reads the input of its attention")

    @classmethod
    def plain(cls, num_layers: int, parallel: bool = False) -> Plan:
        """The ordinary stack: every block once, in order."""
        return cls(tuple(Visit(layer) for layer in range(num_layers)), num_layers, parallel)

    def places(self) -> Iterator[tuple[Place, Visit]]:
        """Each execution of a visit with its place, loops unrolled. Caches, statistics and costs are keyed by place,
        never by layer."""
        for index, item in enumerate(self.visits):
            if isinstance(item, Visit):
                yield (index,), item
                continue
            for t in range(item.iterations):
                for inner, visit in enumerate(item.body(t)):
                    yield (index, t, inner), visit

    def each_visit(self) -> Iterator[Visit]:
        """Each visit once, those in the bodies of loops too."""
        for item in self.visits:
            if isinstance(item, Visit):
                yield item
            else:
                yield from (visit for body in item.bodies for visit in body)

    @property
    def loops(self) -> dict[int, Loop]:
        """The loops by their index in the plan."""
        return {index: item for index, item in enumerate(self.visits) if isinstance(item, Loop)}

    def tokens_at(self, place: Place, length: int) -> int:
        """Positions that the visit at a place computes for a sequence of `length` tokens."""
        item = self.visits[place[0]]
        return length if isinstance(item, Visit) else item.num_chunks(place[1], length)

    def __getitem__(self, place: Place | int) -> Item:
        """The visit at a place; a number gives the visit or loop of that index."""
        if isinstance(place, int):
            return self.visits[place]
        item = self.visits[place[0]]
        return item.body(place[1])[place[2]] if isinstance(item, Loop) else item

    def loop_heads(self, layer: int, heads: Iterable[int], extra_passes: int = 1) -> Plan:
        """Run the chosen heads of a layer `extra_passes` more times on the state after its attention, before its MLP.

        A parallel block runs whole, then the chosen heads on its output. Source: Sparse Growing Transformer, section 4.1, Eq. 6.
        """
        _check_passes("loop_heads", extra_passes)
        loop = (Visit(layer, "attention", tuple(heads)),) * extra_passes

        def looped(visit: Visit) -> tuple[Visit, ...]:
            if visit.part == "block" and loop and not self.parallel:
                return (replace(visit, part="attention"), *loop, Visit(layer, "mlp"))
            return (visit, *loop) if visit.part != "mlp" else (visit,)

        return self._rewrite({layer}, looped)

    def loop_blocks(self, layers: Iterable[int], extra_passes: int = 1) -> Plan:
        """Run these layers' whole blocks `extra_passes` more times, each right after its visit (SGT's Block Loop)."""
        _check_passes("loop_blocks", extra_passes)
        return self._rewrite(set(layers), lambda v: (v,) * (1 + extra_passes if v.part == "block" else 1))

    def recur(self, first: int, size: int, chunks: Iterable[int], shared: bool = True, **settings: Any) -> Plan:
        """Put the layers [first, first + size) into a loop of len(chunks) iterations at these resolutions.

        shared: one body for all iterations; otherwise each has the next `size` layers (MeSH's baseline without
        sharing). settings: those of `Loop`. Source: SpiralFormer, section 2.
        """
        if not isinstance(shared, bool):
            raise UserError(f"recur: shared {shared!r} must be true or false")
        chunks = tuple(chunks)
        wanted = tuple(Visit(first + i) for i in range(size if shared else size * len(chunks)))
        start = next((i for i, item in enumerate(self.visits) if item == wanted[0]), 0) if wanted else 0
        if not wanted or self.visits[start : start + len(wanted)] != wanted:
            last = first + len(wanted) - 1
            raise UserError(f"recur: the plan does not run the layers {first} to {last} one after the other, whole")
        bodies = tuple(wanted[i : i + size] for i in range(0, len(wanted), size))
        loop = Loop(bodies, chunks, **settings)
        return replace(self, visits=(*self.visits[:start], loop, *self.visits[start + len(wanted) :]))

    def skip(self, *layers: int) -> Plan:
        """Leave these layers out."""
        return self._rewrite(set(layers), lambda _: ())

    def swap(self, first: int, second: int, size: int = 1) -> Plan:
        """Exchange the layers [first, first + size) with [second, second + size)."""
        if size < 1 or abs(first - second) < size:
            raise UserError(f"swap: blocks of {size} at {first} and {second} overlap; move them at least {size} apart")
        exchange = {first + i: second + i for i in range(size)} | {second + i: first + i for i in range(size)}
        return self._relabel(exchange)

    def reverse(self, start: int, size: int) -> Plan:
        """Run the layers [start, start + size) in the opposite order."""
        if size < 1:
            raise UserError(f"reverse: size must be 1 or more, not {size}")
        return self._relabel({start + i: start + size - 1 - i for i in range(size)})

    def truncate(self, num_layers: int) -> Plan:
        """Keep only the visits of the first `num_layers` layers."""
        if not 0 <= num_layers <= self.num_layers:
            raise UserError(f"truncate: keep between 0 and {self.num_layers} layers, not {num_layers}")
        return self._rewrite(set(range(num_layers, self.num_layers)), lambda _: ())

    def drop_heads(self, layer: int, heads: Iterable[int], num_heads: int) -> Plan:
        """Run the layer's attention without these query heads (of `num_heads`)."""
        dropped = set(heads)
        if not dropped <= set(range(num_heads)):
            raise UserError(f"drop_heads: heads {sorted(dropped)} are not all in 0..{num_heads - 1}")

        def without(visit: Visit) -> tuple[Visit, ...]:
            if visit.part == "mlp":
                return (visit,)
            kept = tuple(h for h in (visit.heads or range(num_heads)) if h not in dropped)
            if kept:
                return (replace(visit, heads=kept),)
            return (Visit(layer, "mlp"),) if visit.part == "block" else ()

        return self._rewrite({layer}, without)

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise UserError(f"plan: layer {layer} does not exist; there are layers 0 to {self.num_layers - 1}")

    def _rewrite(self, layers: set[int], change: Callable[[Visit], tuple[Visit, ...]]) -> Plan:
        """Every visit of these layers changed, in the bodies of loops too."""
        for layer in layers:
            self._check_layer(layer)

        def rewritten(visits: tuple[Item, ...]) -> tuple[Item, ...]:
            new: list[Item] = []
            for item in visits:
                if isinstance(item, Loop):
                    new.append(replace(item, bodies=tuple(rewritten(body) for body in item.bodies)))
                else:
                    new += change(item) if item.layer in layers else (item,)
            return tuple(new)

        return replace(self, visits=rewritten(self.visits))

    def _relabel(self, mapping: dict[int, int]) -> Plan:
        return self._rewrite(set(mapping), lambda v: (replace(v, layer=mapping[v.layer]),))

    def to_json(self) -> dict[str, Any]:
        return {
            "num_layers": self.num_layers,
            "parallel": self.parallel,
            "visits": [v.to_json() if isinstance(v, Loop) else asdict(v) for v in self.visits],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        visits = (Loop.from_json(v) if "bodies" in v else visit_from_json(v) for v in data["visits"])
        return cls(tuple(visits), data["num_layers"], data.get("parallel", False))

    def __str__(self) -> str:
        return " → ".join(str(v) for v in self.visits) or "(nothing)"


MOST_PASSES = 1000
"""Far more than any model runs; a plan holds every pass."""


def _check_passes(edit: str, extra_passes: int) -> None:
    if not 0 <= extra_passes <= MOST_PASSES:
        raise UserError(f"{edit}: extra_passes must be between 0 and {MOST_PASSES}, not {extra_passes}")


LayerChoice = list[int] | dict[str, Any]
"""Layers in an edit: a list, `{last: 3}`, or `{top_entropy_of: RUN, step: 250, n: 3}`, known when that run has ended."""


_NUMBER, _NUMBERS, _LAYERS, _VISITS = "a whole number", "a list of whole numbers", "layers", "a list of visits"
_EDITS: dict[str, dict[str, str]] = {
    "loop_heads": {"layer": _NUMBER, "heads": _NUMBERS, "extra_passes": _NUMBER},
    "loop_attention": {"layers": _LAYERS, "extra_passes": _NUMBER},
    "loop_blocks": {"layers": _LAYERS, "extra_passes": _NUMBER},
    "recur": {"first": _NUMBER, "size": _NUMBER, "chunks": _NUMBERS},
    "skip": {"layers": _LAYERS},
    "swap": {"first": _NUMBER, "second": _NUMBER, "size": _NUMBER},
    "reverse": {"start": _NUMBER, "size": _NUMBER},
    "truncate": {"layers": _NUMBER},
    "drop_heads": {"layer": _NUMBER, "heads": _NUMBERS},
    "visits": {"visits": _VISITS},
}
"""Edits as data, with what each of their arguments must be."""
_ONCE = (
    ("loop_heads", "extra_passes"),
    ("loop_attention", "extra_passes"),
    ("loop_blocks", "extra_passes"),
    ("swap", "size"),
)
"""Arguments that are 1 where they are left out."""
_LOOP_SETTINGS = sorted({field.name for field in fields(Loop)} - {"bodies", "chunks"} | {"shared"})


def edited_plan(num_layers: int, num_heads: int, edits: Iterable[dict[str, Any]], parallel: bool = False) -> Plan:
    """The plain plan with edits written as data, each `{op: loop_heads, layer: 5, heads: [3], extra_passes: 2}`."""
    plan = Plan.plain(num_layers, parallel)
    for position, edit in enumerate(edits):
        place = f"plan edit {position + 1}"
        name = edit.get("op") if isinstance(edit, dict) else None
        if not isinstance(name, str) or name not in _EDITS:
            raise UserError(f"{place}: op {name!r} is unknown; use one of {', '.join(_EDITS)}")
        arguments = _checked_arguments(f"{place} ({name})", _EDITS[name], edit)
        try:
            plan = _applied(plan, name, arguments, num_heads)
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{place} ({name}): {edit} has a value of the wrong type, or lacks one") from None
    check_heads(plan, num_heads)
    return plan


def _checked_arguments(place: str, wanted: dict[str, str], edit: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an edit, each of the right kind, with defaults for those that may be left out."""
    free = _LOOP_SETTINGS if edit["op"] == "recur" else {}
    if unknown := [name for name in edit if name not in (*wanted, *free, "op")]:
        raise UserError(f"{place}: {unknown[0]} is not an argument of it; it takes {', '.join((*wanted, *free))}")
    # The loop checks its own settings.
    found = {name: edit[name] for name in free if name in edit}
    for name, kind in wanted.items():
        value = edit.get(name, 1 if (edit["op"], name) in _ONCE else None)
        if value is None:
            raise UserError(f"{place}: {name!r} is missing")
        whole = isinstance(value, list) and all(is_whole(item) for item in value)
        right = {_NUMBER: is_whole(value), _NUMBERS: whole, _LAYERS: whole or isinstance(value, dict)}
        if not right.get(kind, isinstance(value, list)):
            raise UserError(f"{place}: {name} {value!r} has the wrong type; it must be {kind}")
        found[name] = value
    return found


def _applied(plan: Plan, name: str, arguments: dict[str, Any], num_heads: int) -> Plan:
    """One edit; its arguments have the right kinds."""
    if "layers" in arguments and name != "truncate":
        arguments["layers"] = chosen_layers(arguments["layers"], plan.num_layers)
    match name:
        case "loop_attention":
            for layer in arguments["layers"]:
                plan = plan.loop_heads(layer, range(num_heads), arguments["extra_passes"])
            return plan
        case "skip":
            return plan.skip(*arguments["layers"])
        case "truncate":
            return plan.truncate(arguments["layers"])
        case "drop_heads":
            return plan.drop_heads(**arguments, num_heads=num_heads)
        case "visits":
            return Plan.from_json({**plan.to_json(), **arguments})
    return getattr(plan, name)(**arguments)


def chosen_layers(choice: LayerChoice, num_layers: int) -> list[int]:
    """The layers that an edit names."""
    if not isinstance(choice, dict):
        if len(set(choice)) != len(choice):
            raise UserError(f"layers: {choice} names a layer twice; extra_passes says how often it runs")
        return list(choice)
    if set(choice) == {"last"} and is_whole(choice["last"]):
        if not 1 <= choice["last"] <= num_layers:
            raise UserError(f"layers: last {choice['last']} is not between 1 and {num_layers}")
        return list(range(num_layers - choice["last"], num_layers))
    if "top_entropy_of" in choice:
        raise UserError(f"layers: those of run {choice['top_entropy_of']} are known when it has been trained, not here")
    raise UserError(f"layers: {choice} is neither a list, {{last: N}}, nor {{top_entropy_of: RUN, step: T, n: N}}")


def check_heads(plan: Plan, num_heads: int) -> None:
    """Refuse a plan that names a query head the shape does not have."""
    for _, visit in plan.places():
        if visit.heads and visit.heads[-1] >= num_heads:
            raise UserError(f"plan: {visit} names head {visit.heads[-1]}, but there are heads 0 to {num_heads - 1}")
