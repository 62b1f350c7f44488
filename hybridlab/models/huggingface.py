"""Import from folders in the Hugging Face layout (config.json and safetensors); see `LAYOUTS` in hf_types.py.

    model = hybridlab.load_hf("path/to/folder")

Only safetensors and GGUF files (gguf.py) are read, no pickle files. A model with a feature that hybridlab lacks is an
error that names it. Of a model of the hub, config.json, safetensors and the files of the tokenizer, or the GGUF file
that is named, are fetched into the hub's own cache; a second call finds them there, also without a network.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridlab.arguments import checked
from hybridlab.attention.kinds import Full, Window
from hybridlab.config.loading import Layer, check
from hybridlab.data.hub_access import without_hub
from hybridlab.errors import UserError, first_line
from hybridlab.files import read_object, user_path
from hybridlab.models.decoder import Transformer, make_model
from hybridlab.models.export import INDEX, files_of_weights, load_checkpoint
from hybridlab.models.gguf import converted, gguf_in
from hybridlab.models.hf_types import IN_WINDOWS, LAYOUTS, OF_POOLER, POOLER, Config, Layout, windows_of
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import EVERY_BIAS, FAMILIES, Biased, LocalRope, Shape, yarn_amplitude
from hybridlab.plan.structure import Structure

_FIELDS = {field.name for field in fields(Shape)}
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Stored:
    """A tensor as it is stored, and its file."""

    file: Path
    tensor: Tensor

    def as_fp32(self, name: str) -> Tensor:
        """A contiguous copy. UserError unless all of it are finite floating-point numbers. name: for the error."""
        if self.tensor.dtype not in _DTYPES:
            raise UserError(
                f"{self.file}: {name} is stored as {str(self.tensor.dtype).removeprefix('torch.')}; "
                "save the weights as float32, bfloat16 or float16"
            )
        copy = self.tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        if not bool(copy.isfinite().all()):
            raise UserError(f"{self.file}: {name} contains NaN or infinity; fetch the file again")
        return copy


@contextmanager
def _numbers_in(origin: str) -> Iterator[None]:
    """A context in which a setting that is no number where it must be one is a UserError."""
    try:
        yield
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise UserError(f"{origin}: a number that describes the shape is zero or of the wrong type") from None


def _check_settings(config: Config, layout: Layout, origin: str) -> None:
    """UserError, with its name, for a setting of the shape that is no number above 0, or neither true nor false where
    it must be. A null stands for the usual value where transformers reads it so."""
    flags = {flag for flag in layout.biases.values() if isinstance(flag, str)}
    flags |= {name for name, usual in layout.defaults.items() if isinstance(usual, bool)}
    shape = {name: ours for name, ours in layout.settings.items() if ours in _FIELDS}
    for name in ("vocab_size", *flags, *shape):
        if name not in config or name in layout.supported:
            continue
        value, may_be_null = config[name], name in layout.defaults and shape.get(name) != "norm_eps"
        if name in flags:
            required = None if isinstance(value, bool) else "true or false"
        elif value is None and may_be_null:
            required = None
        else:
            number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
            required = None if number else "a number above 0"
        if required is not None:
            instead = "; write one, or leave it out for the usual one" if name in layout.defaults else ""
            instead = "; write false, or leave it out for the usual value" if name in flags else instead
            raise UserError(f"{origin}: {name} = {json.dumps(value)[:60]}: it must be {required}{instead}")


def shape_from_hf(config: Config, origin: str = "config.json", output: Mapping[str, Any] | None = None) -> Shape:
    """The shape of a transformers configuration. UserError if it asks for what hybridlab cannot run.

    origin: the file of the configuration, for messages. output: the shape's output head, by default one for tokens.
    """
    layout = _layout_of(config, origin)
    for name, values in layout.supported.items():
        if config.get(name, values[0]) not in values:
            raise UserError(f"{origin}: {name} = {config[name]!r} is not supported; it must be {values[0]!r}")
    _check_settings(config, layout, origin)
    with _numbers_in(origin):
        rope = _rope_of(config, layout)
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type not in layout.rope_types:
            raise UserError(
                f"{origin}: rotary positions of type {rope_type!r} are not supported; use a model of type "
                f"{', '.join(layout.rope_types)}"
            )
        try:
            fields = {**_fields_of(config, layout), "output": output}
        except KeyError as missing:
            raise UserError(f"{origin}: {missing} is missing") from None
    return check(Shape, Layer(fields, {(): origin}))


@checked
def load_hf(path_or_id: str | Path) -> Transformer:
    """A model in the Hugging Face layout, of a type in `LAYOUTS`, on the CPU in fp32.

    path_or_id: a folder with config.json and model.safetensors, or its shards; a GGUF file, or a folder with one; or a
    model of the hub, `hub:OWNER/NAME` (also without `hub:` where there is no folder OWNER) or
    `hub:OWNER/NAME/FILE.gguf`, which is fetched into the hub's cache. Its output head is the
    one that the tensors are of: tokens, classes of a sequence, or spans; its windows become the map. A folder that
    `export_hf` wrote is read in either form. UserError for another architecture, for a hub that cannot be reached, for
    files that are missing or damaged, and if config.json and the tensors do not fit together, with the tensor, its file
    and both shapes. As in transformers, a head of its own is in use, with a warning, where config.json ties it to the
    embedding.

        model = hybridlab.load_hf("hub:Qwen/Qwen3-0.6B")
        model(tokens).logits    # tokens (B, S), logits (B, S, V)
    """
    hub = isinstance(path_or_id, str) and is_hub_name(path_or_id)
    path = hub_path(str(path_or_id)) if hub else user_path(path_or_id)
    file = gguf_in(path)
    folder = path if file is None else converted(file)
    require_no_adapter(folder)
    try:
        config = read_object(folder / "config.json", "configuration", ("model_type",))
    except FileNotFoundError:
        raise UserError(f"{folder}: no config.json; give a folder in the Hugging Face layout") from None
    if config["model_type"] == "hybridlab":
        return load_checkpoint(folder)
    files = files_of_weights(folder, "fetch it again")
    stored = {name: Stored(file, tensor) for file, tensors in files for name, tensor in tensors.items()}
    origin = str(folder / "config.json")
    layout, kind = _found_head(_layout_of(config, origin), stored, origin)
    by_name = _in_full(stored, layout)
    shape = _untied(shape_from_hf(config, origin, _output(by_name, layout, kind)), by_name, layout, origin)
    _check_depth(by_name, layout, shape, folder)
    attention_map = _map_of(config, layout, shape, origin)
    with _numbers_in(origin):
        shape = _with_local_rope(shape, config, layout, attention_map, origin)
    structure = Structure(shape, Plan.plain(shape.layers, shape.traits.parallel), attention_map)
    with torch.device("meta"):
        parameters = dict(make_model(structure).named_parameters())
    names = layout.stored_names(parameters, by_name)
    expected = {name: _size([parameters[each] for each in ours], name, layout) for name, ours in names.items()}
    _check_shapes(by_name, expected, layout, shape, folder)
    tensors: dict[str, Tensor] = {}
    for name, stored_tensor in by_name.items():
        if name in names:
            tensor = stored_tensor.as_fp32(name)
            tensor = tensor + 1 if layout.centres(name, tensor) else tensor
            rows = {ours: len(parameters[ours]) for ours in names[name]}
            tensors |= _own(tensor.t() if layout.transposes(name, tensor) else tensor, rows, layout, shape)
    return Transformer.from_tensors(structure, tensors, source=str(folder))


def require_no_adapter(folder: Path) -> None:
    """UserError for a folder that holds a PEFT adapter and not the model that it belongs to."""
    try:
        settings = read_object(folder / "adapter_config.json", "configuration of an adapter")
    except FileNotFoundError:
        return
    if any(folder.glob("model*.safetensors")):
        return  # the adapter stands beside a whole model
    base = settings.get("base_model_name_or_path")
    code = (
        f"from peft import AutoPeftModel{_PEFT.get(str(settings.get('task_type')), 'ForCausalLM')} as A; "
        f"A.from_pretrained('{folder}').merge_and_unload().save_pretrained('merged')"
    )
    raise UserError(
        f"{folder}: this is a PEFT adapter of the model {base or 'that its settings do not name'}, without "
        f"that model's weights; merge them with `python -c \"{code}\"`, copy the model's tokenizer.json to merged, and "
        "give that folder"
    )


_PEFT = {"SEQ_CLS": "ForSequenceClassification", "QUESTION_ANS": "ForQuestionAnswering"}
"""The tasks of PEFT whose class is another than that of a language model → the end of its name."""


def _size(parts: list[Tensor], name: str, layout: Layout) -> tuple[int, ...]:
    """The shape of a tensor in the folder that holds these parameters."""
    size = (sum(len(part) for part in parts), *parts[0].shape[1:])
    return size[::-1] if layout.transposes(name, parts[0]) else size


def _own(tensor: Tensor, rows: dict[str, int], layout: Layout, shape: Shape) -> dict[str, Tensor]:
    """The parameters that a tensor of the folder holds. rows: their names, and how many rows each has."""
    if len(rows) == 1:
        return {name: tensor.contiguous() for name in rows}
    # Head by head, or one after the other; each has memory of its own.
    heads, own = shape.heads if layout.by_head else 1, torch.contiguous_format
    parts = tensor.unflatten(0, (heads, -1)).split([count // heads for count in rows.values()], dim=1)
    return {name: part.flatten(0, 1).clone(memory_format=own) for name, part in zip(rows, parts, strict=True)}


def _output(by_name: Mapping[str, Stored], layout: Layout, kind: str | None) -> dict[str, Any] | None:
    """The setting of the output head; the rows of a classifier are its labels."""
    if kind != "classes":
        return None if kind is None else {"kind": kind}
    module = next(theirs for theirs, ours in layout.outer.items() if ours == "head.linear")
    return {"kind": kind, "labels": len(by_name[f"{module}.weight"].tensor)}


def _untied(shape: Shape, by_name: Mapping[str, Stored], layout: Layout, origin: str) -> Shape:
    """The shape with an output head of its own if config.json ties it and the tensors have one that is not the
    embedding, with a warning. UserError if a model of the family cannot have one."""
    for name, stored in by_name.items():
        if not _tied(name, layout, shape):
            continue
        table = next(theirs for theirs, ours in layout.outer.items() if ours == "embedding")
        embedding = by_name.get(f"{table}.weight")
        if embedding is None or torch.equal(embedding.tensor.float(), stored.tensor.float()):
            continue
        warnings.warn(
            f"{origin}: it ties the output head to the embedding, but {stored.file.name} has another {name}, which is "
            "used; set tie_word_embeddings to false there",
            stacklevel=3,
        )
        fields = shape.to_json() | {"tied_embeddings": False}
        return check(Shape, Layer(fields, {(): origin}))
    return shape


def _in_full(stored: Mapping[str, Stored], layout: Layout) -> dict[str, Stored]:
    """The parameters by their full names: models saved without an output head lack the first part."""
    base = layout.base
    prefixes = (base, *layout.outer, *layout.renamed, *layout.ignored)
    full = {name if name.startswith(prefixes) else base + name: it for name, it in stored.items()}
    usual = dict[str, Stored]()
    for name, it in full.items():
        old = next((old for old in layout.renamed if name.endswith(old)), "")
        usual[name.removesuffix(old) + layout.renamed.get(old, "")] = it
    # Where a folder has a tensor by both names, the usual one is in use.
    merged = usual | {name: full[name] for name in usual.keys() & full.keys()}
    return {name: it for name, it in merged.items() if not name.endswith(layout.ignored)}


def _check_depth(by_name: Mapping[str, Stored], layout: Layout, shape: Shape, folder: Path) -> None:
    """UserError if the tensors are of more or fewer layers. Checked before a model is made, as that takes memory."""
    layers = (re.match(rf"{re.escape(layout.block_prefix)}(0|[1-9][0-9]*)(\.|$)", name) for name in by_name)
    depth = 1 + max((int(layer[1]) for layer in layers if layer), default=-1)
    if depth != shape.layers:
        raise UserError(
            f"{folder}/config.json: {layout.depth} is {shape.layers}, but the tensors are of {depth} layers; "
            "fetch the folder again"
        )


def _check_shapes(
    by_name: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]], layout: Layout, shape: Shape, folder: Path
) -> None:
    """UserError for the first tensor that is missing, unknown, or of another shape."""
    for name, size in expected.items():
        if name not in by_name:
            raise UserError(f"{folder}: no file has the tensor {name}, which config.json asks for; fetch it again")
        actual = tuple(by_name[name].tensor.shape)
        if actual != size:
            raise UserError(
                f"{by_name[name].file}: {name} has shape {actual}, but {size} by config.json; "
                "fetch both again, as they are of different models"
            )
    for name in sorted(by_name.keys() - expected.keys()):
        if not _tied(name, layout, shape):
            raise UserError(
                f"{by_name[name].file}: config.json and weights do not fit: a model of this config.json has no tensor "
                f"{name}; fetch both again"
            )


def _tied(name: str, layout: Layout, shape: Shape) -> bool:
    """Whether a tensor is the output head's copy of the embedding."""
    stem, _, kind = name.rpartition(".")
    return shape.tied_embeddings and kind == "weight" and layout.outer.get(stem) == "head"


