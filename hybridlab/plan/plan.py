"""The execution plan: which parameters run, in which order, how often, on which heads, at which resolution.

A plan is a sequence of visits and of loops over visits. A visit names a parameter layer, the part of its block that
runs and, for attention, the query heads that run; a layer may be visited any number of times. The forward pass, the
FLOPs count, the cache and the drawing all iterate over `Plan.places()`, so that they agree.

    python -c "from hybridlab import Plan; print(Plan.plain(4).loop_heads(layer=2, heads=(0, 3)))"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, TypeVar, cast

from hybridlab.arguments import checked, plain
from hybridlab.errors import UserError, shown
from hybridlab.plan.loop import Loop, visit_from_json
from hybridlab.plan.visit import PARTS, Place, Visit, is_whole, layer_name

Item = Visit | Loop
"""An element of a plan."""
AnyItem = TypeVar("AnyItem", Visit, Visit | Loop)
Visits = tuple[Visit, ...]


@dataclass(frozen=True)
class Plan:
    """A sequence of visits, and of loops over visits, over `num_layers` parameter layers.

    parallel: attention and MLP of a block read the same input (GPT-NeoX), so a block cannot run as its attention and
    then its MLP; an MLP alone is the block without its attention.

    Edits return a new plan. They name layers and change all visits of those layers. `plan[place]` is one visit.
    UserError for layers that the plan does not have.

        plan = hybridlab.Plan.plain(8).loop_heads(layer=5, heads=(3, 7), extra_passes=2).skip(2)
        print(plan)
    """

    visits: tuple[Item, ...]
    num_layers: int
    parallel: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_layers", plain(self.num_layers))
        if not isinstance(self.visits, list | tuple) or not all(isinstance(item, Visit | Loop) for item in self.visits):
            raise UserError(f"plan: visits {shown(self.visits)} must be a tuple of Visit and Loop objects")
        if not is_whole(self.num_layers) or self.num_layers < 0:
            raise UserError(f"plan: num_layers {self.num_layers!r} must be a whole number, not below 0")
        object.__setattr__(self, "visits", tuple(self.visits))
        for visit in self.each_visit():
            self._check_layer(visit.layer)
            if self.parallel and visit.part == "attention" and visit.heads is None:
                raise UserError(
                    f"plan: the attention of {layer_name(visit.layer)} splits a parallel block, whose attention and "
                    "MLP read one input; run the block"
                )

    @classmethod
    @checked
    def plain(cls, num_layers: int, parallel: bool = False) -> Plan:
        """The plain stack: every block once, in order."""
        return cls(tuple(Visit(layer) for layer in range(num_layers)), num_layers, parallel)

    def places(self) -> Iterator[tuple[Place, Visit]]:
        """Every execution of a visit with its place, with loops unrolled. Caches, statistics and costs are indexed by
        place, not by layer."""
        for index, item in enumerate(self.visits):
            if isinstance(item, Visit):
                yield (index,), item
                continue
            for t in range(item.iterations):
                for inner, visit in enumerate(item.body(t)):
                    yield (index, t, inner), visit

    def each_visit(self) -> Iterator[Visit]:
        """Each visit once, including those in the bodies of loops."""
        for item in self.visits:
            if isinstance(item, Visit):
                yield item
            else:
                yield from (visit for body in item.bodies for visit in body)

    @property
    def loops(self) -> dict[int, Loop]:
        """The loops by their index in the plan."""
        return {index: item for index, item in enumerate(self.visits) if isinstance(item, Loop)}

    @property
    def literal(self) -> bool:
        """Whether a loop takes the paper's literal ⌊L / g⌋ chunks, with which outputs depend on the total length."""
        return any(loop.literal for loop in self.loops.values())

    @property
    def chunked(self) -> bool:
        """Whether a loop runs on chunks of tokens."""
        return any(g > 1 for loop in self.loops.values() for g in loop.chunks)

    def chunk_at(self, place: Place) -> int:
        """Number of tokens per position of the visit at this place: 1, or the chunk size of its iteration."""
        item = self.visits[place[0]]
        return item.chunks[place[1]] if isinstance(item, Loop) else 1

    def tokens_at(self, place: Place, length: int) -> int:
        """Number of positions that the visit at this place computes for `length` tokens."""
        item = self.visits[place[0]]
        return length if isinstance(item, Visit) else item.num_chunks(place[1], length)

    def __getitem__(self, place: Place) -> Visit:
        """The visit at a place."""
        item = self.visits[place[0]]
        return item.body(place[1])[place[2]] if isinstance(item, Loop) else item

    @checked
    def loop_heads(self, layer: int, heads: Iterable[int], extra_passes: int = 1) -> Plan:
        """Run the chosen heads of a layer `extra_passes` more times on the state after its attention and the extra
        passes that it has, before its MLP.

        A parallel block runs completely, then the chosen heads on its output. Source: SGT, section 4.1, Eq. 6.
        """
        _check_passes("loop_heads", extra_passes)
        self._check_run("loop_heads", {layer}, ("block", "attention"))
        loop = (Visit(layer, "attention", tuple(heads)),) * extra_passes

        def looped(run: Visits) -> Visits:
            new: list[Visit] = []
            for visit, following in zip(run, (*run[1:], None), strict=True):
                if visit.part == "block" and loop and not self.parallel:
                    new += (replace(visit, part="attention"), *loop, Visit(layer, "mlp"))
                    continue
                last = visit.part != "mlp" and (following is None or following.part != "attention")
                new += (visit, *loop) if last else (visit,)
            return tuple(new)

        return self._rewrite({layer}, looped)

    @checked
    def loop_blocks(self, layers: Iterable[int], extra_passes: int = 1) -> Plan:
        """Run the blocks of these layers `extra_passes` more times, each right after itself (SGT's Block Loop), with
        all that the plan runs of a layer in a row."""
        layers = set(layers)
        _check_passes("loop_blocks", extra_passes)
        self._check_run("loop_blocks", layers, PARTS)
        return self._rewrite(layers, lambda run: run * (1 + extra_passes))

    @checked
    def recur(self, first: int, size: int, chunks: Iterable[int], shared: bool = True, **settings: Any) -> Plan:
        """Put the layers [first, first + size) into a loop of len(chunks) iterations at these resolutions.

        shared: all iterations run these layers; otherwise each runs the next `size` layers (MeSH's baseline without
        sharing). settings: those of `Loop`. Source: SpiralFormer, section 2.
        """
        if not isinstance(shared, bool):
            raise UserError(f"recur: shared {shared!r} must be true or false")
        chunks = tuple(chunks)
        wanted = tuple(Visit(first + i) for i in range(size if shared else size * len(chunks)))
        start = next((i for i, item in enumerate(self.visits) if item == wanted[0]), 0) if wanted else 0
        if not wanted or self.visits[start : start + len(wanted)] != wanted:
            last = first + len(wanted) - 1
            raise UserError(
                f"recur: the plan does not run the whole blocks {first} to {last} (L{first + 1} to L{last + 1}) one "
                "after the other"
            )
        bodies = tuple(wanted[i : i + size] for i in range(0, len(wanted), size))
        loop = Loop(bodies, chunks, **settings)
        return replace(self, visits=(*self.visits[:start], loop, *self.visits[start + len(wanted) :]))

    @checked
    def skip(self, *layers: int) -> Plan:
        """Remove these layers."""
        return self._rewrite(set(layers), lambda _: ())

    @checked
    def swap(self, first: int, second: int, size: int = 1) -> Plan:
        """Exchange the layers [first, first + size) with [second, second + size), each with its extra passes."""
        if size < 1 or abs(first - second) < size:
            raise UserError(f"swap: blocks of {size} at {first} and {second} overlap; move them at least {size} apart")
        others = {first + i: second + i for i in range(size)} | {second + i: first + i for i in range(size)}
        return self._exchange(others)

    @checked
    def reverse(self, start: int, size: int) -> Plan:
        """Run the layers [start, start + size) in the opposite order, each with its extra passes."""
        if size < 1:
            raise UserError(f"reverse: size must be 1 or more, not {size}")
        return self._exchange({start + i: start + size - 1 - i for i in range(size)})

    @checked
    def truncate(self, num_layers: int) -> Plan:
        """Keep only the visits of the first `num_layers` layers."""
        if not 0 <= num_layers <= self.num_layers:
            raise UserError(f"truncate: keep between 0 and {self.num_layers} layers, not {num_layers}")
        return self._rewrite(set(range(num_layers, self.num_layers)), lambda _: ())

    def without_repeats(self, num_heads: int) -> Plan:
        """Leave out every visit that runs only what has run before: the extra passes of looped heads, attention and
        blocks. Loops over iterations, and what their bodies visit, stay as they are."""
        run: set[tuple[int, int]] = set()
        kept: list[Item] = []
        for item in self.visits:
            if isinstance(item, Visit):
                heads = () if item.part == "mlp" else item.heads or range(num_heads)
                # The MLP is numbered after the heads.
                parts = {(item.layer, part) for part in (*heads, *([] if item.part == "attention" else [num_heads]))}
                if parts <= run:
                    continue
                run |= parts
            kept.append(item)
        return replace(self, visits=tuple(kept))

    @checked
    def drop_heads(self, layer: int, heads: Iterable[int], num_heads: int) -> Plan:
        """Run a layer's attention without these of its `num_heads` query heads."""
        dropped = set(heads)
        if not dropped <= set(range(num_heads)):
            raise UserError(f"drop_heads: heads {sorted(dropped)} are not all in 0..{num_heads - 1}")

        def without(visit: Visit) -> Visits:
            if visit.part == "mlp":
                return (visit,)
            kept = tuple(h for h in (visit.heads or range(num_heads)) if h not in dropped)
            if kept:
                return (replace(visit, heads=kept),)
            return (Visit(layer, "mlp"),) if visit.part == "block" else ()

        return self._rewrite({layer}, lambda run: tuple(kept for visit in run for kept in without(visit)))

    def with_copies(self, layers: range) -> Plan:
        """The plan of a model with copies of these layers right after the last of them (depth growth).

        Layers behind them move back. What runs the layers, head loops and repeated blocks included, runs their copies
        right after; in the body of a loop, the copies become part of that body. UserError if it is not clear where the
        copies would run: if the plan leaves one of the layers out, mixes their visits with those of others, or runs
        some of them in a loop and some outside.
        """
        names = f"layers {layers[0]} to {layers[-1]} (L{layers[0] + 1} to L{layers[-1] + 1})"
        run = {visit.layer for visit in self.each_visit()}
        if skipped := [layer for layer in layers if layer not in run]:
            raise UserError(
                f"growth copies {names}, but the plan does not run {layer_name(skipped[0])}; leave out the edit that "
                "skips it"
            )
        sequences = [self.visits, *(body for loop in self.loops.values() for body in loop.bodies)]
        if sum(bool(_span(sequence, layers)) for sequence in sequences) > 1:
            raise UserError(
                f"growth copies {names}, but the plan runs some of them in one place and some in another, such as the "
                "body of a loop and what lies around it; change the loop, or the block and the start of the growth"
            )
        visits = tuple(
            replace(item, bodies=tuple(self._with_copies(body, layers, names) for body in item.bodies))
            if isinstance(item, Loop)
            else item
            for item in self._with_copies(self.visits, layers, names)
        )
        return replace(self, visits=visits, num_layers=self.num_layers + len(layers))

    def _with_copies(self, sequence: tuple[AnyItem, ...], layers: range, names: str) -> tuple[AnyItem, ...]:
        """A sequence of visits with those of the copies, and the numbers of the new model."""
        size = len(layers)
        span = _span(sequence, layers)
        if other := [item for item in sequence[span.start : span.stop] if not _visits(item, layers)]:
            raise UserError(f"growth copies {names}, but the plan runs {other[0]} between them; let them run in a row")
        behind = range(layers.stop, self.num_layers)
        moved = [_moved(item, size) if _visits(item, behind) else item for item in sequence]
        copies = [_moved(item, size) for item in sequence[span.start : span.stop]]
        return tuple(moved[: span.stop] + copies + moved[span.stop :])

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise UserError(
                f"plan: layer {layer} does not exist; there are layers 0 to {self.num_layers - 1} "
                f"(L1 to L{self.num_layers})"
            )

    def _check_run(self, edit: str, layers: set[int], parts: Sequence[str]) -> None:
        """UserError for a layer of which the plan runs none of these parts."""
        run = {visit.layer for visit in self.each_visit() if visit.part in parts}
        for layer in sorted(layers):
            self._check_layer(layer)
            if layer not in run:
                what = "" if parts == PARTS else "the attention of "
                raise UserError(f"{edit}: the plan does not run {what}{layer_name(layer)}; name a layer that it runs")

    def _rewrite(self, layers: set[int], change: Callable[[Visits], Visits]) -> Plan:
        """The plan with the visits of each of these layers changed, all that are in a row at once, also in the bodies
        of loops."""
        for layer in layers:
            self._check_layer(layer)

        def changed(sequence: Iterable[Item]) -> Iterator[Item]:
            for layer, run in _runs(sequence):
                yield from change(run) if layer in layers else run

        def inside(item: Item) -> Item:
            if isinstance(item, Visit):
                return item
            return replace(item, bodies=tuple(cast(Visits, tuple(changed(body))) for body in item.bodies))

        return replace(self, visits=tuple(changed(map(inside, self.visits))))

    def _exchange(self, other: dict[int, int]) -> Plan:
        """Each layer takes the other's place. All visits of a layer move, if they are in a row; else they stay,
        and run the parameters of the other layer."""
        runs: dict[int | None, list[Visits]] = defaultdict(list)
        for sequence in (self.visits, *(body for loop in self.loops.values() for body in loop.bodies)):
            for layer, run in _runs(sequence):
                runs[layer].append(run)

        def exchanged(run: Visits) -> Visits:
            here, there = run[0].layer, other[run[0].layer]
            if len(runs[here]) == len(runs[there]) == 1:
                return runs[there][0]
            return tuple(replace(visit, layer=there) for visit in run)

        return self._rewrite(set(other), exchanged)

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


