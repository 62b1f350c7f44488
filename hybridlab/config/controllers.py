"""Settings of controllers, which change a model's structure during training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hybridlab.config.own_kinds import Own
from hybridlab.config.penalties import EigenRegConfig, EntropyRegConfig
from hybridlab.config.stacking import StackingConfig
from hybridlab.config.types import (
    Beta,
    Finite,
    Fraction,
    Granularity,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
)
from hybridlab.errors import Misfit
from hybridlab.plan.visit import layer_name
from hybridlab.registry import CONTROLLERS, HOOKS


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


class MaskLearningConfig(Strict):
    """ConSA stage 1 (section 4, appendix B). The paper gives one learning rate, 3e-4, which is too small to change a
    mask.

    The expected sparsity overshoots and then returns to rho, which takes longer for a larger rho. The record contains
    the final distance from rho and the number of units that were still undecided.
    """

    kind: Literal["mask-learning"]
    rho: Fraction
    """Target sparsity: the share of units that get a window."""
    granularity: Granularity = "head-all"
    """Unit of the masks: a whole layer, or a KV head, ranked among all layers (head-all) or within its own (head-
    single)."""
    binarize: Literal["topk", "threshold"] = "topk"
    """From learned values to masks: topk keeps exactly the share 1 - rho of the units, threshold those above 1/2
    (the paper)."""
    nearest: bool = False
    """Use the nearest sparsity that the number of units allows; otherwise another one is an error."""
    mask_lr: PositiveFloat = 0.2
    """Learning rate of the masks."""
    multiplier_lr: PositiveFloat = 0.5
    """Learning rate of the Lagrange multipliers."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the averages of gradients and of their squares, for masks and multipliers."""
    schedule: Schedule = Schedule(name="wsd", decay_fraction=0.3, final_ratio=0.02)
    """Schedule of mask_lr and multiplier_lr. If these decay too early, the multipliers do not return to 0."""
    alpha_init: Finite = 5.0
    """First value of the mask parameters; large values start with full attention."""
    temperature: PositiveFloat = 2 / 3
    """Temperature of the hard concrete distribution."""
    stretch: tuple[Finite, Finite] = (-0.1, 1.1)
    """Interval to which the distribution is stretched before it is cut to 0 … 1."""
    target_warmup_steps: NonNegativeInt = 0
    """Number of steps over which the target rises linearly from 0 to rho; 0 keeps the target fixed, as in the paper."""

    @model_validator(mode="after")
    def _stretch_covers(self) -> MaskLearningConfig:
        low, high = self.stretch
        if not (low < 0 and high > 1):
            raise Misfit(f"stretch {self.stretch} must reach below 0 and above 1, as (-0.1, 1.1) does", "stretch")
        return self


class L1GatesConfig(Strict):
    """ConSA's ablation without the L0-Lagrangian (section 5.4, appendix C): scalar gates, L1, ranking."""

    kind: Literal["l1-gates"]
    rho: Fraction
    """Target sparsity: the share of units that get a window."""
    granularity: Literal["layer", "head-all"] = "layer"
    """Unit of the gates: a whole layer, or a KV head ranked among all layers."""
    nearest: bool = False
    """Use the nearest sparsity that the number of units allows; otherwise another one is an error."""
    gate_lr: PositiveFloat = 0.02
    """Not given in the paper; this is the value in DuoAttention's released code."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the averages of the gates' gradients and of their squares."""
    strength: NonNegativeFloat = 0.05
    """Weight of the mean absolute gate in the loss (Eq. 13)."""


class EntropiesOf(Strict):
    """Where the entropies of heads come from: the probe `entropy` in the record of another run."""

    run: str
    """The run with the entropies: its name, its folder, or the start of its hash."""
    step: NonNegativeInt | None = None
    """The step after which they were measured (evaluation.at_steps of that run); 0: those of its first weights.
    Default: at its end."""


