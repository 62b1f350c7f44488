"""From YAML files, presets and `--set` to a checked configuration, with the place of every value kept for errors.

Precedence: schema defaults < `extends` < the file < later files < `--set`. A mapping whose `kind` changes replaces
the one below it as a whole, since its other fields belong to the old kind.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from hybridlab.errors import UserError

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """Safe YAML, with 1e-3 read as a number (YAML 1.2) and without dates."""


_Loader.yaml_implicit_resolvers = {
    key: [
        (tag, pattern)
        for tag, pattern in pairs
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _parse(text: str) -> Any:
    """One YAML document. The loader is a SafeLoader: it makes plain values and runs nothing."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


@dataclass(frozen=True)
class Layer:
    """Values with the place that each of them was written at."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str:
        """The place of a value, or of the nearest mapping around it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, "")

    def under(self, key: str) -> Layer:
        """The part below a key, as a layer of its own."""
        inner = {path[1:]: place for path, place in self.origins.items() if path[:1] == (key,)}
        return Layer(dict(self.values.get(key) or {}), inner)


def read_yaml(path: Path) -> Layer:
    """One YAML file (a mapping) with line numbers; `extends` is not followed here."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: it cannot be read as text ({error})") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = _parse(text) or {}
    except RecursionError:
        raise UserError(f"{path}: an alias in this file contains itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: this is not YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a configuration is a mapping of names to values")
    origins: dict[KeyPath, str] = {}
    if node is not None:
        _collect_origins(node, (), path.name, origins)
    return Layer(values, origins)


def _collect_origins(node: yaml.Node, path: KeyPath, name: str, origins: dict[KeyPath, str]) -> None:
    origins[path] = f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise UserError(f"{name}:{key.start_mark.line + 1}: {key.value!r} is written twice in one mapping")
            seen.add(key.value)
            _collect_origins(value, (*path, key.value), name, origins)
            origins[(*path, key.value)] = f"{name}:{key.start_mark.line + 1}"
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _collect_origins(value, (*path, index), name, origins)


def load_file(path: Path, _chain: tuple[Path, ...] = ()) -> Layer:
    """One file with everything it `extends` (a path beside it, or a list of them) laid under it."""
    path = path.resolve()
    if path in _chain:
        raise UserError(f"{path}: extends itself through {' → '.join(p.name for p in _chain)}")
    layer = read_yaml(path)
    values = dict(layer.values)
    parents = values.pop("extends", [])
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(p, str) for p in parents):
        raise UserError(f"{layer.origin(('extends',))}: extends names one file or a list of files")
    below = [load_file(path.parent / parent, (*_chain, path)) for parent in parents]
    return merge(*below, Layer(values, layer.origins))


def parse_setting(text: str) -> Layer:
    """`a.b=c`, with the value read as YAML."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"--set {text}: write it as name.of.field=value")
    try:
        parsed = _parse(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text}: the value is not YAML") from None
    for part in reversed(parts):
        parsed = {part: parsed}
    return Layer(parsed, {tuple(parts): f"--set {text}", (): f"--set {text}"})


def merge(*layers: Layer) -> Layer:
    """Lay each layer over the ones before it."""
    values: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for layer in layers:
        values = _merge_values(values, layer.values)
        origins.update(layer.origins)
    return Layer(values, origins)


def _merge_values(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    if "kind" in above and above["kind"] != below.get("kind", above["kind"]):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge_values(merged[key], value) if both else value
    return merged


def check(model: type[Model], layer: Layer) -> Model:
    """The layer as a checked model; the first mistake ends in one sentence with its place and the nearest name."""
    try:
        return model.model_validate_json(json.dumps(layer.values), strict=True)
    except ValidationError as error:
        raise UserError(_explain(model, layer, error)) from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{layer.origin(())}: {error}") from None


def _explain(model: type[BaseModel], layer: Layer, error: ValidationError) -> str:
    problem = error.errors()[0]
    location = _written_path(model, problem["loc"])
    name = ".".join(str(part) for part in location)
    place = layer.origin(location)
    prefix = f"{place}: " if place else ""
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1], layer.values)
        near = difflib.get_close_matches(str(location[-1]), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"{prefix}{name} is not a known setting; {hint}"
    if problem["type"] == "missing":
        return f"{prefix}{name} is missing; set it with --set {name}=VALUE or in the file"
    if problem["type"] == "union_tag_not_found":
        return f"{prefix}{name} needs a kind; known kinds: {problem['ctx'].get('expected_tags', '')}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if problem["type"] == "value_error":
        return f"{prefix}{name + ': ' if name else ''}{message}"
    return f"{prefix}{name} = {problem['input']!r}: {message}"


def _written_path(model: type[BaseModel], location: KeyPath) -> KeyPath:
    """pydantic's location without the tags of unions, which the file does not have."""
    path: list[str | int] = []
    models, tagged = [model], False
    for part in location:
        if tagged:
            models, tagged = [m for m in models if _kind_of(m) == part] or models, False
            continue
        path.append(part)
        annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [leaf for annotation in annotations for leaf in _models_in(annotation)]
        tagged = sum(_kind_of(m) is not None for m in models) > 1
    return tuple(path)


def _kind_of(model: type[BaseModel]) -> str | None:
    """The literal that marks a member of a union."""
    return next(iter(get_args(model.model_fields["kind"].annotation)), None) if "kind" in model.model_fields else None


def _fields_at(model: type[BaseModel], path: KeyPath, values: dict[str, Any]) -> list[str]:
    """The names that may stand in the mapping at this path."""
    models, here = [model], values
    for part in path:
        annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [leaf for annotation in annotations for leaf in _models_in(annotation)]
        here = here[part] if isinstance(here, dict) and part in here else {}
        kind = here.get("kind") if isinstance(here, dict) else None
        models = [m for m in models if kind is not None and _kind_of(m) == kind] or models
    return sorted({name for m in models for name in m.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


@cache
def preset_folder(kind: str) -> Path:
    return Path(__file__).resolve().parent.parent / "presets" / kind


def preset_names(kind: str) -> list[str]:
    return sorted(path.stem for path in preset_folder(kind).glob("*.yaml"))


def load_preset(kind: str, name: str) -> Layer:
    """A named preset of the package: kind is arch, size or data."""
    names = preset_names(kind)
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise UserError(f"--{kind} {name}: there is no such {kind}; {hint}")
    return load_file(preset_folder(kind) / f"{name}.yaml")
