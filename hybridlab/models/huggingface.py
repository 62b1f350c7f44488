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
from torch import Tensor

from hybridlab.config.loading import Layer, check
from hybridlab.config.shape import Shape
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.models.decoder import Decoder
from hybridlab.models.hf_files import Stored, read_tensors
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
    block: modules of a block, its name → ours. depth: its name of the number of layers. fused: the module of a block
    that holds q, k and v together, if it has one. split: takes a fused tensor apart. transposed: matrices of a block
    are stored with inputs first. ignored: endings of names of tensors that are not parameters.
    """

    shape: Callable[[Config], dict[str, Any]]
    supported: Mapping[str, tuple[Any, ...]]
    outer: Mapping[str, str]
    block_prefix: str
    block: Mapping[str, str]
    depth: str = "num_hidden_layers"
    fused: str | None = None
    split: Callable[[Tensor, Shape], list[Tensor]] | None = None
    transposed: bool = False
    ignored: tuple[str, ...] = ()


def _rope(config: Config) -> Mapping[str, Any]:
    """The settings of rotary positions. TypeError if they are no mapping."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError
    return rope


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


def _split_neox(tensor: Tensor, shape: Shape) -> list[Tensor]:
    """query_key_value holds q, k and v head by head."""
    parts = tensor.view(shape.heads, 3, shape.head_width, *tensor.shape[1:])
    return [parts[:, i].reshape(-1, *tensor.shape[1:]) for i in range(3)]


def _split_gpt2(tensor: Tensor, shape: Shape) -> list[Tensor]:
    """c_attn holds q, k and v side by side."""
    return list(tensor.chunk(3))


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
        "attention.dense": "attention.o",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    fused="attention.query_key_value",
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
        "attn.c_proj": "attention.o",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    depth="n_layer",
    fused="attn.c_attn",
    split=_split_gpt2,
    transposed=True,
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
    if not isinstance(kind, str) or kind not in _LAYOUTS:
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
    try:
        rope_type = _rope(config).get("rope_type", _rope(config).get("type", "default"))
        fields = {"family": family, "vocab": config["vocab_size"], **layout.shape(config)}
    except KeyError as missing:
        raise UserError(f"{origin}: {missing} is missing") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise UserError(f"{origin}: a number that describes the shape is zero or of the wrong type") from None
    if rope_type != "default":
        raise UserError(f"{origin}: rotary positions of type {rope_type!r} are not supported; they must be 'default'")
    return check(Shape, Layer(fields, {(): origin}))


def load_hf(path: str | Path) -> Decoder:
    """The model of a folder in the Hugging Face layout (Llama, Qwen3, GPT-NeoX, GPT-2), in fp32 on the CPU.

    path: a folder with config.json and model.safetensors, or its shards. UserError for another architecture, for files
    that are missing or damaged, and if config.json and the tensors do not fit together, with the tensor, its file and
    both shapes.

        model = hybridlab.load_hf("Qwen3-0.6B")
        model(tokens).logits    # tokens (B, S), logits (B, S, V)
    """
    folder = Path(path)
    try:
        config = read_object(folder / "config.json", "configuration", ("model_type",))
    except FileNotFoundError:
        raise UserError(f"{folder}: no config.json; give a folder in the Hugging Face layout") from None
    stored = read_tensors(folder)
    shape = shape_from_hf(config, str(folder / "config.json"))
    _, layout = _layout(config, str(folder / "config.json"))
    named = _in_full(stored, layout)
    _check_depth(named, layout, shape, folder)
    structure = Structure(
        shape,
        Plan.plain(shape.layers, shape.traits.parallel),
        AttentionMap.uniform(shape.layers, shape.kv_heads, Full()),
    )
    with torch.device("meta"):
        expected = _expected(Decoder(structure), layout, named)
    _check_shapes(named, expected, layout, shape, folder)
    return Decoder.from_tensors(structure, _tensors(named, layout, shape), source=str(folder))


