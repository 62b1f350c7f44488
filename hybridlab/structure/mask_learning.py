"""Learning which KV heads need full attention (ConSA, section 4; stage 1 of its two stages).

    hybridlab learn-masks --from RUN --rho 0.5 --granularity head-all

Every unit (a layer, or a KV head) has a parameter α; its mask z ~ hard concrete(α) mixes full attention and a window
(Eq. 3). An augmented Lagrangian holds the expected sparsity to ρ: λ (E − ρ) + φ (E − ρ)² is minimised in α and
maximised in λ and φ (Eq. 10). `head-single` has its own λ and φ, and its own target, in every layer.

What the paper leaves open, and what is done here: its one stated learning rate (3e-4 for 1,000 steps) can move α by
0.16 at most, so masks and multipliers have peak rates of their own (default 0.1) under the run's schedule. One z is drawn per optimizer
step, from (seed, step), and shared by its micro-batches. α, λ and φ are fp32, undecayed and outside the clipping.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.config.schema import MaskLearningConfig, Shape
from hybridlab.files import write_json
from hybridlab.plan.attention_map import AttentionMap, exact_count
from hybridlab.structure.hard_concrete import HardConcrete
from hybridlab.training.engine import Run
from hybridlab.training.hooks import Hook
from hybridlab.training.optimizer import Group

_DRAW = 4
"""First word of this controller's seed sequence; data/batches.py has 1 to 3."""


class MaskLearning(Hook):
    """The controller. alpha: (L, 1) for `layer`, (L, K) for heads; multipliers: one pair, or one per layer."""

    name = "mask-learning"

    def __init__(self, config: MaskLearningConfig, shape: Shape, window: int) -> None:
        self.config, self.shape, self.window = config, shape, window
        self.distribution = HardConcrete(config.temperature, *config.stretch)
        units = 1 if config.granularity == "layer" else shape.kv_heads
        # Each row of this view meets the target by itself: every layer (head-single), or the whole model.
        per_row = units if config.granularity == "head-single" else units * shape.layers
        unit = "layers" if config.granularity == "layer" else "KV heads"
        where = f"{unit} of a layer" if config.granularity == "head-single" else unit
        self.windows_per_row = exact_count(config.rho, per_row, where, config.nearest)
        self.target = self.windows_per_row / per_row
        rows = shape.layers if config.granularity == "head-single" else 1
        self.alpha = torch.full((shape.layers, units), config.alpha_init)
        self.lambda_, self.phi = torch.zeros(rows), torch.zeros(rows)
        self.highest = 0.0

    # ---- hook ----

    def begin(self, run: Run) -> None:
        self.seed = run.config.training.seed
        for name in ("alpha", "lambda_", "phi"):
            setattr(self, name, getattr(self, name).to(run.device).requires_grad_())

    def parameter_groups(self) -> list[Group]:
        own = {"betas": tuple(self.config.betas), "clipped": False}
        multipliers = {"mask.lambda": self.lambda_, "mask.phi": self.phi}
        return [
            Group("masks", {"mask.alpha": self.alpha}, lr=self.config.mask_lr, **own),
            Group("multipliers", multipliers, lr=self.config.multiplier_lr, maximize=True, **own),
        ]

    def forward_inputs(self, step: int) -> dict[str, Any]:
        """Gates of this step: layer → z (K,)."""
        generator = torch.Generator().manual_seed(_mixed_seed(self.seed, step))
        u = torch.rand(self.alpha.shape, generator=generator).to(self.alpha.device)
        z = self.distribution.sample(self.alpha, u).expand(-1, self.shape.kv_heads)
        return {"gates": dict(enumerate(z))}

    def penalty(self, step: int) -> Tensor:
        """Σ over the constraints of λ (E − ρ) + φ (E − ρ)² (Eq. 10)."""
        gap = self.expected_sparsity() - self._target_at(step)
        return (self.lambda_ * gap + self.phi * gap.square()).sum()

    def after_step(self, run: Run, step: int) -> dict[str, float]:
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
        return {"highest": self.highest}

    def load_state(self, state: dict[str, Any]) -> None:
        self.highest = state["highest"]

    def finish(self, run: Run) -> dict[str, Any]:
        """Binarise, fix the map, write masks.json."""
        topk, threshold = self.masks("topk"), self.masks("threshold")
        chosen = AttentionMap.from_masks(topk if self.config.binarize == "topk" else threshold, self.window)
        by_threshold = AttentionMap.from_masks(threshold, self.window).sparsity()
        results = {
            "rho": self.config.rho,
            "target": self.target,
            "realised_sparsity": chosen.sparsity(),
            "expected_sparsity": float(self.expected_sparsity().detach().mean()),
            "highest_expected_sparsity": self.highest,
            "binarize": self.config.binarize,
            "threshold_sparsity": by_threshold,
            "threshold_gap": by_threshold - self.target,
        }
        content = {
            "masks": chosen.masks(),
            "window": self.window,
            "granularity": self.config.granularity,
            **results,
            "alpha": [[round(value, 6) for value in row] for row in self.alpha.tolist()],
            "source_run": run.folder.info()["hash"] if run.folder.info() else None,
        }
        write_json(run.folder.path / "masks.json", content)
        run.change_structure("masks-fixed", attention_map=chosen)
        return results

    # ---- the method ----

    def expected_sparsity(self) -> Tensor:
        """1 − mean P(z > 0) of each constraint (Eq. 9): (L,) for head-single, else (1,)."""
        windows = 1 - self.distribution.prob_positive(self.alpha)
        return windows.view(len(self.lambda_), -1).mean(1)

    def masks(self, how: str) -> list[list[int]]:
        """Rows of 1 (full) and 0 (window) per layer and KV head.

        topk: the units with the smallest α become windows, as many as the target asks (ties: the lower unit first).
        threshold: z = 1[α > 0], the paper's Eq. 11, which need not meet the target.
        """
        with torch.no_grad():
            if how == "threshold":
                kept = self.alpha > 0
            else:
                rows = self.alpha.reshape(len(self.lambda_), -1)
                order = rows.argsort(dim=1, stable=True)
                kept = torch.ones_like(rows, dtype=torch.bool)
                kept.scatter_(1, order[:, : self.windows_per_row], False)
                kept = kept.view_as(self.alpha)
            return kept.int().expand(-1, self.shape.kv_heads).tolist()

    def _target_at(self, step: int) -> float:
        warmup = self.config.target_warmup_steps
        return self.target * min(1.0, (step + 1) / warmup) if warmup else self.target


def _mixed_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence((_DRAW, seed, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
