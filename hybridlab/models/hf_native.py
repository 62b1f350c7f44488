"""Models as transformers' own classes: which ones can be, their config.json, and their tensors by transformers' names.

    why_not_native(model.structure)    # None, or what the class of the family cannot express

The opposite of models/huggingface.py, with the same layouts (models/hf_layouts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from hybridlab.attention.kinds import Full
from hybridlab.models.decoder import Transformer
from hybridlab.models.hf_layouts import LAYOUTS, OLMO_EPS, POOLER, Layout
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import FAMILIES, ClassesOutput, Llama3Scaling, Shape
from hybridlab.plan.structure import Structure

Config = dict[str, Any]

_CLASSES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "olmo": "Olmo",
    "gpt_neox": "GPTNeoX",
    "gpt2": "GPT2",
    "bert": "Bert",
}
"""transformers' `model_type` → how the names of its classes begin."""
_ENDS = {"tokens": "ForCausalLM", "classes": "ForSequenceClassification", "spans": "ForQuestionAnswering"}
_OF_TOKENS = {"gpt2": "LMHeadModel", "bert": "ForMaskedLM"}
_ROTARY = ("llama", "qwen2", "qwen3", "olmo")
"""Types whose heads are as many and as wide as wanted, and rotate all channels."""


def model_type(shape: Shape) -> str:
    """transformers' `model_type` that fits a shape best; see `why_not_native`."""
    if shape.family == "llama":
        if shape.traits.norm == "nonparametric-layernorm":
            return "olmo"
        return "qwen2" if set(shape.traits.biases) == {"qkv"} else "llama"
    return {"neox": "gpt_neox"}.get(shape.family, shape.family)


def native_class(shape: Shape) -> str | None:
    """The name of transformers' class for this shape and output head; None if there is none."""
    theirs, head = model_type(shape), shape.output.kind if shape.output else "tokens"
    if theirs == "olmo" and head != "tokens":
        return None
    return _CLASSES[theirs] + (_OF_TOKENS.get(theirs, _ENDS[head]) if head == "tokens" else _ENDS[head])


def why_not_native(structure: Structure, pads_with_end: bool = False) -> str | None:
    """What transformers' class of the family cannot express, in words; None if it is the same model.

    pads_with_end: padding is the token that ends a document, so that a class that looks for padding finds a wrong end.
    """
    shape, traits, theirs = structure.shape, structure.shape.traits, model_type(structure.shape)
    classes = isinstance(shape.output, ClassesOutput)
    reasons = {
        "its plan is more than every layer once": structure.plan != Plan.plain(shape.layers, traits.parallel),
        "its heads mix tokens in other ways than full attention": set(structure.map.each_kind()) != {Full()},
        "its norms are scaled by depth": shape.norm_scaling is not None,
        f"{theirs} has another norm": not _has_its_norm(shape, theirs),
        f"{theirs} has biases in other places": not _has_its_biases(shape, theirs),
        f"{theirs} has blocks of another order": theirs != "gpt_neox" and traits.parallel,
        f"{theirs} rotates all channels of a head": theirs in _ROTARY and shape.rotary_width != shape.head_width,
        f"{theirs} has a KV head for each query head": theirs not in _ROTARY and shape.heads != shape.kv_heads,
        f"{theirs} has heads that are as wide together as the model": (
            theirs not in ("llama", "qwen2", "qwen3") and shape.heads * shape.head_width != shape.width
        ),
        f"{theirs} has no class with this output head": native_class(shape) is None,
        "the class finds the last token of a row by its padding, which here is the token that ends a document": (
            classes and traits.causal and pads_with_end
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _has_its_norm(shape: Shape, theirs: str) -> bool:
    if theirs == "olmo":
        return shape.norm_eps == OLMO_EPS
    return shape.traits.norm == FAMILIES[shape.family].norm


def _has_its_biases(shape: Shape, theirs: str) -> bool:
    """Whether the biases are those of a class; one setting of rotary classes is for those of q, k, v and output."""
    biases = shape.traits.biases
    if theirs == "qwen2":
        return True
    together = ("qkv" in biases) == ("output" in biases)
    match theirs:
        case "llama":
            return together
        case "qwen3" | "olmo":
            return together and "mlp" not in biases
        case "gpt_neox":
            return together and "mlp" in biases
    return set(biases) == set(FAMILIES[shape.family].biases)


# ---- config.json ----


def native_config(shape: Shape, max_positions: int) -> Config:
    """The content of config.json, without the ids of special tokens.

    max_positions: the longest sequence that it is made for, of a family whose positions have no table. With a factor on
    the embeddings, which these classes do not have, the factor goes into the embedding and the head has its own table.
    """
    common = {
        "model_type": model_type(shape),
        "architectures": [native_class(shape)],
        "vocab_size": shape.vocab,
        "tie_word_embeddings": tied(shape),
        "dtype": "float32",
    }
    return common | labels_of(shape) | _SETTINGS[shape.family](shape, shape.max_positions or max_positions)


def labels_of(shape: Shape, names: Sequence[str] = ()) -> Config:
    """The names of the classes in config.json, by default numbered; empty for a head that gives no classes."""
    if not isinstance(shape.output, ClassesOutput):
        return {}
    names = names or [f"LABEL_{number}" for number in range(shape.output.labels)]
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


def tied(shape: Shape) -> bool:
    """Whether the exported output head uses the table of the embedding."""
    return shape.tied_embeddings and shape.embedding_scale == 1.0


def _llama_settings(shape: Shape, max_positions: int) -> Config:
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "rope_parameters": _rope(shape),
        "attention_bias": "output" in shape.traits.biases,
        "mlp_bias": "mlp" in shape.traits.biases,
        "max_position_embeddings": max_positions,
    }


def _rope(shape: Shape) -> Config:
    """transformers' settings of rotary positions."""
    scaling = shape.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": shape.rope_base}
    written = {name: value for name, value in asdict(scaling).items() if name not in ("kind", "original_positions")}
    if isinstance(scaling, Llama3Scaling):
        written["original_max_position_embeddings"] = scaling.original_positions
    return {"rope_type": scaling.kind, "rope_theta": shape.rope_base, **written}


def _neox_settings(shape: Shape, max_positions: int) -> Config:
    fraction = shape.traits.rotary_fraction
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_act": "gelu",
        "layer_norm_eps": shape.norm_eps,
        "rotary_pct": fraction,
        "rotary_emb_base": shape.rope_base,
        "rope_parameters": {**_rope(shape), "partial_rotary_factor": fraction},
        "use_parallel_residual": shape.traits.parallel,
        "attention_bias": "qkv" in shape.traits.biases,
        "max_position_embeddings": max_positions,
    }


