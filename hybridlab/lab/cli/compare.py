"""`hybridlab compare`: is an idea better than the baseline, at equal cost, each at its best rate, over seeds?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.lab.cli import options as lab

if TYPE_CHECKING:
    from hybridlab.lab.papers.compare import CompareRequest


@o.spread
def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM...",
            help="The baseline, then what is compared with it: [NAME=]ARCH, a file of settings (./mine.yaml), or "
            "several of them as ARCH+ARCH.",
            autocompletion=completion.archs,
        ),
    ],
    size: o.Size = None,
    data: o.DataSource = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps of the baseline.")] = None,
    equal: Annotated[str, typer.Option(help="What is equal for all arms: flops, tokens or time.")] = "flops",
    sweep: Annotated[
        str,
        typer.Option(
            metavar="lr|none|KEY=V1,V2",
            help="A setting of which each arm gets its best value for each metric, searched on tuning seeds; the grid "
            "is extended where a best value lies at its end.",
        ),
    ] = "lr",
    seeds: lab.Seeds = "5",
    tuning_seeds: Annotated[int, typer.Option(min=1, help="Seeds of the search, from 100 on, whose mean decides.")] = 1,
    metrics: lab.Metrics = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="[ARM:]A.B=C", help="Change one setting of all arms, or of one of them; repeatable."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        o.output("yaml", help="Also write the comparison to this file, which `hybridlab reproduce` repeats."),
    ] = None,
    long: lab.Long = False,
    *,
    queue: lab.Queue,
) -> None:
    """Train arms at equal cost, each at its best learning rate, over seeds, and judge which are better than the first.

    The verdicts are those of the experiments: paired by seed, with Holm's correction over all comparisons. The same
    command goes on where it was stopped.
    """
    from hybridlab.lab.cli.queues import print_found, refuse_long
    from hybridlab.lab.papers.compare import CompareRequest
    from hybridlab.lab.papers.definition import parse_seeds
    from hybridlab.lab.reporting.compared import compare_arms
    from hybridlab.training.store.results import own_alone

    refuse_long(long, queue)
    where, chosen = queue.where(), parse_seeds(seeds)
    judged, settings = metrics or ("loss",), sets or ()
    request = CompareRequest(arms, size, data, steps, equal, sweep, chosen, tuning_seeds, judged, settings)
    if queue.dry_run:
        with own_alone():
            _preview(request, queue, save)
        return
    comparison, outcome = compare_arms(request, queue.runs_dir, queue.results_dir, where, save)
    if comparison is not None:
        print_found(comparison.data, queue, long)
    outcome.raise_failures(f"compare {' '.join(arms)}")


def _preview(request: CompareRequest, queue: lab.Queue, save: Path | None) -> None:
    """Print the runs of the search and those that are reported, apart; nothing is trained."""
    from hybridlab.lab.cli.queues import print_preview
    from hybridlab.lab.papers.compare import defined, tuned
    from hybridlab.lab.papers.definition import SCALE
    from hybridlab.lab.papers.reproduce import ExperimentAtScale
    from hybridlab.lab.papers.sweep import left, sweep_runs
    from hybridlab.runs.preview import preview
    from hybridlab.runs.queue import Outcome

    results_dir = queue.results_dir
    definition = defined(request, results_dir, measuring=False)
    definition, _ = tuned(definition, queue.runs_dir, results_dir, lambda _: Outcome())
    experiment, sweep = definition.experiment, definition.experiment.sweep
    searched = {} if sweep is None else left(sweep_runs(experiment, sweep), results_dir)
    reported = ExperimentAtScale(experiment, SCALE).runs()
    if save is not None:
        definition.write(save)
    if queue.as_json:
        parts = {"search": searched, "reported": reported}
        o.print_json({name: preview(part, queue.runs_dir, results_dir, queue.jobs) for name, part in parts.items()})
        return
    out = o.console()
    if searched and sweep is not None:
        grid = ", ".join(map(str, sweep.grid))
        out.print(f"The search for {sweep.setting} ({grid}), without what extends it:")
        print_preview(searched, queue)
        several = f", at most {len(sweep.metrics)} times as many, one for each metric" if sweep.metrics[1:] else ""
        out.print(f"The reported runs{several}, at values that the search chooses:")
    print_preview(reported, queue)
