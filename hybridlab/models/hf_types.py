"""The types of models of transformers, as data: which of their settings and tensors are which of ours, for both
directions (huggingface.py, hf_export.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from hybridlab.attention.kinds import Full, Window
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import EVERY_BIAS, Biased, FamilyName

Config = Mapping[str, Any]
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""The types of rotary positions that hybridlab can run."""
IN_WINDOWS = {"full_attention": False, "sliding_attention": True}
"""transformers' kinds of layers → whether the heads of such a layer have windows."""
POOLER = "bert.pooler.dense"
OF_POOLER = (f"{POOLER}.weight", f"{POOLER}.bias")


@dataclass(frozen=True)
class Layout:
    """How transformers stores a type of models.

    name: what the names of its classes begin with. family: ours. settings: of its config, in the order in which they
    are written → the field of `Shape` that they say, or a further value of hf_export.py. defaults: of settings that
    a config may leave out. supported: settings → the values that hybridlab can run, the first of which is the
    default, and written. biases: the linear layers of a block → the setting that gives them a bias, or whether they
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
    multiplied by the square root of their width. local_base: the older setting of the base of the rotary positions in
    layers with windows, where these have one of their own, and its default.
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
    local_base: tuple[str, float] | None = None

    @property
    def base(self) -> str:
        """What the names of all modules but the head's begin with."""
        return self.block_prefix.split(".")[0] + "."

    @property
    def depth(self) -> str:
        """Its name of the number of layers."""
        return next(theirs for theirs, ours in self.settings.items() if ours == "layers")

    def stored_names(self, parameters: Iterable[str], present: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
        """Its names of tensors → ours of the parameters that each holds: one, or those of q, k and v. present: the
        names in a folder, where a module may have either of two."""
        block = {ours: theirs for theirs, ours in self.block.items()}
        block |= {ours: theirs for theirs, parts in self.fused.items() for ours in parts}
        outer = {ours: theirs for theirs, ours in self.outer.items()}
        outer |= {self.outer[stem]: stem for name in present if (stem := name.rpartition(".")[0]) in self.outer}
        names: dict[str, tuple[str, ...]] = {}
        for name in parameters:
            stem, _, kind = name.rpartition(".")
            if stem.startswith("blocks."):
                layer, inner = stem.removeprefix("blocks.").split(".", 1)
                theirs = f"{self.block_prefix}{layer}.{block[inner]}.{kind}"
            else:
                theirs = f"{outer[stem]}.{kind}"
            names[theirs] = (*names.get(theirs, ()), name)
        return names

    def transposes(self, name: str, tensor: Tensor) -> bool:
        """Whether it stores a tensor of this name with inputs first."""
        return self.transposed and tensor.dim() == 2 and name.startswith(self.block_prefix)

    def centres(self, name: str, tensor: Tensor) -> bool:
        """Whether it stores a tensor of this name, the weight of a norm, minus 1."""
        return self.centred and tensor.dim() == 1 and name.endswith(".weight")

    def embedding_scale(self, width: int) -> float:
        """The factor on its embeddings."""
        return math.sqrt(width) if self.scaled else 1.0

    def with_head(self, module: str, of_spans: bool) -> Layout:
        """The layout with this output head; of_spans: and with `spans_prefix`, if there is one."""
        outer, prefix = self.outer, self.block_prefix
        if of_spans and self.spans_prefix is not None:
            of_model = f"{self.spans_prefix}."
            outer = {theirs.replace(self.base, of_model, 1): ours for theirs, ours in outer.items()}
            prefix = prefix.replace(self.base, of_model, 1)
        without_head = {theirs: ours for theirs, ours in outer.items() if not ours.startswith("head")}
        pooler, left_out = ({POOLER: "head.pooler"}, ()) if module == "classifier" else ({}, OF_POOLER)
        outer, ignored = {**without_head, **pooler, module: "head.linear"}, (*self.ignored, *left_out)
        return replace(self, outer=outer, block_prefix=prefix, ignored=ignored)


def windows_of(attention_map: AttentionMap) -> list[int | None] | None:
    """The window of each layer, None for full attention; None in all if the heads of a layer differ, or have another
    kind."""
    rows = [set(row) for row in attention_map.layers]
    if any(len(row) > 1 or type(kind) not in (Full, Window) for row in rows for kind in row):
        return None
    return [kind.window for row in rows for kind in row]


def _all(config: Config, layers: int, window: int | None) -> list[bool]:
    return [window is not None] * layers


def _every_other(config: Config, layers: int, window: int | None) -> list[bool]:
    return [layer % 2 == 0 for layer in range(layers)]


def _most(config: Config, layers: int, window: int | None) -> list[bool]:
    every = config.get("sliding_window_pattern", 6)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _three_of_four(config: Config, layers: int, window: int | None) -> list[bool]:
    return [(layer + 1) % 4 != 0 for layer in range(layers)]


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
    spans_prefix=None,
    windowed=_all,
)
_MINISTRAL = replace(
    _MISTRAL,
    name="Ministral",
    settings={**_MISTRAL.settings, "layer_types": "kinds of layers"},
    supported={"hidden_act": ("silu",)},
    spans_prefix="transformer",
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
_OLMO3 = replace(
    _OLMO2,
    name="Olmo3",
    settings={
        **_OLMO2.settings,
        "rope_parameters": "rope by kind of layer",
        "sliding_window": "window",
        "layer_types": "kinds of layers",
    },
    defaults={**_OLMO2.defaults, "rope_theta": 500000.0, "sliding_window": 4096},
    windowed=_three_of_four,
    local_base=("rope_theta", 500000.0),
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
_GEMMA3 = replace(
    _GEMMA2,
    name="Gemma3",
    family="gemma3",
    settings={
        **{theirs: ours for theirs, ours in _GEMMA2.settings.items() if ours != "score_cap"},
        "rope_parameters": "rope by kind of layer",
        "attn_logit_softcapping": "",
    },
    defaults={**_GEMMA2.defaults, "rope_theta": 1e6, "final_logit_softcapping": None},
    # Its class does not read a cap of scores.
    supported={**_GEMMA2.supported, "attn_logit_softcapping": (None,)},
    heads=(),
    windowed=_most,
    local_base=("rope_local_base_freq", 10000.0),
)
LAYOUTS: dict[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MINISTRAL,
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
    "olmo3": _OLMO3,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gpt_neox": _NEOX,
    "gpt2": _GPT2,
    "bert": _BERT,
}
"""transformers' `model_type` → its layout."""
STAND_INS = {"llama": ("mistral", "ministral"), "olmo2": ("olmo3",)}
"""A type without windows → those that compute the same and have them, the one with windows in all layers first.

Qwen2 with biases of zeros would compute the same as Llama too. But transformers then splits texts with Qwen's
tokenizer, whatever the folder's own is, and a model that is opened again would train the biases.
"""
