"""A correlation without one row after the other: does its sign, or whether it is significant, hang on a single row?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridlab.statistics import LEVEL, pearson

CORRELATIONS = {"correlation": "Pearson's r", "correlation_p": "Pearson's r", "rank_correlation": "Spearman's r"}
"""Function of formulas → what it is of two lists."""
FEWEST = 4
"""Without one of fewer rows there is no correlation."""


@dataclass(frozen=True)
class Outcome:
    """whole: of all rows, as text. spread: from the lowest to the highest without one of them. hangs: for each row that
    it hangs on, what it is without it. why: of what cannot be said."""

    whole: str = ""
    spread: str = ""
    hangs: tuple[str, ...] = ()
    why: str = ""


def without_one(kind: str, lists: Sequence[np.ndarray], axis: int, rows: Sequence[str]) -> Outcome:
    """kind: a value of CORRELATIONS. lists: two of one shape, in which rows stand along an axis; rows: their names."""
    if len(rows) < FEWEST:
        return Outcome(why=f"a correlation of {len(rows)} rows has none without one of them")
    overall = _of(kind, lists)
    if overall is None:
        return Outcome(why="a list whose entries are all the same has no correlation")
    correlations = [_of(kind, [np.delete(entries, i, axis=axis) for entries in lists]) for i in range(len(rows))]
    hangs = []
    for name, correlation in zip(rows, correlations, strict=True):
        if correlation is None:
            hangs.append(f"without {name} all entries of a list are the same")
        elif changed := _changed(overall, correlation):
            hangs.append(f"without {name} {_shown(correlation)}: {changed}")
    values = [correlation[0] for correlation in correlations if correlation is not None]
    spread = f"{min(values):+.2f} to {max(values):+.2f} without one row" if values else ""
    return Outcome(f"{_shown(overall)} over {len(rows)} rows", spread, tuple(hangs))


def _of(kind: str, lists: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """r and its p-value; None where all entries of a list are the same."""
    flat = [np.ravel(entries) for entries in lists]
    if kind.startswith("Spearman"):
        from scipy.stats import rankdata  # here, so that commands that compute no correlation start fast

        flat = [rankdata(entries) for entries in flat]
    correlation = pearson(*(entries.tolist() for entries in flat))
    return None if correlation.r is None or correlation.p is None else (correlation.r, correlation.p)


def _changed(overall: tuple[float, float], other: tuple[float, float]) -> str:
    """What of r and p is another without a row; empty for nothing."""
    signs = np.sign(round(overall[0], 9)) != np.sign(round(other[0], 9))
    significant = overall[1] < LEVEL, other[1] < LEVEL
    changes = ["another sign"] if signs else []
    if significant[0] != significant[1]:
        changes.append(f"p is {'no longer' if significant[0] else 'then'} below {LEVEL:g}")
    return ", ".join(changes)


def _shown(correlation: tuple[float, float]) -> str:
    return f"{correlation[0]:+.2f} (p {correlation[1]:.2g})"
