"""One execution of a layer's parameters: the smallest element of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridlab.arguments import plain
from hybridlab.errors import UserError

PARTS = ("block", "attention", "mlp")
Place = tuple[int, ...]
"""The index of one execution in a plan: (index,), or in a loop (index of the loop, iteration, index in its body)."""


COUNTING = "in settings, which count from 0, L6 is layer 5 and head 4 is head 3"
"""How the numbers of a printed plan are written in settings."""


def layer_name(layer: int) -> str:
    """A layer in texts: its number in settings, which count from 0, and its name in plans: `layer 5 (L6)`."""
    return f"layer {layer} (L{layer + 1})"


def is_whole(value: Any) -> bool:
    """Whether a value is an int, not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Visit:
    """One execution of a layer's parameters.

    layer: parameter layer, from 0.
    part: `block` (attention, then MLP), `attention` or `mlp`, each with its residual connection.
    heads: query heads that run in the attention, ascending; None for all of them.
    UserError for a part, layer or head that cannot be.

        hybridlab.Visit(5, part="attention", heads=(3, 7))    # heads 4 and 8 of the sixth layer, without its MLP
    """

    layer: int
    part: str = "block"
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", plain(self.layer))
        if not is_whole(self.layer) or self.layer < 0:
            raise UserError(f"visit of layer {self.layer}: layers are whole numbers from 0 on")
        if self.part not in PARTS:
            raise UserError(
                f"visit of {layer_name(self.layer)}: part {self.part!r} is unknown; use one of {', '.join(PARTS)}"
            )
        if self.heads is None:
            return
        if self.part == "mlp":
            raise UserError(f"visit of {layer_name(self.layer)}: an MLP has no heads; remove `heads`")
        given = plain(self.heads)
        heads = given if isinstance(given, list) and all(is_whole(head) for head in given) else []
        if not heads or min(heads) < 0 or len(set(heads)) != len(heads):
            name = layer_name(self.layer)
            raise UserError(f"visit of {name}: heads {self.heads} must be different numbers from 0 on")
        object.__setattr__(self, "heads", tuple(sorted(heads)))

    def __str__(self) -> str:
        heads = "" if self.heads is None else " heads " + ",".join(str(h + 1) for h in self.heads)
        part = "" if self.part == "block" else f" {self.part}"
        return f"L{self.layer + 1}{part}{heads}"
