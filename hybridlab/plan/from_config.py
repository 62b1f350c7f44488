"""Plan and attention map of a checked configuration."""

from __future__ import annotations

from hybridlab.config.schema import (
    ExplicitMap,
    FullMap,
    LearnedMap,
    MapConfig,
    MixedMap,
    RuleMap,
    RunConfig,
    Shape,
    WindowMap,
)
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionMap, Full, Mixed, Window
from hybridlab.plan.plan import Plan, edited_plan


def plan_of(config: RunConfig) -> Plan:
    return edited_plan(config.shape.layers, config.shape.heads, config.plan, config.shape.traits.parallel)


def map_of(config: MapConfig, shape: Shape) -> AttentionMap:
    """The attention map that a configuration names. A learned map must have been replaced by its masks before."""
    layers, kv_heads = shape.layers, shape.kv_heads
    match config:
        case FullMap():
            return AttentionMap.uniform(layers, kv_heads, Full())
        case WindowMap():
            return AttentionMap.uniform(layers, kv_heads, Window(config.window))
        case MixedMap():
            return AttentionMap.uniform(layers, kv_heads, Mixed(config.window))
        case RuleMap():
            return AttentionMap.rule(layers, kv_heads, config.granularity, config.rho, config.window, config.nearest)
        case ExplicitMap():
            attention_map = AttentionMap.from_masks(config.masks, config.window)
            attention_map.check_shape(layers, kv_heads)
            return attention_map
        case LearnedMap():
            raise UserError(
                f"map: the masks of run {config.run} are not learned yet; run `hybridlab learn-masks` first"
            )
