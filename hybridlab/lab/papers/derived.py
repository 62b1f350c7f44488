"""Analytic functions for what papers prove or derive, on small cases: shifts, matrices, and layers that are copied."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from hybridlab.config.types import NonNegativeFloat, NonNegativeInt, PositiveInt
from hybridlab.errors import UserError
from hybridlab.lab.papers.analytic import analytic
from hybridlab.methods.depth import copied_layers, order_after

# ---- SpiralFormer: shifts and triggers ----

Offset = Literal["zero", "half"]
"""The offset of chunks: 0, or half a chunk rounded down."""


@analytic
def positions_with_later_tokens(chunk: PositiveInt, shift: NonNegativeInt, offset: Offset = "zero") -> float:
    """SpiralFormer, proposition 1: so many positions of a chunk depend on later tokens where updates are shifted to the
    right by `shift` tokens. With 0 the loop is causal."""
    return sum((source + 1) * chunk - _offset(chunk, offset) - 1 > i for i, source in _sources(chunk, shift, offset))


@analytic
def positions_with_own_chunk(chunk: PositiveInt, shift: NonNegativeInt, offset: Offset = "zero") -> float:
    """SpiralFormer, proposition 1: so many positions of a chunk depend on that chunk itself (its overlap)."""
    return sum(source == _CHUNK for _, source in _sources(chunk, shift, offset))


_CHUNK = 4
"""The chunk that is looked at, counted from 0: one with others before it."""


def _sources(chunk: int, shift: int, offset: str) -> Iterator[tuple[int, int]]:
    """(position, chunk whose update it gets) of all positions of a chunk."""
    begin = _CHUNK * chunk - _offset(chunk, offset)
    for i in range(begin, begin + chunk):
        yield i, (i - shift + _offset(chunk, offset)) // chunk


@analytic
def bodies_at(position: NonNegativeInt, chunks: list[PositiveInt], offset: Offset = "zero") -> float:
    """SpiralFormer, appendix D: so many bodies of loops with these chunks are computed at a position: those of the
    chunks that end there."""
    return sum((position + _offset(chunk, offset)) % chunk == chunk - 1 for chunk in chunks)


def _offset(chunk: int, offset: str) -> int:
    return chunk // 2 if offset == "half" else 0


# ---- SGT: attention matrices and convergence (appendix E) ----


def _square(matrix: list[list[float]]) -> list[list[float]]:
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise ValueError("a matrix of attention has as many rows as columns")
    return matrix


Matrix = Annotated[list[list[float]], AfterValidator(_square)]
THREE_TOKENS = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6]]
"""Causal attention of three tokens."""


@analytic
def largest_above_diagonal(matrix: Matrix = THREE_TOKENS) -> float:
    """The largest entry on the diagonal of an attention matrix and above it: 0 for a strictly lower triangular one."""
    return float(np.abs(np.triu(matrix)).max())


@analytic
def eigenvalues_beside_diagonal(matrix: Matrix = THREE_TOKENS) -> float:
    """The largest difference between the eigenvalues of a matrix and the entries of its diagonal, both in order."""
    return float(np.abs(np.sort(np.linalg.eigvals(matrix).real) - np.sort(np.diag(matrix))).max())


@analytic
def row_sum(row: NonNegativeInt, mixed: float, matrix: Matrix = THREE_TOKENS) -> float:
    """The sum of a row, counted from 0, of M = (1 − β) I + β A with β = mixed (SGT, Eq. 17)."""
    if row >= len(matrix):
        raise UserError(f"row_sum: there is no row {row} in a matrix of {len(matrix)} rows, counted from 0")
    return float(_mixing(matrix, mixed)[row].sum())


@analytic
def largest_eigenvalue(mixed: float, matrix: Matrix = THREE_TOKENS) -> float:
    """The largest eigenvalue of M in size. A is triangular, so they are on the diagonal."""
    return float(np.abs(np.diag(_mixing(matrix, mixed))).max())


@analytic
def norm_of_power(mixed: float, passes: PositiveInt, matrix: Matrix = THREE_TOKENS) -> float:
    """The Frobenius norm of M^K with K = passes."""
    return float(np.linalg.norm(np.linalg.matrix_power(_mixing(matrix, mixed), passes)))


@analytic
def norm_bound(mixed: float, passes: PositiveInt, matrix: Matrix = THREE_TOKENS) -> float:
    """SGT's bound of that norm, (Σ λ_i²)^(K/2) (Eq. 19)."""
    return float((np.diag(_mixing(matrix, mixed)) ** 2).sum() ** (passes / 2))


def _mixing(matrix: Matrix, mixed: float) -> np.ndarray:
    return (1 - mixed) * np.eye(len(matrix)) + mixed * np.array(matrix)


@analytic
def last_weight_bound(row: list[NonNegativeFloat]) -> float:
    """SGT, lemma 1: exp(−E / i) of a row of attention over i tokens with the entropy E, said to bound its last one."""
    if not math.isclose(math.fsum(row), 1.0):
        raise UserError(f"last_weight_bound: the weights of a row of attention add up to 1, not to {math.fsum(row):g}")
    return math.exp(math.fsum(weight * math.log(weight) for weight in row if weight) / len(row))


# ---- growth in depth: which layers its operators copy ----

Operator = Literal["midas", "lidas", "top"]
"""The operators of growth that draw nothing."""


@analytic
def first_copied(method: Operator, blocks: PositiveInt, size: PositiveInt) -> float:
    """The first of the layers, counted from 0, that a growth step copies in a model of so many blocks of this size."""
    return copied_layers(method, blocks * size, size)[0]


@analytic
def first_copy(method: Operator, blocks: PositiveInt, size: PositiveInt) -> float:
    """The layer of the grown model, counted from 0, that is the first copy."""
    order = order_after(method, blocks * size, size)
    return next(place for place, layer in enumerate(order) if layer != place)
