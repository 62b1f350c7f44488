"""The shape of a model: its parameters, as plain data; and how the model families differ. No torch.

A shape checks its values wherever it is made. The types of its fields, with their bounds, are the schema too: pydantic
checks by them what people write, and `hybridlab config schema` shows them.

    python -c "from hybridlab.config.resolve import resolve; print(resolve('vanilla', 'tiny').shape)"
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cached_property, lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hybridlab.errors import SettingsConflict

Norm = Literal["rmsnorm", "layernorm", "nonparametric-layernorm"]
FamilyName = Literal["llama", "qwen3", "olmo2", "gemma2", "gemma3", "neox", "gpt2", "bert"]

Biased = Literal["qkv", "output", "mlp"]
EVERY_BIAS: tuple[Biased, ...] = ("qkv", "output", "mlp")
"""The linear layers of a block: the projections to queries, keys and values, that of the heads' outputs, the MLP's."""
ObjectiveName = Literal["next-token", "masked-tokens"]


@dataclass(frozen=True)
class Traits:
    """Traits of a family.

    norm: `layernorm` has a weight and a bias, `nonparametric-layernorm` has neither (OLMo). biases: which linear layers
    of the blocks have one. gated: SwiGLU, or GeGLU if gelu_tanh is set (Gemma); otherwise GELU. qk_norm: q and k are
    normalised, each head by itself, or all heads together. gelu_tanh: use the tanh approximation of GELU, as GPT-2 and
    Gemma. parallel: attention and MLP of a block read the same input. causal: a token sees no later one; an encoder's
    tokens see all. norms: where those of a branch stand. `before`: it begins with its norm; `after`: it ends with it
    (OLMo 2); `both`: it begins with one and ends with another (Gemma); `sum`: its norm follows the sum with its input,
    and there is no final norm (BERT). embedding_norm: a norm after the sum of the embeddings. token_types: rows of the
    table of token types; 0 for none. transform: the output head has a dense layer, GELU and a norm before the product
    with its table, and a bias after it.
    """

    norm: Norm
    biases: tuple[Biased, ...]
    gated: bool
    qk_norm: Literal["head", "all"] | None
    learned_positions: bool
    parallel: bool
    rotary_fraction: float
    gelu_tanh: bool = False
    causal: bool = True
    norms: Literal["before", "after", "both", "sum"] = "before"
    embedding_norm: bool = False
    token_types: int = 0
    transform: bool = False

    @property
    def objective(self) -> ObjectiveName:
        """What a model of the family is trained on: tokens that a later one may see are no task."""
        return "next-token" if self.causal else "masked-tokens"

    @property
    def post_norm(self) -> bool:
        """Whether the norms of the branches give the residual stream itself."""
        return self.norms == "sum"


FAMILIES: dict[str, Traits] = {
    "llama": Traits("rmsnorm", (), True, None, False, False, 1.0),
    "qwen3": Traits("rmsnorm", (), True, "head", False, False, 1.0),
    "olmo2": Traits("rmsnorm", (), True, "all", False, False, 1.0, norms="after"),
    "gemma2": Traits("rmsnorm", (), True, None, False, False, 1.0, gelu_tanh=True, norms="both"),
    "gemma3": Traits("rmsnorm", (), True, "head", False, False, 1.0, gelu_tanh=True, norms="both"),
    "neox": Traits("layernorm", EVERY_BIAS, False, None, False, True, 0.25),
    "gpt2": Traits("layernorm", EVERY_BIAS, False, None, True, False, 0.0, gelu_tanh=True),
    "bert": Traits(
        *("layernorm", EVERY_BIAS, False, None, True, False, 0.0),
        causal=False,
        norms="sum",
        embedding_norm=True,
        token_types=2,
        transform=True,
    ),
}


# ---- plain data that is checked ----


@dataclass(frozen=True)
class Within:
    """The bounds of a number, beside its type."""

    ge: float = -math.inf
    gt: float = -math.inf
    le: float = math.inf
    finite: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        bounds = {name: bound for name in ("ge", "gt", "le") if math.isfinite(bound := getattr(self, name))}
        return {**handler(source), **bounds, **({"allow_inf_nan": False} if self.finite else {})}

    def holds(self, value: float) -> bool:
        return self.ge <= value > self.gt and value <= self.le and (math.isfinite(value) or not self.finite)


class ByKind:
    """Beside a union: `kind` says which of the types a mapping is."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        choices = {_kind_of(member): handler.generate_schema(member) for member in get_args(source)}
        return {"type": "tagged-union", "discriminator": "kind", "choices": choices}


