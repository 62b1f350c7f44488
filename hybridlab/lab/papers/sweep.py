"""A setting for each arm from a sweep on a seed that is not reported (`sweep:` in an experiment file).

    hybridlab reproduce spiral-loops --scale desk --sweep

trains every cell of the sweep with every value of the grid through the queue of all runs. The records stay in
RESULTS-DIR, so that what was chosen can be checked from them. A run that diverged counts as the worst.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlab.config.resolve import parents
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.lab.papers.cells import Records, cell_runs, with_runtime
from hybridlab.lab.papers.experiment import Experiment, Scalar, Sweep
from hybridlab.lab.papers.formula import NoValue, number_of
from hybridlab.runs.record import Record, read_record, record_name, save_record
from hybridlab.statistics import FEWEST_SEEDS, spread_of
from hybridlab.training.store.results import find

if TYPE_CHECKING:
    from hybridlab.runs.cluster import Cluster
    from hybridlab.runs.queue import Outcome
    from hybridlab.training.ranks import Ranks

Pending = dict[str, tuple[str, RunConfig]]
"""hash → (name, configuration), parents before children."""


@dataclass(frozen=True)
class Try:
    """One value for one cell. runs: their hashes, one for each of its tuning seeds. measured: the mean over these, None
    if one was not run, or diverged. first: the number
    of the first of them."""

    value: Scalar
    runs: list[str]
    measured: float | None
    first: float | None
    diverged: bool = False

    @property
    def in_words(self) -> str:
        if self.measured is not None:
            return f"{self.measured:.4f}"
        return "diverged" if self.diverged else "–"


@dataclass(frozen=True)
class Swept:
    """The sweep of one cell for one metric. best: the value that its records favour, once all of them are there and one
    did not diverge. at_edge: no value beyond the best was tried. chosen: what the experiment uses; None if nothing."""

    metric: str
    cell: str
    values: list[Try]
    best: Scalar | None
    at_edge: bool
    chosen: Scalar | None

    @property
    def outdated(self) -> bool:
        """Whether the experiment should use another value, or one at all."""
        return self.best is not None and self.best != self.chosen


def sweep_of(experiment: Experiment, scale: str) -> Sweep:
    """The sweep of an experiment at a scale; UserError if it has none there."""
    sweep = experiment.sweep
    if sweep is None:
        raise UserError(f"--sweep: {experiment.id} sweeps nothing; leave --sweep out, or add `sweep:` to its file")
    if sweep.scale != scale:
        raise UserError(f"--sweep: {experiment.id} sweeps at scale {sweep.scale}; give --scale {sweep.scale}")
    return sweep


def sweep_runs(experiment: Experiment, sweep: Sweep, compile: bool | None = None) -> Pending:
    """Every run of the sweep, and those that they start from; equal runs once. compile: instead of
    `runtime.compile` of all of them."""
    pending: Pending = {}
    for cell, (value, seed) in itertools.product(sweep.cells, sweep.tries):
        measured = sweep.measured_in.get(cell, cell)
        searched = sweep.with_followers(cell, value)
        for run in cell_runs(experiment, sweep.scale, seed, [measured], searched):
            name = f"{run.cell}, {sweep.setting} {value}" if run.cell in (*searched, measured) else run.cell
            config = run.trained if compile is None else with_runtime(run.trained, compile=compile)
            pending.setdefault(run.hash, (f"{name} (seed {seed})", config))
    return pending


def run_sweep(
    experiment: Experiment,
    scale: str,
    runs_dir: Path,
    results_dir: Path,
    jobs: int | Ranks | Cluster | None = 1,
    compile: bool | None = None,
) -> Outcome:
    """Train what is missing of the sweep: what has no record, with what that starts from. A run that diverged is a
    result: its record is kept, and it is not tried again, as one is that failed for another reason. jobs: see
    `run_all`. compile: see `sweep_runs`."""
    from hybridlab.runs.queue import Outcome, run_all

    missing = left(sweep_runs(experiment, sweep_of(experiment, scale), compile), results_dir)
    if not missing:
        return Outcome()
    outcome = run_all(missing, runs_dir, results_dir, jobs)
    keep_diverged(outcome, missing, runs_dir, results_dir)
    return outcome


def keep_diverged(outcome: Outcome, runs: Pending, runs_dir: Path, results_dir: Path) -> None:
    """Keep the records of the runs of a search that diverged, which are no failures."""
    for digest, (name, _) in runs.items():
        record = read_record(runs_dir / digest / "record.json") if name in outcome.failed else None
        if record is not None and _diverged(record):
            save_record(record, results_dir)
            del outcome.failed[name]


def left(runs: Pending, results_dir: Path) -> Pending:
    """The runs that neither finished nor diverged, and those that they start from."""
    records = {digest: read_record(find(results_dir, record_name(digest))) for digest in runs}
    return with_parents(runs, {h for h, record in records.items() if record is None or record.status == "failed"})


def with_parents(runs: Pending, needed: set[str]) -> Pending:
    """The runs of these hashes, and those that they start from."""
    for digest in reversed(runs):  # children come after their parents
        if digest in needed:
            needed = needed | {parent for parent in parents(runs[digest][1]) if parent in runs}
    return {digest: run for digest, run in runs.items() if digest in needed}


def swept_cells(experiment: Experiment, sweep: Sweep, results_dir: Path) -> list[Swept]:
    """What the records say about every cell of the sweep, metric by metric."""
    records = {cell: _records(experiment, sweep, cell, results_dir) for cell in sweep.cells}
    return [_swept(experiment, sweep, metric, cell, records[cell]) for metric in sweep.metrics for cell in sweep.cells]


Tried = dict[Scalar, dict[str, Record | None]]
"""Value → the runs with it, one for each tuning seed: hash → record."""


def _records(experiment: Experiment, sweep: Sweep, cell: str, results_dir: Path) -> Tried:
    tried: Tried = {}
    for value, seed in sweep.tries:
        searched = sweep.with_followers(cell, value)
        *_, run = cell_runs(experiment, sweep.scale, seed, [sweep.measured_in.get(cell, cell)], searched)
        tried.setdefault(value, {})[run.hash] = read_record(find(results_dir, record_name(run.hash)))
    return tried


def _swept(experiment: Experiment, sweep: Sweep, metric: str, cell: str, tried: Tried) -> Swept:
    tries = []
    for value, runs in tried.items():
        mean, first = (_mean(experiment, metric, some) for some in (runs.values(), [*runs.values()][:1]))
        tries.append(Try(value, [*runs], mean, first, any(map(_diverged, runs.values()))))
    complete = all(trial.measured is not None or trial.diverged for trial in tries)
    best = _best(sweep, metric, tries) if complete else None
    chosen = sweep.chosen.get(metric, {}).get(cell)
    return Swept(metric, cell, tries, best, best is not None and best in edges(sweep.grid), chosen)


def _best(sweep: Sweep, metric: str, tries: list[Try]) -> Scalar | None:
    """The value with the best mean of those that all tuning seeds tried, or one that the first seed alone tried and on
    which it is better there than all of these; None if all diverged."""
    sign = 1 if sweep.better_of(metric) == "lower" else -1

    def rank(number: float | None) -> float:
        return math.inf if number is None else sign * number

    # Of equally good values one inside the grid.
    inside_first = sorted(tries, key=lambda trial: trial.value in edges(sweep.grid))
    measured = [trial for trial in inside_first if trial.measured is not None]
    for_all = [trial for trial in measured if len(trial.runs) == len(sweep.seeds)]
    first_best = min((rank(trial.first) for trial in for_all), default=math.inf)
    alone = [trial for trial in measured if trial not in for_all and rank(trial.first) < first_best]
    best = min(alone or for_all, key=lambda trial: rank(trial.measured), default=None)
    return None if best is None else best.value


def _mean(experiment: Experiment, metric: str, records: Iterable[Record | None]) -> float | None:
    """The mean of the number that decides over runs; None if one has none."""
    values: list[float] = []
    for record in records:
        if record is None or record.status != "finished":
            return None
        try:
            values.append(number_of(record, metric, experiment.measures))
        except NoValue:
            return None
    return sum(values) / len(values)


def _diverged(record: Record | None) -> bool:
    return record is not None and record.status == "diverged"


def edges(grid: list[Scalar]) -> list[Scalar]:
    """The smallest and the largest value of a grid of numbers; words have no order."""
    numbers = [value for value in grid if isinstance(value, int | float) and not isinstance(value, bool)]
    return [min(numbers), max(numbers)] if len(numbers) == len(grid) else []


# ---- in words and as data ----


def sweep_data(experiment: Experiment, sweep: Sweep, results_dir: Path) -> dict[str, Any]:
    """The sweep as data: for each cell the figure of every value, the best and the chosen one."""
    cells = [asdict(swept) for swept in swept_cells(experiment, sweep, results_dir)]
    head = {"id": experiment.id, "scale": sweep.scale, "setting": sweep.setting, "grid": sweep.grid}
    seeds = {"seed": sweep.seed} | ({"further_seeds": sweep.further_seeds} if sweep.further_seeds else {})
    return {**head, **seeds, "metrics": sweep.metrics, "better": sweep.better, "cells": cells}


def advice(cells: list[Swept]) -> str | None:
    """What to write under `chosen`, in one sentence; None if it stands there already."""
    better: dict[str, list[str]] = {}
    for swept in cells:
        if swept.outdated:
            better.setdefault(swept.metric, []).append(f"{swept.cell}: {swept.best}")
    if not better:
        return None
    written = ", ".join(f"{metric}: {{{', '.join(values)}}}" for metric, values in better.items())
    return f"write under `sweep.chosen`: {{{written}}}"


def sweep_notes(
    experiment: Experiment, scale: str, results_dir: Path, reported: Records | None = None
) -> Iterator[str]:
    """How a table's values were chosen, with the figures of the sweep, and those of arms that are runs of another
    experiment; nothing where nothing was swept. reported: the records of the page."""
    for other in experiment.scales[scale].shared if scale in experiment.scales else ():
        yield from _shared_in_words(experiment.other(other), scale, experiment.scales[scale].shared[other])
    sweep = experiment.sweep
    if sweep is None or sweep.scale != scale:
        return
    grid = ", ".join(str(value) for value in sweep.grid)
    alone = [value for value in sweep.grid if sweep.further_values and value not in sweep.further_values]
    titles = [metric_in_words(experiment, metric) for metric in sweep.metrics]
    extreme = "lowest" if sweep.better_of(sweep.metrics[0]) == "lower" else "highest"
    several = f"seeds {', '.join(map(str, sweep.seeds))}, which are"
    seeds = several if sweep.further_seeds else f"seed {sweep.seed}, which is"
    yield (
        f"{sweep.setting} was chosen for each arm on {seeds} not reported, by the {extreme} {titles[0]}"
        + (f", and where that is judged by {' and '.join(titles[1:])}" if titles[1:] else "")
        + f"; every arm had the same grid: {grid}"
        + (f" ({', '.join(map(str, alone))} on seed {sweep.seed} only)." if alone else ".")
    )
    for swept in swept_cells(experiment, sweep, results_dir):
        metric = f" by {metric_in_words(experiment, swept.metric)}" if titles[1:] else ""
        arm = experiment.arm(scale, swept.cell, swept.metric)
        runs = (reported or {}).get(arm, {})
        yield _in_words(swept, metric) + _lottery(experiment, sweep, swept, runs.values())


def _shared_in_words(owner: Experiment, scale: str, cells: dict[str, str]) -> Iterator[str]:
    """The values of a swept setting of arms that are runs of another experiment. cells: arm → its run there."""
    chosen, sweep = owner.chosen(scale), owner.sweep
    values = ", ".join(f"{arm} {chosen[run]}" for arm, run in cells.items() if run in chosen)
    if sweep is not None and values:
        by = metric_in_words(owner, sweep.metrics[0])
        yield f"{sweep.setting} of the arms, chosen in {owner.id} by {by}: {values}."


def metric_in_words(experiment: Experiment, metric: str) -> str:
    """The title of a measure, or the path into a record."""
    measure = experiment.measures.get(metric)
    return metric if measure is None else measure.title


def _lottery(experiment: Experiment, sweep: Sweep, swept: Swept, reported: Iterable[Record]) -> str:
    """A warning where one tuning seed has chosen between values whose numbers differ by less than the reported seeds of
    the arm do; "" elsewhere."""
    tried = sorted(trial.measured for trial in swept.values if trial.measured is not None)
    tried = tried if sweep.better_of(swept.metric) == "lower" else tried[::-1]
    numbers = []
    for record in reported:
        with suppress(NoValue):
            numbers.append(number_of(record, swept.metric, experiment.measures))
    if sweep.further_seeds or len(tried) < 2 or len(numbers) < FEWEST_SEEDS:
        return ""
    between, spread = abs(tried[1] - tried[0]), spread_of(numbers)
    if spread <= between:
        return ""
    figures = f"differ by {between:.2g}, its reported seeds by more (SD {spread:.2g})"
    return f" Warning: on one tuning seed its best two values {figures}; search it on three (sweep.further_seeds)."


def _in_words(swept: Swept, metric: str) -> str:
    """The figures of one cell, and a warning where its choice is not the one that they favour."""
    figures = ", ".join(f"{trial.value}: {trial.in_words}" for trial in swept.values)
    text = f"Sweep of {swept.cell}{metric}: {figures}; chosen {'nothing' if swept.chosen is None else swept.chosen}"
    if swept.at_edge and not swept.outdated:
        text += " (at the edge of the grid)"
    if swept.best is None:
        return f"{text}. Warning: the sweep is not complete, or every run diverged."
    if swept.outdated:
        edge = ", at the edge of the grid" if swept.at_edge else ""
        return f"{text}. Warning: the best of the records is {swept.best}{edge}."
    return f"{text}."
