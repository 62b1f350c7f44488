"""Claim kinds about growth in depth that need no run: what its operators copy, and when they act."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hybridlab.config.resolve import resolve
from hybridlab.config.types import NonNegativeInt, PositiveInt
from hybridlab.papers.analytic import ArchName, SizeName
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.verdict import Verdict
from hybridlab.plan.forecast import forecast
from hybridlab.plan.stacking import copied_layers, order_after

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


Has = Literal["equal values", "storage of their own", "the same storage"]


@claim_kind
def copies_have(on: Given, method: Method, blocks: PositiveInt, size: PositiveInt, what: Has) -> Verdict:
    """What the copies of a growth step have: values equal to those of the layers that they were copied from, and
    storage of their own, so that the two can diverge, or the same storage, so that they cannot. Tested on tensors with
    the layer's number; weights and the optimizer's moments and step take the same way."""
    import torch

    from hybridlab.structure.stacking import grown_tensors

    order = order_after(method, blocks * size, size)
    layers = grown_tensors({f"blocks.{i}.w": torch.tensor([float(i)]) for i in range(blocks * size)}, order)
    after = [layers[f"blocks.{place}.w"] for place in range(len(order))]
    pairs = [(i, j) for i, j in itertools.combinations(range(len(order)), 2) if order[i] == order[j]]
    equal = sum(after[i].equal(after[j]) for i, j in pairs)
    shared = sum(after[i].data_ptr() == after[j].data_ptr() for i, j in pairs)
    found: dict[Has, bool] = {
        "equal values": equal == len(pairs),
        "storage of their own": shared == 0,
        "the same storage": shared == len(pairs),
    }
    evidence = (
        f"operator: {len(pairs)} layers are copied: {equal} copies with equal values, {shared} with shared storage"
    )
    return Verdict(found[what], evidence)


@claim_kind
def grows_evenly(on: Given, size: SizeName, arch: ArchName, by: PositiveInt, stages: PositiveInt) -> Verdict:
    """A run has so many stages: the first has `by` layers, each further one `by` more, and the last those of the
    size."""
    config = resolve(arch, size)
    depths = [structure.shape.layers for structure, _ in forecast(config)]
    expected = [by * number for number in range(1, stages + 1)]
    evidence = f"forecast: {', '.join(map(str, depths))} layers of {config.shape.layers}"
    return Verdict(depths == expected and depths[-1] == config.shape.layers, evidence)


@claim_kind
def stages_follow(on: Given, size: SizeName, arch: ArchName, alpha: float, total: PositiveInt) -> Verdict:
    """Stage i of k has i^α / Σ j^α of `total` steps, to less than one step; the last stage, whose steps after `total`
    are left out, also has what rounding leaves over."""
    config = resolve(arch, size)
    steps = [count for _, count in forecast(config)]
    steps[-1] = total - sum(steps[:-1])
    weights = np.arange(1, len(steps) + 1, dtype=float) ** alpha
    shares = total * weights / weights.sum()
    allowed = [*[1] * len(steps[:-1]), len(steps)]
    close = sum(abs(count - share) < most for count, share, most in zip(steps, shares, allowed, strict=True))
    evidence = f"forecast: {', '.join(map(str, steps))} of {total:,} steps, {close} of {len(steps)} stages follow"
    return Verdict(close == len(steps), evidence)