Width = Annotated[int, Within(ge=1, le=10**6)]
Count = Annotated[int, Within(ge=1, le=10**12)]
Positive = Annotated[float, Within(gt=0, finite=True)]
Deviation = Annotated[float, Within(gt=0, le=100)]


class Checked:
    """Base class of frozen dataclasses whose values are of the types that are written. Mappings become the dataclasses
    that they describe, lists tuples, and whole numbers floats where one is asked for. ValueError for other values."""

    __pydantic_config__ = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _hints(kind).items():
            object.__setattr__(self, name, _read(getattr(self, name), hint, name))
        self._check()

    def _check(self) -> None:
        """SettingsConflict for settings that do not fit each other."""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _kind_of(member: Any) -> str:
    return str(get_args(_hints(member)["kind"])[0])


def _read(value: Any, hint: Any, name: str) -> Any:
    """The value as one of this type; ValueError if it is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        read = _read(value, inner[0], name)
        if all(bound.holds(read) for bound in inner[1:] if isinstance(bound, Within)):
            return read
    elif origin in (Union, UnionType):
        if value is None and type(None) in inner:
            return None
        members = [member for member in inner if member is not type(None)]
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        one = len(members) == 1  # a choice among several needs its kind
        fitting = [member for member in members if one or not is_dataclass(member) or _kind_of(member) == kind]
        if fitting:
            return _read(value, fitting[0], name)
    elif origin is Literal:
        if isinstance(value, str) and value in inner:
            return value
    elif origin is tuple:
        if isinstance(value, tuple | list):
            return tuple(_read(part, inner[0], name) for part in value)
    elif is_dataclass(hint):
        if isinstance(value, hint | dict):
            return hint(**value) if isinstance(value, dict) else value  # type: ignore[operator]
    elif isinstance(value, bool) == (hint is bool) and isinstance(value, int if hint is float else hint):
        return hint(value)
    elif hint is float and isinstance(value, float):
        return value
    raise ValueError(f"{name} {value!r} is not possible")


# ---- shapes ----


@dataclass(frozen=True)
class Init(Checked):
    """Initialization of the weights: normal distributions with mean 0; norms start at 1."""

    scheme: Literal["constant", "inverse-sqrt-width"] = "constant"
    """Standard deviation of linear layers: `std` (constant) or std / sqrt(width) (inverse-sqrt-width)."""
    std: Deviation = 0.02
    """Standard deviation of the linear layers; see scheme."""
    embedding_std: Deviation = 0.02
    """Standard deviation of the embeddings."""
    scale_outputs_by_depth: bool = False
    """Divide the std of the projections that write to the residual stream by sqrt(2 · layers) (GPT-2); a layer that
    runs twice counts twice."""
    truncate: Deviation | None = None
    """Truncate the normal distribution at this many standard deviations (OLMo: 3)."""
    positions: Literal["sinusoidal"] | None = None
    """How a table of learned positions begins: as sines and cosines (Vaswani et al., 2017), of embedding_std, so that a
    head finds the token before or after it soon. Default: random, as other embeddings."""


@dataclass(frozen=True)
class ClassesOutput(Checked):
    """A class for each sequence: a number for each label, from one token. An encoder reads the first token through its
    pooler, tanh of a dense layer; a decoder reads the last one."""

    kind: Literal["classes"]
    labels: Annotated[int, Within(ge=1, le=2**20)]
    """Numbers that the head gives: one per class; 1 for a regression, and for the score of an option."""


@dataclass(frozen=True)
class SpansOutput(Checked):
    """A span of each sequence: for every token, how likely it is the first and the last one of the span."""

    kind: Literal["spans"]


@dataclass(frozen=True)
class LinearScaling(Checked):
    """All rotary frequencies divided by one factor (position interpolation)."""

    kind: Literal["linear"]
    factor: Positive
    """Number by which the frequencies are divided."""


@dataclass(frozen=True)
class Llama3Scaling(Checked):
    """Low rotary frequencies divided by a factor, high ones as they are, and a blend of both between (Llama 3.1)."""

    kind: Literal["llama3"]
    factor: Positive
    """Number by which the low frequencies are divided."""
    low_freq_factor: Positive
    """Frequencies that turn less often than this in original_positions are low."""
    high_freq_factor: Positive
    """Frequencies that turn more often than this in original_positions are high."""
    original_positions: Count
    """Length of the sequences before the scaling."""

    def _check(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise SettingsConflict(
                f"high_freq_factor {self.high_freq_factor:g} must be above low_freq_factor {self.low_freq_factor:g}",
                "high_freq_factor",
                "low_freq_factor",
            )


@dataclass(frozen=True)
class YarnScaling(Checked):
    """Low rotary frequencies divided by a factor, high ones as they are, a blend by channel between, and sharper scores
    (YaRN, Peng et al., 2023)."""

    kind: Literal["yarn"]
    factor: Positive
    """Number by which the low frequencies are divided."""
    original_positions: Count
    """Length of the sequences before the scaling."""
    beta_fast: Positive = 32.0
    """Frequencies that turn more often than this in original_positions are high."""
    beta_slow: Positive = 1.0
    """Frequencies that turn less often than this in original_positions are low."""
    attention_factor: Positive | None = None
    """Factor on the rotated channels of queries and of keys. Default: 0.1 · ln(factor) + 1, at least 1."""
    truncate: bool = True
    """The blend begins and ends at whole channels."""

    @property
    def amplitude(self) -> float:
        """The factor on the rotated channels."""
        return self.attention_factor or yarn_amplitude(self.factor)

    def _check(self) -> None:
        if self.beta_fast < self.beta_slow:
            raise SettingsConflict(
                f"beta_fast {self.beta_fast:g} must not be below beta_slow {self.beta_slow:g}", "beta_fast", "beta_slow"
            )


def yarn_amplitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor on queries and keys (its equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


@dataclass(frozen=True)
class LocalRope(Checked):
    """Rotary positions of some layers, with a base of their own and without rope_scaling (Gemma 3, in its layers with
    windows). They belong to the weights of a layer: another attention map leaves them as they are."""

    base: Positive
    """Base of the rotary positions of these layers."""
    layers: tuple[Annotated[int, Within(ge=0, le=10**6)], ...]
    """Layers, counted from 0."""

    def _check(self) -> None:
        if not self.layers or len(set(self.layers)) < len(self.layers):
            raise SettingsConflict("layers: name one at least, and each of them once", "layers")


RopeScaling = Annotated[LinearScaling | Llama3Scaling | YarnScaling, ByKind()]
OutputHead = Annotated[ClassesOutput | SpansOutput, ByKind()]


@dataclass(frozen=True)
class Shape(Checked):
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
    vocab: Annotated[int, Within(ge=1, le=2**31)]
    """Rows of the embedding: at least as many as the tokenizer has tokens."""
    rope_base: Positive = 10000.0
    """Base of the rotary positions."""
    norm_eps: Positive = 1e-6
    """Added to the variance in norms, against division by 0."""
    tied_embeddings: bool = True
    """The output head uses the embedding's weights."""
    embedding_scale: Positive = 1.0
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
    rotary_fraction: Annotated[float, Within(gt=0, le=1)] | None = None
    """Fraction of a head's channels that rotary positions rotate. Default: as in the family."""
    max_positions: Count | None = None
    """Rows of the table of learned positions (gpt2, bert); rotary families have none."""
    token_types: Count | None = None
    """Rows of the table of token types (bert). Default: as in the family."""
    rope_scaling: RopeScaling | None = None
    """Change of the rotary frequencies for longer sequences: {kind: linear, factor: 4}, {kind: llama3, …}, or
    {kind: yarn, …}."""
    local_rope: LocalRope | None = None
    """Layers whose rotary positions have another base: {base: 10000, layers: [0, 1, 2, 3, 4]}. Default: none."""
    biases: tuple[Biased, ...] | None = None
    """Linear layers of the blocks that have a bias: qkv, output, mlp. Default: as in the family, all or none."""
    score_width: Count | None = None
    """Attention scores are q · k / sqrt(score_width). Default: head_width."""
    score_cap: Positive | None = None
    """Attention scores become score_cap · tanh(score / score_cap), so that none is above score_cap (Gemma 2). Default:
    they stay as they are."""
    logit_cap: Positive | None = None
    """The same for the logits of tokens. Default: they stay as they are."""
    output: OutputHead | None = None
    """What the output head gives: {kind: classes, labels: N} for each sequence, or {kind: spans}. Default: logits over
    the vocabulary for each token."""

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise SettingsConflict(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; "
                f"every KV head serves the same number of query heads",
                "heads",
                "kv_heads",
            )
        traits, family = self.traits, f"the family {self.family}"
        learned = traits.learned_positions
        if learned and (self.max_positions is None or self.rotary_fraction is not None):
            message = (
                f"{family} has learned positions: use a size of that family, such as --size {self.family}-tiny, or set "
                "max_positions and remove rotary_fraction"
            )
            raise SettingsConflict(message, "family", "max_positions", "rotary_fraction")
        without_effect = {
            "max_positions": (self.max_positions is not None and not learned, ": its positions are rotary"),
            "init.positions": (self.init.positions is not None and not learned, ": its positions are rotary"),
            "token_types": (
                self.token_types is not None and not FAMILIES[self.family].token_types,
                ", which has none; remove it",
            ),
            "rope_scaling": (self.rope_scaling is not None and learned, ", which has learned positions; remove it"),
            "local_rope": (self.local_rope is not None and learned, ", which has learned positions; remove it"),
        }
        for name, (is_set, why) in without_effect.items():
            if is_set:
                raise SettingsConflict(f"{name} has no effect on {family}{why}", "family", name)
        if traits.norms != "before" and self.norm_scaling is not None:
            what = "the residual stream itself" if traits.post_norm else "what the branches add"
            raise SettingsConflict(
                f"norm_scaling scales what the branches of a block read; in {family} norms give {what}, so remove it",
                "family",
                "norm_scaling",
            )
        if traits.post_norm and traits.parallel:
            message = f"parallel_residual: in {family} the MLP reads what the norm of the attention gives; remove it"
            raise SettingsConflict(message, "family", "parallel_residual")
        if not learned and self.rotary_width % 2:
            raise SettingsConflict(
                f"rotary positions need an even number of channels in a head, not {self.rotary_width}; "
                "change head_width or rotary_fraction",
                "head_width",
                "rotary_fraction",
            )
        if isinstance(self.rope_scaling, YarnScaling) and self.rope_base <= 1:
            message = f"rope_scaling of kind yarn needs a rope_base above 1, not {self.rope_base:g}"
            raise SettingsConflict(message, "rope_scaling", "rope_base")
        if self.local_rope is not None and (last := max(self.local_rope.layers)) >= self.layers:
            message = f"local_rope.layers names layer {last}, but the layers are 0 to {self.layers - 1}"
            raise SettingsConflict(message, "local_rope.layers", "layers")
        if self.biases is not None and len(set(self.biases)) < len(self.biases):
            raise SettingsConflict(f"biases {', '.join(self.biases)}: name each of them once", "biases")

    @cached_property
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

    def rope_is_local(self, layer: int) -> bool:
        """Whether the rotary positions of a layer have a base of their own."""
        return self.local_rope is not None and layer in self.local_rope.layers

    @property
    def rotary_width(self) -> int:
        """Number of channels of a head that rotary positions rotate; the others stay unchanged (GPT-NeoX)."""
        return int(self.head_width * self.traits.rotary_fraction)

    @property
    def group(self) -> int:
        """Number of query heads that share one KV head."""
        return self.heads // self.kv_heads
