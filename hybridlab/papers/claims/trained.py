"""Claim kinds that several papers use, tested on the runs made here.

    {kind: lower, pairs: [[A, B], [C, D]], metric: results.tasks.retrieval.loss.outside}
    {kind: lower, pairs: [[A, B]], by: 0.02}
    {kind: higher, pairs: [[A, B]], times: 2}
    {kind: differs, pairs: [[A, B]], by: 0.1, reason: "a twentieth of the entropy of a row over eight tokens"}
    {kind: lower_than_mean, cell: A, over: [B, C, D]}
    {kind: higher_than_mean, cell: A, over: [B, C, D], also: [E]}
    {kind: equivalent, pairs: [[A, B]], margin: 0.01, reason: "a tenth of the smallest gain that the table prints"}
    {kind: measured_bounds, cell: [A, B], metric: late-overlap, below: 0.9}

A metric is a dotted path into a record, or a measure of the file (papers/measures.py). `pairs` name cells, or with
`rows: true` the short names of rows. The metric is the validation loss by default; with `metrics` each of them is
compared in every pair. One claim makes all these comparisons together (Holm).
"""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from hybridlab.errors import UserError
from hybridlab.papers.calls import CellName, MetricPath, Refers, RowName
from hybridlab.papers.claims.comparison import Comparison
from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.runs.record import Record
from hybridlab.statistics import (
    FEWEST_SEEDS,
    Above,
    Always,
    Apart,
    Below,
    Between,
    Question,
    block_mean,
    rank_correlation,
)

LOSS = "results.validation.loss"
_Arm = Annotated[str, Refers("cell", row_if="rows")]
Pairs = Annotated[list[tuple[_Arm, _Arm]], Field(min_length=1)]
Metrics = Annotated[list[MetricPath], Field(min_length=1)]
Draws = Annotated[list[CellName], Field(min_length=2)]
Margin = Annotated[float, Field(gt=0)]
Gain = Annotated[float, Field(ge=0)]
Times = Annotated[float, Field(ge=1)]


@claim_kind
def lower(
    on: Given,
    pairs: Pairs,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
    by: Gain = 0.0,
    times: Times = 1.0,
) -> list[Comparison]:
    """In every pair the first has a lower metric than the second, by more than `by`, also if it were `times` as large
    ("much smaller": less than half, with 2)."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Below(-by), times=(times, 1.0))


@claim_kind
def higher(
    on: Given,
    pairs: Pairs,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
    by: Gain = 0.0,
    times: Times = 1.0,
) -> list[Comparison]:
    """In every pair the first has a higher metric than the second, by more than `by`, also if that were `times` as
    large ("far more": more than twice as much, with 2)."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Above(by), times=(1.0, times))


@claim_kind
def differs(
    on: Given,
    pairs: Pairs,
    by: Margin,
    reason: str,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
) -> list[Comparison]:
    """In every pair the metrics differ, to either side, by more than `by` ("reduces, or elevates"); `reason` says why
    it is so large. It fails where they are resolved to differ by less."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Apart(by))


@claim_kind
def equivalent(
    on: Given,
    pairs: Pairs,
    margin: Margin,
    reason: str,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
) -> list[Comparison]:
    """In every pair the metrics differ by less than a margin ("comparable", "no loss"); `reason` says why it is so
    large. Not resolved is not equal."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Between(-margin, margin))


@claim_kind
def lower_or_equal(
    on: Given,
    pairs: Pairs,
    margin: Margin,
    reason: str,
    metric: MetricPath = LOSS,
    metrics: Metrics | None = None,
    rows: bool = False,
) -> list[Comparison]:
    """In every pair the first has a lower metric than the second, or one that is higher by less than a margin ("matches
    or exceeds"). It fails where the first is resolved to be higher by more."""
    return compared_pairs(on, pairs, metrics or [metric], rows, Between(None, margin))


@claim_kind
def lower_than_mean(
    on: Given, cell: CellName, over: Draws, metric: MetricPath = LOSS, also: list[CellName] | None = None
) -> list[Comparison]:
    """A cell has a lower metric than the mean of others in the same seed, and than each cell of `also`. The others are
    draws of one arm, such as random heads: how good a single draw is says little about the arm."""
    return _against_mean(on, cell, over, metric, also or [], Below())


@claim_kind
def higher_than_mean(
    on: Given, cell: CellName, over: Draws, metric: MetricPath = LOSS, also: list[CellName] | None = None
) -> list[Comparison]:
    """A cell has a higher metric than the mean of others in the same seed, and than each cell of `also`; see
    `lower_than_mean`."""
    return _against_mean(on, cell, over, metric, also or [], Above())


def _against_mean(
    on: Given, cell: str, over: list[str], metric: str, also: list[str], asked: Question
) -> list[Comparison]:
    def difference(ours: Record, *draws: Record) -> float:
        return on.number(ours, metric) - fmean(on.number(draw, metric) for draw in draws)

    label = f"{cell} − mean of {' and '.join(over)}" + ("" if metric == LOSS else f", {_short(on, metric)}")
    found = on.compared(label, [cell, *over], difference, asked, paired=True, **_about(on, metric))
    return [found, *compared_pairs(on, [(cell, other) for other in also], [metric], False, asked)]


