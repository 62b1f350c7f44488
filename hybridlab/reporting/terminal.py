"""Tables, figures and claims on the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridlab.papers.experiment import Column, Experiment
from hybridlab.reporting.entry_data import caption, shown
from hybridlab.reporting.table_cells import cell_text


def print_head(data: dict[str, Any], console: Console) -> None:
    """Id, title and the source of the numbers."""
    console.print(Text(f"{data['id']}: {data['title']}", style="bold"))
    console.print(caption(data), highlight=False)


def print_table(table: dict[str, Any], experiment: Experiment, console: Console) -> None:
    """Panels that are not wider than the console, then the claims with their evidence."""
    print_head(table, console)
    for panel, title in experiment.panels.items():
        columns = [column for column in experiment.columns if column.panel == panel]
        for part in _fitting(columns, table, console.width):
            console.print(_panel(part, title, table))
    print_claims(table["claims"], console)


def print_figure(data: dict[str, Any], console: Console) -> None:
    """A line for each series, drawn or not, then the claims with their evidence."""
    print_head(data, console)
    for panel in data["panels"]:
        for series in panel["series"]:
            name = ", ".join(part for part in (panel["title"], series["label"]) if part)
            console.print(f"  {name}: {'drawn' if series['data'] else '– (not run)'}", highlight=False)
    print_claims(data["claims"], console)


def print_claims(claims: list[dict[str, Any]], console: Console) -> None:
    """Each claim, whether it holds here, and the evidence."""
    for claim in claims:
        style = {"holds": "green", "fails": "red"}.get(claim["verdict"], "yellow")
        outcome = f"{shown(claim):>5}  "
        console.print(Text.assemble((outcome, style), f"{claim['text']} [{claim['source']}]"))
        console.print(f"       {claim['evidence']}", style="dim", highlight=False)


def _fitting(columns: list[Column], table: dict[str, Any], width: int) -> list[list[Column]]:
    """Columns in groups, each narrow enough to stand beside the row names in lines of so many characters."""
    names = max(len(row["short"]) for row in table["rows"]) + 2
    groups: list[list[Column]] = []
    room = 0
    for column in columns:
        cells = [row["cells"][column.name] for row in table["rows"]]
        widths = (max(len(cell_text(cell, column)), len(cell["verdict"] or "")) for cell in cells)
        needed = max(len(column.title), *widths) + 3
        if not groups or needed > room:
            groups.append([])
            room = width - names
        groups[-1].append(column)
        room -= needed
    return groups


def _panel(columns: list[Column], title: str, table: dict[str, Any]) -> Table:
    panel = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="italic", pad_edge=False)
    panel.add_column("", no_wrap=True)
    for column in columns:
        panel.add_column(column.title, justify="right", no_wrap=True)
    for row in table["rows"]:
        cells = [row["cells"][column.name] for column in columns]
        panel.add_row(row["short"], *(cell_text(cell, column) for cell, column in zip(cells, columns, strict=True)))
        verdicts = [cell["verdict"] or "" for cell in cells]
        # A row without comparisons needs no line for verdicts.
        if any(verdict not in ("", "not run") for verdict in verdicts):
            panel.add_row("", *(Text(verdict, style=_style(verdict)) for verdict in verdicts))
    return panel


def _style(verdict: str) -> str:
    return {"agrees": "green", "same direction": "cyan", "differs": "red"}.get(verdict, "dim")
