"""One entry of a paper, table or figure, written and printed on the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridlab.lab.papers.experiment import Column, Experiment
from hybridlab.lab.papers.plans import history, register
from hybridlab.lab.reporting.claims import print_claims
from hybridlab.lab.reporting.entry_data import Also, caption, is_table
from hybridlab.lab.reporting.figures import write_figure
from hybridlab.lab.reporting.latex import packed
from hybridlab.lab.reporting.table import Part, below, error_text, parts, short_text, tally_text, write_table

_STYLES = {"agrees": "green", "same direction": "cyan", "differs": "red", "opposite direction": "red"}
"""Of verdicts; of any other, dim."""


def write_entry(
    experiment: Experiment,
    scale: str,
    results_dir: Path,
    runs_dir: Path | None = None,
    all_columns: bool = False,
    also: Also = (),
) -> tuple[dict[str, Any], Path]:
    """Its files under results_dir/<id>/<scale>/; returns its data and that folder.

    runs_dir: see `load_record`. all_columns: see `write_table`. also: endings of further files, .csv, .pdf and .tex. A
    plan that has changed since runs were started is added to its history first, which gives the change a date.
    """
    if history(experiment.id, scale, results_dir):
        register(experiment, scale, results_dir)
    if experiment.plot is None:
        return write_table(experiment, scale, results_dir, runs_dir, all_columns, also)
    return write_figure(experiment, scale, results_dir, runs_dir, also)


def print_entry(data: dict[str, Any], console: Console, all_columns: bool = False, long: bool = False) -> None:
    """A table in panels that are not wider than the console; of a figure a line for each series, drawn or not. Before
    it the source of the numbers, and how many printed ones come out; then the claims.

    all_columns: also the columns that nothing here can measure. long: the claims in their long form.
    """
    console.print(Text(f"{data['id']}: {data['title']}", style="bold"))
    console.print(caption(data), highlight=False)
    if tally_text(data):
        console.print(tally_text(data), highlight=False)
    if is_table(data):
        _print_table(data, console, all_columns)
    else:
        for panel in data["panels"]:
            for series in panel["series"]:
                name = ", ".join(part for part in (panel["title"], series["label"]) if part)
                console.print(f"  {name}: {'drawn' if series['data'] else '– (not run)'}", highlight=False)
    print_claims(data, console, long)


def _print_table(table: dict[str, Any], console: Console, all_columns: bool) -> None:
    for part in parts(table, all_columns):
        for i, columns in enumerate(_fitting(part, console.width)):
            if part.title:
                title = "The same, further columns" if i else part.title
                console.print(Text(title, style="italic"), highlight=False)
            console.print(_panel(replace(part, columns=columns)))
    for line in below(table, all_columns):
        console.print(line, style="dim", highlight=False)


def _fitting(part: Part, width: int) -> list[list[Column]]:
    """Columns in groups, each narrow enough to stand beside the row names in lines of so many characters."""
    # Longer names are folded, so that no number is cut off.
    names = min(max((len(part.row_name(row, "short")) + 2 for row in part.rows), default=0), width // 2)
    needed = []
    for column in part.columns:
        cells = [row["cells"][column.name] for row in part.rows]
        needed.append(max([len(column.title), *(len(line) for cell in cells for line in _lines(cell, column))]) + 3)
    return [[part.columns[i] for i in group] for group in packed(needed, width - names)]


def _lines(cell: dict[str, Any], column: Column) -> tuple[str, str, str]:
    """A cell in three lines: the numbers, the difference or error, the verdict."""
    return short_text(cell, column), error_text(cell, column), cell["verdict"] or ""


def _panel(part: Part) -> Table:
    panel = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    panel.add_column("", overflow="fold")
    for title in part.heads[1:]:
        panel.add_column(title, justify="right", no_wrap=True)
    for name, *cells in part.grid(_lines, "short"):
        numbers, errors, verdicts = zip(*cells, strict=True)
        panel.add_row(name, *numbers)
        if any(errors):
            panel.add_row("", *(Text(error, style="dim") for error in errors))
        # A row without comparisons needs no line for verdicts.
        if any(verdict not in ("", "not run") for verdict in verdicts):
            panel.add_row("", *(Text(verdict, style=_STYLES.get(verdict, "dim")) for verdict in verdicts))
    return panel
