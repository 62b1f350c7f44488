"""A model from a preset or a checked configuration."""

from __future__ import annotations

from typing import Any

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.plan.from_config import map_of, plan_of


def build_model(arch: str, size: str = "tiny", seed: int = 0, kernel: str = "auto", **overrides: Any) -> Decoder:
    """A model with fresh weights. Overrides are parts of the configuration: `shape={"layers": 4}`, `window=32`."""
    config = resolve(arch, size, layers=[Layer(overrides)])
    model = Decoder(config.shape, plan_of(config), map_of(config.map, config.shape), kernel)
    draw_weights(model, seed)
    return model
