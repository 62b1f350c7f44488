"""Low-rank adapters (LoRA; Hu et al., 2021, section 4.1): x Wᵀ + b + factor · (x Aᵀ) Bᵀ, in which A and B are trained.

    hybridlab finetune RUN --task sft --data chats.jsonl --lora-rank 8

A linear layer of a block becomes an `Adapted` one, with `down` (A) and `up` (B) beside its weight. `merged` adds them
to the weight again, so that a finished model is as any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.config.finetune import PROJECTIONS, Lora

_LAYER = re.compile(rf"blocks\.\d+\.(attention|mlp)\.({'|'.join(PROJECTIONS)})")
_ADAPTERS = 7
"""First word of the seeds of these draws, after those of training/objective.py."""


class Adapted(nn.Linear):
    """A linear layer with an adapter of some rank, instead of another one. factor: of what the adapter adds."""

    def __init__(self, layer: nn.Linear, rank: int, factor: float) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.factor = factor
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.empty(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.factor * F.linear(F.linear(x, self.down), self.up)


def _chosen(names: Iterable[str], lora: Lora) -> list[str]:
    """Those of these names of layers that get an adapter."""
    matches = ((name, _LAYER.fullmatch(name)) for name in names)
    return [name for name, match in matches if match and match[2] in (lora.projections or PROJECTIONS)]


def adapt(model: nn.Module, lora: Lora, head: bool) -> None:
    """Put adapters into a model without weights, in place; from then on only they are trained, and the output head if
    `head` says so."""
    layers = dict(model.named_modules())
    for name in _chosen(layers, lora):
        parent, _, attribute = name.rpartition(".")
        layer = layers[name]
        assert isinstance(layer, nn.Linear), "these names are of linear layers"
        with torch.device("meta"):
            setattr(layers[parent], attribute, Adapted(layer, lora.rank, lora.factor))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".down", ".up")) or (head and name.startswith("head.")))


def drawn_adapters(weights: Mapping[str, Tensor], lora: Lora, seed: int) -> dict[str, Tensor]:
    """The adapters before the first step, for the weights of a model: A uniform within ± 1 / √inputs, as PEFT draws it,
    and B 0, so that they add nothing."""
    rng, drawn = np.random.default_rng((_ADAPTERS, seed)), dict[str, Tensor]()
    for name in _chosen((name.removesuffix(".weight") for name in weights), lora):
        outputs, inputs = weights[f"{name}.weight"].shape
        values = rng.uniform(-1, 1, size=(lora.rank, inputs)) / inputs**0.5
        drawn[f"{name}.down"] = torch.from_numpy(values).float()
        drawn[f"{name}.up"] = torch.zeros(outputs, lora.rank)
    return drawn


def merged(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model, by parameter name, with its adapters added to the weights."""
    result = dict(tensors)
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            weight, down, up = (result[f"{name}.{part}"].detach() for part in ("weight", "down", "up"))
            result[f"{name}.weight"] = weight + module.factor * up @ down
            del result[f"{name}.down"], result[f"{name}.up"]
    return result


def has_adapters(model: nn.Module) -> bool:
    return any(isinstance(module, Adapted) for module in model.modules())
