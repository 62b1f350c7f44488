"""Settings of controllers that add layers to a model while it trains."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hybridlab.config.types import NonNegativeInt, PositiveInt, Seed, Strict, Width
from hybridlab.errors import Misfit, UserError
from hybridlab.plan.stacking import Draw, Method, Rounding, Stage, check_depths, divisors, stages


class AddsLayers(Strict):
    """Base class of controllers whose model begins with fewer layers than `shape.layers`, with which it ends."""

    @property
    @abstractmethod
    def first_layers(self) -> int:
        """Number of layers before the first step."""

    @abstractmethod
    def stages(self, layers: int, steps: int) -> list[Stage]:
        """The depths of a run that ends with so many layers, with the steps of each; UserError if they do not fit."""

    @abstractmethod
    def in_stages(self, layers: int, steps: int) -> Self:
        """The same settings with the steps of each stage written out, from which the last depth follows."""

    @abstractmethod
    def check_fits(self, layers: int, steps: int | None) -> None:
        """Misfit, as of the whole configuration, if the depths or the steps do not fit. steps: None if unknown."""


class StackingConfig(AddsLayers):
    """Depth growth by stacking (MIDAS, LIDAS, controls): copy layers, weights and optimizer state, in stages.

    `shape.layers` is the depth at the end. `plan` and `map` describe the model at the start, of `start` layers: a
    copied layer takes its visits and its row of the map along. With k = shape.layers / block, the stages are
    i = start / block … k of T_i = T · i^alpha / sum of i^alpha steps (PROP-alpha), T = growth_fraction of the run's
    steps; the other steps are done at full depth, in the last stage. The learning rate has one schedule for all.
    """

    kind: Literal["stacking"]
    method: Method
    """midas: copy the middle block; of an even number, that before the middle. lidas: copy the `block` layers in the
    middle of the model, which may belong to two blocks. Controls: top copies the last block, random a block that is
    drawn anew in each growth step."""
    draw: NonNegativeInt | None = None
    """With method random, the number of the draw: each gives other blocks. Default: 0."""
    seed: Seed | None = None
    """With method random, the seed of the draw. Default: `training.seed`, so that every seed of an experiment draws
    anew."""
    block: Width = 4
    """Layers that a growth step copies. It divides the depth at the start and at the end. Default: growth.block of the
    size, or 4, as in the paper."""
    start: Width | None = None
    """Layers at the start. Default: one block."""
    alpha: Annotated[float, Field(ge=0, le=32, allow_inf_nan=False)] = 1.0
    """Exponent of the schedule: 0 gives all stages alike, 1 is the paper's PROP-1, more gives deep ones more. At the
    limit of 32, the first of two stages gets one step in four billion."""
    rounding: Rounding = "floor"
    """To whole steps: floor cuts off, and the last stage gets what is left over, as in the paper's printed FLOPs;
    largest-remainder is what its text says."""
    growth_fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.85
    """Share of the run's steps that the schedule divides among the stages, before a cooldown at full depth."""
    stage_steps: list[PositiveInt] | None = None
    """The steps of each stage in place of a schedule; they add up to training.steps."""

    @model_validator(mode="after")
    def _choices_fit(self) -> StackingConfig:
        for name in ("draw", "seed"):
            if self.method != "random" and getattr(self, name) is not None:
                raise Misfit(f"{name} has no effect with method {self.method}, which draws nothing", name, "method")
        if self.start is not None and self.start % self.block:
            raise Misfit(
                f"start {self.start} is no multiple of block {self.block}; use a block of {divisors(self.start)}",
                "start",
                "block",
            )
        defaults = type(self).model_fields
        unused = [n for n in ("alpha", "rounding", "growth_fraction") if getattr(self, n) != defaults[n].default]
        if self.stage_steps is not None and unused:
            raise Misfit(f"{unused[0]} has no effect with stage_steps; remove one of the two", unused[0], "stage_steps")
        return self

    @property
    def first_layers(self) -> int:
        return self.start or self.block

    @property
    def drawn(self) -> Draw | None:
        """What the method draws its blocks from; None if it draws nothing."""
        return (self.seed or 0, self.draw or 0) if self.method == "random" else None

    def stages(self, layers: int, steps: int) -> list[Stage]:
        if self.stage_steps is None:
            return stages(layers, self.block, steps, self.first_layers, self.alpha, self.growth_fraction, self.rounding)
        check_depths(layers, self.block, self.first_layers)
        depths = range(self.first_layers, layers + 1, self.block)
        if len(self.stage_steps) != len(depths):
            raise UserError(
                f"stage_steps has {len(self.stage_steps)} numbers, but from {depths[0]} to {layers} layers by "
                f"{self.block} there are {len(depths)} stages"
            )
        if sum(self.stage_steps) != steps:
            raise UserError(f"stage_steps add up to {sum(self.stage_steps)}, but the run has {steps} steps")
        return [Stage(depth, count) for depth, count in zip(depths, self.stage_steps, strict=True)]

    def in_stages(self, layers: int, steps: int) -> Self:
        return self.model_copy(update={"stage_steps": [stage.steps for stage in self.stages(layers, steps)]})

    def check_fits(self, layers: int, steps: int | None) -> None:
        try:
            check_depths(layers, self.block, self.first_layers)
            if steps is not None:
                self.stages(layers, steps)
        except UserError as error:
            names = ("controller.block", "controller.start", "controller.stage_steps", "controller.growth_fraction")
            raise Misfit(f"controller: {error}", "shape.layers", "training.steps", "controller.kind", *names) from None
        if steps is None and self.stage_steps is not None:
            raise Misfit(
                "controller.stage_steps: a budget of FLOPs chooses the number of steps; leave one of the two out",
                "controller.stage_steps",
                "budget",
            )
