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


def announce(all_wanted: Sequence[ExperimentAtScale], queue: dict[str, tuple[str, RunConfig]], asked: Queue) -> None:
    """Say before the first run what will be trained, on what machine, and how long that takes if it is known."""
    from hybridlab.lab.papers.reproduce import places_of
    from hybridlab.runs.preview import preview
    from hybridlab.training.store.results import folders

    for wanted in all_wanted:
        machine = wanted.experiment.machine(wanted.scale)
        if machine is not None:
            say(f"{wanted.experiment.id} at scale {wanted.scale}: {machine}")
        left_out = wanted.left_out()
        for reason in dict.fromkeys(left_out.values()):
            names = [name for name, why in left_out.items() if why == reason]
            say(f"{wanted.experiment.id}: not trained here, {len(names)} runs ({names[0]} …): {reason}")
    if not queue:
        return
    announce_seeds(all_wanted, queue)
    total = preview(queue, asked.runs_dir, asked.results_dir, asked.jobs, places_of(all_wanted))["total"]
    if total["runs"]:
        minutes = total["minutes"]
        known = (
            "how long is known after the first run" if minutes is None else f"about {max(1, round(minutes))} minutes"
        )
        say(f"{total['runs']} of {len(queue)} runs to do, {known}")
        for wanted in all_wanted:
            if (folders(asked.results_dir)[1] / wanted.experiment.id / wanted.scale).is_dir():
                say(f"without training: `hybridlab report {wanted.experiment.id} --scale {wanted.scale}` (published)")


def announce_seeds(all_wanted: Sequence[ExperimentAtScale], queue: dict[str, tuple[str, RunConfig]]) -> None:
    """Say which seeds of --seeds are trained, and which of them no table reads."""
    from hybridlab.lab.papers.ids import TUNING

    seeds = sorted({config.training.seed for _, config in queue.values()})
    if not seeds or not any(wanted.seeds for wanted in all_wanted):
        return
    say(f"seeds: {', '.join(map(str, seeds))}")
    if seeds[-1] >= TUNING:
        say(f"seeds from {TUNING} on are for tuning: tables leave them out")
    for wanted in all_wanted:
        earlier = wanted.experiment.scales[wanted.scale].earlier_seeds
        if unread := ", ".join(str(seed) for seed in seeds if seed in earlier):
            say(f"{wanted.experiment.id}: seeds of an earlier plan, which tables leave out: {unread}")


def refuse_long(long: bool, asked: Queue) -> None:
    """UserError for --long where no claims are printed."""
    if long and (asked.as_json or asked.dry_run):
        raise UserError("--long prints the claims with all numbers; leave it out with --json and --dry-run")


def print_found(data: dict[str, Any], asked: Queue, long: bool) -> None:
    """Print a table with its claims."""
    from hybridlab.lab.reporting.entry import print_entry

    if asked.as_json:
        print_json(data)
    else:
        print_entry(data, console(), long=long)


def print_preview(pending: dict[str, tuple[str, RunConfig]], asked: Queue, places: Mapping[str, str] = {}) -> None:
    """Print what a queue would train and what that costs; nothing is trained or written. places: see `QueuedRun`."""
    from hybridlab.runs.preview import preview

    found = preview(pending, asked.runs_dir, asked.results_dir, asked.jobs, places)
    if asked.as_json:
        print_json(found)
        return
    if not pending:
        console().print("no run is needed: nothing is trained")
        return
    shown = table(text=("run",), pad_edge=False)
    for name in ("state", "steps", "tokens", "FLOPs", "minutes", "MB"):
        shown.add_column(name, justify="right", no_wrap=True)
    for run in found["runs"]:
        shown.add_row(run["name"], run["state"], *_costs(run))
    total = found["total"]
    shown.add_section()
    shown.add_row(f"to do: {total['runs']} of {len(found['runs'])}", "", *_costs(total))
    out = console()
    out.print(shown)
    peak = total["disk_bytes_in_training"] / 1e6
    out.print(f"MB: of finished runs; at most {peak:,.0f} while they train.")
    out.print(f"jobs: {found['jobs']}; threads of each: {found['threads']}. {found['estimate']}")


def _costs(part: dict[str, Any]) -> list[str]:
    flops, minutes = part["flops"], part["minutes"]
    return [
        f"{part['steps']:,}",
        f"{part['tokens']:,}",
        "–" if flops is None else f"{flops:.3g}",
        "–" if minutes is None else f"{minutes:.1f}",
        f"{part['disk_bytes'] / 1e6:,.0f}",
    ]
