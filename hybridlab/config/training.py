"""Settings of training: steps, batches, optimizer and schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from hybridlab.config.types import (
    Beta,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Strict,
)
from hybridlab.errors import SettingsConflict
from hybridlab.plan.shape import ObjectiveName


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


OptimizerKind = Annotated[
    Literal["adamw", "muon"] | None, BeforeValidator(lambda kind: None if kind == "adamw" else kind)
]
"""The default is None, so that it changes no run's hash; `adamw` is another word for it."""


class Optimizer(Strict):
    """AdamW, or Muon for the matrices of the blocks and AdamW for all else."""

    kind: OptimizerKind = None
    """muon: the matrices of the blocks get orthogonal steps (torch's Muon), scaled to the size of AdamW's, so that both
    take the same lr; embeddings, output head, norms, biases and gates keep AdamW. Default: adamw."""
    muon_momentum: Beta | None = None
    """Decay of Muon's average of gradients. Default: 0.95."""
    muon_lr_factor: PositiveFloat | None = None
    """Learning rate of the matrices that Muon trains, as a multiple of lr. Default: lr."""
    lr: PositiveFloat = 3e-4
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the averages of gradients and of their squares."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the average square, against division by 0."""
    weight_decay: NonNegativeFloat = 0.1
    """Weight decay, multiplied by the learning rate."""
    decay_all: bool = False
    """Apply weight decay to norms and embeddings too, as OLMo does; otherwise only to the matrices of the blocks and
    the output head."""
    router_lr_factor: NonNegativeFloat | None = None
    """Learning rate of the routers of topology mesh, as a multiple of lr: 0.1 is a tenth of it, 0 keeps them as they
    begin. Default: lr."""

    @model_validator(mode="after")
    def _of_muon(self) -> Optimizer:
        for name in ("muon_momentum", "muon_lr_factor"):
            if getattr(self, name) is not None and self.kind != "muon":
                raise SettingsConflict(f"{name} has no effect on AdamW; set kind: muon, or leave it out", name)
        return self


class Training(Strict):
    steps: PositiveInt
    """Number of optimizer steps."""
    tokens_per_step: PositiveInt
    """Tokens in one optimizer step, over all its sequences."""
    seq_len: Annotated[int, Field(ge=2)]
    """Tokens in one training sequence."""
    seed: Seed = 0
    """Seed of the weights, of the order of the data and of all other random numbers."""
    skip_steps: NonNegativeInt | None = None
    """Number of batches to skip at the start, because the run to start from was already trained on them."""
    objective: ObjectiveName | None = None
    """What the model is trained on: next-token for decoders, masked-tokens for encoders. Default: that of the
    family."""
    clip: PositiveFloat = 1.0
    """Largest norm of the gradient; a larger one is scaled down to it."""
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    """Number format of the forward and backward pass; auto: bf16 where the machine computes with it, else fp32. fp64 is
    for comparisons of programs, whose rounding it makes small."""
    optimizer: Optimizer = Optimizer()
    """Settings of the optimizer."""
    schedule: Schedule = Schedule()
    """Learning rate over the steps."""

    @model_validator(mode="after")
    def _whole_rows(self) -> Training:
        if self.tokens_per_step % self.seq_len:
            down = self.tokens_per_step // self.seq_len * self.seq_len
            near = f"{down} or {down + self.seq_len}" if down else f"{self.seq_len}"
            raise SettingsConflict(
                f"tokens_per_step {self.tokens_per_step} is not a whole number of sequences of {self.seq_len}; "
                f"use {near}",
                "tokens_per_step",
                "seq_len",
            )
        if self.schedule.warmup_steps > self.steps:
            raise SettingsConflict(
                f"schedule.warmup_steps {self.schedule.warmup_steps} is longer than the run ({self.steps})",
                "schedule.warmup_steps",
                "steps",
            )
        return self

    @property
    def rows(self) -> int:
        """Sequences in one optimizer step."""
        return self.tokens_per_step // self.seq_len
