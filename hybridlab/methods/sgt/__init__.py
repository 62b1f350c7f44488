"""SGT: which layer loops next, and on which heads (section 4.2, Eq. 8–11, algorithm 1). No torch.

    hybridlab pretrain --arch sgt

A training run uses the growth operator (methods/sgt/training.py), and so does the FLOPs forecast of a run. Steps are
completed optimizer steps: a decision after step t takes effect in step t + 1.

A chosen layer first loops all of its heads; those that are not kept fade to 0 and are then removed from the plan. The
paper's text does not mention this, but its FLOPs and its released code include it (`fade_steps`; 0 follows the text).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hybridlab.config.method import Method, Stages, register_controller
from hybridlab.config.other_runs import Configuration, Finished, FinishedRun, probes_of, require_heads
from hybridlab.config.types import Beta, Finite, NonNegativeInt, PositiveInt, RunName, Strict
from hybridlab.errors import SettingsConflict, UserError
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import layer_name

if TYPE_CHECKING:
    from hybridlab.training.engine import Hook

Entropies = Sequence[Sequence[float]]
"""[layer][head]; a higher entropy means that the head spreads its attention more."""
Event = dict[str, Any]
_DRAW = 11
"""First word of the seed of drawn heads, so that this use of randomness has its own stream."""


# ---- settings ----


class EntropiesOf(Strict):
    """Where the entropies of heads come from: the probe `entropy` in the record of another run."""

    run: RunName
    """The run with the entropies: its name, its folder, or the start of its hash."""
    step: NonNegativeInt | None = None
    """The step after which they were measured (evaluation.at_steps of that run); 0: those of its first weights.
    Default: at its end."""


@register_controller("entropy-growth")
class EntropyGrowthConfig(Method):
    """SGT (section 4, algorithm 1): during training, add loops over high-entropy heads, one layer at a time.

    Layers and heads are numbered from 0. Steps are completed optimizer steps: a decision after step t takes effect in
    step t + 1.
    """

    kind: Literal["entropy-growth"]
    heads: PositiveInt = 2
    """h: number of heads that loop in each chosen layer."""
    select: Literal["high", "low", "random"] = "high"
    """Loop the heads with the highest entropy (the method), with the lowest (its ablation, table 2), or heads drawn by
    training.seed and the layer, a control. Layers are chosen in the same way for all three."""
    max_passes: Annotated[int, Field(ge=1, le=1000)] = 1
    """K_max: maximum number of extra passes of a layer."""
    max_layers: PositiveInt | None = None
    """L: maximum number of layers that loop. Default: 3, or the number of fixed layers."""
    candidates: PositiveInt | None = None
    """Number of layers with the highest mean entropy from which a layer is chosen. Default: as many as may loop."""
    layers: list[NonNegativeInt] | None = None
    """Fixed layers: these loop, whatever their entropy."""
    exclude: list[NonNegativeInt] = [0]
    """Layers that never loop. The entropy of the first layer's heads stays near 1 (appendix C.4)."""
    direction: Literal["deep-to-shallow", "shallow-to-deep"] = "deep-to-shallow"
    """Order in which layers begin to loop."""
    policy: Literal["paper", "released"] = "paper"
    """Which layer may get another pass: the newest (algorithm 1), or the first chosen one in the pool (released
    code)."""
    shortlist: PositiveInt | None = None
    """Appendix D.2: keep this many heads at the end of a layer's first interval, and `heads` of them after its
    second."""
    start_step: PositiveInt = 250
    """Step after which the first layer begins to loop."""
    interval: PositiveInt = 250
    """Steps between two growth actions; the first one is at start_step."""
    fade_steps: NonNegativeInt = 250
    """A new layer first loops all of its heads; the others than the kept ones fade out linearly over these steps
    (released code). With 0 only the kept heads loop, as in the paper's text."""
    ema_decay: Beta = 0.5
    """Decay of the moving average of entropies over steps (bias-corrected); 0 uses only the last step."""
    entropies_of: EntropiesOf | None = None
    """Choose layers and heads by entropies that were measured on another run, over many sequences, instead of by the
    moving average over training batches."""
    entropies: list[list[Finite]] | None = None
    """The same with the numbers themselves: for every layer, the entropy of each of its query heads."""

    @model_validator(mode="after")
    def _choices_fit(self) -> EntropyGrowthConfig:
        if self.layers is not None:
            unused = [name for name in ("max_layers", "candidates") if getattr(self, name) is not None]
            if unused:
                message = f"{unused[0]} has no effect on fixed layers; remove {unused[0]} or layers"
                raise SettingsConflict(message, *unused, "layers")
            if not self.layers or len(set(self.layers)) != len(self.layers):
                raise SettingsConflict("layers must name at least one layer, and each of them once", "layers")
            if clash := set(self.layers) & set(self.exclude):
                raise SettingsConflict(
                    f"{layer_name(min(clash))} is both fixed and excluded; set exclude: [] to loop it",
                    "layers",
                    "exclude",
                )
        if self.candidates is not None and self.candidates < self.target_layers:
            raise SettingsConflict(
                f"candidates {self.candidates} is less than the {self.target_layers} layers that may loop",
                "candidates",
                "max_layers",
            )
        known = [name for name in ("entropies_of", "entropies") if getattr(self, name) is not None]
        if len(known) == 2:
            raise SettingsConflict("entropies_of and entropies are both given; leave one of them out", *known)
        if known and self.ema_decay != type(self).model_fields["ema_decay"].default:
            raise SettingsConflict(
                f"ema_decay has no effect with {known[0]}; remove one of them", "ema_decay", known[0]
            )
        if self.shortlist is not None and self.shortlist <= self.heads:
            raise SettingsConflict(
                f"shortlist {self.shortlist} must be more than heads ({self.heads})", "shortlist", "heads"
            )
        return self

    @classmethod
    def shared(cls, settings: dict[str, Any]) -> dict[str, str]:
        return {name: f"growth.{name}" for name in ("start_step", "interval", "fade_steps")}

    @property
    def target_layers(self) -> int:
        return len(self.layers) if self.layers is not None else self.max_layers or 3

    @property
    def changes_plan(self) -> bool:
        return True

    def check(self, config: Configuration) -> None:
        num_layers, num_heads = config.shape.layers, config.shape.heads
        for name in ("heads", "shortlist"):
            if (getattr(self, name) or 0) > num_heads:
                message = f"controller.{name} {getattr(self, name)}: a layer has {num_heads} heads"
                raise SettingsConflict(message, f"controller.{name}", "shape.heads")
        rows = self.entropies
        if rows is not None and [len(row) for row in rows] != [num_heads] * num_layers:
            message = f"controller.entropies: {num_layers} layers of {num_heads} heads need a number for each head"
            raise SettingsConflict(message, "controller.entropies", "shape.heads", "shape.layers")
        for name, layers in (("layers", self.layers or []), ("exclude", self.exclude)):
            if wrong := [layer for layer in layers if layer >= num_layers]:
                last = f"{num_layers - 1} (L{num_layers})"
                message = f"controller.{name} names layer {wrong[0]}, but the last one is {last}"
                raise SettingsConflict(message, f"controller.{name}", "shape.layers")
        free = num_layers - len({layer for layer in self.exclude if layer < num_layers})
        wanted = {"max_layers": self.target_layers if self.layers is None else 0, "candidates": self.candidates or 0}
        for name, number in wanted.items():
            if number > free:
                message = f"controller.{name} {number}: only {free} of {num_layers} layers may loop"
                raise SettingsConflict(message, f"controller.{name}", "controller.exclude", "shape.layers")
        if self.start_step >= config.training.steps:
            raise SettingsConflict(
                f"controller.start_step {self.start_step}: nothing would grow in {config.training.steps} steps; lower "
                "start_step, and also controller.interval and fade_steps",
                "controller.start_step",
                "training.steps",
            )

    def linked(self, config: Configuration, finished: Finished) -> Self:
        if self.entropies_of is None:
            return self
        heads = head_entropies(finished(self.entropies_of.run), self.entropies_of.step, config.first_shape)
        return self.model_copy(update={"entropies": heads, "entropies_of": None})

    def forecast(self, start: Structure, config: Configuration) -> Stages:
        return forecast_growth(self, start, config.training.steps)

    def hook(self, config: Configuration) -> Hook:
        from hybridlab.methods.sgt.training import EntropyGrowth

        return EntropyGrowth(self)


