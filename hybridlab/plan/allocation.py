"""Which units get a window where a number for each unit decides: a random one, a knock-out's cost, a learned score.

A unit is a layer or a KV head (ConSA, section 4.1). What `hybridlab learn-masks` finds stands in a file `masks.json`.

    Allocation(8, 4, "head-all", 0.875).random(seed=0, draw=0)    # eight rows of four, 1 full and 0 window
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.plan.attention_map import AttentionMap, exact_count

_STREAM = 5
"""First word of the seed sequence; data/batches.py and methods/consa/training.py use 1 to 4."""


@dataclass(frozen=True)
class Allocation:
    """A share `rho` of windows among the units of a model.

    granularity: `layer`; `head-all`, the share holds over all KV heads; `head-single`, it holds within every layer.
    nearest: use the nearest share that the number of units allows; otherwise another one is an error.
    """

    num_layers: int
    num_kv_heads: int
    granularity: str
    rho: float
    nearest: bool = False

    @property
    def per_layer(self) -> int:
        """Units in a layer."""
        return 1 if self.granularity == "layer" else self.num_kv_heads

    @property
    def num_rows(self) -> int:
        """The sets of units within which the share holds."""
        return self.num_layers if self.granularity == "head-single" else 1

    @property
    def per_row(self) -> int:
        """Units in such a set."""
        return self.num_layers * self.per_layer // self.num_rows

    @property
    def windows_per_row(self) -> int:
        """How many units of a set become windows; UserError if the share is not a whole number of them."""
        units = {"layer": "layers", "head-single": "KV heads of a layer"}.get(self.granularity, "KV heads")
        return exact_count(self.rho, self.per_row, units, self.nearest)

    def ranked(self, scores: Sequence[Sequence[float]]) -> list[list[int]]:
        """Masks (L, K) of 1 (full) and 0 (window): in every set the units of the lowest scores become windows, of equal
        scores the first. scores: (L, 1) for layers, (L, K) for heads."""
        flat = [score for row in scores for score in row]
        kept = [1] * len(flat)
        for start in range(0, len(flat), self.per_row):
            units = sorted(range(start, start + self.per_row), key=flat.__getitem__)
            for unit in units[: self.windows_per_row]:
                kept[unit] = 0
        copies = self.num_kv_heads // self.per_layer
        layers = [kept[i : i + self.per_layer] for i in range(0, len(kept), self.per_layer)]
        return [row * copies for row in layers]

    def random(self, seed: int, draw: int) -> list[list[int]]:
        """Masks (L, K) with windows that are drawn uniformly at random; equal (seed, draw) give equal masks."""
        import numpy as np  # here, so that plans and maps load fast

        shape = (self.num_layers, self.per_layer)
        return self.ranked(np.random.default_rng((_STREAM, seed, draw)).random(shape).tolist())


def shuffled_within_layers(masks: Sequence[Sequence[int]], seed: int, draw: int) -> list[list[int]]:
    """Masks (L, K) with the same numbers in each layer, in an order that is drawn uniformly at random; equal (seed,
    draw) give equal masks."""
    import numpy as np  # as above

    generator = np.random.default_rng((_STREAM, seed, draw))
    return [generator.permutation(list(row)).tolist() for row in masks]


def read_masks(path: Path) -> dict[str, Any]:
    """The content of a `masks.json`: {"masks": [[…]], "window": w, …}. warnings: what to know before using the masks;
    empty in files of older versions."""
    try:
        data = read_object(path, "masks file", ("masks", "window"), "`hybridlab learn-masks` writes one")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such masks file; `hybridlab learn-masks` writes one") from None
    if not isinstance(data["masks"], list) or not isinstance(data["window"], int):
        raise UserError(f'{path}: a masks file needs "masks" (rows of 0 and 1) and "window" (a whole number)')
    warnings = data.setdefault("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise UserError(f'{path}: "warnings" in a masks file is a list of sentences')
    AttentionMap.from_masks(data["masks"], data["window"])
    return data
