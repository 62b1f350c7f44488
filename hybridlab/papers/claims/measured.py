"""Claim kinds that several papers use, tested on the runs made here."""

from __future__ import annotations

from hybridlab.papers.calls import CellName, MetricPath, RowName
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import Open, Verdict, all_of, lower_loss
from hybridlab.runs.record import number_at


@claim_kind
def measured_better(on: Given, rows: list[RowName], over: list[RowName], or_equal: bool = False) -> Verdict:
    """Every one of `rows` has a lower validation loss than every one of `over`; with `or_equal`, none has a resolved
    higher one."""
    pairs = [(on.labelled(left), on.labelled(right)) for left in rows for right in over]
    return all_of([lower_loss(left, right, or_equal=or_equal) for left, right in pairs])


@claim_kind
def measured_cheaper(on: Given, rows: list[RowName], over: list[RowName]) -> Verdict:
    """Every one of `rows` used fewer training FLOPs than every one of `over`."""
    runs = {name: on.runs(on.row(name).cell or "") for name in (*rows, *over)}
    if missing := [name for name, by_seed in runs.items() if not by_seed]:
        raise Open(f"not run: {', '.join(missing)}")
    spent = {name: by_seed[min(by_seed)].flops for name, by_seed in runs.items()}
    ratios = {f"{a} / {b}": spent[a] / spent[b] for a in rows for b in over}
    return Verdict(all(r < 1 for r in ratios.values()), "; ".join(f"{name} = {r:.4f}" for name, r in ratios.items()))


@claim_kind
def cells_better(on: Given, pairs: list[tuple[CellName, CellName]]) -> Verdict:
    """In each pair the first cell has a lower validation loss than the second."""
    return all_of([lower_loss((left, on.runs(left)), (right, on.runs(right))) for left, right in pairs])


@claim_kind
def measured_bounds(
    on: Given, cell: CellName, metric: MetricPath, above: float | None = None, below: float | None = None
) -> Verdict:
    """A metric of one cell lies above or below a bound, in every seed."""
    values = [value for run in on.runs(cell).values() if (value := number_at(run, metric).value) is not None]
    if not values:
        raise Open(f"{cell}: not run")
    holds = all((above is None or v > above) and (below is None or v < below) for v in values)
    bounds = {"above": above, "below": below}
    bound = " and ".join(f"{name} {value:g}" for name, value in bounds.items() if value is not None)
    return Verdict(holds, f"{cell}: {', '.join(f'{v:.3f}' for v in values)}; asked {bound} (n = {len(values)})")
