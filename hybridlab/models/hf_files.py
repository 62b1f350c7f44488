"""The tensors of a folder in the Hugging Face layout: one safetensors file, or shards that an index lists.

Every file and every tensor that cannot be used ends in a UserError that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.files import read_object

INDEX = "model.safetensors.index.json"
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


def read_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of the folder by name: those of the shards that the index names, if it has one."""
    found: dict[str, Stored] = {}
    for file in _files(folder):
        try:
            found |= {name: Stored(file, tensor) for name, tensor in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file}: the file is damaged ({error}); fetch it again") from None
    return found


def _files(folder: Path) -> list[Path]:
    try:
        shards = read_object(folder / INDEX, "index of shards", ("weight_map",), "fetch it again")["weight_map"]
    except FileNotFoundError:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UserError(f"{folder}: no *.safetensors file; save the weights as safetensors") from None
        return files
    names = list(shards.values()) if isinstance(shards, dict) else []
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise UserError(f"{folder / INDEX}: weight_map must give a file of this folder for each tensor; fetch it again")
    for name in sorted(set(names)):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: this shard is missing, and {INDEX} names it; fetch it too")
    return [folder / name for name in sorted(set(names))]
