"""The attention entropy of every head during training (SGT, section 3 and appendix C.4), stored in the record."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hybridlab.analysis.entropy import head_entropies
from hybridlab.models.decoder import Output
from hybridlab.training.hooks import Hook, TrainingRun


class EntropyLog(Hook):
    """Measures on the batch of step 1 and of every `every`-th step, averaged over its sequences.

    Results: steps, and entropies [step][layer][head]; None for a head that does not run.
    """

    name = "entropy-log"

    def __init__(self, every: int) -> None:
        self.every = every
        self.steps: list[int] = []
        self.tables: list[list[list[float | None]]] = []

    def begin(self, run: TrainingRun) -> None:
        self.run = run
        self.pending: Tensor | None = None

    def _measures(self, step: int) -> bool:
        return step == 0 or (step + 1) % self.every == 0

    def forward_inputs(self, step: int) -> dict[str, Any]:
        return {"need": "last_row"} if self._measures(step) else {}

    def after_forward(self, step: int, output: Output, share: float) -> None:
        if self._measures(step):
            table = share * head_entropies(self.run.model.plan, output, self.run.model.shape.heads)
            self.pending = table if self.pending is None else self.pending + table

    def after_step(self, run: TrainingRun, step: int) -> dict[str, float]:
        if self.pending is not None:
            # The entropy of a head that does not run is NaN, which JSON does not have.
            rows = [[None if v != v else round(v, 4) for v in row] for row in self.pending.tolist()]
            self.steps.append(step + 1)
            self.tables.append(rows)
            self.pending = None
        return {}

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "entropies": self.tables}

    def load_state(self, state: dict[str, Any], run: TrainingRun) -> None:
        self.steps, self.tables = list(state["steps"]), list(state["entropies"])

    def finish(self, run: TrainingRun) -> dict[str, Any]:
        """Tables of one size: in a model that grew, layers that were not there yet have no entropies."""
        layers, heads = run.model.shape.layers, run.model.shape.heads
        missing: list[float | None] = [None] * heads
        return {"steps": self.steps, "entropies": [t + [missing] * (layers - len(t)) for t in self.tables]}
