"""Methods and hooks as settings: what a kind of controller or hook knows of itself before any training. No torch.

A method changes the structure of a model while it trains (`controller: {kind: …}`); a further hook acts on the training
in other ways (`hooks: [{kind: …}]`). Each kind is one class of settings, checked as all other settings are, which makes
the hook of a run. Those of the papers are in hybridlab/methods; a plug-in registers its own in the same way:

    @register_hook("noise")
    class Noise(Hook):
        def __init__(self, strength: float = 0.1) -> None: ...

A configuration then has `hooks: [{kind: noise, strength: 0.2}]`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import PydanticKnownError, core_schema

from hybridlab.arguments import checked
from hybridlab.config.other_runs import Configuration, Finished
from hybridlab.config.types import Made, Strict
from hybridlab.errors import UserError, nearest
from hybridlab.plan.forecast import FORECASTS, Stages
from hybridlab.plan.structure import Structure
from hybridlab.plugins import refuse
from hybridlab.registry import CONTROLLERS, HOOKS, Registry

PYTHON = "python"
"""Kind of the hooks that a Python program makes itself; a file cannot ask for them."""
Maker = TypeVar("Maker", bound=Callable[..., Any])


class HookSettings(Strict):
    """Base class of the settings of a hook. Each kind has the field `kind: Literal[NAME]`."""

    kind: str

    def hook(self, config: Configuration) -> Any:
        """The `Hook` of a run with this configuration; it may import torch."""
        raise UserError(f"{self.kind}: {type(self).__name__} makes no hook; define hook(config), which returns a Hook")


class Method(HookSettings):
    """Base class of the settings of a controller: what changes a model's structure while it trains. The defaults are
    those of a controller that changes nothing which has to be known before.

        @hybridlab.register_controller("leave-out")    # docs/plugins.md has the whole example
        class LeaveOutConfig(hybridlab.Method):
            kind: Literal["leave-out"]
            layer: int
    """

    learns_masks: ClassVar[bool] = False
    """Whether it learns which heads of a map of kind mixed keep full attention."""
    adds_layers: ClassVar[bool] = False
    """Whether the model begins with fewer layers than `shape.layers`, with which it ends."""

    @classmethod
    def shared(cls, settings: dict[str, Any]) -> dict[str, str]:
        """Its settings whose defaults stand elsewhere in the configuration, with their dotted name:
        `{"interval": "growth.interval"}`. settings: as written."""
        return {}

    @property
    def changes_plan(self) -> bool:
        """Whether the plan at the end of a run is another than at its start."""
        return self.kind in FORECASTS

    def check(self, config: Configuration) -> None:
        """SettingsConflict, as of the whole configuration, for what does not fit shape, map, plan or steps."""

    def first_layers(self, layers: int) -> int:
        """Number of layers before the first step of a model that ends with `layers`."""
        return layers

    def linked(self, config: Configuration, finished: Finished) -> Self:
        """The settings with what they take from other runs instead of these runs' names."""
        return self

    def rescaled(self, config: Configuration, share: float) -> Self:
        """The settings for a run with this share of its steps. config: with the new steps."""
        return self

    def forecast(self, start: Structure, config: Configuration) -> Stages:
        """The structures of a run over all of its steps, from that at the start on; the structures may be examples of
        the same cost."""
        forecast, steps = FORECASTS.get(self.kind), config.training.steps
        yield from [(start, steps)] if forecast is None else forecast(self, start, steps)


def same_kind(controller: Method, returned: object, method: str) -> Method:
    """What `linked` or `rescaled` of a controller has returned; UserError for what is no such settings."""
    if not isinstance(returned, type(controller)):
        refuse(controller, method, returned, f"{type(controller).__name__}, such as self.model_copy(update={{…}})")
    return returned


@checked
def register_hook(kind: str, settings: type[BaseModel] | None = None) -> Callable[[Maker], Maker]:
    """Register a kind of hook, as a decorator of a `Hook` class, of a function that returns a hook, or of a subclass of
    `HookSettings`.

    Its keyword parameters, with their types and defaults, are the settings. With a pydantic model as `settings` it
    takes one argument, an instance of that model. UserError if the kind is taken or the parameters have no types.

        @hybridlab.register_hook("shrink")    # in shrink.py; then hooks: [{kind: shrink, factor: 0.9}]
        class Shrink(hybridlab.Hook):
            def __init__(self, factor: float = 0.99) -> None: ...
    """
    return _register(HOOKS, HookSettings, kind, settings)


