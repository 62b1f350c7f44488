"""A run's configuration from its arch, size, data and overrides, and its identity (hash)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.config.edits import edited_plan
from hybridlab.config.loading import (
    VARY,
    Layer,
    check,
    is_preset,
    load_preset,
    merge,
    parse_setting,
    preset_name,
    preset_names,
)
from hybridlab.config.maps import FullMap, HeadsMap, UniformMap
from hybridlab.config.method import same_kind
from hybridlab.config.mistakes import unknown_names
from hybridlab.config.other_runs import Finished, run_names
from hybridlab.config.recurrence import expand_recurrence, keep_one_loop
from hybridlab.config.schema import RunConfig
from hybridlab.config.shared_settings import (
    AT_THE_TOP,
    Shared,
    asked_for,
    bind_shared,
    in_counts,
    keep_to_shards,
    keep_to_task,
)
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError, located, nearest
from hybridlab.plugins import plugins_in_use
from hybridlab.registry import (
    CHOICES,
    CONTROLLERS,
    FINETUNE_TASKS,
    HOOKS,
    PROBES,
    SOURCES,
    TASKS,
    Registry,
    source_syntaxes,
)

NUMERICS_VERSION = 1
"""Increased by hand when the same configuration gives different numbers, so that old runs are not reused."""


def resolve(
    arch: str | None,
    size: str,
    data: str | list[str] | None = None,
    layers: Iterable[Layer] = (),
    settings: Iterable[str] = (),
    base: Layer | None = None,
) -> RunConfig:
    """The checked configuration from the size, the arch, the data, further layers and `--set` texts, in this order.

    Later ones override earlier ones. arch, size: the name of a preset, or the path of a YAML file. base: replaces the
    preset of the size, and where arch is None those of both. For `window`, `growth` and `recurrence` see
    config/shared_settings.py and config/recurrence.py.
    """
    of_data = [] if data is None else [data_layer(data)]
    return resolve_with_origins(arch, size, [*of_data, *layers], settings, base)[0]


def resolve_with_origins(
    arch: str | None, size: str, layers: Iterable[Layer] = (), settings: Iterable[str] = (), base: Layer | None = None
) -> tuple[RunConfig, Layer]:
    """As `resolve`, with the layer that the configuration was checked from, which has the origin of every value."""
    stack = [load_preset("size", size) if base is None else base]
    if arch is not None:
        names = Layer({"arch": preset_name(arch), "size": preset_name(size)})
        stack += [load_preset("arch", arch), names]
    written = [*layers, *(_setting(text) for text in settings)]
    _refuse_names(written)
    stack += written
    merged = merge(*stack)
    # What is missing at the top is missing in the size.
    merged = replace(merged, origins={**merged.origins, (): stack[0].origin(())})
    layer = in_counts(keep_to_task(keep_to_shards(merged, stack), stack))
    layer = bind_shared(keep_one_loop(layer, asked_for(stack, "recurrence")), stack)
    layer = expand_recurrence(layer, asked_for(stack, "shape", "layers"))
    config = check(RunConfig, layer, AT_THE_TOP)
    _check_structure(config, layer, recurrence=len(config.plan) > len(merged.values.get("plan", [])))
    return with_plugins(config, layer), layer


def resolve_parts(arch: str, size: str, parts: dict[str, Any], origin: str) -> RunConfig:
    """The checked configuration of an arch and a size with parts that a Python program asks for.

    origin: the function that it calls, for errors.
    """
    return resolve(arch, size, layers=[Layer(parts, {(): origin}, asked=True)])


def _refuse_names(layers: list[Layer]) -> None:
    """UserError for the name of a preset among settings, where it would only be a label."""
    for layer in layers:
        for kind in ("arch", "size"):
            if kind in layer.values:
                message = (
                    f"{kind} chooses no preset here; name it with --{kind}, in a file given with --config or, in an "
                    "experiment, as `arch` of a cell and `size` of a scale"
                )
                raise UserError(located(layer.origin((kind,)), message))


class Written(Shared, RunConfig):
    """The names that a configuration may contain, before the shared settings are moved."""


def check_names(layer: Layer) -> None:
    """UserError for the first unknown name in a part of a configuration, with its origin and the nearest known name."""
    for path, names in unknown_names(Written, layer.values):
        name, hint = ".".join(map(str, path)), nearest(str(path[-1]), names, f"known here: {', '.join(names)}")
        raise UserError(located(layer.origin(path), f"{name} is not a known setting; {hint}"))


def _check_structure(config: RunConfig, layer: Layer, recurrence: bool) -> None:
    """Raise UserError, with the origin, for a plan or a map that does not fit the shape. recurrence: the first edit of
    the plan was made from `recurrence`."""
    shape = config.first_shape
    if not any(edit.unknown_layers for edit in config.plan):
        edited_plan(shape, config.plan, lambda index: layer.origin(("plan", index)), recurrence)
        if config.controller is not None and config.controller.adds_layers:
            _check_growth(config, layer)
    try:
        config.map.check_shape(shape.layers, shape.kv_heads)
        config.map.check_kinds(shape.traits.causal)
    except UserError as error:
        # An error that begins with a setting of the map is about that one.
        names = [name for name in type(config.map).model_fields if str(error).startswith(f"map.{name} ")]
        raise UserError(located(layer.origin(("map", *(names or [config.map.sized]))), error)) from None


def _check_growth(config: RunConfig, layer: Layer) -> None:
    """Raise UserError, with the origin, for a plan that cannot take the layers that the controller adds."""
    try:
        final_structure(config.model_copy(update={"map": FullMap(kind="full")}))
    except UserError as error:
        raise UserError(located(layer.origin(("plan",)) or layer.origin(("controller",)), error)) from None


def _setting(text: str) -> Layer:
    """The layer of a setting. Presets have their own options, so their names are refused."""
    name = text.removeprefix(VARY).partition("=")[0].strip()
    written = text if text.startswith(VARY) else f"--set {text}"
    if name in ("arch", "size"):
        raise UserError(f"{written}: use --{name}, which sets everything that belongs to it")
    if name == "data":
        value = text.partition("=")[2].strip()
        if not value.startswith("{"):
            raise UserError(f"{written}: use --data {value}")
    if name == "extends":
        raise UserError(f"{written}: only a file extends others; give that file with --config")
    return parse_setting(text)


def data_layer(data: str | list[str], written: str = "--data") -> Layer:
    """The layer of `--data`: the name of a data preset, a source (`embedded`, `text:PATH`, …), or several sources.
    written: where it was written, for errors."""
    texts = _texts(data)
    if len(texts) == 1:
        if is_preset("data", texts[0]):
            return load_preset("data", texts[0])
        if ":" not in texts[0] and texts[0] not in SOURCES:
            raise UserError(
                f"{written} {texts[0]}: neither a data preset ({', '.join(preset_names('data'))}) nor a source; "
                f"a source is {source_syntaxes()}"
            )
    origin = " ".join(f"{written} {text}" for text in texts)
    values = source_settings(texts)
    return Layer({"data": values}, {(): origin} | {("data", name): origin for name in values})


def _texts(data: str | list[str]) -> list[str]:
    return [data] if isinstance(data, str) else data


def source_settings(texts: list[str]) -> dict[str, Any]:
    """The setting for one source, or for several, each written as SOURCE@WEIGHT."""
    if len(texts) == 1:
        return {"source": texts[0]}
    entries = []
    for text in texts:
        source, _, weight = text.rpartition("@")
        try:
            entries.append({"source": source, "weight": float(weight)})
        except ValueError:
            raise UserError(
                f"{text}: of several sources each needs its weight; write {text}@0.5, with weights that add up to 1"
            ) from None
    return {"sources": entries}


def data_layers(option: str | list[str] | None, file: Layer) -> tuple[list[Layer], list[Layer]]:
    """What `--data` or, where that is not given, a file names: the layers before and after those of the file.

    A preset comes before the file, whose settings are more special. A source that the option names is a setting, which
    replaces one in the file.
    """
    if option is not None:
        layer, texts = data_layer(option), _texts(option)
        return [layer], [] if len(texts) == 1 and is_preset("data", texts[0]) else [layer]
    if "data" not in file.named:
        return [], []
    choice = file.named["data"]
    return [data_layer(choice.text, f"{choice.origin}: data")], []


def identity(config: RunConfig) -> dict[str, Any]:
    """What a run's hash is computed from: its configuration without `runtime`, `arch` and `size`, and the numerics
    version.

    It contains the hashes of parents, in `init.run`, in the `run` of a map from another run, and where layers or heads
    are chosen by the entropies of a run. Settings that are None are omitted, so that adding a setting whose default is
    None does not change the hashes of older runs.
    """
    content = config.model_dump(mode="json", exclude={"runtime", "arch", "size"}, exclude_none=True)
    return {"numerics_version": NUMERICS_VERSION, **content}


def identity_text(config: RunConfig) -> str:
    """The identity as the text that is hashed."""
    return json.dumps(identity(config), sort_keys=True, separators=(",", ":"))


def hash_of(identity: str) -> str:
    """Sixteen hexadecimal digits that identify the run with this identity."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def run_hash(config: RunConfig) -> str:
    """Sixteen hexadecimal digits that identify the run."""
    return hash_of(identity_text(config))


