"""Plan and attention map of a checked configuration."""

from __future__ import annotations

from hybridlab.config.maps import MapConfig
from hybridlab.config.schema import RunConfig
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.edits import edited_plan
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure


def structure_of(config: RunConfig) -> Structure:
    """The structure at the start of a run. References to other runs must have been replaced by their results."""
    shape = config.first_shape
    return Structure(shape, plan_of(config), map_of(config.map, shape))


def plan_of(config: RunConfig) -> Plan:
    """The plan at the start of a run."""
    shape = config.first_shape
    return edited_plan(shape.layers, shape.heads, config.plan, shape.traits.parallel)


def map_of(config: MapConfig, shape: Shape) -> AttentionMap:
    """The attention map of a configuration. A learned map must have been replaced by its masks."""
    return config.attention_map(shape.layers, shape.kv_heads)
