"""`hybridlab report`: make tables and figures from records, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.lab.cli import completion
from hybridlab.lab.cli import options as lab
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.lab.papers.experiment import Experiment


_Site = Annotated[
    bool, typer.Option("--site", help="All pages there are as one site of HTML that opens from the disk.")
]
_Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="With --site, its folder; default: RESULTS-DIR/site.")
]
_Publish = Annotated[
    bool,
    typer.Option(
        "--publish",
        help="Then put them into RESULTS-DIR/published, with the records and plans behind them, to be committed.",
    ),
]


def report(
    identifiers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Ids that `hybridlab list` shows or that `ablate` or `compare` wrote (ablate-…), or files of your "
            "own (./mine.yaml).",
            autocompletion=completion.experiments,
        ),
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="All tables.")] = False,
    figures: Annotated[bool, typer.Option("--figures", help="All figures.")] = False,
    scale: lab.Scale = None,
    model: lab.StudiedModel = None,
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: lab.ResultsDir = lab.RESULTS,
    all_columns: lab.AllColumns = False,
    long: lab.Long = False,
    site: _Site = False,
    out: _Out = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Pictures as PDF too.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Pictures as SVG too.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Tables as LaTeX too.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Numbers as CSV too.")] = False,
    publish: _Publish = False,
    as_json: o.AsJson = False,
) -> None:
    """Make tables and figures from records in RESULTS-DIR and of runs in RUNS-DIR; missing results show as –.

    A record of your own is read before the published one. Without --scale it is the dearest scale of which a seed is
    complete: paper, small, desk, smoke.
    """
    from hybridlab.lab.papers.cells import best_scale
    from hybridlab.lab.reporting.claims import changed_plans
    from hybridlab.lab.reporting.entry import print_entry, write_entry
    from hybridlab.lab.reporting.published import about, page_of
    from hybridlab.lab.reporting.published import publish as publish_pages

    if site or out is not None:
        pages = {"ids": identifiers, "--tables": tables, "--figures": figures, "--scale": scale, "--model": model}
        forms = {"--publish": publish, "--all-columns": all_columns, "--long": long}
        files = {"--pdf": pdf, "--svg": svg, "--latex": latex, "--csv": csv}
        others = [name for name, value in {**pages, **forms, **files}.items() if value]
        _write_site(site, out or results_dir / "site", results_dir, as_json, others)
        return
    if publish and all_columns:
        raise UserError("report: --publish makes pages without --all-columns; leave one of them out")
    kinds = [kind for kind, is_set in (("table", tables), ("figure", figures)) if is_set]
    if bool(identifiers) == bool(kinds):
        raise UserError("report: give ids, or --tables or --figures for all of that kind")
    experiments = _experiments(identifiers or [], kinds, scale, model, results_dir)
    if long and as_json:
        raise UserError("--long prints the claims with all numbers; leave it out with --json")
    if latex and all(experiment.kind == "figure" for experiment in experiments):
        raise UserError("report --latex: LaTeX is made of tables, and these are figures; leave it out, or take --pdf")
    also = [ending for ending, is_set in ((".pdf", pdf), (".svg", svg), (".tex", latex), (".csv", csv)) if is_set]
    documents, publishing = [], []
    for experiment in experiments:
        chosen = lab.pick_scale(scale or best_scale(experiment, results_dir, runs_dir), experiment)
        data, folder = write_entry(experiment, chosen, results_dir, runs_dir, all_columns, also)
        if not as_json:
            print_entry(data, o.console(), all_columns, long)
        say(about(data, results_dir))
        say(f"written to {folder}")
        documents.append(data)
        publishing += [page_of(data, experiment, results_dir)] if publish else []
    for line in (*changed_plans(documents), *(publish_pages(publishing, results_dir) if publish else ())):
        say(line)
    if as_json:
        o.print_json(documents[0] if identifiers and len(documents) == 1 else documents)


def _write_site(site: bool, out: Path, results_dir: Path, as_json: bool, others: list[str]) -> None:
    """site: whether it was asked for. others: what was given beside --site, which has no effect on it."""
    from hybridlab.lab.reporting.site import write_site

    if not site:
        raise UserError("report --out: names the folder of --site; add --site, or leave it out")
    if others:
        raise UserError(f"report --site: the site has every page there is; leave {others[0]} out")
    written = write_site(out, results_dir)
    if as_json:
        o.print_json(written)
    else:
        say(f"written to {written['folder']}/index.html")


def _experiments(
    identifiers: list[str], kinds: list[str], scale: str | None, model: str | None, results_dir: Path
) -> list[Experiment]:
    """The experiments of these ids, or all of these kinds that have the scale. model: see `on_model`."""
    from hybridlab.lab.papers.loading import all_experiments

    if not kinds:
        return lab.experiments_of(identifiers, results_dir, model)
    if model is not None:
        raise UserError("report --model: give the ids of the pages that are wanted of this model")
    everything = all_experiments()
    chosen = [entry for entry in everything if entry.kind in kinds and scale in (None, *entry.available_scales())]
    if not chosen:
        scales = sorted({name for entry in everything for name in entry.available_scales()})
        raise UserError(f"--scale {scale}: no {' or '.join(kinds)} has it; known scales: {', '.join(scales)}")
    return chosen
