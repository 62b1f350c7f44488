"""The structures that a run will have at each step, predicted from its settings before training. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hybridlab.config.schema import RunConfig
from hybridlab.plan.from_config import structure_of
from hybridlab.plan.growth import forecast_growth
from hybridlab.plan.structure import Structure

Stages = Iterator[tuple[Structure, int]]
"""(structure, number of steps), in order."""
FORECASTS: dict[str, Callable[[Any, Structure, int], Stages]] = {"entropy-growth": forecast_growth}
"""Kind of controller → forecast(settings, first structure, steps), for controllers that change the structure."""


def forecast(config: RunConfig) -> Stages:
    """The structures of a run over all of its steps. Where entropies will choose layers and heads, the ones here are
    examples of the same cost."""
    start, steps = structure_of(config), config.training.steps
    schedule = FORECASTS.get(config.controller.kind) if config.controller else None
    yield from schedule(config.controller, start, steps) if schedule else [(start, steps)]


def final_structure(config: RunConfig) -> Structure:
    """The structure at the end of a run; its looped layers and heads are only examples."""
    *_, (structure, _) = forecast(config)
    return structure
