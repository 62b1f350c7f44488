"""`hybridlab plan`: what an architecture runs and costs, and what runs take on GPUs that are not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.lab.cli import completion
from hybridlab.lab.cli import options as lab
from hybridlab.messages import on_screen, say

if TYPE_CHECKING:
    from rich.table import Table

    from hybridlab.config.schema import RunConfig
    from hybridlab.lab.papers.sweep import Pending
    from hybridlab.runs.needs import Needs, Planner
    from hybridlab.runs.record import Record
    from hybridlab.training.memory import StepMemory


def plan(
    identifiers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Plan the runs of these entries instead (see `list`), at --scale.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    arch: o.Arch = None,
    size: o.Size = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Sequence length; default: that of the size.")] = None,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    svg: Annotated[Path | None, o.output(help="Write a drawing of the architecture to this file.")] = None,
    scale: lab.Scale = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Memory, communication and hours on so many GPUs. With ids: 8.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Which: h100, a100, rtx-4090, …")] = "h100",
    utilization: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of their peak FLOP/s that is assumed.")
    ] = 0.4,
    price: Annotated[float | None, typer.Option(min=0, help="Of a GPU hour, in any currency: the runs' cost.")] = None,
    runs_dir: o.RunsDir = o.RUNS,
    results_dir: lab.ResultsDir = lab.RESULTS,
    as_json: o.AsJson = False,
) -> None:
    """Show plan, attention map, drawing, parameters, FLOPs by convention and KV-cache bytes of an architecture; or what
    it, or the runs of entries, take on GPUs that are not here. Nothing is trained.

    Plans and drawings count layers and heads from 1, as the papers' tables do; settings count them from 0.
    """
    from hybridlab.config.loading import load_settings, named_preset
    from hybridlab.config.resolve import data_layers, resolve
    from hybridlab.runs.budget import within_budget
    from hybridlab.runs.needs import Planner, gpu_named
    from hybridlab.runs.record import load_record

    planner = Planner(gpus or 8, gpu_named(gpu), utilization)
    if identifiers:
        of_one = {"--arch": arch, "--size": size, "--seq-len": seq_len, "--config": config, "--set": sets, "--svg": svg}
        if wrong := [option for option, value in of_one.items() if value]:
            raise UserError(f"{wrong[0]} has no effect with {identifiers[0]}, whose file names its runs; leave it out")
        scale = scale or "paper"
        runs = _runs_of(identifiers, scale)
        records = {digest: load_record(digest, results_dir, runs_dir) for digest in runs}
        finished = {digest: record for digest, record in records.items() if record is not None}
        commands = _commands(identifiers, scale, planner.number)
        print_needs(runs, planner, gpu, as_json, price, finished, commands)
        return
    if scale is not None:
        raise UserError(f"--scale {scale}: name the entries whose runs are planned, as in `hybridlab plan sgt-table1`")
    if price is not None and gpus is None:
        raise UserError("--price is of a GPU hour, and has no effect without --gpus; add --gpus N")
    file = load_settings(config)
    arch, size = named_preset("arch", arch, file) or "vanilla", named_preset("size", size, file) or "tiny"
    text, _ = data_layers(None, file)
    resolved = within_budget(resolve(arch, size, layers=[*text, file.settings], settings=sets or []))
    if gpus is not None:
        if wrong := [option for option, value in {"--seq-len": seq_len, "--svg": svg}.items() if value]:
            raise UserError(f"{wrong[0]} has no effect with --gpus; use --set training.seq_len=N for other lengths")
        print_needs({"": (f"{resolved.arch} {resolved.size}", resolved)}, planner, gpu, as_json, price)
        return
    _print_architecture(resolved, seq_len, svg, as_json)


def _runs_of(identifiers: list[str], scale: str) -> Pending:
    """The runs of several entries, equal ones once; UserError if none of them trains any."""
    from hybridlab.lab.papers.loading import load_experiment
    from hybridlab.lab.papers.reproduce import ExperimentAtScale, one_queue

    experiments = [load_experiment(identifier) for identifier in dict.fromkeys(identifiers)]
    runs = one_queue([ExperimentAtScale(experiment, lab.pick_scale(scale, experiment)) for experiment in experiments])
    if not runs:
        raise UserError(f"{', '.join(identifiers)}: no run is needed at scale {scale}, so there is nothing to plan")
    return runs


def _measured(finished: Mapping[str, Record]) -> str:
    """How many runs, and how long they took on which machines."""
    minutes: dict[str, float] = {}
    for record in finished.values():
        threads = record.machine.get("threads")
        name = str(record.machine.get("name", "an unknown machine"))
        name += f" ({threads} thread{'s' * (threads != 1)})" if threads else ""
        minutes[name] = minutes.get(name, 0.0) + record.seconds / 60
    times = (f"{took:,.1f} minutes on {name}" for name, took in minutes.items())
    return f"{len(finished)} run{'s' * (len(finished) > 1)}, {' and '.join(times)}"


def _commands(identifiers: list[str], scale: str, gpus: int) -> dict[str, str]:
    """What starts the runs on so many GPUs: on one node, or as jobs of Slurm."""
    from hybridlab.runs.needs import PER_NODE

    start = f"hybridlab reproduce {' '.join(identifiers)} --scale {scale}"
    count = -(-gpus // PER_NODE)
    nodes = f" --nodes {count}" if count > 1 else ""
    local = {"here": start + (f" --ranks {gpus}" if gpus > 1 else "")} if gpus <= PER_NODE else {}
    return {**local, "slurm": f"{start} --launcher slurm{nodes} --gpus-per-node {-(-gpus // count)}"}


def _print_architecture(resolved: RunConfig, seq_len: int | None, svg: Path | None, as_json: bool) -> None:
    from hybridlab.files import write_text
    from hybridlab.models.ledger.drawing import DrawnVisit, as_svg, as_text
    from hybridlab.models.ledger.summary import summarize, whole_run
    from hybridlab.plan.visit import COUNTING

    summary = summarize(resolved, seq_len or resolved.training.seq_len)
    summary["run"] = whole_run(resolved)
    drawn = [DrawnVisit(**row) for row in summary["drawing"]]
    if svg is not None:
        write_text(svg, as_svg(drawn, f"{resolved.arch} {resolved.size}"))
        say(f"drawing written to {svg}")
    if as_json:
        o.print_json(summary)
        return
    out = o.console()
    out.print(f"{resolved.arch} {resolved.size}", style="bold")
    out.print(f"plan: {summary['plan']}")
    for stage in summary["run"]["stages"]:  # the depths of a model that gains layers
        steps = f"steps {stage['first_step']:,} to {stage['first_step'] + stage['steps'] - 1:,}"
        out.print(f"{steps}: {stage['layers']} layers, {stage['training_flops']:.4g} training FLOPs")
    if summary["run"]["grows_to"]:
        out.print(f"grows to (layers and heads are examples): {summary['run']['grows_to']}")
    out.print(f"({COUNTING})")
    out.print(as_text(drawn), markup=False)
    out.print(_costs(summary))
    for number, loop in enumerate(summary["loops"], 1):
        counts = " ".join(str(count) for count in loop["triggers"])
        settings = f"chunks {loop['chunks']}, offsets {loop['offsets']}, shifts {loop['shifts']}"
        out.print(f"loop {number}: {settings}; iterations that run at each position, from 0 on: {counts} …")


def _costs(summary: dict[str, Any]) -> Table:
    """Parameters, FLOPs and bytes of one sequence, and the cost of the whole run."""
    table = o.table(f"one sequence of {summary['seq_len']:,} tokens", ("",), ("",))
    for name, value in summary["parameters"].items():
        table.add_row(f"parameters, {name.replace('_', ' ')}", f"{value:,}")
    for name, cost in summary["flops"].items():
        table.add_row(f"FLOPs forward, convention {name}", f"{cost['forward']:.4g}")
    for name, share in summary["flops"]["executed"]["breakdown"].items():
        table.add_row(f"  of them {name} (executed)", f"{share:.4g}")
    if summary["kv_bytes"] is not None:
        table.add_row("KV cache, bf16 (bytes)", f"{summary['kv_bytes']:,}")
    if summary["loops"] and summary["kv_bytes"] is not None:
        full = summary["kv_bytes_at_full_resolution"]
        table.add_row("  the same loops at full resolution", f"{full:,}")
        table.add_row("  of that", f"{summary['kv_bytes'] / full:.3f}")
    run = summary["run"]
    table.add_row(f"whole run of {run['steps']:,} steps, tokens", f"{run['tokens']:,}")
    table.add_row("whole run, training FLOPs (executed)", f"{run['training_flops']:.4g}")
    if run["overhead_percent"]:
        than = "at full depth from the first step" if run["stages"] else "with the plan at the start"
        more = "more" if run["overhead_percent"] > 0 else "less"
        table.add_row(f"  {more} than {than}", f"{abs(run['overhead_percent']):.2f} %")
    return table


# ---- on GPUs that are not here ----

_ASSUMED = (
    "hours: at {share:.0%} of the peak of {number} × {gpu}, which is assumed, not measured; or as long as sending "
    "takes where that is longer (~). sent: GB from each GPU in a step, in fp32, or in bf16 for "
    "blocks that fsdp2 gathers so. GB: of one GPU, without compiling, and without what an allocator and libraries add."
)


def print_needs(
    runs: Pending,
    planner: Planner,
    gpu: str,
    as_json: bool,
    price: float | None = None,
    finished: Mapping[str, Record] | None = None,
    commands: Mapping[str, str] | None = None,
) -> None:
    """Print what runs take on the GPUs of a planner: a row for each run in their order, memory by part, and the totals.
    price: of a GPU hour. finished: hash → record of what is finished. commands: what starts them, by where."""
    counted, finished, commands = _counted(runs, planner), finished or {}, commands or {}
    gpu_hours = {digest: needs.hours * needs.way.gpus for digest, (_, needs) in zip(runs, counted, strict=True)}
    hours, left = sum(needs.hours for _, needs in counted), sum(gpu_hours[key] for key in runs if key not in finished)
    if as_json:
        rows = [
            {"name": name, "seconds_here": finished[digest].seconds if digest in finished else None, **needs.to_json()}
            for digest, (name, needs) in zip(runs, counted, strict=True)
        ]
        cost = None if price is None else left * price
        document = {"gpus": planner.number, "gpu": gpu, "utilization": planner.utilization, "runs": rows}
        document |= {"gpu_hours": sum(gpu_hours.values()), "hours": hours, "gpu_hours_left": left, "cost_left": cost}
        o.print_json({**document, "commands": dict(commands)})
        return
    out = o.console()
    out.print(_division(counted))
    out.print(_by_part(counted))
    if len(counted) > 1:
        total = sum(gpu_hours.values())
        out.print(f"{len(counted)} runs: {total:,.1f} GPU hours, {hours:,.1f} hours if one follows the other")
    if finished:
        out.print(f"there already: {_measured(finished)}; left: {left:,.1f} GPU hours")
    if price is not None:
        out.print(f"cost of what is left, at {price:g} for a GPU hour: {left * price:,.2f}")
    for place, line in commands.items():
        out.print(f"{'start them' if place == 'here' else 'start them on Slurm'}: {line}")
    out.print(_ASSUMED.format(share=planner.utilization, number=planner.number, gpu=gpu))
    if any(needs.way.recompute for _, needs in counted):
        out.print("again: activations are computed again in the backward pass (runtime.activation_checkpointing)")
    if any(needs.at_most for _, needs in counted):
        out.print("*: its map is learned by another run; counted with full attention, the most that it can be")
    if not all(needs.fits for _, needs in counted):
        out.print(
            "!: more than 90 % of the GPU's memory in every way of dividing it; take a larger GPU, or more of them"
        )


def _counted(runs: Pending, planner: Planner) -> list[tuple[str, Needs]]:
    """What each run takes, with a bar: every structure and every way of dividing it is counted for a second or more."""
    from rich.progress import MofNCompleteColumn

    from hybridlab.bars import WithBar

    counted = []
    with WithBar(on_screen(), 16, MofNCompleteColumn()) as display:
        task = display.bar.add_task("counting memory, runs", total=len(runs), note="") if display.bar else None
        for name, config in runs.values():
            counted.append((name, planner.needs(config)))
            if display.bar and task is not None:
                display.bar.advance(task)
    return counted


def _division(counted: list[tuple[str, Needs]]) -> Table:
    table = o.table(text=("run",), pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("tokens", "FLOPs", "GPUs×rows×passes", "way", "GB", "sent", "hours"):
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=True)
    for name, needs in counted:
        way = needs.way
        table.add_row(
            name + ("*" if needs.at_most else ""),
            f"{needs.tokens / 1e9:,.2f}B",
            f"{needs.flops:.2e}",
            f"{way.gpus}×{way.rows}×{way.passes}",
            way.sharding + (" again" if way.recompute else ""),
            f"{needs.memory.total / 1e9:.1f}" + ("" if needs.fits else "!"),
            f"{needs.sent / 1e9:.1f}" + ("~" if needs.seconds_sent > needs.seconds_computed else ""),
            f"{needs.hours:,.1f}",
        )
    return table


def _by_part(counted: list[tuple[str, Needs]]) -> Table:
    """Memory by part, in GB; runs that need the same stand in one row."""
    names: dict[StepMemory, list[str]] = {}
    for name, needs in counted:
        names.setdefault(needs.memory, []).append(name)
    parts = [field.name for field in fields(counted[0][1].memory)]
    table = o.table(text=("GB of a GPU in",), numbers=(*parts, "total"), pad_edge=False, padding=(0, 1, 0, 0))
    for memory, same in names.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        sizes = [getattr(memory, part) for part in parts]
        table.add_row(same[0] + more, *[f"{size / 1e9:.2f}" for size in (*sizes, memory.total)])
    return table
