"""From a controller's configuration to the controller."""

from __future__ import annotations

from hybridlab.config.schema import ControllerConfig, L1GatesConfig, Shape
from hybridlab.structure.l1_gates import L1Gates
from hybridlab.structure.mask_learning import MaskLearning
from hybridlab.structure.units import LearnedAllocation


def make_controller(config: ControllerConfig, shape: Shape, window: int) -> LearnedAllocation:
    return L1Gates(config, shape, window) if isinstance(config, L1GatesConfig) else MaskLearning(config, shape, window)
