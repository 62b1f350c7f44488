"""The attention map: how each KV head of each parameter layer mixes tokens.

Keyed by parameter layer and KV head, so that a loop inherits it and growth copies it. `masks.json` is one of its
files: `[layer][kv_head]`, 1 = full attention, 0 = sliding window (ConSA, Eq. 3).

    python -c "from hybridlab import AttentionMap; print(AttentionMap.rule(8, 4, 'head', 0.5, window=16))"
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import read_object


@dataclass(frozen=True)
class Full:
    """Every earlier token and the token itself."""

    def __str__(self) -> str:
        return "full"


@dataclass(frozen=True)
class Window:
    """The last `width` tokens, the token itself included: keys i − width + 1 … i."""

    width: int

    def __post_init__(self) -> None:
        _check_width(self.width)

    def __str__(self) -> str:
        return f"window({self.width})"


@dataclass(frozen=True)
class Mixed:
    """z · full + (1 − z) · window, with z a tensor that a controller hands in; both kernels run (ConSA, Eq. 3)."""

    width: int

    def __post_init__(self) -> None:
        _check_width(self.width)

    def __str__(self) -> str:
        return f"mixed({self.width})"


AttentionKind = Full | Window | Mixed
_KINDS = {"full": Full, "window": Window, "mixed": Mixed}


MIN_BLOCK = 16
"""Smallest block of the banded kernel; smaller ones cost more in calls than they save in keys."""


def band_block(width: int) -> int:
    """Queries per block of the banded kernel: its keys are this block and the one before, so it must reach w − 1 back."""
    return max(width, MIN_BLOCK)


def _check_width(width: int) -> None:
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width < 2**31:
        raise UserError(
            f"window {width!r}: a window counts the query itself, so it must be a whole number of 1 or more"
        )


@dataclass(frozen=True)
class AttentionMap:
    """`layers[l][k]` is the kind of KV head k in parameter layer l."""

    layers: tuple[tuple[AttentionKind, ...], ...]

    @classmethod
    def uniform(cls, num_layers: int, num_kv_heads: int, kind: AttentionKind) -> AttentionMap:
        return cls(((kind,) * num_kv_heads,) * num_layers)

    @classmethod
    def from_masks(cls, masks: Iterable[Iterable[int]], window: int) -> AttentionMap:
        """From rows of 1 (full) and 0 (window), one row per layer, one entry per KV head."""
        kinds = {0: Window(window), 1: Full()}
        try:
            return cls(tuple(tuple(kinds[value] for value in row) for row in masks))
        except (KeyError, TypeError):
            raise UserError("masks: every entry must be 0 (window) or 1 (full), in one row per layer") from None

    @classmethod
    def rule(
        cls, num_layers: int, num_kv_heads: int, granularity: str, rho: float, window: int, nearest: bool = False
    ) -> AttentionMap:
        """The hand-made baselines of ConSA's table 1 at sparsity `rho`.

        layer: windows and full layers interleave evenly, windows first (SWA, FA, SWA, FA … at ρ = 0.5, the order of
        Gemma 2). head: in every layer the first ρ·H_kv KV heads are windows; where ρ·H_kv is not whole, the count of
        each layer follows the running total, so that the whole model meets ρ. The paper does not print its patterns.
        """
        if granularity == "layer":
            count = exact_count(rho, num_layers, "layers", nearest)
            windowed = spread(count, num_layers)
            return cls.from_masks([[1 - windowed[i]] * num_kv_heads for i in range(num_layers)], window)
        if granularity != "head":
            raise UserError(f"rule map: granularity {granularity!r} is unknown; use layer or head")
        total = exact_count(rho, num_layers * num_kv_heads, "KV heads", nearest)
        shares = [total * (i + 1) // num_layers - total * i // num_layers for i in range(num_layers)]
        return cls.from_masks([[0] * s + [1] * (num_kv_heads - s) for s in shares], window)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def masks(self) -> list[list[int]]:
        """Rows of 1 (full) and 0 (window). A mixed map has no masks yet and is refused."""
        if any(isinstance(kind, Mixed) for row in self.layers for kind in row):
            raise UserError(
                "this map is still being learned (mixed heads); it has masks only after learn-masks is done"
            )
        return [[int(isinstance(kind, Full)) for kind in row] for row in self.layers]

    def sparsity(self) -> float:
        """The fraction of KV heads that attend to a window (ConSA, Eq. 4), exact."""
        masks = self.masks()
        units = [value for row in masks for value in row]
        return float(1 - Fraction(sum(units), len(units)))

    def check_shape(self, num_layers: int, num_kv_heads: int) -> None:
        """Refuse a map that was made for another shape."""
        if len(self.layers) != num_layers or any(len(row) != num_kv_heads for row in self.layers):
            widths = sorted({len(row) for row in self.layers})
            raise UserError(
                f"attention map: it has {len(self.layers)} layers of {widths} KV heads, "
                f"but the model has {num_layers} layers of {num_kv_heads}; learn masks on this model"
            )

    def to_json(self) -> list[list[dict[str, Any]]]:
        return [[{"kind": type(k).__name__.lower(), **vars(k)} for k in row] for row in self.layers]

    @classmethod
    def from_json(cls, data: list[list[dict[str, Any]]]) -> AttentionMap:
        def kind(entry: dict[str, Any]) -> AttentionKind:
            return _KINDS[entry["kind"]](**{k: v for k, v in entry.items() if k != "kind"})

        return cls(tuple(tuple(kind(entry) for entry in row) for row in data))

    def __str__(self) -> str:
        letters = {Full: "F", Window: "w", Mixed: "m"}
        return " ".join("".join(letters[type(kind)] for kind in row) for row in self.layers)


def spread(count: int, length: int) -> list[int]:
    """`count` ones spread as evenly as can be over `length` places, the first as early as it can be."""
    ceilings = [-(-i * count // length) for i in range(length + 1)]
    return [after - before for before, after in zip(ceilings, ceilings[1:], strict=False)]


def exact_count(rho: float, num_units: int, unit: str, nearest: bool = False) -> int:
    """ρ · num_units as a whole number.

    Where it is not whole, the error names the two targets that can be met; with `nearest` the closer one is taken.
    """
    if not 0 <= rho <= 1:
        raise UserError(f"rho {rho}: the sparsity target is a fraction between 0 and 1")
    # A decimal like 0.3 stands for the fraction that was written, not for its nearest binary number.
    target = Fraction(str(rho)) * num_units
    # Six written digits, as the message below has them, are close enough to mean the whole number.
    if abs(target - round(target)) <= Fraction(num_units, 10**6):
        return round(target)
    low = math.floor(target)
    if nearest:
        return low if target - low <= Fraction(1, 2) else low + 1
    raise UserError(
        f"rho {rho}: {rho} × {num_units} {unit} = {float(target):g} is not a whole number; "
        f"use {low / num_units:.6g} ({low} {unit}) or {(low + 1) / num_units:.6g} ({low + 1} {unit}), or add --nearest"
    )


def read_masks(path: Path) -> dict[str, Any]:
    """The content of a `masks.json`: {"masks": [[…]], "window": w, …}."""
    try:
        data = read_object(Path(path), "masks file", ("masks", "window"), "`hybridlab learn-masks` writes one")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such masks file; `hybridlab learn-masks` writes one") from None
    if not isinstance(data["masks"], list) or not isinstance(data["window"], int):
        raise UserError(f'{path}: a masks file needs "masks" (rows of 0 and 1) and "window" (a whole number)')
    AttentionMap.from_masks(data["masks"], data["window"])
    return data
