"""How transformers stores a model, for both directions: settings of config.json, and names of tensors. The types of
models stand in hf_types.py."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor

from hybridlab.attention.kinds import Full, Window
from hybridlab.errors import UserError
from hybridlab.models.hf_types import LAYOUTS, Config, Layout
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import EVERY_BIAS, FAMILIES, Biased, LocalRope, Shape, yarn_amplitude
from hybridlab.plan.structure import Structure

FIELDS = {field.name for field in fields(Shape)}
_IN_WINDOWS = {"full_attention": False, "sliding_attention": True}
"""transformers' kinds of layers → whether the heads of such a layer have windows."""


# ---- config.json ----


def rope_of(config: Config, layout: Layout, in_windows: bool = False) -> Mapping[str, Any]:
    """The settings of rotary positions; in a type whose layers with windows have others, of these or of the rest.
    TypeError if they are no mapping."""
    rope = config.get("rope_parameters") or {}
    if layout.local_base is not None and rope and isinstance(rope, dict):
        rope = rope.get("sliding_attention" if in_windows else "full_attention") or {}
    elif not rope and not in_windows:
        rope = config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError
    return rope


def with_local_rope(shape: Shape, config: Config, layout: Layout, attention_map: AttentionMap, origin: str) -> Shape:
    """The shape with the rotary positions of the layers with windows. The same errors as `fields_of`; UserError for
    those that are scaled in another way than the other layers'."""
    windows = windows_of(attention_map) or []
    if layout.local_base is None or not any(windows):
        return shape
    rope, (older, usual) = rope_of(config, layout, in_windows=True), layout.local_base
    base = float(rope.get("rope_theta", config.get(older, usual)))
    if (base, _scaling_of(rope, config)) == (shape.rope_base, _scaling_of(rope_of(config, layout), config)):
        return shape
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise UserError(
            f"{origin}: rotary positions of type {kind!r} in layers with windows are not supported, unless all layers "
            "have the same; use a model of type default there"
        )
    layers = tuple(layer for layer, window in enumerate(windows) if window is not None)
    return replace(shape, local_rope=LocalRope(base, layers))


def fields_of(config: Config, layout: Layout) -> dict[str, Any]:
    """The fields of `Shape` that a config says. KeyError for a setting that is missing, TypeError, ValueError,
    ZeroDivisionError or OverflowError for one that cannot be."""
    defaults = layout.defaults
    found: dict[str, Any] = {"family": layout.family, "vocab": config["vocab_size"]}
    found["tied_embeddings"] = config.get("tie_word_embeddings", defaults["tie_word_embeddings"])
    for theirs, ours in layout.settings.items():
        if ours in FIELDS:
            found[ours] = config.get(theirs, defaults[theirs]) if theirs in defaults else config[theirs]
    found["kv_heads"] = found.get("kv_heads") or found["heads"]
    found["head_width"] = found.get("head_width") or found["width"] // found["heads"]
    if layout.family == "gpt2":
        found["ffn_width"] = found["ffn_width"] or 4 * found["width"]
    if "rope_base" in found:
        rope = rope_of(config, layout)
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
    factor = float(rope["factor"])
    found = {"kind": kind, "factor": factor}
    if kind == "linear":
        return found
    found["original_positions"] = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if kind == "llama3":
        return found | {name: float(rope[name]) for name in ("low_freq_factor", "high_freq_factor")}
    # 0 and null stand for the defaults.
    found |= {name: float(rope[name]) for name in ("beta_fast", "beta_slow", "attention_factor") if rope.get(name)}
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    if above and below and "attention_factor" not in found:
        found["attention_factor"] = yarn_amplitude(factor, float(above)) / yarn_amplitude(factor, float(below))
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
        except (TypeError, ZeroDivisionError):
            raise UserError(f"{origin}: a number that describes the windows is zero or of the wrong type") from None
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


def has_its_rope(structure: Structure, layout: Layout) -> bool:
    """Whether the settings of a type can say the rotary positions of a structure."""
    shape, windows = structure.shape, windows_of(structure.map) or []
    if shape.rope_scaling is not None and shape.rope_scaling.kind not in layout.rope_types:
        return False
    local = [shape.rope_is_local(layer) for layer in range(shape.layers)]
    return not any(local) or (layout.local_base is not None and local == [bool(window) for window in windows])


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
    local = {"rope_type": "default", "rope_theta": shape.local_rope.base} if shape.local_rope else rope
    said = vars(shape) | {
        "rotary_fraction": traits.rotary_fraction,
        "parallel_residual": traits.parallel,
        "token_types": traits.token_types,
        "rope": rope,
        "rope by kind of layer": {kind: local if has else rope for kind, has in _IN_WINDOWS.items()},
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


# ---- output heads ----


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
    "gemma3": "it reads images too; save its language model alone, as Gemma3ForCausalLM",
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
