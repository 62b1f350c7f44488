"""Plug-ins: the user's own attention kinds, hooks, controllers, tasks, data sources, probes, claim kinds and figure
kinds, without a fork.

A plug-in is a Python file or an importable module that registers its content when it is imported. `--plugin mine.py`
(before the command) loads one. An installed package can declare plug-ins as entry points in the group
`hybridlab.plugins`; these are loaded when a name is used that is not built in.

Plug-ins that can change a run are part of its identity, by name and version (config/resolve.py).

Every command imports this file, so that it imports what only plug-ins need inside its functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hybridlab.errors import RunFailed, UserError, shown

if TYPE_CHECKING:
    from importlib.metadata import Distribution

Item = TypeVar("Item")
GROUP = "hybridlab.plugins"


@dataclass
class Plugin:
    """A plug-in of this process.

    name: a file's name without `.py`, or a module's dotted name. version: that of its installed distribution; otherwise
    the first twelve digits of the SHA-256 of the file, or of all Python files of the package it lies in. reference:
    what `--plugin` takes. asked: it was loaded by name, and not because a run used an entry point. items: (kind of
    item, name) → whether items of this kind change a run as soon as they are there. undo: what takes them out again.
    modules: those that were being imported when items were registered.
    """

    name: str
    version: str
    reference: str
    asked: bool
    items: dict[tuple[str, str], bool] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)

    def counts(self, used: set[tuple[str, str]]) -> bool:
        """Whether it belongs to the identity of a run that uses these items.

        One that was asked for may act on every run, unless it has only added items that do nothing until they are used.
        """
        acts = self.asked and (not self.items or any(self.items.values()))
        return acts or bool(used & self.items.keys())


LOADED: dict[str, Plugin] = {}
"""The plug-ins of this process by name."""
_FILE = "hybridlab_plugin_"
"""How the names of the modules of files begin."""
_LOADING: list[Plugin] = []
"""The plug-ins that are being imported now; the last one registers."""


def loaded() -> list[str]:
    """What `--plugin` was given in this process, to load the same plug-ins in another one."""
    return [plugin.reference for plugin in LOADED.values() if plugin.asked]


def is_plugin(module: str) -> bool:
    """Whether a module is a plug-in, or a part of one."""
    return module.startswith(_FILE) or any(f"{module}.".startswith(f"{name}.") for name in LOADED)


def load_plugin(reference: str | Path) -> None:
    """Import a plug-in. reference: a path that ends in .py, or the dotted name of a module. A second call does nothing.

    UserError if it cannot be imported, if another plug-in has its name, or if its file has changed since it was loaded.

        hybridlab.load_plugin("mine.py")
    """
    if not isinstance(reference, str | Path):
        raise UserError(f"load_plugin: reference= is {shown(reference)}; it must be text or a path")
    reference = str(reference)
    try:
        if reference.endswith(".py"):
            from hybridlab.files import user_path  # here, so that help is fast

            path = user_path(reference).resolve()
            if not path.exists():
                raise UserError(f"--plugin {reference}: there is no such file")
            _load_file(path)
        else:
            _load_module(reference)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a plug-in can raise anything
        raise UserError(f"--plugin {reference}: it cannot be imported ({type(error).__name__}: {error})") from None


def _load_file(path: Path) -> None:
    """Import a file. The module name contains a hash, so that it does not clash with a module of the file's name."""
    version = _digest([path])
    earlier = LOADED.get(path.stem)
    if earlier is not None:
        if earlier.reference != str(path):
            raise UserError(
                f"--plugin {path}: {earlier.reference} is loaded under the same name, {path.stem}; rename one of them"
            )
        if earlier.version != version:
            raise UserError(f"--plugin {path}: the file has changed since it was loaded; start a new Python process")
        return
    import hashlib

    name = f"{_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look up a class's module by its name.
    sys.modules[name] = module
    with _loading(Plugin(path.stem, version, str(path), asked=True)):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise


