"""Names of modules that have moved, which plug-ins and code beside exported models may still import."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

MOVED = {
    "hybridlab.reporting.curves": "hybridlab.runs.pictures",
    "hybridlab.reporting.style": "hybridlab.runs.style",
    "hybridlab.reporting": "hybridlab.lab.reporting",
    "hybridlab.papers": "hybridlab.lab.papers",
    "hybridlab.accounting": "hybridlab.models.ledger",
    "hybridlab.store": "hybridlab.training.store",
}
"""Old name of a module or package → the new one; of names that begin alike the longer one first."""
_PACKAGE = "hybridlab."


class _Moved(MetaPathFinder, Loader):
    """Finds a module under its old name. Both names are one module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        # Every module that is not loaded yet is asked for here, those of all other packages too.
        if not fullname.startswith(_PACKAGE):
            return None
        old = next((old for old in MOVED if f"{fullname}.".startswith(f"{old}.")), None)
        if old is None or find_spec(MOVED[old] + fullname.removeprefix(old)) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        old = next(old for old in MOVED if f"{spec.name}.".startswith(f"{old}."))
        module = importlib.import_module(MOVED[old] + spec.name.removeprefix(old))
        # The machinery of imports replaces it before it calls exec_module.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None, "it has that of the old name"
        module.__spec__ = module.__spec__.loader_state


def find_moved() -> None:
    """Let old names be imported in this process."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        # Before the finder of files, which would make a second module of a file in a package that has moved.
        sys.meta_path.insert(0, _Moved())
