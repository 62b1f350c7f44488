"""`hybridlab ablate`: train a grid of settings with several seeds."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o


def ablate(
    vary: Annotated[
        list[str], typer.Option("--vary", metavar="KEY=V1,V2", help="A setting and its values; repeatable.")
    ],
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Number of runs of each combination, with seeds 0, 1, …")
    ] = 3,
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
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: o.ResultsDir = o.RESULTS,
    as_json: o.AsJson = False,
) -> None:
    """Train every combination of settings; print means, standard errors and differences paired by seed."""
    from hybridlab.cli.training import settings_layer
    from hybridlab.config.schema import RunConfig
    from hybridlab.errors import RunFailed
    from hybridlab.runs.ablate import Vary, grid, run_grid
    from hybridlab.runs.compose import chosen_arch, compose
    from hybridlab.training.folders import Runs

    told = cache(o.say)  # once for all runs of the grid

    def build(combination: dict[str, str], seed: int) -> RunConfig:
        name, chosen_size = chosen_arch(combination.get("arch", arch), config), combination.get("size", size)
        varied = [f"{key}={value}" for key, value in combination.items() if key not in ("arch", "size")]
        layer = settings_layer(name, steps, seed, nearest=False)
        settings = [*(sets or []), *varied]
        return compose(name, chosen_size, data, start, Runs(runs_dir), config, layer, settings, say=told)

    combinations = grid([Vary.parse(text) for text in vary])
    table, folder, outcome = run_grid(build, combinations, seeds, runs_dir, results_dir, o.say)
    if as_json:
        o.print_json(table)
    else:
        _print(table)
    o.say(f"written to {folder}")
    if outcome.failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in outcome.failed.items())
        raise RunFailed(f"{len(outcome.failed)} runs failed: {reasons}")


def _print(table: dict[str, Any]) -> None:
    """Print a table per metric that was measured."""
    from rich import box
    from rich.table import Table

    out = o.console()
    for metric, digits in (("loss", 4), ("perplexity", 2), ("inside", 3), ("outside", 3), ("sparsity", 3)):
        if all(row["metrics"][metric]["mean"] is None for row in table["rows"]):
            continue
        shown = Table(title=f"{metric}, {table['seeds']} seeds", box=box.SIMPLE_HEAD, title_justify="left")
        shown.add_column("setting", overflow="fold")
        for name in ("mean ± s.e.", "n", "− first, paired"):
            shown.add_column(name, justify="right", no_wrap=True)
        for row in table["rows"]:
            numbers = row["metrics"][metric]
            mean = _pair(numbers["mean"], numbers["stderr"], digits)
            difference = _pair(numbers["difference"], numbers["difference_stderr"], digits, "+")
            shown.add_row(row["name"], mean, str(numbers["n"]), difference)
        out.print(shown)


def _pair(value: float | None, error: float | None, digits: int, sign: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:{sign}.{digits}f} ± " + ("–" if error is None else f"{error:.{digits}f}")