def _load_module(name: str) -> None:
    if name in LOADED:
        LOADED[name].asked = True
        return
    plugin = Plugin(name, "", name, asked=True)
    with _loading(plugin):
        plugin.version = _module_version(importlib.import_module(name))


@cache
def load_installed() -> None:
    """Import the plug-ins of installed packages, once."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.module in LOADED or any(plugin.name == entry.module for plugin in _LOADING):
            continue
        plugin = Plugin(entry.module, "", entry.module, asked=False)
        try:
            with _loading(plugin):
                entry.load()
                plugin.version = _module_version(sys.modules[entry.module], entry.dist)
        except (Exception, SystemExit) as error:  # a plug-in can raise anything
            raise UserError(
                f"plug-in {entry.name} ({entry.value}): it cannot be imported ({type(error).__name__}: {error}); "
                "repair or uninstall its package"
            ) from None


@contextmanager
def _loading(plugin: Plugin) -> Iterator[None]:
    """While a plug-in is imported: what is registered belongs to it. It is kept if the import succeeds; else it goes,
    and another import, after the mistake is corrected, registers it anew."""
    before = set(sys.modules)
    _LOADING.append(plugin)
    try:
        yield
    except BaseException:
        for undo in plugin.undo:
            undo()
        for name in plugin.modules - before:
            _forget(name)
        raise
    finally:
        _LOADING.pop()
    LOADED[plugin.name] = plugin


def _forget(module: str) -> None:
    """Take a module out, so that the next import of it runs its code."""
    sys.modules.pop(module, None)
    package, _, name = module.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(name, None)


def note(what: str, name: str, changes_runs: bool, undo: Callable[[], None]) -> Plugin | None:
    """Called by registries: an item that is not built in has been registered. Returns the plug-in that it belongs to,
    if any. undo: takes it out again, where the import of the plug-in fails."""
    if not _LOADING:
        return None
    plugin = _LOADING[-1]
    plugin.items[what, name] = changes_runs
    plugin.undo.append(undo)
    plugin.modules.update(_importing())
    return plugin


def importing_hybridlab() -> bool:
    """Whether the innermost module whose import is under way is one of hybridlab. A plug-in can be the first to import
    one, and what that one registers is built in."""
    return next(_importing(), "").split(".")[0] == "hybridlab"


def _importing() -> Iterator[str]:
    """The names of the modules whose import is under way, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


# ---- versions ----


def _module_version(module: ModuleType, dist: Distribution | None = None) -> str:
    """The version of a module's distribution. For an editable install, whose version stays when its files change, and
    for a module without a distribution: a digest of all Python files of its package, or of its own file."""
    dist = dist or _distribution_of(module.__name__.split(".")[0])
    if dist is not None and not _editable(dist):
        return dist.version
    if module.__file__ is None:
        raise UserError(f"--plugin {module.__name__}: it has no file; name a module inside it")
    top = sys.modules.get(module.__name__.split(".")[0], module)
    folders = [Path(folder) for folder in getattr(top, "__path__", [])]
    return _digest(sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(module.__file__)])


def _distribution_of(package: str) -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

    for name in packages_distributions().get(package, []):
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


