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
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Train the grid of the experiment's `sweep` on its tuning seed, and nothing else."
        ),
    ] = False,
    jobs: o.Jobs = None,
    dry_run: o.DryRun = False,
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: o.ResultsDir = o.RESULTS,
    all_columns: o.AllColumns = False,
    as_json: o.AsJson = False,
) -> None:
    """Make a table or figure, with all runs that it needs. Finished runs are skipped, unfinished ones are resumed."""
    from hybridlab.cli.queues import print_preview, raise_failures
    from hybridlab.cli.sweep import reproduce_sweep
    from hybridlab.papers.loading import load_experiment
    from hybridlab.papers.reproduce import needed_runs, run_cells
    from hybridlab.reporting.entry import print_entry, write_entry

    experiment = load_experiment(identifier)
    scale = o.pick_scale(scale, experiment.available_scales())
    if sweep:
        reproduce_sweep(experiment, scale, jobs, dry_run, runs_dir, results_dir, as_json)
        return
    if dry_run:
        print_preview(needed_runs(experiment, scale), runs_dir, results_dir, jobs, as_json)
        if experiment.benchmark is not None:
            o.say(f"{identifier}: a benchmark, which trains nothing; how long it takes is not known")
        return
    outcome = run_cells(experiment, scale, runs_dir, results_dir, o.say, jobs=jobs)
    data, folder = write_entry(experiment, scale, results_dir, all_columns=all_columns)
    if as_json:
        o.print_json(data)
    else:
        print_entry(data, experiment, o.console(), all_columns)
    o.say(f"written to {folder}")
    raise_failures(outcome, identifier)
