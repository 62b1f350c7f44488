"""Settings at the top of a configuration that several parts use: `window`, `growth` and `recurrence`.

A size sets a window w (512 in ConSA's models, 8 in tiny) and the times of a growth; an arch with a loop sets its
recurrence. These are defaults: the map, the controller and the plan use them where they fit. A setting that is written
for one run (in a file or with `--set`) and has no effect is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from hybridlab.config.edits import PlanEdit
from hybridlab.config.loading import Layer
from hybridlab.config.maps import Map, MapConfig, Windowed
from hybridlab.config.method import controller_kind
from hybridlab.config.recurrence import Recurrence
from hybridlab.config.training import Training
from hybridlab.config.types import NonNegativeInt, PositiveInt, Strict, Width, Window, members
from hybridlab.errors import UserError

_MAPS: dict[str, type[Map]] = members(MapConfig)


class GrowthTimes(Strict):
    """Times of a growth, in optimizer steps, and how much it adds; which each controller that grows explains."""

    start_step: PositiveInt | None = None
    """Step after which the first layer begins to loop."""
    interval: PositiveInt | None = None
    """Steps between two growth actions."""
    fade_steps: NonNegativeInt | None = None
    """Steps in which heads that are not kept fade out."""
    block: Width | None = None
    """Layers that a growth in depth adds at once."""


class Shared(BaseModel):
    """Only `window` and `growth`; all other settings are checked later."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    window: Window | None = None
    """Tokens that a head with a window sees, its own included; maps take it where they set none. Where no head has
    one, tasks are measured with it."""
    growth: GrowthTimes = GrowthTimes()
    """Times of a growth, for a controller that grows."""


