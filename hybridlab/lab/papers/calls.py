"""Functions that an experiment file calls by name: `test: {kind: not_here, …}`, `compute: {function: …}`.

The arguments are read from the function's signature, so mistakes are reported when the file is loaded. A type can say
what a text refers to: `RowName` is the short name of a row of the experiment, `CellName` one of its cells.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

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


class Reference(NamedTuple):
    """A name in an experiment file. path: its place in the arguments. to: what it names. elsewhere: the id of another
    experiment that must have it; None for the file's own."""

    path: KeyPath
    to: str
    name: str
    elsewhere: str | None = None


class Reads:
    """An argument in which names stand, such as an expression."""

    def references(self) -> Iterator[Reference]:
        """Every name, with what it refers to."""
        raise NotImplementedError


def one_of(what: str, names_of: Callable[[], Iterable[str]]) -> AfterValidator:
    """Marks a text as one of the names in `names_of`, which do not depend on the experiment."""

    def check_name(name: str) -> str:
        if name not in (names := list(names_of())):
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
            value = values.get(argument)
            if isinstance(value, Reads):
                for reference in value.references():
                    yield Reference((argument,), reference.to, reference.name, reference.elsewhere)
            for path, mark, name in references(hint, value, (argument,)) if value is not None else ():
                yield Reference(path, mark.to, name)


_hints = lru_cache(get_type_hints)


def references(hint: Any, value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Refers, str]]:
    """(path, mark, text) of every text in a value whose type is marked, also in the fields of a model."""
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from references(part, value, path)
    elif isinstance(value, BaseModel):
        hints = _hints(type(value), include_extras=True)
        for name in type(value).model_fields:
            if (inside := getattr(value, name)) is not None:
                yield from references(hints[name], inside, (*path, name))
    elif isinstance(value, dict) and get_args(hint):
        for key, item in value.items():
            yield from references(get_args(hint)[1], item, (*path, key))
    elif isinstance(value, str):
        yield from ((path, mark, value) for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Refers))
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
        names = ", ".join(registry.names())
        raise UserError(located(layer.origin((key,)), f"{registry.what}: write `{key}: NAME`; known: {names}"))
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


SAYS = "says"
"""The kind of a test that an experiment file writes as an expression."""


def _as_call(test: Any) -> Any:
    """An expression, or a mapping with one under `holds`, as a call of the kind of claim that reads expressions."""
    test = {"holds": test} if isinstance(test, str) else test
    return {"kind": SAYS, **test} if isinstance(test, dict) and "holds" in test and "kind" not in test else test


class ClaimTest(dict[str, Any]):
    """A test of a claim as its file writes it: a claim kind and its arguments. They are checked once, when the file is
    loaded, or where they are needed first; all that asks what a test reads has it from there."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = core_schema.no_info_after_validator_function(cls, handler(dict[str, Any]))
        return core_schema.no_info_before_validator_function(_as_call, schema)

    @property
    def kind(self) -> str:
        return str(self["kind"])

    @cached_property
    def call(self) -> tuple[Function, dict[str, Any]]:
        """Its claim kind, and the checked arguments."""
        return called(CLAIM_KINDS, "kind", Layer(self))

    def check(self, origins: dict[KeyPath, str]) -> None:
        """UserError, with file and line, for arguments that do not fit the kind; once. origins: of these."""
        if "call" not in vars(self):
            self.call = called(CLAIM_KINDS, "kind", Layer(self, origins))

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """Every name in its arguments."""
        function, arguments = self.call
        return tuple(function.references(arguments))

    def _named(self, to: str) -> list[str]:
        return list(dict.fromkeys([reference.name for reference in self.references if reference.to == to]))

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that it reads: dotted paths into a record, and measures."""
        return self._named("metric or measure")

    @cached_property
    def first_metric(self) -> str:
        """The metric by which its arms are chosen; see `Experiment.arm`."""
        return next(iter(self.metrics), "")

    @cached_property
    def cells(self) -> list[str]:
        """The cells whose runs it names."""
        return self._named("cell")

    @cached_property
    def expression(self) -> Any:
        """What it says, an `Expression` of claims/expression.py; None for a test of another kind."""
        return self.call[1]["holds"] if self.kind == SAYS else None

    @cached_property
    def is_exact(self) -> bool:
        """Whether it reads no run: an expression on the print or on shapes, or a kind on the print."""
        return self.reads_print if self.expression is None else not self.expression.of_runs

    @cached_property
    def reads_print(self) -> bool:
        """Whether it reads nothing but what a paper prints or states."""
        if self.expression is None:
            return self.kind.startswith(("printed_", "stated_"))
        return bool(self.expression.of_print)

    def cells_read(self, metric: str) -> set[str] | None:
        """The cells from whose runs an expression reads a metric; None for a test of another kind."""
        cells: set[str] | None = None if self.expression is None else self.expression.cells_read(metric)
        return cells


def test_in_words(test: Mapping[str, Any]) -> str:
    """A test in short: its expression, or its kind and what it names."""
    if "holds" in test:
        return str(test["holds"])
    return ", ".join(f"{key} {value}" for key, value in test.items() if key != "reason").removeprefix("kind ")
