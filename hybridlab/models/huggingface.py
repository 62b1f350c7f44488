"""Import from folders in the Hugging Face layout (config.json and safetensors), for the families of the model zoo.

    model = hybridlab.load_hf("path/to/folder")

Only safetensors are read: nothing is unpickled. What the model zoo cannot represent is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from hybridlab.config.loading import Layer, check
from hybridlab.config.schema import Shape
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder
from hybridlab.plan.attention_map import AttentionMap, Full
from hybridlab.plan.plan import Plan

_MODEL_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def shape_from_hf(config: Mapping[str, Any], place: str = "config.json") -> Shape:
    """The shape of a Llama or Qwen3 configuration; anything it asks for beyond that is refused."""
    family = config.get("model_type")
    if family not in ("llama", "qwen3"):
        raise UserError(f"{place}: model_type {family!r} is not in the model zoo; it has llama and qwen3")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    refused = {
        "attention_bias": config.get("attention_bias", False) is not False,
        "mlp_bias": config.get("mlp_bias", False) is not False,
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "rope_scaling": rope.get("rope_type", rope.get("type", "default")) != "default",
        "use_sliding_window": bool(config.get("use_sliding_window", False)),
    }
    for name, wanted in refused.items():
        if wanted:
            raise UserError(f"{place}: {name} = {config.get(name, rope)!r} is not supported by the family {family}")
    heads = config["num_attention_heads"]
    values = {
        "family": family,
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or config["hidden_size"] // heads,
        "ffn_width": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "rope_base": float(rope.get("rope_theta") or config.get("rope_theta", 10000.0)),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "tied_embeddings": config.get("tie_word_embeddings", False),
    }
    return check(Shape, Layer(values, {(): place}))


def hf_name(name: str) -> str:
    """The name that transformers gives to one of our parameters."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_BLOCK_NAMES[rest.removesuffix('.weight')]}.weight"


def load_hf_weights(model: Decoder, weights: Mapping[str, Tensor], place: str) -> None:
    """Copy weights with transformers' names into the model; a missing, surplus or misshapen tensor is an error."""
    wanted = {hf_name(name): parameter for name, parameter in model.named_parameters()}
    missing = sorted(set(wanted) - set(weights))
    ignored = {"lm_head.weight"} if model.head is None else set()
    surplus = sorted(n for n in set(weights) - set(wanted) - ignored if not n.endswith("rotary_emb.inv_freq"))
    if missing or surplus:
        what = f"{missing[0]} is missing" if missing else f"{surplus[0]} has no place in the model"
        raise UserError(f"{place}: {what}; config.json and the weights do not belong together")
    for name, parameter in wanted.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, but config.json makes it {tuple(parameter.shape)}"
            raise UserError(f"{place}: {name} has shape {shapes}")
        parameter.data.copy_(weights[name])


def load_hf(path: str | Path) -> Decoder:
    """The model of a folder with config.json and model.safetensors (or its shards), in fp32."""
    folder = Path(path)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, json.JSONDecodeError):
        raise UserError(f"{folder}: no readable config.json; give a folder in the Hugging Face layout") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no *.safetensors file; other weight formats are not read")
    shape = shape_from_hf(config, str(folder / "config.json"))
    model = Decoder(shape, Plan.plain(shape.layers), AttentionMap.uniform(shape.layers, shape.kv_heads, Full()))
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except Exception as error:  # safetensors raises its own type, which it does not export
            raise UserError(f"{file}: the file is damaged ({error}); fetch it again") from None
    load_hf_weights(model, weights, str(folder))
    return model
