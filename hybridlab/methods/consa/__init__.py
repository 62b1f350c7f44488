"""ConSA: learn which KV heads need full attention (section 4), and its ablation with gates (section 5.4). No torch.

    hybridlab learn-masks --from RUN --rho 0.5 --granularity head-all

What they do while a model trains is in methods/consa/training.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from hybridlab.config.edits import known_plan
from hybridlab.config.maps import MixedMap
from hybridlab.config.method import Method, register_controller
from hybridlab.config.other_runs import Configuration
from hybridlab.config.training import Schedule
from hybridlab.config.types import Beta, Finite, Fraction, Granularity, NonNegativeFloat, NonNegativeInt, PositiveFloat
from hybridlab.errors import SettingsConflict

if TYPE_CHECKING:
    from hybridlab.training.engine import Hook


class LearnsMasks(Method):
    """What both methods share: units with a score each, of which a share gets a window."""

    learns_masks: ClassVar[bool] = True

    def check(self, config: Configuration) -> None:
        if config.evaluation.keep_best:
            raise SettingsConflict(
                "evaluation.keep_best: a model whose masks are being learned can be used only after the last step; "
                "set it to false",
                "evaluation.keep_best",
            )
        shape = config.first_shape
        visits = known_plan(shape, config.plan).each_visit()
        whole = {visit.layer for visit in visits if visit.part != "mlp" and visit.heads is None}
        if len(whole) < shape.layers:
            raise SettingsConflict(
                f"masks are learned for all heads, and this plan leaves out some of layer "
                f"{min({*range(shape.layers)} - whole)}; remove `plan`",
                "plan",
            )


@register_controller("mask-learning")
class MaskLearningConfig(LearnsMasks):
    """ConSA stage 1 (section 4, appendix B). The paper gives one learning rate, 3e-4, which is too small to change a
    mask.

    The expected sparsity overshoots and then returns to rho, which takes longer for a larger rho. The record contains
    the final distance from rho and the number of units that were still undecided.
    """

    kind: Literal["mask-learning"]
    rho: Fraction
    """Target sparsity: the share of units that get a window."""
    granularity: Granularity = "head-all"
    """Unit of the masks: a whole layer, or a KV head, ranked among all layers (head-all) or within its own
    (head-single)."""
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
            raise SettingsConflict(
                f"stretch {self.stretch} must reach below 0 and above 1, as (-0.1, 1.1) does", "stretch"
            )
        return self

    def rescaled(self, config: Configuration, share: float) -> Self:
        return self.model_copy(update={"schedule": self.schedule.rescaled(share)})

    def hook(self, config: Configuration) -> Hook:
        from hybridlab.methods.consa.training import MaskLearning

        return MaskLearning(self, config.shape, learned_window(config))


@register_controller("l1-gates")
class L1GatesConfig(LearnsMasks):
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

    def hook(self, config: Configuration) -> Hook:
        from hybridlab.methods.consa.training import L1Gates

        return L1Gates(self, config.shape, learned_window(config))


def learned_window(config: Configuration) -> int:
    """The window of the heads whose kind is learned."""
    assert isinstance(config.map, MixedMap), "the schema requires a mixed map for these controllers"
    return config.map.window
