"""How transformers stores each type of models, for both directions: settings of config.json, and names of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from hybridlab.attention.kinds import Full, Window
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import EVERY_BIAS, FAMILIES, Biased, FamilyName, Shape, yarn_amplitude
from hybridlab.plan.structure import Structure

Config = Mapping[str, Any]
_FIELDS = {field.name for field in fields(Shape)}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""The types of rotary positions that hybridlab can run."""
_IN_WINDOWS = {"full_attention": False, "sliding_attention": True}
"""transformers' kinds of layers → whether the heads of such a layer have windows."""


@dataclass(frozen=True)
class Layout:
    """How transformers stores a type of models.

    name: what the names of its classes begin with. family: ours. settings: of its config, in the order in which they
    are written → the field of `Shape` that they say, or one of the further values of `settings_of`. defaults: of
    settings that a config may leave out. supported: settings → the values that hybridlab can run, the first of which is
    the default, and written. biases: the linear layers of a block → the setting that gives them a bias, or whether they
    always have one; all have one by default. always: fields of `Shape` that no setting says.

    outer: modules outside the blocks, its name → ours. block_prefix: its prefix of blocks. block: modules of a block,
    its name → ours. fused: modules of a block that hold several of ours together, its name → ours; by_head: head by
    head, otherwise one after the other. transposed: matrices of a block are stored with inputs first. ignored: endings
    of names of tensors that are not parameters, and of parts that hybridlab leaves out. renamed: endings of names that
    have others in some folders → the usual one. of_tokens: what the name of its class with a head for tokens ends with.
    heads: the other output heads for which it has a class. spans_prefix: what begins the names of a model for spans, in
    place of the first part of block_prefix. windowed: (config, layers, window) → which layers have windows where
    `layer_types` does not say it; None for a type without windows. rope_types: the types of rotary positions that its
    class can run, of `ROPE_TYPES`. centred: the weights of its norms are stored minus 1. scaled: its embeddings are
    multiplied by the square root of their width.
    """

    name: str
    family: FamilyName
    settings: Mapping[str, str]
    defaults: Mapping[str, Any]
    supported: Mapping[str, tuple[Any, ...]]
    outer: Mapping[str, str]
    block_prefix: str
    block: Mapping[str, str]
    biases: Mapping[Biased, str | bool] = field(default_factory=dict)
    always: Mapping[str, Any] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_head: bool = False
    transposed: bool = False
    ignored: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    of_tokens: str = "ForCausalLM"
    heads: tuple[str, ...] = ("classes", "spans")
    spans_prefix: str | None = None
    windowed: Callable[[Config, int, int | None], list[bool]] | None = None
    rope_types: tuple[str, ...] = ROPE_TYPES
    centred: bool = False
    scaled: bool = False

    @property
    def base(self) -> str:
        """What the names of all modules but the head's begin with."""
        return self.block_prefix.split(".")[0] + "."

    @property
    def depth(self) -> str:
        """Its name of the number of layers."""
        return next(theirs for theirs, ours in self.settings.items() if ours == "layers")


# ---- config.json ----


