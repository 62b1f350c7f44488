"""The settings of the controllers: what may change a model's structure while it trains, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

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


class Schedule(Strict):
    """Learning rate as a factor of the peak, over optimizer steps."""

    name: Literal["cosine", "wsd", "trapezoidal"] = "cosine"
    """wsd: constant, then linear decay; trapezoidal: constant, then 1 - sqrt decay. All start with linear warm-up."""
    warmup_steps: NonNegativeInt = 0
    decay_fraction: Fraction = 0.2
    """Share of all steps that decays (wsd and trapezoidal; a cosine decays from the end of the warm-up on)."""
    final_ratio: Fraction = 0.1


class MaskLearningConfig(Strict):
    """ConSA stage 1 (section 4, appendix B). The paper states one learning rate, 3e-4, with which no mask can move.

    The expected sparsity overshoots and then returns to rho; how long that takes grows with rho, and the result says how
    far from rho it ended and how many units had not decided.
    """

    kind: Literal["mask-learning"]
    rho: Fraction
    granularity: Granularity = "head-all"
    binarize: Literal["topk", "threshold"] = "topk"
    nearest: bool = False
    mask_lr: PositiveFloat = 0.2
    multiplier_lr: PositiveFloat = 0.5
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    schedule: Schedule = Schedule(name="wsd", decay_fraction=0.3, final_ratio=0.02)
    """Of these rates, apart from the model's: under a decaying one the multipliers never get back to zero."""
    alpha_init: Finite = 5.0
    temperature: PositiveFloat = 2 / 3
    stretch: tuple[Finite, Finite] = (-0.1, 1.1)
    target_warmup_steps: NonNegativeInt = 0
    """Raise the target linearly from 0 to rho over these steps; 0 is the paper's fixed target."""

    @model_validator(mode="after")
    def _stretch_covers(self) -> MaskLearningConfig:
        low, high = self.stretch
        if not (low < 0 and high > 1):
            raise ValueError(f"stretch {self.stretch} must reach below 0 and above 1, as (-0.1, 1.1) does")
        return self


class L1GatesConfig(Strict):
    """ConSA's ablation without the L0-Lagrangian (section 5.4, appendix C): scalar gates, L1, ranking."""

    kind: Literal["l1-gates"]
    rho: Fraction
    granularity: Literal["layer", "head-all"] = "layer"
    nearest: bool = False
    gate_lr: PositiveFloat = 0.02
    """Not stated in the paper; DuoAttention's released value."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    strength: NonNegativeFloat = 0.05
    """Weight of the mean absolute gate in the loss (Eq. 13)."""


class EntropyGrowthConfig(Strict):
    """SGT (section 4, algorithm 1): while it trains, a model grows loops over its high-entropy heads, layer by layer.

    Layers and heads count from 0. Steps are completed optimizer steps: what is decided after step t acts from t + 1 on.
    """

    kind: Literal["entropy-growth"]
    heads: PositiveInt = 2
    """h: heads that loop in each chosen layer."""
    select: Literal["high", "low"] = "high"
    """The heads of the highest entropy (the method) or of the lowest (its ablation, table 2)."""
    max_passes: Annotated[int, Field(ge=1, le=1000)] = 1
    """K_max: extra passes that a layer may grow to."""
    max_layers: PositiveInt | None = None
    """L: layers that may loop; 3 where no layers are fixed, else all of those."""
    candidates: PositiveInt | None = None
    """Size of the pool of layers with the highest mean entropy; as many as may loop where it is not set."""
    layers: list[NonNegativeInt] | None = None
    """Fixed layers: these loop, whatever their entropy."""
    exclude: list[NonNegativeInt] = [0]
    """Layers that never loop; the first one's heads stay near an entropy of 1 (appendix C.4)."""
    direction: Literal["deep-to-shallow", "shallow-to-deep"] = "deep-to-shallow"
    policy: Literal["paper", "released"] = "paper"
    """Which layer may deepen: the newest one (algorithm 1), or the first chosen one that is in the pool (released code)."""
    shortlist: PositiveInt | None = None
    """Appendix D.2: keep this many heads in a layer's first window, and choose `heads` of them in its second."""
    start_step: PositiveInt = 250
    interval: PositiveInt = 250
    """One action every so many steps, from start_step on."""
    fade_steps: NonNegativeInt = 250
    """A new layer loops all its heads; those that it does not keep fade out linearly over these steps (released code).
    0 is the paper's literal text: only the kept heads ever loop."""
    ema_decay: Beta = 0.5
    """Of the entropies' moving average over steps, bias-corrected; 0 takes the last step's alone."""

    @model_validator(mode="after")
    def _choices_fit(self) -> EntropyGrowthConfig:
        if self.layers is not None:
            unused = [name for name in ("max_layers", "candidates") if getattr(self, name) is not None]
            if unused:
                raise ValueError(f"{unused[0]} has no effect on fixed layers; leave one of the two out")
            if not self.layers or len(set(self.layers)) != len(self.layers):
                raise ValueError("layers must name at least one layer, and each of them once")
            if clash := set(self.layers) & set(self.exclude):
                raise ValueError(f"layer {min(clash)} is both fixed and excluded; set exclude: [] to loop it")
        if self.candidates is not None and self.candidates < self.target_layers:
            raise ValueError(f"candidates {self.candidates} is less than the {self.target_layers} layers that may loop")
        if self.shortlist is not None and self.shortlist <= self.heads:
            raise ValueError(f"shortlist {self.shortlist} must be more than heads ({self.heads})")
        return self

    @property
    def target_layers(self) -> int:
        return len(self.layers) if self.layers is not None else self.max_layers or 3

    def check_shape(self, num_layers: int, num_heads: int) -> None:
        """Refuse more heads or layers than a shape has."""
        for name in ("heads", "shortlist"):
            if (getattr(self, name) or 0) > num_heads:
                raise ValueError(f"controller.{name} {getattr(self, name)}: a layer has {num_heads} heads")
        if self.layers and max(self.layers) >= num_layers:
            raise ValueError(f"controller.layers names layer {max(self.layers)}, but the last one is {num_layers - 1}")
        if wrong := [layer for layer in self.exclude if layer >= num_layers]:
            raise ValueError(f"controller.exclude names layer {wrong[0]}, but the last one is {num_layers - 1}")
        free = num_layers - len({layer for layer in self.exclude if layer < num_layers})
        if self.layers is None and self.target_layers > free:
            raise ValueError(f"controller.max_layers {self.target_layers}: only {free} of {num_layers} layers may loop")
        if self.candidates is not None and self.candidates > free:
            raise ValueError(f"controller.candidates {self.candidates}: only {free} of {num_layers} layers may loop")


MaskController = MaskLearningConfig | L1GatesConfig
ControllerConfig = Annotated[MaskController | EntropyGrowthConfig, Field(discriminator="kind")]
