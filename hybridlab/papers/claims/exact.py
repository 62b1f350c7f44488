"""Claim kinds that need no run: numbers that a text states, what the package counts and computes, and what the papers
prove or derive, on small cases that are written out in the claim. And sentences that nothing at hand can test."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from hybridlab.config.loading import Layer
from hybridlab.config.types import NonNegativeInt, PositiveInt
from hybridlab.errors import UserError
from hybridlab.methods.depth import copied_layers, order_after
from hybridlab.papers.analytic import ANALYTIC, compute
from hybridlab.papers.calls import ColumnName, RowName, RowNames, called
from hybridlab.papers.claims.kinds import Given, claim_kind, listed, within
from hybridlab.papers.claims.verdict import NotRun, Open, Verdict


@claim_kind
def not_here(on: Given, needs: str) -> Verdict:
    """A sentence about a model, a benchmark or a measurement that is not at hand: it stays in the list, not run.

    needs: what a test would take, such as "MMLU at 1.7B".
    """
    raise NotRun(f"needs {needs}")


# ---- numbers of a text ----

Direction = Literal["rises", "falls"]


@claim_kind
def stated_product(on: Given, factors: list[float], stated: float, within: float = 0.01) -> Verdict:
    """Numbers of the text, multiplied, give another one up to a share of it: steps × sequences × tokens, say."""
    product = math.prod(factors)
    evidence = (
        f"{_joined(factors, ' × ')} = {product:,.6g}, stated {stated:,.6g} ({100 * (product / stated - 1):+.1f} %)"
    )
    return Verdict(abs(product / stated - 1) <= within, evidence)


@claim_kind
def stated_sum(on: Given, terms: list[float], stated: float) -> Verdict:
    """Numbers of the text add up to another one: shares to the whole, say."""
    total = math.fsum(terms)
    return Verdict(total == stated, f"{_joined(terms, ' + ')} = {total:,.15g}, stated {stated:,.15g}")


@claim_kind
def stated_ratio(on: Given, factors: list[float], over: list[float], low: float, high: float) -> Verdict:
    """Numbers of the text, multiplied, over others, multiplied, lie between two bounds: tokens drawn from a corpus over
    the tokens that it has, say."""
    ratio = math.prod(factors) / math.prod(over)
    evidence = f"{_joined(factors, ' × ')} / {_joined(over, ' × ')} = {ratio:.4g}, stated {low:g} to {high:g}"
    return Verdict(low <= ratio <= high, evidence)


def _joined(numbers: list[float], sign: str) -> str:
    return sign.join(f"{number:,.15g}" for number in numbers)


@claim_kind
def stated_in_order(on: Given, sequences: list[list[float]], direction: Direction) -> Verdict:
    """Numbers of the text rise (or fall) from each to the next, in each of several sequences."""
    off = [_written(numbers) for numbers in sequences if not _in_order(numbers, direction)]
    return Verdict(not off, f"stated: {'; '.join(_written(numbers) for numbers in sequences)}{listed(off)}")


def _in_order(numbers: list[float], direction: Direction) -> bool:
    return all(a < b if direction == "rises" else a > b for a, b in itertools.pairwise(numbers))


def _written(numbers: list[float]) -> str:
    return ", ".join(f"{number:,.6g}" for number in numbers)


# ---- what is counted and computed ----


def _checked(call: dict[str, Any]) -> dict[str, Any]:
    try:
        called(ANALYTIC, "function", Layer(call))
    except UserError as error:
        raise ValueError(str(error)) from None
    return call


Call = Annotated[dict[str, Any], AfterValidator(_checked)]
"""An analytic function with its arguments, `{function: NAME, …}`; see papers/analytic.py."""


def _number(call: dict[str, Any]) -> float:
    value = compute(call, {})
    if isinstance(value, str):
        raise UserError(f"{call['function']} computes a text, {value!r}; a claim compares numbers")
    return value


@claim_kind
def computes(on: Given, compute: Call, low: float, high: float, factor: float = 1.0) -> Verdict:
    """A computed number, multiplied by a factor, lies between two bounds."""
    value = _number(compute) * factor
    return Verdict(low <= value <= high, f"exact: {value:,.6g}, stated {low:,.6g} to {high:,.6g}")


@claim_kind
def computed_in_order(on: Given, computes: list[Call], direction: Direction) -> Verdict:
    """Computed numbers rise (or fall) from each to the next."""
    values = [_number(call) for call in computes]
    return Verdict(_in_order(values, direction), f"exact: {_written(values)}")


@claim_kind
def computed_ratio(on: Given, compute: Call, over: Call, low: float, high: float) -> Verdict:
    """One computed number divided by another lies between two bounds."""
    ours, theirs = _number(compute), _number(over)
    evidence = f"exact: {ours:,.6g} / {theirs:,.6g} = {ours / theirs:.6g}, stated {low:g} to {high:g}"
    return Verdict(low <= ours / theirs <= high, evidence)


@claim_kind
def computed_between(on: Given, rows: RowNames, column: ColumnName, low: float, high: float) -> Verdict:
    """The computed numbers of these rows lie between two bounds."""
    factor = on.experiment.column(column).factor
    return within("exact", {name: on.computed(name, column) * factor for name in rows}, low, high, ".2f")


@claim_kind
def computed_reduction(
    on: Given, row: RowName, before: ColumnName, after: ColumnName, column: ColumnName, digits: int = 1
) -> Verdict:
    """A printed reduction against the reduction by computed and by printed numbers."""
    exact = on.computed(row, column)
    first, second, stated = on.printed((row, before), (row, after), (row, column))
    printed = 100 * (1 - second / first)
    evidence = f"exact figures give {exact:.2f} %, the printed ones {printed:.2f} %, stated {stated:g} %"
    return Verdict(round(exact, digits) == stated, evidence)


# ---- SpiralFormer: shifts and triggers ----

Offset = Literal["zero", "half"]
"""The offset of chunks: 0, or half a chunk rounded down."""


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
Matrix = list[list[float]]


@claim_kind
def matrix_is(on: Given, matrix: Matrix, what: Property, mixed: float | None = None) -> Verdict:
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
def eigenvalues_bound_norm(on: Given, matrix: Matrix, mixed: float, passes: int) -> Verdict:
    """SGT, Eq. 19: the Frobenius norm of M^K is at most (Σ λ_i²)^(K/2)."""
    m = _mixing(matrix, mixed)
    norm = float(np.linalg.norm(np.linalg.matrix_power(m, passes)))
    bound = float((np.diag(m) ** 2).sum() ** (passes / 2))
    return Verdict(norm <= bound + 1e-12, f"norm {norm:.3f}, bound {bound:.3f} (K = {passes}, β = {mixed:g})")


@claim_kind
def error_shrinks(on: Given, matrix: Matrix, mixed: float) -> Verdict:
    """SGT, section E.2: every error shrinks under M, so that all eigenvalues of M lie below 1 in size."""
    largest = float(np.abs(np.diag(_mixing(matrix, mixed))).max())
    return Verdict(largest < 1, f"largest eigenvalue {largest:g}")


def _mixing(matrix: Matrix, mixed: float | None) -> np.ndarray:
    a = np.array(matrix, dtype=float)
    return a if mixed is None else (1 - mixed) * np.eye(len(a)) + mixed * a


@claim_kind
def lemma_on_row(on: Given, row: list[float]) -> Verdict:
    """Lemma 1, A_ii ≤ exp(−E_i / i), on one row of attention whose last weight is A_ii: one that breaks it refutes it,
    without any model."""
    if min(row) < 0 or not sum(row):
        raise Open("these are no weights of attention")
    weights = np.array(row) / sum(row)
    entropy = float(-(weights[weights > 0] * np.log(weights[weights > 0])).sum())
    last, bound = weights[-1], math.exp(-entropy / len(row))
    shown = ", ".join(f"{weight:g}" for weight in weights)
    return Verdict(bool(last <= bound), f"exact: the row ({shown}) has A_ii = {last:g}, bound {bound:.4f}")


# ---- growth in depth: which layers its operators copy ----

Method = Literal["midas", "lidas", "top"]
"""The methods of growth that draw nothing."""
Layers = Annotated[list[NonNegativeInt], Field(min_length=1)]
Sizes = Annotated[list[PositiveInt], Field(min_length=1)]


@claim_kind
def copies_coincide(on: Given, blocks: Sizes, sizes: Sizes, coincide: bool) -> Verdict:
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
