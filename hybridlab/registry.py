"""Registries of named items that plug-ins can extend: attention kinds, hooks, controllers, tasks, data sources,
primitives, probes, kinds of figures, kinds of claims.

Built-in items and those of plug-ins register in the same way. The error about an unknown name suggests the nearest one.
A registry can name the modules of its built-in items. Their names are then known without an import (importing a probe
loads torch, which `hybridlab list` must not).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from hybridlab.errors import UserError, nearest, shown
from hybridlab.plugins import Plugin, importing_hybridlab, load_installed, note

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Items by name.

    what: the word for an item in errors. modules: of the built-in items by name, each of which registers its item when
    it is imported. loads: instead, a module that registers all built-in items when it is imported. changes_runs:
    whether a plug-in that adds an item is part of the identity of every run, even of one that does not use the item.
    of: the class of the items, as module:name, where it is one that a plug-in makes an object of.
    """

    def __init__(
        self,
        what: str,
        modules: Mapping[str, str] | None = None,
        loads: str | None = None,
        changes_runs: bool = False,
        of: str | None = None,
    ) -> None:
        self.what, self.modules, self.loads, self.changes_runs = what, modules or {}, loads, changes_runs
        self.of = of
        self.items: dict[str, Item] = {}
        self.plugins: dict[str, Plugin] = {}
        """Name of an item → the plug-in that it comes from; built-in items have none."""
        self.loose: set[str] = set()
        """Names of the items that are neither built in nor from a plug-in: a Python program has registered them."""

    def add(self, name: str, item: Item) -> Item:
        """Register an item; UserError if the name belongs to another item, and for what is no such item."""
        built_in = importing_hybridlab()
        if not built_in:
            self._check(name, item)
        if name in self.items:
            if self.items[name] is not item:
                raise UserError(f"{self.what} {name!r} is registered already; choose another name")
            return item
        self.items[name] = item
        if not built_in:
            if plugin := note(self.what, name, self.changes_runs, partial(self.remove, name)):
                self.plugins[name] = plugin
            else:
                self.loose.add(name)
        return item

    def _check(self, name: object, item: object) -> None:
        """UserError for a name that is no text, and for an item of another class."""
        if not isinstance(name, str) or not name:
            raise UserError(f"{self.what} {name!r}: its name must be a text")
        if self.of is not None:
            module, _, kind = self.of.partition(":")
            if not isinstance(item, getattr(importlib.import_module(module), kind)):
                raise UserError(f"{self.what} {name!r} is {shown(item)}; it must be a {kind} ({module})")

    def remove(self, name: str) -> None:
        """Remove an item, such as one of a plug-in whose import fails."""
        self.items.pop(name, None)
        self.plugins.pop(name, None)
        self.loose.discard(name)

    def names(self, installed: bool = True) -> list[str]:
        """All names: first the built-in ones (without importing their modules), then those of plug-ins.

        installed: load installed plug-ins first; without, only those that are loaded already are there.
        """
        self._load_all()
        if installed:
            load_installed()
        return list(dict.fromkeys([*self.modules, *self.items]))

    def __contains__(self, name: str) -> bool:
        """Whether there is an item of this name; installed plug-ins are loaded only if it is not there without them."""
        self._load_all()
        if name not in self.items and name not in self.modules:
            load_installed()
        return name in self.items or name in self.modules

    def get(self, name: str) -> Item:
        """The item with a name; UserError for an unknown name, with the nearest known one."""
        self._load_all()
        if name not in self.items and name in self.modules:
            importlib.import_module(self.modules[name])
        if name not in self.items:
            load_installed()
        if name not in self.items:
            raise UserError(f"{self.what} {name!r} is unknown; {nearest(name, self.names())}")
        return self.items[name]

    def _load_all(self) -> None:
        if self.loads is not None:
            importlib.import_module(self.loads)


_PROBES = {
    "answers": "answers",
    "attention-maps": "last_token",
    "belief": "dependency",
    "blocks": "blocks",
    "contributions": "contributions",
    "convergence": "convergence",
    "dependency": "dependency",
    "depth-score": "effects",
    "effects": "effects",
    "entropy": "last_token",
    "interventions": "interventions",
    "kept-mass": "windows",
    "knockout": "windows",
    "last-token": "last_token",
    "loops": "loops",
    "loss": "interventions",
    "reach": "loops",
    "routers": "loops",
    "tuned-lens": "tuned_lens",
    "without": "interventions",
}
"""Built-in probe → its module in analysis/probes/."""
PROBES: Registry[Any] = Registry(
    "probe",
    {name: f"hybridlab.analysis.probes.{_PROBES[name]}" for name in _PROBES},
    of="hybridlab.analysis.probe:Probe",
)
"""The probes of `hybridlab analyze --probe NAME` and `evaluation.probes`; see analysis/probe.py."""
FIGURE_KINDS: Registry[Any] = Registry(
    "kind of figure", loads="hybridlab.lab.reporting.kinds", of="hybridlab.lab.reporting.figure_kind:FigureKind"
)
"""The values of `plot.kind` in an experiment file; see lab/reporting/figure_kind.py."""
HOOKS: Registry[Any] = Registry("hook", loads="hybridlab.methods", changes_runs=True)
"""Kind of a hook in `hooks` → its settings, which make it; see config/method.py."""
CONTROLLERS: Registry[Any] = Registry("controller", loads="hybridlab.methods", changes_runs=True)
"""Kind of a controller → its settings, which make its hook; see config/method.py."""
TASKS: Registry[Any] = Registry("task", loads="hybridlab.data.tasks", changes_runs=True, of="hybridlab.data.tasks:Task")
"""Name in `data.mix` → the task; see data/tasks.py."""
CHOICES: Registry[Any] = Registry(
    "primitive", loads="hybridlab.data.primitives", of="hybridlab.data.primitives:Primitive"
)
"""Name in `evaluation.choices.tasks` → the kind of question; see data/primitives.py."""
FINETUNE_TASKS: Registry[Any] = Registry(
    "fine-tuning task", loads="hybridlab.data.finetune.tasks", of="hybridlab.data.finetune.tasks:FineTask"
)
"""Name in `finetune.task` → the task; see data/finetune/tasks.py."""
SOURCES: Registry[Any] = Registry(
    "kind of data source", loads="hybridlab.data.sources", changes_runs=True, of="hybridlab.data.sources:Source"
)
"""What `--data` takes, by the part before the colon; see data/sources.py."""


def source_syntaxes() -> str:
    """How the sources of all kinds are written, for errors."""
    written = [SOURCES.get(kind).syntax for kind in SOURCES.names()]
    return f"{', '.join(written[:-1])} or {written[-1]}"
