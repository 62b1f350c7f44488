"""The attention map: how each KV head of each parameter layer mixes tokens.

It is indexed by parameter layer and KV head, so every visit of a layer in a loop uses the same kinds. `masks.json`
stores such a map: `[layer][kv_head]`, 1 = full attention, 0 = sliding window (ConSA, Eq. 3).

    python -c "from hybridlab import AttentionMap; print(AttentionMap.rule(8, 4, 'head', 0.5, window=16))"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hybridlab.arguments import checked
from hybridlab.attention.kinds import AttentionKind, Full, Window
from hybridlab.attention.registry import kind_from_json
from hybridlab.errors import UserError


@dataclass(frozen=True)
class AttentionMap:
    """How each head mixes tokens: `layers[l][k]` is the kind of KV head k in parameter layer l, both from 0.

    Made by `uniform`, `from_masks` or `rule`, which raise UserError for masks and shares that do not fit.

        masks = hybridlab.AttentionMap.from_masks([[1, 0], [0, 0]], window=8)   # 1 full, 0 the last 8 tokens
        masks.sparsity()    # 0.75, the share of heads with a window
    """

    layers: tuple[tuple[AttentionKind, ...], ...]

    def __post_init__(self) -> None:
        if not self.layers or not all(self.layers):
            raise UserError("attention map: it needs at least one layer, and every layer at least one KV head")

    @classmethod
    @checked
    def uniform(cls, num_layers: int, num_kv_heads: int, kind: AttentionKind) -> AttentionMap:
        return cls(((kind,) * num_kv_heads,) * num_layers)

    @classmethod
    def from_masks(cls, masks: Iterable[Iterable[int]], window: int) -> AttentionMap:
        """A map from rows of 1 (full) and 0 (window): one row per layer, one entry per KV head."""
        kinds = {0: Window(window), 1: Full()}
        try:
            return cls(tuple(tuple(kinds[value] for value in row) for row in masks))
        except (KeyError, TypeError):
            raise UserError("masks: every entry must be 0 (window) or 1 (full), in one row per layer") from None

    @classmethod
    @checked
    def rule(
        cls,
        num_layers: int,
        num_kv_heads: int,
        granularity: str,
        rho: float,
        window: int,
        nearest: bool = False,
        phase: int = 0,
    ) -> AttentionMap:
        """The rule-based baselines of ConSA's table 1 at sparsity `rho`.

        granularity `layer`: window layers and full layers alternate evenly, windows first (SWA, FA, SWA, FA … at
        ρ = 0.5, the order of Gemma 2). `head`: in every layer the first ρ·H_kv KV heads are windows. If ρ·H_kv is not a
        whole number, layers get different counts, so that the whole model has sparsity ρ. The paper does not give its
        patterns. phase: the pattern moves on by so many layers, or by so many KV heads within every layer; what leaves
        at the end comes in at the start.
        """
        if num_layers < 1 or num_kv_heads < 1:
            raise UserError(f"rule map: {num_layers} layers of {num_kv_heads} KV heads; give at least one of each")
        if granularity == "layer":
            count = exact_count(rho, num_layers, "layers", nearest)
            (windowed,) = _rotated([spread(count, num_layers)], phase, "layers")
            return cls.from_masks([[1 - windowed[i]] * num_kv_heads for i in range(num_layers)], window)
        if granularity != "head":
            raise UserError(f"rule map: granularity {granularity!r} is unknown; use layer or head")
        total = exact_count(rho, num_layers * num_kv_heads, "KV heads", nearest)
        shares = [total * (i + 1) // num_layers - total * i // num_layers for i in range(num_layers)]
        rows = [[0] * s + [1] * (num_kv_heads - s) for s in shares]
        return cls.from_masks(_rotated(rows, phase, "KV heads of every layer"), window)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def each_kind(self) -> Iterator[AttentionKind]:
        """Every kind in the map, once, in order of first appearance."""
        yield from dict.fromkeys(kind for row in self.layers for kind in row)

    @property
    def learning(self) -> bool:
        """Whether a controller is still choosing full attention or a window for some head."""
        return any(kind.mask is None for kind in self.each_kind())

    def masks(self) -> list[list[int]]:
        """Rows of 1 (sees all tokens) and 0 (a window). UserError for a map that is still being learned."""
        rows = [[kind.mask for kind in row] for row in self.layers]
        if self.learning:
            raise UserError("this map is still being learned; it has masks only when `hybridlab learn-masks` is done")
        return [[mask for mask in row if mask is not None] for row in rows]

    def sparsity(self) -> float:
        """The fraction of KV heads with a window (ConSA, Eq. 4), from an exact fraction."""
        units = [value for row in self.masks() for value in row]
        return float(1 - Fraction(sum(units), len(units)))

    def check_shape(self, num_layers: int, num_kv_heads: int) -> None:
        """Raise UserError for a map that was made for another shape."""
        if len(self.layers) != num_layers or any(len(row) != num_kv_heads for row in self.layers):
            widths = sorted({len(row) for row in self.layers})
            raise UserError(
                f"attention map: it has {len(self.layers)} layers of {widths} KV heads, "
                f"but the model has {num_layers} layers of {num_kv_heads}; learn masks on this model"
            )

    def check_kinds(self, causal: bool) -> None:
        """UserError for a kind that cannot be in a decoder (causal) or an encoder."""
        for kind in self.each_kind():
            kind.check(causal)

    def sealed(self) -> AttentionMap:
        """This map without the leaks that its kinds have on purpose: itself if there are none."""
        return AttentionMap(tuple(tuple(kind.sealed for kind in row) for row in self.layers))

    def to_json(self) -> list[list[dict[str, Any]]]:
        return [[kind.to_json() for kind in row] for row in self.layers]

    @classmethod
    def from_json(cls, data: list[list[dict[str, Any]]]) -> AttentionMap:
        return cls(tuple(tuple(kind_from_json(entry) for entry in row) for row in data))

    def __str__(self) -> str:
        return " ".join("".join(kind.letter for kind in row) for row in self.layers)


def spread(count: int, length: int) -> list[int]:
    """`length` numbers, of which `count` are 1 and the others 0. The ones are spaced evenly and begin early."""
    ceilings = [-(-i * count // length) for i in range(length + 1)]
    return [after - before for before, after in zip(ceilings, ceilings[1:], strict=False)]


def _rotated(rows: list[list[int]], phase: int, units: str) -> list[list[int]]:
    """Rows of equal length, each rotated to the right by `phase`; UserError for a phase that gives no new pattern."""
    length = len(rows[0])
    period = next(p for p in range(1, length + 1) if all(row[-p:] + row[:-p] == row for row in rows))
    if not 0 <= phase < period:
        allowed = "only phase 0 is possible" if period == 1 else f"use a phase from 0 to {period - 1}"
        raise UserError(f"map.phase {phase}: the pattern of the {units} comes again after {period}; {allowed}")
    return [row[length - phase :] + row[: length - phase] for row in rows]


def exact_count(rho: float, num_units: int, unit: str, nearest: bool = False) -> int:
    """ρ · num_units as a whole number.

    If it is not whole, UserError with the two nearest values of ρ that are possible; with `nearest`, the nearer one is
    used.
    """
    if not 0 <= rho <= 1:
        raise UserError(f"rho {rho}: the sparsity target is a fraction between 0 and 1")
    # 0.3 means 3/10, not its nearest binary number.
    target = Fraction(str(rho)) * num_units
    # The message below prints six digits, so a rho with six digits must be accepted.
    if abs(target - round(target)) <= Fraction(num_units, 10**6):
        return round(target)
    low = math.floor(target)
    if nearest:
        return low if target - low <= Fraction(1, 2) else low + 1
    raise UserError(
        f"rho {rho}: {rho} × {num_units} {unit} = {float(target):g} is not a whole number; "
        f"use {low / num_units:.6g} ({low} {unit}) or {(low + 1) / num_units:.6g} ({low + 1} {unit}), or add --nearest "
        "(in settings `nearest: true`, beside rho)"
    )
