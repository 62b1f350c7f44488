"""`hybridlab reproduce`: make a table or figure of a paper, from training to the written file."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o


def reproduce(
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An id that `hybridlab list` shows, or a file of your own (./mine.yaml).",
            autocompletion=completion.experiments,
        ),
    ],
    scale: o.Scale = "smoke",
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: o.ResultsDir = o.RESULTS,
    as_json: o.AsJson = False,
) -> None:
    """Make a table or figure, with all runs that it needs. Finished runs are skipped, unfinished ones are resumed."""
    from hybridlab.errors import RunFailed
    from hybridlab.papers.loading import load_experiment
    from hybridlab.papers.reproduce import run_cells
    from hybridlab.reporting.entry import print_entry, write_entry

    experiment = load_experiment(identifier)
    scale = o.pick_scale(scale, experiment.available_scales())
    outcome = run_cells(experiment, scale, runs_dir, results_dir, o.say)
    data, folder = write_entry(experiment, scale, results_dir)
    if as_json:
        o.print_json(data)
    else:
        print_entry(data, experiment, o.console())
    o.say(f"written to {folder}")
    if outcome.failed:
        reasons = "; ".join(f"{cell}: {reason}" for cell, reason in outcome.failed.items())
        raise RunFailed(f"{len(outcome.failed)} of the runs of {identifier} failed: {reasons}")
