"""Changes of a run's structure as lines for the terminal."""

from __future__ import annotations

from typing import Any

_MOST_LETTERS = 100
_BEFORE, _AFTER = "_before", "_after"


def event_line(event: dict[str, Any]) -> str:
    """An event in words: `step 120: loop-added: layer 5 (L6), heads 3, 7, passes 1`. A number before and after is one
    part, `2 → 4 layers`.

    Layers and heads count from 0, as in settings; L counts from 1, as in figures. Without details of its own, the line
    says what the plan or the map is now.
    """
    parts = []
    for name, value in event.items():
        if name == "layer":
            parts.append(f"layer {value} (L{value + 1})")
        elif name == "heads":
            parts.append(f"heads {', '.join(map(str, value))}")
        elif name.endswith(_AFTER) and isinstance(value, int):
            what = name.removesuffix(_AFTER)
            parts.append(f"{event[what + _BEFORE]} → {value} {what}")
        elif name not in ("step", "kind") and isinstance(value, str | int | float) and not _of_structure(name):
            parts.append(value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}")
    if not parts:
        parts = [f"{part} {event[f'{part}_after']}" for part in ("plan", "map") if f"{part}_after" in event]
    line = f"step {event['step']}: {event['kind']}" + (f": {', '.join(parts)}" if parts else "")
    return line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 2] + " …"


def _of_structure(name: str) -> bool:
    return name.endswith((_BEFORE, _AFTER))
