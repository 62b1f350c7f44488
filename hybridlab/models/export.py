"""Models as folders: model.safetensors, config.json and tokenizer.json. No pickle files are read.

model = hybridlab.load_checkpoint("runs/first")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json
from hybridlab.models.decoder import Decoder, Factors
from hybridlab.plan.structure import Structure

FORMAT = 2
"""Format of config.json. 2: the structure is one object; 1: shape, plan and map are separate keys."""


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file and flush it to disk."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def save_model(folder: Path, model: Decoder, lineage: dict[str, Any]) -> None:
    """Write a model folder. config.json is written last, so that an incomplete folder has none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    save_tensors(dict(model.named_parameters()), folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {
            "model_type": "hybridlab",
            "format": FORMAT,
            "structure": model.structure.to_json(),
            "factors": [{"place": list(place), "values": f.tolist()} for place, f in model.factors.items()],
            "lineage": lineage,
        },
    )


@dataclass(frozen=True)
class SavedModel:
    """The content of a model folder's config.json. factors: those of a run that ended while heads were fading."""

    structure: Structure
    factors: Factors
    lineage: dict[str, Any]


def read_model_config(folder: Path) -> SavedModel:
    """Read config.json of a model folder. FileNotFoundError if there is none, UserError if it cannot be used."""
    path = folder / "config.json"
    config = read_object(path, "model", ("model_type",))
    if config["model_type"] != "hybridlab" or config.get("format") not in (1, FORMAT):
        raise UserError(f"{path}: not a hybridlab model of format {FORMAT}; use load_hf for other models")
    try:
        structure = Structure.from_json(config if config["format"] == 1 else config["structure"])
        factors = {tuple(f["place"]): torch.tensor(f["values"]) for f in config.get("factors", [])}
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: the structure of this model cannot be read; restore the file") from None
    return SavedModel(structure, factors, config.get("lineage", {}))


def load_checkpoint(path: str | Path, kernel: str = "auto") -> Decoder:
    """The final model of a run folder, or of its `final` folder, in fp32 on the CPU."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        folder = folder / "final"
    try:
        saved = read_model_config(folder)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no final model; give the folder of a run that has ended") from None
    weights = read_weights(folder)
    return Decoder.from_tensors(saved.structure, weights, kernel, saved.factors, source=str(folder))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a model folder, by name."""
    path = folder / "model.safetensors"
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own type, which it does not export
        raise UserError(f"{path}: the weights cannot be read ({error}); restore the file") from None
