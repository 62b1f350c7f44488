"""Arguments of the Python API: numpy's numbers and arrays, paths and tuples are made plain Python, and a value of
another type than a function declares is a UserError.

    @checked
    def train(arch: str = "vanilla", *, tags: Sequence[str] = ()) -> TrainedRun: ...

    train(Path("mine.yaml"), tags="first")    # arch is "mine.yaml", tags is ["first"]

One text where a list of texts is wanted is a list of one.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from hybridlab.errors import UserError, shown

Given = ParamSpec("Given")
Result = TypeVar("Result")
_WORDS: dict[Any, str] = {
    str: "text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
}


def plain(value: Any) -> Any:
    """A value with numbers, lists, dicts and texts instead of those of numpy and torch, tuples, ranges and paths;
    anything else as it is."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def checked(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function whose arguments are made plain and checked by their annotations, as the module says."""
    signature = inspect.signature(function)

    @cache
    def hints() -> dict[str, Any]:
        return {name: _hint(parameter.annotation, function) for name, parameter in signature.parameters.items()}

    @wraps(function)
    def call(*arguments: Given.args, **options: Given.kwargs) -> Result:
        bound = signature.bind(*arguments, **options)
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = plain(value)
                continue
            try:
                several = kind is inspect.Parameter.VAR_POSITIONAL
                hint = hints()[name]
                bound.arguments[name] = tuple(_as(hint, item) for item in value) if several else _as(hint, value)
            except TypeError as problem:
                raise UserError(
                    f"{function.__name__}: {name}= is {shown(value)}{problem}; it must be {_in_words(hints()[name])}"
                    f"{_saved_first(value)}"
                ) from None
        return function(*bound.args, **bound.kwargs)

    return call


def _saved_first(value: object) -> str:
    """What to do with a model where a run or a folder is wanted."""
    if not hasattr(value, "with_plan"):
        return ""
    return (
        "; write the model into a folder with hybridlab.save(model, FOLDER, tokenizer=…), and give that folder, whose "
        "model keeps its plan"
    )


def _hint(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type of an annotation; Any for one whose names are known to type checkers alone."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        # One by one, as typing.get_type_hints fails for all where one names what type checkers alone import.
        return eval(annotation, function.__globals__)
    except NameError:
        return Any


def _as(hint: Any, value: Any) -> Any:
    """A value as a type says; TypeError if it is no such value."""
    if hint is Any or isinstance(hint, TypeVar) or getattr(hint, "_is_protocol", False):
        return value
    if isinstance(hint, type) and hint not in _WORDS and isinstance(value, hint):
        return value
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _as_one_of(inner, value)
    if origin is type:
        if isinstance(value, type) and issubclass(value, inner[0]):
            return value
        raise TypeError
    if origin in (dict, Mapping) and isinstance(value, Mapping) and not _is_plain(inner[1]):
        return value
    value = plain(value) if not isinstance(value, os.PathLike) else value
    if origin is Literal:
        if any(value is choice or (type(value) is type(choice) and value == choice) for choice in inner):
            return value
    elif origin in (list, tuple, Sequence, Iterable):
        items = [value] if isinstance(value, str | os.PathLike) and inner[0] is str else value
        if origin is Iterable and isinstance(items, Iterable) and not isinstance(items, str | Mapping):
            items = list(items)
        if isinstance(items, list):
            return [_item(inner[0], item) for item in items]
    elif origin in (dict, Mapping):
        if isinstance(value, Mapping):
            return value
    elif hint is str:
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
    elif hint is Path:
        if isinstance(value, str | os.PathLike):
            return Path(value)
    elif hint in (int, float):
        if not isinstance(value, bool) and isinstance(value, int if hint is int else int | float):
            return value
    elif not isinstance(hint, type) or isinstance(value, hint):
        return value
    raise TypeError


def _is_plain(hint: Any) -> bool:
    """Whether values of a type are made plain: not those of a class of their own, such as tensors."""
    return hint is Any or hint in _WORDS or not isinstance(hint, type)


def _item(hint: Any, value: Any) -> Any:
    """An entry of a list; see `_as`."""
    try:
        return _as(hint, value)
    except TypeError:
        raise TypeError(f", where {value!r} is not {_in_words(hint)}") from None


def _as_one_of(hints: Sequence[Any], value: Any) -> Any:
    """A value as the first of some types that it is; a path stays one where a path is among them."""
    if isinstance(value, os.PathLike) and Path in hints:
        return Path(value)
    for hint in hints:
        try:
            return _as(hint, value)
        except TypeError:
            continue
    raise TypeError


def _in_words(hint: Any) -> str:
    """A type for an error."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = list(dict.fromkeys(_in_words(part) for part in inner if part is not type(None)))
        return " or ".join(words)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is type:
        return f"a subclass of {_name(inner[0])}"
    if origin in (list, tuple, Sequence, Iterable):
        return f"a list of {_WORDS_OF_MANY.get(inner[0], f'{_name(inner[0])} objects')}"
    if origin in (dict, Mapping):
        return "a dict"
    name = _name(hint)
    return _WORDS.get(hint) or f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


_WORDS_OF_MANY: dict[Any, str] = {str: "texts", int: "whole numbers", float: "numbers"}


def _name(hint: Any) -> str:
    name = str(getattr(hint, "__name__", hint))
    return "model" if name == "Transformer" else name
