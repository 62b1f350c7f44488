"""SGT's growth operator: which layer grows next, and on which heads (section 4.2, Eq. 8–11, algorithm 1).

No torch: a training run uses this operator, and so does the FLOPs forecast of a run (`forecast_growth`). Steps are
completed optimizer steps: a decision after step t takes effect in step t + 1.

A chosen layer first loops all of its heads; those that are not kept fade to 0 and are then removed from the plan. The
paper's text does not mention this, but its FLOPs and its released code include it (`fade_steps`; 0 follows the text).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure

Entropies = Sequence[Sequence[float]]
"""[layer][head]; a higher entropy means that the head spreads its attention more."""
Event = dict[str, Any]
_DRAW = 11
"""First word of the seed of drawn heads, so that this use of randomness has its own stream."""


@dataclass
class LoopedLayer:
    """A layer with loops.

    since: the step in which it was chosen. passes: number of extra passes. dropped: head → the step after which it
    began to fade. removed: heads that have faded and were removed from the plan for good.
    """

    layer: int
    since: int
    passes: int = 1
    dropped: dict[int, int] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)

    def kept(self, num_heads: int) -> tuple[int, ...]:
        return tuple(head for head in range(num_heads) if head not in self.dropped)

    def factors(self, step: int, num_heads: int, fade_steps: int) -> list[float]:
        """Factors of the heads' loop outputs in the step after `step`: 1, or 1, 1 − 1/F, … 1/F, 0 while fading."""
        factors = [1.0] * num_heads
        for head, start in self.dropped.items():
            factors[head] = max(0.0, 1 - (step - start) / fade_steps) if fade_steps else 0.0
        return factors


