"""Claim kinds about what a paper says of growth in depth: which layers its operators copy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridlab.config.types import NonNegativeInt, PositiveInt
from hybridlab.methods.depth import copied_layers, order_after
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.verdict import Verdict

Blocks = Annotated[list[PositiveInt], Field(min_length=1)]
"""Numbers of blocks that a model has."""
Sizes = Annotated[list[PositiveInt], Field(min_length=1)]
"""Numbers of layers in a block."""
Layers = Annotated[list[NonNegativeInt], Field(min_length=1)]
Method = Literal["midas", "lidas", "top"]
"""The methods of growth that draw nothing."""


@claim_kind
def copies_coincide(on: Given, blocks: Blocks, sizes: Sizes, coincide: bool) -> Verdict:
    """Whether MIDAS and LIDAS copy the same layers, for every one of these numbers of blocks and sizes of a block."""
    cases = {f"{n} blocks of {b}": _copied("midas", n, b) == _copied("lidas", n, b) for n in blocks for b in sizes}
    other = [name for name, same in cases.items() if same != coincide]
    what = "the same layers" if coincide else "other layers"
    return Verdict(not other, f"operator: {what} in {len(cases) - len(other)} of {len(cases)} cases{listed(other)}")


@claim_kind
def copies_layers(on: Given, method: Method, blocks: PositiveInt, size: PositiveInt, layers: Layers) -> Verdict:
    """In a model of so many blocks a growth step copies these layers, counted from 0, and inserts the copies right
    after the last of them."""
    order = order_after(method, blocks * size, size)
    end = layers[-1] + 1
    expected = [*range(end), *layers, *range(end, blocks * size)]
    evidence = f"operator: {', '.join(map(str, _copied(method, blocks, size)))} are copied; the new order is "
    return Verdict(list(order) == expected, evidence + " ".join(map(str, order)))


def _copied(method: Method, blocks: int, size: int) -> tuple[int, ...]:
    return tuple(copied_layers(method, blocks * size, size))
