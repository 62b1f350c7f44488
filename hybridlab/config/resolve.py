"""A run's configuration from its arch, size, data and overrides; its identity; and the window that a size brings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from hybridlab.config.loading import Layer, check, load_preset, merge, parse_setting, preset_names
from hybridlab.config.recurrence import place_recurrence
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError

NUMERICS_VERSION = 1
"""Bumped by hand when the same configuration gives other numbers than before, so that old runs are not reused."""

WINDOWED_KINDS = ("window", "rule", "mixed")
GROWING_KINDS = ("entropy-growth",)
GROWTH_TIMES = ("start_step", "interval", "fade_steps")


def resolve(
    arch: str, size: str, data: str | None = None, layers: Iterable[Layer] = (), settings: Iterable[str] = ()
) -> RunConfig:
    """The checked configuration of `--arch`, `--size`, `--data`, further layers and `--set` texts, in this order.

    A size brings its own window w (512 in ConSA's models, 8 in tiny); `window: w` at the top overrides it, and the
    map takes it where it has none of its own. In the same way a size brings the times of a growth (`growth:`), which a
    controller that grows takes where it has none. An arch that recurs says how it divides the size's layers
    (`recurrence:`), which gives the shape its layers and the plan its loop (config/recurrence.py).
    """
    named = Layer({"arch": arch, "size": size})
    stack = [load_preset("size", size), load_preset("arch", arch), named]
    if data is not None:
        stack.append(data_layer(data))
    stack += [*layers, *(_setting(text) for text in settings)]
    return check(RunConfig, _place_growth(place_recurrence(_place_window(merge(*stack)))))


def _setting(text: str) -> Layer:
    """`--set`; a window asked for here must reach the map, so that one without windows refuses it."""
    name = text.partition("=")[0].strip()
    if name in ("arch", "size"):
        raise UserError(f"--set {text}: use --{name}, which brings all of its settings")
    return parse_setting(f"map.{text.strip()}" if name == "window" else text)


def data_layer(data: str) -> Layer:
    """`--data`: the name of a data preset, or a source (`embedded`, `text:PATH`, …)."""
    if data in preset_names("data"):
        return load_preset("data", data)
    if ":" not in data and data != "embedded":
        known = ", ".join(preset_names("data"))
        raise UserError(
            f"--data {data}: neither a data preset ({known}) nor a source; "
            "a source is embedded, text:PATH, jsonl:PATH, hub:NAME or shards:DIR"
        )
    return Layer({"data": {"source": data}}, {("data", "source"): f"--data {data}", (): f"--data {data}"})


def _place_window(layer: Layer) -> Layer:
    """Give the size's window to the map; where that has no windows, to the measurement of the tasks."""
    values = dict(layer.values)
    window = values.pop("window", None)
    mapping = values.get("map")
    if window is None or not isinstance(mapping, dict):
        return Layer(values, layer.origins)
    origins = {("map", "window"): layer.origin(("window",)), **layer.origins}
    if mapping.get("kind") in WINDOWED_KINDS:
        values["map"] = {"window": window, **mapping}
    elif _has_tasks(values) and isinstance(values.get("evaluation", {}), dict):
        values["evaluation"] = {"task_window": window, **values.get("evaluation", {})}
    return Layer(values, origins)


def _place_growth(layer: Layer) -> Layer:
    """Give the size's growth times to a controller that grows, and its start to layers chosen by entropy."""
    values = dict(layer.values)
    growth, controller, edits = values.pop("growth", None), values.get("controller"), values.get("plan")
    if growth is None and "growth" not in layer.values:
        return Layer(values, layer.origins)
    if not isinstance(growth, dict) or not set(growth) <= set(GROWTH_TIMES):
        place = layer.origin(("growth",))
        raise UserError(f"{place + ': ' if place else ''}growth {growth}: it takes {', '.join(GROWTH_TIMES)}")
    if isinstance(controller, dict) and controller.get("kind") in GROWING_KINDS:
        values["controller"] = {**growth, **controller}
    if isinstance(edits, list) and all(isinstance(edit, dict) for edit in edits) and "start_step" in growth:
        choices = symbolic_layers(edits)
        values["plan"] = [
            {**edit, "layers": {"step": growth["start_step"], **edit["layers"]}}
            if edit.get("layers") in choices
            else edit
            for edit in edits
        ]
    return Layer(values, layer.origins)


def _has_tasks(values: dict[str, Any]) -> bool:
    data = values.get("data")
    mix = data.get("mix") if isinstance(data, dict) else None
    return isinstance(mix, dict) and mix.get("text", 1) != 1


def identity(config: RunConfig) -> dict[str, Any]:
    """What makes a run this run: all of its configuration but `runtime`, the names, and the numerics version.

    The parents are in it by their hashes, in `init.run` and in a learned map's `run`. What is not set (None) is left out,
    so that a setting which comes later, with None for "as before", leaves the names of older runs as they are.
    """
    content = config.model_dump(mode="json", exclude={"runtime", "arch", "size"}, exclude_none=True)
    return {"numerics_version": NUMERICS_VERSION, **content}


def run_hash(config: RunConfig) -> str:
    """Sixteen hexadecimal digits that name the run."""
    canonical = json.dumps(identity(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def parents(config: RunConfig) -> list[str]:
    """The hashes of the runs that this one needs."""
    needed = [config.init.run] if config.init else []
    if config.map.kind == "learned":
        needed.append(config.map.run)
    needed += [choice["top_entropy_of"] for choice in symbolic_layers(config.plan)]
    return list(dict.fromkeys(needed))


def symbolic_layers(edits: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of layers in plan edits that another run's entropies decide."""
    choices = [edit.get("layers") for edit in edits]
    return [choice for choice in choices if isinstance(choice, dict) and "top_entropy_of" in choice]