class EntropyGrowthConfig(Strict):
    """SGT (section 4, algorithm 1): during training, add loops over high-entropy heads, one layer at a time.

    Layers and heads are numbered from 0. Steps are completed optimizer steps: a decision after step t takes effect in
    step t + 1.
    """

    kind: Literal["entropy-growth"]
    heads: PositiveInt = 2
    """h: number of heads that loop in each chosen layer."""
    select: Literal["high", "low", "random"] = "high"
    """Loop the heads with the highest entropy (the method), with the lowest (its ablation, table 2), or heads drawn by
    training.seed and the layer, a control. Layers are chosen in the same way for all three."""
    max_passes: Annotated[int, Field(ge=1, le=1000)] = 1
    """K_max: maximum number of extra passes of a layer."""
    max_layers: PositiveInt | None = None
    """L: maximum number of layers that loop. Default: 3, or the number of fixed layers."""
    candidates: PositiveInt | None = None
    """Number of layers with the highest mean entropy from which a layer is chosen. Default: as many as may loop."""
    layers: list[NonNegativeInt] | None = None
    """Fixed layers: these loop, whatever their entropy."""
    exclude: list[NonNegativeInt] = [0]
    """Layers that never loop. The entropy of the first layer's heads stays near 1 (appendix C.4)."""
    direction: Literal["deep-to-shallow", "shallow-to-deep"] = "deep-to-shallow"
    """Order in which layers begin to loop."""
    policy: Literal["paper", "released"] = "paper"
    """Which layer may get another pass: the newest (algorithm 1), or the first chosen one in the pool (released
    code)."""
    shortlist: PositiveInt | None = None
    """Appendix D.2: keep this many heads at the end of a layer's first interval, and `heads` of them after its
    second."""
    start_step: PositiveInt = 250
    """Step after which the first layer begins to loop."""
    interval: PositiveInt = 250
    """Steps between two growth actions; the first one is at start_step."""
    fade_steps: NonNegativeInt = 250
    """A new layer first loops all of its heads; the others than the kept ones fade out linearly over these steps
    (released code). With 0 only the kept heads loop, as in the paper's text."""
    ema_decay: Beta = 0.5
    """Decay of the moving average of entropies over steps (bias-corrected); 0 uses only the last step."""
    entropies_of: EntropiesOf | None = None
    """Choose layers and heads by entropies that were measured on another run, over many sequences, instead of by the
    moving average over training batches."""
    entropies: list[list[Finite]] | None = None
    """The same with the numbers themselves: for every layer, the entropy of each of its query heads."""

    @model_validator(mode="after")
    def _choices_fit(self) -> EntropyGrowthConfig:
        if self.layers is not None:
            unused = [name for name in ("max_layers", "candidates") if getattr(self, name) is not None]
            if unused:
                message = f"{unused[0]} has no effect on fixed layers; remove {unused[0]} or layers"
                raise Misfit(message, *unused, "layers")
            if not self.layers or len(set(self.layers)) != len(self.layers):
                raise Misfit("layers must name at least one layer, and each of them once", "layers")
            if clash := set(self.layers) & set(self.exclude):
                raise Misfit(
                    f"{layer_name(min(clash))} is both fixed and excluded; set exclude: [] to loop it",
                    "layers",
                    "exclude",
                )
        if self.candidates is not None and self.candidates < self.target_layers:
            raise Misfit(
                f"candidates {self.candidates} is less than the {self.target_layers} layers that may loop",
                "candidates",
                "max_layers",
            )
        known = [name for name in ("entropies_of", "entropies") if getattr(self, name) is not None]
        if len(known) == 2:
            raise Misfit("entropies_of and entropies are both given; leave one of them out", *known)
        if known and self.ema_decay != type(self).model_fields["ema_decay"].default:
            raise Misfit(f"ema_decay has no effect with {known[0]}; remove one of them", "ema_decay", known[0])
        if self.shortlist is not None and self.shortlist <= self.heads:
            raise Misfit(f"shortlist {self.shortlist} must be more than heads ({self.heads})", "shortlist", "heads")
        return self

    @property
    def target_layers(self) -> int:
        return len(self.layers) if self.layers is not None else self.max_layers or 3

    def check_shape(self, num_layers: int, num_heads: int) -> None:
        """Misfit, as of the whole configuration, for heads or layers that the shape does not have."""
        for name in ("heads", "shortlist"):
            if (getattr(self, name) or 0) > num_heads:
                message = f"controller.{name} {getattr(self, name)}: a layer has {num_heads} heads"
                raise Misfit(message, f"controller.{name}", "shape.heads")
        rows = self.entropies
        if rows is not None and [len(row) for row in rows] != [num_heads] * num_layers:
            message = f"controller.entropies: {num_layers} layers of {num_heads} heads need a number for each head"
            raise Misfit(message, "controller.entropies", "shape.heads", "shape.layers")
        for name, layers in (("layers", self.layers or []), ("exclude", self.exclude)):
            if wrong := [layer for layer in layers if layer >= num_layers]:
                last = f"{num_layers - 1} (L{num_layers})"
                message = f"controller.{name} names layer {wrong[0]}, but the last one is {last}"
                raise Misfit(message, f"controller.{name}", "shape.layers")
        free = num_layers - len({layer for layer in self.exclude if layer < num_layers})
        wanted = {"max_layers": self.target_layers if self.layers is None else 0, "candidates": self.candidates or 0}
        for name, number in wanted.items():
            if number > free:
                message = f"controller.{name} {number}: only {free} of {num_layers} layers may loop"
                raise Misfit(message, f"controller.{name}", "controller.exclude", "shape.layers")


MaskController = MaskLearningConfig | L1GatesConfig
GrowthController = EntropyGrowthConfig | StackingConfig
ControllerConfig = Annotated[MaskController | GrowthController, Field(discriminator="kind"), Own(CONTROLLERS)]


class PythonHook(Strict):
    """A hook that a Python program passes to `hybridlab.train`; a file cannot ask for one."""

    kind: Literal["python"]
    name: str
    """Its `name`."""
    version: str
    """Its `version`, which changes whenever it would act otherwise."""


Penalty = EntropyRegConfig | EigenRegConfig
HookConfig = Annotated[PythonHook | Penalty, Field(discriminator="kind"), Own(HOOKS)]