class Growth:
    """The growth operator with its state.

    candidates: the layers that may loop, in any order. seed: of heads that are drawn (`select: random`).
    """

    def __init__(self, config: EntropyGrowthConfig, num_heads: int, candidates: Sequence[int], seed: int = 0) -> None:
        self.config, self.num_heads, self.seed = config, num_heads, seed
        allowed = set(config.layers) if config.layers is not None else set(candidates) - set(config.exclude)
        self.candidates = sorted(allowed & set(candidates))
        self.looped: list[LoopedLayer] = []
        self.undecided: int | None = None
        """A layer that awaits its second selection of heads (appendix D.2)."""
        self.frozen: str | None = None
        """Why growth has ended; None while it continues."""

    # ---- actions ----

    def due(self, step: int) -> bool:
        """Whether the growth acts after this step."""
        since = step - self.config.start_step
        return self.frozen is None and since >= 0 and since % self.config.interval == 0

    def act(self, step: int, entropies: Entropies) -> list[Event]:
        """The next action and, if it completes the growth, the end of the growth. At most two events."""
        if self.undecided is not None:
            events = [self._decide(step, entropies)]
        else:
            events = self._grow(step, entropies)
        if self.frozen is None and self._target_reached():
            events.append(self._freeze("the target is reached"))
        return events

    def _grow(self, step: int, entropies: Entropies) -> list[Event]:
        pool = self._pool(entropies)
        deepened = next((looped for looped in self._may_deepen() if looped.layer in pool), None)
        if deepened is not None:
            deepened.passes += 1
            return [self._event("loop-deepened", deepened)]
        if len(self.looped) < self.config.target_layers:
            new = self._next_layer(pool)
            if new is None:
                return [self._freeze("no candidate layer is left")]
            return [self._activate(step, new, entropies)]
        # Algorithm 1 waits until its newest layer is in the pool again; the released code ends here.
        return [] if self.config.policy == "paper" else [self._freeze("all layers are chosen and none may deepen")]

    def _pool(self, entropies: Entropies) -> list[int]:
        """The candidates with the highest mean entropy (Eq. 10); ties go to the lower layer."""
        if self.config.layers is not None:
            return self.candidates
        size = self.config.candidates or self.config.target_layers
        return sorted(self.candidates, key=lambda layer: (-_mean(entropies[layer]), layer))[:size]

    def _may_deepen(self) -> list[LoopedLayer]:
        """The layers that may get another pass, first choice first."""
        return [looped for looped in self._growing() if looped.passes < self.config.max_passes]

    def _growing(self) -> list[LoopedLayer]:
        """Algorithm 1: only the newest layer. Released code: all chosen layers, the first chosen one first."""
        return self.looped if self.config.policy == "released" else self.looped[-1:]

    def _next_layer(self, pool: Sequence[int]) -> int | None:
        """Eq. 11: the deepest candidate shallower than all chosen layers; with `shallow-to-deep` the reverse."""
        chosen = [looped.layer for looped in self.looped]
        if self.config.direction == "deep-to-shallow":
            return max((layer for layer in pool if all(layer < other for other in chosen)), default=None)
        return min((layer for layer in pool if all(layer > other for other in chosen)), default=None)

    def _activate(self, step: int, layer: int, entropies: Entropies) -> Event:
        new = LoopedLayer(layer, step)
        self.looped.append(new)
        keep = self.config.shortlist or self.config.heads
        self._drop(new, step, self._ranked(layer, entropies, range(self.num_heads))[keep:])
        if self.config.shortlist is not None:
            self.undecided = layer
        return self._event("loop-added", new, entropies)

    def _decide(self, step: int, entropies: Entropies) -> Event:
        chosen = next(looped for looped in self.looped if looped.layer == self.undecided)
        ranked = self._ranked(chosen.layer, entropies, chosen.kept(self.num_heads))
        self._drop(chosen, step, ranked[self.config.heads :])
        self.undecided = None
        return self._event("heads-chosen", chosen, entropies)

    def _ranked(self, layer: int, entropies: Entropies, heads: Sequence[int]) -> list[int]:
        """The heads of a layer in the order in which they are kept (Eq. 7); ties go to the lower head."""
        if self.config.select == "random":
            # The same in every step of the run, so that a shortlist keeps the heads that are chosen from it.
            drawn = np.random.default_rng((_DRAW, self.seed, layer)).permutation(self.num_heads).tolist()
            return sorted(heads, key=drawn.index)
        sign = -1 if self.config.select == "high" else 1
        return sorted(heads, key=lambda head: (sign * entropies[layer][head], head))

    def _drop(self, looped: LoopedLayer, step: int, heads: Sequence[int]) -> None:
        looped.dropped |= dict.fromkeys(heads, step)

    def _target_reached(self) -> bool:
        if len(self.looped) < self.config.target_layers or self.undecided is not None:
            return False
        return all(looped.passes == self.config.max_passes for looped in self._growing())

    def _freeze(self, reason: str) -> Event:
        self.frozen = reason
        return {"kind": "growth-frozen", "reason": reason}

    def _event(self, kind: str, looped: LoopedLayer, entropies: Entropies | None = None) -> Event:
        event = {"kind": kind, "layer": looped.layer, "passes": looped.passes}
        if entropies is not None:
            event["heads"] = list(looped.kept(self.num_heads))
            event["entropies"] = [_written(value) for value in entropies[looped.layer]]
            event["layer_entropies"] = [_written(_mean(row)) for row in entropies]
        return event

    # ---- results ----

    def fading(self, step: int) -> list[LoopedLayer]:
        """The layers in which a head is still fading in the step after `step`."""
        fade = self.config.fade_steps
        return [looped for looped in self.looped if any(step < start + fade for start in looped.dropped.values())]

    def plan(self, base: Plan, step: int) -> Plan:
        """The plan of the step after `step`. When all fades of a layer have ended, all of its dropped heads are removed
        at once."""
        fading = {looped.layer for looped in self.fading(step)}
        plan = base
        for looped in self.looped:
            removed = looped.removed if looped.layer in fading else looped.dropped
            heads = [head for head in range(self.num_heads) if head not in removed]
            plan = plan.loop_heads(looped.layer, heads, looped.passes)
        return plan

    def settle(self, step: int) -> None:
        """Record which heads have faded completely. Call it after the actions of a step."""
        fading = {looped.layer for looped in self.fading(step)}
        for looped in self.looped:
            if looped.layer not in fading:
                looped.removed = sorted(looped.dropped)

    def kept_heads(self) -> dict[int, tuple[int, ...]]:
        """Layer → the heads that it keeps."""
        return {looped.layer: looped.kept(self.num_heads) for looped in self.looped}

    # ---- state ----

    def state(self) -> dict[str, Any]:
        layers = [{**asdict(looped), "dropped": sorted(looped.dropped.items())} for looped in self.looped]
        return {"looped": layers, "undecided": self.undecided, "frozen": self.frozen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.looped = [LoopedLayer(**{**saved, "dropped": dict(saved["dropped"])}) for saved in state["looped"]]
        self.undecided, self.frozen = state["undecided"], state["frozen"]


def growable_layers(plan: Plan) -> list[int]:
    """Layers that can get head loops: those that the plan runs as one whole block."""
    visits: dict[int, list[str]] = {}
    for visit in plan.each_visit():
        visits.setdefault(visit.layer, []).append(visit.part if visit.heads is None else "heads")
    return [layer for layer, parts in visits.items() if parts == ["block"]]


def forecast_growth(config: EntropyGrowthConfig, start: Structure, steps: int) -> Iterator[tuple[Structure, int]]:
    """(structure, number of steps) of a run that grows, in order.

    The operator gets equal entropies. The cost does not depend on which layers it then chooses, since all layers of a
    shape cost the same (outside loops over resolutions, which run some layers more often). When it chooses them follows
    from the settings, if the newest layer stays in the pool. If query heads share KV heads, the cost also depends on
    which heads are kept; here the first ones, which share the most KV heads.
    """
    base, heads = start.plan, start.shape.heads
    growth = Growth(config, heads, growable_layers(base))
    entropies = [[1.0] * heads] * start.shape.layers
    plan, since, done = base, 0, config.start_step
    while done < steps:
        if growth.due(done):
            growth.act(done, entropies)
        growth.settle(done)
        following = growth.plan(base, done)
        if following != plan:
            yield start.changed(plan), done - since
            plan, since = following, done
        # The structure changes only at growth actions and at the ends of fades.
        ends = {begun + config.fade_steps for looped in growth.looped for begun in looped.dropped.values()}
        if growth.frozen is None:
            ends.add(done + config.interval - (done - config.start_step) % config.interval)
        done = min((end for end in ends if end > done), default=steps)
    yield start.changed(plan), steps - since


def _written(value: float) -> float | None:
    """A value for a record: NaN (a head that does not run) becomes None."""
    return None if value != value else round(float(value), 6)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))
