"""A configuration as YAML, with where each value was written: `hybridlab config show`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from hybridlab.config.loading import Layer
from hybridlab.config.schema import RunConfig
from hybridlab.config.yaml_text import KeyPath, value_at

DEFAULT, COMPUTED = "default", "computed"


def origins_of(config: RunConfig, layer: Layer) -> dict[KeyPath, tuple[Any, str]]:
    """Path → value and origin of every setting. layer: what the configuration was checked from.

    The origin is the file and line or the option where the value was written, `default` for one of the schema, or
    `computed` for one that follows from others (steps from a budget, the batches that a parent has read).
    """
    checked = dict(_leaves(RunConfig.model_validate_json(json.dumps(layer.values)).model_dump(mode="json")))
    origins: dict[KeyPath, tuple[Any, str]] = {}
    for path, value in _leaves(config.model_dump(mode="json")):
        if checked.get(path) != value:
            origin = COMPUTED
        elif isinstance(around := value_at(layer.values, path[:-1]), dict) and path[-1] in around:
            origin = layer.origin(path) or DEFAULT
        else:
            origin = DEFAULT
        origins[path] = (value, origin)
    return origins


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Path and value of all that is no mapping; a list is one value."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value


def as_yaml(value: Any) -> str:
    """A value in YAML's flow style, on one line."""
    plain = json.loads(json.dumps(value, default=lambda item: item.to_json()))
    return yaml.safe_dump([plain], default_flow_style=True, width=float("inf"), allow_unicode=True).strip()[1:-1]


def as_text(settings: dict[KeyPath, tuple[Any, str]]) -> str:
    """The settings as YAML, each with its origin as a comment."""
    lines: list[tuple[str, str]] = []
    before: KeyPath = ()
    for path, (value, origin) in settings.items():
        shared = next((i for i, (a, b) in enumerate(zip(path[:-1], before, strict=False)) if a != b), None)
        start = min(len(path) - 1, len(before)) if shared is None else shared
        lines += [("  " * depth + f"{path[depth]}:", "") for depth in range(start, len(path) - 1)]
        lines.append(("  " * (len(path) - 1) + f"{path[-1]}: {as_yaml(value)}", origin))
        before = path[:-1]
    width = min(48, max((len(text) for text, origin in lines if origin), default=0))
    return "\n".join(f"{text:<{width}}  # {origin}" if origin else text for text, origin in lines)


# ---- settings that differ between configurations ----


def differing(*configs: dict[str, Any]) -> dict[str, list[Any]]:
    """Dotted name → the value in each configuration, for settings whose values are not all equal.

    A setting that a configuration does not have counts as None, and an empty mapping has none.
    """
    all_flat = [{".".join(map(str, path)): value for path, value in _leaves(conf) if value != {}} for conf in configs]
    names = dict.fromkeys(name for flat in all_flat for name in flat)
    values = {name: [flat.get(name) for flat in all_flat] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}