# ---- config.json ----


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


def _layout_of(config: Config, origin: str) -> Layout:
    """The layout of a config. UserError for a type that is not supported."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        why = f" ({_OTHERS[kind]})" if isinstance(kind, str) and kind in _OTHERS else ""
        raise UserError(f"{origin}: model_type {kind!r} is not supported{why}; it must be one of {', '.join(LAYOUTS)}")
    return LAYOUTS[kind]


def _rope_of(config: Config, layout: Layout, in_windows: bool = False) -> Mapping[str, Any]:
    """The settings of rotary positions; in a type whose layers with windows have others, of these or of the rest.
    TypeError if they are no mapping."""
    rope, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if layout.local_base is None:
        rope = scaling or rope
    elif isinstance(rope, dict):
        rope = rope.get("sliding_attention" if in_windows else "full_attention") or {}
        # As in transformers, the older setting is for the layers without windows, and goes over the newer one.
        if scaling and not in_windows and isinstance(rope, dict):
            rope = {**rope, **scaling}
    if not isinstance(rope, dict):
        raise TypeError
    return rope


def _with_local_rope(shape: Shape, config: Config, layout: Layout, attention_map: AttentionMap, origin: str) -> Shape:
    """The shape with the rotary positions of the layers with windows. The same errors as `_fields_of`; UserError for
    those that are scaled in another way than the other layers'."""
    windows = windows_of(attention_map) or []
    if layout.local_base is None or not any(windows):
        return shape
    rope, (older, usual) = _rope_of(config, layout, in_windows=True), layout.local_base
    base = float(rope.get("rope_theta", config.get(older, usual)))
    scaling, of_others = (_scaling_of(each, config, layout) for each in (rope, _rope_of(config, layout)))
    if (base, scaling) == (shape.rope_base, of_others):
        return shape
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise UserError(
            f"{origin}: rotary positions of type {kind!r} in layers with windows are not supported, unless all layers "
            "have the same; use a model of type default there"
        )
    layers = tuple(layer for layer, window in enumerate(windows) if window is not None)
    return replace(shape, local_rope=LocalRope(base, layers))