def _in_full(stored: Mapping[str, Stored], layout: Layout) -> dict[str, Stored]:
    """The parameters by their full names: models saved without an output head lack the first part."""
    base = layout.block_prefix.split(".")[0] + "."
    names = {name: name if name.startswith((base, *layout.outer)) else base + name for name in stored}
    return {names[name]: it for name, it in stored.items() if not names[name].endswith(layout.ignored)}


def _place(name: str, layout: Layout) -> tuple[int, str] | None:
    """Layer and name inside the block of a tensor; None if it is not one of a block."""
    if not name.startswith(layout.block_prefix):
        return None
    layer, _, inner = name.removeprefix(layout.block_prefix).partition(".")
    return (int(layer), inner) if layer.isdecimal() and str(int(layer)) == layer else None


def _check_depth(named: Mapping[str, Stored], layout: Layout, shape: Shape, folder: Path) -> None:
    """UserError if the tensors are of more or fewer layers. Checked before a model is made, as that takes memory."""
    places = (_place(name, layout) for name in named)
    depth = 1 + max((place[0] for place in places if place is not None), default=-1)
    if depth != shape.layers:
        raise UserError(
            f"{folder}/config.json: {layout.depth} is {shape.layers}, but the tensors are of {depth} layers; "
            "fetch the folder again"
        )


def _expected(model: Decoder, layout: Layout, named: Mapping[str, Stored]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that a model needs, by their names in the folder."""
    block = {ours: theirs for theirs, ours in layout.block.items()}
    # Of two names of a module, that of the folder.
    outer = {ours: theirs for theirs, ours in layout.outer.items()}
    outer |= {layout.outer[stem]: stem for name in named if (stem := name.rpartition(".")[0]) in layout.outer}
    expected = {}
    for name, parameter in model.named_parameters():
        stem, _, kind = name.rpartition(".")
        size = tuple(parameter.shape)
        if not stem.startswith("blocks."):
            expected[f"{outer[stem]}.{kind}"] = size
            continue
        layer, inner = stem.removeprefix("blocks.").split(".", 1)
        if layout.fused and inner not in block:
            size = (3 * size[0], *size[1:])
        theirs = block.get(inner, layout.fused)
        expected[f"{layout.block_prefix}{layer}.{theirs}.{kind}"] = size[::-1] if layout.transposed else size
    return expected


def _check_shapes(
    named: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], layout: Layout, shape: Shape, folder: Path
) -> None:
    """UserError for the first tensor that is missing, unknown, or of another shape."""
    for name, size in expected.items():
        if name not in named:
            raise UserError(f"{folder}: no file has the tensor {name}, which config.json asks for; fetch it again")
        found = tuple(named[name].tensor.shape)
        if found != size:
            raise UserError(
                f"{named[name].file}: {name} has shape {found}, but {size} by config.json; "
                "fetch both again, as they are of different models"
            )
    for name in sorted(named.keys() - expected.keys()):
        if not (shape.tied_embeddings and layout.outer.get(name.rpartition(".")[0]) == "head"):
            raise UserError(
                f"{named[name].file}: config.json and weights do not fit: a model of this config.json has no tensor "
                f"{name}; fetch both again"
            )


def _tensors(named: Mapping[str, Stored], layout: Layout, shape: Shape) -> Weights:
    """The tensors under our names, as fp32 copies, with fused tensors split."""
    result: Weights = {}
    for name, stored in named.items():
        stem, _, kind = name.rpartition(".")
        place = _place(stem, layout)
        if place is None:
            if not (shape.tied_embeddings and layout.outer[stem] == "head"):
                result[f"{layout.outer[stem]}.{kind}"] = stored.as_fp32(name)
            continue
        layer, inner = place
        tensor = stored.as_fp32(name)
        if layout.transposed and tensor.dim() == 2:
            tensor = tensor.t()
        if inner != layout.fused or layout.split is None:
            result[f"blocks.{layer}.{layout.block[inner]}.{kind}"] = tensor.contiguous()
            continue
        for letter, part in zip("qkv", layout.split(tensor, shape), strict=True):
            result[f"blocks.{layer}.attention.{letter}.{kind}"] = part.clone(memory_format=torch.contiguous_format)
    return result