def _editable(dist: Distribution) -> bool:
    try:
        url = json.loads(dist.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(url.get("dir_info", {}).get("editable"))


def _digest(files: list[Path]) -> str:
    """Twelve hexadecimal digits of the content of some files."""
    import hashlib

    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(content if len(files) == 1 else path.name.encode() + b"\0" + content)
    return digest.hexdigest()[:12]


# ---- runs that were trained with plug-ins ----


def plugins_in_use(used: set[tuple[str, str]]) -> dict[str, str]:
    """Name → version of the loaded plug-ins that belong to the identity of a run that uses these items."""
    return {name: plugin.version for name, plugin in sorted(LOADED.items()) if plugin.counts(used)}


def plugin_places(names: Mapping[str, str] | None) -> dict[str, str]:
    """Name → what `--plugin` takes, of the loaded ones of these plug-ins."""
    return {name: LOADED[name].reference for name in names or {} if name in LOADED}


def require_plugins(
    versions: Mapping[str, str] | None, places: Mapping[str, str], where: object, exact: bool = True
) -> None:
    """UserError, which says what to load, unless these plug-ins are loaded, in these versions if `exact`.

    versions, places: name → version, and what `--plugin` takes. where: the run or file, for the error.
    """
    if not isinstance(versions, Mapping):
        return
    if versions.keys() - LOADED.keys():
        load_installed()
    for name, version in versions.items():
        reference = places.get(name, name)
        if name not in LOADED:
            raise UserError(
                f"{where}: it was trained with the plug-in {name} (version {version}); load it before the command: "
                f"hybridlab --plugin {reference}"
            )
        loaded = LOADED[name]
        if exact and loaded.version != version:
            raise UserError(
                f"{where}: it was trained with version {version} of the plug-in {name}, but {loaded.reference} is of "
                f"version {loaded.version}; restore that version and load it with --plugin {reference}"
            )


# ---- mistakes in the code of a plug-in, or of a Python program ----
#
# What such code returns is checked once, where hybridlab gets it: by `refuse`, in a sentence with the class or function
# and its file. An exception from it is told by the line of its file.

_LONGEST = 200
"""Characters of the message of an exception, and of a value, that are shown."""


def is_own(item: object) -> bool:
    """Whether a class, a function or an object is the user's: its definition is not part of hybridlab."""
    return str(_definition(item).__module__).partition(".")[0] != "hybridlab"


def place_of(item: object, method: str = "") -> str:
    """Where a function, a class or a method stands, as in `Sinks.attend (sinks.py:33)`; of a class that has no such
    method of its own, the class.

    item: a function, a class, or an object of a class.
    """
    definition = _definition(item)
    code = getattr(definition, "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_qualname} ({short_path(code.co_filename)}:{code.co_firstlineno})"
    for base in definition.__mro__:
        member = vars(base).get(method)
        code = getattr(getattr(member, "fget", getattr(member, "__func__", member)), "__code__", None)
        if isinstance(code, CodeType) and is_own(base):
            return f"{definition.__name__}.{method} ({short_path(code.co_filename)}:{code.co_firstlineno})"
    lacking = f", which has no {method} of its own" if method else ""
    try:
        import inspect

        line = inspect.getsourcelines(definition)[1]
        return f"{definition.__name__} ({short_path(inspect.getfile(definition))}:{line}){lacking}"
    except (OSError, TypeError):  # a class that was typed into an interpreter
        return f"{definition.__name__}{lacking}"


def refuse(item: object, method: str, value: object, expected: str, problem: str = "") -> NoReturn:
    """UserError for what the user's code has returned. item, method: see `place_of`. expected: what it must return.
    problem: what is wrong with the value, if its type does not say so."""
    raise UserError(f"{place_of(item, method)} returned {shown(value)}{problem}; it must return {expected}")


def entries(item: object, method: str, value: Any, expected: str) -> Iterator[Any]:
    """What the user's code yields or returns as a list; see `refuse` for anything else, a text among it."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        refuse(item, method, value, expected)
    return iter(value)


def text_from(make: Callable[[str], str], argument: str) -> str:
    """What a function of the user's makes of a text; see `refuse` for what is none."""
    text = make(argument)
    return text if isinstance(text, str) else refuse(make, "", text, "a text")


def as_json(item: object, method: str, value: Any, expected: str) -> Any:
    """A value from the user's code that is written as JSON; see `refuse` for one that JSON does not have. expected:
    what it must be."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        json.dumps(to_jsonable_python(value), allow_nan=False)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError):
        name, inner = _not_json(value)
        where = f" under {name!r}" if name else ""
        refuse(item, method, inner, expected, f"{where}, which cannot be written as JSON")
    return value


def _not_json(value: Any) -> tuple[str, Any]:
    """The dotted name of the entry that JSON does not have, and that entry; "" for a value without entries."""
    from pydantic_core import to_jsonable_python

    for name, inner in value.items() if isinstance(value, Mapping) else ():
        try:
            json.dumps(to_jsonable_python(inner), allow_nan=False)
        except Exception:  # of any method of the user's own classes
            below, entry = _not_json(inner)
            return (f"{name}.{below}" if below else str(name)), entry
    return "", value


@contextmanager
def calling(
    item: object, method: str = "", passes: Callable[[Exception], bool] = lambda error: False
) -> Iterator[None]:
    """A context for a call of the user's code, in which an exception of it is a RunFailed that says where it was
    raised. The cause has the user's part of the traceback alone. item, method: see `place_of`. passes: whether an
    exception is none of the code's, and stays as it is."""
    try:
        yield
    except (UserError, RunFailed, MemoryError):
        raise
    except Exception as error:  # the user's code can raise anything
        if not is_own(item) or out_of_memory(error) or passes(error):
            raise
        fail(error, raised(error, _is_theirs) or f"{place_of(item, method)} raised {summary(error)}")


def fail(error: BaseException, words: str) -> NoReturn:
    """RunFailed for an exception from the user's code, with the part of its traceback that begins there. words: what
    `raised` says of it."""
    trace = error.__traceback__
    while trace is not None and not _is_theirs(trace.tb_frame):
        trace = trace.tb_next
    raise RunFailed(words) from error.with_traceback(trace or error.__traceback__)


def in_plugin(error: BaseException) -> str | None:
    """As `raised`, of an exception from the code of any plug-in."""
    return raised(error, lambda frame: is_plugin(frame.f_globals.get("__name__", "")))


def raised(error: BaseException, is_theirs: Callable[[FrameType], bool]) -> str | None:
    """An exception in words: what was raised in which line, and the shapes that the function got. None for one that has
    no frame of theirs."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_theirs(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    shapes = ", ".join(_shapes(frame))
    where = f"{frame.f_code.co_qualname} ({short_path(frame.f_code.co_filename)}:{line})"
    return f"{where} raised {summary(error)}{f', with {shapes}' if shapes else ''}"


def summary(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    text = str(error).strip().partition("\n")[0]
    return type(error).__name__ + (f": {text[:_LONGEST].rstrip('. ')}" if text else "")


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there is no memory, which is no mistake of the code that asked for it."""
    return "out of memory" in str(error) or "allocate memory" in str(error)


def short_path(path: str) -> str:
    """The path of a file as a user would write it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def _definition(item: Any) -> Any:
    """The function, or the class, that an item is or is an object of."""
    while isinstance(item, partial) or hasattr(item, "__wrapped__"):
        item = item.func if isinstance(item, partial) else item.__wrapped__
    item = getattr(item, "__func__", item)
    return item if isinstance(item, type) or hasattr(item, "__code__") else type(item)


def _is_theirs(frame: FrameType) -> bool:
    """Whether the code of a frame is neither hybridlab's nor that of a library."""
    module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    if is_plugin(module):
        return True
    return module.partition(".")[0] != "hybridlab" and not file.startswith(_libraries())


@cache
def _libraries() -> tuple[str, ...]:
    """How the paths of code begin that nobody here has written."""
    return ("<frozen", *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")))


def _shapes(frame: FrameType) -> Iterator[str]:
    """The arguments of a call that are tensors or heads, with their shapes."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount]:
        value: Any = frame.f_locals.get(name)
        parts = {f"{name}.{part}": getattr(value, part, None) for part in ("q", "k", "v")}
        for label, tensor in {name: value, **parts}.items():
            if hasattr(tensor, "shape"):
                yield f"{label} {tuple(tensor.shape)}"
