"""Settings of the penalties that any model can be trained with: the regularisers that SAOBP compares with (table 3).

The papers leave open what is set here; the values are those of this project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hybridlab.config.method import HookSettings, register_hook
from hybridlab.config.other_runs import Configuration
from hybridlab.config.types import Finite, Fraction, PositiveFloat

if TYPE_CHECKING:
    from hybridlab.training.engine import Hook


@register_hook("entropy-reg")
class EntropyRegConfig(HookSettings):
    """A term of the loss for heads whose attention is spread too little (Jha and Reagen, 2025)."""

    kind: Literal["entropy-reg"]
    weight: PositiveFloat = 0.1
    """Factor on the mean penalty, which is the squared distance of a head's entropy below the threshold."""
    threshold: Fraction = 0.5
    """Entropy below which a head is penalised, as a share of the largest: the logarithm of the keys it may see."""

    def hook(self, config: Configuration) -> Hook:
        from hybridlab.methods.saobp.training import EntropyReg

        return EntropyReg(self)


@register_hook("eigen-reg")
class EigenRegConfig(HookSettings):
    """A term of the loss for the eigenvalues of W_Q W_Kᵀ of every head (Bao et al., 2024)."""

    kind: Literal["eigen-reg"]
    weight: PositiveFloat = 0.001
    """Factor on the mean penalty: the squared distance of the trace from `trace`, plus the sum of the squared distances
    of the eigenvalues from their mean."""
    trace: Finite = 1.0
    """Trace that each head is drawn to, of W_Q W_Kᵀ divided by the root of the head width, as in the scores."""

    def hook(self, config: Configuration) -> Hook:
        from hybridlab.methods.saobp.training import EigenReg

        return EigenReg(self)