def head_entropies(run: FinishedRun, step: int | None, shape: Shape) -> list[list[float]]:
    """[layer][head]: what the probe `entropy` measured on a run after a step, or at its end.

    UserError if that run has other numbers of layers and heads than `shape`, or no such measurement.
    """
    setting = f"controller.entropies_of: {run.path}"
    require_heads(setting, run, shape)
    when = "its end" if step is None else f"step {step}"
    measured = probes_of(run, step).get("entropy")
    if measured is None:
        asked = "" if step is None else f" and evaluation.at_steps=[{step}]"
        raise UserError(
            f"{setting}: this run has no entropies of {when}; train it with --set evaluation.probes=[entropy]{asked}"
        )
    heads = measured.get("heads", [])
    if not heads or any(value is None for row in heads for value in row):
        reason = measured.get("skipped", "some of its heads did not run")
        raise UserError(f"{setting}: no entropies of all heads at {when} ({reason}); name another run")
    return heads


# ---- the growth operator ----


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
        for looped in self._growing():
            if looped.passes < self.config.max_passes and looped.layer in pool:
                looped.passes += 1
                return [self._event("loop-deepened", looped)]
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

    def _growing(self) -> list[LoopedLayer]:
        """The layers that get further passes. Algorithm 1: only the newest one. Released code: all chosen layers, the
        first chosen one first."""
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
        new.dropped = dict.fromkeys(self._ranked(layer, entropies, range(self.num_heads))[keep:], step)
        if self.config.shortlist is not None:
            self.undecided = layer
        return self._event("loop-added", new, entropies)

    def _decide(self, step: int, entropies: Entropies) -> Event:
        chosen = next(looped for looped in self.looped if looped.layer == self.undecided)
        ranked = self._ranked(chosen.layer, entropies, chosen.kept(self.num_heads))
        chosen.dropped |= dict.fromkeys(ranked[self.config.heads :], step)
        self.undecided = None
        return self._event("heads-chosen", chosen, entropies)

    def _ranked(self, layer: int, entropies: Entropies, heads: Sequence[int]) -> list[int]:
        """The heads of a layer in the order in which they are kept (Eq. 7); ties go to the lower head."""
        if self.config.select == "random":
            import numpy as np  # here, so that settings load fast

            # The same in every step of the run, so that a shortlist keeps the heads that are chosen from it.
            drawn = np.random.default_rng((_DRAW, self.seed, layer)).permutation(self.num_heads).tolist()
            return sorted(heads, key=drawn.index)
        sign = -1 if self.config.select == "high" else 1
        return sorted(heads, key=lambda head: (sign * entropies[layer][head], head))

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
