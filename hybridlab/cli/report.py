"""`hybridlab report`: make tables and figures from records, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.papers.experiment import Experiment


def report(
    identifiers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Ids that `hybridlab list` shows or `ablate` wrote (ablate-…), or files of your own (./mine.yaml).",
            autocompletion=completion.experiments,
        ),
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="All tables.")] = False,
    figures: Annotated[bool, typer.Option("--figures", help="All figures.")] = False,
    scale: o.Scale = None,
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: o.ResultsDir = o.RESULTS,
    all_columns: o.AllColumns = False,
    long: o.Long = False,
    pdf: o.Pdf = False,
    latex: o.Latex = False,
    csv: o.Csv = False,
    publish: o.Publish = False,
    as_json: o.AsJson = False,
) -> None:
    """Make tables and figures from records in RESULTS-DIR and of runs in RUNS-DIR; missing results show as –.

    A record of your own is read before the published one. Without --scale it is the dearest scale of which a seed is
    complete: paper, small, desk, smoke.
    """
    from hybridlab.cli.ablate import print_grid
    from hybridlab.errors import UserError
    from hybridlab.papers.cells import best_scale
    from hybridlab.reporting.ablation import is_grid, read_grid, write_grid
    from hybridlab.reporting.claims import changed_plans
    from hybridlab.reporting.entry import print_entry, write_entry
    from hybridlab.reporting.published import about, grid_page, page_of
    from hybridlab.reporting.published import publish as publish_pages

    if publish and all_columns:
        raise UserError("report: --publish makes pages without --all-columns; leave one of them out")
    kinds = [kind for kind, wanted in (("table", tables), ("figure", figures)) if wanted]
    if bool(identifiers) == bool(kinds):
        raise UserError("report: give ids, or --tables or --figures for all of that kind")
    grids = [read_grid(name, results_dir) for name in identifiers or [] if is_grid(name)]
    experiments = _experiments([name for name in identifiers or [] if not is_grid(name)], kinds, scale)
    if long and (as_json or not experiments):
        raise UserError("--long prints the claims of papers' tables and figures; leave it out with --json and of grids")
    if latex and not grids and all(one.kind == "figure" for one in experiments):
        raise UserError("report --latex: LaTeX is made of tables, and these are figures; leave it out, or take --pdf")
    also = [ending for ending, wanted in ((".pdf", pdf), (".tex", latex), (".csv", csv)) if wanted]
    made, pages = [], []
    for experiment in experiments:
        chosen = o.pick_scale(scale or best_scale(experiment, results_dir, runs_dir), experiment)
        data, folder = write_entry(experiment, chosen, results_dir, runs_dir, all_columns, also)
        made.append(data)
        if not as_json:
            print_entry(data, experiment, o.console(), all_columns, long)
        say(about(data, experiment, results_dir))
        say(f"written to {folder}")
        pages += [page_of(data, experiment, results_dir)] if publish else []
    for definition in grids:
        data, folder = write_grid(definition, results_dir, runs_dir, also)
        made.append(data)
        if not as_json:
            print_grid(data)
        say(f"written to {folder}")
        pages += [grid_page(definition)] if publish else []
    for line in (*changed_plans(made), *(publish_pages(pages, results_dir) if publish else ())):
        say(line)
    if as_json:
        o.print_json(made[0] if identifiers and len(made) == 1 else made)


def _experiments(identifiers: list[str], kinds: list[str], scale: str | None) -> list[Experiment]:
    """The experiments of these ids, or all of these kinds that have the scale."""
    from hybridlab.errors import UserError
    from hybridlab.papers.loading import experiment_ids, load_experiment

    if not kinds:
        return [load_experiment(name) for name in identifiers]
    everything = [load_experiment(name) for name in experiment_ids()]
    found = [one for one in everything if one.kind in kinds and scale in (None, *one.available_scales())]
    if not found:
        known = sorted({name for one in everything for name in one.available_scales()})
        raise UserError(f"--scale {scale}: no {' or '.join(kinds)} has it; known scales: {', '.join(known)}")
    return found
