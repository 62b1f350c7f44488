"""The base classes of all schemas, and their number types."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hybridlab.errors import nearest
from hybridlab.registry import Registry

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(ge=1, le=10**12)]
Width = Annotated[int, Field(ge=1, le=10**6)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Window = Annotated[int, Field(ge=1, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**12)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Granularity = Literal["layer", "head-all", "head-single"]
OF_A_RUN = "the name of a run"
RunName = Annotated[str, OF_A_RUN]
"""The name, folder or hash of another run, whose results take its place (config/other_runs.py)."""

OrNone = AfterValidator(lambda value: value or None)
"""Of a setting whose default is None: 0 and false mean the same, and become None, so that they do not change a hash."""


def name_in(registry: Registry[Any], what: str) -> AfterValidator:
    """Of a setting that is a name in a registry. what: the word for one in the error."""

    def known(name: str) -> str:
        if name not in registry:
            raise ValueError(f"{what} {name!r} is unknown; {nearest(name, registry.names())}")
        return name

    return AfterValidator(known)


class Strict(BaseModel):
    """Base class: unknown keys and values of another type are errors, and an instance cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def model_copy(self, **changes: Any) -> Self:
        """A copy, for which what follows from the fields (`cached_property`) is not known yet."""
        copied = super().model_copy(**changes)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Made(Strict):
    """Base class of models that are made while the program runs. The docstrings of their fields are those of the
    classes that declare them; pydantic would search all loaded modules for the source of what makes them: seconds for
    all claims and figures."""

    model_config = ConfigDict(use_attribute_docstrings=False)


class AsWritten(Strict):
    """Settings that are stored with only the keys that were written, without defaults.

    A run's hash covers what is stored, so adding a setting later does not change the hashes of older runs.
    """

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped = dump(self)
        return {name: dumped.get(name) for name in type(self).model_fields if name in self.model_fields_set}


def is_settings(kind: Any) -> bool:
    """Whether a type is a mapping of settings: a model, or a plain dataclass that pydantic checks (plan/shape.py)."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__pydantic_config__"))


@cache
def fields_of(settings: Any) -> dict[str, FieldInfo]:
    """The fields of a mapping of settings, by name."""
    if issubclass(settings, BaseModel):
        return settings.model_fields
    hints = get_type_hints(settings, include_extras=True)
    described = TypeAdapter(settings).json_schema()["properties"]
    fields = {}
    for field in dataclasses.fields(settings):
        default = PydanticUndefined if field.default is dataclasses.MISSING else field.default
        fields[field.name] = FieldInfo.from_annotated_attribute(hints[field.name], default)
        fields[field.name].description = described[field.name].get("description")
    return fields


def members(union: Any) -> dict[str, Any]:
    """Kind → model, for a union of models with the discriminator `kind`."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        return {get_args(union.model_fields["kind"].annotation)[0]: union}
    return {kind: model for choice in get_args(union) for kind, model in members(choice).items()}
