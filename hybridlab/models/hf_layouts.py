"""How transformers stores each family of models: names of tensors, and which settings hybridlab can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.plan.shape import EVERY_BIAS, FAMILIES, Biased, FamilyName, Shape

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """How transformers stores a family of models.

    shape: from its config to the fields of `Shape`. supported: settings of its config → the values that hybridlab can
    run, the default first. outer: modules outside the blocks, its name → ours. block_prefix: its prefix of blocks.
    block: modules of a block, its name → ours. depth: its name of the number of layers. fused: the module of a block
    that holds q, k and v together, if it has one. split: takes a fused tensor apart. join: the opposite. transposed:
    matrices of a block are stored with inputs first. ignored: endings of names of tensors that are not parameters, and
    of parts that hybridlab leaves out. renamed: endings of names that have others in some folders → the usual one.
    spans_prefix: what begins the names of a model for spans, in place of the first part of block_prefix.
    """

    shape: Callable[[Config], dict[str, Any]]
    supported: Mapping[str, tuple[Any, ...]]
    outer: Mapping[str, str]
    block_prefix: str
    block: Mapping[str, str]
    depth: str = "num_hidden_layers"
    fused: str | None = None
    split: Callable[[Tensor, Shape], list[Tensor]] | None = None
    join: Callable[[list[Tensor], Shape], Tensor] | None = None
    transposed: bool = False
    ignored: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    spans_prefix: str | None = None


def rope_of(config: Config) -> Mapping[str, Any]:
    """The settings of rotary positions. TypeError if they are no mapping."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError
    return rope


ROPE_TYPES = ("default", "linear", "llama3")
"""The types of rotary positions that hybridlab can run."""


