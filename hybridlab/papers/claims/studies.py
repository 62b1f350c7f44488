"""Claim kinds about models that are there already: whether two of them have the same pattern of heads."""

from __future__ import annotations

import numpy as np

from hybridlab.papers.calls import CellName, TablePath
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, value_at
from hybridlab.papers.claims.verdict import Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, rank_correlation


@claim_kind
def tables_alike(
    on: Given, cell: CellName, other: CellName, table: TablePath, above: float, within_rows: bool = False
) -> list[Comparison]:
    """The tables of two models, such as the entropies of all heads, have entries in the same order: their rank
    correlation lies above a bound. within_rows: the mean of the correlations of each row, which does not see what a
    whole row has in common."""

    def alike(ours: Record, theirs: Record) -> float:
        one, two = (np.array(value_at(record, table), dtype=float) for record in (ours, theirs))
        if one.shape != two.shape:
            raise Open(f"{cell} has a table of {one.shape}, {other} one of {two.shape}")
        rows = list(zip(one, two, strict=True)) if within_rows else [(one.ravel(), two.ravel())]
        values = [
            rank_correlation(a[known].tolist(), b[known].tolist()) for a, b in rows if (known := ~np.isnan(a + b)).any()
        ]
        found = [value for value in values if value is not None]
        if not found:
            raise Open("all entries of a table are the same")
        return sum(found) / len(found)

    label = f"rank correlation of {table.removeprefix('results.')}, {cell} and {other}"
    return [on.compared(f"{label}, mean over rows" if within_rows else label, [cell, other], alike, Above(above))]
