"""What settings take from other runs that have finished: their names in settings, and the results in their place.

The configuration that is stored and hashed names the other run by its hash, so that its own hash is known before
anything is trained. What is read from it, such as masks and layers, is in the record's structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from hybridlab.config.types import OF_A_RUN
from hybridlab.errors import UserError
from hybridlab.plan.shape import Shape

Value = TypeVar("Value")


class Configuration(Protocol):
    """A whole configuration (`RunConfig` in config/schema.py), as its parts see it."""

    @property
    def shape(self) -> Shape: ...

    @property
    def map(self) -> Any: ...

    @property
    def plan(self) -> Any: ...

    @property
    def training(self) -> Any: ...

    @property
    def evaluation(self) -> Any: ...

    @property
    def budget(self) -> Any: ...

    @property
    def first_shape(self) -> Shape: ...


class FinishedRun(Protocol):
    """Another run that has finished, as far as settings read from it (`RunFolder` in training/store/folders.py)."""

    @property
    def path(self) -> Path: ...

    @property
    def digest(self) -> str: ...

    def config(self) -> Any: ...

    def record(self) -> dict[str, Any] | None:
        """The content of record.json."""
        ...


Finished = Callable[[str], FinishedRun]
"""Hash or name of a run → the run; UserError if it has not finished."""


def run_names(value: Any) -> Iterator[str]:
    """The names of other runs in settings, in their order: the fields of type `RunName`."""
    if isinstance(value, list | tuple):
        for inner in value:
            yield from run_names(inner)
    elif isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            inner = getattr(value, name)
            if OF_A_RUN in info.metadata:
                yield inner
            else:
                yield from run_names(inner)


def with_run_names(value: Value, renamed: Callable[[str], str]) -> Value:
    """Settings with other names instead of those that `run_names` gives."""
    if isinstance(value, list | tuple):
        return type(value)(with_run_names(inner, renamed) for inner in value)
    if not isinstance(value, BaseModel) or not any(run_names(value)):
        return value
    fields = {name: (getattr(value, name), info.metadata) for name, info in type(value).model_fields.items()}
    changed = {
        name: renamed(inner) if OF_A_RUN in metadata else with_run_names(inner, renamed)
        for name, (inner, metadata) in fields.items()
    }
    return value.model_copy(update={name: new for name, new in changed.items() if new != fields[name][0]})


def require_heads(setting: str, run: FinishedRun, shape: Shape) -> None:
    """UserError if a run has other numbers of layers and heads than `shape`."""
    theirs = run.config().shape
    if (theirs.layers, theirs.heads) != (shape.layers, shape.heads):
        raise UserError(
            f"{setting}: that run ({run.path}) has {theirs.layers} layers of {theirs.heads} heads, "
            f"this one {shape.layers} of {shape.heads}; name a run of the same shape"
        )


def probes_of(run: FinishedRun, step: int | None = None) -> dict[str, Any]:
    """What the probes of a run measured after a step, or at its end, by their names."""
    results = (run.record() or {}).get("results") or {}
    measured = results if step is None else (results.get("at") or {}).get(str(step)) or {}
    return measured.get("probes") or {}
