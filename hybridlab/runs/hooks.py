"""The hooks of a run, made from its configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from hybridlab.analysis.entropy import EntropyLog
from hybridlab.config.method import HookSettings, PythonHook
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.evaluation.while_training import AtSteps, ValidationLog
from hybridlab.plugins import is_own, place_of
from hybridlab.training.engine import EachStep, Hook


def make_hooks(config: RunConfig, python_hooks: Sequence[Hook] = ()) -> list[Hook]:
    """The logs of entropies and of every step (`observe`) and of the validation loss (`evaluation.every`), the
    measurements at single steps (`evaluation.at_steps`), the controller and the further hooks, as far as the
    configuration has them. What measures comes first: it measures a step with the structure it used.

    python_hooks: the hooks that a Python program has passed, which the configuration names. UserError if one is
    missing, if two hooks have one name, or if one has that of a measurement.
    """
    hooks = [make() for _, _, make in _parts(config, python_hooks)]
    for hook in hooks:
        if is_own(hook) and (not isinstance(hook.name, str) or not hook.name or hook.name in _MEASURING):
            raise UserError(
                f"hooks: {place_of(hook)} is called {hook.name!r}; its name must be a text, and not one of "
                f"{', '.join(_MEASURING)}, under which a record has its own measurements"
            )
    names = Counter(hook.name for hook in hooks)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UserError(f"hooks: two hooks are called {twice[0]!r}; each needs a name of its own")
    return hooks


_MEASURING = (EntropyLog.name, EachStep.name, ValidationLog.name, AtSteps.name)
_IN_PASSES = ("forward_inputs", "after_forward", "penalty", "parameter_groups")


def hooks_in_passes(config: RunConfig) -> list[Hook]:
    """Those hooks of `make_hooks` that take time and memory in the passes of every step. A controller that changes the
    plan is not among them: it acts between the passes, and can begin with the first plan only."""
    controller = config.controller
    fixed = config.model_copy(update={"controller": None}) if controller and controller.changes_plan else config
    return [
        hook
        for hook in make_hooks(fixed)
        if any(getattr(type(hook), name) is not getattr(Hook, name) for name in _IN_PASSES)
    ]


def fresh_hooks(before: RunConfig, config: RunConfig, hooks: Sequence[Hook]) -> frozenset[str]:
    """The hooks, by name, that cannot go on with the state that the run `before` left for them: what they act on or
    measure is another. hooks: those that `make_hooks` made of `config`."""
    bases = {part: basis for part, basis, _ in _parts(before, ())}
    pairs = zip(hooks, _parts(config, ()), strict=True)
    return frozenset(hook.name for hook, (part, basis, _) in pairs if part not in bases or bases[part] != basis)


def _parts(config: RunConfig, python_hooks: Sequence[Hook]) -> Iterator[tuple[str, Any, Callable[[], Hook]]]:
    """(name, basis, maker) of each hook. basis: the settings that must be the same where it goes on with the state of
    another run."""
    observe, every, controller = config.observe, config.evaluation.every, config.controller
    if observe is not None and observe.entropy_every is not None:
        yield "observe.entropy_every", None, partial(EntropyLog, observe.entropy_every)
    if observe is not None and observe.each_step is not None:
        yield "observe.each_step", observe.each_step, partial(EachStep, observe.each_step)
    if every is not None:
        windows = config.evaluation.every_windows or config.evaluation.validation_windows
        log = partial(ValidationLog, config.evaluation, config.training.steps)
        yield "evaluation.every", (config.data, windows), log
    if config.evaluation.at_steps is not None:
        times = dict.fromkeys(("at_steps", "every", "every_windows", "keep_best"))
        measured = config.evaluation.model_copy(update=times)
        basis = (measured, config.data, controller, config.plan, config.map)
        yield "evaluation.at_steps", basis, partial(AtSteps, config.evaluation.at_steps)
    if controller is not None:
        yield "controller", (controller, config.plan, config.map), partial(_made, controller, config)
    for settings in config.hooks or []:
        yield f"hooks {settings.model_dump_json()}", None, partial(_made, settings, config, python_hooks)


def _made(settings: HookSettings, config: RunConfig, python_hooks: Sequence[Hook] = ()) -> Hook:
    """The hook that settings make. Without a name of its own it gets that of its kind."""
    if isinstance(settings, PythonHook):
        passed = next((hook for hook in python_hooks if hook.name == settings.name), None)
        if passed is None:
            words = "is a hook of a Python program; pass it again with hybridlab.train(hooks=[…])"
            raise UserError(f"hooks: {settings.name!r} {words}")
        return passed
    hook, kind = settings.hook(config), settings.kind
    if not isinstance(hook, Hook):
        raise UserError(f"hook {kind!r}: its plug-in makes {type(hook).__name__}, which is not a subclass of Hook")
    if hook.name == Hook.name:
        hook.name = kind
    return hook
