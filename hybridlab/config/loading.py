"""From YAML files, presets and `--set` to a checked configuration. The origin of every value is kept for errors.

Precedence: schema defaults < presets < `extends` < the file < options < `--set`. An option that names a preset
replaces the name in a file. Mappings are merged, but one with another `kind` replaces the earlier mapping completely,
because the other fields belong to the old kind.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hybridlab.config.mistakes import explain
from hybridlab.config.yaml_text import KeyPath, NotYaml, parse_yaml, with_value
from hybridlab.errors import UserError, located, nearest
from hybridlab.files import to_utf8, user_path

Settings = TypeVar("Settings")
ALTERNATIVES = {
    "warmup_steps": "warmup_fraction",
    "warmup_fraction": "warmup_steps",
    "validation_windows": "validation_tokens",
    "validation_tokens": "validation_windows",
    "source": "sources",
    "sources": "source",
}
"""Two names for one setting: a layer that writes one of them replaces the other in the layers before it."""
VARY = "--vary "
"""How the text of a setting begins that a grid varies; other settings are those of --set."""
_MINIMUM_AGE = 2 * 10**9
"""In nanoseconds. A younger file may change again without a new time stamp, so its content is not cached."""


@dataclass(frozen=True)
class Named:
    """A preset that a file names. text: its name, the path of a YAML file or, for data, a source."""

    text: str
    origin: str


@dataclass(frozen=True)
class Layer:
    """Settings, with the origin of each: `file:line` or the text of the option. Origins of values that were written
    later come later.

    asked: they were written for this run (in a file or with `--set`), so a setting without effect is an error. Others
    are defaults (from a preset, or shared by several runs), which are used where they fit. named: the presets that a
    file of settings chooses with `arch`, `size` and `data`; see `load_settings`.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    asked: bool = False
    named: dict[str, Named] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str:
        """Where a value was written or, if that is unknown, the nearest mapping around it; "" if both are unknown."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, "")

    @property
    def settings(self) -> Layer:
        """The layer without the presets that it names."""
        return replace(self, named={})

    def without(self, *names: str) -> Layer:
        """The layer without these settings at the top; their origins stay."""
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def only(self, *names: str) -> Layer:
        """The layer with no settings at the top but these; the origins of the others stay."""
        return self.without(*(self.values.keys() - set(names)))

    def latest(self, paths: Iterable[KeyPath]) -> str:
        """Where the value was written that was written last, of those at these paths.

        Values that are not set do not count, unless none is.
        """
        written = list(paths)
        order = {path: index for index, path in enumerate(self.origins)}
        ordered = [path for path in written if path in order]
        if not ordered:
            return self.origin(written[0] if written else ())
        return self.origins[max(ordered, key=order.__getitem__)]

    def moved(self, path: KeyPath, target: KeyPath) -> dict[KeyPath, str]:
        """The origins, where the value at a path has moved to another one; their order stays."""
        return {
            new: origin
            for old, origin in self.origins.items()
            for new in ((old, target) if old == path else (old,) if old != target else ())
        }

    def part(self, path: KeyPath, values: dict[str, Any]) -> Layer:
        """A new layer with the values at a path and their origins."""
        around = self.origin(path)
        return Layer(values, {(): around, **_origins_of(self.origins, values, path, around, len(path))}, self.asked)


def read_yaml(path: Path) -> Layer:
    """One YAML file (a mapping) with line numbers; `extends` is not followed. A file is parsed once per process."""
    try:
        stat = path.stat()
        cacheable = time.time_ns() - stat.st_mtime_ns > _MINIMUM_AGE
        reader = _read if cacheable else _read.__wrapped__
        values, origins = reader(path, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: this is not UTF-8 text; {to_utf8(error.object)}") from None
    except OSError as error:
        raise UserError(f"{path}: it cannot be read as text ({error})") from None
    return Layer(deepcopy(values), dict(origins), asked=True)


def states_of(files: Iterable[Path]) -> tuple[tuple[Path, int, int], ...] | None:
    """Path, time stamp and size of files: what they say is the same while these are. None if one of them is so young
    that it may change without them."""
    states = tuple((path, (stat := path.stat()).st_mtime_ns, stat.st_size) for path in files)
    return states if all(time.time_ns() - modified > _MINIMUM_AGE for _, modified, _ in states) else None


@lru_cache(maxsize=512)
def _read(path: Path, _modified: int, _size: int) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Values of a file and their origins; its time stamp and size are part of the cache key."""
    try:
        values, lines = parse_yaml(path.read_text(encoding="utf-8"))
    except NotYaml as problem:
        line = f":{problem.line}" if problem.line else ""
        raise UserError(f"{path}{line}: {problem}") from None
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise UserError(f"{path}: a configuration must be a mapping of names to values")
    return values, {key: f"{path.name}:{line}" for key, line in lines.items()}


