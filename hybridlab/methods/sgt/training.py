"""SGT: a model that grows loops over its high-entropy heads while it trains (sections 4.1 and 4.2).

    hybridlab pretrain --arch sgt

The controller measures the entropy of every head at the last token of every sequence and keeps a moving average, unless
its settings give the entropies (`entropies_of`: those of another run, measured over more sequences than a batch). Once
per window of steps the growth operator (methods/sgt) decides from it. The factors of fading heads are inputs of the
forward pass. The plan changes when a loop is added or gets another pass, and again when a fade has reached 0. The FLOPs
in a record do not include the measurement of entropies (one row of attention weights per head).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import head_entropies
from hybridlab.errors import UserError
from hybridlab.methods.sgt import Entropies, EntropyGrowthConfig, Event, Growth, LoopedLayer, growable_layers
from hybridlab.models.decoder import Output
from hybridlab.plan.plan import Place
from hybridlab.plan.visit import layer_name
from hybridlab.training.engine import Hook, Run
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.world import world


class EntropyAverage:
    """The moving average over steps of the entropies (L, H), as in Adam with the bias correction 1 − decay^t.

    pending: the entropies of the current step, summed over its micro-batches so far.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.average: Tensor | None = None
        self.pending: Tensor | None = None

    def add(self, entropies: Tensor, share: float) -> None:
        """Add the entropies (L, H) of a micro-batch with this share of the step's rows."""
        part = share * entropies
        self.pending = part if self.pending is None else self.pending + part

    def update(self) -> None:
        """Update the average at the end of a step."""
        if self.pending is None:
            return
        entropies = world().sum(self.pending)
        before = torch.zeros_like(entropies) if self.average is None else self.average
        self.average = self.decay * before + (1 - self.decay) * entropies
        self.updates += 1
        self.pending = None

    def rows(self) -> list[list[float]]:
        """The corrected average as lists; empty before the first step."""
        return [] if self.average is None else (self.average / (1 - self.decay**self.updates)).tolist()

    def state(self) -> dict[str, Any]:
        average = None
        if self.average is not None:
            # JSON has null for NaN, the entropy of a head that does not run.
            average = [[None if value != value else value for value in row] for row in self.average.tolist()]
        return {"average": average, "updates": self.updates}

    def load_state(self, state: dict[str, Any], device: torch.device) -> None:
        self.average, self.updates, self.pending = None, state["updates"], None
        if state["average"] is not None:
            rows = [[math.nan if value is None else value for value in row] for row in state["average"]]
            self.average = torch.tensor(rows, device=device)


class EntropyGrowth(Hook):
    """The controller `entropy-growth`."""

    def __init__(self, config: EntropyGrowthConfig) -> None:
        self.config, self.name = config, config.kind
        self.average = EntropyAverage(config.ema_decay)

    # ---- hook ----

    def begin(self, run: Run) -> None:
        self.base, self.num_heads, self.device = run.initial.plan, run.initial.shape.heads, run.device
        candidates = growable_layers(self.base)
        missing = [layer for layer in self.config.layers or [] if layer not in candidates]
        if missing:
            raise UserError(
                f"controller.layers: the plan does not run {layer_name(missing[0])} as one whole block; leave it out"
            )
        self.growth = Growth(self.config, self.num_heads, candidates, run.config.training.seed)
        if self.config.layers is None and len(self.growth.candidates) < self.config.target_layers:
            count = len(self.growth.candidates)
            raise UserError(
                f"controller.max_layers {self.config.target_layers}: the plan leaves only {count} layers to grow; "
                f"set controller.max_layers={count}"
                if count
                else "controller: the plan leaves no layer to grow; train without this controller"
            )
        self.plan = self.base

    def forward_inputs(self, step: int) -> dict[str, Any]:
        measures = self.config.entropies is None and not self.growth.frozen
        return self.evaluation_inputs(step) | ({"need": "last_row"} if measures else {})

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        factors = self.factors(step)
        return {"factors": factors} if factors else {}

    def after_forward(self, step: int, output: Output, share: float) -> None:
        if self.growth.frozen is None:
            entropies = head_entropies(self.plan, output, self.num_heads, self.growth.kept_heads())
            self.average.add(entropies, share)

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        done = step + 1
        if self.growth.frozen is None:
            self.average.update()
        before = {looped.layer for looped in self.growth.fading(step)}
        # A decision takes effect in the next step, so none is made after the last one.
        due = self.growth.due(done) and done < run.config.training.steps
        events = self.growth.act(done, self._entropies()) if due else []
        fading = self.growth.fading(done)
        for layer in sorted(before - {looped.layer for looped in fading}):
            events.append({"kind": "fade-ended", "layer": layer, "heads": list(self.growth.kept_heads()[layer])})
        self.growth.settle(done)
        self._change(run, events, done)
        factors = [self._layer_factors(looped, done)[head] for looped in fading for head in looped.dropped]
        passes = {looped.layer: looped.passes for looped in self.growth.looped}
        return {"looped_layers": len(passes), "extra_passes": sum(passes.values()), "fade": max(factors, default=0.0)}

    def extend(self, run: Run, shorter: RunFolder) -> None:
        """The shorter run made no decision after its last step."""
        if self.growth.due(run.step):
            events = self.growth.act(run.step, self._entropies())
            self.growth.settle(run.step)
            self._change(run, events, run.step)

    def finish(self, run: Run) -> dict[str, Any]:
        """If heads are still fading, their factors are saved with the model, which is evaluated as it was trained."""
        factors = self.factors(run.step)
        if factors:
            run.change_structure("ended-in-a-fade", run.model.structure, factors=factors)
        looped = [
            {"layer": it.layer, "heads": list(it.kept(self.num_heads)), "passes": it.passes, "since": it.since}
            for it in self.growth.looped
        ]
        return {"looped": looped, "frozen": self.growth.frozen or "the run ended first"}

    def state(self) -> dict[str, Any]:
        return {"growth": self.growth.state(), "average": self.average.state()}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.growth.load_state(state["growth"])
        self.average.load_state(state["average"], self.device)
        self.plan = run.model.plan

    # ---- the method ----

    def _entropies(self) -> Entropies:
        """[layer][head]: what layers and heads are chosen by."""
        return self.average.rows() if self.config.entropies is None else self.config.entropies

    def _change(self, run: Run, events: list[Event], done: int) -> None:
        """Run the plan of the step after `done`, with these events."""
        for event in events:
            self.plan = self.growth.plan(self.base, done)
            run.change_structure(structure=run.model.structure.changed(self.plan), **event)

    def factors(self, step: int) -> dict[Place, Tensor]:
        """Place → (h,): the factors of the looped heads of fading layers, in the step after `step`."""
        fading = {looped.layer: self._layer_factors(looped, step) for looped in self.growth.fading(step)}
        return {
            place: torch.tensor([fading[visit.layer][head] for head in visit.heads], device=self.device)
            for place, visit in self.plan.places()
            if visit.layer in fading and visit.part == "attention" and visit.heads is not None
        }

    def _layer_factors(self, looped: LoopedLayer, step: int) -> list[float]:
        """The factor of each query head of a looped layer in the step after `step`."""
        return looped.factors(step, self.num_heads, self.config.fade_steps)
