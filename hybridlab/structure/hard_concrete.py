"""The hard concrete distribution (Louizos et al. 2018; ConSA, Eq. 7 and 9), in fp32.

A sigmoid of a logistic variable is stretched to (low, high) and clipped to [0, 1]. So z is exactly 0 or exactly 1 with
positive probability, and differentiable in α in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST_U = 1e-6
"""Keeps log u and log(1 − u) finite in fp32."""


@dataclass(frozen=True)
class HardConcrete:
    """temperature: β. low, high: the stretch (γ, ζ), with γ < 0 and ζ > 1."""

    temperature: float = 2 / 3
    low: float = -0.1
    high: float = 1.1

    def sample(self, alpha: Tensor, u: Tensor) -> Tensor:
        """z for uniform random numbers u in (0, 1) of the shape of α (Eq. 7)."""
        u = u.clamp(_SMALLEST_U, 1 - _SMALLEST_U)
        s = torch.sigmoid((torch.log(u) - torch.log1p(-u) + alpha) / self.temperature)
        return (s * (self.high - self.low) + self.low).clamp(0, 1)

    def without_noise(self, alpha: Tensor) -> Tensor:
        """z of a trained α for measurements (Louizos et al. 2018, Eq. 13)."""
        return (torch.sigmoid(alpha) * (self.high - self.low) + self.low).clamp(0, 1)

    def prob_positive(self, alpha: Tensor) -> Tensor:
        """P(z > 0), which the paper writes as E[z] (Eq. 9)."""
        return torch.sigmoid(alpha - self.temperature * math.log(-self.low / self.high))
