"""How a recurrent architecture divides a size's layers into prelude, loop and postlude (SpiralFormer, section 3.1).

Write `recurrence: {allocation: base, chunks: [8, 4, 2, 1], topology: mesh}` in a preset or a file, or
`--set recurrence.allocation=large`, or `--set recurrence={pre: 2, loop: 4, post: 2, chunks: [1, 1]}`. The other
settings are those of the loop (plan/loop.py).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from hybridlab.config.edits import LoopSettings, PlanEdit
from hybridlab.config.loading import Layer, check
from hybridlab.config.method import controller_of
from hybridlab.config.types import NonNegativeInt, PositiveInt, Strict
from hybridlab.config.yaml_text import KeyPath
from hybridlab.errors import SettingsConflict, UserError, located

FROM_PARENT = "what --from names"
"""The origin, in errors, of settings of the run to start from."""
DIVISION = ("allocation", "pre", "loop", "post")
"""The settings of a recurrence that divide the layers; the others are the loop's own."""


class Recurrence(LoopSettings):
    """How layers are divided, and the settings of the loop. `pre`, `loop` and `post` override `allocation`."""

    allocation: Literal["base", "large", "unshared"] | None = None
    """Rule that divides the layers of the size into prelude, loop and postlude."""
    pre: NonNegativeInt | None = None
    """Number of layers before the loop."""
    loop: PositiveInt | None = None
    """Number of layers in the loop's body."""
    post: NonNegativeInt | None = None
    """Number of layers after the loop."""
    shared: bool = True
    """All iterations use the same layers; otherwise each iteration has its own."""

    @model_validator(mode="after")
    def _divides(self) -> Recurrence:
        if not self.chunks:
            raise SettingsConflict(
                "chunks is empty; give the chunk size of each iteration, as in [8, 4, 2, 1]", "chunks"
            )
        stated = [part is not None for part in (self.pre, self.loop, self.post)]
        if any(stated) and not all(stated):
            raise SettingsConflict("give all of pre, loop and post, or an allocation", *DIVISION)
        if not any(stated) and self.allocation is None:
            raise SettingsConflict("give an allocation (base, large, unshared), or pre, loop and post", *DIVISION)
        if not any(stated) and self.allocation == "unshared" and len(self.chunks) != 2:
            message = f"allocation unshared divides the layers for two iterations, not {len(self.chunks)}"
            raise SettingsConflict(message, "allocation", "chunks")
        return self

    @property
    def by_numbers(self) -> bool:
        return self.loop is not None

    @property
    def bodies(self) -> int:
        """Number of bodies of the loop, each with its own layers."""
        return 1 if self._shares else len(self.chunks)

    @property
    def _shares(self) -> bool:
        return self.shared and (self.by_numbers or self.allocation != "unshared")

    def division(self, num_layers: int) -> tuple[int, int, int]:
        """Number of layers in (prelude, loop body, postlude), for a plain stack of `num_layers`."""
        if self.pre is not None and self.loop is not None and self.post is not None:
            return self.pre, self.loop, self.post
        return allocate(self.allocation or "base", num_layers)

    def edit(self, first: int, size: int) -> dict[str, Any]:
        """The plan edit that makes the loop, with only the settings that were written."""
        written = {name: value for name, value in self.model_dump(mode="json").items() if name not in DIVISION}
        shared = {} if self._shares == self.shared else {"shared": self._shares}
        return {"op": "recur", "first": first, "size": size, **written, **shared}


def allocate(allocation: str, num_layers: int) -> tuple[int, int, int]:
    """Number of layers in (prelude, loop body, postlude), for a plain stack of `num_layers`.

    base: with two iterations as deep as the stack (4 + 8 × 2 + 4 for 24). large: as many parameters as the stack
    (8 + 8 × T + 8). unshared: base with separate layers for each of two iterations, which is the plain stack again.
    """
    outer = num_layers // 3 if allocation == "large" else round(num_layers / 6)
    inner = num_layers - 2 * outer
    if outer < 1 or inner < 1 or (allocation != "large" and inner % 2):
        raise UserError(f"allocation {allocation}: {num_layers} layers cannot be divided; give pre, loop and post")
    return outer, inner if allocation == "large" else inner // 2, outer


