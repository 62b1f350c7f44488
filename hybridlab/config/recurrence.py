"""How a recurrent architecture divides a size's layers into prelude, loop and postlude (SpiralFormer, section 3.1).

`recurrence: {allocation: base, chunks: [8, 4, 2, 1], topology: mesh}` in a preset or a file, or
`--set recurrence.allocation=large`, or `--set recurrence={pre: 2, loop: 4, post: 2, chunks: [1, 1]}`; whatever else
stands there is a setting of the loop (plan/loop.py).
"""

from __future__ import annotations

from typing import Any

from hybridlab.config.loading import Layer
from hybridlab.errors import UserError

FROM_PARENT = "what --from names"
"""The place of settings that a run to start from brings."""
ALLOCATIONS = ("base", "large", "unshared")


def allocate(allocation: str, num_layers: int) -> tuple[int, int, int]:
    """(prelude, loop, postlude) of a plain stack of so many layers.

    base: as deep when it runs twice (4 + 8 × 2 + 4 for 24). large: as many parameters (8 + 8 × T + 8). unshared: base
    with a body of its own for each of two iterations, which is the plain stack again.
    """
    outer = num_layers // 3 if allocation == "large" else round(num_layers / 6)
    inner = num_layers - 2 * outer
    if outer < 1 or inner < 1 or (allocation != "large" and inner % 2):
        raise UserError(f"allocation {allocation}: {num_layers} layers cannot be divided; give pre, loop and post")
    return outer, inner if allocation == "large" else inner // 2, outer


def place_recurrence(layer: Layer) -> Layer:
    """Turn `recurrence:` into the shape's number of layers and the first edit of the plan.

    The loop of a run to start from stays as it is; whoever asks for another one is refused.
    """
    values = dict(layer.values)
    if "recurrence" not in values:
        return layer
    settings, edits = values.pop("recurrence"), values.get("plan", [])
    if isinstance(edits, list) and any(_recurs(edit) for edit in edits):
        asked = next((place for place in _places(layer, settings) if place.startswith("--")), None)
        if layer.origin(("plan",)) == FROM_PARENT and asked is None:
            return Layer(values, layer.origins)
        other = "the run to start from" if layer.origin(("plan",)) == FROM_PARENT else "`plan`"
        raise UserError(f"{asked or layer.origin(('plan',))}: {other} has a loop already; leave one of the two out")
    place = _place(layer, settings)
    try:
        pre, loop, post, rest = _division(dict(settings), values["shape"]["layers"])
    except UserError as error:
        raise UserError(f"{place + ': ' if place else ''}recurrence: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError):
        raise UserError(
            f"{place + ': ' if place else ''}recurrence: {settings} is not a mapping of whole numbers and words"
        ) from None
    bodies = 1 if rest.get("shared", True) else len(rest["chunks"])
    values["shape"] = {**values["shape"], "layers": pre + bodies * loop + post}
    values["plan"] = [{"op": "recur", "first": pre, "size": loop, **rest}, *edits]
    origins = {("plan",): place, ("shape", "layers"): place, **layer.origins}
    return Layer(values, origins)


def _places(layer: Layer, settings: Any) -> list[str]:
    """Where the parts of the recurrence were written, and where the whole was."""
    names = list(settings) if isinstance(settings, dict) else []
    return [layer.origin(("recurrence", name)) for name in names] + [layer.origin(("recurrence",))]


def _place(layer: Layer, settings: Any) -> str:
    """The place to name in an error: what was asked for last, where several places had a part in it."""
    places = _places(layer, settings)
    return next((place for place in places if place.startswith("--")), places[-1])


def _recurs(edit: Any) -> bool:
    if not isinstance(edit, dict):
        return False
    visits = edit.get("visits")
    loops = isinstance(visits, list) and any(isinstance(visit, dict) and "bodies" in visit for visit in visits)
    return edit.get("op") == "recur" or loops


def _division(settings: dict[str, Any], num_layers: int) -> tuple[int, int, int, dict[str, Any]]:
    """(prelude, loop, postlude, the loop's own settings)."""
    parts = [settings.pop(name, None) for name in ("pre", "loop", "post")]
    allocation = settings.pop("allocation", None)
    if not isinstance(settings.get("chunks"), list) or not settings["chunks"]:
        raise UserError("chunks is missing; give the tokens in a chunk of each iteration, as [8, 4, 2, 1]")
    if allocation is not None and allocation not in ALLOCATIONS:
        raise UserError(f"allocation {allocation!r} is unknown; use one of {', '.join(ALLOCATIONS)}")
    given = [part for part in parts if part is not None]
    if given and len(given) < 3:
        raise UserError("give all of pre, loop and post, or an allocation")
    if given:
        if not all(isinstance(part, int) and part >= least for part, least in zip(parts, (0, 1, 0), strict=True)):
            raise UserError(f"pre, loop and post {parts} must be whole numbers, and loop at least 1")
        return (*parts, settings)
    if allocation is None:
        raise UserError("give an allocation (base, large, unshared), or pre, loop and post")
    if allocation == "unshared":
        if len(settings["chunks"]) != 2:
            raise UserError(f"allocation unshared divides the layers for two iterations, not {len(settings['chunks'])}")
        settings["shared"] = False
    return (*allocate(allocation, num_layers), settings)
