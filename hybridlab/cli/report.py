"""`hybridlab report`: make a table again from its records, without training."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import options as o


def report(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="An id that `hybridlab list` shows.")],
    scale: o.Scale = "smoke",
    results_dir: o.ResultsDir = o.RESULTS,
    as_json: o.AsJson = False,
) -> None:
    """Make a table from the records in RESULTS-DIR; what has not been run shows as –."""
    from hybridlab.reporting.table import print_table, write_table
    from hybridlab.reproduction.experiment import load_experiment

    experiment = load_experiment(identifier)
    scale = o.pick_scale(scale, experiment.available_scales())
    table, folder = write_table(experiment, scale, results_dir)
    if as_json:
        o.print_json(table)
    else:
        print_table(table, experiment, o.console())
    o.say(f"written to {folder}")