def _fields_of(config: Config, layout: Layout) -> dict[str, Any]:
    """The fields of `Shape` that a config says. KeyError for a setting that is missing, TypeError, ValueError,
    ZeroDivisionError or OverflowError for one that cannot be."""
    defaults = layout.defaults
    fields: dict[str, Any] = {"family": layout.family, "vocab": config["vocab_size"]}
    fields["tied_embeddings"] = config.get("tie_word_embeddings", defaults["tie_word_embeddings"])
    for theirs, ours in layout.settings.items():
        if ours in _FIELDS:
            fields[ours] = config.get(theirs, defaults[theirs]) if theirs in defaults else config[theirs]
    fields["kv_heads"] = fields.get("kv_heads") or fields["heads"]
    fields["head_width"] = fields.get("head_width") or fields["width"] // fields["heads"]
    if layout.family == "gpt2":
        fields["ffn_width"] = fields["ffn_width"] or 4 * fields["width"]
    if "rope_base" in fields:
        rope = _rope_of(config, layout)
        fields["rope_base"] = float(rope.get("rope_theta") or fields["rope_base"])
        fields["rope_scaling"] = _scaling_of(rope, config, layout)
        if "rotary_fraction" in fields:
            fields["rotary_fraction"] = rope.get("partial_rotary_factor") or fields["rotary_fraction"]
            if fields["rotary_fraction"] == 1 == FAMILIES[layout.family].rotary_fraction:
                del fields["rotary_fraction"]
    if fields.get("score_width") == fields["head_width"]:
        del fields["score_width"]
    fields["embedding_scale"] = layout.embedding_scale(fields["width"])
    return {**fields, "biases": _biases_of(config, layout), **layout.always}


