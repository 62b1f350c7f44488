"""The structures of a checked configuration: at its start, at each step, at its end. No torch."""

from __future__ import annotations

from typing import Any

from hybridlab.config.edits import edited_plan, known_plan
from hybridlab.config.maps import FromRun
from hybridlab.config.method import Method, Stages
from hybridlab.config.schema import RunConfig
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.forecast import FORECASTS
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure
from hybridlab.plugins import entries, refuse


def structure_of(config: RunConfig) -> Structure:
    """The structure at the start of a run. References to other runs must have been replaced by their results."""
    shape = config.first_shape
    return Structure(shape, edited_plan(shape, config.plan), config.map.attention_map(shape.layers, shape.kv_heads))


def keeps_documents_apart(config: RunConfig) -> bool:
    """Whether several documents in one row are computed as each of them alone: loops over chunks or with a shift carry
    states from one into the next, and so may attention kinds that do not say otherwise."""
    shape = config.first_shape
    if any(loop.crosses_documents for loop in known_plan(shape, config.plan).loops.values()):
        return False
    # The masks of another run choose between full attention and windows.
    if isinstance(config.map, FromRun):
        return True
    return all(kind.apart for kind in config.map.attention_map(shape.layers, shape.kv_heads).each_kind())


def forecast(config: RunConfig, start: Structure | None = None) -> Stages:
    """The structures of a run over all of its steps. Where entropies will choose layers and heads, the ones here are
    examples of the same cost. start: that of the configuration, where it is made already."""
    start = start or structure_of(config)
    if config.controller is None:
        yield start, config.training.steps
    else:
        yield from _checked(config.controller, config.controller.forecast(start, config))


def _checked(controller: Method, stages: Stages) -> Stages:
    """The stages that a controller forecasts; UserError for what is none."""
    forecast = FORECASTS.get(controller.kind)
    item, method = (controller, "forecast") if forecast is None else (forecast, "")
    expected = "pairs of a Structure and its number of steps, such as by `yield structure, steps`"
    stage: Any = []
    for stage in entries(item, method, stages, expected):
        if not isinstance(stage, tuple) or [*map(type, stage)] != [Structure, int]:
            refuse(item, method, stage, expected)
        yield stage
    if stage == []:
        refuse(item, method, stage, expected)


def final_structure(config: RunConfig, start: Structure | None = None) -> Structure:
    """The structure at the end of a run; its looped layers and heads are only examples. start: see `forecast`."""
    *_, (structure, _) = forecast(config, start)
    return structure


def full_structure(config: RunConfig) -> Structure:
    """The structure of a configuration with all layers of its shape: where a controller adds layers, that at the end;
    otherwise that at the start of a run."""
    return structure_of(config) if config.first_shape == config.shape else final_structure(config)


# ---- how far the windows of a structure reach ----


def task_window(attention_map: AttentionMap, config: RunConfig) -> int | None:
    """The w that separates inside from outside: the setting, or the map's window if it has exactly one width."""
    if config.evaluation.task_window is not None:
        return config.evaluation.task_window
    widths = {kind.window for kind in attention_map.each_kind()} - {None}
    return widths.pop() if len(widths) == 1 else None


def window_reach(plan: Plan, window: int) -> int:
    """The number of tokens back that windows of all attention visits together reach, with loops over chunks: an entry
    of a latent's window covers g tokens, its chunk begins g − 1 tokens before its end, and the shift delays its
    update."""
    reach = 0
    for place, visit in plan.places():
        reach += plan.chunk_at(place) * (window - 1) * (visit.part != "mlp")
    for loop in plan.loops.values():
        reach += sum(g - 1 + loop.shift_of(t) for t, g in enumerate(loop.chunks))
    return reach
