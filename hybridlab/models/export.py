"""Models as folders: model.safetensors, config.json, tokenizer.json and digests.json. No pickle files are read.

    model = hybridlab.load_checkpoint("runs/first")

A folder appears when it is complete. Its weights are read only if every file has the digest that it was written with;
folders of older versions have no digests.json, and their files are read as they are.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridlab.arguments import checked
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.errors import UserError
from hybridlab.files import (
    DIGESTS,
    damage,
    in_place_of,
    mode_of_new_files,
    new_folder,
    read_object,
    user_path,
    write_json,
    write_text,
)
from hybridlab.models.decoder import Factors, Transformer
from hybridlab.plan.structure import Structure
from hybridlab.plugins import plugin_places, plugins_in_use, require_plugins

FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""The files that every final model of a run has."""
INDEX = "model.safetensors.index.json"
"""In its place an exported model has shards, which it names."""
FORMAT = 2
"""Format of config.json. 2: the structure is one object; 1: shape, plan and map are separate keys."""


Tensors = Mapping[str, Tensor] | Path
"""Named tensors, or the safetensors file that holds them already."""


def save_tensors(tensors: Tensors, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, or give an existing one this place. OSError if that fails."""
    # The library would let nobody but its owner read it.
    mode = mode_of_new_files(path.parent)
    if isinstance(tensors, Path):
        tensors.replace(path)
        path.chmod(mode)
        return
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from None
    path.chmod(mode)


def size_of(tensors: Tensors) -> int:
    """Bytes that writing these tensors takes; none for a file that is written already."""
    if isinstance(tensors, Path):
        return 0
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def save_model(
    folder: Path,
    model: Transformer,
    lineage: dict[str, Any],
    tokenizer: str | None = None,
    plugins: Mapping[str, str] | None = None,
    weights: Tensors | None = None,
    beside: Mapping[str, str] | None = None,
) -> None:
    """Write a model folder, in place of an older one.

    tokenizer: the content of tokenizer.json. plugins: name and version of the plug-ins that the model needs; they must
    be loaded to open the folder again. weights: those of the model; by default its parameters. beside: file → content,
    what belongs beside the tokenizer.
    """
    if plugins:
        lineage = {**lineage, "plugins": dict(plugins), "plugin_places": plugin_places(plugins)}
    tensors = dict(model.named_parameters()) if weights is None else weights
    with new_folder(folder, size_of(tensors)) as partial:
        save_tensors(tensors, partial / "model.safetensors")
        write_json(partial / "config.json", config_of(model, lineage))
        if tokenizer is not None:
            write_text(partial / "tokenizer.json", tokenizer)
        for name, text in (beside or {}).items():
            write_text(partial / name, text)


def config_of(model: Transformer, lineage: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json of a model folder."""
    return {
        "model_type": "hybridlab",
        "format": FORMAT,
        "structure": model.structure.to_json(),
        "factors": factors_to_json(model.factors),
        "lineage": lineage,
    }


def plugins_of(model: Transformer) -> dict[str, str]:
    """Name and version of the plug-ins whose attention kinds a model has."""
    return plugins_in_use({(ATTENTION_KINDS.what, kind.name) for kind in model.attention_map.each_kind()})


def model_damage(folder: Path) -> str | None:
    """What is wrong with the final model of a run, in words; None if it is whole.

    A folder without digests.json is of an older version; then only its files must be there.
    """
    if (folder / DIGESTS).is_file():
        return damage(folder)
    missing = [name for name in FILES if not (folder / name).is_file()]
    return f"{missing[0]} is missing" if missing else None


@checked
def save(model: Transformer, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write a model into a folder that `load_checkpoint` reads; returns the folder.

    model, folder: what to write, and where. Weights are written in safetensors with the precision that they have, the
    structure as JSON. tokenizer: a tokenizer.json to copy beside them. A model that was saved there before is replaced.
    UserError if the folder holds anything else, or is the final model of a run.

        hybridlab.save(model.with_plan(model.plan.skip(3)), "without-layer-4")
    """
    folder = user_path(folder)
    if (folder.parent / "run.json").is_file() or (folder / "run.json").is_file():
        raise UserError(f"{folder}: this is the folder of a run; save the model in another one")
    if folder.exists() and not _is_saved_model(folder):
        raise UserError(f"{folder}: it holds something else than a saved model; choose another folder")
    try:
        text = None if tokenizer is None else user_path(tokenizer).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{tokenizer}: it cannot be read as a tokenizer.json; give the path of one") from None
    save_model(folder, model, {}, text, plugins_of(model))
    return folder


def _is_saved_model(folder: Path) -> bool:
    """Whether a folder is empty, or holds a model of `save` and nothing else."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {"."}
    if not names or not names <= {*FILES, DIGESTS}:
        return not names
    try:
        return read_object(folder / "config.json", "model").get("model_type") == "hybridlab"
    except (FileNotFoundError, UserError):
        return False


@dataclass(frozen=True)
class ModelConfig:
    """The content of a model folder's config.json. factors: those of a run that ended while heads were fading."""

    structure: Structure
    factors: Factors
    lineage: dict[str, Any]


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json of a model folder. FileNotFoundError if there is none, UserError if it cannot be used."""
    path = folder / "config.json"
    config = read_object(path, "model", ("model_type",))
    if config["model_type"] != "hybridlab" or config.get("format") not in (1, FORMAT):
        raise UserError(f"{path}: not a hybridlab model of format {FORMAT}; use load_hf for other models")
    lineage = config.get("lineage", {})
    if not isinstance(lineage, dict) or not isinstance(lineage.get("plugin_places", {}), dict):
        raise UserError(f"{path}: lineage is not what hybridlab writes there, a JSON object; restore the file")
    require_plugins(lineage.get("plugins"), lineage.get("plugin_places", {}), folder, exact=False)
    # In format 1 the parts of the structure stand beside the lineage of the weights.
    flat = {name: value for name, value in config.items() if name != "lineage"}
    try:
        structure = Structure.from_json(flat if config["format"] == 1 else config["structure"])
        factors = factors_from_json(config.get("factors", []))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError):
        raise UserError(f"{path}: the structure of this model cannot be read; restore the file") from None
    return ModelConfig(structure, factors, lineage)


def factors_to_json(factors: Factors) -> list[dict[str, Any]]:
    return [{"place": list(place), "values": values.tolist()} for place, values in factors.items()]


def factors_from_json(data: list[dict[str, Any]]) -> Factors:
    return {tuple(entry["place"]): torch.tensor(entry["values"]) for entry in data}


@checked
def load_checkpoint(path: str | Path, kernel: str = "auto") -> Transformer:
    """The final model of a run folder, of its `final` folder, or of a folder that `save` wrote, on the CPU.

    path: the folder. kernel: of its attention (auto, eager, sdpa, banded, blocks, flex, xformers, triton). UserError if
    there is no such model, if its files are damaged, or if a plug-in is not loaded that it was trained with.

        model = hybridlab.load_checkpoint("runs/first")
        model(tokens).logits    # tokens (B, S), logits (B, S, V)
    """
    folder = user_path(path)
    if not (folder / "config.json").is_file():
        folder = folder / "final"
    try:
        saved = read_model_config(folder)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no final model; give the folder of a run that has ended") from None
    require_plugins(saved.lineage.get("plugins"), saved.lineage.get("plugin_places", {}), path)
    weights = read_weights(folder)
    return Transformer.from_tensors(saved.structure, weights, kernel, saved.factors, source=str(folder))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model folder, by name. UserError if any of its files is damaged."""
    problem = damage(folder) if (folder / DIGESTS).is_file() else None
    if problem:
        raise UserError(
            f"{folder}: {problem}; restore the file, or give the command that trained this run again, which makes the "
            "final model again if the last checkpoint is still there"
        )
    return {name: tensor for _, tensors in files_of_weights(folder, "restore it") for name, tensor in tensors.items()}


def files_of_weights(folder: Path, remedy: str) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """The files of a model folder with their tensors by name: those that the index names, if it has one. UserError for
    one that is missing or cannot be read. remedy: what the error says to do with such a file."""
    for file in _named_files(folder, remedy):
        try:
            yield file, {unwrapped(name): tensor for name, tensor in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            problem = in_place_of(file) or f"the file is damaged ({error}); {remedy}"
            raise UserError(f"{file}: {problem}") from None


_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OUTER_WRAPPERS = re.compile(r"^(?:(?:module|_forward_module)\.)+")


def unwrapped(name: str) -> str:
    """The name of a tensor without what wrappers of torch put into it: torch.compile, FSDP and activation checkpointing
    anywhere, DDP and others at its beginning."""
    return _OUTER_WRAPPERS.sub("", _WRAPPERS.sub("", name))


def _named_files(folder: Path, remedy: str) -> list[Path]:
    try:
        shards = read_object(folder / INDEX, "index of shards", ("weight_map",), remedy)["weight_map"]
    except FileNotFoundError:
        # Other files may stand beside a whole model, such as adapters.
        whole = folder / "model.safetensors"
        files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
        if not files:
            raise UserError(f"{folder}: no *.safetensors file; save the weights as safetensors") from None
        return files
    names = list(shards.values()) if isinstance(shards, dict) else []
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise UserError(f"{folder / INDEX}: weight_map must give a file of this folder for each tensor; {remedy}")
    for name in sorted(set(names)):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: this shard is missing, and {INDEX} names it; {remedy}")
    return [folder / name for name in sorted(set(names))]
