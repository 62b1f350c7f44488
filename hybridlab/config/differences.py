"""Settings that differ between configurations, by their dotted names."""

from __future__ import annotations

from typing import Any


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names. An empty mapping has no entry."""
    if not isinstance(data, dict):
        return {prefix.removesuffix("."): data}
    return {key: value for name, inner in data.items() for key, value in flat(inner, f"{prefix}{name}.").items()}


def differing(*configs: dict[str, Any]) -> dict[str, list[Any]]:
    """Dotted name → the value in each configuration, for settings whose values are not all equal.

    A setting that a configuration does not have counts as None.
    """
    all_flat = [flat(config) for config in configs]
    names = dict.fromkeys(name for one in all_flat for name in one)
    values = {name: [one.get(name) for one in all_flat] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}
