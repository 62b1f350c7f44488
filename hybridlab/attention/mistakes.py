"""Mistakes in the code of an attention kind, in words: where the code stands, and what it was given.

hybridlab check mine.py
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.errors import RunFailed, UserError
from hybridlab.plugins import is_plugin

_LONGEST = 200
"""Characters of the message of an exception that are shown."""


def is_own(kind: AttentionKind) -> bool:
    """Whether a kind is the user's: its class is not part of hybridlab."""
    return type(kind).__module__.partition(".")[0] != "hybridlab"


def place_of(kind: AttentionKind, method: str) -> str:
    """Where a method of a kind stands, as in `Sinks.attend (sinks.py:33)`; where it has none of its own, its class."""
    name = type(kind).__name__
    for base in type(kind).__mro__:
        member = vars(base).get(method)
        code = getattr(getattr(member, "fget", member), "__code__", None)
        if isinstance(code, CodeType) and base.__module__.partition(".")[0] != "hybridlab":
            return f"{name}.{method} ({_file(code.co_filename)}:{code.co_firstlineno})"
    try:
        line = inspect.getsourcelines(type(kind))[1]
        return f"{name} ({_file(inspect.getfile(type(kind)))}:{line}), which has no {method} of its own"
    except (OSError, TypeError):  # a class that was typed into an interpreter
        return f"{name}, which has no {method} of its own"


def in_words(error: BaseException, kinds: Iterable[AttentionKind]) -> str | None:
    """An exception from the code of one of these kinds: what was raised where, and the shapes that the function got.
    None for one that does not come from their code."""
    folders = {_folder(kind) for kind in kinds if is_own(kind)} - {None}
    return _raised(error, lambda frame: Path(frame.f_code.co_filename).parent in folders)


def in_plugin(error: BaseException) -> str | None:
    """As `in_words`, of an exception from the code of any plug-in."""
    return _raised(error, lambda frame: is_plugin(frame.f_globals.get("__name__", "")))


def _raised(error: BaseException, is_theirs: Callable[[FrameType], bool]) -> str | None:
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_theirs(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    given = ", ".join(_shapes(frame))
    where = f"{frame.f_code.co_qualname} ({_file(frame.f_code.co_filename)}:{line})"
    return f"{where} raised {summary(error)}{f', with {given}' if given else ''}"


@contextmanager
def explained(kinds: Iterable[AttentionKind]) -> Iterator[None]:
    """A context for a forward pass, in which an exception from the attention of the user's kinds is a UserError that
    says where it comes from, and how to check the kind."""
    try:
        yield
    except (UserError, RunFailed, MemoryError):
        raise
    except Exception as error:  # the code of a kind can raise anything
        own = [kind for kind in kinds if is_own(kind)]
        if not own or "out of memory" in str(error) or "allocate memory" in str(error):
            raise
        words = in_words(error, own)
        if words is None and not _in_attention(error):
            raise
        raise UserError(
            f"{words or f'the attention of {own[0].name} raised {summary(error)}'}; `{checking(own[0])}` says what is "
            "wrong with the kind"
        ) from error


def _in_attention(error: BaseException) -> bool:
    """Whether an exception was raised while a model computed its attention, or compiled it."""
    names = (frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__))
    return type(error).__module__.startswith("torch._dynamo") or any(name == "Attention.forward" for name in names)


def summary(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    text = str(error).strip().partition("\n")[0]
    return type(error).__name__ + (f": {text[:_LONGEST].rstrip('. ')}" if text else "")


def checking(kind: AttentionKind) -> str:
    """The command that checks a kind of the user's."""
    plugin = ATTENTION_KINDS.plugins.get(kind.name)
    sets = "".join(f" --set {name}={value}" for name, value in asdict(kind).items() if value is not None)
    if plugin is None:
        return f"hybridlab check FILE.py{sets}"
    if plugin.reference.endswith(".py"):
        return f"hybridlab check {_file(plugin.reference)}{sets}"
    return f"hybridlab --plugin {plugin.reference} check {kind.name}{sets}"


def _folder(kind: AttentionKind) -> Path | None:
    try:
        return Path(inspect.getfile(type(kind))).parent
    except (OSError, TypeError):
        return None


def _file(path: str) -> str:
    """The path of a file as a user would write it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def _shapes(frame: FrameType) -> Iterator[str]:
    """The arguments of a call that are tensors or heads, with their shapes."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount]:
        value: Any = frame.f_locals.get(name)
        parts = {f"{name}.{part}": getattr(value, part, None) for part in ("q", "k", "v")}
        for label, tensor in {name: value, **parts}.items():
            if hasattr(tensor, "shape"):
                yield f"{label} {tuple(tensor.shape)}"
