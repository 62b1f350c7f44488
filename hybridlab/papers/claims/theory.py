"""Claim kinds about what the papers prove or derive, on small cases that are written out in the claim."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import Verdict

Offset = Literal["zero", "half"]
"""The offset of chunks: 0, or half a chunk rounded down."""


# ---- SpiralFormer: shifts and triggers ----


@claim_kind
def shift_keeps_order(
    on: Given, chunk: int, shift: int, causal: bool, overlap: int | None = None, offset: Offset = "zero"
) -> Verdict:
    """SpiralFormer, proposition 1: whether an update that is shifted to the right by `shift` tokens depends on no later
    token, and on how many positions of a chunk it depends on that chunk (its overlap)."""
    add = _offset(chunk, offset)
    sources = {i: (i - shift + add) // chunk for i in range(4 * chunk - add, 5 * chunk - add)}
    leaks = [i for i, source in sources.items() if (source + 1) * chunk - add - 1 > i]
    own = sum(source == 4 for source in sources.values())
    evidence = f"g = {chunk}, s = {shift}: {len(leaks)} of {chunk} positions see later tokens, {own} their own chunk"
    return Verdict((not leaks) == causal and overlap in (None, own), evidence)


@claim_kind
def triggers_at(on: Given, chunk: int, offset: Offset, residue: int) -> Verdict:
    """SpiralFormer, appendix D: a chunk's body is computed at the positions i with i ≡ residue (mod chunk)."""
    found = [i for i in range(chunk) if _triggers(chunk, offset, i)]
    return Verdict(found == [residue], f"g = {chunk}: triggered at i ≡ {', '.join(map(str, found))} (mod {chunk})")


@claim_kind
def triggers_per_token(on: Given, chunks: list[int], offset: Offset, least: int, most: int) -> Verdict:
    """SpiralFormer, appendix D: the smallest and the largest number of bodies that one token triggers."""
    counts = [sum(_triggers(g, offset, i) for g in chunks) for i in range(max(chunks))]
    evidence = f"bodies at i = 0 … {max(chunks) - 1}: {', '.join(map(str, counts))}"
    return Verdict((min(counts), max(counts)) == (least, most), evidence)


def _offset(chunk: int, offset: str) -> int:
    return chunk // 2 if offset == "half" else 0


def _triggers(chunk: int, offset: str, i: int) -> bool:
    """Whether position i ends a chunk."""
    return (i + _offset(chunk, offset)) % chunk == chunk - 1


# ---- SGT: matrices of attention and convergence (appendix E) ----


Property = Literal["strictly lower triangular", "eigenvalues on the diagonal", "rows sum to one"]


@claim_kind
def matrix_is(on: Given, matrix: list[list[float]], what: Property, mixed: float | None = None) -> Verdict:
    """A property of a matrix. mixed: of M = (1 − β) I + β A with this β instead (Eq. 17)."""
    a = _mixing(matrix, mixed)
    if what == "strictly lower triangular":
        largest = float(np.abs(np.triu(a)).max())
        return Verdict(largest == 0, f"largest entry on and above the diagonal: {largest:g}")
    if what == "rows sum to one":
        sums = a.sum(axis=1)
        return Verdict(bool(np.allclose(sums, 1)), f"sums of rows: {', '.join(f'{s:g}' for s in sums)}")
    values, diagonal = np.sort(np.linalg.eigvals(a).real), np.sort(np.diag(a))
    evidence = f"eigenvalues {', '.join(f'{v:g}' for v in values)}; diagonal {', '.join(f'{d:g}' for d in diagonal)}"
    return Verdict(bool(np.allclose(values, diagonal)), evidence)


@claim_kind
def eigenvalues_bound_norm(on: Given, matrix: list[list[float]], mixed: float, passes: int) -> Verdict:
    """SGT, Eq. 19: the Frobenius norm of M^K is at most (Σ λ_i²)^(K/2)."""
    m = _mixing(matrix, mixed)
    norm = float(np.linalg.norm(np.linalg.matrix_power(m, passes)))
    bound = float((np.diag(m) ** 2).sum() ** (passes / 2))
    return Verdict(norm <= bound + 1e-12, f"norm {norm:.3f}, bound {bound:.3f} (K = {passes}, β = {mixed:g})")


@claim_kind
def error_shrinks(on: Given, matrix: list[list[float]], mixed: float) -> Verdict:
    """SGT, section E.2: every error shrinks under M, so that all eigenvalues of M lie below 1 in size."""
    largest = float(np.abs(np.diag(_mixing(matrix, mixed))).max())
    return Verdict(largest < 1, f"largest eigenvalue {largest:g}")


def _mixing(matrix: list[list[float]], mixed: float | None) -> np.ndarray:
    a = np.array(matrix, dtype=float)
    return a if mixed is None else (1 - mixed) * np.eye(len(a)) + mixed * a
