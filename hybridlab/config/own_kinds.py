"""Kinds of hooks and controllers that plug-ins register, and their settings in a configuration. No torch.

    @register_hook("noise")
    class Noise(Hook):
        def __init__(self, strength: float = 0.1) -> None: ...

A configuration then has `hooks: [{kind: noise, strength: 0.2}]`, checked as all other settings are.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import PydanticKnownError, core_schema

from hybridlab.config.types import Strict, members
from hybridlab.errors import UserError, nearest
from hybridlab.registry import CONTROLLERS, HOOKS, Registry

PYTHON = "python"
"""Kind of the hooks that a Python program makes itself; a file cannot ask for them."""
Maker = TypeVar("Maker", bound=Callable[..., Any])


@dataclass(frozen=True)
class OwnKind:
    """A registered kind. settings: the model of its settings, with the tag `kind`. make: that model → the hook."""

    settings: type[BaseModel]
    make: Callable[[Any], Any]

    def __call__(self, settings: Any, config: Any) -> Any:
        """The hook of a run; built-in controllers have the same arguments. config: the run's whole configuration, which
        a hook gets in `begin`."""
        return self.make(settings)


def register_hook(kind: str, settings: type[BaseModel] | None = None) -> Callable[[Maker], Maker]:
    """Register a kind of hook, as a decorator of a `Hook` class or of a function that returns a hook.

    Its keyword parameters, with their types and defaults, are the settings. With a pydantic model as `settings` it
    takes one argument, an instance of that model. UserError if the kind is taken or the parameters have no types.

        @hybridlab.register_hook("shrink")    # in shrink.py; then hooks: [{kind: shrink, factor: 0.9}]
        class Shrink(hybridlab.Hook):
            def __init__(self, factor: float = 0.99) -> None: ...
    """
    return _register(HOOKS, kind, settings)


def register_controller(kind: str, settings: type[BaseModel] | None = None) -> Callable[[Maker], Maker]:
    """As `register_hook`, for `controller: {kind: …}`: the one hook of a run that changes its structure. kind and
    settings are as there.

    What the changes cost is told by a function in `hybridlab.plan.forecast.FORECASTS`. UserError as there.

        @hybridlab.register_controller("leave-out")    # then controller: {kind: leave-out, layer: 2}
        class LeaveOut(hybridlab.Hook):
            def __init__(self, layer: int, after_step: int = 100) -> None: ...
    """
    return _register(CONTROLLERS, kind, settings)


def _register(registry: Registry[Any], kind: str, settings: type[BaseModel] | None) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        if settings is None:
            model = _tagged(_model_of(maker, f"{registry.what} {kind!r}"), kind)
            registry.add(kind, OwnKind(model, lambda given: maker(**_fields(given))))
        else:
            registry.add(kind, OwnKind(_tagged(settings, kind), maker))
        return maker

    return register


def _model_of(maker: Callable[..., Any], what: str) -> type[BaseModel]:
    """A model of the keyword parameters of a class or function."""
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(maker, eval_str=True).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UserError(f"{what}: write out its settings as parameters with names, not as {parameter}")
        empty = parameter.default is parameter.empty
        if empty and parameter.annotation is parameter.empty:
            raise UserError(f"{what}: give its setting {parameter.name} a type or a default")
        annotation = type(parameter.default) if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (annotation, ... if empty else parameter.default)
    return create_model("Settings", __base__=Strict, __doc__=inspect.getdoc(maker), **fields)


def _tagged(settings: type[BaseModel], kind: str) -> type[BaseModel]:
    """The model with a field `kind`, and without room for unknown settings."""
    closed = type(settings.__name__, (settings,), {"model_config": ConfigDict(extra="forbid"), "__annotations__": {}})
    tag: Any = (Literal[kind], ...)
    return create_model(settings.__name__, __base__=closed, __doc__=settings.__doc__, kind=tag)


def _fields(settings: BaseModel) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in type(settings).model_fields if name != "kind"}


class Own:
    """Metadata of a type that opens it to the kinds of a registry, beside the built-in models of the type."""

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry

    def models(self) -> list[type[BaseModel]]:
        """The models of the registered kinds, which stand beside the built-in ones in errors."""
        return [item.settings for item in self.registry.items.values() if isinstance(item, OwnKind)]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        built_in = list(members(source))

        def which(value: Any) -> str:
            if not isinstance(value, dict | BaseModel):
                return "built-in"  # its error says that a mapping is needed
            kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
            return "built-in" if kind in built_in else "own"

        def own(value: Any) -> Any:
            if isinstance(value, BaseModel):
                return value
            if "kind" not in value:
                raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
            return self._settings_of(value["kind"], built_in).model_validate_json(json.dumps(value), strict=True)

        def dumped(value: Any, dump: Callable[[Any], Any], info: Any) -> Any:
            if isinstance(value, BaseModel) and type(value) in self.models():
                return value.model_dump(mode="json", exclude_none=info.exclude_none)
            return dump(value)

        choices = {"built-in": handler(source), "own": core_schema.no_info_plain_validator_function(own)}
        serialization = core_schema.wrap_serializer_function_ser_schema(
            dumped, info_arg=True, schema=choices["built-in"]
        )
        return core_schema.tagged_union_schema(choices, which, serialization=serialization)

    def _settings_of(self, kind: Any, built_in: list[str]) -> type[BaseModel]:
        """The model of a registered kind, or pydantic's error about an unknown one."""
        item = self.registry.get(kind) if isinstance(kind, str) and kind in self.registry else None
        if isinstance(item, OwnKind):
            return item.settings
        known = [name for name in dict.fromkeys([*built_in, *self.registry.names()]) if name != PYTHON]
        if self.registry is HOOKS and not nearest(str(kind), known).startswith("did you mean"):
            # Most hooks are those of plug-ins; a name that is like no built-in one is one of them.
            raise ValueError(
                f"{self.registry.what} {kind!r} is not loaded; load its plug-in with --plugin FILE.py, or use "
                f"{' or '.join(known)}"
            )
        tags = ", ".join(repr(name) for name in known)
        raise PydanticKnownError(
            "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": tags}
        )
