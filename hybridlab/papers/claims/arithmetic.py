"""Claim kinds that need no run: numbers that a text states, and what the package counts and computes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from hybridlab.config.loading import Layer
from hybridlab.errors import UserError
from hybridlab.papers.analytic import ANALYTIC, compute
from hybridlab.papers.calls import called
from hybridlab.papers.claims.kinds import Given, claim_kind, listed
from hybridlab.papers.claims.verdict import Verdict


def _checked(call: dict[str, Any]) -> dict[str, Any]:
    try:
        called(ANALYTIC, "function", Layer(call))
    except UserError as error:
        raise ValueError(str(error)) from None
    return call


Call = Annotated[dict[str, Any], AfterValidator(_checked)]
"""An analytic function with its arguments, `{function: NAME, …}`; see papers/analytic.py."""
Direction = Literal["rises", "falls"]


def _number(call: dict[str, Any]) -> float:
    value = compute(call, {})
    if isinstance(value, str):
        raise UserError(f"{call['function']} computes a text, {value!r}; a claim compares numbers")
    return value


@claim_kind
def stated_product(on: Given, factors: list[float], stated: float, within: float = 0.01) -> Verdict:
    """Numbers of the text, multiplied, give another one up to a share of it: steps × sequences × tokens, say."""
    product = math.prod(factors)
    written = " × ".join(f"{factor:,.15g}" for factor in factors)
    evidence = f"{written} = {product:,.6g}, stated {stated:,.6g} ({100 * (product / stated - 1):+.1f} %)"
    return Verdict(abs(product / stated - 1) <= within, evidence)


@claim_kind
def stated_sum(on: Given, terms: list[float], stated: float) -> Verdict:
    """Numbers of the text add up to another one: shares to the whole, say."""
    total = math.fsum(terms)
    return Verdict(
        total == stated, f"{' + '.join(f'{term:,.15g}' for term in terms)} = {total:,.15g}, stated {stated:,.15g}"
    )


@claim_kind
def stated_ratio(on: Given, factors: list[float], over: list[float], low: float, high: float) -> Verdict:
    """Numbers of the text, multiplied, over others, multiplied, lie between two bounds: tokens drawn from a corpus over
    the tokens that it has, say."""
    ratio = math.prod(factors) / math.prod(over)
    ours, theirs = (" × ".join(f"{factor:,.15g}" for factor in numbers) for numbers in (factors, over))
    return Verdict(low <= ratio <= high, f"{ours} / {theirs} = {ratio:.4g}, stated {low:g} to {high:g}")


@claim_kind
def stated_in_order(on: Given, sequences: list[list[float]], direction: Direction) -> Verdict:
    """Numbers of the text rise (or fall) from each to the next, in each of several sequences."""
    off = [_written(numbers) for numbers in sequences if not _in_order(numbers, direction)]
    return Verdict(not off, f"stated: {'; '.join(_written(numbers) for numbers in sequences)}{listed(off)}")


def _in_order(numbers: list[float], direction: Direction) -> bool:
    signed = numbers if direction == "rises" else [-number for number in numbers]
    return all(a < b for a, b in zip(signed, signed[1:], strict=False))


def _written(numbers: list[float]) -> str:
    return ", ".join(f"{number:,.6g}" for number in numbers)


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
