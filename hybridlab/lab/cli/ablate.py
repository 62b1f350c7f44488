"""`hybridlab ablate`: train a grid of settings with several seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.lab.cli import options as lab
from hybridlab.messages import without_repeats


@o.spread
def ablate(
    vary: Annotated[
        list[str], typer.Option(metavar="KEY=V1,V2", callback=o.each_once, help="A setting and its values; repeatable.")
    ],
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seeds: lab.Seeds = "3",
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start every run from this one (name, folder or hash).", autocompletion=completion.runs
        ),
    ] = None,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    metrics: lab.Metrics = None,
    track: o.Track = None,
    compile: o.Compile = None,
    long: lab.Long = False,
    *,
    queue: lab.Queue,
) -> None:
    """Train every combination of settings, and judge which are better than the first; tables with differences paired by
    seed."""
    from hybridlab.cli.training import runtime_layer, settings_layer
    from hybridlab.config.loading import VARY, merge
    from hybridlab.config.schema import RunConfig
    from hybridlab.lab.cli.queues import print_found, print_preview, refuse_long
    from hybridlab.lab.papers.ablate import Combination, Vary, defined, grid
    from hybridlab.lab.papers.definition import SCALE, parse_seeds
    from hybridlab.lab.papers.reproduce import ExperimentAtScale
    from hybridlab.lab.reporting.compared import train_defined
    from hybridlab.runs.compose import Request, chosen_arch, compose
    from hybridlab.training.store.folders import Runs, start_facts

    def build(combination: Combination, seed: int) -> RunConfig:
        name, chosen_size = chosen_arch(combination.get("arch", arch), config), combination.get("size", size)
        varied = [f"{VARY}{key}={value}" for key, value in combination.items() if key not in ("arch", "size")]
        layer = merge(runtime_layer(track, compile), settings_layer(name, steps, seed, nearest=False))
        request = Request(name, chosen_size, data, start, config, layer, [*(sets or []), *varied])
        return compose(request, runs)

    refuse_long(long, queue)
    where, runs = queue.where(), Runs(queue.runs_dir)
    combinations = grid([Vary.parse(text) for text in vary], sets or [], steps, arch, size)
    with without_repeats():  # once for all runs of the grid
        definition = defined(build, combinations, parse_seeds(seeds), metrics or (), start_facts()["command"])
    if queue.dry_run:
        print_preview(ExperimentAtScale(definition.experiment, SCALE).runs(), queue, runs.places)
        return
    comparison, outcome = train_defined(definition, queue.runs_dir, queue.results_dir, where, runs.places)
    if comparison is not None:
        print_found(comparison.data, queue, long)
    outcome.raise_failures(definition.experiment.id)
