"""The names of all tasks of lm-eval and of hybridlab's own, without loading any."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from hybridlab.errors import UserError, nearest

OWN = Path(__file__).parent / "benchmarks"
_NAME = re.compile(rb"""^['"]?(task|group|tag)['"]?\s*:\s*['"]?([\w.\-]+)['"]?\s*$""", re.MULTILINE)
_TAGS = re.compile(rb"""^['"]?tag['"]?\s*:\s*\n((?:\s*-\s*['"]?[\w.\-]+['"]?\s*\n)+)""", re.MULTILINE)
_LIST = "list them with `lm-eval ls tasks`"


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
        # Parts that several files include end in yaml, without a point.
        for path in sorted(place.glob("**/*yaml")):
            text = path.read_bytes()
            for kind, name in _NAME.findall(text):
                if kind == b"tag":
                    tagged.setdefault(name.decode(), {})[path.parent] = None
                else:
                    defined.setdefault(name.decode(), (path.parent,))
            for entries in _TAGS.findall(text):
                for name in re.findall(rb"[\w.][\w.\-]*", entries):
                    tagged.setdefault(name.decode(), {})[path.parent] = None
    return {name: tuple(places) for name, places in tagged.items()} | defined


def require_task(name: str) -> None:
    """UserError, with the nearest name, if there is no such task."""
    if name not in folders():
        raise UserError(f"task {name!r}: lm-eval has none of this name; {nearest(name, list(folders()), _LIST)}")