def keep_one_loop(layer: Layer, written: str | None) -> Layer:
    """Raise UserError for a recurrence and a plan that already has a loop. If the recurrence is a default and the plan
    comes from the run to start from, the recurrence is dropped.

    written: the origin of a recurrence that was written for this run; None if it is a default.
    """
    edits = layer.values.get("plan")
    if "recurrence" not in layer.values or not isinstance(edits, list) or not any(_recurs(edit) for edit in edits):
        return layer
    origin = layer.origin(("plan",))
    if origin == FROM_PARENT and written is None:
        return layer.without("recurrence")
    source = "the run to start from" if origin == FROM_PARENT else "`plan`"
    raise UserError(f"{written or origin}: {source} has a loop already; remove `recurrence` or that loop")


class _WithEdits(Strict):
    """The edits are checked before the recurrence becomes the first of them, which changes their indices."""

    recurrence: Recurrence
    plan: list[PlanEdit] = []


def expand_recurrence(layer: Layer, layers_asked: str | None) -> Layer:
    """Turn `recurrence:`, where there is one, into the shape's number of layers and the first edit of the plan.

    layers_asked: the origin of a `shape.layers` that was written for this run; None if it is a default. UserError
    beside a controller that adds layers.
    """
    if "recurrence" not in layer.values:
        return layer
    method = controller_of(layer.values)
    if method is not None and method.adds_layers:
        message = (
            "recurrence divides all layers of the size, and a model that grows begins with fewer; write a loop over "
            "those as plan: [{op: recur, first: N, size: N, chunks: […]}]"
        )
        raise UserError(located(layer.latest([("recurrence",), ("controller", "kind"), ("controller",)]), message))
    recurrence = check(_WithEdits, layer.only("recurrence", "plan")).recurrence
    values = layer.without("recurrence").values
    edits, shape, origin = values.get("plan", []), values.get("shape"), layer.origin(("recurrence",))
    if not isinstance(shape, dict) or type(shape.get("layers")) is not int:
        return Layer(values, layer.origins)  # the schema reports the mistake
    try:
        pre, loop, post = recurrence.division(shape["layers"])
    except UserError as error:
        raise UserError(located(origin, f"recurrence: {error}")) from None
    total = pre + recurrence.bodies * loop + post
    if layers_asked is not None and recurrence.by_numbers and shape["layers"] != total:
        raise UserError(
            f"{layers_asked}: shape.layers {shape['layers']} has no effect, since recurrence.pre, loop and post "
            f"make {total} layers; remove one of the two"
        )
    values["shape"] = {**shape, "layers": total}
    values["plan"] = [recurrence.edit(pre, loop), *edits]
    origins = {_after_new_edit(path): written for path, written in layer.origins.items()}
    added: dict[KeyPath, str] = {("plan",): origin, ("plan", 0): origin, ("shape", "layers"): origin}
    return Layer(values, {**added, **origins, ("shape", "layers"): origin})


def _after_new_edit(path: KeyPath) -> KeyPath:
    """The path of a value after an edit was added before all others: ("plan", 0, "op") → ("plan", 1, "op")."""
    match path:
        case ("plan", int(index), *rest):
            return ("plan", index + 1, *rest)
    return path


def _recurs(edit: Any) -> bool:
    """Whether a plan edit, as written, makes a loop over resolutions."""
    if not isinstance(edit, dict):
        return False
    visits = edit.get("visits")
    loops = isinstance(visits, list) and any(isinstance(visit, dict) and "bodies" in visit for visit in visits)
    return edit.get("op") == "recur" or loops
