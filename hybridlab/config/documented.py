"""Every setting with its values, default and meaning, from the schema: `hybridlab config schema`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hybridlab.config.mistakes import models_in, tags_of
from hybridlab.config.resolve import Written
from hybridlab.config.shown import as_yaml
from hybridlab.config.types import fields_of, is_settings
from hybridlab.errors import UserError, nearest


class FileSettings(Written):
    """All that a file given with --config may contain."""

    extends: str | list[str] | None = None
    """Files that this one is merged over, with paths relative to it."""


@dataclass(frozen=True)
class Setting:
    """One setting. name: dotted; N stands for the index in a list. of: the kind or op of the mapping that has it, as
    in `kind rule`; "" for all others. default: as in YAML; None where there is none, as for those that a size gives."""

    name: str
    of: str
    values: str
    default: str | None
    meaning: str

    @property
    def in_words(self) -> str:
        """Values and default on one line."""
        parts = [f"({self.of})" if self.of else "", self.values]
        parts.append("" if self.default is None else f"default {self.default}")
        return "  ".join(part for part in parts if part)


def documented(prefix: str = "") -> list[Setting]:
    """All settings, or those whose names begin with these dotted words; UserError if there are none."""
    settings = list(_settings(FileSettings, "", "", None))
    name = ".".join("N" if part.isdigit() else part for part in prefix.split("."))
    matching = [s for s in settings if not prefix or s.name == name or s.name.startswith(f"{name}.")]
    if not matching:
        names = list(dict.fromkeys(setting.name for setting in settings))
        raise UserError(f"{prefix} is not a known setting; {nearest(prefix, names, '`config schema` lists all')}")
    return matching


def _settings(model: type[BaseModel], path: str, of: str, default: Any) -> Iterator[Setting]:
    """The settings of a model at a path. default: the instance that stands there if nothing is written, if known."""
    for name, info in fields_of(model).items():
        if name in tags_of(model):
            continue
        dotted = f"{path}.{name}" if path else name
        value = info.default if default is None else getattr(default, name)
        yield Setting(dotted, of, _in_words(info.annotation, info.metadata), _shown(value), _plain(info.description))
        for index, member in models_in(info.annotation):
            yield from _member(member, f"{dotted}{index}", of, value if isinstance(value, member) else None)


def _member(model: type[BaseModel], path: str, of: str, default: Any) -> Iterator[Setting]:
    """The settings of one model that may stand at a path; first its kind, if it has one."""
    for tag, value in tags_of(model).items():
        of = f"{tag} {value}"
        yield Setting(f"{path}.{tag}", of, str(value), None, _plain(model.__doc__))
    yield from _settings(model, path, of, default)


def _in_words(annotation: Any, metadata: Any = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for extra in arguments[1:] for m in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _in_words(arguments[0], inner)
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin is dict:
        return f"names with {_in_words(arguments[1])}"
    if origin in (list, tuple):
        items = [argument for argument in arguments if argument is not Ellipsis]
        number = f"{len(items)} × " if origin is tuple and len(items) == len(arguments) else ""
        return f"list of {number}{_in_words(items[0])}"
    if arguments:
        choices = (_in_words(a, metadata) for a in arguments if a is not NoneType)
        return " or ".join(dict.fromkeys(choices)) + (" or null" if NoneType in arguments else "")
    names = {bool: "true | false", int: "whole number", float: "number", str: "text"}
    if annotation in names:
        return f"{names[annotation]}{_bounds(metadata)}"
    return "settings" if is_settings(annotation) else "an attention kind"


def _bounds(metadata: Any) -> str:
    """The range of a number; ends that are very large or that are none are left out."""
    ends = {n: bound for m in metadata for n in ("ge", "gt", "le", "lt") if (bound := getattr(m, n, None)) is not None}
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    texts = [f"{signs[name]} {bound:g}" for name, bound in ends.items() if abs(bound) < 10**6]
    return " " + ", ".join(texts) if texts else ""


def _shown(default: Any) -> str | None:
    """A default as YAML; None if there is none, or if each of its settings has its own."""
    if default is PydanticUndefined or (is_settings(type(default)) and not tags_of(type(default))):
        return None
    return as_yaml(default.model_dump(mode="json") if isinstance(default, BaseModel) else default)


def _plain(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((text or "").split("\n\n")[0].split())
