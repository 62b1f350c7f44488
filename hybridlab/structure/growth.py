"""Which layer grows next, and on which heads: SGT's growth operator as plain data (section 4.2, Eq. 8–11, algorithm 1).

No torch: the same operator is driven by a run that trains, and by the ledger that prices a schedule without one. Steps
are completed optimizer steps; what is decided after step t acts from step t + 1 on.

A layer that is chosen loops all its heads; those that it does not keep fade to 0 and are then left out of the plan. The
paper does not say so, its FLOPs and its released code do (`fade_steps`, 0 for the paper's text).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.plan.plan import Plan

Entropies = Sequence[Sequence[float]]
"""[layer][head], the higher the more a head spreads its attention."""
Event = dict[str, Any]


@dataclass
class LoopedLayer:
    """A layer with loops. since: the step that chose it. dropped: head → the step after which it began to fade.
    removed: heads that have faded and left the plan; they do not come back."""

    layer: int
    since: int
    passes: int = 1
    dropped: dict[int, int] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)

    def kept(self, num_heads: int) -> tuple[int, ...]:
        return tuple(head for head in range(num_heads) if head not in self.dropped)

    def factors(self, step: int, num_heads: int, fade_steps: int) -> list[float]:
        """What each head's output in a loop is multiplied by in the step after `step`: 1, 1 − 1/F, … 1/F, then 0."""
        factors = [1.0] * num_heads
        for head, start in self.dropped.items():
            factors[head] = max(0.0, 1 - (step - start) / fade_steps) if fade_steps else 0.0
        return factors


