"""Learning which KV heads need full attention (ConSA, section 4; stage 1 of its two stages).

    hybridlab learn-masks --from RUN --rho 0.5 --granularity head-all

Every unit (a layer, or a KV head) has a parameter α; its mask z ~ hard concrete(α) mixes full attention and a window
(Eq. 3). An augmented Lagrangian holds the expected sparsity to ρ: λ (E − ρ) + φ (E − ρ)² is minimised in α and
maximised in λ and φ (Eq. 10). `head-single` has its own λ and φ, and its own target, in every layer.

Choices that the paper leaves open: its one learning rate (3e-4 for 1,000 steps) can change α by 0.16 at most, so masks
and multipliers have their own rates (by default 0.2 and 0.5), constant until the last 30 % of the steps. One z is drawn
per optimizer step, from (seed, step), for all its micro-batches. α, λ and φ are fp32, without weight decay or clipping.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.config.controllers import MaskLearningConfig
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import Shape
from hybridlab.structure.hard_concrete import HardConcrete
from hybridlab.structure.units import LearnedAllocation
from hybridlab.training.hooks import TrainingRun
from hybridlab.training.optimizer import Group

UNDECIDED = 0.1
"""A unit counts as undecided if its P(z > 0) is farther than this from both 0 and 1 at the end."""
TOLERANCE = 0.1
"""Learning has settled when every expected sparsity stays this close to its target, as a share of the target."""
_DRAW = 4
"""First word of this controller's seed sequence; data/batches.py uses 1 to 3."""


class MaskLearning(LearnedAllocation):
    """The controller `mask-learning`. scores: α. lambda_, phi: (1,), or (L,) for head-single."""

    config: MaskLearningConfig

    def __init__(self, config: MaskLearningConfig, shape: Shape, window: int) -> None:
        super().__init__(config, shape, window, config.alpha_init)
        self.distribution = HardConcrete(config.temperature, *config.stretch)
        self.lambda_, self.phi = torch.zeros(self.num_rows), torch.zeros(self.num_rows)
        self.highest = 0.0

    # ---- hook ----

    def own_tensors(self) -> dict[str, Tensor]:
        return {"scores": self.scores, "lambda_": self.lambda_, "phi": self.phi}

    def begin(self, run: TrainingRun) -> None:
        super().begin(run)
        self.seed = run.config.training.seed

    def parameter_groups(self) -> list[Group]:
        config = self.config
        return [
            self.group("masks", ["scores"], config.mask_lr, schedule=config.schedule),
            self.group(
                "multipliers", ["lambda_", "phi"], config.multiplier_lr, maximize=True, schedule=config.schedule
            ),
        ]

    def forward_inputs(self, step: int) -> dict[str, Any]:
        """The gates z of this step."""
        generator = torch.Generator().manual_seed(_mixed_seed(self.seed, step))
        u = torch.rand(self.scores.shape, generator=generator).to(self.scores.device)
        return self.gates(self.distribution.sample(self.scores, u))

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        """The gates without noise."""
        return self.gates(self.distribution.without_noise(self.scores.detach()))

    def penalty(self, step: int) -> Tensor:
        """Σ over the constraints of λ (E − ρ) + φ (E − ρ)² (Eq. 10)."""
        gap = self.expected_sparsity() - self._target_at(step)
        return (self.lambda_ * gap + self.phi * gap.square()).sum()

    def after_step(self, run: TrainingRun, step: int) -> dict[str, float]:
        super().after_step(run, step)
        with torch.no_grad():
            expected = float(self.expected_sparsity().mean())
            self.highest = max(self.highest, expected)
            return {
                "expected_sparsity": expected,
                "lagrangian": float(self.penalty(step)),
                "lambda": float(self.lambda_.mean()),
                "phi": float(self.phi.mean()),
            }

    def state(self) -> dict[str, Any]:
        return {"highest": self.highest, **super().state()}

    def load_state(self, state: dict[str, Any], run: TrainingRun) -> None:
        super().load_state(state, run)
        self.highest = state["highest"]

    def finish(self, run: TrainingRun) -> dict[str, Any]:
        """Binarise the masks; the results also state the sparsity of the paper's threshold."""
        threshold = self.threshold_masks()
        by_threshold = AttentionMap.from_masks(threshold, self.window).sparsity()
        expected = self.expected_sparsity().detach()
        results = {
            "expected_sparsity": float(expected.mean()),
            "expected_gap": self._gap(),
            "undecided_share": self._undecided_share(),
            "highest_expected_sparsity": self.highest,
            "binarize": self.config.binarize,
            "threshold_sparsity": by_threshold,
            "threshold_gap": by_threshold - self.target,
        }
        return self.fix(run, self.ranked_masks() if self.config.binarize == "topk" else threshold, results)

    def holds(self) -> bool:
        return self._gap() <= TOLERANCE * (self.target or 1)

    def unsettled(self) -> str:
        expected, rows = self.expected_sparsity().detach(), "" if self.num_rows == 1 else " of every layer"
        worst = float(expected[(expected - self.target).abs().argmax()])
        return (
            f"the expected sparsity ended at {worst:.3f} for a target of {self.target:.3f}, with "
            f"{self._undecided_share():.0%} of the units undecided; settled means within {TOLERANCE:.0%} of the "
            f"target{rows}"
        )

    # ---- the method ----

    def expected_sparsity(self) -> Tensor:
        """1 − mean P(z > 0) of each constraint (Eq. 9): (L,) for head-single, else (1,)."""
        windows = 1 - self.distribution.prob_positive(self.scores)
        return windows.view(self.num_rows, -1).mean(1)

    def threshold_masks(self) -> list[list[int]]:
        """z = 1[α > 0] (Eq. 11) as masks; the target may be missed."""
        return self.to_heads(self.scores.detach() > 0)

    def _gap(self) -> float:
        """The largest distance of an expected sparsity from its target."""
        return float((self.expected_sparsity().detach() - self.target).abs().max())

    def _undecided_share(self) -> float:
        """The share of units that are undecided."""
        likely = self.distribution.prob_positive(self.scores.detach())
        return float(((likely > UNDECIDED) & (likely < 1 - UNDECIDED)).float().mean())

    def _target_at(self, step: int) -> float:
        """The target sparsity in step `step`, which rises linearly at first."""
        warmup = self.config.target_warmup_steps
        return self.target * min(1.0, (step + 1) / warmup) if warmup else self.target


def _mixed_seed(seed: int, step: int) -> int:
    """A 63-bit seed from (seed, step)."""
    return int(np.random.SeedSequence((_DRAW, seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
