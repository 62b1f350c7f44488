"""A model with random weights from the names of an architecture and a size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hybridlab.arguments import checked
from hybridlab.config.resolve import resolve_parts
from hybridlab.config.structures import full_structure
from hybridlab.models.decoder import Transformer, draw_weights, drawn_weights, make_model
from hybridlab.plan.structure import Structure

_HEAD = "head."
_LOOPS = "recurrences."
"""The names of the parameters of an output head, and of those of loops, begin with these."""


@checked
def build_model(arch: str, size: str = "tiny", seed: int = 0, kernel: str = "auto", **overrides: Any) -> Transformer:
    """A model with random weights, in fp32 on the CPU; of an arch that grows in depth, with all layers of its shape.

    arch, size: presets (`hybridlab list --archs`, `--sizes`), or paths of YAML files. seed: of the weights. kernel: of
    its attention (auto, eager, sdpa, banded, blocks, flex, xformers, triton). overrides: parts of the configuration,
    like `shape={"layers": 4}` or `window=32`. UserError for an unknown name, and for an override that has no effect.

        model = hybridlab.build_model("rule-swa", size="tiny", window=8)
        model(torch.zeros(1, 16, dtype=torch.long)).logits    # (batch, sequence, vocabulary)
    """
    model = make_model(full_structure(resolve_parts(arch, size, overrides, "build_model")), kernel)
    draw_weights(model, seed)
    return model


def with_new_head(weights: Mapping[str, Tensor], structure: Structure, seed: int) -> dict[str, Tensor]:
    """The weights of a model, by name, with those of the output head of another structure, drawn from the seed."""
    return _with_new(_HEAD, weights, structure, seed)


def with_new_loops(weights: Mapping[str, Tensor], structure: Structure, seed: int) -> dict[str, Tensor]:
    """The weights of a model without loops over iterations, by name, with the scorers, allocators and routers of those
    of another structure, drawn from the seed; weights that have some stay as they are."""
    if any(name.startswith(_LOOPS) for name in weights) or not structure.plan.loops:
        return dict(weights)
    return _with_new(_LOOPS, weights, structure, seed)


def _with_new(start: str, weights: Mapping[str, Tensor], structure: Structure, seed: int) -> dict[str, Tensor]:
    """The weights with fresh ones for all names of a structure's model that begin with `start`."""
    kept = {name: weight for name, weight in weights.items() if not name.startswith(start)}
    drawn = drawn_weights(Transformer.without_weights(structure), seed)
    return kept | {name: weight for name, weight in drawn if name.startswith(start)}
