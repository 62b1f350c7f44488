"""Models as folders that transformers loads: as its own class, or with the source of the model beside the weights.

    form = form_of(model)
    write_hf_folder(Path("folder"), model, form, max_positions=128)

A plain model of a family that transformers has is written as transformers' own class, by the layouts with which
huggingface.py reads (hf_types.py); with windows in some layers, as the class that stands in for it (`STAND_INS`). Every
other one gets modeling_hybridlab.py and the modules that it imports, which are those that train: as flat files whose
imports of each other are relative, because that is what transformers loads. They need no hybridlab; such a folder is
also a model folder of hybridlab, with the same tensors. An attention kind of a plug-in comes along: the file that
defines it, as it is but for those imports, and what that file imports of the plug-in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.files import json_text, new_folder, write_json, write_text
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import INDEX, config_of, plugins_of, save_tensors, size_of
from hybridlab.models.hf_types import IN_WINDOWS, LAYOUTS, OLMO_EPS, STAND_INS, Layout, windows_of
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import EVERY_BIAS, FAMILIES, ClassesOutput, Shape
from hybridlab.plan.structure import Structure

MODELLING = "modeling_hybridlab.py"
_ROOT = "hybridlab.models.modeling_hybridlab"
_KINDS = "hybridlab.attention.registry"
"""In its place an exported folder has a table of the kinds of the model: it knows no plug-ins."""
_KINDS_HERE = '''"""The attention kinds of this model, by name."""


def register_kind(kind):
    """What a plug-in calls for its kind; here the table below has it."""
    return kind


{imports}

KINDS = {{{names}}}


def kind_from_json(data):
    """A kind from {{"kind": NAME, and its fields}}."""
    return KINDS[data["kind"]](**{{name: value for name, value in data.items() if name != "kind"}})
'''
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What exported weights can be."""
_OLDEST = "5.14.0"
"""The first version of transformers that is supported."""
_TASKS = {"classes": "SequenceClassification", "spans": "QuestionAnswering"}


@dataclass(frozen=True)
class Form:
    """How a model is written. architecture: the name of its class in transformers or in the modelling file. auto:
    transformers' Auto class that loads it. reason: why it needs the modelling file; None for transformers' own class.
    """

    architecture: str
    auto: str
    reason: str | None

    @property
    def native(self) -> bool:
        return self.reason is None


def form_of(model: Transformer, pads_with_end: bool = False) -> Form:
    """How a model is written. pads_with_end: see `why_not_native`. UserError for a model that cannot be exported."""
    structure = model.structure
    if structure.map.learning:
        raise UserError("export: the masks of this model are still being learned; export the run that trains with them")
    source_files(structure)
    reason = why_not_native(structure, pads_with_end)
    if reason is None and model.factors:
        reason = "some of its heads have factors on their outputs"
    output = structure.shape.output
    task = _TASKS[output.kind] if output else "CausalLM" if structure.causal else "MaskedLM"
    native = native_class(structure) if reason is None else None
    return Form(native or f"HybridlabFor{task}", f"AutoModelFor{task}", reason)


# ---- the modules beside the weights ----


def source_files(structure: Structure) -> dict[str, str]:
    """File name → text of the modules that a model of this structure runs on, with the one that transformers loads.
    UserError for a kind of a plug-in whose source cannot stand there."""
    kinds = sorted({type(kind) for kind in structure.map.each_kind()}, key=lambda kind: kind.name)
    imports = "\n".join(f"from {kind.__module__} import {kind.__name__}" for kind in kinds)
    table = _KINDS_HERE.format(imports=imports, names=", ".join(f'"{kind.name}": {kind.__name__}' for kind in kinds))
    plugins = {kind.__module__: kind.name for kind in kinds if not _is_ours(kind.__module__)}
    texts: dict[str, str] = {}
    pending = [_ROOT]
    while pending:
        module = pending.pop()
        if _file_name(module) not in texts:
            text = table if module == _KINDS else _source(module, plugins)
            texts[_file_name(module)], imported = _with_flat_imports(text, module, plugins)
            pending += imported
    return texts


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == "hybridlab"


