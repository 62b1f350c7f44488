"""How similar the blocks of a model are: the cosine between their feed-forward weights (depth-grown models, section
4.4, figures 7a and 22).

    hybridlab analyze RUN --probe blocks --block 4
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from hybridlab.analysis.probe import Probe, Table, rounded, split_table
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.blocks import Block
from hybridlab.models.decoder import Transformer
from hybridlab.registry import PROBES


def measure(
    model: Transformer, corpus: Corpus, seq_len: int, config: RunConfig, block: PositiveInt | None = None
) -> dict[str, Any]:
    """Keys: block, the layers in a block; cosine [block][block]; similarity, the mean cosine of different blocks;
    asymmetry, see `asymmetry`. The last two are null where there is no pair to read.

    A block's vector is all gate, up and down matrices of its layers one after the other, without biases. block: by
    default that of the run's growth.
    """
    size = block or grown_block(model, config)
    if size is None:
        raise UserError("this run was not grown by blocks; give the number of layers in a block, such as --block 4")
    layers = model.shape.layers
    if layers % size:
        raise UserError(f"blocks of {size} layers do not divide the {layers} layers of this model; give a divisor")
    cosine = block_cosines(model, size)
    count, different = len(cosine), ~torch.eye(len(cosine), dtype=torch.bool)
    return {
        "block": size,
        "cosine": rounded(cosine, 6),
        "similarity": round(float(cosine[different].mean()), 6) if count > 1 else None,
        "asymmetry": asymmetry(cosine),
    }


def grown_block(model: Transformer, config: RunConfig) -> int | None:
    """The layers that one growth step of the run added: of its controller, or of its newest layers; None without."""
    block = getattr(config.controller, "block", None)
    if block is not None:
        return int(block)
    origins = getattr(model.structure, "lineage", None) or ()
    newest = max((origin.stage for origin in origins), default=0)
    return sum(origin.stage == newest for origin in origins) if newest else None


def block_cosines(model: Transformer, size: int) -> Tensor:
    """(n, n) in fp64: the cosine between the feed-forward weights of the n blocks of `size` layers."""
    layers = []
    for mlp in (cast(Block, block).mlp for block in model.blocks):
        matrices = [part.weight.detach().double().cpu() for part in (mlp.gate, mlp.up, mlp.down) if part is not None]
        layers.append(torch.cat([matrix.flatten() for matrix in matrices]))
    vectors = torch.stack([torch.cat(layers[i : i + size]) for i in range(0, len(layers), size)])
    norms = vectors.norm(dim=1, keepdim=True).clamp(min=1e-30)
    unit = vectors / norms
    return unit @ unit.T


def asymmetry(cosine: Tensor) -> float | None:
    """How far the similarities (n, n) are from symmetric about the model's centre: the mean of |S_ij − S_i′j′| over the
    pairs of blocks i < j, where i′ = n − 1 − i is the block at the same distance from the other end. 0 is symmetric.

    Pairs that are their own mirror image (i + j = n − 1) are left out, since they are 0 in every model; None if there
    are no others. The paper shows the matrix alone; this number is ours.
    """
    n = len(cosine)
    mirrored = cosine.flip(0, 1)
    pairs = [abs(float(cosine[i, j] - mirrored[i, j])) for i in range(n) for j in range(i + 1, n) if i + j != n - 1]
    return round(sum(pairs) / len(pairs), 6) if pairs else None


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """The matrix in tables of eight columns, and the two numbers."""
    size, cosine = measured["block"], measured["cosine"]
    names = [f"{i * size}–{(i + 1) * size - 1}" if size > 1 else str(i) for i in range(len(cosine))]
    title = f"cosine between feed-forward weights of blocks of {size}"
    columns = list(zip(names, zip(*cosine, strict=True), strict=True))
    yield from split_table(title, ("layers from 0", names), columns, 8)
    if measured["similarity"] is not None:
        yield f"mean similarity of different blocks: {measured['similarity']:.4f}"
    if measured["asymmetry"] is not None:
        yield f"asymmetry about the centre: {measured['asymmetry']:.4f} (0: the halves mirror each other)"


PROBES.add("blocks", Probe(measure, report, needs_attention=False, needs_config=True))
