"""The base classes of all schemas, and their number types."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

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


class Misfit(ValueError):
    """Settings that do not fit each other.

    settings: their dotted names, relative to the model that finds it; the error gives the place of the one that was
    written last.
    """

    def __init__(self, message: str, *settings: str) -> None:
        super().__init__(message)
        self.settings = settings


class Strict(BaseModel):
    """Base class: unknown keys and values of another type are errors, and an instance cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Extended(Strict):
    """Base class: settings to which plug-ins add further names, all of one type (`__pydantic_extra__`)."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def registered(cls) -> list[str]:
        """The further names that are known now; a class that takes some says which."""
        return []

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, values: Any) -> Any:
        wrong = [name for name in values if name not in cls.model_fields] if isinstance(values, dict) else []
        for name in wrong:
            if name not in cls.registered():
                problem = InitErrorDetails(type="extra_forbidden", loc=(name,), input=values[name])
                raise ValidationError.from_exception_data(cls.__name__, [problem])
        return values


class AsWritten(Strict):
    """Settings that are stored with only the keys that were written, without defaults.

    A run's hash covers what is stored, so adding a setting later does not change the hashes of older runs.
    """

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped = dump(self)
        return {name: dumped.get(name) for name in type(self).model_fields if name in self.model_fields_set}


def members(union: Any) -> dict[str, Any]:
    """Kind → model, for a union of models with the discriminator `kind`."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        return {get_args(union.model_fields["kind"].annotation)[0]: union}
    return {kind: model for choice in get_args(union) for kind, model in members(choice).items()}