def _scaling_of(rope: Mapping[str, Any], config: Config, layout: Layout) -> dict[str, Any] | None:
    """The scaling of rotary frequencies, for the types that hybridlab can run."""
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in ("linear", "llama3", "yarn"):
        return None
    factor = float(rope["factor"])
    scaling = {"kind": kind, "factor": factor}
    if kind == "linear":
        return scaling
    name = "original_max_position_embeddings"
    # transformers takes the one outside first, where all layers have the same positions.
    outside = config.get(name) if layout.local_base is None else None
    scaling["original_positions"] = outside or rope.get(name) or config["max_position_embeddings"]
    if kind == "llama3":
        return scaling | {name: float(rope[name]) for name in ("low_freq_factor", "high_freq_factor")}
    # 0 and null stand for the defaults.
    scaling |= {name: float(rope[name]) for name in ("beta_fast", "beta_slow", "attention_factor") if rope.get(name)}
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    if above and below and "attention_factor" not in scaling:
        scaling["attention_factor"] = yarn_amplitude(factor, float(above)) / yarn_amplitude(factor, float(below))
    return scaling | {"truncate": rope.get("truncate", True)}


def _biases_of(config: Config, layout: Layout) -> list[Biased] | None:
    """The linear layers that have a bias, None if they are those of the family."""
    usual, biased = FAMILIES[layout.family].biases, []
    for name in EVERY_BIAS:
        stated = layout.biases.get(name, True)
        value = config.get(stated, name in usual) if isinstance(stated, str) else stated
        if not isinstance(value, bool):
            raise TypeError
        biased += [name] if value else []
    return None if tuple(biased) == usual else biased


