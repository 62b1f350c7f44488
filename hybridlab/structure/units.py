"""The base of controllers that learn which units have full attention and which a window.

A unit is a layer or a KV head, and each has a learned score. At the end as many units as the target requires, those
with the lowest scores, become windows; the map is fixed and written to masks.json.

Learning has settled if what its controller asks for (`LearnedAllocation.holds`) was so after every one of the last
steps: a tenth of all steps, and at least 10. Masks that have not settled are written too, with a warning.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from hybridlab.config.controllers import MaskController, Schedule
from hybridlab.files import write_json
from hybridlab.plan.allocation import Allocation
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import Shape
from hybridlab.training.hooks import Hook, TrainingRun
from hybridlab.training.optimizer import Group

_LAST_SHARE, _LAST_STEPS = 10, 10
"""The last steps, in which learning must have settled: one in so many of all steps, and at least so many."""


class LearnedAllocation(Hook):
    """A controller with one score per unit. scores: (L, 1) for layers, (L, K) for heads.

    The target holds within each row of units: one row per layer (head-single), or one for the whole model. held: after
    how many steps up to now, without a gap, `holds` was true.
    """

    held = 0

    def __init__(self, config: MaskController, shape: Shape, window: int, initial_score: float) -> None:
        self.config, self.shape, self.window, self.name = config, shape, window, config.kind
        self.allocation = Allocation(shape.layers, shape.kv_heads, config.granularity, config.rho, config.nearest)
        self.num_rows = self.allocation.num_rows
        self.windows_per_row = self.allocation.windows_per_row
        self.target = self.windows_per_row / self.allocation.per_row
        self.scores = torch.full((shape.layers, self.allocation.per_layer), initial_score)

    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors that are learned in addition to the model, by attribute name."""
        return {"scores": self.scores}

    def begin(self, run: TrainingRun) -> None:
        for name, tensor in self.own_tensors().items():
            setattr(self, name, tensor.to(run.device).requires_grad_())

    def after_step(self, run: TrainingRun, step: int) -> dict[str, float]:
        self.held = self.held + 1 if self.holds() else 0
        return {}

    def state(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state(self, state: dict[str, Any], run: TrainingRun) -> None:
        # Checkpoints of older versions lack it.
        self.held = state.get("held", 0)

    @abstractmethod
    def holds(self) -> bool:
        """Whether learning is where it should end; called once after every step."""

    @abstractmethod
    def unsettled(self) -> str:
        """What has not settled, for the warning: a clause that "in each of the last … steps" can follow."""

    def group(
        self, name: str, tensors: list[str], lr: float, maximize: bool = False, schedule: Schedule | None = None
    ) -> Group:
        """An optimizer group of some of the own tensors, without weight decay or clipping."""
        named = {f"{self.name}.{key}": self.own_tensors()[key] for key in tensors}
        return Group(name, named, lr, self.config.betas, maximize=maximize, clipped=False, schedule=schedule)

    def gates(self, per_unit: Tensor) -> dict[str, Any]:
        """The forward inputs of gates per unit (L, 1 or K): layer → gate (K,) of its mixed heads."""
        return {"gates": dict(enumerate(per_unit.expand(-1, self.shape.kv_heads)))}

    def ranked_masks(self) -> list[list[int]]:
        """Masks (L, K) of 1 (full) and 0 (window): in every row the units with the lowest scores become windows.

        Of equal scores the first become windows.
        """
        return self.allocation.ranked(self.scores.detach().tolist())

    def to_heads(self, kept: Tensor) -> list[list[int]]:
        """Masks per unit (L, 1 or K) as masks per KV head (L, K)."""
        return kept.int().expand(-1, self.shape.kv_heads).tolist()

    def fix(self, run: TrainingRun, masks: list[list[int]], results: dict[str, Any]) -> dict[str, Any]:
        """Give the model its final map and write masks.json; returns the results for the record."""
        chosen = AttentionMap.from_masks(masks, self.window)
        results = {"rho": self.config.rho, "target": self.target, "realised_sparsity": chosen.sparsity(), **results}
        results |= self.settled(run.config.training.steps)
        scores = [[round(value, 6) for value in row] for row in self.scores.detach().tolist()]
        content = {
            "masks": chosen.masks(),
            "window": self.window,
            "granularity": self.config.granularity,
            **results,
            "scores": scores,
            "source_run": run.folder.digest,
        }
        write_json(run.folder.path / "masks.json", content)
        run.change_structure("masks-fixed", run.model.structure.changed(map=chosen))
        return {**results, "granularity": self.config.granularity, "masks": chosen.masks(), "scores": scores}

    def settled(self, steps: int) -> dict[str, Any]:
        """settled, and the warning if it is false."""
        last = max(_LAST_STEPS, steps // _LAST_SHARE)
        if self.held >= last:
            return {"settled": True}
        warning = (
            f"the masks have not settled: {self.unsettled()} in each of the last {last} steps, and there were {steps} "
            "in all; learn them with more steps"
        )
        return {"settled": False, "warnings": [warning]}
