"""From pydantic's errors to one sentence: the origin, the setting, the mistake, and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hybridlab.config.method import Registered
from hybridlab.config.types import fields_of, is_settings
from hybridlab.config.yaml_text import KeyPath, value_at
from hybridlab.errors import SettingsConflict, nearest

_PLAIN = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "dataclass_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
}
"""pydantic's type of error → message, where pydantic's own message names a Python type."""
_MAPPING = ("dict_type", "model_type", "dataclass_type", "model_attributes_type")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""pydantic's types of errors about a name that a model or a dataclass does not have."""


def explain(
    model: Any,
    values: dict[str, Any],
    origin: Callable[[KeyPath], str],
    latest: Callable[[Iterable[KeyPath]], str],
    error: ValidationError,
    also: Iterable[str] = (),
) -> str:
    """The first mistake in `values` as one sentence.

    origin: path of a value → where it was written. latest: paths → where the value was written that was written last.
    also: names that are allowed at the top level in addition to the model's own.
    """
    problems = error.errors(include_url=False)
    # A misspelt name of a required setting causes two errors; the one about the misspelt name helps more.
    problem = next((p for p in problems if p["type"] in _UNKNOWN), problems[0])
    context = problem.get("ctx", {})
    kind = _UNKNOWN[0] if problem["type"] in _UNKNOWN else problem["type"]
    path = written_path(problem["loc"], values, missing=kind == "missing")
    tag = context.get("discriminator", "").strip("'")
    if kind == "union_tag_invalid":
        path = (*path, tag)
    misspelt = difflib.get_close_matches(tag, _names(value_at(values, path)), 1) if "not_found" in kind else []
    if misspelt:
        path, kind = (*path, misspelt[0]), "extra_forbidden"
    name, written = ".".join(str(part) for part in path), origin(path)
    if kind == "missing":
        # Other settings of the same mapping may have been written later; what is missing belongs to its kind.
        tagged = [(*path[:-1], key) for key in ("kind", "op") if key in _names(value_at(values, path[:-1]))]
        written = origin(tagged[0]) if tagged else written
    if isinstance(mistake := context.get("error"), SettingsConflict):
        written = latest((*path, *setting.split(".")) for setting in mistake.settings)
    prefix = f"{written}: " if written else ""
    if kind == "extra_forbidden":
        names = sorted({*known_names(model, path[:-1], values), *(also if len(path) == 1 else ())} - {path[-1]})
        hint = f"known here: {', '.join(names)}"
        return f"{prefix}{name} is not a known setting; {nearest(str(path[-1]), names, hint)}"
    if kind == "missing":
        way = f"add `{path[-1]}: VALUE` there" if written else f"add --set {name}=VALUE"
        return f"{prefix}{name} is missing; {way}"
    if kind == "union_tag_not_found":
        tags = [str(tags_of(member).get(tag)) for member in _models_at(model, path, values)]
        return f"{prefix}{name} needs `{tag}`; known: {', '.join(tags)}"
    if kind == "union_tag_invalid":
        tags = [text.strip("' ") for text in context["expected_tags"].split(",")]
        return f"{prefix}{name} {context['tag']!r} is unknown; {nearest(context['tag'], tags)}"
    if kind == "value_error":
        return f"{prefix}{name + ': ' if name else ''}{_lower(problem['msg'].removeprefix('Value error, '))}"
    if problem["type"] in _MAPPING and isinstance(problem["input"], str):
        choices = [tags_of(member) for member in _models_at(model, path, values)]
        meant = next((tags for tags in choices if problem["input"] in tags.values()), None)
        if meant is not None:
            tag, value = next(iter(meant.items()))
            return f"{prefix}{name} = {value!r}: must be a mapping; write {{{tag}: {value}}}, and its settings after it"
    same = [p for p in problems if written_path(p["loc"], values) == path]
    messages = " or ".join(dict.fromkeys(_message(p) for p in same)).replace(" or must be ", " or ")
    return f"{prefix}{name} = {problem['input']!r}: {messages}"


def written_path(location: KeyPath, values: Any, missing: bool = False) -> KeyPath:
    """The path of keys in `values`, from pydantic's location, which also contains the tags of unions.

    missing: the last part is a key that `values` lacks.
    """
    if missing:
        mappings = [path for path in _readings(location[:-1], values) if isinstance(value_at(values, path), dict)]
        lacking = [path for path in mappings if location[-1] not in value_at(values, path)]
        return (*max(lacking or [()], key=len), location[-1])
    readings = list(_readings(location, values))
    complete = [path for path in readings if path[-1:] == location[-1:]]
    return max(complete or readings, key=len)


