"""`hybridlab compare`: is an idea better than the baseline, at equal cost, each at its best rate, over seeds?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o

if TYPE_CHECKING:
    from hybridlab.papers.compare import CompareRequest


_Arms = Annotated[
    list[str],
    typer.Argument(
        metavar="ARM...",
        help="The baseline, then what is compared with it: [NAME=]ARCH, a file of settings (./mine.yaml), or several "
        "of them as ARCH+ARCH.",
        autocompletion=completion.archs,
    ),
]
_Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Optimizer steps of the baseline.")]
_Equal = Annotated[str, typer.Option("--equal", help="What is equal for all arms: flops, tokens or time.")]
_Sweep = Annotated[
    str,
    typer.Option(
        "--sweep",
        metavar="lr|none|KEY=V1,V2",
        help="A setting of which each arm gets its best value for each metric, searched on tuning seeds; the grid is "
        "extended where a best value lies at its end.",
    ),
]
_Seeds = Annotated[
    str,
    typer.Option(
        "--seeds",
        help="Seeds of each arm: how many (3: 0, 1, 2), 5-7, or 5,8,9. Every seed below 100 that is complete counts.",
    ),
]
_TuningSeeds = Annotated[
    int, typer.Option("--tuning-seeds", min=1, help="Seeds of the search, from 100 on, whose mean decides.")
]
_Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="What is judged: loss (the default), perplexity, inside, far, outside, or a path into a record such "
        "as tasks.chain.loss.all; NAME:lower or NAME:higher where it is not known which is better; repeatable.",
    ),
]
_Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="[ARM:]A.B=C", help="Change one setting of all arms, or of one of them; repeatable."),
]
_Save = Annotated[
    Path | None,
    typer.Option("--save", help="Also write the comparison to this file, which `hybridlab reproduce` repeats."),
]


@o.spread
def compare(
    arms: _Arms,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: _Steps = None,
    equal: _Equal = "flops",
    sweep: _Sweep = "lr",
    seeds: _Seeds = "5",
    tuning_seeds: _TuningSeeds = 1,
    metrics: _Metrics = None,
    sets: _Sets = None,
    save: _Save = None,
    jobs: o.Jobs = None,
    dry_run: o.DryRun = False,
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: o.ResultsDir = o.RESULTS,
    long: o.Long = False,
    as_json: o.AsJson = False,
    *,
    sharing: o.Sharing,
    max_restarts: o.Restarts = 0,
    launching: o.Launching,
) -> None:
    """Train arms at equal cost, each at its best learning rate, over seeds, and judge which are better than the first.

    The verdicts are those of the experiments: paired by seed, with Holm's correction over all comparisons. The same
    command goes on where it was stopped.
    """
    from hybridlab.errors import UserError
    from hybridlab.papers.compare import CompareRequest, check_save
    from hybridlab.reporting.compared import compare_arms
    from hybridlab.reporting.entry import print_entry
    from hybridlab.runs.ablate import parse_seeds
    from hybridlab.store.results import own_alone

    if long and (as_json or dry_run):
        raise UserError("--long prints the claims with all numbers; leave it out with --json and --dry-run")
    check_save(save)
    where, chosen = o.one_way(jobs, sharing, max_restarts, launching), parse_seeds(seeds)
    judged, settings = metrics or ("loss",), sets or ()
    asked = CompareRequest(arms, size, data, steps, equal, sweep, chosen, tuning_seeds, judged, settings)
    if dry_run:
        with own_alone():
            _preview(asked, runs_dir, results_dir, jobs, save, as_json)
        return
    found, outcome = compare_arms(asked, runs_dir, results_dir, where, save)
    if found is not None and as_json:
        o.print_json(found.data)
    elif found is not None:
        print_entry(found.data, o.console(), long=long)
    outcome.raise_failures(f"compare {' '.join(arms)}")


def _preview(
    asked: CompareRequest, runs_dir: Path, results_dir: Path, jobs: int | None, save: Path | None, as_json: bool
) -> None:
    """Print the runs of the search and those that are reported, apart; nothing is trained."""
    from hybridlab.cli.queues import print_preview
    from hybridlab.papers.compare import SCALE, defined, tuned
    from hybridlab.papers.reproduce import ExperimentAtScale
    from hybridlab.papers.sweep import left, sweep_runs
    from hybridlab.runs.preview import preview
    from hybridlab.runs.queue import Outcome

    made, _ = tuned(defined(asked, results_dir, measuring=False), results_dir, lambda _: Outcome())
    experiment, sweep = made.experiment, made.experiment.sweep
    searched = {} if sweep is None else left(sweep_runs(experiment, sweep), results_dir)
    reported = ExperimentAtScale(experiment, SCALE).runs()
    if save is not None:
        made.write(save)
    if as_json:
        parts = {"search": searched, "reported": reported}
        o.print_json({name: preview(part, runs_dir, results_dir, jobs) for name, part in parts.items()})
        return
    out = o.console()
    if searched and sweep is not None:
        grid = ", ".join(map(str, sweep.grid))
        out.print(f"The search for {sweep.setting} ({grid}), without what extends it:", highlight=False)
        print_preview(searched, runs_dir, results_dir, jobs, as_json)
        several = f", at most {len(sweep.metrics)} times as many, one for each metric" if sweep.metrics[1:] else ""
        out.print(f"The reported runs{several}, at values that the search chooses:", highlight=False)
    print_preview(reported, runs_dir, results_dir, jobs, as_json)
