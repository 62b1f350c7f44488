"""From a run's configuration to the hooks that act on it."""

from __future__ import annotations

from hybridlab.config.controllers import EntropyGrowthConfig, L1GatesConfig
from hybridlab.config.schema import RunConfig
from hybridlab.structure.entropy_growth import EntropyGrowth
from hybridlab.structure.entropy_log import EntropyLog
from hybridlab.structure.l1_gates import L1Gates
from hybridlab.structure.mask_learning import MaskLearning
from hybridlab.training.hooks import Hook


def make_hooks(config: RunConfig) -> list[Hook]:
    """The controller, where there is one, and what is to be written down."""
    hooks: list[Hook] = []
    if config.observe is not None:
        hooks.append(EntropyLog(config.observe.entropy_every))
    controller = config.controller
    if isinstance(controller, EntropyGrowthConfig):
        hooks.append(EntropyGrowth(controller))
    elif controller is not None:
        kind = L1Gates if isinstance(controller, L1GatesConfig) else MaskLearning
        hooks.append(kind(controller, config.shape, config.map.window))
    return hooks
