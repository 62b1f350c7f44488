"""A model with random weights from the names of an architecture and a size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybridlab.config.resolve import resolve_parts
from hybridlab.config.shape import Shape
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


def with_output(model: Transformer, output: dict[str, Any] | None, seed: int = 0) -> Transformer:
    """A model with another output head, whose weights are drawn anew; it shares all other weights with `model`.

    output: the setting `shape.output`, such as {"kind": "classes", "labels": 2}; None for tokens. seed: of the head.
    ValueError for a setting that cannot be.

        classifier = with_output(hybridlab.load_checkpoint("runs/encoder"), {"kind": "classes", "labels": 2})
        classifier(tokens, attention_mask=mask).logits    # tokens (B, S), logits (B, 2)
    """
    shape = Shape.model_validate({**model.shape.model_dump(), "output": output})
    structure = replace(model.structure, shape=shape)
    fresh = make_model(structure)
    draw_weights(fresh, seed)
    kept = {name: weight for name, weight in model.named_parameters() if not name.startswith("head.")}
    tensors = {name: kept.get(name, weight) for name, weight in fresh.named_parameters()}
    return Transformer.from_tensors(structure, tensors, model.kernel, model.factors)