def load_file(
    path: Path, prepared: Callable[[Layer, Path], Layer] = lambda layer, _: layer, _chain: tuple[Path, ...] = ()
) -> Layer:
    """One file merged over the files that it `extends` (one path or a list, relative to the file).

    prepared: changes the layer of each file, given with its path, before they are merged.
    """
    layer = prepared(read_yaml(path), path)
    if "extends" not in layer.values:
        return layer
    path = path.resolve()
    if path in _chain:
        raise UserError(f"{path}: extends itself through {' → '.join(p.name for p in _chain)}")
    parents = layer.values.pop("extends")
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(p, str) for p in parents):
        raise UserError(f"{layer.origin(('extends',))}: extends must be a file or a list of files")
    for index, parent in enumerate(parents):
        if not (path.parent / user_path(parent)).is_file():
            origin = layer.origin(("extends", index))
            raise UserError(f"{origin}: extends {parent}: there is no file {path.parent / user_path(parent)}")
    below = [load_file(path.parent / user_path(parent), prepared, (*_chain, path)) for parent in parents]
    return merge(*below, layer)


def load_settings(files: Path | Iterable[Path] | None) -> Layer:
    """Files of settings, as `--config` takes them, later ones over earlier ones. Their `arch` and `size`, and `data` if
    it is text, choose presets as the options of these names do; they are in `named`. Paths of preset files are relative
    to the file that names them."""
    several = [files] if isinstance(files, Path) else files or ()
    return merge(*(load_file(path, _without_names) for path in several))


def _without_names(layer: Layer, path: Path) -> Layer:
    """The layer with the presets that it names moved to `named`."""
    values, named = dict(layer.values), {}
    for kind in ("arch", "size", "data"):
        text = values.get(kind)
        if kind in values and kind != "data" and not isinstance(text, str):
            raise UserError(f"{layer.origin((kind,))}: {kind} = {text!r}: must be the name of a preset or ./mine.yaml")
        if isinstance(text, str):
            del values[kind]
            inside = kind != "data" and is_file_name(text)
            place = str(path.parent / user_path(text)) if inside else text
            named[kind] = Named(place, layer.origin((kind,)))
    return replace(layer, values=values, named=named)


def named_preset(kind: str, option: str | None, file: Layer) -> str | None:
    """The preset that an option names or, where that is not given, a file; None if neither does.

    kind: arch or size. UserError, with its place in the file, for a preset that does not exist.
    """
    if option is not None or kind not in file.named:
        return option
    choice = file.named[kind]
    load_preset(kind, choice.text, f"{choice.origin}: {kind}")
    return choice.text


def parse_setting(text: str, option: str | None = None) -> Layer:
    """A layer from `a.b=c`, with the value read as YAML, or from `--vary a.b=c`, which errors then name. option: what
    they name in place of `--set a.b=c`."""
    written = option or (text if text.startswith(VARY) else f"--set {text}")
    key, equals, value = text.removeprefix(VARY).partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"{written}: write it as name.of.field=value")
    try:
        parsed, _ = parse_yaml(value)
    except NotYaml as problem:
        raise UserError(f"{written}: the value cannot be read; {problem}") from None
    return Layer(with_value({}, tuple(parts), parsed), {tuple(parts): written, (): written}, asked=True)


def given_of(layer: Layer, settings: Mapping[str, Collection[str]]) -> str | None:
    """The first setting that a layer gives of these, section → names, as `section.name`; None if it gives none."""
    for part, section in layer.values.items():
        for name in section if isinstance(section, dict) else ():
            if name in settings.get(part, ()):
                return f"{part}.{name}"
    return None


def options_layer(options: Mapping[str, tuple[str, Any]], asked: bool = False) -> Layer:
    """The layer of the options that are given: dotted name of a setting → the option, and its value or None."""
    values: dict[str, Any] = {}
    written = {tuple(name.split(".")): option for name, option in options.items() if option[1] is not None}
    for path, (_, value) in written.items():
        values = with_value(values, path, value)
    return Layer(values, {path: option for path, (option, _) in written.items()}, asked)


def merge(*layers: Layer) -> Layer:
    """Merge layers, later ones over earlier ones; each value keeps its origin.

    Data that a file names as text replaces what the layers before it say of data.
    """
    values: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    named: dict[str, Named] = {}
    asked = False
    for layer in layers:
        gone: set[KeyPath] = set()
        named |= layer.named
        asked = asked or layer.asked
        if "data" in layer.named and values.pop("data", None):
            gone.add(("data",))
        values = _merge_values(values, layer.values, (), gone)
        new = layer.origins | _origins_of(layer.origins, layer.values, (), layer.origins.get((), ""))
        if gone:
            inside = {path for old in gone - {()} for path in origins if path[: len(old)] == old}
            origins = {path: origin for path, origin in origins.items() if path not in inside}
        # Those of the new layer come last, see `Layer`.
        for path in origins.keys() & new.keys():
            del origins[path]
        origins |= new
    return Layer(values, origins, asked, named)


