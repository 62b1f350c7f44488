"""Registries of named items that plug-ins can extend: attention kinds, probes, kinds of figures, kinds of claims.

Built-in items and those of plug-ins register in the same way. The error about an unknown name suggests the nearest one.
A registry can have a package with one module per built-in item. Their names are then known from the file names, without
an import (importing a probe loads torch, which `hybridlab list` must not).
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import Any, Generic, TypeVar

from hybridlab.errors import UserError
from hybridlab.plugins import load_installed

Item = TypeVar("Item")


def nearest(name: str, known: list[str], otherwise: str | None = None) -> str:
    """The end of an error about an unknown name: the nearest known name; if none is near, `otherwise`, or all names."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(known)}"


class Registry(Generic[Item]):
    """Items by name.

    what: the word for an item in errors. package: the package of the built-in items; each of its modules registers its
    item when it is imported, and a module `head_masks` registers the item `head masks`. loads: instead, a package that
    registers all built-in items when it is imported.
    """

    def __init__(self, what: str, package: str | None = None, loads: str | None = None) -> None:
        self.what, self.package, self.loads = what, package, loads
        self.items: dict[str, Item] = {}

    def add(self, name: str, item: Item) -> Item:
        """Register an item; UserError if the name belongs to another item."""
        if self.items.get(name, item) is not item:
            raise UserError(f"{self.what} {name!r} is registered already; choose another name")
        self.items[name] = item
        return item

    def remove(self, name: str) -> None:
        """Remove an item; tests use it."""
        self.items.pop(name, None)

    def names(self) -> list[str]:
        """All names: first the built-in ones (without importing their modules), then those of plug-ins."""
        self._load_all()
        load_installed()
        return list(dict.fromkeys([*self._modules(), *self.items]))

    def __contains__(self, name: str) -> bool:
        """Whether there is an item of this name; installed plug-ins are loaded only if it is not there without them."""
        self._load_all()
        if name not in self.items and name not in self._modules():
            load_installed()
        return name in self.items or name in self._modules()

    def get(self, name: str) -> Item:
        """The item with a name; UserError for an unknown name, with the nearest known one."""
        self._load_all()
        if name not in self.items and name in self._modules():
            importlib.import_module(f"{self.package}.{self._modules()[name]}")
        if name not in self.items:
            load_installed()
        if name not in self.items:
            raise UserError(f"{self.what} {name!r} is unknown; {nearest(name, self.names())}")
        return self.items[name]

    def _load_all(self) -> None:
        if self.loads is not None:
            importlib.import_module(self.loads)

    def _modules(self) -> dict[str, str]:
        """Name → module of the built-in items."""
        if self.package is None:
            return {}
        spec = importlib.util.find_spec(self.package)
        folders = spec.submodule_search_locations if spec else None
        stems = sorted(path.stem for folder in folders or [] for path in Path(folder).glob("[!_]*.py"))
        return {stem.replace("_", " "): stem for stem in stems}


PROBES: Registry[Any] = Registry("probe", "hybridlab.analysis.probes")
"""The probes of `hybridlab analyze --probe NAME` and `evaluation.probes`; see analysis/probe.py."""
FIGURE_KINDS: Registry[Any] = Registry("kind of figure", "hybridlab.reporting.kinds")
"""The values of `plot.kind` in an experiment file; see reporting/figure_kind.py."""
SOURCES: Registry[Any] = Registry("kind of data source", loads="hybridlab.data.sources")
"""What `--data` takes, by the part before the colon; see data/sources.py."""


def source_syntaxes() -> str:
    """How the sources of all kinds are written, for errors."""
    written = [SOURCES.get(kind).syntax for kind in SOURCES.names()]
    return f"{', '.join(written[:-1])} or {written[-1]}"
