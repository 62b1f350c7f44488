"""What a run is called, and how it was started: facts of its folder that its hash does not cover."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIKE_A_HASH = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True)
class Label:
    """The name and tags that a person gives a run. name: None leaves the name as it is. UserError if one is not valid.

    A name or tag has letters, digits and `-_.`, and begins with a letter or a digit. A name is not also the possible
    start of a hash, because a run is found by either.
    """

    name: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, word in (*((("--name", self.name),) if self.name is not None else ()), *self._tagged()):
            if not _WORD.fullmatch(word):
                raise UserError(
                    f"{option} {word!r}: use at most 64 letters, digits and the signs - _ . and begin with a letter "
                    "or a digit"
                )
        if self.name is not None and _LIKE_A_HASH.fullmatch(self.name):
            raise UserError(
                f"--name {self.name}: it could be the start of a run's hash, which has only the digits 0-9 and a-f; "
                f"use a name with another letter or sign, such as run-{self.name}"
            )

    def _tagged(self) -> list[tuple[str, str]]:
        return [("--tag", tag) for tag in self.tags]

    def applied(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The entries `name` and `tags` of run.json after this label is given: a new name, and more tags."""
        tags = [*(facts.get("tags") or []), *self.tags]
        return {"name": self.name or facts.get("name"), "tags": list(dict.fromkeys(tags))}


def start_facts() -> dict[str, str]:
    """Time (UTC), host and command line of this process, as they are written into run.json at a run's first start."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "hybridlab") or "python"
    command = shlex.join([program, *sys.argv[1:]]).encode("utf-8", "replace").decode()
    return {"started": datetime.now(UTC).isoformat(timespec="seconds"), "host": platform.node(), "command": command}
