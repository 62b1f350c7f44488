"""What the rows of a batch are: text, and synthetic tasks."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from hybridlab.config.types import Extended, Fraction
from hybridlab.errors import Misfit
from hybridlab.registry import TASKS


class Mix(Extended):
    """Shares of the rows of every batch: text of the corpus, synthetic tasks, and tasks of plug-ins by name."""

    __pydantic_extra__: dict[str, Fraction] = Field(init=False)
    text: Fraction = 1.0
    """Share of rows with text of the corpus."""
    retrieval: Fraction = 0.0
    """Share of rows with facts to look up: a key is asked for, its value is the answer."""
    assignment: Fraction = 0.0
    """Share of rows with assignments to variables, one of five values each."""
    chain: Fraction | None = None
    """Share of rows with facts to look up in two hops: a name is asked for, an alias gives its key, and the fact about
    this key gives the answer."""

    @classmethod
    def registered(cls) -> list[str]:
        return TASKS.names()

    @property
    def tasks(self) -> dict[str, float]:
        """The share of every task that has one, the built-in ones first, then by name."""
        built_in = [name for name in Mix.model_fields if name != "text"]
        names = [*built_in, *sorted(self.__pydantic_extra__)]
        shares = {name: getattr(self, name) or 0.0 for name in names}
        return {name: share for name, share in shares.items() if share > 0}

    @field_validator("chain")
    @classmethod
    def _unset_if_zero(cls, value: float | None) -> float | None:
        """No share is the default; as None it does not change the hash."""
        return value or None

    @model_validator(mode="after")
    def _sums_to_one(self) -> Mix:
        total = self.text + sum(self.tasks.values())
        if abs(total - 1) > 1e-9:
            raise Misfit(f"the shares of the mix add up to {total:g}; they must add up to 1", *Mix.model_fields)
        return self
