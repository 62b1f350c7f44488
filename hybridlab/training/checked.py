"""Hooks of the user's, as the training loop calls them: what they return is checked once, here.

A wrong value is a UserError that names the hook's class and file, at the first step at the latest. An exception from a
hook's code is a RunFailed that says in which line it was raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from numbers import Real
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plugins import as_json, calling, is_own, place_of, refuse
from hybridlab.training.optimizer import Group
from hybridlab.training.store.metrics import FINAL, TAKEN

_NOT_FROM_HOOKS = ("self", "input_ids", "inputs_embeds", "targets", "cache", "at", "checked")
"""Arguments of a model's forward pass that the rows of the step decide."""
_NUMBERS = "a dict with the names of numbers and these numbers, such as {'norm': 0.5}, or None for nothing"
_INPUTS = "a dict with arguments of the model's forward pass by name, or None for none"
_TERM = "a tensor of one number that is computed from parameters or outputs with their gradients, or None"
_GROUPS = "a list of hybridlab.training.optimizer.Group, whose tensors are leaves that require gradients, by name"
_JSON = "a dict of texts, numbers, lists and dicts (numbers that are finite; tensors as .tolist()), or None for nothing"
_WARNINGS = "its `warnings` as a list of sentences"


def checked(hook: Any) -> Any:
    """A `Hook` of the user's with checks; one of hybridlab as it is."""
    return Checked(hook) if is_own(hook) else hook


RETURN_NOTHING = ("before_first_step", "load_state", "extend", "branch")
"""The methods of a hook whose result is not used."""


