"""`hybridlab list`: the experiments and what has been run of them; the architectures; the sizes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o


def list_entries(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD", help="Only what has each WORD in its id, paper or title; * and ? match anything."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only tables, or only figures.", autocompletion=completion.kinds)
    ] = None,
    paper: Annotated[
        str | None, typer.Option("--paper", help="Only experiments of this paper.", autocompletion=completion.papers)
    ] = None,
    done: Annotated[
        bool | None, typer.Option("--done/--not-done", help="Only what is done at some scale, or at none.")
    ] = None,
    archs: Annotated[bool, typer.Option("--archs", help="List the architectures, for --arch.")] = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="List the sizes, for --size, with their parameters.")] = False,
    scales: Annotated[bool, typer.Option("--scales", help="List the scales, with what each can show.")] = False,
    results_dir: o.ResultsDir = o.RESULTS,
    as_json: o.AsJson = False,
) -> None:
    """List experiments, with their scales and what they need; or architectures, sizes or scales.

    The column done names the scales at which every run of an experiment has been recorded.
    """
    from hybridlab.errors import UserError
    from hybridlab.papers.ids import matches

    lists = {"archs": (archs, _archs), "sizes": (sizes, _sizes), "scales": (scales, _scales)}
    chosen = [what for what, (asked, _) in lists.items() if asked]
    if len(chosen) > 1:
        raise UserError(f"--{chosen[0]} and --{chosen[1]} are two lists; ask for one of them at a time")
    for what in chosen:
        given = [name for name in ("kind", "paper", "done", "results_dir") if _given(context, name)]
        if given:
            raise UserError(f"--{given[0].replace('_', '-')} has no effect on --{what}; leave it out")
        rows = lists[what][1]()
        _show(what, [row for row in rows if matches(words or (), (row["name"], row["summary"]))], as_json)
        return
    from hybridlab.papers.listing import Filter, entries

    found = entries(results_dir, Filter(tuple(words or ()), kind, paper, done))
    _show("entries", found, as_json, ("id", "title", "needs", "scales", "done"))


def _given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _archs() -> list[dict[str, Any]]:
    from hybridlab.config.presets import summaries

    return [{"name": name, "summary": summary} for name, summary in summaries("arch").items()]


def _sizes() -> list[dict[str, Any]]:
    """parameters: the exact number of scalars of the plain stack."""
    from hybridlab.accounting.parameters import count_parameters
    from hybridlab.config.presets import summaries
    from hybridlab.config.resolve import resolve

    return [
        {"name": name, "parameters": count_parameters(resolve("vanilla", name).shape).total, "summary": summary}
        for name, summary in summaries("size").items()
    ]


def _scales() -> list[dict[str, Any]]:
    from hybridlab.papers.scales import SAYS

    return [{"name": name, "summary": summary} for name, summary in SAYS.items()]


def _show(what: str, rows: list[dict[str, Any]], as_json: bool, columns: tuple[str, ...] | None = None) -> None:
    """A table of some columns, by default all of the rows' keys; or all of it as JSON."""
    if as_json:
        o.print_json({what: rows})
        return
    if not rows:
        o.say("list: nothing matches; `hybridlab list` without words and filters shows all")
        return
    from rich import box
    from rich.table import Table

    columns = columns or tuple(rows[0])
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, no_wrap=name in ("id", "name"), justify="right" if name == "parameters" else "left")
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    o.console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
