"""The hooks of a run, made from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridlab.analysis.entropy_log import EntropyLog
from hybridlab.config.maps import MixedMap
from hybridlab.config.schema import RunConfig
from hybridlab.registry import Registry
from hybridlab.structure.entropy_growth import EntropyGrowth
from hybridlab.structure.l1_gates import L1Gates
from hybridlab.structure.mask_learning import MaskLearning
from hybridlab.training.hooks import Hook

CONTROLLERS: Registry[Callable[[Any, RunConfig], Hook]] = Registry("controller")
"""Kind → a function of the controller's settings and the whole configuration."""


def _learned_window(config: RunConfig) -> int:
    """The window of the heads whose kind is learned."""
    assert isinstance(config.map, MixedMap), "the schema requires a mixed map for these controllers"
    return config.map.window


CONTROLLERS.add("entropy-growth", lambda settings, config: EntropyGrowth(settings))
CONTROLLERS.add("mask-learning", lambda settings, config: MaskLearning(settings, config.shape, _learned_window(config)))
CONTROLLERS.add("l1-gates", lambda settings, config: L1Gates(settings, config.shape, _learned_window(config)))


def make_hooks(config: RunConfig) -> list[Hook]:
    """The log of entropies (`observe`) and the controller, if the configuration has them."""
    hooks: list[Hook] = []
    if config.observe is not None:
        hooks.append(EntropyLog(config.observe.entropy_every))
    if config.controller is not None:
        hooks.append(CONTROLLERS.get(config.controller.kind)(config.controller, config))
    return hooks
