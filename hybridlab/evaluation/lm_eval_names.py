"""The names of lm-eval's tasks, groups and tags, without loading any, and patterns of them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from hybridlab.errors import UserError, nearest
from hybridlab.evaluation.lm_eval_options import own_tasks

OWN = Path(__file__).parent / "benchmarks"
_WORD = rb"[\w.][\w.\-()]*"
_NAME = re.compile(rb"""^['"]?(task|group|tag)['"]?\s*:\s*['"]?(?!null\b)(%s)['"]?\s*$""" % _WORD, re.MULTILINE)
_TAGS = re.compile(rb"""^['"]?tag['"]?\s*:\s*\n((?:\s*-\s*['"]?%s['"]?\s*(?:\n|\Z))+)""" % _WORD, re.MULTILINE)
LIST = "list them with `lm-eval ls tasks`"


@cache
def folders() -> dict[str, tuple[Path, ...]]:
    """Name of a task or group → the folder of the file that defines it; of a tag → those of all its tasks.

    Found in the text of the files: reading them as YAML, as lm-eval's own index does, takes fifty times as long.
    """
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None, "lm-eval is installed with hybridlab"
    defined: dict[str, tuple[Path, ...]] = {}
    tagged: dict[str, dict[Path, None]] = {}
    for place in (OWN, Path(spec.origin).parent / "tasks"):
        # Parts that several files include end in yaml, without a point, or have no ending.
        for path in sorted(place.glob("**/*")):
            if not (path.name.endswith("yaml") or not path.suffix) or path.is_dir():
                continue
            text = path.read_bytes()
            for kind, name in _NAME.findall(text):
                if kind == b"tag":
                    tagged.setdefault(name.decode(), {})[path.parent] = None
                else:
                    defined.setdefault(name.decode(), (path.parent,))
            for entries in _TAGS.findall(text):
                for name in re.findall(_WORD, entries):
                    tagged.setdefault(name.decode(), {})[path.parent] = None
    return {name: tuple(places) for name, places in tagged.items()} | defined


def matching(names: Sequence[str], include_path: Path | None = None) -> list[str]:
    """The names, each once, with all tasks, groups and tags that a pattern fits in its place, sorted, as lm-eval's
    command does it: `*` stands for anything, `?` for one character. include_path: a folder with further tasks.
    UserError for a pattern that fits none."""
    matches: dict[str, None] = {}
    for name in names:
        fitting = [name]
        if any(sign in name for sign in "*?["):
            tasks = {*folders(), *({} if include_path is None else own_tasks(include_path))}
            fitting = sorted(fnmatch.filter(tasks, name))
        if not fitting:
            raise UserError(f"--tasks {name}: no task of lm-eval fits this pattern; {LIST}")
        matches |= dict.fromkeys(fitting)
    return list(matches)


def require_task(name: str, include_path: Path | None = None) -> None:
    """UserError, with the nearest name, if there is no such task. include_path: a folder with further tasks."""
    tasks = [*({} if include_path is None else own_tasks(include_path)), *folders()]
    if name not in tasks:
        where = "lm-eval has none" if include_path is None else f"there is none in {include_path} or lm-eval"
        raise UserError(f"task {name!r}: {where} of this name; {nearest(name, tasks, LIST)}")