def _map_of(config: Config, layout: Layout, shape: Shape, origin: str) -> AttentionMap:
    """The windows of a config as a map. UserError for one that hybridlab cannot run."""
    windows: list[int | None] = [None] * shape.layers
    if layout.windowed is not None:
        width = config.get("sliding_window", layout.defaults["sliding_window"])
        if "use_sliding_window" in layout.settings and not config.get("use_sliding_window", False):
            width = None
        types = config.get("layer_types") if "layer_types" in layout.settings else None
        try:
            chosen = (
                layout.windowed(config, shape.layers, width) if types is None else _chosen(types, shape.layers, origin)
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
        if not isinstance(kind, str) or kind not in IN_WINDOWS:
            raise UserError(
                f"{origin}: layers of kind {kind!r} in layer_types are not supported; use a model with "
                f"{' and '.join(IN_WINDOWS)} only"
            )
    return [IN_WINDOWS[kind] for kind in layer_types]


# ---- output heads, and tensors that hold several of ours ----


_HEADS = {"score": "classes", "classifier": "classes", "qa_outputs": "spans"}
"""Module that gives what an output head gives → its kind; without one of them, a model gives tokens."""


def _found_head(layout: Layout, names: Collection[str], origin: str) -> tuple[Layout, str | None]:
    """The layout with the output head that a folder's tensors have, and its kind; None for one that gives tokens.

    UserError for a classifier of tokens, which has no pooler, and for an encoder without a head.
    """
    modules = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    head = next((module for module in _HEADS if module in modules), None)
    if head is None:
        dense = next((theirs for theirs, ours in layout.outer.items() if ours == "head.dense"), None)
        if dense is not None and dense not in modules:
            raise UserError(
                f"{origin}: the tensors are of a model without an output head ({dense} is missing); save one that has "
                "it, such as BertForMaskedLM"
            )
        return replace(layout, ignored=(*layout.ignored, *OF_POOLER)), None
    if head == "classifier" and POOLER not in modules:
        raise UserError(
            f"{origin}: a classifier of single tokens is not supported; use a model for sequence classification, "
            "multiple choice, question answering or masked tokens"
        )
    of_spans = any(name.startswith(f"{layout.spans_prefix}.") for name in names)
    return layout.with_head(head, of_spans), _HEADS[head]


# ---- the hub: hub:OWNER/NAME, or OWNER/NAME where no folder of that name is, or hub:OWNER/NAME/FILE.gguf; with
# @REVISION, one version of it ----


HUB = "hub:"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_GGUF = re.compile(rf"({_HUB_NAME.pattern})/(.+\.gguf)")
_FETCHED = [
    *("config.json", "generation_config.json", "model.safetensors", INDEX),
    *("model-*-of-*.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "chat_template.jinja",
]


def is_hub_name(reference: str) -> bool:
    """Whether a reference names a model of the hub: hub:OWNER/NAME, or OWNER/NAME where there is no folder OWNER.

    RUN/best and RUN/final are models of a run; a model of the hub with such a name needs `hub:`.
    """
    if reference.startswith(HUB):
        return True
    owner, _, name = reference.partition("/")
    return _HUB_NAME.fullmatch(reference) is not None and name not in ("best", "final") and not Path(owner).exists()


def hub_revision(path: str) -> str:
    """The commit that a folder or file of the hub's cache is of: …/snapshots/COMMIT, and what is below it."""
    return path.rpartition("/snapshots/")[2].partition("/")[0]


def hub_path(reference: str) -> Path:
    """The folder of the hub's cache with a model's files, or the GGUF file there that is named, after fetching those
    that are missing.

    UserError if there is no such model or file, if its terms were not accepted, and if the hub cannot be reached and
    the files are not in the cache.
    """
    from huggingface_hub import errors, snapshot_download

    name, _, revision = reference.removeprefix(HUB).partition("@")
    where = f"{HUB}{name}" if reference.startswith(HUB) else f"{name}: there is no such folder; hub:{name}"
    name, file = gguf.groups() if (gguf := _HUB_GGUF.fullmatch(name)) else (name, None)
    if not _HUB_NAME.fullmatch(name):
        raise UserError(f"{where}: a model of the hub is called OWNER/NAME, as in hub:EleutherAI/pythia-70m")
    try:
        with without_hub(wanted=False):
            patterns = _FETCHED if file is None else [file]
            folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except errors.GatedRepoError:
        raise UserError(
            f"{where}: this model is gated; accept its terms at https://huggingface.co/{name}, then log in with "
            "`hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{where}: this model has no revision {revision!r}; leave it out for the newest") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError(
            f"{where}: the hub has no such model that can be read; check the name, or log in with `hf auth login` if "
            "it is private"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise UserError(
            f"{where}: the hub cannot be reached, and this model is not in its cache; connect, or give a folder"
        ) from None
    except Exception as error:  # the client passes on the errors of the libraries that it uses
        raise UserError(f"{where}: it cannot be fetched ({first_line(error)}); try again, or give a folder") from None
    if file is None:
        return folder
    if not (folder / file).is_file():
        raise UserError(
            f"{where}: the model has no such file, or it is not in the hub's cache; see the files at "
            f"https://huggingface.co/{name}/tree/main"
        )
    return folder / file