def _merge_values(below: dict[str, Any], above: dict[str, Any], path: KeyPath, gone: set[KeyPath]) -> dict[str, Any]:
    """gone: output; the paths whose earlier values are replaced completely are added to it."""
    if "kind" in above and above["kind"] != below.get("kind", above["kind"]):
        gone.add(path)
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        if (alternative := ALTERNATIVES.get(key)) in merged and alternative not in above:
            del merged[alternative]
            gone.add((*path, alternative))
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge_values(merged[key], value, (*path, key), gone)
        else:
            if key in merged:
                gone.add((*path, key))
            merged[key] = value
    return merged


def _origins_of(
    origins: dict[KeyPath, str], values: dict[str, Any], path: KeyPath, around: str, start: int = 0
) -> dict[KeyPath, str]:
    """The origin of each of the values at a path; a value without one gets that of the mapping around it.

    start: number of parts to cut from the beginning of the returned paths.
    """
    result: dict[KeyPath, str] = {}
    for key, value in values.items():
        full_path = (*path, key)
        result[full_path[start:]] = origin = origins.get(full_path, around)
        if isinstance(value, dict):
            result |= _origins_of(origins, value, full_path, origin, start)
    return result


def check(model: type[Settings], layer: Layer, also: tuple[str, ...] = ()) -> Settings:
    """The layer as checked settings: a pydantic model, or plain data (plan/shape.py).

    UserError for the first mistake, with its origin and the nearest known name.

    also: names that are allowed at the top level in addition to the model's own; errors suggest them too.
    """
    try:
        written = json.dumps(layer.values)
        return _adapter(model).validate_json(written, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        raise UserError(explain(model, json.loads(written), layer.origin, layer.latest, error, also)) from None
    except (TypeError, ValueError) as error:
        raise UserError(located(layer.origin(()), error)) from None


@lru_cache(maxsize=64)
def _adapter(model: type[Settings]) -> TypeAdapter[Settings]:
    """What checks values against a type; to build one takes longer than to use it."""
    return TypeAdapter(model)


@cache
def preset_folder(kind: str) -> Path:
    return Path(__file__).resolve().parent / "presets" / kind


def preset_names(kind: str) -> list[str]:
    return sorted(path.stem for path in preset_folder(kind).glob("*.yaml"))


def is_preset(kind: str, name: str) -> bool:
    """Whether hybridlab has a preset of this name."""
    return not is_file_name(name) and (preset_folder(kind) / f"{name}.yaml").is_file()


def is_file_name(preset: str) -> bool:
    """Whether this is the path of a preset file (`./mine.yaml`), not the name of a preset."""
    return preset.endswith((".yaml", ".yml")) or os.sep in preset


def preset_name(preset: str) -> str:
    """The name in a run's record: that of the preset, or the file name without its extension."""
    return Path(preset).stem if is_file_name(preset) else preset


def load_preset(kind: str, name: str, written: str | None = None) -> Layer:
    """The defaults of a preset.

    kind: arch, size, data or training. name: the name of a preset, or the path of a YAML file. written: where the name
    was written, for errors; by default the option.
    """
    written = written or f"--{kind}"
    if not is_file_name(name):
        if not is_preset(kind, name):
            raise UserError(f"{written} {name}: there is no such {kind}; {nearest(name, preset_names(kind))}")
        return replace(load_file(preset_folder(kind) / f"{name}.yaml"), asked=False)
    layer = load_settings(user_path(name))
    for named_kind, choice in layer.named.items():
        raise UserError(
            f"{choice.origin}: a preset file cannot choose another preset with `{named_kind}`; "
            f"give the file with --config instead of --{kind}, or name that preset under `extends:`"
        )
    return replace(layer, asked=False)


# ---- what presets say of themselves ----

_SENTENCE = re.compile(r".*?[.!?](?=\s|$)")
"""Up to the first mark that ends a sentence; the point in 0.6B has no space after it."""


def summaries(kind: str) -> dict[str, str]:
    """Name → first sentence of the leading comment, of all presets of a kind (arch, size or data)."""
    return {
        name: first_sentence((preset_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in preset_names(kind)
    }


def first_sentence(text: str) -> str:
    """The first sentence of the comment at the beginning of a YAML text; "" where there is none."""
    comment: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    joined = " ".join(comment)
    match = _SENTENCE.match(joined)
    return match[0] if match else joined