class Checked:
    """A hook of the user's; see `hybridlab.Hook` for the methods. None from a method is what the base class returns."""

    def __init__(self, hook: Any) -> None:
        self.hook, self.name, self.logged = hook, hook.name, hook.logged
        self.run: Any = None
        self._groups: tuple[str, ...] = ()
        self.place: Callable[[str], str] = cache(partial(place_of, hook))
        """Name of a method → where it stands."""

    def __getattr__(self, method: str) -> Any:
        if method in RETURN_NOTHING:
            return partial(self._call, method)
        raise AttributeError(method)

    def begin(self, run: Any) -> None:
        self.run = run
        self._call("begin", run)

    # ---- what returns something ----

    def parameter_groups(self) -> list[Group]:
        groups = self._call("parameter_groups")
        groups = [] if groups is None else groups
        if not isinstance(groups, list | tuple) or not all(isinstance(group, Group) for group in groups):
            refuse(self.hook, "parameter_groups", groups, _GROUPS)
        named = [(name, tensor) for group in groups for name, tensor in group.tensors.items()]
        names = tuple(name for name, _ in named)
        # Called in every step; the names are those of before.
        if names != self._groups:
            for name, tensor in named:
                if not isinstance(tensor, Tensor) or not tensor.is_leaf or not tensor.requires_grad:
                    refuse(self.hook, "parameter_groups", tensor, _GROUPS)
                if names.count(name) > 1 or name in dict(self.run.model.named_parameters()):
                    raise UserError(
                        f"{self.place('parameter_groups')}: a tensor is called {name!r}, as another one of the hook or "
                        "the model is; give it a name of its own"
                    )
            self._groups = names
        return list(groups)

    def forward_inputs(self, step: int) -> dict[str, Any]:
        return self._inputs("forward_inputs", step)

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        return self._inputs("evaluation_inputs", step)

    def after_forward(self, step: int, output: Any, share: float) -> Tensor | None:
        return self._term("after_forward", step, output, share)

    def penalty(self, step: int) -> Tensor | None:
        return self._term("penalty", step)

    def after_step(self, run: Any, step: int) -> dict[str, float | Tensor]:
        found = self._mapping("after_step", _NUMBERS, run, step)
        others = tuple(hook.logged for hook in run.hooks if hook is not self and hook.logged)
        for name, number in found.items():
            if not _is_number(number):
                refuse(self.hook, "after_step", {name: number}, _NUMBERS)
            if name in TAKEN or name.startswith(FINAL) or name in run.last or name.startswith(others):
                whose = "another hook" if name not in TAKEN and not name.startswith(FINAL) else "the run itself"
                raise UserError(
                    f"{self.place('after_step')} returned a number called {name!r}, as {whose} logs one; call it "
                    f"something else, such as '{self.name}_{name.replace(FINAL, '')}'"
                )
        # A tensor waits on its device until the line is written; the hook may change its own before.
        return {
            name: number.detach().clone() if isinstance(number, Tensor) else _as_float(number)
            for name, number in found.items()
        }

    def logs(self, step: int) -> bool:
        found = self._call("logs", step)
        if isinstance(found, Tensor) or not hasattr(type(found), "__bool__"):
            refuse(self.hook, "logs", found, "True or False")
        return bool(found)

    def state(self) -> dict[str, Any]:
        return cast(dict[str, Any], as_json(self.hook, "state", self._mapping("state", _JSON), _JSON))

    def finish(self, run: Any) -> dict[str, Any]:
        found = cast(dict[str, Any], as_json(self.hook, "finish", self._mapping("finish", _JSON, run), _JSON))
        warnings = found.get("warnings", [])
        if not isinstance(warnings, list | tuple) or not all(isinstance(text, str) for text in warnings):
            refuse(self.hook, "finish", {"warnings": warnings}, _WARNINGS)
        return found

    # ---- calls ----

    def _call(self, method: str, *arguments: Any) -> Any:
        with calling(self.hook, method, _of_other_ranks):
            return getattr(self.hook, method)(*arguments)

    def _mapping(self, method: str, wanted: str, *arguments: Any) -> dict[str, Any]:
        found = self._call(method, *arguments)
        if found is None:
            return {}
        if not isinstance(found, Mapping) or not all(isinstance(name, str) and name for name in found):
            refuse(self.hook, method, found, wanted)
        return dict(found)

    def _inputs(self, method: str, step: int) -> dict[str, Any]:
        found = self._mapping(method, _INPUTS, step)
        for name in found:
            if name not in _arguments():
                raise UserError(
                    f"{self.place(method)} returned an argument {name!r} of the forward pass; it can give "
                    f"{', '.join(sorted(_arguments()))}"
                )
        return found

    def _term(self, method: str, *arguments: Any) -> Tensor | None:
        term = self._call(method, *arguments)
        if term is None:
            return None
        if not isinstance(term, Tensor) or term.numel() != 1 or not term.is_floating_point():
            refuse(self.hook, method, term, _TERM)
        if not term.requires_grad:
            refuse(self.hook, method, term, _TERM, " without a gradient, which would change nothing")
        return term if term.dim() == 0 else term.reshape(())


def inputs_of(
    hooks: Iterable[Any], step: int, given: Mapping[str, Any], method: str = "forward_inputs"
) -> dict[str, Any]:
    """The arguments `given` of a forward pass with those of all hooks. UserError for a hook of the user's that gives
    one that is there already with another value."""
    inputs = dict(given)
    for hook in hooks:
        own = getattr(hook, method)(step)
        for name, value in own.items() if isinstance(hook, Checked) else ():
            there = inputs.get(name, value)
            if there is not value and not (isinstance(value, str) and there == value):
                raise UserError(
                    f"{hook.place(method)} returned the argument {name!r} of the forward pass, which the run or "
                    "another hook gives; leave it out"
                )
        inputs |= own
    return inputs


@cache
def _arguments() -> frozenset[str]:
    """The arguments of a forward pass that a hook can give."""
    return frozenset(inspect.signature(Transformer.forward).parameters) - {*_NOT_FROM_HOOKS}


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    if isinstance(value, Real):
        return True
    # Of numpy: truth values, and arrays with one entry.
    return hasattr(value, "dtype") and getattr(value, "size", 0) == 1 and value.dtype.kind in "fiub"


def _as_float(number: Any) -> float:
    return float(number.item() if hasattr(number, "item") else number)


def _of_other_ranks(error: Exception) -> bool:
    """Whether an exception is that of a sum over ranks, one of which has ended; see `all_answer`."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)
