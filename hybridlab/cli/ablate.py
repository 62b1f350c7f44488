"""`hybridlab ablate`: a grid of settings over seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import options as o


def ablate(
    vary: Annotated[
        list[str], typer.Option("--vary", metavar="KEY=V1,V2", help="A setting and its values; repeatable.")
    ],
    arch: o.Arch = "vanilla",
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each combination, with seeds 0, 1, …")] = 3,
    start: Annotated[str | None, typer.Option("--from", help="Start every run from this one (folder or hash).")] = None,
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
    from hybridlab.reproduction.ablate import Vary, grid, run_grid
    from hybridlab.reproduction.compose import compose
    from hybridlab.training.folders import Runs

    def build(combination: dict[str, str], seed: int) -> RunConfig:
        chosen = {"arch": arch, "size": size, **{k: v for k, v in combination.items() if k in ("arch", "size")}}
        varied = [f"{key}={value}" for key, value in combination.items() if key not in chosen]
        layer = settings_layer(chosen["arch"], steps, seed, nearest=False)
        parts = (chosen["arch"], chosen["size"], data, start, Runs(runs_dir), config, layer)
        return compose(*parts, [*(sets or []), *varied])

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


def _print(table: dict) -> None:
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
            m = row["metrics"][metric]
            both = (_pair(m["mean"], m["stderr"], digits), _pair(m["difference"], m["difference_stderr"], digits, "+"))
            shown.add_row(row["name"], both[0], str(m["n"]), both[1])
        out.print(shown)


def _pair(value: float | None, error: float | None, digits: int, sign: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:{sign}.{digits}f} ± " + ("–" if error is None else f"{error:.{digits}f}")
