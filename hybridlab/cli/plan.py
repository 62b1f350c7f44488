"""`hybridlab plan`: what an architecture runs and costs, without training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridlab.cli import options as o
from hybridlab.messages import say

if TYPE_CHECKING:
    from rich.table import Table


def plan(
    arch: o.Arch = None,
    size: o.Size = None,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", min=1, help="Sequence length; default: that of the size.")
    ] = None,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write a drawing of the architecture to this file.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show plan, attention map, drawing, parameters, FLOPs by convention and KV-cache bytes of an architecture.

    Plans and drawings count layers and heads from 1, as the papers' tables do; settings count them from 0.
    """
    from hybridlab.accounting.drawing import DrawnVisit, as_svg, as_text
    from hybridlab.accounting.schedule_cost import whole_run
    from hybridlab.accounting.summary import summarize
    from hybridlab.config.loading import Layer, load_settings
    from hybridlab.config.resolve import resolve_options
    from hybridlab.files import write_text
    from hybridlab.plan.visit import COUNTING
    from hybridlab.runs.compose import within_budget

    file = load_settings(config) if config else Layer()
    resolved = within_budget(resolve_options(arch, size, None, file, sets or []))
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
    out.print(f"plan: {summary['plan']}", highlight=False)
    for text in _stages(summary["run"]["stages"]):
        out.print(text, highlight=False)
    if summary["run"]["grows_to"]:
        out.print(f"grows to (layers and heads are examples): {summary['run']['grows_to']}", highlight=False)
    out.print(f"({COUNTING})", highlight=False)
    out.print(as_text(drawn), highlight=False, markup=False)
    out.print(_costs(summary))
    _print_loops(summary["loops"])


def _costs(summary: dict[str, Any]) -> Table:
    """Parameters, FLOPs and bytes of one sequence, and the cost of the whole run."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=f"one sequence of {summary['seq_len']:,} tokens", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
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


def _stages(stages: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each depth of a model that gains layers."""
    for stage in stages:
        last = stage["first_step"] + stage["steps"] - 1
        yield (
            f"steps {stage['first_step']:,} to {last:,}: {stage['layers']} layers, "
            f"{stage['training_flops']:.4g} training FLOPs"
        )


def _print_loops(loops: list[dict[str, Any]]) -> None:
    """When the iterations of each loop run in decoding."""
    for number, loop in enumerate(loops, 1):
        counts = " ".join(str(count) for count in loop["triggers"])
        text = (
            f"loop {number}: chunks {loop['chunks']}, offsets {loop['offsets']}, shifts {loop['shifts']}; iterations "
        )
        o.console().print(f"{text}that run at each position, from 0 on: {counts} …", highlight=False)
