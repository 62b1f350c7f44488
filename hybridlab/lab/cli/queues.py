"""Code that `ablate`, `compare` and `reproduce` share: what a queue of runs would train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybridlab.cli.options import console, print_json, table
from hybridlab.errors import UserError
from hybridlab.lab.cli.options import Queue
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.config.schema import RunConfig
    from hybridlab.lab.papers.reproduce import ExperimentAtScale


def announce(targets: Sequence[ExperimentAtScale], queue: dict[str, tuple[str, RunConfig]], options: Queue) -> None:
    """Say before the first run what will be trained, on what machine, and how long that takes if it is known."""
    from hybridlab.lab.papers.reproduce import places_of
    from hybridlab.runs.preview import preview
    from hybridlab.training.store.results import folders

    for target in targets:
        machine = target.experiment.machine(target.scale)
        if machine is not None:
            say(f"{target.experiment.id} at scale {target.scale}: {machine}")
        left_out = target.left_out()
        for reason in dict.fromkeys(left_out.values()):
            names = [name for name, why in left_out.items() if why == reason]
            say(f"{target.experiment.id}: not trained here, {len(names)} runs ({names[0]} …): {reason}")
    if not queue:
        return
    announce_seeds(targets, queue)
    total = preview(queue, options.runs_dir, options.results_dir, options.jobs, places_of(targets))["total"]
    if total["runs"]:
        minutes = total["minutes"]
        duration = (
            "how long is known after the first run" if minutes is None else f"about {max(1, round(minutes))} minutes"
        )
        say(f"{total['runs']} of {len(queue)} runs to do, {duration}")
        for target in targets:
            if (folders(options.results_dir)[1] / target.experiment.id / target.scale).is_dir():
                say(f"without training: `hybridlab report {target.experiment.id} --scale {target.scale}` (published)")


def announce_seeds(targets: Sequence[ExperimentAtScale], queue: dict[str, tuple[str, RunConfig]]) -> None:
    """Say which seeds of --seeds are trained, and which of them no table reads."""
    from hybridlab.lab.papers.ids import TUNING

    seeds = sorted({config.training.seed for _, config in queue.values()})
    if not seeds or not any(target.seeds for target in targets):
        return
    say(f"seeds: {', '.join(map(str, seeds))}")
    if seeds[-1] >= TUNING:
        say(f"seeds from {TUNING} on are for tuning: tables leave them out")
    for target in targets:
        earlier = target.experiment.scales[target.scale].earlier_seeds
        if unread := ", ".join(str(seed) for seed in seeds if seed in earlier):
            say(f"{target.experiment.id}: seeds of an earlier plan, which tables leave out: {unread}")


def refuse_long(long: bool, options: Queue) -> None:
    """UserError for --long where no claims are printed."""
    if long and (options.as_json or options.dry_run):
        raise UserError("--long prints the claims with all numbers; leave it out with --json and --dry-run")


def print_found(data: dict[str, Any], options: Queue, long: bool) -> None:
    """Print a table with its claims."""
    from hybridlab.lab.reporting.entry import print_entry

    if options.as_json:
        print_json(data)
    else:
        print_entry(data, console(), long=long)


def print_preview(pending: dict[str, tuple[str, RunConfig]], options: Queue, places: Mapping[str, str] = {}) -> None:
    """Print what a queue would train and what that costs; nothing is trained or written. places: see `QueuedRun`."""
    from hybridlab.runs.preview import preview

    previewed = preview(pending, options.runs_dir, options.results_dir, options.jobs, places)
    if options.as_json:
        print_json(previewed)
        return
    if not pending:
        console().print("no run is needed: nothing is trained")
        return
    grid = table(text=("run",), pad_edge=False)
    for name in ("state", "steps", "tokens", "FLOPs", "minutes", "MB"):
        grid.add_column(name, justify="right", no_wrap=True)
    for run in previewed["runs"]:
        grid.add_row(run["name"], run["state"], *_costs(run))
    total = previewed["total"]
    grid.add_section()
    grid.add_row(f"to do: {total['runs']} of {len(previewed['runs'])}", "", *_costs(total))
    out = console()
    out.print(grid)
    peak = total["disk_bytes_in_training"] / 1e6
    out.print(f"MB: of finished runs; at most {peak:,.0f} while they train.")
    out.print(f"jobs: {previewed['jobs']}; threads of each: {previewed['threads']}. {previewed['estimate']}")


def _costs(part: dict[str, Any]) -> list[str]:
    flops, minutes = part["flops"], part["minutes"]
    return [
        f"{part['steps']:,}",
        f"{part['tokens']:,}",
        "–" if flops is None else f"{flops:.3g}",
        "–" if minutes is None else f"{minutes:.1f}",
        f"{part['disk_bytes'] / 1e6:,.0f}",
    ]