def parents(config: RunConfig) -> list[str]:
    """The hashes of the runs that a run needs: the one that it starts from, then those that its map, plan and
    controller read from."""
    parts = (config.init, config.map, config.plan, config.controller)
    return list(dict.fromkeys(name for part in parts for name in run_names(part)))


def linked(config: RunConfig, finished: Finished) -> RunConfig:
    """The configuration with what map, plan and controller take from other runs instead of these runs' names."""
    if not any(run_names((config.map, config.plan, config.controller))):
        return config
    changed: dict[str, Any] = {"plan": [edit.linked(config, finished) for edit in config.plan]}
    if config.controller is not None:
        changed["controller"] = same_kind(config.controller, config.controller.linked(config, finished), "linked")
    changed["map"] = config.map.linked(config, finished)
    return config.model_copy(update=changed)


# ---- the plug-ins in the identity of a run ----


def with_plugins(config: RunConfig, layer: Layer) -> RunConfig:
    """The configuration with the plug-ins that can change its run.

    layer: its settings as written. UserError if they name plug-ins, as those of an earlier run do, and others are
    loaded.
    """
    in_use = plugins_in_use({(registry.what, name) for registry, name in used_items(config)})
    if config.plugins is not None and config.plugins != in_use:
        stated, loaded = (", ".join(f"{n} {v}" for n, v in plugins.items()) for plugins in (config.plugins, in_use))
        message = (
            f"plugins: these settings are of a run with {stated}, and loaded here: {loaded or 'none'}; load them with "
            "--plugin, or remove `plugins`, which hybridlab writes by itself"
        )
        raise UserError(located(layer.origin(("plugins",)), message))
    return config.model_copy(update={"plugins": in_use or None})


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
