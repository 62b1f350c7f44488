"""Claim kinds about orders that last, so that a choice by what is high at one time means something later."""

from __future__ import annotations

import numpy as np

from hybridlab.papers.calls import CellName, TablePath
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind, value_at
from hybridlab.papers.claims.verdict import Open
from hybridlab.runs.record import Record
from hybridlab.statistics import Above, rank_correlation


@claim_kind
def order_in_rows_keeps(
    on: Given, cell: CellName, before: TablePath, after: TablePath, rows: list[int] | None = None, least: float = 0.5
) -> list[Comparison]:
    """In two tables of a run, such as the entropies [layer][head] of a probe at two steps, the numbers of each row keep
    their order: the mean over rows of the rank correlation lies above a bound. rows: only these, counted from 0."""

    def order(run: Record) -> float:
        tables = [value_at(run, path) for path in (before, after)]
        chosen = range(len(tables[0])) if rows is None else rows
        orders = [rank_correlation(tables[0][row], tables[1][row]) for row in chosen]
        known = [value for value in orders if value is not None]
        if not known:
            raise Open("the numbers of every row are all the same")
        return float(np.mean(known))

    where = "" if rows is None else f" {', '.join(map(str, rows))}"
    tables = " and ".join(path.removeprefix("results.") for path in (before, after))
    label = f"{cell}: rank correlation within rows{where} of {tables}, mean"
    return [on.compared(label, [cell], order, Above(least))]
