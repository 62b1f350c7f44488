"""The execution plan: which parameters run, in which order, on which heads.

A plan is a sequence of visits. A visit names a parameter layer, the part of its block that runs and, for attention,
the query heads that take part; the same layer may be visited any number of times. Everything that has to agree about
an architecture (forward pass, cost ledger, cache, drawing) walks `Plan.places()` and nothing else.

    python -c "from hybridlab import Plan; print(Plan.plain(4).loop_heads(layer=2, heads=(0, 3)))"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from hybridlab.errors import UserError

PARTS = ("block", "attention", "mlp")
Place = tuple[int, ...]


@dataclass(frozen=True)
class Visit:
    """One execution of a layer's parameters.

    layer: parameter layer, 0-based.
    part: `block` (attention, then MLP), `attention` or `mlp`, each with its residual.
    heads: query heads that take part in the attention, ascending; None means all of them.
    """

    layer: int
    part: str = "block"
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise UserError(
                f"visit of layer {self.layer}: part {self.part!r} is unknown; use one of {', '.join(PARTS)}"
            )
        if not _whole(self.layer) or self.layer < 0:
            raise UserError(f"visit of layer {self.layer}: layers are whole numbers from 0 on")
        if self.heads is None:
            return
        if self.part == "mlp":
            raise UserError(f"visit of layer {self.layer}: an MLP has no heads; leave `heads` out")
        heads = tuple(sorted(set(self.heads)))
        if not heads or not all(_whole(head) for head in heads) or heads[0] < 0 or len(heads) != len(self.heads):
            raise UserError(f"visit of layer {self.layer}: heads {self.heads} must be different numbers from 0 on")
        object.__setattr__(self, "heads", heads)

    def __str__(self) -> str:
        heads = "" if self.heads is None else " heads " + ",".join(str(h + 1) for h in self.heads)
        part = "" if self.part == "block" else f" {self.part}"
        return f"L{self.layer + 1}{part}{heads}"


@dataclass(frozen=True)
class Plan:
    """A sequence of visits over `num_layers` parameter layers.

    parallel: attention and MLP of a whole block read one input (GPT-NeoX), so that a block cannot be run as its
    attention and then its MLP; an MLP alone is the block without its attention. Edits return a new plan. They name layer ids and act on all visits of those layers; `plan[place]` is one visit.
    """

    visits: tuple[Visit, ...]
    num_layers: int
    parallel: bool = False

    def __post_init__(self) -> None:
        for visit in self.visits:
            self._check_layer(visit.layer)
            if self.parallel and visit.part == "attention" and visit.heads is None:
                raise UserError(f"plan: {visit} splits a parallel block, whose MLP reads the input of its attention")

    @classmethod
    def plain(cls, num_layers: int, parallel: bool = False) -> Plan:
        """The ordinary stack: every block once, in order."""
        return cls(tuple(Visit(layer) for layer in range(num_layers)), num_layers, parallel)

    def places(self) -> Iterator[tuple[Place, Visit]]:
        """Each visit with its place. Caches, statistics and costs are keyed by place, never by layer."""
        for index, visit in enumerate(self.visits):
            yield (index,), visit

    def __getitem__(self, place: Place | int) -> Visit:
        return self.visits[place if isinstance(place, int) else place[0]]

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
        return replace(self, visits=tuple(v for v in self.visits if v.layer < num_layers))

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

    def _rewrite(self, layers: set[int], change: Any) -> Plan:
        for layer in layers:
            self._check_layer(layer)
        visits = [new for v in self.visits for new in (change(v) if v.layer in layers else (v,))]
        return replace(self, visits=tuple(visits))

    def _relabel(self, mapping: dict[int, int]) -> Plan:
        return self._rewrite(set(mapping), lambda v: (replace(v, layer=mapping[v.layer]),))

    def to_json(self) -> dict[str, Any]:
        return {
            "num_layers": self.num_layers,
            "parallel": self.parallel,
            "visits": [asdict(v) for v in self.visits],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        visits = (
            Visit(v["layer"], v["part"], None if v["heads"] is None else tuple(v["heads"])) for v in data["visits"]
        )
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
    "skip": {"layers": _LAYERS},
    "swap": {"first": _NUMBER, "second": _NUMBER, "size": _NUMBER},
    "reverse": {"start": _NUMBER, "size": _NUMBER},
    "truncate": {"layers": _NUMBER},
    "drop_heads": {"layer": _NUMBER, "heads": _NUMBERS},
    "visits": {"visits": _VISITS},
}
"""Edits as data, with what each of their arguments must be."""
_OPTIONAL = {"extra_passes": 1, "size": 1}


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
    if unknown := [name for name in edit if name not in wanted and name != "op"]:
        raise UserError(f"{place}: {unknown[0]} is not an argument of it; it takes {', '.join(wanted)}")
    found = {}
    for name, kind in wanted.items():
        value = edit.get(name, _OPTIONAL.get(name))
        if value is None:
            raise UserError(f"{place}: {name!r} is missing")
        whole = isinstance(value, list) and all(_whole(item) for item in value)
        right = {_NUMBER: _whole(value), _NUMBERS: whole, _LAYERS: whole or isinstance(value, dict)}
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


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def chosen_layers(choice: LayerChoice, num_layers: int) -> list[int]:
    """The layers that an edit names."""
    if not isinstance(choice, dict):
        if len(set(choice)) != len(choice):
            raise UserError(f"layers: {choice} names a layer twice; extra_passes says how often it runs")
        return list(choice)
    if set(choice) == {"last"} and _whole(choice["last"]):
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
