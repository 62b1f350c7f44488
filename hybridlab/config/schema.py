"""The schema of a run. Every field is read by something; an unknown field is an error that names the nearest one.

A run's identity covers all of it but `runtime`, which holds what may change between two starts of the same run.
Units stand in the names: steps are optimizer steps, tokens are tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hybridlab.config.families import FAMILIES, FamilyName, Norm, Traits

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(ge=1, le=10**12)]
Width = Annotated[int, Field(ge=1, le=10**6)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Window = Annotated[int, Field(ge=1, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**12)]
_WITH_PATHS = ("text", "jsonl", "shards", "file")
Granularity = Literal["layer", "head-all", "head-single"]


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no change after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Init(Strict):
    """How weights are drawn. Normal distributions with mean 0; norms start at 1."""

    scheme: Literal["constant", "inverse-sqrt-width"] = "constant"
    """constant: every linear layer has `std`; inverse-sqrt-width: std / sqrt(width)."""
    std: Annotated[float, Field(gt=0, le=100)] = 0.02
    embedding_std: Annotated[float, Field(gt=0, le=100)] = 0.02
    scale_outputs_by_depth: bool = False
    """Divide the std of the projections that write to the residual stream by sqrt(2 · layers) (GPT-2)."""


class Shape(Strict):
    """The parameters of a model."""

    family: FamilyName
    layers: Width
    width: Width
    heads: Width
    kv_heads: Width
    head_width: Width
    ffn_width: Width
    vocab: Annotated[int, Field(ge=1, le=2**31)]
    rope_base: PositiveFloat = 10000.0
    norm_eps: PositiveFloat = 1e-6
    tied_embeddings: bool = True
    embedding_scale: PositiveFloat = 1.0
    """Factor on the embeddings after the lookup; the output head uses them unscaled."""
    init: Init = Init()
    norm: Norm | None = None
    """Another norm than the family's own."""
    parallel_residual: bool | None = None
    """Whether attention and MLP of a block read the same input; the family's own where not set."""
    rotary_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a head's channels that rotary positions turn; the family's own where not set."""
    max_positions: PositiveInt | None = None
    """Rows of the table of learned positions (gpt2); rotary families have none."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; "
                f"every KV head serves the same number of query heads"
            )
        learned = self.traits.learned_positions
        if learned and (self.max_positions is None or self.rotary_fraction is not None):
            raise ValueError("the family gpt2 has learned positions: set max_positions, and no rotary_fraction")
        if not learned and self.max_positions is not None:
            raise ValueError(f"max_positions has no effect on the family {self.family}: its positions are rotary")
        if not learned and self.rotary_width % 2:
            raise ValueError(f"rotary positions turn pairs of channels, but {self.rotary_width} of a head's would turn")
        return self

    @property
    def traits(self) -> Traits:
        """The family's traits with this shape's own choices laid over them."""
        chosen = {"norm": self.norm, "parallel": self.parallel_residual, "rotary_fraction": self.rotary_fraction}
        return replace(FAMILIES[self.family], **{name: value for name, value in chosen.items() if value is not None})

    @property
    def rotary_width(self) -> int:
        """Channels of a head that rotary positions turn; the others stay as they are (GPT-NeoX)."""
        return int(self.head_width * self.traits.rotary_fraction)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads


class FullMap(Strict):
    kind: Literal["full"]


class WindowMap(Strict):
    """Every head a window: the control that must fail on what lies outside."""

    kind: Literal["window"]
    window: Window


class RuleMap(Strict):
    """ConSA's hand-made baselines (section 5.1)."""

    kind: Literal["rule"]
    granularity: Literal["layer", "head"]
    rho: Fraction
    window: Window
    nearest: bool = False


class MixedMap(Strict):
    """Every head mixes both kinds while a controller learns which one it keeps."""

    kind: Literal["mixed"]
    window: Window


class ExplicitMap(Strict):
    """Masks written out, as in masks.json: rows of 1 (full) and 0 (window)."""

    kind: Literal["explicit"]
    masks: list[list[Literal[0, 1]]]
    window: Window


class LearnedMap(Strict):
    """The masks that another run has learned, named by its hash; known before that run has started."""

    kind: Literal["learned"]
    run: str


MapConfig = Annotated[FullMap | WindowMap | RuleMap | MixedMap | ExplicitMap | LearnedMap, Field(discriminator="kind")]


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


ControllerConfig = Annotated[MaskLearningConfig | L1GatesConfig, Field(discriminator="kind")]


