"""The shape of a model: its parameters, as data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hybridlab.config.families import FAMILIES, Biased, FamilyName, Norm, Traits
from hybridlab.config.types import Misfit, PositiveFloat, PositiveInt, Strict, Width


class Init(Strict):
    """Initialization of the weights: normal distributions with mean 0; norms start at 1."""

    scheme: Literal["constant", "inverse-sqrt-width"] = "constant"
    """Standard deviation of linear layers: `std` (constant) or std / sqrt(width) (inverse-sqrt-width)."""
    std: Annotated[float, Field(gt=0, le=100)] = 0.02
    """Standard deviation of the linear layers; see scheme."""
    embedding_std: Annotated[float, Field(gt=0, le=100)] = 0.02
    """Standard deviation of the embeddings."""
    scale_outputs_by_depth: bool = False
    """Divide the std of the projections that write to the residual stream by sqrt(2 · layers) (GPT-2)."""
    truncate: Annotated[float, Field(gt=0, le=100)] | None = None
    """Truncate the normal distribution at this many standard deviations (OLMo: 3)."""
    positions: Literal["sinusoidal"] | None = None
    """How a table of learned positions begins: as sines and cosines (Vaswani et al., 2017), of embedding_std, so that a
    head finds the token before or after it soon. Default: random, as other embeddings."""


class ClassesOutput(Strict):
    """A class for each sequence: a number for each label, from one token. An encoder reads the first token through its
    pooler, tanh of a dense layer; a decoder reads the last one."""

    kind: Literal["classes"]
    labels: Annotated[int, Field(ge=1, le=2**20)]
    """Numbers that the head gives: one per class; 1 for a regression, and for the score of an option."""


class SpansOutput(Strict):
    """A span of each sequence: for every token, how likely it is the first and the last one of the span."""

    kind: Literal["spans"]


class LinearScaling(Strict):
    """All rotary frequencies divided by one factor (position interpolation)."""

    kind: Literal["linear"]
    factor: PositiveFloat
    """Number by which the frequencies are divided."""


class Llama3Scaling(Strict):
    """Low rotary frequencies divided by a factor, high ones as they are, and a blend of both between (Llama 3.1)."""

    kind: Literal["llama3"]
    factor: PositiveFloat
    """Number by which the low frequencies are divided."""
    low_freq_factor: PositiveFloat
    """Frequencies that turn less often than this in original_positions are low."""
    high_freq_factor: PositiveFloat
    """Frequencies that turn more often than this in original_positions are high."""
    original_positions: PositiveInt
    """Length of the sequences before the scaling."""

    @model_validator(mode="after")
    def _ordered(self) -> Llama3Scaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise Misfit(
                f"high_freq_factor {self.high_freq_factor:g} must be above low_freq_factor {self.low_freq_factor:g}",
                "high_freq_factor",
                "low_freq_factor",
            )
        return self


RopeScaling = Annotated[LinearScaling | Llama3Scaling, Field(discriminator="kind")]
OutputHead = Annotated[ClassesOutput | SpansOutput, Field(discriminator="kind")]


class Shape(Strict):
    """The parameters of a model."""

    family: FamilyName
    """How blocks are built: norm, bias, gating, positions, as in the models of this name."""
    layers: Width
    """Number of layers."""
    width: Width
    """Channels of the residual stream."""
    heads: Width
    """Query heads in a layer."""
    kv_heads: Width
    """Key and value heads in a layer; each serves heads / kv_heads query heads."""
    head_width: Width
    """Channels of a head."""
    ffn_width: Width
    """Inner channels of the MLP."""
    vocab: Annotated[int, Field(ge=1, le=2**31)]
    """Rows of the embedding: at least as many as the tokenizer has tokens."""
    rope_base: PositiveFloat = 10000.0
    """Base of the rotary positions."""
    norm_eps: PositiveFloat = 1e-6
    """Added to the variance in norms, against division by 0."""
    tied_embeddings: bool = True
    """The output head uses the embedding's weights."""
    embedding_scale: PositiveFloat = 1.0
    """Factor on the embeddings after the lookup; the output head uses them unscaled."""
    init: Init = Init()
    """How the weights are drawn."""
    norm: Norm | None = None
    """Default: the norm of the family."""
    norm_scaling: Literal["inverse-sqrt-depth"] | None = None
    """LN-Scaling: inverse-sqrt-depth multiplies what both norms of layer l give, counted from 1, by 1 / sqrt(l). The
    factor belongs to the place: in a model that grows, a layer that moves back gets that of its new place. Default: no
    scaling."""
    parallel_residual: bool | None = None
    """Whether attention and MLP of a block read the same input. Default: as in the family."""
    rotary_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of a head's channels that rotary positions rotate. Default: as in the family."""
    max_positions: PositiveInt | None = None
    """Rows of the table of learned positions (gpt2, bert); rotary families have none."""
    token_types: PositiveInt | None = None
    """Rows of the table of token types (bert). Default: as in the family."""
    rope_scaling: RopeScaling | None = None
    """Change of the rotary frequencies for longer sequences: {kind: linear, factor: 4}, or {kind: llama3, …}."""
    biases: tuple[Biased, ...] | None = None
    """Linear layers of the blocks that have a bias: qkv, output, mlp. Default: as in the family, all or none."""
    output: OutputHead | None = None
    """What the output head gives: {kind: classes, labels: N} for each sequence, or {kind: spans}. Default: logits over
    the vocabulary for each token."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Shape:
        if self.heads % self.kv_heads:
            raise Misfit(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; "
                f"every KV head serves the same number of query heads",
                "heads",
                "kv_heads",
            )
        learned = self.traits.learned_positions
        if learned and (self.max_positions is None or self.rotary_fraction is not None):
            message = f"the family {self.family} has learned positions: set max_positions and remove rotary_fraction"
            raise Misfit(message, "family", "max_positions", "rotary_fraction")
        if not learned and self.max_positions is not None:
            message = f"max_positions has no effect on the family {self.family}: its positions are rotary"
            raise Misfit(message, "family", "max_positions")
        if not learned and self.init.positions is not None:
            message = f"init.positions has no effect on the family {self.family}: its positions are rotary"
            raise Misfit(message, "family", "init.positions")
        if self.token_types is not None and not FAMILIES[self.family].token_types:
            message = f"token_types has no effect on the family {self.family}, which has none; remove it"
            raise Misfit(message, "family", "token_types")
        if self.traits.post_norm:
            self._check_post_norm()
        if not learned and self.rotary_width % 2:
            raise Misfit(
                f"rotary positions need an even number of channels in a head, not {self.rotary_width}; "
                "change head_width or rotary_fraction",
                "head_width",
                "rotary_fraction",
            )
        return self

    @model_validator(mode="after")
    def _imported_settings(self) -> Shape:
        if self.rope_scaling is not None and self.traits.learned_positions:
            message = f"rope_scaling has no effect on the family {self.family}, which has learned positions; remove it"
            raise Misfit(message, "family", "rope_scaling")
        if self.biases is not None and len(set(self.biases)) < len(self.biases):
            raise Misfit(f"biases {', '.join(self.biases)}: name each of them once", "biases")
        return self

    def _check_post_norm(self) -> None:
        """Misfit for what belongs to blocks whose norms come first."""
        if self.norm_scaling is not None:
            raise Misfit(
                f"norm_scaling scales what the branches of a block read; in the family {self.family} the norms give "
                "the residual stream itself, so remove it",
                "family",
                "norm_scaling",
            )
        if self.traits.parallel:
            raise Misfit(
                f"parallel_residual: in the family {self.family} the MLP reads what the norm of the attention gives; "
                "remove it",
                "family",
                "parallel_residual",
            )

    @property
    def traits(self) -> Traits:
        """The traits of the family, with those that this shape sets replaced."""
        family = FAMILIES[self.family]
        return replace(
            family,
            norm=self.norm or family.norm,
            biases=family.biases if self.biases is None else self.biases,
            parallel=family.parallel if self.parallel_residual is None else self.parallel_residual,
            rotary_fraction=self.rotary_fraction or family.rotary_fraction,
            token_types=self.token_types or family.token_types,
        )

    @property
    def gives_tokens(self) -> bool:
        """Whether the output head gives logits over the vocabulary."""
        return self.output is None

    def norm_factor(self, layer: int) -> float | None:
        """The factor on what the norms of a layer give, whose index counts from 0; None for no scaling.

        1 / sqrt(l) with l from 1 (LN-Scaling; depth growth paper, appendix E). The final norm is not scaled.
        """
        return None if self.norm_scaling is None else 1 / math.sqrt(layer + 1)

    @property
    def rotary_width(self) -> int:
        """Number of channels of a head that rotary positions rotate; the others stay unchanged (GPT-NeoX)."""
        return int(self.head_width * self.traits.rotary_fraction)

    @property
    def group(self) -> int:
        """Number of query heads that share one KV head."""
        return self.heads // self.kv_heads
