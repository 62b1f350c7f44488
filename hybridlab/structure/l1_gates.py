"""Gates with an L1 penalty: ConSA's ablation without its L0-Lagrangian (section 5.4, Eq. 12 and 13).

Every unit has a gate in [0, 1], initially 1, that mixes full attention and a window; `strength` (by default 0.05) times
the mean gate is added to the loss. The penalty does not depend on the target: at the end as many units as the target
requires, those with the lowest gates, become windows. So no sparsity can settle here; the choice of units can.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridlab.config.controllers import L1GatesConfig
from hybridlab.plan.shape import Shape
from hybridlab.structure.units import LearnedAllocation
from hybridlab.training.hooks import TrainingRun
from hybridlab.training.optimizer import Group


class L1Gates(LearnedAllocation):
    """The controller `l1-gates`. scores: the gates."""

    config: L1GatesConfig

    def __init__(self, config: L1GatesConfig, shape: Shape, window: int) -> None:
        super().__init__(config, shape, window, initial_score=1.0)
        self.chosen = self.ranked_masks()

    def parameter_groups(self) -> list[Group]:
        return [self.group("gates", ["scores"], self.config.gate_lr)]

    def forward_inputs(self, step: int) -> dict[str, Any]:
        return self.gates(self.scores)

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        return self.gates(self.scores.detach().clamp(0, 1))

    def penalty(self, step: int) -> Tensor:
        return self.config.strength * self.scores.abs().mean()

    def load_state(self, state: dict[str, Any], run: TrainingRun) -> None:
        super().load_state(state, run)
        self.chosen = self.ranked_masks()

    def holds(self) -> bool:
        """Whether the same units would become windows as after the step before, and by their gates, not by a tie."""
        before, self.chosen = self.chosen, self.ranked_masks()
        gates, count = self.scores.detach().flatten().sort().values, self.windows_per_row
        tied = 0 < count < len(gates) and bool(gates[count - 1] == gates[count])
        return before == self.chosen and not tied

    def unsettled(self) -> str:
        return "settled means that the same units have the lowest gates"

    def after_step(self, run: TrainingRun, step: int) -> dict[str, float]:
        with torch.no_grad():
            self.scores.clamp_(0, 1)
            super().after_step(run, step)
            return {"mean_gate": float(self.scores.mean()), "gate_spread": float(self.scores.std())}

    def finish(self, run: TrainingRun) -> dict[str, Any]:
        gates = self.scores.detach()
        return self.fix(run, self.ranked_masks(), {"mean_gate": float(gates.mean()), "gate_spread": float(gates.std())})
