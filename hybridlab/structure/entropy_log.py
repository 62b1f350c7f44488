"""The attention entropy of every head while a model trains (SGT, section 3 and appendix C.4), written into the record."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hybridlab.analysis.entropy import head_entropies
from hybridlab.models.decoder import Output
from hybridlab.training.engine import Run
from hybridlab.training.hooks import Hook


class EntropyLog(Hook):
    """Measures each `every`-th step's own batch, averaged over its sequences; after step 1 too, where training starts."""

    name = "entropy-log"

    def __init__(self, every: int) -> None:
        self.every = every
        self.steps: list[int] = []
        self.tables: list[list[list[float | None]]] = []

    def begin(self, run: Run) -> None:
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

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        if self.pending is not None:
            # A head that does not run has no entropy.
            rows = [[None if v != v else round(v, 4) for v in row] for row in self.pending.tolist()]
            self.steps.append(step + 1)
            self.tables.append(rows)
            self.pending = None
        return {}

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "entropies": self.tables}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.steps, self.tables = list(state["steps"]), list(state["entropies"])

    def finish(self, run: Run) -> dict[str, Any]:
        return self.state()
