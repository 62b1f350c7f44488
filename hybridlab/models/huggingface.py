"""Import from folders in the Hugging Face layout (config.json and safetensors): llama, qwen3, gpt_neox, gpt2.

    model = hybridlab.load_hf("path/to/folder")

Only safetensors are read, no pickle files. A model with a feature that hybridlab lacks is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hybridlab.config.loading import Layer, check
from hybridlab.config.shape import Shape
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.models.decoder import Decoder
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.kinds import Full
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure

Config = Mapping[str, Any]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """How transformers stores a family of models.

    shape: from its config to the fields of `Shape`. supported: settings of its config → the values that hybridlab can
    run, the default first. outer: modules outside the blocks, its name → ours. block_prefix: its prefix of blocks.
    block: modules of a block, its name → ours. split: takes a fused tensor apart. ignored: endings of names of tensors
    that are not parameters.
    """

    shape: Callable[[Config], dict[str, Any]]
    supported: Mapping[str, tuple[Any, ...]]
    outer: Mapping[str, str]
    block_prefix: str
    block: Mapping[str, str]
    split: Callable[[str, Tensor, Shape], Weights] | None = None
    ignored: tuple[str, ...] = ()


def _rope(config: Config) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _llama_shape(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or config["hidden_size"] // heads,
        "ffn_width": config["intermediate_size"],
        "rope_base": float(_rope(config).get("rope_theta") or config.get("rope_theta", 10000.0)),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tied_embeddings": config.get("tie_word_embeddings", False),
    }


def _neox_shape(config: Config) -> dict[str, Any]:
    heads, rope = config["num_attention_heads"], _rope(config)
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


def _split_neox(name: str, tensor: Tensor, shape: Shape) -> Weights:
    """query_key_value holds q, k and v head by head."""
    if not name.startswith("attention.query_key_value."):
        return {name: tensor}
    parts = tensor.view(shape.heads, 3, shape.head_width, *tensor.shape[1:])
    kind = name.rsplit(".", 1)[1]
    return {f"attention.{letter}.{kind}": parts[:, i].reshape(-1, *tensor.shape[1:]) for i, letter in enumerate("qkv")}


def _split_gpt2(name: str, tensor: Tensor, shape: Shape) -> Weights:
    """Matrices are stored transposed (inputs first), and c_attn holds q, k and v side by side."""
    if tensor.dim() == 2:
        tensor = tensor.t()
    if not name.startswith("attention.c_attn."):
        return {name: tensor}
    kind = name.rsplit(".", 1)[1]
    return {f"attention.{letter}.{kind}": part for letter, part in zip("qkv", tensor.chunk(3), strict=True)}


_LLAMA = Layout(
    shape=_llama_shape,
    supported={
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "hidden_act": ("silu",),
        "use_sliding_window": (False,),
    },
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
)
_NEOX = Layout(
    shape=_neox_shape,
    supported={"attention_bias": (True,), "hidden_act": ("gelu",)},
    outer={
        "gpt_neox.embed_in": "embedding",
        "gpt_neox.final_layer_norm": "final_norm",
        "embed_out": "head",
        "lm_head": "head",
    },
    block_prefix="gpt_neox.layers.",
    block={
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "attention.query_key_value": "attention.query_key_value",
        "attention.dense": "attention.o",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    split=_split_neox,
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
        "attn.c_attn": "attention.c_attn",
        "attn.c_proj": "attention.o",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    split=_split_gpt2,
    ignored=(".attn.bias", ".attn.masked_bias"),
)
_LAYOUTS = {
    "llama": ("llama", _LLAMA),
    "qwen3": ("qwen3", _LLAMA),
    "gpt_neox": ("neox", _NEOX),
    "gpt2": ("gpt2", _GPT2),
}


def _layout(config: Config, origin: str) -> tuple[str, Layout]:
    """Our name of the family, and its layout."""
    kind = config.get("model_type")
    if kind not in _LAYOUTS:
        raise UserError(f"{origin}: model_type {kind!r} is not supported; it must be one of {', '.join(_LAYOUTS)}")
    return _LAYOUTS[kind]


def shape_from_hf(config: Config, origin: str = "config.json") -> Shape:
    """The shape of a transformers configuration. UserError if it asks for what hybridlab cannot run.

    origin: the file of the configuration, for messages.
    """
    family, layout = _layout(config, origin)
    for name, values in layout.supported.items():
        if config.get(name, values[0]) not in values:
            raise UserError(f"{origin}: {name} = {config[name]!r} is not supported; it must be {values[0]!r}")
    rope_type = _rope(config).get("rope_type", _rope(config).get("type", "default"))
    if rope_type != "default":
        raise UserError(f"{origin}: rotary positions of type {rope_type!r} are not supported; they must be 'default'")
    try:
        fields = {"family": family, "vocab": config["vocab_size"], **layout.shape(config)}
    except KeyError as missing:
        raise UserError(f"{origin}: {missing} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError):
        raise UserError(f"{origin}: a number that describes the shape is zero or of the wrong type") from None
    return check(Shape, Layer(fields, {(): origin}))


def weights_from_hf(config: Config, shape: Shape, weights: Mapping[str, Tensor], origin: str) -> Weights:
    """The tensors of transformers under our names, with fused tensors split. origin: their folder, for messages."""
    _, layout = _layout(config, origin)
    renamed: Weights = {}
    # Models saved without an output head lack this prefix.
    base = layout.block_prefix.split(".")[0] + "."
    for full_name, tensor in weights.items():
        name = full_name if full_name.startswith((base, *layout.outer)) else base + full_name
        if name.endswith(layout.ignored) and layout.ignored:
            continue
        stem, kind = name.rsplit(".", 1)
        if stem in layout.outer:
            renamed[f"{layout.outer[stem]}.{kind}"] = tensor
            continue
        layer, _, inner = stem.removeprefix(layout.block_prefix).partition(".")
        if not stem.startswith(layout.block_prefix) or inner not in layout.block:
            raise UserError(f"{origin}: config.json and weights do not fit: the model has no tensor {full_name}")
        ours = f"{layout.block[inner]}.{kind}"
        parts = layout.split(ours, tensor, shape) if layout.split else {ours: tensor}
        renamed |= {f"blocks.{layer}.{part}": value for part, value in parts.items()}
    if shape.tied_embeddings:
        renamed.pop("head.weight", None)
    return renamed


def load_hf(path: str | Path) -> Decoder:
    """The model of a folder in the Hugging Face layout (Llama, Qwen3, GPT-NeoX, GPT-2), in fp32 on the CPU.

    path: a folder with config.json and model.safetensors, or its shards. UserError for another architecture, and for
    files that are missing or damaged.

        model = hybridlab.load_hf("Qwen3-0.6B")
        model(tokens).logits    # tokens (B, S), logits (B, S, V)
    """
    folder = Path(path)
    try:
        config = read_object(folder / "config.json", "configuration", ("model_type",))
    except FileNotFoundError:
        raise UserError(f"{folder}: no config.json; give a folder in the Hugging Face layout") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no *.safetensors file; save the weights as safetensors")
    shape = shape_from_hf(config, str(folder / "config.json"))
    weights: Weights = {}
    for file in files:
        try:
            weights |= load_file(file)
        except Exception as error:  # safetensors raises its own type, which it does not export
            raise UserError(f"{file}: the file is damaged ({error}); fetch it again") from None
    plan = Plan.plain(shape.layers, shape.traits.parallel)
    structure = Structure(shape, plan, AttentionMap.uniform(shape.layers, shape.kv_heads, Full()))
    # Copied, because the parts of a fused tensor are views of it.
    tensors = {
        name: tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for name, tensor in weights_from_hf(config, shape, weights, str(folder)).items()
    }
    return Decoder.from_tensors(structure, tensors, source=str(folder))
