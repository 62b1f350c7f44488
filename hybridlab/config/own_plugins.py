"""The plug-ins in the identity of a run: those that can change it, by name and version."""

from __future__ import annotations

from typing import Any

from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.config.loading import Layer
from hybridlab.config.maps import HeadsMap, UniformMap
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.plugins import plugins_in_use
from hybridlab.registry import CHOICES, CONTROLLERS, FINETUNE_TASKS, HOOKS, PROBES, SOURCES, TASKS, Registry


def with_plugins(config: RunConfig, layer: Layer) -> RunConfig:
    """The configuration with the plug-ins that can change its run.

    layer: its settings as written. UserError if they name plug-ins, as those of an earlier run do, and others are
    loaded.
    """
    here = plugins_in_use({(registry.what, name) for registry, name in used_items(config)})
    if config.plugins is not None and config.plugins != here:
        origin = layer.origin(("plugins",))
        named, loaded = (", ".join(f"{n} {v}" for n, v in given.items()) for given in (config.plugins, here))
        raise UserError(
            f"{origin + ': ' if origin else ''}plugins: these settings are of a run with {named}, and loaded here: "
            f"{loaded or 'none'}; load them with --plugin, or remove `plugins`, which hybridlab writes by itself"
        )
    return config.model_copy(update={"plugins": here or None})


def used_items(config: RunConfig) -> list[tuple[Registry[Any], str]]:
    """Every registered item that a run uses, by its registry and name."""
    used: list[tuple[Registry[Any], str]] = [(PROBES, probe) for probe in config.evaluation.all_probes]
    used += [(CHOICES, name) for name in (config.evaluation.choices.tasks if config.evaluation.choices else ())]
    used += [(ATTENTION_KINDS, kind.name) for kind in _attention_kinds(config)]
    used += [(TASKS, task) for task in config.data.mix.tasks]
    used += [(HOOKS, hook.kind) for hook in config.hooks or []]
    used += [(SOURCES, source.partition(":")[0]) for source in config.data.all_sources]
    used += [(FINETUNE_TASKS, config.finetune.task)] if config.finetune is not None else []
    return used + ([(CONTROLLERS, config.controller.kind)] if config.controller is not None else [])


def unversioned_items(config: RunConfig) -> list[str]:
    """The items of a run, in words, that are neither built in nor from a plug-in: the identity does not cover them."""
    return [f"{registry.what} {name!r}" for registry, name in used_items(config) if name in registry.loose]


def _attention_kinds(config: RunConfig) -> list[AttentionKind]:
    if isinstance(config.map, UniformMap):
        return [config.map.attention]
    return [kind for row in config.map.layers for kind in row] if isinstance(config.map, HeadsMap) else []
