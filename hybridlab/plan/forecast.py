"""The structures that a run will have at each step, predicted from its settings before training. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.config.schema import RunConfig
from hybridlab.config.stacking import AddsLayers, StackingConfig
from hybridlab.plan.from_config import structure_of
from hybridlab.plan.growth import forecast_growth
from hybridlab.plan.stacking import grown
from hybridlab.plan.structure import Structure

Stages = Iterator[tuple[Structure, int]]
"""(structure, number of steps), in order."""


def _entropy_growth(config: RunConfig, start: Structure) -> Stages:
    assert isinstance(config.controller, EntropyGrowthConfig), "the kind says so"
    return forecast_growth(config.controller, start, config.training.steps)


def _stacking(config: RunConfig, start: Structure) -> Stages:
    assert isinstance(config.controller, StackingConfig), "the kind says so"
    settings = config.controller
    for number, stage in enumerate(settings.stages(config.shape.layers, config.training.steps)):
        start = grown(start, settings.method, settings.block) if number else start
        yield start, stage.steps


FORECASTS: dict[str, Callable[[RunConfig, Structure], Stages]] = {
    "entropy-growth": _entropy_growth,
    "stacking": _stacking,
}
"""Kind of controller → forecast(configuration, first structure), for controllers that change the structure."""


def forecast(config: RunConfig) -> Stages:
    """The structures of a run over all of its steps. Where entropies will choose layers and heads, the ones here are
    examples of the same cost."""
    start = structure_of(config)
    schedule = FORECASTS.get(config.controller.kind) if config.controller else None
    yield from schedule(config, start) if schedule else [(start, config.training.steps)]


def final_structure(config: RunConfig) -> Structure:
    """The structure at the end of a run; its looped layers and heads are only examples."""
    *_, (structure, _) = forecast(config)
    return structure


def full_structure(config: RunConfig) -> Structure:
    """The structure of a configuration with all layers of its shape: where a controller adds layers, that at the end;
    otherwise that at the start of a run."""
    return final_structure(config) if isinstance(config.controller, AddsLayers) else structure_of(config)