def rope_of(config: Config) -> Mapping[str, Any]:
    """The settings of rotary positions. TypeError if they are no mapping."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError
    return rope


def fields_of(config: Config, layout: Layout) -> dict[str, Any]:
    """The fields of `Shape` that a config says. KeyError for a setting that is missing, TypeError, ValueError,
    ZeroDivisionError or OverflowError for one that cannot be."""
    defaults = layout.defaults
    found: dict[str, Any] = {"family": layout.family, "vocab": config["vocab_size"]}
    found["tied_embeddings"] = config.get("tie_word_embeddings", defaults["tie_word_embeddings"])
    for theirs, ours in layout.settings.items():
        if ours in _FIELDS:
            found[ours] = config.get(theirs, defaults[theirs]) if theirs in defaults else config[theirs]
    found["kv_heads"] = found.get("kv_heads") or found["heads"]
    found["head_width"] = found.get("head_width") or found["width"] // found["heads"]
    if layout.family == "gpt2":
        found["ffn_width"] = found["ffn_width"] or 4 * found["width"]
    if "rope_base" in found:
        rope = rope_of(config)
        found["rope_base"] = float(rope.get("rope_theta") or found["rope_base"])
        found["rope_scaling"] = _scaling_of(rope, config)
        if "rotary_fraction" in found:
            found["rotary_fraction"] = rope.get("partial_rotary_factor") or found["rotary_fraction"]
            if found["rotary_fraction"] == 1 == FAMILIES[layout.family].rotary_fraction:
                del found["rotary_fraction"]
    if found.get("score_width") == found["head_width"]:
        del found["score_width"]
    found["embedding_scale"] = embedding_scale(layout, found["width"])
    return {**found, "biases": _biases_of(config, layout), **layout.always}


def embedding_scale(layout: Layout, width: int) -> float:
    """The factor on the embeddings of a type."""
    return math.sqrt(width) if layout.scaled else 1.0


def _scaling_of(rope: Mapping[str, Any], config: Config) -> dict[str, Any] | None:
    """The scaling of rotary frequencies, for the types that hybridlab can run."""
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in ("linear", "llama3", "yarn"):
        return None
    found = {"kind": kind, "factor": float(rope["factor"])}
    if kind == "linear":
        return found
    found["original_positions"] = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if kind == "llama3":
        return found | {name: float(rope[name]) for name in ("low_freq_factor", "high_freq_factor")}
    # 0 and null stand for the defaults.
    found |= {name: float(rope[name]) for name in ("beta_fast", "beta_slow", "attention_factor") if rope.get(name)}
    scales = [rope.get("mscale"), rope.get("mscale_all_dim")]
    if "attention_factor" not in found and all(scales):
        above, below = (yarn_amplitude(found["factor"], float(scale)) for scale in scales)
        found["attention_factor"] = above / below
    return found | {"truncate": rope.get("truncate", True)}


def _biases_of(config: Config, layout: Layout) -> list[Biased] | None:
    """The linear layers that have a bias, None if they are those of the family."""
    usual, found = FAMILIES[layout.family].biases, []
    for name in EVERY_BIAS:
        said = layout.biases.get(name, True)
        value = config.get(said, name in usual) if isinstance(said, str) else said
        if not isinstance(value, bool):
            raise TypeError
        found += [name] if value else []
    return None if tuple(found) == usual else found


def has_its_biases(shape: Shape, layout: Layout) -> bool:
    """Whether the settings of a type can say which linear layers of a shape have a bias."""
    said = {(layout.biases.get(name, True), name in shape.traits.biases) for name in EVERY_BIAS}
    return all(has == where for where, has in said if isinstance(where, bool)) and len(dict(said)) == len(said)


def map_of(config: Config, layout: Layout, shape: Shape, origin: str) -> AttentionMap:
    """The windows of a config as a map. UserError for one that hybridlab cannot run."""
    windows: list[int | None] = [None] * shape.layers
    if layout.windowed is not None:
        width = config.get("sliding_window", layout.defaults["sliding_window"])
        if "use_sliding_window" in layout.settings and not config.get("use_sliding_window", False):
            width = None
        said = config.get("layer_types") if "layer_types" in layout.settings else None
        try:
            chosen = (
                layout.windowed(config, shape.layers, width) if said is None else _chosen(said, shape.layers, origin)
            )
        except TypeError:
            raise UserError(f"{origin}: a number that describes the windows is of the wrong type") from None
        if width is None and any(chosen):
            raise UserError(f"{origin}: some of its layers have windows, but sliding_window gives no width; set it")
        windows = [width if has else None for has in chosen]
    try:
        kinds = [Full() if window is None else Window(window) for window in windows]
    except UserError as error:
        raise UserError(f"{origin}: sliding_window: {error}") from None
    return AttentionMap(tuple((kind,) * shape.kv_heads for kind in kinds))


def _chosen(layer_types: Any, layers: int, origin: str) -> list[bool]:
    """Which layers have windows, by `layer_types`."""
    if not isinstance(layer_types, list) or len(layer_types) != layers:
        raise UserError(
            f"{origin}: layer_types must name the kind of each of its {layers} layers; fetch the file again"
        )
    for kind in layer_types:
        if not isinstance(kind, str) or kind not in _IN_WINDOWS:
            raise UserError(
                f"{origin}: layers of kind {kind!r} in layer_types are not supported; use a model with "
                f"{' and '.join(_IN_WINDOWS)} only"
            )
    return [_IN_WINDOWS[kind] for kind in layer_types]


def windows_of(attention_map: AttentionMap) -> list[int | None] | None:
    """The window of each layer, None for full attention; None in all if the heads of a layer differ, or have another
    kind."""
    rows = [set(row) for row in attention_map.layers]
    if any(len(row) > 1 or type(kind) not in (Full, Window) for row in rows for kind in row):
        return None
    return [kind.window for row in rows for kind in row]


def has_its_windows(attention_map: AttentionMap, layout: Layout) -> bool:
    """Whether the settings of a type can say the windows of a map."""
    windows = windows_of(attention_map)
    if windows is None or layout.windowed is None:
        return windows is not None and not any(windows)
    return len(set(windows) - {None}) <= 1 and ("layer_types" in layout.settings or len(set(windows)) == 1)


def settings_of(structure: Structure, layout: Layout, max_positions: int) -> dict[str, Any]:
    """The settings of a config for a structure. max_positions: where its positions have no table."""
    shape, traits = structure.shape, structure.shape.traits
    windows = windows_of(structure.map) or []
    window = next((window for window in windows if window), None)
    rope = {"rope_type": "default", "rope_theta": shape.rope_base}
    if shape.rope_scaling is not None:
        theirs = {"kind": "rope_type", "original_positions": "original_max_position_embeddings"}
        scaling = asdict(shape.rope_scaling).items()
        rope |= {theirs.get(name, name): value for name, value in scaling if value is not None}
    if "rotary_fraction" in layout.settings.values():
        rope["partial_rotary_factor"] = traits.rotary_fraction
    said = vars(shape) | {
        "rotary_fraction": traits.rotary_fraction,
        "parallel_residual": traits.parallel,
        "token_types": traits.token_types,
        "rope": rope,
        "bias of the output": "output" in traits.biases,
        "bias of the mlp": "mlp" in traits.biases,
        "longest": max_positions,
        "no dropout": 0.0,
        "no padding": None,
        "score_width": shape.score_width or shape.head_width,
        "window": window,
        "window or length": window or max_positions,
        "has windows": window is not None,
        "kinds of layers": [next(k for k, has in _IN_WINDOWS.items() if has == bool(window)) for window in windows],
    }
    supported = layout.supported
    return {
        theirs: supported[theirs][0] if theirs in supported else said[ours] for theirs, ours in layout.settings.items()
    }


# ---- tensors ----


def stored_names(
    parameters: Iterable[str], layout: Layout, present: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Its names of tensors → ours of the parameters that each holds: one, or those of q, k and v. present: the names in
    a folder, where a module may have either of two."""
    block = {ours: theirs for theirs, ours in layout.block.items()}
    block |= {ours: theirs for theirs, parts in layout.fused.items() for ours in parts}
    outer = {ours: theirs for theirs, ours in layout.outer.items()}
    outer |= {layout.outer[stem]: stem for name in present if (stem := name.rpartition(".")[0]) in layout.outer}
    found: dict[str, tuple[str, ...]] = {}
    for name in parameters:
        stem, _, kind = name.rpartition(".")
        if stem.startswith("blocks."):
            layer, inner = stem.removeprefix("blocks.").split(".", 1)
            theirs = f"{layout.block_prefix}{layer}.{block[inner]}.{kind}"
        else:
            theirs = f"{outer[stem]}.{kind}"
        found[theirs] = (*found.get(theirs, ()), name)
    return found


