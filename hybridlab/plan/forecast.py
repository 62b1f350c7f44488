"""The structures that a run will have at each step, predicted from its settings before training. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hybridlab.config.schema import RunConfig
from hybridlab.config.stacking import AddsLayers, StackingConfig
from hybridlab.plan.from_config import structure_of
from hybridlab.plan.growth import forecast_growth
from hybridlab.plan.stacking import grown
from hybridlab.plan.structure import Structure

Stages = Iterator[tuple[Structure, int]]
"""(structure, number of steps), in order."""


def forecast_stacking(settings: StackingConfig, start: Structure, steps: int) -> Stages:
    """settings: with the steps of each stage, see `StackingConfig.in_stages`."""
    for number, count in enumerate(settings.stage_steps or [steps]):
        start = grown(start, settings.method, settings.block, settings.drawn) if number else start
        yield start, count


FORECASTS: dict[str, Callable[[Any, Structure, int], Stages]] = {
    "entropy-growth": forecast_growth,
    "stacking": forecast_stacking,
}
"""Kind of controller → forecast(settings, first structure, steps), for controllers that change the structure."""


def forecast(config: RunConfig) -> Stages:
    """The structures of a run over all of its steps. Where entropies will choose layers and heads, the ones here are
    examples of the same cost."""
    start, steps, settings = structure_of(config), config.training.steps, config.controller
    if isinstance(settings, AddsLayers):
        settings = settings.in_stages(config.shape.layers, steps)
    schedule = FORECASTS.get(settings.kind) if settings else None
    yield from schedule(settings, start, steps) if schedule else [(start, steps)]


def final_structure(config: RunConfig) -> Structure:
    """The structure at the end of a run; its looped layers and heads are only examples."""
    *_, (structure, _) = forecast(config)
    return structure


def full_structure(config: RunConfig) -> Structure:
    """The structure of a configuration with all layers of its shape: where a controller adds layers, that at the end;
    otherwise that at the start of a run."""
    return final_structure(config) if isinstance(config.controller, AddsLayers) else structure_of(config)
