"""Functions that an experiment file calls by name: `test: {kind: not_here, …}`, `compute: {function: …}`.

The arguments are read from the function's signature, so mistakes are reported when the file is loaded. A type can say
what a text refers to: `RowName` is the short name of a row of the experiment, `CellName` one of its cells.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, create_model

from hybridlab.config.loading import KeyPath, Layer, check
from hybridlab.config.types import Made
from hybridlab.errors import UserError, located, nearest
from hybridlab.registry import Registry


@dataclass(frozen=True)
class Refers:
    """Marks a text as a name. to: the kind of thing it names."""

    to: str


RowName = Annotated[str, Refers("row")]
"""The short name of a row."""
RowNames = list[RowName]
ColumnName = Annotated[str, Refers("column")]
CellName = Annotated[str, Refers("cell")]
CellNames = list[CellName]
ModelName = Annotated[str, Refers("model")]
"""A model of the experiment's benchmark."""
MetricPath = Annotated[str, Refers("metric or measure")]
"""A dotted path into a record, or a measure of the file."""


@dataclass(frozen=True)
class RefersIn:
    """Marks a text in which names stand, such as an expression. names: yields them."""

    names: Callable[[str], Iterator[Reference]]


class Reference(NamedTuple):
    """A name in an experiment file. path: its place in the arguments. to: what it names. elsewhere: the id of another
    experiment that must have it; None for the file's own."""

    path: KeyPath
    to: str
    name: str
    elsewhere: str | None = None


def one_of(what: str, known: Callable[[], Iterable[str]]) -> AfterValidator:
    """Marks a text as one of the names in `known`, which do not depend on the experiment."""

    def check_name(name: str) -> str:
        if name not in (names := list(known())):
            raise ValueError(f"{name!r} is not a {what}; {nearest(name, names)}")
        return name

    return AfterValidator(check_name)


@dataclass(frozen=True)
class Function:
    """A function with the model of its arguments. hints: argument → annotated type."""

    run: Callable[..., Any]
    hints: dict[str, Any]
    arguments: type[Made]

    @classmethod
    def of(cls, run: Callable[..., Any], skip: int = 0) -> Function:
        """skip: the number of leading parameters that the file does not write."""
        hints = get_type_hints(run, include_extras=True)
        fields: dict[str, Any] = {
            name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in list(inspect.signature(run).parameters.items())[skip:]
        }
        model = create_model(run.__name__, __base__=Made, **fields)
        return cls(run, {name: hint for name, (hint, _) in fields.items()}, model)

    def references(self, values: dict[str, Any]) -> Iterator[Reference]:
        """Every name in the arguments."""
        for argument, hint in self.hints.items():
            for path, mark, name in references(hint, values.get(argument), (argument,)):
                if isinstance(mark, RefersIn):
                    yield from (one._replace(path=path) for one in mark.names(name))
                else:
                    yield Reference(path, mark.to, name)


_hints = lru_cache(get_type_hints)


def references(hint: Any, value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any, str]]:
    """(path, mark, text) of every text in a value whose type is marked, also in the fields of a model. A mark is a
    `Refers` or a `RefersIn`."""
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from references(part, value, path)
    elif isinstance(value, BaseModel):
        hints = _hints(type(value), include_extras=True)
        for name in type(value).model_fields:
            yield from references(hints[name], getattr(value, name), (*path, name))
    elif isinstance(value, dict) and get_args(hint):
        for key, item in value.items():
            yield from references(get_args(hint)[1], item, (*path, key))
    elif isinstance(value, str):
        yield from (
            (path, mark, value) for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Refers | RefersIn)
        )
    elif isinstance(value, list | tuple):
        # Annotated[list[X], …], as with a least length, has the type arguments of the list inside.
        hint = hint.__origin__ if get_origin(hint) is Annotated else hint
        inner = [part for part in get_args(hint) if part is not Ellipsis]
        for index, item in enumerate(value):
            # A tuple has a type for each index, a list one for all.
            yield from references(inner[index % len(inner)] if inner else Any, item, (*path, index))


CLAIM_KINDS: Registry[Function] = Registry("claim kind", loads="hybridlab.lab.papers.claims")
"""The values of `test.kind` of a claim; see papers/claims/kinds.py."""


def called(registry: Registry[Function], key: str, layer: Layer) -> tuple[Function, dict[str, Any]]:
    """The function that a file names at `key`, and its checked arguments; a UserError begins with file and line."""
    values = dict(layer.values)
    name = values.pop(key, None)
    if not isinstance(name, str):
        known = ", ".join(registry.names())
        raise UserError(located(layer.origin((key,)), f"{registry.what}: write `{key}: NAME`; known: {known}"))
    try:
        function = registry.get(name)
    except UserError as error:
        raise UserError(located(layer.origin((key,)), error)) from None
    for argument in values:
        if argument not in function.hints:
            hint = nearest(argument, list(function.hints), None if function.hints else "it takes none")
            problem = f"{registry.what} {name} takes no argument {argument!r}; {hint}"
            raise UserError(located(layer.origin((argument,)), problem))
    for argument, field in function.arguments.model_fields.items():
        if field.is_required() and argument not in values:
            raise UserError(located(layer.origin((key,)), f"{registry.what} {name} needs the argument {argument!r}"))
    arguments = check(function.arguments, Layer(values, layer.origins))
    return function, {argument: getattr(arguments, argument) for argument in function.hints}