class Growth:
    """The growth operator with its state.

    candidates: layers that may ever loop; their number and order do not matter.
    """

    def __init__(self, config: EntropyGrowthConfig, num_heads: int, candidates: Sequence[int]) -> None:
        self.config, self.num_heads = config, num_heads
        allowed = set(config.layers) if config.layers is not None else set(candidates) - set(config.exclude)
        self.candidates = sorted(allowed & set(candidates))
        self.looped: list[LoopedLayer] = []
        self.undecided: int | None = None
        """A layer whose second selection is still to come (appendix D.2)."""
        self.frozen: str | None = None
        """Why nothing will grow any more, once that is so."""

    # ---- acting ----

    def due(self, step: int) -> bool:
        """Whether a window ends after this step."""
        since = step - self.config.start_step
        return self.frozen is None and since >= 0 and since % self.config.interval == 0

    def act(self, step: int, entropies: Entropies) -> list[Event]:
        """The one action of a window, and the freeze that may follow from it."""
        if self.undecided is not None:
            events = [self._decide(step, entropies)]
        else:
            events = self._grow(step, entropies)
        if self.frozen is None and self._target_reached():
            events.append(self._freeze("the target is reached"))
        return events

    def _grow(self, step: int, entropies: Entropies) -> list[Event]:
        pool = self._pool(entropies)
        deepened = next((found for found in self._may_deepen() if found.layer in pool), None)
        if deepened is not None:
            deepened.passes += 1
            return [self._event("loop-deepened", deepened)]
        if len(self.looped) < self.config.target_layers:
            new = self._next_layer(pool)
            if new is None:
                return [self._freeze("no candidate layer is left")]
            return [self._activate(step, new, entropies)]
        # Algorithm 1 waits for its newest layer to come back into the pool; the released code ends here.
        return [] if self.config.policy == "paper" else [self._freeze("all layers are chosen and none may deepen")]

    def _pool(self, entropies: Entropies) -> list[int]:
        """The candidates with the highest mean entropy (Eq. 10); ties go to the lower layer."""
        if self.config.layers is not None:
            return self.candidates
        size = self.config.candidates or self.config.target_layers
        return sorted(self.candidates, key=lambda layer: (-_mean(entropies[layer]), layer))[:size]

    def _may_deepen(self) -> list[LoopedLayer]:
        """Algorithm 1: the newest layer only. Released: every chosen one, the first chosen first."""
        asked = self.looped if self.config.policy == "released" else self.looped[-1:]
        return [found for found in asked if found.passes < self.config.max_passes]

    def _next_layer(self, pool: Sequence[int]) -> int | None:
        """Eq. 11: the deepest candidate above all chosen layers towards the input, or the mirror image."""
        chosen = [found.layer for found in self.looped]
        if self.config.direction == "deep-to-shallow":
            return max((layer for layer in pool if all(layer < other for other in chosen)), default=None)
        return min((layer for layer in pool if all(layer > other for other in chosen)), default=None)

    def _activate(self, step: int, layer: int, entropies: Entropies) -> Event:
        new = LoopedLayer(layer, step)
        self.looped.append(new)
        keep = self.config.shortlist or self.config.heads
        self._drop(new, step, self._ranked(entropies[layer], range(self.num_heads))[keep:])
        if self.config.shortlist is not None:
            self.undecided = layer
        return self._event("loop-added", new, entropies)

    def _decide(self, step: int, entropies: Entropies) -> Event:
        chosen = next(found for found in self.looped if found.layer == self.undecided)
        ranked = self._ranked(entropies[chosen.layer], chosen.kept(self.num_heads))
        self._drop(chosen, step, ranked[self.config.heads :])
        self.undecided = None
        return self._event("heads-chosen", chosen, entropies)

    def _ranked(self, entropies: Sequence[float], heads: Sequence[int]) -> list[int]:
        """The heads to keep first (Eq. 7); ties go to the lower head."""
        sign = -1 if self.config.select == "high" else 1
        return sorted(heads, key=lambda head: (sign * entropies[head], head))

    def _drop(self, looped: LoopedLayer, step: int, heads: Sequence[int]) -> None:
        looped.dropped |= dict.fromkeys(heads, step)

    def _target_reached(self) -> bool:
        if len(self.looped) < self.config.target_layers or self.undecided is not None:
            return False
        asked = self.looped if self.config.policy == "released" else self.looped[-1:]
        return all(found.passes == self.config.max_passes for found in asked)

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

    # ---- what it comes to ----

    def fading(self, step: int) -> list[LoopedLayer]:
        """The layers of which a head that is not kept still counts in the step after `step`."""
        fade = self.config.fade_steps
        return [found for found in self.looped if any(step < start + fade for start in found.dropped.values())]

    def plan(self, base: Plan, step: int) -> Plan:
        """The plan of the step after `step`: a layer's heads stay until all fades of the layer have ended, then those
        that it does not keep leave together."""
        still = {found.layer for found in self.fading(step)}
        plan = base
        for found in self.looped:
            gone = found.removed if found.layer in still else found.dropped
            heads = [head for head in range(self.num_heads) if head not in gone]
            plan = plan.loop_heads(found.layer, heads, found.passes)
        return plan

    def settle(self, step: int) -> None:
        """After the actions of a step: what has faded now stays out, whatever fades later."""
        still = {found.layer for found in self.fading(step)}
        for found in self.looped:
            if found.layer not in still:
                found.removed = sorted(found.dropped)

    def kept_heads(self) -> dict[int, tuple[int, ...]]:
        return {found.layer: found.kept(self.num_heads) for found in self.looped}

    # ---- state ----

    def state(self) -> dict[str, Any]:
        looped = [{**asdict(found), "dropped": sorted(found.dropped.items())} for found in self.looped]
        return {"looped": looped, "undecided": self.undecided, "frozen": self.frozen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.looped = [LoopedLayer(**{**found, "dropped": dict(found["dropped"])}) for found in state["looped"]]
        self.undecided, self.frozen = state["undecided"], state["frozen"]


def growable_layers(plan: Plan) -> list[int]:
    """Layers that may be given head loops: run as whole blocks, and without loops so far."""
    visits: dict[int, list[str]] = {}
    for visit in plan.each_visit():
        visits.setdefault(visit.layer, []).append(visit.part if visit.heads is None else "heads")
    return [layer for layer, parts in visits.items() if parts == ["block"]]


def _written(value: float) -> float | None:
    """As it can stand in a record: a head that does not run has no entropy."""
    return None if value != value else round(float(value), 6)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))
