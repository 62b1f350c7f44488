"""Plug-ins: the user's own attention kinds, claim kinds, probes and figure kinds, without a fork.

A plug-in is a Python file or an importable module that registers its content when it is imported. `--plugin mine.py`
(before the command) loads one. An installed package can declare plug-ins as entry points in the group
`hybridlab.plugins`; these are loaded when a name is used that is not built in.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from hybridlab.errors import UserError

GROUP = "hybridlab.plugins"


_LOADED: dict[str, None] = {}


def loaded() -> list[str]:
    """The references of the plug-ins that were loaded, for `load_plugin` in another process."""
    return list(_LOADED)


def load_plugin(reference: str) -> None:
    """Import a plug-in. reference: a path that ends in .py, or the dotted name of a module."""
    try:
        if reference.endswith(".py"):
            path = Path(reference).expanduser().resolve()
            _load_file(path)
            _LOADED[str(path)] = None
        else:
            importlib.import_module(reference)
            _LOADED[reference] = None
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"--plugin {reference}: there is no such file") from None
    except Exception as error:  # a plug-in can raise anything
        raise UserError(f"--plugin {reference}: it cannot be imported ({type(error).__name__}: {error})") from None


def _load_file(path: Path) -> None:
    """Import a file, once per path. The module name contains a hash, so that two files of one name do not clash."""
    name = f"hybridlab_plugin_{path.stem}_{abs(hash(str(path)))}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look up a class's module by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


@cache
def load_installed() -> None:
    """Import the plug-ins of installed packages, once."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # a plug-in can raise anything
            raise UserError(
                f"plug-in {entry.name} ({entry.value}): it cannot be imported ({type(error).__name__}: {error}); "
                "repair or uninstall its package"
            ) from None