def _visits(item: Item, layers: range) -> bool:
    """Whether an element of a plan is a visit of one of these layers."""
    return isinstance(item, Visit) and item.layer in layers


def _runs(sequence: Iterable[Item]) -> Iterator[tuple[int | None, Visits]]:
    """Each layer with its visits that are in a row; None with loops."""
    for layer, run in groupby(sequence, lambda item: item.layer if isinstance(item, Visit) else None):
        yield layer, cast(Visits, tuple(run))


def _moved(item: AnyItem, by: int) -> AnyItem:
    """A visit of the layer `by` places deeper; a loop as it is."""
    return replace(item, layer=item.layer + by) if isinstance(item, Visit) else item


def _span(sequence: Sequence[Item], layers: range) -> range:
    """From the first visit of these layers to the last one, in a sequence; empty if there is none."""
    places = [index for index, item in enumerate(sequence) if _visits(item, layers)]
    return range(places[0], places[-1] + 1) if places else range(0)


MOST_PASSES = 1000
"""Limit of extra passes, because a plan stores each of them; models use far fewer."""


def _check_passes(edit: str, extra_passes: int) -> None:
    if not 0 <= extra_passes <= MOST_PASSES:
        raise UserError(f"{edit}: extra_passes must be between 0 and {MOST_PASSES}, not {extra_passes}")


def check_heads(plan: Plan, num_heads: int) -> None:
    """Raise UserError for a plan that names a query head that the shape does not have."""
    for _, visit in plan.places():
        if visit.heads and visit.heads[-1] >= num_heads:
            raise UserError(
                f"plan: a visit of {layer_name(visit.layer)} names head {visit.heads[-1]}, but there are heads 0 to "
                f"{num_heads - 1}"
            )
