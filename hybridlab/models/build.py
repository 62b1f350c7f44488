"""A model with random weights from the names of an architecture and a size."""

from __future__ import annotations

from typing import Any

from hybridlab.config.resolve import resolve_parts
from hybridlab.models.decoder import Transformer, draw_weights, make_model
from hybridlab.plan.forecast import full_structure


def build_model(arch: str, size: str = "tiny", seed: int = 0, kernel: str = "auto", **overrides: Any) -> Transformer:
    """A model with random weights, in fp32 on the CPU; of an arch that grows in depth, with all layers of its shape.

    arch, size: presets (`hybridlab list --archs`, `--sizes`), or paths of YAML files. seed: of the weights. kernel: of
    its attention (auto, eager, sdpa, banded, blocks, flex, xformers). overrides: parts of the configuration, like
    `shape={"layers": 4}` or `window=32`. UserError for an unknown name, and for an override that has no effect.

        model = hybridlab.build_model("rule-swa", size="tiny", window=8)
        model(torch.zeros(1, 16, dtype=torch.long)).logits    # (batch, sequence, vocabulary)
    """
    model = make_model(full_structure(resolve_parts(arch, size, overrides, "build_model")), kernel)
    draw_weights(model, seed)
    return model