class Mix(Strict):
    """Shares of the rows of every batch. Text is corpus text; the others are synthetic tasks."""

    text: Fraction = 1.0
    retrieval: Fraction = 0.0
    assignment: Fraction = 0.0

    @model_validator(mode="after")
    def _sums_to_one(self) -> Mix:
        total = self.text + self.retrieval + self.assignment
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the shares of the mix add up to {total:g}; they must add up to 1")
        return self


class Data(Strict):
    """Where tokens come from."""

    source: str = "embedded"
    """embedded, text:PATH, jsonl:PATH, hub:NAME[:CONFIG], or shards:DIR (made by `hybridlab data prepare`)."""
    tokenizer: str = "bpe:896"
    """byte, bpe:SIZE (trained on the source), file:PATH (tokenizer.json or a folder), or hub:NAME."""
    field: str = "text"
    """The field that holds the text, for jsonl: and hub: sources."""
    validation_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    max_documents: PositiveInt | None = None
    mix: Mix = Mix()
    task_loss_weight: PositiveFloat = 2.0
    """Weight of an answer of a synthetic task in the loss; a text token has weight 1."""

    @field_validator("source", "tokenizer")
    @classmethod
    def _absolute(cls, value: str) -> str:
        """A run must find its text again from any folder."""
        kind, _, path = value.partition(":")
        return f"{kind}:{Path(path).expanduser().absolute()}" if kind in _WITH_PATHS and path else value


class Optimizer(Strict):
    """AdamW."""

    lr: PositiveFloat = 3e-4
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    decay_all: bool = False
    """Decay norms and embeddings too (as OLMo does); otherwise only the matrices of the blocks and the head."""


class Training(Strict):
    steps: PositiveInt
    tokens_per_step: PositiveInt
    seq_len: Annotated[int, Field(ge=2)]
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    skip_steps: NonNegativeInt | None = None
    """Batches of the data order to leave out at the start, because the run that this one starts from has seen them."""
    clip: PositiveFloat = 1.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()

    @model_validator(mode="after")
    def _whole_rows(self) -> Training:
        if self.tokens_per_step % self.seq_len:
            down = self.tokens_per_step // self.seq_len * self.seq_len
            raise ValueError(
                f"tokens_per_step {self.tokens_per_step} is not a whole number of sequences of {self.seq_len}; "
                f"use {max(down, self.seq_len)} or {down + self.seq_len}"
            )
        if self.schedule.warmup_steps > self.steps:
            raise ValueError(
                f"schedule.warmup_steps {self.schedule.warmup_steps} is longer than the run ({self.steps})"
            )
        return self

    @property
    def rows(self) -> int:
        """Sequences in one optimizer step."""
        return self.tokens_per_step // self.seq_len


class Evaluation(Strict):
    """What is measured when a run ends."""

    validation_windows: PositiveInt = 320
    task_rows: PositiveInt = 384
    task_window: PositiveInt | None = None
    """The w that separates answers inside from answers outside; the map's own window where none is given."""


class InitFrom(Strict):
    """Start from the final weights of another run, named by its hash, with a new optimizer state."""

    run: str


class Runtime(Strict):
    """What may differ between two starts of one run without making it another run."""

    micro_batch_rows: PositiveInt | None = None
    kernel: Literal["auto", "eager", "sdpa", "banded", "flex", "xformers"] = "auto"
    device: str = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    log_every: PositiveInt = 10
    checkpoint_every: PositiveInt = 200
    keep_checkpoints: PositiveInt = 2


class RunConfig(Strict):
    """A whole run, resolved."""

    arch: str
    size: str
    shape: Shape
    map: MapConfig = FullMap(kind="full")
    plan: list[dict[str, Any]] = []
    """Edits of the plain plan, in order: `{op: loop_heads, layer: 5, heads: [3], extra_passes: 2}`."""
    controller: ControllerConfig | None = None
    data: Data = Data()
    training: Training
    evaluation: Evaluation = Evaluation()
    init: InitFrom | None = None
    runtime: Runtime = Runtime()

    @model_validator(mode="after")
    def _parts_fit(self) -> RunConfig:
        learns = self.controller is not None
        if learns != isinstance(self.map, MixedMap):
            raise ValueError(
                "a controller that learns masks and a map of kind mixed belong together; "
                "`hybridlab learn-masks` sets both, `pretrain --masks FILE` trains with masks that are learned"
            )
        positions = self.shape.max_positions
        if positions is not None and self.training.seq_len > positions:
            raise ValueError(f"training.seq_len {self.training.seq_len} is longer than shape.max_positions {positions}")
        if learns and self.plan:
            raise ValueError("masks are learned on the plain plan; leave `plan` empty")
        return self
