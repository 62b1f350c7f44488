"""`hybridlab runs`: list, show, compare, draw, rename and clean up runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.messages import say

app = o.App(help="List runs; show, compare, draw, rename and clean them up.", invoke_without_command=True)

RunList = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Runs: names, folders, or starts of hashes.", autocompletion=completion.runs),
]


@app.callback()
def list_runs(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="training, unfinished, failed, finished or damaged.")] = None,
    arch: Annotated[str | None, typer.Option(help="An architecture, or a pattern such as 'spiral-*'.")] = None,
    size: Annotated[str | None, typer.Option(help="A size, or a pattern.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Runs that have this tag; repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="A name, or a pattern such as 'base*'.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Started within 90m, 12h, 2d, 1w, or since a date (2026-01-31).")
    ] = None,
    sort: Annotated[str, typer.Option(help="age, disk, loss, name, step or validation.")] = "age",
    jobs: Annotated[bool, typer.Option("--jobs", help="The jobs of a cluster instead: state and reason.")] = False,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """List runs, newest first. A wide terminal shows more columns; `runs show RUN` shows everything about one."""
    if (command := context.invoked_subcommand) is not None:
        for option in o.written(context).values():
            raise UserError(f"{option} before `{command}` has no effect; write it after `runs {command}`")
        return
    from hybridlab.cli.runs_text import print_rows
    from hybridlab.runs.catalogue import catalogue, filtered, sorted_by

    if jobs:
        _print_jobs(context, runs_dir, as_json)
        return
    rows = sorted_by(filtered(catalogue(runs_dir), state, arch, size, tag or [], name, since), sort)
    if as_json:
        o.print_json({"runs": [row.to_json() for row in rows]})
    elif rows:
        print_rows(rows)
    else:
        say(f"no runs in {runs_dir} that fit")


def _print_jobs(context: typer.Context, runs_dir: Path, as_json: bool) -> None:
    """A line for each job. UserError for an option that chooses among runs."""
    from hybridlab.runs.cluster import jobs

    for name, option in o.written(context).items():
        if name not in ("jobs", "runs_dir", "as_json"):
            raise UserError(f"{option} has no effect on --jobs; leave it out")
    listed = jobs(runs_dir)
    if as_json:
        o.print_json({"jobs": [asdict(job) for job in listed]})
        return
    if not listed:
        say(f"no jobs in {runs_dir}; --launcher slurm submits some")
        return
    rows = [(job.name, job.run[:8], job.number, job.state, job.reason) for job in listed]
    o.console().print(o.table(text=("run", "hash", "job", "state", "reason"), rows=rows, pad_edge=False))


@app.command()
def show(run: o.Run, runs_dir: o.RunsDir = o.RUNS, as_json: o.AsJson = False) -> None:
    """Everything about one run: start, costs, results with errors, relatives, disk, and its own settings."""
    from hybridlab.cli.runs_text import print_details
    from hybridlab.runs.catalogue import details, record_of
    from hybridlab.training.store.folders import Runs

    runs = Runs(runs_dir)
    folder = runs.find(run)
    facts = details(folder, runs)
    if as_json:
        o.print_json(facts)
    else:
        print_details(facts, record_of(folder))


@app.command()
def compare(
    references: RunList,
    samples: Annotated[
        bool, typer.Option("--samples", help="Also their answers to the same questions (`eval --log-samples`).")
    ] = False,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Compare runs with the first one: settings that differ, costs, validation losses paired by window, and answers to
    questions paired by question."""
    from hybridlab.cli.runs_text import print_comparison
    from hybridlab.runs.catalogue import compare as compare_runs
    from hybridlab.training.store.folders import Runs

    compared = compare_runs([Runs(runs_dir).find(reference) for reference in references], samples)
    if as_json:
        o.print_json(compared)
    else:
        print_comparison(compared)


@app.command()
def curves(
    references: RunList,
    x: Annotated[str, typer.Option(help="steps, tokens, flops or seconds.")] = "steps",
    metric: Annotated[str, typer.Option(help="A logged number, such as gradient_norm.")] = "loss",
    smooth: Annotated[
        int | None, typer.Option(min=1, help="Mean over so many logged points; default: a fortieth of them.")
    ] = None,
    out: Annotated[Path | None, o.output("picture", help="Write a picture too: FILE.png, .pdf or .svg.")] = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Draw the training loss of runs, and the validation loss where it was logged; also of unfinished runs."""
    from hybridlab.cli.runs_text import print_curves
    from hybridlab.runs.curves import read_curves
    from hybridlab.runs.pictures import draw_picture
    from hybridlab.training.store.folders import Runs

    lines = read_curves([Runs(runs_dir).find(reference) for reference in references], x, metric)
    if out is not None:
        draw_picture(lines, x, metric, smooth, out)
        say(f"written to {out}")
    if as_json:
        o.print_json({"x": x, "metric": metric, "curves": [asdict(line) for line in lines]})
    else:
        print_curves(lines, x, metric, smooth)


@app.command()
def rename(
    run: o.Run, name: Annotated[str, typer.Argument(help="The new name.")], runs_dir: o.RunsDir = o.RUNS
) -> None:
    """Give a run another name."""
    from hybridlab.runs.catalogue import relabel
    from hybridlab.training.store.folders import Label, Runs

    relabel(run, Label(name), Runs(runs_dir))
    say(f"{run} is now called {name}")


@app.command()
def tag(
    run: o.Run,
    add: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to add; repeatable.")] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to remove; repeatable.")] = None,
    runs_dir: o.RunsDir = o.RUNS,
) -> None:
    """Add tags to a run, or remove some."""
    from hybridlab.runs.catalogue import relabel
    from hybridlab.training.store.folders import Label, Runs

    tags = relabel(run, Label(tags=tuple(add or [])), Runs(runs_dir), remove or [])
    say(f"{run}: {', '.join(tags) or 'no tags'}")


@app.command()
def clean(
    kept: Annotated[
        bool,
        typer.Option(
            "--kept",
            help="Also optimizer states that are kept on purpose (--keep-optimizer, masks that have not settled).",
        ),
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Also prepared data, an hour old or older, that no run in RUNS-DIR uses.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what can go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Remove optimizer states of finished runs and what killed processes left; shows the bytes, and asks.

    Weights, records and logs stay, and so does everything of a run that is being trained.
    """
    from hybridlab.cli.runs_text import print_items
    from hybridlab.training.store.cleaning import removable, remove

    items = removable(runs_dir, kept, data)
    if not as_json:
        print_items(items)
    gone = remove(items) if items and not dry_run and (yes or _confirmed(len(items))) else []
    if as_json:
        o.print_json({"items": [item.to_json() for item in items], "removed": [str(item.path) for item in gone]})
    elif items and not dry_run:
        say(f"removed {sum(item.bytes for item in gone):,} bytes")


def _confirmed(count: int) -> bool:
    try:
        return typer.confirm(f"Remove {'this' if count == 1 else f'these {count}'}?", err=True)
    except typer.Abort:
        raise UserError("runs clean: no answer; add --yes to remove without asking, or --dry-run to look") from None
