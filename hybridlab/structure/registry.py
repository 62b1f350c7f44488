"""The hooks of a run, made from its configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hybridlab.analysis.entropy_log import EntropyLog
from hybridlab.config.controllers import PythonHook
from hybridlab.config.maps import MixedMap
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.evaluation.at_steps import AtSteps
from hybridlab.evaluation.validation_log import ValidationLog
from hybridlab.registry import CONTROLLERS, HOOKS
from hybridlab.structure.entropy_growth import EntropyGrowth
from hybridlab.structure.l1_gates import L1Gates
from hybridlab.structure.mask_learning import MaskLearning
from hybridlab.training.hooks import Hook


def _learned_window(config: RunConfig) -> int:
    """The window of the heads whose kind is learned."""
    assert isinstance(config.map, MixedMap), "the schema requires a mixed map for these controllers"
    return config.map.window


CONTROLLERS.add("entropy-growth", lambda settings, config: EntropyGrowth(settings))
CONTROLLERS.add("mask-learning", lambda settings, config: MaskLearning(settings, config.shape, _learned_window(config)))
CONTROLLERS.add("l1-gates", lambda settings, config: L1Gates(settings, config.shape, _learned_window(config)))


def make_hooks(config: RunConfig, given: Sequence[Hook] = ()) -> list[Hook]:
    """The logs of entropies (`observe`) and of the validation loss (`evaluation.every`), the measurements at single
    steps (`evaluation.at_steps`), the controller and the further hooks, as far as the configuration has them. What
    measures comes first: it measures a step with the structure it used.

    given: the hooks that a Python program has passed, which the configuration names. UserError if one is missing, or if
    two hooks have one name.
    """
    hooks: list[Hook] = []
    if config.observe is not None:
        hooks.append(EntropyLog(config.observe.entropy_every))
    if config.evaluation.every is not None:
        hooks.append(ValidationLog(config.evaluation, config.training.steps))
    if config.evaluation.at_steps is not None:
        hooks.append(AtSteps(config.evaluation.at_steps))
    if config.controller is not None:
        made = CONTROLLERS.get(config.controller.kind)(config.controller, config)
        hooks.append(_named(made, config.controller.kind))
    for settings in config.hooks or []:
        if isinstance(settings, PythonHook):
            hooks.append(_given(settings, given))
        else:
            hooks.append(_named(HOOKS.get(settings.kind)(settings, config), settings.kind))
    names = Counter(hook.name for hook in hooks)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UserError(f"hooks: two hooks are called {twice[0]!r}; each needs a name of its own")
    return hooks


def _named(hook: Hook, kind: str) -> Hook:
    """A hook without a name of its own gets that of its kind."""
    if not isinstance(hook, Hook):
        raise UserError(f"hook {kind!r}: its plug-in makes {type(hook).__name__}, which is not a subclass of Hook")
    if hook.name == Hook.name:
        hook.name = kind
    return hook


def _given(settings: PythonHook, given: Sequence[Hook]) -> Hook:
    for hook in given:
        if hook.name == settings.name:
            return hook
    raise UserError(
        f"hooks: {settings.name!r} is a hook of a Python program; pass it again with hybridlab.train(hooks=[…])"
    )