def _source(module: str, plugins: Mapping[str, str]) -> str:
    """The text of a module. plugins: module → kind of plug-ins."""
    spec = None if module == "__main__" else find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UserError(
            f"export: attention of kind {plugins.get(module, module)} has no Python file that could stand beside the "
            "weights; write its class into one, and load it with --plugin"
        )
    return Path(spec.origin).read_text(encoding="utf-8")


def _file_name(module: str) -> str:
    name = module.replace(".", "_")
    return MODELLING if module == _ROOT else f"{name}.py" if _is_ours(module) else f"plugin_{_stem(name)}.py"


def _stem(name: str) -> str:
    """A module's name, without the digest that the name of a plug-in's file has here."""
    return re.sub(r"^hybridlab_plugin_(.+)_[0-9a-f]{8}$", r"\1", name)


def _with_flat_imports(text: str, module: str, plugins: Mapping[str, str]) -> tuple[str, list[str]]:
    """A module with its imports of hybridlab and of its own plug-in as relative ones from flat files, and the modules
    that it imports so. plugins: module → kind of plug-ins."""
    lines, modules = text.splitlines(keepends=True), []
    for node in _imports(text):
        for name in [node] if isinstance(node, ast.ImportFrom) else node.names:
            imported = _imported(name, module)
            if imported in plugins or _is_beside(imported, module):
                if not _is_ours(module):
                    _check_import(imported, name, node.lineno, module)
                line = node.lineno - 1
                flat = _file_name(imported).removesuffix(".py")
                lines[line] = re.sub(r"\bfrom\s+[\w.]+\s+import\b", f"from .{flat} import", lines[line], count=1)
                modules.append(imported)
    return "".join(lines), modules


@lru_cache(maxsize=256)
def _imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports in the text of a module, wherever they stand."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def _imported(name: ast.ImportFrom | ast.alias, module: str) -> str:
    """The full name of what a module imports."""
    if isinstance(name, ast.alias):
        return name.name
    if name.level == 0:
        return name.module or ""
    spec = find_spec(module)
    return resolve_name("." * name.level + (name.module or ""), spec.parent if spec else None)


def _is_beside(imported: str, module: str) -> bool:
    """Whether what a module imports is to stand beside it: a module of hybridlab, or one of its own package or, for a
    file, of its folder."""
    top = imported.split(".")[0]
    if _is_ours(imported) or top == module.split(".")[0]:
        return True
    if _is_ours(module) or _stem(module) == module:
        return False
    file, top_spec = find_spec(module), find_spec(top)
    origins = None if file is None or top_spec is None else (file.origin, top_spec.origin)
    return bool(origins and origins[0] and origins[1] and Path(origins[0]).parent == Path(origins[1]).parent)


_PARTS = ("attention", "errors", "models", "plan")
"""The parts of hybridlab that an exported model runs on."""


def _check_import(imported: str, name: ast.ImportFrom | ast.alias, line: int, module: str) -> None:
    """UserError for an import in a plug-in that a flat file beside the weights cannot have."""
    spec = find_spec(module)
    where = f"export: {spec.origin if spec else module}:{line}"
    if _is_ours(imported) and imported.split(".")[1:2] and imported.split(".")[1] not in _PARTS:
        raise UserError(
            f"{where}: {imported} is no part of an exported model; put the attention kind into a file that imports "
            f"of hybridlab only {', '.join(_PARTS)}"
        )
    names = [] if isinstance(name, ast.alias) else [alias.name for alias in name.names]
    package = find_spec(imported)
    is_package = package is not None and package.submodule_search_locations is not None
    if not names or imported == "hybridlab" or (is_package and any(find_spec(f"{imported}.{each}") for each in names)):
        raise UserError(
            f"{where}: write this import as `from MODULE import NAME`, with the module that defines the name, so that "
            "the module can stand beside the weights"
        )