def is_transposed(name: str, tensor: Tensor, layout: Layout) -> bool:
    """Whether a tensor of this name, in transformers, is stored with inputs first."""
    return layout.transposed and tensor.dim() == 2 and name.startswith(layout.block_prefix)


def is_centred(name: str, tensor: Tensor, layout: Layout) -> bool:
    """Whether a tensor of this name, in transformers, is the weight of a norm that is stored minus 1."""
    return layout.centred and tensor.dim() == 1 and name.endswith(".weight")


def split(tensor: Tensor, rows: list[int], shape: Shape, layout: Layout) -> list[Tensor]:
    """A fused tensor as its parts, which have so many rows each."""
    if not layout.by_head:
        return list(tensor.split(rows))
    parts = tensor.unflatten(0, (shape.heads, len(rows), -1))
    return [part.flatten(0, 1) for part in parts.unbind(1)]


def join(parts: list[Tensor], shape: Shape, layout: Layout) -> Tensor:
    """The opposite of `split`."""
    if not layout.by_head:
        return torch.cat(parts)
    return torch.stack([part.unflatten(0, (shape.heads, -1)) for part in parts], dim=1).flatten(0, 2)


# ---- the types ----


def _all(config: Config, layers: int, window: int | None) -> list[bool]:
    return [window is not None] * layers


