"""Models as folders: model.safetensors, config.json and tokenizer.json. Nothing is unpickled.

model = hybridlab.load_checkpoint("runs/first")
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hybridlab.config.schema import Shape
from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json
from hybridlab.models.decoder import Decoder
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan

FORMAT = 1


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """safetensors, flushed to disk."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def save_model(folder: Path, model: Decoder, lineage: dict[str, Any]) -> None:
    """Write a model so that a reader finds either the whole of it or no config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    save_tensors(dict(model.named_parameters()), folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {
            "model_type": "hybridlab",
            "format": FORMAT,
            "shape": model.shape.model_dump(mode="json"),
            "plan": model.plan.to_json(),
            "map": model.attention_map.to_json(),
            "factors": [{"place": list(place), "values": f.tolist()} for place, f in model.factors.items()],
            "lineage": lineage,
        },
    )


def load_checkpoint(path: str | Path, kernel: str = "auto") -> Decoder:
    """The final model of a run folder, or of its `final` folder, in fp32 on the CPU."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        folder = folder / "final"
    try:
        config = read_object(folder / "config.json", "model", ("model_type",))
    except FileNotFoundError:
        raise UserError(f"{path}: no final model there; the run has not ended, or this is no run folder") from None
    if config["model_type"] != "hybridlab" or config.get("format") != FORMAT:
        raise UserError(f"{folder}/config.json: not a hybridlab model of format {FORMAT}; use load_hf for other models")
    try:
        shape = Shape.model_validate_json(json.dumps(config["shape"]))
        plan, attention_map = Plan.from_json(config["plan"]), AttentionMap.from_json(config["map"])
        factors = {tuple(f["place"]): torch.tensor(f["values"]) for f in config.get("factors", [])}
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{folder}/config.json: this model is damaged; its shape, plan or map cannot be read") from None
    model = Decoder(shape, plan, attention_map, kernel).with_plan(factors=factors)
    load_weights(model, folder)
    return model


def load_weights(model: Decoder, folder: Path) -> None:
    """Copy the weights of a model folder into a model of the same shape; another shape is refused by name."""
    path = folder / "model.safetensors"
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own type, which it does not export
        raise UserError(f"{path}: the weights cannot be read ({error})") from None
    copy_weights(model, weights, str(path))


def copy_weights(model: Decoder, weights: Mapping[str, Tensor], place: str) -> None:
    """Copy named weights into a model; a missing, surplus or misshapen one is refused by name."""
    wanted = dict(model.named_parameters())
    for name in sorted(wanted.keys() | weights.keys()):
        there = tuple(weights[name].shape) if name in weights else "nothing"
        here = tuple(wanted[name].shape) if name in wanted else "nothing"
        if there != here:
            raise UserError(
                f"{place}: weights of another architecture: {name} is {there} there and {here} here; "
                "give the shape settings that they were trained with"
            )
    for name, parameter in wanted.items():
        parameter.data.copy_(weights[name])
