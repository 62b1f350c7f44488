"""Mistakes in the code of an attention kind, in words: where the code stands, and what it was given.

hybridlab check mine.py
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.errors import RunFailed, UserError
from hybridlab.plugins import is_own, out_of_memory, raised, short_path, summary


def in_words(error: BaseException, kinds: Iterable[AttentionKind]) -> str | None:
    """An exception from the code of one of these kinds: what was raised where, and the shapes that the function got.
    None for one that does not come from their code."""
    folders = {_folder(kind) for kind in kinds if is_own(kind)} - {None}
    return raised(error, lambda frame: Path(frame.f_code.co_filename).parent in folders)


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
        if not own or out_of_memory(error):
            raise
        words = in_words(error, own)
        names = (frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__))
        compiling = type(error).__module__.startswith("torch._dynamo")
        if words is None and not compiling and "Attention.forward" not in names:  # from elsewhere in the model
            raise
        raise UserError(
            f"{words or f'the attention of {own[0].name} raised {summary(error)}'}; `{checking(own[0])}` says what is "
            "wrong with the kind"
        ) from error


def checking(kind: AttentionKind) -> str:
    """The command that checks a kind of the user's."""
    plugin = ATTENTION_KINDS.plugins.get(kind.name)
    sets = "".join(f" --set {name}={value}" for name, value in asdict(kind).items() if value is not None)
    if plugin is None:
        return f"hybridlab check FILE.py{sets}"
    if plugin.reference.endswith(".py"):
        return f"hybridlab check {short_path(plugin.reference)}{sets}"
    return f"hybridlab --plugin {plugin.reference} check {kind.name}{sets}"


def _folder(kind: AttentionKind) -> Path | None:
    try:
        return Path(inspect.getfile(type(kind))).parent
    except (OSError, TypeError):
        return None
