"""The schema of a run. Every field is read by something; an unknown field is an error that names the nearest one.

A run's identity covers all of it but `runtime`, which holds what may change between two starts of the same run.
Units stand in the names: steps are optimizer steps, tokens are tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hybridlab.config.controllers import ControllerConfig, EntropyGrowthConfig, MaskController, Schedule
from hybridlab.config.families import FAMILIES, FamilyName, Norm, Traits
from hybridlab.config.types import (
    Beta,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    Width,
    Window,
)

_WITH_PATHS = ("text", "jsonl", "shards", "file")
Probe = Literal["entropy", "convergence", "contributions", "loops", "reach"]


class Init(Strict):
    """How weights are drawn. Normal distributions with mean 0; norms start at 1."""

    scheme: Literal["constant", "inverse-sqrt-width"] = "constant"
    """constant: every linear layer has `std`; inverse-sqrt-width: std / sqrt(width)."""
    std: Annotated[float, Field(gt=0, le=100)] = 0.02
    embedding_std: Annotated[float, Field(gt=0, le=100)] = 0.02
    scale_outputs_by_depth: bool = False
    """Divide the std of the projections that write to the residual stream by sqrt(2 · layers) (GPT-2)."""
    truncate: Annotated[float, Field(gt=0, le=100)] | None = None
    """Draw nothing beyond this many standard deviations (OLMo: 3)."""


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


class Budget(Strict):
    """Training FLOPs instead of a number of steps: the ledger chooses the steps (convention executed)."""

    flops: PositiveFloat


class Observe(Strict):
    """What is written down while a model trains, beside its loss."""

    entropy_every: PositiveInt
    """Attention entropy of every head, every so many steps (SGT, Eq. 4)."""


class TopEntropy(Strict):
    """Layers of a plan edit that another run's entropies decide (SGT's Block Loop, section 5.1, "Baseline").

    The n layers with the highest mean head entropy in the run `top_entropy_of` after `step`; the first never loops.
    """

    top_entropy_of: str
    step: PositiveInt
    n: PositiveInt
    exclude: list[NonNegativeInt] = [0]


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
    length_factors: list[Annotated[int, Field(ge=1, le=64)]] | None = None
    """Validation also at these multiples of the training length, without any change of positions (SGT, table 4)."""
    probes: list[Probe] | None = None
    """Analyses of the final model that its record keeps; `hybridlab analyze` runs them on any run."""


class InitFrom(Strict):
    """Start from the final weights of another run, named by its hash, with a new optimizer state."""

    run: str


class Runtime(Strict):
    """What may differ between two starts of one run without making it another run."""

    micro_batch_rows: PositiveInt | None = None
    activation_checkpointing: bool = False
    """Compute the blocks' activations again in the backward pass instead of keeping them: less memory, more time."""
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
    observe: Observe | None = None
    budget: Budget | None = None
    data: Data = Data()
    training: Training
    evaluation: Evaluation = Evaluation()
    init: InitFrom | None = None
    runtime: Runtime = Runtime()

    @model_validator(mode="after")
    def _parts_fit(self) -> RunConfig:
        learns = isinstance(self.controller, MaskController)
        if learns != isinstance(self.map, MixedMap):
            raise ValueError(
                "a controller that learns masks and a map of kind mixed belong together; "
                "`hybridlab learn-masks` sets both, `pretrain --masks FILE` trains with masks that are learned"
            )
        positions = self.shape.max_positions
        longest = self.training.seq_len * max(self.evaluation.length_factors or [1])
        if positions is not None and longest > positions:
            raise ValueError(f"sequences of {longest} tokens are longer than shape.max_positions {positions}")
        for choice in [edit.get("layers") for edit in self.plan]:
            if isinstance(choice, dict) and "top_entropy_of" in choice:
                TopEntropy.model_validate(choice)
        if learns and self.plan:
            raise ValueError("masks are learned on the plain plan; leave `plan` empty")
        if isinstance(self.controller, EntropyGrowthConfig):
            self.controller.check_shape(self.shape.layers, self.shape.heads)
            if self.controller.start_step >= self.training.steps:
                raise ValueError(
                    f"controller.start_step {self.controller.start_step}: nothing would grow in "
                    f"{self.training.steps} steps; lower it, and controller.interval and fade_steps with it"
                )
        return self
