"""Where each layer of a model comes from that has grown in depth. No torch.

python -c "from hybridlab.plan.lineage import *; print(grown_lineage(first_lineage(4), range(1, 3)))"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybridlab.plan.visit import is_whole


@dataclass(frozen=True)
class Origin:
    """Where a layer of a grown model comes from.

    Layers have numbers that never change: those of the start model from 0 on, then those that were added, in the order
    of growth and, within a growth step, of depth. parent: the number of the layer that it was copied from. index: that
    layer's index, from 0, in the model at that time. Both are None for layers of the start model. stage: the stage in
    which it began, 0 for those of the start model.
    """

    parent: int | None
    index: int | None
    stage: int


Lineage = tuple[Origin, ...]
"""One origin for each layer, in the order of depth."""


def first_lineage(num_layers: int) -> Lineage:
    """The lineage of a model that has not grown."""
    return (Origin(None, None, 0),) * num_layers


def numbers_of(lineage: Lineage) -> tuple[int, ...]:
    """The number of each layer; see `Origin`."""
    ranked = sorted(range(len(lineage)), key=lambda layer: (lineage[layer].stage, layer))
    return tuple(ranked.index(layer) for layer in range(len(lineage)))


def grown_lineage(lineage: Lineage, copied: range) -> Lineage:
    """The lineage after these layers were copied and the copies inserted after the last of them."""
    numbers, stage = numbers_of(lineage), 1 + max(origin.stage for origin in lineage)
    new = tuple(Origin(numbers[layer], layer, stage) for layer in copied)
    return (*lineage[: copied.stop], *new, *lineage[copied.stop :])


def growth_steps(lineage: Lineage) -> Iterator[tuple[int, ...]]:
    """Each growth step of a model, the first one first, as `order_after` gives it: for each layer after the step, the
    layer before it that it continues or was copied from. Enough to draw the paper's figure 2 for any run."""
    for stage in range(1, 1 + max((origin.stage for origin in lineage), default=0)):
        now = [origin for origin in lineage if origin.stage <= stage]
        before = iter(range(len(now)))
        # A layer that was added in this step is a copy; the others continue those before it, in their order.
        yield tuple(
            origin.index if origin.stage == stage and origin.index is not None else next(before) for origin in now
        )


def lineage_from_json(data: Sequence[dict[str, Any]]) -> Lineage:
    """The lineage from what `lineage_to_json` writes. Raises KeyError, TypeError or ValueError for anything else."""
    lineage = tuple(Origin(entry["parent"], entry["index"], entry["stage"]) for entry in data)
    for origin in lineage:
        numbers = [origin.stage] if origin.parent is None and origin.index is None else [*vars(origin).values()]
        if not all(is_whole(number) and number >= 0 for number in numbers):
            raise ValueError(f"{origin} is no origin of a layer")
    return lineage


def lineage_to_json(lineage: Sequence[Origin]) -> list[dict[str, Any]]:
    return [asdict(origin) for origin in lineage]
