"""A model with random weights from the names of an architecture and a size."""

from __future__ import annotations

from typing import Any

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.plan.from_config import structure_of


def build_model(arch: str, size: str = "tiny", seed: int = 0, kernel: str = "auto", **overrides: Any) -> Decoder:
    """A model with random weights. overrides: parts of the configuration, like `shape={"layers": 4}` or `window=32`."""
    config = resolve(arch, size, layers=[Layer(overrides)])
    model = Decoder(structure_of(config), kernel)
    draw_weights(model, seed)
    return model