@checked
def register_controller(kind: str, settings: type[BaseModel] | None = None) -> Callable[[Maker], Maker]:
    """As `register_hook`, for `controller: {kind: …}`: the one hook of a run that changes its structure. kind and
    settings are as there; above a subclass of `Method`, which makes its hook itself, it registers that.

    What the changes cost is told by `Method.forecast`, or by a function in `hybridlab.plan.forecast.FORECASTS`.
    UserError as there.

        @hybridlab.register_controller("leave-out")    # then controller: {kind: leave-out, layer: 2}
        class LeaveOut(hybridlab.Hook):
            def __init__(self, layer: int, after_step: int = 100) -> None: ...
    """
    return _register(CONTROLLERS, Method, kind, settings)


def _register(
    registry: Registry[Any], base: type[HookSettings], kind: str, settings: type[BaseModel] | None
) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        what = f"{registry.what} {kind!r}"
        if isinstance(maker, type) and issubclass(maker, base):
            hook_type: type[HookSettings] = maker
            if get_args(hook_type.model_fields["kind"].annotation) != (kind,):
                raise UserError(f'{what}: its settings {hook_type.__name__} need the field kind: Literal["{kind}"]')
            registry.add(kind, hook_type)
            return maker

        def hook(self: HookSettings, config: Configuration) -> Any:
            make: Callable[..., Any] = maker
            arguments = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
            return make(self) if settings is not None else make(**arguments)

        model = settings or _model_of(maker, what)
        if taken := [name for name in model.model_fields if name != "kind" and hasattr(base, name)]:
            raise UserError(
                f"{what}: a setting cannot be called {taken[0]}, as {base.__name__}.{taken[0]} is; rename it"
            )
        bases = (model,) if issubclass(model, base) else (model, base)
        closing = {
            "model_config": ConfigDict(extra="forbid", use_attribute_docstrings=False),
            "__annotations__": {},
            "hook": hook,
        }
        tag: Any = (Literal[kind], ...)
        closed = type(model.__name__, bases, closing)
        registry.add(kind, create_model(model.__name__, __base__=closed, __doc__=model.__doc__, kind=tag))
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
    return create_model("Settings", __base__=Made, __doc__=inspect.getdoc(maker), **fields)


@register_hook(PYTHON)
class PythonHook(HookSettings):
    """A hook that a Python program passes to `hybridlab.train`; a file cannot ask for one."""

    kind: Literal["python"]
    name: str
    """Its `name`."""
    version: str
    """Its `version`, which changes whenever it would act otherwise."""


class Registered:
    """Metadata of a type: settings of one of the kinds of a registry, which `kind` names."""

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry

    def models(self) -> list[type[BaseModel]]:
        """The settings of all kinds, those of installed plug-ins only if these are loaded already."""
        return [self.settings(name) for name in self.registry.names(installed=False)]

    def settings(self, kind: str) -> type[BaseModel]:
        """The settings of a kind."""
        settings: type[BaseModel] = self.registry.get(kind)
        return settings

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        def validated(value: Any) -> Any:
            if isinstance(value, BaseModel):
                return value
            if not isinstance(value, dict):
                raise PydanticKnownError("model_type", {"class_name": "settings"})
            if "kind" not in value:
                raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
            return self._settings_of(value["kind"]).model_validate_json(json.dumps(value), strict=True)

        def dumped(value: Any, info: Any) -> Any:
            return value.model_dump(mode="json", exclude_none=info.exclude_none)

        serialization = core_schema.plain_serializer_function_ser_schema(dumped, info_arg=True)
        return core_schema.no_info_plain_validator_function(validated, serialization=serialization)

    def _settings_of(self, kind: Any) -> type[BaseModel]:
        """The settings of a kind, or pydantic's error about an unknown one."""
        if isinstance(kind, str) and kind in self.registry:
            return self.settings(kind)
        names = [name for name in self.registry.names() if name != PYTHON]
        if self.registry is HOOKS and not nearest(str(kind), names).startswith("did you mean"):
            # Most hooks are those of plug-ins; a name that is like no built-in one is one of them.
            raise ValueError(
                f"{self.registry.what} {kind!r} is not loaded; load its plug-in with --plugin FILE.py, or use "
                f"{' or '.join(names)}"
            )
        tags = ", ".join(repr(name) for name in names)
        raise PydanticKnownError(
            "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": tags}
        )


def controller_of(values: dict[str, Any]) -> type[Method] | None:
    """The settings of the controller in a configuration as written; None if it has none, or an unknown one."""
    controller = values.get("controller")
    kind = controller.get("kind") if isinstance(controller, dict) else None
    return CONTROLLERS.get(kind) if isinstance(kind, str) and kind in CONTROLLERS else None


ControllerConfig = Annotated[Method, Registered(CONTROLLERS)]
HookConfig = Annotated[HookSettings, Registered(HOOKS)]