@claim_kind
def measured_cheaper(on: Given, rows: list[RowName], over: list[RowName]) -> Verdict:
    """Every one of `rows` used fewer training FLOPs than every one of `over`, in every seed. FLOPs are counted, not
    measured, so that one run decides."""
    on.require([on.cell_of(name) for name in (*rows, *over)])
    spent = {name: [run.flops for run in on.runs(on.cell_of(name)).values()] for name in (*rows, *over)}
    ratios = {f"{a} / {b}": max(spent[a]) / min(spent[b]) for a in rows for b in over}
    evidence = "; ".join(f"{name} = {ratio:.4f}" for name, ratio in ratios.items())
    return Verdict(all(ratio < 1 for ratio in ratios.values()), f"counted: {evidence}")


@claim_kind
def measured_bounds(
    on: Given,
    cell: CellName | list[CellName],
    metric: MetricPath,
    above: float | None = None,
    below: float | None = None,
) -> list[Comparison]:
    """A metric of one cell, or of each of several, lies above or below a bound."""

    def number(run: Record) -> float:
        return on.number(run, metric)

    if above is None and below is None:
        raise UserError("measured_bounds asks for nothing; write above, below or both")
    asked: list[Question] = [] if above is None else [Above(above)]
    asked += [] if below is None else [Below(below)]
    cells = [cell] if isinstance(cell, str) else cell
    # Without " nats" behind a path to a loss, which needs none beside its name.
    unit = on.unit(metric) if metric in on.experiment.measures else ""
    label = on.titled(metric)
    return [on.compared(f"{name}: {label}", [name], number, one, unit=unit) for name in cells for one in asked]


@claim_kind
def always(on: Given, cell: CellName | list[CellName], metric: MetricPath) -> list[Comparison]:
    """What a measure asks, such as `argmax(y) == 3`, is so in every run of one cell, or of each of several."""

    def answer(run: Record) -> float:
        return on.number(run, metric)

    cells = [cell] if isinstance(cell, str) else cell
    return [on.compared(f"{name}: {on.titled(metric)}", [name], answer, Always()) for name in cells]


@claim_kind
def go_together(
    on: Given,
    cells: Annotated[list[CellName], Field(min_length=3)],
    metric: MetricPath,
    other: MetricPath,
    above: float = 0.0,
) -> list[Comparison]:
    """Over the cells of each seed, two metrics go together: their rank correlation lies above a bound."""

    def together(*runs: Record) -> float:
        columns = [[on.number(run, one) for run in runs] for one in (metric, other)]
        value = rank_correlation(*columns)
        if value is None:
            raise Open(f"{on.titled(metric)} or {on.titled(other)} is the same in all cells")
        return value

    label = f"rank correlation over {len(cells)} cells of {on.titled(metric)} and {on.titled(other)}"
    return [on.compared(label, cells, together, Above(above))]


def compared_pairs(
    on: Given,
    pairs: list[tuple[str, str]],
    metrics: list[str],
    rows: bool,
    asked: Question,
    names: str = "",
    times: tuple[float, float] = (1.0, 1.0),
) -> list[Comparison]:
    """One comparison for each pair and metric: the difference first − second, paired by seed. rows: the pairs are the
    short names of rows. names: put before each label. times: factors on the first and on the second."""
    comparisons = []
    for metric in metrics:
        for pair in pairs:
            cells = [on.cell_of(name) if rows else name for name in pair]
            label = names + " − ".join(
                name if factor == 1 else f"{factor:g} × {name}" for name, factor in zip(pair, times, strict=True)
            )
            label += "" if metric == LOSS else f", {_short(on, metric)}"
            comparisons.append(_difference(on, label, cells, metric, asked, times))
    return comparisons


def _difference(
    on: Given, label: str, cells: list[str], metric: str, asked: Question, times: tuple[float, float]
) -> Comparison:
    def number(ours: Record, theirs: Record) -> float:
        return times[0] * on.number(ours, metric) - times[1] * on.number(theirs, metric)

    about: dict[str, Any] = {"paired": True, **_about(on, metric)}
    found = on.compared(label, cells, number, asked, **about)
    if not 0 < found.n < FEWEST_SEEDS:
        return found
    return on.compared(label, cells, number, asked, **about, note=_over_windows(on, cells, found, metric, times))


def _over_windows(on: Given, cells: list[str], found: Comparison, metric: str, times: tuple[float, float]) -> str:
    """The error of a difference over validation windows, which is shown for lack of one over seeds and decides
    nothing."""
    differences: list[float] = []
    for seed in found.values:
        ours, theirs = (_windows(on.runs(cell)[seed], metric) for cell in cells)
        if len(ours) == len(theirs):
            differences += [times[0] * a - times[1] * b for a, b in zip(ours, theirs, strict=True)]
    error = block_mean(differences).stderr
    return "" if error is None else f"± {error:.4f} over windows in blocks of ten"


def _windows(run: Record, metric: str) -> list[float]:
    """The values behind a metric that is the mean over windows; empty for another one."""
    here: Any = run
    for part in [*metric.split(".")[:-1], "windows"]:
        here = here.get(part) if isinstance(here, dict) else getattr(here, part, None)
    return here if isinstance(here, list) else []


def _about(on: Given, metric: str) -> dict[str, str]:
    """Fields of a comparison: its unit, and what it is of."""
    return {"unit": on.unit(metric), "metric": on.titled(metric) if metric in on.experiment.measures else metric}


def _short(on: Given, metric: str) -> str:
    return on.titled(metric) if metric in on.experiment.measures else on.titled(metric).replace(".", " ")
