"""The base of every schema, and the kinds of numbers that stand in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(ge=1, le=10**12)]
Width = Annotated[int, Field(ge=1, le=10**6)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Window = Annotated[int, Field(ge=1, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**12)]
Granularity = Literal["layer", "head-all", "head-single"]


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no change after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
