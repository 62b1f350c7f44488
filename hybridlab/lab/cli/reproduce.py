"""`hybridlab reproduce`: make tables and figures of the papers, from training to the written file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.lab.cli import completion
from hybridlab.lab.cli import options as lab
from hybridlab.messages import say, without_repeats

if TYPE_CHECKING:
    from hybridlab.lab.papers.experiment import Experiment, Sweep
    from hybridlab.lab.papers.reproduce import ExperimentAtScale
    from hybridlab.lab.papers.sweep import Swept, Try
    from hybridlab.runs.cluster import Cluster
    from hybridlab.training.ranks import Ranks


@o.spread
def reproduce(
    identifiers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="Ids that `hybridlab list` shows or that `ablate` or `compare` wrote (ablate-…), or files of your own "
            "(./mine.yaml); several are one queue of runs.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    scale: lab.Scale = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Other seeds than the file's: how many (3: 0, 1, 2), 5-7, or 5,8,9. Tables count every seed below 100 "
            "that is complete."
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Train the grid of the experiment's `sweep` on its tuning seed, and nothing else."
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Train for so long (8h, 90m, 1h30m) what undecided claims wait for at scale desk, the cheapest claims "
            "first; without ids, of all experiments.",
        ),
    ] = None,
    model: lab.StudiedModel = None,
    compile: o.Compile = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the task files that experiments name as root:PATH; default: HYBRIDLAB_DATA_ROOT. What is "
            "not there is not trained.",
        ),
    ] = None,
    all_columns: lab.AllColumns = False,
    *,
    queue: lab.Queue,
) -> None:
    """Make tables and figures, with all runs that they need. Finished runs are skipped, unfinished ones are resumed.

    What is published is not read but compared with: all is made of your own runs and records. Without --scale it is the
    cheapest that an experiment has.
    """
    from hybridlab.data.files import use_data_root
    from hybridlab.training.store.results import own_alone

    use_data_root(data_root)
    if until is not None:
        others = {"--seeds": seeds, "--sweep": sweep, "--model": model, "--all-columns": all_columns}
        _until(until, identifiers or [], scale, others, queue, compile)
        return
    if not identifiers:
        raise UserError("reproduce needs an ID, such as consa-table1; `hybridlab list` shows them, and --until 8h none")
    where = queue.where()
    targets = _at_scale(lab.experiments_of(identifiers, queue.results_dir, model), scale, seeds, compile)
    if sweep and (seeds is not None or len(targets) > 1):
        raise UserError("--sweep takes one id and no --seeds: a sweep has a tuning seed of its own")
    with own_alone(), without_repeats():  # masks that several runs start from warn once
        if sweep:
            _sweep(targets[0], queue, where)
        else:
            _reproduce(targets, queue, all_columns, where)


def _at_scale(
    experiments: list[Experiment], scale: str | None, seeds: str | None, compile: bool | None
) -> list[ExperimentAtScale]:
    """The experiments at this scale or, without one, each at its cheapest."""
    from hybridlab.lab.papers.definition import parse_seeds
    from hybridlab.lab.papers.reproduce import ExperimentAtScale

    chosen = None if seeds is None else parse_seeds(seeds)
    scales = [lab.pick_scale(scale or entry.available_scales()[0], entry) for entry in experiments]
    return [ExperimentAtScale(entry, at, chosen, compile) for entry, at in zip(experiments, scales, strict=True)]


def _until(
    until: str,
    identifiers: list[str],
    scale: str | None,
    others: dict[str, Any],
    queue: lab.Queue,
    compile: bool | None,
) -> None:
    """`--until`. others: options that have no effect on it."""
    from hybridlab.lab.cli.evidence import reproduce_until
    from hybridlab.lab.papers.ids import SCALES
    from hybridlab.lab.papers.loading import all_experiments
    from hybridlab.lab.papers.obstacles import DESK

    for option, value in others.items():
        if value:
            raise UserError(
                f"{option} has no effect on --until, which trains what plans ask for; leave one of them out"
            )
    if scale is not None and scale not in SCALES:
        raise UserError(f"--scale {scale}: --until trains at one of the scales {', '.join(SCALES)}")
    experiments = lab.experiments_of(identifiers, queue.results_dir)
    for experiment in experiments:
        lab.pick_scale(scale or DESK, experiment)
    with without_repeats():
        reproduce_until(until, experiments or all_experiments(), scale or DESK, queue, compile)


def _reproduce(
    targets: list[ExperimentAtScale], options: lab.Queue, all_columns: bool, where: int | Ranks | Cluster | None
) -> None:
    """Train what is missing in one queue, and write each entry as soon as its runs are there."""
    from hybridlab.lab.cli.queues import announce, announce_seeds, print_preview
    from hybridlab.lab.papers.reproduce import one_queue, places_of, run_cells
    from hybridlab.lab.reporting.entry import print_entry, write_entry
    from hybridlab.lab.reporting.published import about

    queue, results_dir = one_queue(targets), options.results_dir
    if options.dry_run:
        announce_seeds(targets, queue)
        print_preview(queue, options, places_of(targets))
        for target in targets:
            if target.experiment.benchmark is not None:
                say(f"{target.experiment.id}: a benchmark, which trains nothing; how long it takes is not known")
            for study in target.studies().values():
                say(f"{target.experiment.id}: {study.name} measures {study.study.model} and trains nothing")
        return
    announce(targets, queue, options)
    documents: list[dict[str, Any]] = []

    def write(target: ExperimentAtScale) -> None:
        data, folder = write_entry(target.experiment, target.scale, results_dir, all_columns=all_columns)
        documents.append(data)
        if not options.as_json:
            print_entry(data, o.console(), all_columns)
        say(about(data, results_dir))
        say(f"written to {folder}")

    outcome = run_cells(targets, options.runs_dir, results_dir, where, write)
    if outcome.left:
        return
    if options.as_json:
        o.print_json(documents[0] if len(targets) == 1 else documents)
    outcome.raise_failures(", ".join(target.experiment.id for target in targets))


# ---- `--sweep`: the grid of an experiment on its tuning seed ----


def _sweep(target: ExperimentAtScale, options: lab.Queue, where: int | Ranks | Cluster | None) -> None:
    """Train what is missing of the sweep, and print what it found; with --dry-run, only what it would train."""
    from hybridlab.lab.cli.queues import print_preview
    from hybridlab.lab.papers.sweep import advice, left, run_sweep, sweep_data, sweep_of, sweep_runs, swept_cells

    experiment, compile, results_dir = target.experiment, target.compile, options.results_dir
    sweep = sweep_of(experiment, target.scale)
    if options.dry_run:
        print_preview(left(sweep_runs(experiment, sweep, compile), results_dir), options)
        return
    outcome = run_sweep(experiment, sweep.scale, options.runs_dir, results_dir, where, compile)
    if outcome.left:
        return
    cells = swept_cells(experiment, sweep, results_dir)
    if options.as_json:
        o.print_json(sweep_data(experiment, sweep, results_dir))
    else:
        for metric in sweep.metrics:
            _print_sweep(experiment, sweep, metric, [swept for swept in cells if swept.metric == metric])
        o.console().print(
            "[figure]: the chosen value, which the reported runs have; *: the best, >: the best, with no value beyond "
            "it; –: not run."
        )
    if (sentence := advice(cells)) is not None:
        say(f"{experiment.id}: {sentence}")
    outcome.raise_failures(experiment.id)


def _print_sweep(experiment: Experiment, sweep: Sweep, metric: str, cells: list[Swept]) -> None:
    """A line for each cell, with a column for each value. The chosen value has brackets around its figure."""
    seeds = ", ".join(map(str, sweep.seeds))
    out = o.console()
    out.print(f"{experiment.id}, scale {sweep.scale}: {metric} by {sweep.setting} (seed {seeds}, not reported)")
    table = o.table(pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", no_wrap=True)
    for value in sweep.grid:
        table.add_column(str(value), justify="right", no_wrap=True)
    for swept in cells:
        table.add_row(swept.cell, *(_tried_in_words(tried, swept) for tried in swept.values))
    out.print(table)


def _tried_in_words(tried: Try, swept: Swept) -> str:
    text = tried.in_words if tried.measured is None else f"{tried.measured:.3f}"
    if tried.value == swept.chosen:
        text = f"[{text}]"
    if tried.value == swept.best:
        text += ">" if swept.at_edge else "*"
    return text
