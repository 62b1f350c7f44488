"""`hybridlab ablate`: train a grid of settings with several seeds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.messages import say, without_repeats


@o.spread
def ablate(
    vary: Annotated[
        list[str], typer.Option("--vary", metavar="KEY=V1,V2", help="A setting and its values; repeatable.")
    ],
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds of each combination: how many (3: 0, 1, 2), 5-7, or 5,8,9.")
    ] = "3",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start every run from this one (name, folder or hash).",
            autocompletion=completion.runs,
        ),
    ] = None,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    jobs: o.Jobs = None,
    dry_run: o.DryRun = False,
    track: o.Track = None,
    compile: o.Compile = None,
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: o.ResultsDir = o.RESULTS,
    as_json: o.AsJson = False,
    *,
    sharing: o.Sharing,
    max_restarts: o.Restarts = 0,
    launching: o.Launching,
) -> None:
    """Train every combination of settings; write tables and a figure with differences paired by seed."""
    from hybridlab.cli.queues import print_preview
    from hybridlab.cli.training import runtime_layer, settings_layer
    from hybridlab.config.loading import VARY
    from hybridlab.config.schema import RunConfig
    from hybridlab.reporting.ablation import write_grid
    from hybridlab.runs.ablate import Vary, grid, make_grid, parse_seeds
    from hybridlab.runs.compose import Request, chosen_arch, compose
    from hybridlab.runs.queue import run_all
    from hybridlab.store.folders import Runs, start_facts

    def build(combination: dict[str, str], seed: int) -> RunConfig:
        name, chosen_size = chosen_arch(combination.get("arch", arch), config), combination.get("size", size)
        varied = [f"{VARY}{key}={value}" for key, value in combination.items() if key not in ("arch", "size")]
        layer = settings_layer(name, steps, seed, nearest=False, runtime=runtime_layer(track, compile))
        settings = [*(sets or []), *varied]
        asked = Request(name, chosen_size, data, start, config, layer, settings)
        return compose(asked, Runs(runs_dir))

    where = o.one_way(jobs, sharing, max_restarts, launching)
    combinations = grid([Vary.parse(text) for text in vary], sets or [], steps)
    with without_repeats():  # once for all runs of the grid
        made = make_grid(build, combinations, parse_seeds(seeds))
    if dry_run:
        print_preview(made.pending(), runs_dir, results_dir, jobs, as_json)
        return
    outcome = run_all(made.pending(), runs_dir, results_dir, where)
    if outcome.left:
        return
    table, folder = write_grid(made.definition(start_facts()["command"]), results_dir)
    if as_json:
        o.print_json(table)
    else:
        print_grid(table)
    say(f"written to {folder}")
    outcome.raise_failures(made.id)


def print_grid(table: dict[str, Any]) -> None:
    """Print a table for each metric that was measured, in lines of at most 80 characters."""
    from rich import box
    from rich.table import Table

    from hybridlab.reporting.ablation import SHORT_HEADS, heading, short_lines_of, worth_printing

    out = o.console()
    for metric in worth_printing(table):
        shown = Table(title=heading(metric), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
        shown.add_column("setting", overflow="fold", min_width=11)
        for name in SHORT_HEADS:
            shown.add_column(name, justify="right", no_wrap=name != "verdict", overflow="fold")
        for line in short_lines_of(table, metric):
            shown.add_row(*line)
        out.print(shown)
    out.print("− first: paired by seed; p with Holm's correction; open: not resolved (p ≥ 0.05).", style="dim")