def _every_other(config: Config, layers: int, window: int | None) -> list[bool]:
    return [layer % 2 == 0 for layer in range(layers)]


def _last(config: Config, layers: int, window: int | None) -> list[bool]:
    first = config.get("max_window_layers", 28)
    return [window is not None and layer >= first for layer in range(layers)]


OLMO_EPS = 1e-5
"""Added to the variance in OLMo's norms; no setting of its config."""
_WIDTHS = {
    "hidden_size": "width",
    "intermediate_size": "ffn_width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
}
_QKV, _GATED = ("attention.q", "attention.k", "attention.v"), ("mlp.gate", "mlp.up")
_LLAMA = Layout(
    name="Llama",
    family="llama",
    settings={
        **_WIDTHS,
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_width",
        "hidden_act": "",
        "rms_norm_eps": "norm_eps",
        "rope_theta": "rope_base",
        "rope_parameters": "rope",
        "attention_bias": "bias of the output",
        "mlp_bias": "bias of the mlp",
        "max_position_embeddings": "longest",
    },
    defaults={
        "num_key_value_heads": None,
        "head_dim": None,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    biases={"qkv": "attention_bias", "output": "attention_bias", "mlp": "mlp_bias"},
    supported={"hidden_act": ("silu",), "use_sliding_window": (False,), "clip_qkv": (None,)},
    outer={"model.embed_tokens": "embedding", "model.norm": "final_norm", "lm_head": "head"},
    block_prefix="model.layers.",
    block={
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "self_attn.q_proj": "attention.q",
        "self_attn.k_proj": "attention.k",
        "self_attn.v_proj": "attention.v",
        "self_attn.o_proj": "attention.o",
        "self_attn.q_norm": "attention.q_norm",
        "self_attn.k_norm": "attention.k_norm",
        "mlp.gate_proj": "mlp.gate",
        "mlp.up_proj": "mlp.up",
        "mlp.down_proj": "mlp.down",
    },
    ignored=("rotary_emb.inv_freq",),
    spans_prefix="transformer",
)
_NEOX = Layout(
    name="GPTNeoX",
    family="neox",
    settings={
        **_WIDTHS,
        "hidden_act": "",
        "layer_norm_eps": "norm_eps",
        "rotary_pct": "rotary_fraction",
        "rotary_emb_base": "rope_base",
        "rope_parameters": "rope",
        "use_parallel_residual": "parallel_residual",
        "attention_bias": "bias of the output",
        "max_position_embeddings": "longest",
    },
    defaults={
        "layer_norm_eps": 1e-5,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000.0,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    biases={"qkv": "attention_bias", "output": "attention_bias"},
    supported={"hidden_act": ("gelu",)},
    outer={
        "gpt_neox.embed_in": "embedding",
        "gpt_neox.final_layer_norm": "final_norm",
        "embed_out": "head",
        "lm_head": "head",  # the later name, which is written
    },
    block_prefix="gpt_neox.layers.",
    block={
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "attention.dense": "attention.o",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    fused={"attention.query_key_value": _QKV},
    by_head=True,
    ignored=("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)
_GPT2 = Layout(
    name="GPT2",
    family="gpt2",
    settings={
        "n_embd": "width",
        "n_inner": "ffn_width",
        "n_layer": "layers",
        "n_head": "heads",
        "n_positions": "max_positions",
        "activation_function": "",
        "layer_norm_epsilon": "norm_eps",
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"), "no dropout"),
    },
    defaults={"n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    supported={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    },
    outer={
        "transformer.wte": "embedding",
        "transformer.wpe": "position_embedding",
        "transformer.ln_f": "final_norm",
        "lm_head": "head",
    },
    block_prefix="transformer.h.",
    block={
        "ln_1": "attention_norm",
        "ln_2": "mlp_norm",
        "attn.c_proj": "attention.o",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    fused={"attn.c_attn": _QKV},
    transposed=True,
    ignored=(".attn.bias", ".attn.masked_bias"),
    of_tokens="LMHeadModel",
)
_BERT = Layout(
    name="Bert",
    family="bert",
    settings={
        **_WIDTHS,
        "hidden_act": "",
        "layer_norm_eps": "norm_eps",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "token_types",
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), "no dropout"),
    },
    defaults={"layer_norm_eps": 1e-12, "type_vocab_size": 2, "tie_word_embeddings": True},
    supported={
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    },
    outer={
        "bert.embeddings.word_embeddings": "embedding",
        "bert.embeddings.position_embeddings": "position_embedding",
        "bert.embeddings.token_type_embeddings": "token_type_embedding",
        "bert.embeddings.LayerNorm": "embedding_norm",
        "cls.predictions.transform.dense": "head.dense",
        "cls.predictions.transform.LayerNorm": "head.norm",
        "cls.predictions.decoder": "head",
    },
    block_prefix="bert.encoder.layer.",
    block={
        "attention.self.query": "attention.q",
        "attention.self.key": "attention.k",
        "attention.self.value": "attention.v",
        "attention.output.dense": "attention.o",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "mlp.up",
        "output.dense": "mlp.down",
        "output.LayerNorm": "mlp_norm",
    },
    # The head of BERT's second objective, whether one sentence follows another.
    ignored=("embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    renamed={
        "LayerNorm.gamma": "LayerNorm.weight",
        "LayerNorm.beta": "LayerNorm.bias",
        "cls.predictions.bias": "cls.predictions.decoder.bias",
    },
    of_tokens="ForMaskedLM",
)
_NO_BIAS: dict[Biased, str | bool] = dict.fromkeys(EVERY_BIAS, False)
_NO_MLP_BIAS: dict[Biased, str | bool] = {**_LLAMA.biases, "mlp": False}
_QWEN2 = replace(
    _LLAMA,
    name="Qwen2",
    settings={
        **_LLAMA.settings,
        "use_sliding_window": "has windows",
        "sliding_window": "window",
        "layer_types": "kinds of layers",
    },
    defaults={**_LLAMA.defaults, "sliding_window": 4096},
    biases={**_NO_BIAS, "qkv": True},
    supported={"hidden_act": ("silu",)},
    windowed=_last,
)
_MISTRAL = replace(
    _LLAMA,
    name="Mistral",
    settings={**_LLAMA.settings, "sliding_window": "window"},
    defaults={**_LLAMA.defaults, "num_key_value_heads": 8, "sliding_window": 4096},
    biases=_NO_BIAS,
    supported={"hidden_act": ("silu",), "layer_types": (None,)},
    windowed=_all,
)
_PHI3 = replace(
    _LLAMA,
    name="Phi3",
    settings={
        **_LLAMA.settings,
        "partial_rotary_factor": "rotary_fraction",
        "sliding_window": "window",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), "no dropout"),
        "pad_token_id": "no padding",
    },
    defaults={**_LLAMA.defaults, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "sliding_window": None},
    biases=_NO_BIAS,
    supported={"hidden_act": ("silu",), "layer_types": (None,)},
    block={name: ours for name, ours in _LLAMA.block.items() if ours not in (*_QKV, *_GATED)},
    fused={"self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": _GATED},
    heads=("classes",),
    windowed=_all,
    rope_types=("default",),
)
_OLMO2 = replace(
    _LLAMA,
    name="Olmo2",
    family="olmo2",
    settings={**_LLAMA.settings, "pad_token_id": "no padding"},
    defaults={**_LLAMA.defaults, "rms_norm_eps": 1e-5},
    biases=_NO_MLP_BIAS,
    supported={"hidden_act": ("silu",)},
    block={
        **{theirs: ours for theirs, ours in _LLAMA.block.items() if ours != "attention_norm"},
        "post_attention_layernorm": "attention_after",
        "post_feedforward_layernorm": "mlp_after",
    },
    heads=("classes",),
)
_GEMMA2 = replace(
    _LLAMA,
    name="Gemma2",
    family="gemma2",
    settings={
        **{theirs: ours for theirs, ours in _LLAMA.settings.items() if theirs != "hidden_act"},
        "hidden_activation": "",
        "query_pre_attn_scalar": "score_width",
        "attn_logit_softcapping": "score_cap",
        "final_logit_softcapping": "logit_cap",
        "sliding_window": "window or length",
        "layer_types": "kinds of layers",
    },
    defaults={
        **_LLAMA.defaults,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    biases=_NO_MLP_BIAS,
    supported={"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (None, False)},
    block={
        **_LLAMA.block,
        "post_attention_layernorm": "attention_after",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_after",
    },
    heads=("classes",),
    windowed=_every_other,
    centred=True,
    scaled=True,
)
LAYOUTS: dict[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen3": replace(
        _QWEN2, name="Qwen3", family="qwen3", defaults={**_QWEN2.defaults, "head_dim": 128}, biases=_NO_MLP_BIAS
    ),
    "olmo": replace(
        _LLAMA,
        name="Olmo",
        biases=_NO_MLP_BIAS,
        always={"norm": "nonparametric-layernorm", "norm_eps": OLMO_EPS},
        heads=(),
    ),
    "olmo2": _OLMO2,
    "gemma2": _GEMMA2,
    "gpt_neox": _NEOX,
    "gpt2": _GPT2,
    "bert": _BERT,
}
"""transformers' `model_type` → its layout."""
_HEADS = {"score": "classes", "classifier": "classes", "qa_outputs": "spans"}
"""Module that gives what an output head gives → its kind; without one of them, a model gives tokens."""
POOLER = "bert.pooler.dense"
_OF_POOLER = (f"{POOLER}.weight", f"{POOLER}.bias")


def found_head(layout: Layout, named: Collection[str], origin: str) -> tuple[Layout, str | None]:
    """The layout with the output head that a folder's tensors have, and its kind; None for one that gives tokens.

    UserError for a classifier of tokens, which has no pooler, and for an encoder without a head.
    """
    modules = {name.removesuffix(".weight") for name in named if name.endswith(".weight")}
    found = next((module for module in _HEADS if module in modules), None)
    if found is None:
        dense = next((theirs for theirs, ours in layout.outer.items() if ours == "head.dense"), None)
        if dense is not None and dense not in modules:
            raise UserError(
                f"{origin}: the tensors are of a model without an output head ({dense} is missing); save one that has "
                "it, such as BertForMaskedLM"
            )
        return replace(layout, ignored=(*layout.ignored, *_OF_POOLER)), None
    if found == "classifier" and POOLER not in modules:
        raise UserError(
            f"{origin}: a classifier of single tokens is not supported; use a model for sequence classification, "
            "multiple choice, question answering or masked tokens"
        )
    of_spans = any(name.startswith(f"{layout.spans_prefix}.") for name in named)
    return _with_head(layout, found, of_spans), _HEADS[found]


def layout_for(shape: Shape, theirs: str) -> Layout:
    """The layout of a type, with the output head of a shape."""
    layout = LAYOUTS[theirs]
    if shape.output is None:
        return layout
    spans = shape.output.kind == "spans"
    return _with_head(layout, "qa_outputs" if spans else "score" if shape.traits.causal else "classifier", spans)


def _with_head(layout: Layout, module: str, of_spans: bool) -> Layout:
    """The layout with this output head; of_spans: and with `spans_prefix`, if there is one."""
    if of_spans and layout.spans_prefix is not None:
        base, prefix = layout.base, f"{layout.spans_prefix}."
        outer = {theirs.replace(base, prefix, 1): ours for theirs, ours in layout.outer.items()}
        layout = replace(layout, outer=outer, block_prefix=layout.block_prefix.replace(base, prefix, 1))
    kept = {theirs: ours for theirs, ours in layout.outer.items() if not ours.startswith("head")}
    pooler, left_out = ({POOLER: "head.pooler"}, ()) if module == "classifier" else ({}, _OF_POOLER)
    return replace(layout, outer={**kept, **pooler, module: "head.linear"}, ignored=(*layout.ignored, *left_out))


_MIXTURES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "flex_olmo",
    "phimoe",
    "granitemoe",
    "gpt_oss",
    "deepseek_v3",
)
_OTHERS = {
    **dict.fromkeys(_MIXTURES, "it is a mixture of experts"),
    "olmo3": "the rotary positions of its layers with windows are not scaled",
    "smollm3": "some of its layers have no rotary positions",
}
"""Relatives of the supported models → what hybridlab cannot run of them."""


def layout_of(config: Config, origin: str) -> Layout:
    """The layout of a config. UserError for a type that is not supported."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        why = f" ({_OTHERS[kind]})" if isinstance(kind, str) and kind in _OTHERS else ""
        raise UserError(f"{origin}: model_type {kind!r} is not supported{why}; it must be one of {', '.join(LAYOUTS)}")
    return LAYOUTS[kind]
