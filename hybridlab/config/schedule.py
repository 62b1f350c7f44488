"""The schedule of a learning rate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridlab.config.types import Fraction, NonNegativeInt, Strict


class Schedule(Strict):
    """Learning rate relative to its peak, over optimizer steps."""

    name: Literal["cosine", "wsd", "trapezoidal"] = "cosine"
    """wsd: constant, then linear decay; trapezoidal: constant, then 1 - sqrt decay. All begin with a linear warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which the rate rises linearly from near 0 to its peak."""
    warmup_fraction: Annotated[Fraction | None, Field(exclude=True)] = None
    """Instead of warmup_steps: the warm-up as a fraction of the run's steps, rounded to whole steps. The stored
    configuration contains only warmup_steps."""
    decay_fraction: Fraction = 0.2
    """Fraction of the steps in which the rate decays (wsd and trapezoidal; cosine decays after the warm-up)."""
    final_ratio: Fraction = 0.1
    """Learning rate of the last step, relative to the peak."""

    def rescaled(self, share: float) -> Schedule:
        """The schedule of a run with this share of its steps: the warm-up keeps its share of them."""
        return self.model_copy(update={"warmup_steps": round(self.warmup_steps * share)})
