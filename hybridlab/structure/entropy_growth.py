"""SGT: a model that grows loops over its high-entropy heads while it trains (sections 4.1 and 4.2).

    hybridlab pretrain --arch sgt

The controller measures the entropy of every head at the last token of every sequence, keeps its moving average, lets
the growth operator (structure/growth.py) act once in a window, and hands the fading heads' factors to the forward pass
as tensors. The plan changes when a loop is added or deepened, and once more when a fade has reached 0. The one attention
row that an entropy takes is not in the FLOPs that a record states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import head_entropies
from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.errors import UserError
from hybridlab.models.decoder import Output
from hybridlab.plan.plan import Place
from hybridlab.structure.growth import Growth, LoopedLayer, growable_layers
from hybridlab.training.engine import Run
from hybridlab.training.hooks import Hook


class EntropyAverage:
    """The entropies (L, H) of a step, summed over its micro-batches, and their moving average over steps.

    The average starts at 0 and is divided by 1 − decay^t, so that the first steps count in full.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.average: Tensor | None = None
        self.pending: Tensor | None = None

    def add(self, entropies: Tensor, share: float) -> None:
        """One micro-batch, with its share of the rows of the step."""
        part = share * entropies
        self.pending = part if self.pending is None else self.pending + part

    def update(self) -> None:
        """The end of a step."""
        before = torch.zeros_like(self.pending) if self.average is None else self.average
        self.average = self.decay * before + (1 - self.decay) * self.pending
        self.updates += 1
        self.pending = None

    def rows(self) -> list[list[float]]:
        """The corrected average as numbers."""
        return (self.average / (1 - self.decay**self.updates)).tolist()

    def state(self) -> dict[str, Any]:
        average = None if self.average is None else _plain(self.average.tolist())
        return {"average": average, "updates": self.updates}

    def load_state(self, state: dict[str, Any], device: torch.device) -> None:
        rows = state["average"]
        self.average = None if rows is None else torch.tensor(_numbers(rows), device=device)
        self.updates, self.pending = state["updates"], None


def _plain(rows: list[list[float]]) -> list[list[float | None]]:
    """Heads that do not run have no entropy: null in a file."""
    return [[None if value != value else value for value in row] for row in rows]


def _numbers(rows: list[list[float | None]]) -> list[list[float]]:
    return [[float("nan") if value is None else value for value in row] for row in rows]


class EntropyGrowth(Hook):
    """The controller."""

    def __init__(self, config: EntropyGrowthConfig) -> None:
        self.config, self.name = config, config.kind
        self.average = EntropyAverage(config.ema_decay)

    # ---- hook ----

    def begin(self, run: Run) -> None:
        self.base, self.num_heads, self.device = run.model.plan, run.model.shape.heads, run.device
        candidates = growable_layers(self.base)
        missing = [layer for layer in self.config.layers or [] if layer not in candidates]
        if missing:
            raise UserError(f"controller.layers: layer {missing[0]} does not run as one whole block in the plan")
        self.growth = Growth(self.config, self.num_heads, candidates)
        if self.config.layers is None and len(self.growth.candidates) < self.config.target_layers:
            count = len(self.growth.candidates)
            raise UserError(
                f"controller.max_layers {self.config.target_layers}: the plan leaves only {count} layers to grow; "
                f"set controller.max_layers={count}"
                if count
                else "controller: the plan leaves no layer to grow"
            )
        self.plan = self.base

    def forward_inputs(self, step: int) -> dict[str, Any]:
        inputs: dict[str, Any] = {} if self.growth.frozen else {"need": "last_row"}
        factors = self.factors(step)
        return inputs | ({"factors": factors} if factors else {})

    def after_forward(self, step: int, output: Output, share: float) -> None:
        if self.growth.frozen is None:
            table = head_entropies(self.plan, output, self.num_heads, self.growth.kept_heads())
            self.average.add(table, share)

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        done = step + 1
        if self.growth.frozen is None:
            self.average.update()
        fading = {found.layer for found in self.growth.fading(step)}
        # What is decided acts from the next step on: after the last step there is none.
        acting = self.growth.due(done) and done < run.config.training.steps
        events = self.growth.act(done, self.average.rows()) if acting else []
        still = self.growth.fading(done)
        for layer in sorted(fading - {found.layer for found in still}):
            events.append({"kind": "fade-ended", "layer": layer, "heads": list(self.growth.kept_heads()[layer])})
        self.growth.settle(done)
        for event in events:
            self.plan = self.growth.plan(self.base, done)
            run.change_structure(plan=self.plan, **event)
        factors = [self._layer_factors(found, done)[head] for found in still for head in found.dropped]
        passes = {found.layer: found.passes for found in self.growth.looped}
        return {"looped_layers": len(passes), "extra_passes": sum(passes.values()), "fade": max(factors, default=0.0)}

    def finish(self, run: Run) -> dict[str, Any]:
        """A run that ends inside a fade keeps its factors: what was trained is what is measured and saved."""
        factors = self.factors(run.step)
        if factors:
            run.change_structure("ended-in-a-fade", factors=factors)
        looped = [
            {"layer": f.layer, "heads": list(f.kept(self.num_heads)), "passes": f.passes, "since": f.since}
            for f in self.growth.looped
        ]
        return {"looped": looped, "frozen": self.growth.frozen or "the run ended first"}

    def state(self) -> dict[str, Any]:
        return {"growth": self.growth.state(), "average": self.average.state()}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.growth.load_state(state["growth"])
        self.average.load_state(state["average"], self.device)
        self.plan = run.model.plan

    # ---- the method ----

    def factors(self, step: int) -> dict[Place, Tensor]:
        """Place → (h,): the factors of all loops of the layers that fade, in the step after `step`."""
        fading = {found.layer: self._layer_factors(found, step) for found in self.growth.fading(step)}
        return {
            place: torch.tensor([fading[visit.layer][head] for head in visit.heads], device=self.device)
            for place, visit in self.plan.places()
            if visit.layer in fading and visit.part == "attention" and visit.heads is not None
        }

    def _layer_factors(self, looped: LoopedLayer, step: int) -> list[float]:
        return looped.factors(step, self.num_heads, self.config.fade_steps)