def _gpt2_settings(shape: Shape, max_positions: int) -> Config:
    return {
        "n_embd": shape.width,
        "n_inner": shape.ffn_width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_positions": max_positions,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": shape.norm_eps,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_first_dropout"), 0.0),
    }


def _bert_settings(shape: Shape, max_positions: int) -> Config:
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_act": "gelu",
        "layer_norm_eps": shape.norm_eps,
        "max_position_embeddings": max_positions,
        "type_vocab_size": shape.traits.token_types,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    }


_SETTINGS: dict[str, Callable[[Shape, int], Config]] = {
    "llama": _llama_settings,
    "qwen3": _llama_settings,
    "neox": _neox_settings,
    "gpt2": _gpt2_settings,
    "bert": _bert_settings,
}


# ---- tensors ----


def native_tensors(model: Transformer) -> dict[str, Tensor]:
    """The parameters by transformers' names; fused where transformers fuses them. They may share memory with the
    model's own."""
    shape = model.shape
    _, layout = LAYOUTS[model_type(shape)]
    own = {name: tensor.detach() for name, tensor in model.named_parameters()}
    if shape.embedding_scale != 1.0:
        table = own["embedding.weight"]
        if shape.output is None and shape.tied_embeddings:
            own["head.weight"] = table
        own["embedding.weight"] = table * shape.embedding_scale
    return {name: tensor.contiguous() for name, tensor in _named(own, layout, shape).items()}


def _named(own: dict[str, Tensor], layout: Layout, shape: Shape) -> dict[str, Tensor]:
    outer = {ours: theirs for theirs, ours in layout.outer.items()}
    block = {ours: theirs for theirs, ours in layout.block.items()}
    found: dict[str, Tensor] = {}
    for name, tensor in own.items():
        stem, _, kind = name.rpartition(".")
        if not stem.startswith("blocks."):
            found[f"{outer.get(stem) or _of_head(stem, shape)}.{kind}"] = tensor
            continue
        layer, inner = stem.removeprefix("blocks.").split(".", 1)
        theirs = block.get(inner, layout.fused)
        if inner == "attention.q" and layout.fused and layout.join:
            parts = [own[f"blocks.{layer}.attention.{letter}.{kind}"] for letter in "qkv"]
            tensor = layout.join(parts, shape)
        elif inner in ("attention.k", "attention.v") and layout.fused:
            continue
        tensor = tensor.t() if layout.transposed and tensor.dim() == 2 else tensor
        found[f"{layout.block_prefix}{layer}.{theirs}.{kind}"] = tensor
    return _as_saved(found, layout, shape)


def _of_head(stem: str, shape: Shape) -> str:
    """transformers' name of a module of an output head that gives no tokens."""
    if stem == "head.pooler":
        return POOLER
    if shape.output is not None and shape.output.kind == "spans":
        return "qa_outputs"
    return "score" if shape.traits.causal else "classifier"


def _as_saved(found: dict[str, Tensor], layout: Layout, shape: Shape) -> dict[str, Tensor]:
    """The names with which transformers saves such a model, where they differ from those of its modules."""
    bias = "cls.predictions.decoder.bias"
    if bias in found:
        # A bias of its own beside the decoder's: one of both is read, depending on whether tables are tied.
        found["cls.predictions.bias"] = found[bias].clone()
        if tied(shape):
            del found[bias]
    if shape.output is not None and shape.output.kind == "spans" and layout.spans_prefix is not None:
        base = layout.block_prefix.split(".")[0]
        return {name.replace(f"{base}.", f"{layout.spans_prefix}.", 1): tensor for name, tensor in found.items()}
    return found
