"""One entry of a paper, table or figure, written and printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from hybridlab.papers.experiment import Experiment
from hybridlab.papers.plans import history, register
from hybridlab.reporting.figures import write_figure
from hybridlab.reporting.table_files import write_table
from hybridlab.reporting.terminal import print_figure, print_table


def write_entry(
    experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None, all_columns: bool = False
) -> tuple[dict[str, Any], Path]:
    """Its files under results_dir/<id>/<scale>/; returns its data and that folder.

    runs_dir: where records that results_dir lacks are copied from. all_columns: see `write_table`. A plan that has
    changed since runs were started is added to its history first, which gives the change a date.
    """
    if history(experiment.id, scale, results_dir):
        register(experiment, scale, results_dir)
    if experiment.plot is None:
        return write_table(experiment, scale, results_dir, runs_dir, all_columns)
    return write_figure(experiment, scale, results_dir, runs_dir)


def print_entry(data: dict[str, Any], experiment: Experiment, console: Console, all_columns: bool = False) -> None:
    """A table with its claims; for a figure, its series and claims."""
    if experiment.plot is None:
        print_table(data, experiment, console, all_columns)
    else:
        print_figure(data, console)
