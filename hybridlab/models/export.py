"""Models as folders: model.safetensors, config.json and tokenizer.json. Nothing is unpickled.

model = hybridlab.load_checkpoint("runs/first")
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from hybridlab.config.schema import Shape
from hybridlab.errors import UserError
from hybridlab.files import write_json
from hybridlab.models.decoder import Decoder
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan

FORMAT = 1


def save_model(folder: Path, model: Decoder, lineage: dict[str, Any]) -> None:
    """Write a model so that a reader finds either the whole of it or no config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {
            "model_type": "hybridlab",
            "format": FORMAT,
            "shape": model.shape.model_dump(mode="json"),
            "plan": model.plan.to_json(),
            "map": model.attention_map.to_json(),
            "lineage": lineage,
        },
    )


def load_checkpoint(path: str | Path, kernel: str = "auto") -> Decoder:
    """The final model of a run folder, or of its `final` folder, in fp32 on the CPU."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        folder = folder / "final"
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no final model there; the run has not ended, or this is no run folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        raise UserError(f"{folder}/config.json: the file is damaged") from None
    if not isinstance(config, dict) or config.get("model_type") != "hybridlab" or config.get("format") != FORMAT:
        raise UserError(f"{folder}/config.json: not a hybridlab model of format {FORMAT}; use load_hf for other models")
    shape = Shape.model_validate_json(json.dumps(config["shape"]))
    model = Decoder(shape, Plan.from_json(config["plan"]), AttentionMap.from_json(config["map"]), kernel)
    load_weights(model, folder)
    return model


def load_weights(model: Decoder, folder: Path) -> None:
    """Copy the weights of a model folder into a model of the same shape; another shape is refused by name."""
    path = folder / "model.safetensors"
    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own type, which it does not export
        raise UserError(f"{path}: the weights cannot be read ({error})") from None
    wanted = dict(model.named_parameters())
    for name in sorted(wanted.keys() | weights.keys()):
        there = tuple(weights[name].shape) if name in weights else "nothing"
        here = tuple(wanted[name].shape) if name in wanted else "nothing"
        if there != here:
            raise UserError(
                f"{path}: a checkpoint of another architecture: {name} is {there} there and {here} here; "
                "give the --size and shape settings that it was trained with"
            )
    for name, parameter in wanted.items():
        parameter.data.copy_(weights[name])