def _rope_scaling(config: Config) -> dict[str, Any] | None:
    """The scaling of rotary frequencies, for the types that hybridlab can run."""
    rope = rope_of(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "linear":
        return {"kind": kind, "factor": float(rope["factor"])}
    if kind != "llama3":
        return None
    factors = {name: float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    return {"kind": kind, **factors, "original_positions": rope["original_max_position_embeddings"]}


def _biases(config: Config, family: FamilyName, **given: bool) -> list[Biased] | None:
    """The linear layers that have a bias, None if they are those of the family. given: those that config names."""
    found = {name: given.get(name, name in FAMILIES[family].biases) for name in EVERY_BIAS}
    if not all(isinstance(value, bool) for value in found.values()):
        raise TypeError
    biases = [name for name, value in found.items() if value]
    return None if tuple(biases) == FAMILIES[family].biases else biases


def _llama_shape(config: Config) -> dict[str, Any]:
    attention, mlp = config.get("attention_bias", False), config.get("mlp_bias", False)
    return _rotary_shape(config, attention, attention, mlp)


def _qwen2_shape(config: Config) -> dict[str, Any]:
    return _rotary_shape(config, True, False, False)


def _qwen3_shape(config: Config) -> dict[str, Any]:
    bias = config.get("attention_bias", False)
    return _rotary_shape({"head_dim": 128, **config}, bias, bias, False)


def _olmo_shape(config: Config) -> dict[str, Any]:
    bias = config.get("attention_bias", False)
    shape = _rotary_shape(config, bias, bias, False)
    return shape | {"norm": "nonparametric-layernorm", "norm_eps": OLMO_EPS}


OLMO_EPS = 1e-5
"""Added to the variance in OLMo's norms; no setting of its config."""


def _rotary_shape(config: Config, qkv: bool, output: bool, mlp: bool) -> dict[str, Any]:
    """The shape of Llama and its kin, which differ in their biases."""
    heads = config["num_attention_heads"]
    return {
        "rope_scaling": _rope_scaling(config),
        "biases": _biases(config, "llama", qkv=qkv, output=output, mlp=mlp),
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or config["hidden_size"] // heads,
        "ffn_width": config["intermediate_size"],
        "rope_base": float(rope_of(config).get("rope_theta") or config.get("rope_theta", 10000.0)),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tied_embeddings": config.get("tie_word_embeddings", False),
    }


def _neox_shape(config: Config) -> dict[str, Any]:
    heads, rope, bias = config["num_attention_heads"], rope_of(config), config.get("attention_bias", True)
    fraction = rope.get("partial_rotary_factor") or config.get("rotary_pct", 0.25)
    return {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": heads,
        "kv_heads": heads,
        "head_width": config["hidden_size"] // heads,
        "ffn_width": config["intermediate_size"],
        "rope_base": float(rope.get("rope_theta") or config.get("rotary_emb_base", 10000.0)),
        "rotary_fraction": fraction,
        "norm_eps": config.get("layer_norm_eps", 1e-5),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "parallel_residual": config.get("use_parallel_residual", True),
        "rope_scaling": _rope_scaling(config),
        "biases": _biases(config, "neox", qkv=bias, output=bias),
    }


def _gpt2_shape(config: Config) -> dict[str, Any]:
    return {
        "layers": config["n_layer"],
        "width": config["n_embd"],
        "heads": config["n_head"],
        "kv_heads": config["n_head"],
        "head_width": config["n_embd"] // config["n_head"],
        "ffn_width": config.get("n_inner") or 4 * config["n_embd"],
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "max_positions": config["n_positions"],
    }


def _bert_shape(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": heads,
        "kv_heads": heads,
        "head_width": config["hidden_size"] // heads,
        "ffn_width": config["intermediate_size"],
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "max_positions": config["max_position_embeddings"],
        "token_types": config.get("type_vocab_size", 2),
    }


def _split_neox(tensor: Tensor, shape: Shape) -> list[Tensor]:
    """query_key_value holds q, k and v head by head."""
    parts = tensor.view(shape.heads, 3, shape.head_width, *tensor.shape[1:])
    return [parts[:, i].reshape(-1, *tensor.shape[1:]) for i in range(3)]


def _join_neox(parts: list[Tensor], shape: Shape) -> Tensor:
    by_head = [part.unflatten(0, (shape.heads, shape.head_width)) for part in parts]
    return torch.stack(by_head, dim=1).flatten(0, 2)


def _split_gpt2(tensor: Tensor, shape: Shape) -> list[Tensor]:
    """c_attn holds q, k and v side by side."""
    return list(tensor.chunk(3))


def _join_gpt2(parts: list[Tensor], shape: Shape) -> Tensor:
    return torch.cat(parts)


_LLAMA = Layout(
    shape=_llama_shape,
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
    shape=_neox_shape,
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
    fused="attention.query_key_value",
    split=_split_neox,
    join=_join_neox,
    ignored=("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)
_GPT2 = Layout(
    shape=_gpt2_shape,
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
    depth="n_layer",
    fused="attn.c_attn",
    split=_split_gpt2,
    join=_join_gpt2,
    transposed=True,
    ignored=(".attn.bias", ".attn.masked_bias"),
)
_BERT = Layout(
    shape=_bert_shape,
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
)
LAYOUTS: dict[str, tuple[FamilyName, Layout]] = {
    "llama": ("llama", _LLAMA),
    "qwen2": ("llama", replace(_LLAMA, shape=_qwen2_shape)),
    "qwen3": ("qwen3", replace(_LLAMA, shape=_qwen3_shape)),
    "olmo": ("llama", replace(_LLAMA, shape=_olmo_shape)),
    "gpt_neox": ("neox", _NEOX),
    "gpt2": ("gpt2", _GPT2),
    "bert": ("bert", _BERT),
}
_HEADS = {"score": "classes", "classifier": "classes", "qa_outputs": "spans"}
"""Module that gives what an output head gives → its kind; without one of them, a model gives tokens."""
POOLER = "bert.pooler.dense"
_OF_POOLER = (f"{POOLER}.weight", f"{POOLER}.bias")


def with_head(layout: Layout, named: Collection[str], origin: str) -> tuple[Layout, str | None]:
    """The layout with the output head that a folder's tensors have, and its kind; None for one that gives tokens.

    UserError for a classifier of tokens, which has no pooler, and for an encoder without a head.
    """
    modules = {name.removesuffix(".weight") for name in named if name.endswith(".weight")}
    found = next((module for module in _HEADS if module in modules), None)
    kind = None if found is None else _HEADS[found]
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
    if layout.spans_prefix is not None and any(name.startswith(f"{layout.spans_prefix}.") for name in named):
        layout = _with_prefix(layout, layout.spans_prefix)
    kept = {theirs: ours for theirs, ours in layout.outer.items() if not ours.startswith("head")}
    pooler, left_out = ({POOLER: "head.pooler"}, ()) if found == "classifier" else ({}, _OF_POOLER)
    outer = {**kept, **pooler, found: "head.linear"}
    return replace(layout, outer=outer, ignored=(*layout.ignored, *left_out)), kind


def _with_prefix(layout: Layout, prefix: str) -> Layout:
    """The layout with another first part of the names of all modules but the head's."""
    base = layout.block_prefix.split(".")[0] + "."
    outer = {theirs.replace(base, f"{prefix}.", 1): ours for theirs, ours in layout.outer.items()}
    return replace(layout, outer=outer, block_prefix=layout.block_prefix.replace(base, f"{prefix}.", 1))


_OTHERS = {
    "olmo2": "its norms stand after the branches, and those of q and k span all heads",
    "olmo3": "its norms stand after the branches, and those of q and k span all heads",
    "smollm3": "some of its layers have no rotary positions",
}
"""Relatives of the supported models → what hybridlab cannot run of them."""


def layout_of(config: Config, origin: str) -> tuple[FamilyName, Layout]:
    """Our name of the family, and its layout."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        why = f" ({_OTHERS[kind]})" if isinstance(kind, str) and kind in _OTHERS else ""
        raise UserError(f"{origin}: model_type {kind!r} is not supported{why}; it must be one of {', '.join(LAYOUTS)}")
    return LAYOUTS[kind]
