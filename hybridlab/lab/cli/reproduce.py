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
    wanted = _at_scale(lab.experiments_of(identifiers, queue.results_dir, model), scale, seeds, compile)
    if sweep and (seeds is not None or len(wanted) > 1):
        raise UserError("--sweep takes one id and no --seeds: a sweep has a tuning seed of its own")
    with own_alone(), without_repeats():  # masks that several runs start from warn once
        if sweep:
            _sweep(wanted[0], queue, where)
        else:
            _reproduce(wanted, queue, all_columns, where)


def _at_scale(
    experiments: list[Experiment], scale: str | None, seeds: str | None, compile: bool | None
) -> list[ExperimentAtScale]:
    """The experiments at this scale or, without one, each at its cheapest."""
    from hybridlab.lab.papers.definition import parse_seeds
    from hybridlab.lab.papers.reproduce import ExperimentAtScale

    chosen = None if seeds is None else parse_seeds(seeds)
    scales = [lab.pick_scale(scale or one.available_scales()[0], one) for one in experiments]
    return [ExperimentAtScale(one, at, chosen, compile) for one, at in zip(experiments, scales, strict=True)]


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
    named = lab.experiments_of(identifiers, queue.results_dir)
    for one in named:
        lab.pick_scale(scale or DESK, one)
    with without_repeats():
        reproduce_until(until, named or all_experiments(), scale or DESK, queue, compile)


def _reproduce(
    all_wanted: list[ExperimentAtScale], asked: lab.Queue, all_columns: bool, where: int | Ranks | Cluster | None
) -> None:
    """Train what is missing in one queue, and write each entry as soon as its runs are there."""
    from hybridlab.lab.cli.queues import announce, announce_seeds, print_preview
    from hybridlab.lab.papers.reproduce import one_queue, places_of, run_cells
    from hybridlab.lab.reporting.entry import print_entry, write_entry
    from hybridlab.lab.reporting.published import about

    queue, results_dir = one_queue(all_wanted), asked.results_dir
    if asked.dry_run:
        announce_seeds(all_wanted, queue)
        print_preview(queue, asked, places_of(all_wanted))
        for wanted in all_wanted:
            if wanted.experiment.benchmark is not None:
                say(f"{wanted.experiment.id}: a benchmark, which trains nothing; how long it takes is not known")
            for study in wanted.studies().values():
                say(f"{wanted.experiment.id}: {study.name} measures {study.study.model} and trains nothing")
        return
    announce(all_wanted, queue, asked)
    made: list[dict[str, Any]] = []

    def write(wanted: ExperimentAtScale) -> None:
        data, folder = write_entry(wanted.experiment, wanted.scale, results_dir, all_columns=all_columns)
        made.append(data)
        if not asked.as_json:
            print_entry(data, o.console(), all_columns)
        say(about(data, results_dir))
        say(f"written to {folder}")

    outcome = run_cells(all_wanted, asked.runs_dir, results_dir, where, write)
    if outcome.left:
        return
    if asked.as_json:
        o.print_json(made[0] if len(all_wanted) == 1 else made)
    outcome.raise_failures(", ".join(wanted.experiment.id for wanted in all_wanted))


# ---- `--sweep`: the grid of an experiment on its tuning seed ----


def _sweep(wanted: ExperimentAtScale, asked: lab.Queue, where: int | Ranks | Cluster | None) -> None:
    """Train what is missing of the sweep, and print what it found; with --dry-run, only what it would train."""
    from hybridlab.lab.cli.queues import print_preview
    from hybridlab.lab.papers.sweep import advice, left, run_sweep, sweep_data, sweep_of, sweep_runs, swept_cells

    experiment, compile, results_dir = wanted.experiment, wanted.compile, asked.results_dir
    sweep = sweep_of(experiment, wanted.scale)
    if asked.dry_run:
        print_preview(left(sweep_runs(experiment, sweep, compile), results_dir), asked)
        return
    outcome = run_sweep(experiment, sweep.scale, asked.runs_dir, results_dir, where, compile)
    if outcome.left:
        return
    cells = swept_cells(experiment, sweep, results_dir)
    if asked.as_json:
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
        table.add_row(swept.cell, *(_tried_in_words(one, swept) for one in swept.values))
    out.print(table)


def _tried_in_words(one: Try, swept: Swept) -> str:
    text = one.in_words if one.measured is None else f"{one.measured:.3f}"
    if one.value == swept.chosen:
        text = f"[{text}]"
    if one.value == swept.best:
        text += ">" if swept.at_edge else "*"
    return text
