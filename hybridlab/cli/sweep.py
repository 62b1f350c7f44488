"""`hybridlab reproduce ID --sweep`: the grid of an experiment on its tuning seed, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridlab.cli.options import Queue, console, print_json
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.papers.experiment import Experiment, Sweep
    from hybridlab.papers.sweep import Swept
    from hybridlab.runs.cluster import Cluster
    from hybridlab.training.ranks import Ranks


def reproduce_sweep(
    experiment: Experiment,
    scale: str,
    asked: Queue,
    where: int | Ranks | Cluster | None,
) -> None:
    """Train what is missing of the sweep, and print what it found; with --dry-run, only what it would train."""
    from hybridlab.cli.queues import print_preview
    from hybridlab.papers.sweep import advice, left, run_sweep, sweep_data, sweep_of, sweep_runs, swept_cells

    sweep, results_dir = sweep_of(experiment, scale), asked.results_dir
    if asked.dry_run:
        print_preview(left(sweep_runs(experiment, sweep), results_dir), asked)
        return
    outcome = run_sweep(experiment, scale, asked.runs_dir, results_dir, where)
    if outcome.left:
        return
    cells = swept_cells(experiment, sweep, results_dir)
    if asked.as_json:
        print_json(sweep_data(experiment, sweep, results_dir))
    else:
        for metric in sweep.metrics:
            _print_sweep(experiment, sweep, metric, [swept for swept in cells if swept.metric == metric])
        console().print("[figure]: the chosen value, which the reported runs have; –: not run.", highlight=False)
    if (sentence := advice(cells)) is not None:
        say(f"{experiment.id}: {sentence}")
    outcome.raise_failures(experiment.id)


def _print_sweep(experiment: Experiment, sweep: Sweep, metric: str, cells: list[Swept]) -> None:
    """A line for each cell, with a column for each value; the chosen value has brackets around its figure."""
    from rich import box
    from rich.table import Table

    seeds = ", ".join(map(str, sweep.seeds))
    title = f"{experiment.id}, scale {sweep.scale}: {metric} by {sweep.setting} (seed {seeds}, not reported)"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("cell", overflow="fold")
    for value in sweep.grid:
        table.add_column(str(value), justify="right", no_wrap=True)
    table.add_column("best", overflow="fold")
    for swept in cells:
        figures = [f"[{one.in_words}]" if one.value == swept.chosen else one.in_words for one in swept.values]
        table.add_row(swept.cell, *figures, _best_in_words(swept))
    console().print(table)


def _best_in_words(swept: Swept) -> str:
    if swept.best is None:
        return "–"
    return f"{swept.best}{' (at the edge of the grid)' if swept.at_edge else ''}"