def _readings(location: KeyPath, values: Any) -> Iterator[KeyPath]:
    """Every way to follow a location through the values, without the parts that are read as tags."""
    if not location:
        yield ()
        return
    first, rest = location[0], location[1:]
    if _holds(values, first):
        yield from ((first, *path) for path in _readings(rest, values[first]))
    yield from _readings(rest, values)


def _holds(values: Any, part: str | int) -> bool:
    if isinstance(values, dict):
        return part in values
    return isinstance(values, list) and isinstance(part, int) and part < len(values)


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def known_names(model: type[BaseModel], path: KeyPath, values: Any, registered: bool = True) -> list[str]:
    """The names that the schema allows in the mapping at this path. registered: also those that plug-ins add, for which
    the installed ones are loaded."""
    models = _fitting(_models_at(model, path, values), value_at(values, path))
    names: list[Iterable[str]] = [fields_of(member) for member in models]
    names += [getattr(member, "plugin_names", list)() for member in models if registered]
    return sorted({name for some in names for name in some})


def unknown_names(model: type[BaseModel], values: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, list[str]]]:
    """(path, known names) of every name in `values` that the schema does not have. Missing settings are no mistake."""
    value = value_at(values, path)
    if isinstance(value, list):
        for index in range(len(value)):
            yield from unknown_names(model, values, (*path, index))
    elif isinstance(value, dict):
        checked = bool(_models_at(model, path, values))
        built_in = known_names(model, path, values, registered=False) if checked else list(value)
        for name in value:
            if name in built_in or name in known_names(model, path, values):
                yield from unknown_names(model, values, (*path, name))
            else:
                yield (*path, name), known_names(model, path, values)


def _models_at(model: type[BaseModel], path: KeyPath, values: Any) -> list[type[BaseModel]]:
    """The models that the schema allows at this path."""
    annotations: list[Any] = [model]
    for part in path:
        annotations = [inner for annotation in annotations for inner in _below(annotation, part, values)]
        values = values[part] if _holds(values, part) else None
    return [member for annotation in annotations for member in _models(annotation)]


def _below(annotation: Any, part: str | int, value: Any) -> list[Any]:
    """The types allowed under key or index `part` of a value of type `annotation`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (list, tuple):
        return [argument for argument in arguments if isinstance(part, int)]
    if origin is dict:
        return [arguments[1]] if isinstance(part, str) else []
    if is_settings(annotation):
        fields = fields_of(annotation)
        return [fields[part].annotation] if part in fields else []
    models = _fitting(_models(annotation), value)
    plain = [argument for argument in arguments if not _models(argument)]
    return [inner for choice in (*models, *plain) for inner in _below(choice, part, value)]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models in this type; those of the elements of a list or mapping are not included."""
    return [model for index, model in models_in(annotation) if not index]


def models_in(annotation: Any, index: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """(index, model) of the models in a type: `.N` for the elements of a list or mapping, `.N.N` for those of a list of
    lists, otherwise ""."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_settings(annotation):
        yield index, annotation
    elif origin is not Literal:
        inside = f"{index}.N" if origin in (list, tuple, dict) else index
        if opened := [extra for extra in arguments[1:] if isinstance(extra, Registered)]:
            yield from ((inside, model) for model in opened[0].models())
        else:
            for argument in arguments:
                yield from models_in(argument, inside)


def _fitting(models: list[type[BaseModel]], value: Any) -> list[type[BaseModel]]:
    """The models whose tag (`kind`, `op`) equals that of the value; all models if none matches."""
    written = value if isinstance(value, dict) else {}
    return [m for m in models if (tags := tags_of(m)) and all(written.get(k) == v for k, v in tags.items())] or models


def tags_of(model: type[BaseModel]) -> dict[str, Any]:
    """The fields that have a single possible value; these distinguish the members of a union."""
    literals = {n: f.annotation for n, f in fields_of(model).items() if get_origin(f.annotation) is Literal}
    return {name: get_args(literal)[0] for name, literal in literals.items() if len(get_args(literal)) == 1}


def _message(problem: Any) -> str:
    """The message about a value of a wrong type or outside its range."""
    if problem["type"] in _PLAIN:
        return _PLAIN[problem["type"]]
    message = problem["msg"].replace("Input should be", "must be")
    if problem["type"] == "literal_error" and isinstance(problem["input"], str):
        allowed = [text.strip("' ") for text in problem["ctx"]["expected"].replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(problem["input"], allowed, 1)
        message += f"; did you mean {near[0]!r}?" if near else ""
    return _lower(message)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