def write_hf_folder(
    folder: Path,
    model: Transformer,
    form: Form,
    max_positions: int,
    texts: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    lineage: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    max_shard_size: str | None = None,
    ends: Sequence[int] = (),
) -> list[str]:
    """Write a model into a folder that is new or empty; returns the names of its files. It appears when it is complete.

    max_positions: the longest sequence that the model is made for, where its positions have no table. texts: further
    files. settings: further settings of config.json, such as the ids of special tokens. lineage: what config.json says
    of the run. dtype: of the weights, a key of `DTYPES`; None leaves them. max_shard_size: of each file of weights, as
    2GB; None for one file. ends: the tokens at which generated texts end; none for that of a document alone. UserError
    if the folder holds anything, or for weights beyond the range of the dtype.
    """
    check_free(folder)
    texts, settings = dict(texts or {}), dict(settings or {})
    if form.native:
        tensors, config = native_tensors(model), native_config(model.structure, max_positions)
    else:
        tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
        config = _own_config(model, form, max_positions, dict(lineage or {}))
        texts |= source_files(model.structure)
    if dtype is not None:
        tensors = {name: _as_dtype(name, tensor, dtype) for name, tensor in tensors.items()}
    if model.structure.caches:
        ids = {name: value for name, value in settings.items() if name.endswith("_token_id")}
        ids |= {"eos_token_id": ends[0] if len(ends) == 1 else list(ends)} if ends else {}
        texts["generation_config.json"] = json_text(ids | ({} if model.structure.settled else {"use_cache": False}))
    with new_folder(folder, size_of(tensors), digests=False) as partial:
        _save_weights(partial, tensors, max_shard_size)
        stored = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        write_json(partial / "config.json", {**config, "dtype": stored, **settings})
        for name, text in texts.items():
            write_text(partial / name, text)
        return sorted(path.name for path in partial.iterdir())


def _as_dtype(name: str, tensor: Tensor, dtype: str) -> Tensor:
    converted = tensor.to(DTYPES[dtype])
    if not bool(converted.isfinite().all()) and bool(tensor.isfinite().all()):
        raise UserError(f"dtype {dtype}: numbers of {name} are beyond its range; export as bf16 or fp32")
    return converted


def _save_weights(folder: Path, tensors: Mapping[str, Tensor], max_shard_size: str | None) -> None:
    """model.safetensors, or shards of it with their index, as transformers names them. A larger tensor has a shard of
    its own."""
    # Imported here, because it takes long.
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=max_shard_size or size_of(tensors) + 1)
    for file, names in split.filename_to_tensors.items():
        save_tensors({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    if split.is_sharded:
        write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})


def check_free(folder: Path) -> None:
    """UserError unless there is nothing under this name, or an empty folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists():
        what = "it is a folder with files" if folder.is_dir() else "it is a file"
        raise UserError(f"{folder}: {what}, which an export does not overwrite; name a new folder")


def _own_config(model: Transformer, form: Form, max_positions: int, lineage: dict[str, Any]) -> dict[str, Any]:
    """config.json for the modelling file: that of a model folder of hybridlab, with what transformers looks for."""
    shape, plugins = model.shape, plugins_of(model)
    return {
        **config_of(model, lineage | ({"plugins": plugins} if plugins else {})),
        "architectures": [form.architecture],
        "auto_map": {
            "AutoConfig": f"{MODELLING.removesuffix('.py')}.HybridlabConfig",
            "AutoModel": f"{MODELLING.removesuffix('.py')}.HybridlabModel",
            form.auto: f"{MODELLING.removesuffix('.py')}.{form.architecture}",
        },
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.max_positions or max_positions,
        "tie_word_embeddings": shape.gives_tokens and shape.tied_embeddings,
        **labels_of(shape),
    }


# ---- transformers' own classes ----


def model_type(structure: Structure) -> str:
    """transformers' `model_type` that fits a structure best; see `why_not_native`."""
    plain = _plain_type(structure.shape)
    types = (plain, *STAND_INS.get(plain, ()))
    return next((each for each in types if _has_its_windows(structure.map, LAYOUTS[each])), types[-1])


def _plain_type(shape: Shape) -> str:
    """The `model_type` of a shape with full attention in all layers."""
    if shape.family == "llama":
        if shape.traits.norm == "nonparametric-layernorm":
            return "olmo"
        if set(shape.traits.biases) == {"qkv"}:
            return "qwen2"
        return "phi3" if shape.rotary_width < shape.head_width else "llama"
    return {"neox": "gpt_neox", "gemma3": "gemma3_text"}.get(shape.family, shape.family)


