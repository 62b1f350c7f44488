"""MIDAS, LIDAS and their controls: which layers are copied, when, and where each layer comes from. No torch.

Source: "Do Depth-Grown Models Overcome the Curse of Depth?", section 3.1, Eq. 1 and 2, figure 2, appendix A. A growth
step copies `block` layers in a row, in MIDAS and LIDAS those around the middle of the model, and inserts the copies
right after the last of them. The growth of a model in training is in methods/depth/training.py.

    hybridlab grow --method lidas --block 2
    python -c "from hybridlab.methods.depth import order_after; print(order_after('lidas', 8, 4))"
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from hybridlab.config.method import Method, Stages, register_controller
from hybridlab.config.other_runs import Configuration
from hybridlab.config.types import NonNegativeInt, PositiveInt, Seed, Width
from hybridlab.errors import SettingsConflict, UserError
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.lineage import first_lineage, grown_lineage
from hybridlab.plan.structure import Structure

if TYPE_CHECKING:
    from hybridlab.training.engine import Hook

Copied = Literal["midas", "lidas", "top", "random"]
Rounding = Literal["floor", "largest-remainder"]
Draw = tuple[int, int]
"""Seed and number of the draw by which the method `random` chooses its blocks; the other methods need none."""
_STREAM = 12
"""First word of the seed sequence, which differs from those of the other draws of a run."""


# ---- settings ----


class Stage(NamedTuple):
    """A part of a run with one depth. steps: optimizer steps."""

    layers: int
    steps: int


@register_controller("stacking")
class StackingConfig(Method):
    """Depth growth by stacking (MIDAS, LIDAS, controls): copy layers, weights and optimizer state, in stages.

    `shape.layers` is the depth at the end. `plan` and `map` describe the model at the start, of `start` layers: a
    copied layer takes its visits and its row of the map along. With k = shape.layers / block, the stages are
    i = start / block … k of T_i = T · i^alpha / sum of i^alpha steps (PROP-alpha), T = growth_fraction of the run's
    steps; the other steps are done at full depth, in the last stage. The learning rate has one schedule for all.
    """

    adds_layers: ClassVar[bool] = True

    kind: Literal["stacking"]
    method: Copied
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
                raise SettingsConflict(
                    f"{name} has no effect with method {self.method}, which draws nothing", name, "method"
                )
        if self.start is not None and self.start % self.block:
            raise SettingsConflict(
                f"start {self.start} is no multiple of block {self.block}; use a block of {divisors(self.start)}",
                "start",
                "block",
            )
        defaults = type(self).model_fields
        unused = [n for n in ("alpha", "rounding", "growth_fraction") if getattr(self, n) != defaults[n].default]
        if self.stage_steps is not None and unused:
            raise SettingsConflict(
                f"{unused[0]} has no effect with stage_steps; remove one of the two", unused[0], "stage_steps"
            )
        return self

    @classmethod
    def shared(cls, settings: dict[str, Any]) -> dict[str, str]:
        drawn = {"seed": "training.seed"} if settings.get("method") == "random" else {}
        return {"block": "growth.block", **drawn}

    @property
    def changes_plan(self) -> bool:
        return True

    @property
    def start_layers(self) -> int:
        return self.start or self.block

    def first_layers(self, layers: int) -> int:
        return self.start_layers

    @property
    def drawn(self) -> Draw | None:
        """What the method draws its blocks from; None if it draws nothing."""
        return (self.seed or 0, self.draw or 0) if self.method == "random" else None

    def stages(self, layers: int, steps: int) -> list[Stage]:
        """The depths of a run that ends with so many layers, with the steps of each; UserError if they do not fit."""
        if self.stage_steps is None:
            return stages(layers, self.block, steps, self.start_layers, self.alpha, self.growth_fraction, self.rounding)
        check_depths(layers, self.block, self.start_layers)
        depths = range(self.start_layers, layers + 1, self.block)
        if len(self.stage_steps) != len(depths):
            raise UserError(
                f"stage_steps has {len(self.stage_steps)} numbers, but from {depths[0]} to {layers} layers by "
                f"{self.block} there are {len(depths)} stages"
            )
        if sum(self.stage_steps) != steps:
            raise UserError(f"stage_steps add up to {sum(self.stage_steps)}, but the run has {steps} steps")
        return [Stage(depth, count) for depth, count in zip(depths, self.stage_steps, strict=True)]

    def check(self, config: Configuration) -> None:
        try:
            check_depths(config.shape.layers, self.block, self.start_layers)
            # A budget chooses the steps later.
            if config.budget is None:
                self.stages(config.shape.layers, config.training.steps)
        except UserError as error:
            names = ("controller.block", "controller.start", "controller.stage_steps", "controller.growth_fraction")
            raise SettingsConflict(
                f"controller: {error}", "shape.layers", "training.steps", "controller.kind", *names
            ) from None
        if config.budget is not None and self.stage_steps is not None:
            raise SettingsConflict(
                "controller.stage_steps: a budget of FLOPs chooses the number of steps; leave one of the two out",
                "controller.stage_steps",
                "budget",
            )

    def rescaled(self, config: Configuration, share: float) -> Self:
        """UserError if the depths do not fit into the steps."""
        self.stages(config.shape.layers, config.training.steps)
        return self

    def forecast(self, start: Structure, config: Configuration) -> Stages:
        for number, stage in enumerate(self.stages(config.shape.layers, config.training.steps)):
            start = grown(start, self.method, self.block, self.drawn) if number else start
            yield start, stage.steps

    def hook(self, config: Configuration) -> Hook:
        from hybridlab.methods.depth.training import Stacking

        return Stacking(self, config.shape.layers, config.training.steps)


# ---- what is copied ----


def copied_layers(method: Copied, num_layers: int, block: int, draw: Draw | None = None) -> range:
    """The layers that a growth step copies, `block` of them in a row; the copies come right after the last one.

    MIDAS: the middle block, of index ⌈n / 2⌉ − 1 among n = L / b blocks (Eq. 2 with B' = B_m). LIDAS: the b layers
    that end at ⌈L / 2⌉ + ⌊b / 2⌋ − 1. Two controls, which are not the paper's: `top` takes the last block, `random` one
    of the n blocks, drawn anew at each depth from `draw` and n alone. UserError if the model is no whole number of
    blocks, or without a draw for `random`.

    The paper prints LIDAS's range as [m − ⌈b / 2⌉ … m + ⌊b / 2⌋] with m = ⌈L / 2⌉, which has b + 1 layers, while its
    operator adds b. Ours ends one layer earlier: that is what figure 2 draws (for b = 4 the last two layers of the
    block before the middle and the first two after it), and with it LIDAS copies the same layers as MIDAS where the
    number of blocks is odd, as the text says.
    """
    if num_layers < block or num_layers % block:
        raise UserError(f"stacking: {num_layers} layers are no whole number of blocks of {block}")
    blocks = num_layers // block
    if method == "midas":
        end = ((blocks + 1) // 2) * block
    elif method == "lidas":
        end = (num_layers + 1) // 2 + block // 2
    elif method == "top":
        end = num_layers
    elif draw is None:
        raise UserError("stacking: the method random needs a draw, which is a seed and a number")
    else:
        import numpy as np  # here, so that plans load fast

        # Growth steps of a run differ in the number of blocks.
        end = (1 + int(np.random.default_rng((_STREAM, *draw, blocks)).integers(blocks))) * block
    return range(end - block, end)


def order_after(method: Copied, num_layers: int, block: int, draw: Draw | None = None) -> tuple[int, ...]:
    """For each layer of the model after a growth step, the layer before it that it continues or was copied from."""
    copied = copied_layers(method, num_layers, block, draw)
    return (*range(copied.stop), *copied, *range(copied.stop, num_layers))


def grown(structure: Structure, method: Copied, block: int, draw: Draw | None = None) -> Structure:
    """The structure after a growth step. A copied layer takes its visits and its row of the map along.

    UserError if the plan does not say where the copies run (`Plan.with_copies`).
    """
    copied = copied_layers(method, structure.shape.layers, block, draw)
    order = order_after(method, structure.shape.layers, block, draw)
    before = structure.lineage or first_lineage(structure.shape.layers)
    return replace(
        structure,
        shape=replace(structure.shape, layers=len(order)),
        plan=structure.plan.with_copies(copied),
        map=AttentionMap(tuple(structure.map.layers[layer] for layer in order)),
        lineage=grown_lineage(before, copied),
    )


# ---- when ----


def stages(
    final: int,
    block: int,
    steps: int,
    start: int | None = None,
    alpha: float = 1.0,
    growth_fraction: float = 0.85,
    rounding: Rounding = "floor",
) -> list[Stage]:
    """The depths of a run of `steps` optimizer steps, by the schedule PROP-α (appendix A).

    The model begins with `start` layers (None: one block) and ends with `final`. T = round(growth_fraction · steps)
    steps are divided among the stages i = start / block … k with k = final / block: T_i = T · i^α / Σ i^α. The rest of
    the steps, for the cooldown, are done at full depth and belong to the last stage; a model that starts with more than
    a block leaves out the first stages, and the others share T.

    rounding: `floor` cuts every T_i off, and what is left over goes to the last stage; the text says
    `largest-remainder`, but the FLOPs that table 7 prints follow from floor. UserError if the depths are no whole
    numbers of blocks, if nothing grows, or if a stage has no step.
    """
    start = block if start is None else start
    check_depths(final, block, start)
    numbers = range(start // block, final // block + 1)
    shared = round(growth_fraction * steps)
    # alpha as it is written: 0.7 means 7/10; a power of it is no fraction, so those of whole alphas alone are exact.
    exact = float(alpha).is_integer()
    weights = [Fraction(number ** int(alpha) if exact else float(number) ** alpha) for number in numbers]
    shares = [shared * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    left = shared - sum(counts)
    if rounding == "largest-remainder":
        by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - shares[i], i))
        for i in by_remainder[:left]:
            counts[i] += 1
        left = 0
    if short := [number for number, count in zip(numbers, counts, strict=True) if count < 1]:
        raise UserError(
            f"{shared} steps of growth are too few for {len(counts)} stages: the one with {short[0] * block} layers "
            "would have no step; give more steps, or add more layers at once"
        )
    counts[-1] += left + steps - shared
    return [Stage(number * block, count) for number, count in zip(numbers, counts, strict=True)]


def check_depths(final: int, block: int, start: int) -> None:
    """UserError if the first or the last depth is no whole number of blocks, or if nothing grows between them."""
    if start >= final:
        raise UserError(
            f"the model starts with {start} layers and ends with {final}, so that nothing would grow; let it end with "
            "more, or start with less"
        )
    for what, layers in (("ends with", final), ("starts with", start)):
        if layers % block:
            raise UserError(
                f"the model {what} {layers} layers, which is no multiple of the block of {block}; use a block of "
                f"{divisors(layers)}, or another depth"
            )


def divisors(layers: int) -> str:
    """The block sizes that divide a depth, for errors."""
    *more, last = (str(size) for size in range(1, layers + 1) if layers % size == 0)
    return f"{', '.join(more)} or {last}" if more else last