class WithRecurrence(BaseModel):
    """A recurrence and the plan edits. The edits are checked before the recurrence becomes the first of them, which
    changes their indices."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    recurrence: Recurrence
    plan: list[PlanEdit] = []


PREPARATION = ("tokenizer", "field", "validation_fraction", "validation_by", "skip_bad_lines", "max_documents")
"""The settings of data that say how text is prepared."""
OF_SHARDS = "shards"
"""The `data.tokenizer` of a run on shards, which bring their own."""
AT_THE_TOP = ("extends", *Shared.model_fields, "recurrence")
"""Names that are allowed at the top level of a configuration in addition to those of RunConfig."""


def asked_for(stack: Sequence[Layer], *path: str) -> str | None:
    """The origin of the last layer that asks for a setting; None if it is a default or not set."""
    for layer in reversed(stack):
        value: Any = layer.values
        for part in path:
            value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
        if layer.asked and value is not _ABSENT:
            return layer.origin(path) or ".".join(path)
    return None


_ABSENT = object()


def move_window(layer: Layer, stack: Sequence[Layer]) -> Layer:
    """Move `window` to the setting that uses it. stack: the layers that `layer` was merged from.

    A window that is asked for overrides `map.window` in the layers before it, and is refused where the map has no
    window. A default window fills `map.window` where that is not set; where the map has no window, it becomes
    `evaluation.task_window` if the data contains tasks.
    """
    values, mapping = dict(layer.values), layer.values.get("map")
    asked = asked_for(stack, "window")
    if asked is not None:
        return _move_asked_window(layer, stack, asked)
    window = values.get("window")
    if not isinstance(mapping, dict):
        return layer
    if window is None:
        _require_window(layer, mapping)
        return layer
    origins = layer.origins
    if _is_windowed(mapping) and "window" not in mapping:
        values["map"] = {"window": window, **mapping}
        origins = layer.moved(("window",), ("map", "window"))
    elif not _is_windowed(mapping) and _has_tasks(values) and "task_window" not in _at(layer, "evaluation"):
        values["evaluation"] = {"task_window": window, **values.get("evaluation", {})}
        origins = layer.moved(("window",), ("evaluation", "task_window"))
    return Layer(values, origins)


def _require_window(layer: Layer, mapping: dict[str, Any]) -> None:
    """UserError for a map whose heads have windows, where nothing says how wide these are."""
    if _is_windowed(mapping) and "window" not in mapping:
        origin = layer.origin(("map", "kind"))
        raise UserError(
            f"{origin + ': ' if origin else ''}a map of kind {mapping['kind']} needs a window, and nothing sets one; "
            "add --set window=N, where N is the number of tokens that a head sees, its own included"
        )


def _is_windowed(mapping: dict[str, Any]) -> bool:
    model = _MAPS.get(str(mapping.get("kind")))
    return model is not None and issubclass(model, Windowed)


def _move_asked_window(layer: Layer, stack: Sequence[Layer], origin: str) -> Layer:
    """origin: where the window was written, for errors."""
    values, mapping = dict(layer.values), layer.values.get("map", {"kind": "full"})
    kind = mapping.get("kind") if isinstance(mapping, dict) else None
    if not isinstance(kind, str) or kind not in _MAPS:
        return layer  # the schema reports the mistake
    wanted = max(i for i, one in enumerate(stack) if one.asked and "window" in one.values)
    window, origins = stack[wanted].values["window"], dict(layer.origins)
    values.pop("window")
    if "window" in _MAPS[kind].model_fields:
        own = max((i for i, one in enumerate(stack) if "window" in _at(one, "map")), default=-1)
        if own == wanted and mapping["window"] != window:
            raise UserError(f"{origin}: window and map.window have different values; remove one of the two")
        if "window" not in mapping or own < wanted:
            values["map"], origins["map", "window"] = {**mapping, "window": window}, origin
    elif window is not None:
        raise UserError(
            f"{origin}: window has no effect on a map of kind {kind}; set map.kind=window for this window in every "
            "head or use --arch rule-swa, or set evaluation.task_window to measure tasks with it"
        )
    return Layer(values, origins)


def move_seed(layer: Layer) -> Layer:
    """Fill the seeds of a map and of a growth with `training.seed`, if they are drawn at random and set none."""
    for part in ("map", "controller"):
        settings = _at(layer, part)
        kind = str(settings.get("kind"))
        model = _MAPS.get(kind) if part == "map" else controller_kind(kind)
        if model is not None and model.draws(settings) and settings.get("seed") is None:
            seed = _at(layer, "training").get("seed", Training.model_fields["seed"].default)
            origins = layer.moved(("training", "seed"), (part, "seed"))
            layer = Layer({**layer.values, part: {**settings, "seed": seed}}, origins)
    return layer


def keep_to_shards(layer: Layer, stack: Sequence[Layer]) -> Layer:
    """Without the settings that prepare text, if the source is shards, which are prepared: they have no effect, and
    would only give equal runs different hashes. UserError for one that is asked for."""
    data = _at(layer, "data")
    several = data.get("sources")
    entries = several if isinstance(several, list) else [data]
    sources = [entry.get("source") for entry in entries if isinstance(entry, dict)]
    if not sources or not all(isinstance(source, str) and source.startswith("shards:") for source in sources):
        return layer
    for name in PREPARATION:
        origin = asked_for(stack, "data", name)
        if origin is not None:
            raise UserError(
                f"{origin}: data.{name} has no effect on {sources[0]}, whose text is tokenized already; remove it, "
                "or make other shards with `hybridlab data prepare`"
            )
    kept = {name: value for name, value in data.items() if name not in PREPARATION}
    return replace(layer, values={**layer.values, "data": {**kept, "tokenizer": OF_SHARDS}})


def move_warmup(layer: Layer) -> Layer:
    """Turn the `warmup_fraction` of each schedule into `warmup_steps`: that share of the run's steps, rounded.

    UserError if one layer has both. A fraction or a number of steps that is wrong stays, and the schema reports it.
    """
    values, origins = dict(layer.values), dict(layer.origins)
    steps = _at(layer, "training").get("steps")
    for part in ("training", "controller"):
        schedule = dict(_at(layer, part, "schedule"))
        path = (part, "schedule", "warmup_fraction")
        fraction = schedule.pop("warmup_fraction", None)
        if fraction is not None and "warmup_steps" in schedule:
            raise UserError(
                f"{layer.origin(path)}: {'.'.join(path)} and warmup_steps both set the warm-up; remove one of the two"
            )
        if type(fraction) in (int, float) and 0 <= fraction <= 1 and type(steps) is int:
            schedule["warmup_steps"] = round(fraction * steps)
            origins = replace(layer, origins=origins).moved(path, (part, "schedule", "warmup_steps"))
        elif fraction is not None:
            continue
        if "warmup_fraction" in _at(layer, part, "schedule"):
            values[part] = {**values[part], "schedule": schedule}
    return Layer(values, origins)


def _at(layer: Layer, *path: str) -> dict[str, Any]:
    """The mapping at a path; empty if there is none."""
    value: Any = layer.values
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _has_tasks(values: dict[str, Any]) -> bool:
    """Whether some rows of the data are synthetic tasks, whose measurement uses a window."""
    data = values.get("data")
    mix = data.get("mix") if isinstance(data, dict) else None
    readable = isinstance(values.get("evaluation", {}), dict)
    return readable and isinstance(mix, dict) and mix.get("text", 1) != 1


def move_growth(layer: Layer, growth: GrowthTimes, stack: Sequence[Layer]) -> Layer:
    """Move the times of a growth to the controller, and `start_step` to plan edits whose layers entropies choose."""
    values, origins = dict(layer.values), dict(layer.origins)
    values.pop("growth", None)
    times = growth.model_dump(include=growth.model_fields_set)
    controller, edits = values.get("controller"), values.get("plan")
    taken: set[str] = set()
    takes = _taken_by(controller.get("kind")) if isinstance(controller, dict) else set()
    if isinstance(controller, dict) and takes:
        times_taken = {name: value for name, value in times.items() if name in takes}
        taken = times_taken.keys() - controller.keys()
        values["controller"] = {**times_taken, **controller}
        for name in taken:
            origins = replace(layer, origins=origins).moved(("growth", name), ("controller", name))
    if "start_step" in times and isinstance(edits, list):
        values["plan"] = [_started(edit, times["start_step"]) for edit in edits]
        taken |= {"start_step"} if values["plan"] != edits else set()
    for name in times.keys() - taken:
        origin = asked_for(stack, "growth", name)
        if origin is not None and name in takes:
            raise UserError(f"{origin}: growth.{name} has no effect here: controller.{name} is set; remove one of them")
        if origin is not None:
            why = f"controller {values['controller']['kind']} has no {name}" if takes else "no controller grows"
            arch = "midas, lidas, top or random" if name == "block" else "sgt"
            raise UserError(f"{origin}: growth.{name} has no effect here: {why}; use --arch {arch}")
    return Layer(values, origins)


def _taken_by(kind: Any) -> set[str]:
    """The settings of a growth that a controller of this kind takes."""
    model = controller_kind(kind)
    return set() if model is None else set(model.growth_settings)


def _started(edit: Any, step: int) -> Any:
    """A plan edit with its `step` set, if another run's entropies choose its layers and it sets no step itself."""
    choice = edit.get("layers") if isinstance(edit, dict) else None
    if not isinstance(choice, dict) or "top_entropy_of" not in choice:
        return edit
    return {**edit, "layers": {"step": step, **choice}}