def native_class(structure: Structure) -> str | None:
    """The name of transformers' class for this structure and its output head; None if there is none."""
    layout, output = LAYOUTS[model_type(structure)], structure.shape.output
    if output is None:
        return layout.name + layout.of_tokens
    return f"{layout.name}For{_TASKS[output.kind]}" if output.kind in layout.heads else None


def why_not_native(structure: Structure, pads_with_end: bool = False) -> str | None:
    """What transformers' class of the family cannot express, in words; None if it is the same model.

    pads_with_end: padding is the token that ends a document, so that a class that looks for padding finds a wrong end.
    """
    shape, traits, theirs = structure.shape, structure.shape.traits, model_type(structure)
    layout, classes = LAYOUTS[theirs], isinstance(shape.output, ClassesOutput)
    windows = windows_of(structure.map)
    widths = set(windows or ()) - {None}
    # Types whose heads are as many as wanted rotate all of their channels.
    own_heads = "kv_heads" in layout.settings.values()
    same_norm = shape.norm_eps == OLMO_EPS if theirs == "olmo" else traits.norm == FAMILIES[shape.family].norm
    reasons = {
        "its plan is more than every layer once": structure.plan != Plan.plain(shape.layers, traits.parallel),
        "the heads of one layer mix tokens in different ways": any(len(set(row)) > 1 for row in structure.map.layers),
        "its heads mix tokens in other ways than by full attention and windows": windows is None,
        f"{theirs} has no windows": bool(widths) and layout.windowed is None,
        f"its layers have windows of several widths, and those of {theirs} one width": len(widths) > 1,
        f"{theirs} has windows in all layers or in none": not _has_its_windows(structure.map, layout),
        # A slice of the last 0 keys, which is all of them; seen with transformers 5.24.
        "the cache of transformers keeps too many keys for a window of one token": 1 in widths,
        "its norms are scaled by depth": shape.norm_scaling is not None,
        f"{theirs} has another norm": not same_norm,
        f"{theirs} has biases in other places": not _has_its_biases(shape, layout),
        f"{theirs} has blocks of another order": theirs != "gpt_neox" and traits.parallel,
        f"{theirs} rotates all channels of a head": (
            own_heads and theirs != "phi3" and shape.rotary_width != shape.head_width
        ),
        f"{theirs} has rotary positions of other bases or scalings": not _has_its_rope(structure, layout),
        f"{theirs} has a KV head for each query head": not own_heads and shape.heads != shape.kv_heads,
        f"{theirs} has heads that are as wide together as the model": (
            theirs in ("olmo", "gpt_neox", "gpt2", "bert") and shape.heads * shape.head_width != shape.width
        ),
        f"{theirs} neither caps nor rescales scores or logits": any(
            getattr(shape, name) is not None and name not in layout.settings.values()
            for name in ("score_width", "score_cap", "logit_cap")
        ),
        f"{theirs} has a width that is a multiple of its heads": (
            theirs in ("llama", "gemma2", "gemma3_text") and shape.width % shape.heads != 0
        ),
        f"{theirs} has no class with this output head": native_class(structure) is None,
        "the class finds the last token of a row by its padding, which here is the token that ends a document": (
            classes and traits.causal and pads_with_end
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _has_its_biases(shape: Shape, layout: Layout) -> bool:
    """Whether the settings of a type can say which linear layers of a shape have a bias."""
    stated = {(layout.biases.get(name, True), name in shape.traits.biases) for name in EVERY_BIAS}
    return all(has == where for where, has in stated if isinstance(where, bool)) and len(dict(stated)) == len(stated)


def _has_its_windows(attention_map: AttentionMap, layout: Layout) -> bool:
    """Whether the settings of a type can say the windows of a map."""
    windows = windows_of(attention_map)
    if windows is None or layout.windowed is None:
        return windows is not None and not any(windows)
    return len(set(windows) - {None}) <= 1 and ("layer_types" in layout.settings or len(set(windows)) == 1)


def _has_its_rope(structure: Structure, layout: Layout) -> bool:
    """Whether the settings of a type can say the rotary positions of a structure."""
    shape, windows = structure.shape, windows_of(structure.map) or []
    if shape.rope_scaling is not None and shape.rope_scaling.kind not in layout.rope_types:
        return False
    local = [shape.rope_is_local(layer) for layer in range(shape.layers)]
    return not any(local) or (layout.local_base is not None and local == [bool(window) for window in windows])


def labels_of(shape: Shape, names: Sequence[str] = ()) -> dict[str, Any]:
    """The names of the classes in config.json, by default numbered; empty for a head that gives no classes."""
    if not isinstance(shape.output, ClassesOutput):
        return {}
    names = names or [f"LABEL_{number}" for number in range(shape.output.labels)]
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


def _embedding_factor(shape: Shape, layout: Layout) -> float:
    """The factor on the embeddings that the class of a type does not have."""
    return shape.embedding_scale / layout.embedding_scale(shape.width)


def _tied(shape: Shape, layout: Layout) -> bool:
    """Whether the exported output head uses the table of the embedding."""
    return shape.tied_embeddings and _embedding_factor(shape, layout) == 1.0


def native_config(structure: Structure, max_positions: int) -> dict[str, Any]:
    """The content of config.json, without the ids of special tokens.

    max_positions: the longest sequence that it is made for, of a family whose positions have no table. With a factor on
    the embeddings, which these classes do not have, the factor goes into the embedding and the head has its own table.
    """
    shape, theirs = structure.shape, model_type(structure)
    return {
        "model_type": theirs,
        "architectures": [native_class(structure)],
        # Without it, transformers takes a large tokenizer beside a ministral for one of Mistral's that has an error.
        "transformers_version": _OLDEST,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": _tied(shape, LAYOUTS[theirs]),
        **labels_of(shape),
        **_settings_of(structure, LAYOUTS[theirs], max_positions),
    }


def _settings_of(structure: Structure, layout: Layout, max_positions: int) -> dict[str, Any]:
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
    facts = vars(shape) | {
        "rotary_fraction": traits.rotary_fraction,
        "parallel_residual": traits.parallel,
        "token_types": traits.token_types,
        "rope": rope,
        "rope by kind of layer": {kind: local if has else rope for kind, has in IN_WINDOWS.items()},
        "bias of the output": "output" in traits.biases,
        "bias of the mlp": "mlp" in traits.biases,
        "longest": max_positions,
        "no dropout": 0.0,
        "no padding": None,
        "score_width": shape.score_width or shape.head_width,
        "window": window,
        "window or length": window or max_positions,
        "has windows": window is not None,
        "kinds of layers": [next(k for k, has in IN_WINDOWS.items() if has == bool(window)) for window in windows],
    }
    supported = layout.supported
    return {
        theirs: supported[theirs][0] if theirs in supported else facts[ours] for theirs, ours in layout.settings.items()
    }


def native_tensors(model: Transformer) -> dict[str, Tensor]:
    """The parameters by transformers' names; fused where transformers fuses them. They may share memory with the
    model's own."""
    shape = model.shape
    layout = _layout_for(shape, model_type(model.structure))
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    factor, heads = _embedding_factor(shape, layout), shape.heads if layout.by_head else 1
    if factor != 1.0:
        table = parameters["embedding.weight"]
        if shape.output is None and shape.tied_embeddings:
            parameters["head.weight"] = table
        parameters["embedding.weight"] = table * factor
    tensors: dict[str, Tensor] = {}
    for name, ours in layout.stored_names(parameters).items():
        parts = [parameters[each] for each in ours]
        tensor = parts[0]
        if len(parts) > 1:  # head by head, or one after the other
            tensor = torch.cat([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 1)
        tensor = tensor - 1 if layout.centres(name, tensor) else tensor
        tensors[name] = (tensor.t() if layout.transposes(name, tensor) else tensor).contiguous()
    bias = "cls.predictions.decoder.bias"
    if bias in tensors:
        # A bias of its own beside the decoder's: one of both is read, depending on whether tables are tied.
        tensors["cls.predictions.bias"] = tensors[bias].clone()
        if _tied(shape, layout):
            del tensors[bias]
    return tensors


def _layout_for(shape: Shape, theirs: str) -> Layout:
    """The layout of a type, with the output head of a shape."""
    layout = LAYOUTS[theirs]
    if shape.output is None:
        return layout
    spans = shape.output.kind == "spans"
    return layout.with_head("qa_outputs" if spans else "score" if shape.traits.causal else "classifier", spans)
