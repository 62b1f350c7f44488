"""A table as files: table.json, table.csv (a line for each cell), table.md and table.tex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hybridlab.files import write_json, write_text
from hybridlab.papers.experiment import Column, Experiment
from hybridlab.reporting.entry_data import caption, claims_table
from hybridlab.reporting.latex import Panel, tex_table
from hybridlab.reporting.table import build_table
from hybridlab.reporting.table_cells import cell_text

_CELLS = "Cells: measured / paper (verdict); – was not measured."


def write_table(
    experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None
) -> tuple[dict[str, Any], Path]:
    """The table as JSON, CSV, Markdown and LaTeX under results_dir/<id>/<scale>/; returns its data and that folder."""
    table = build_table(experiment, scale, results_dir, runs_dir)
    folder = results_dir / experiment.id / scale
    write_json(folder / "table.json", table)
    frame = _frame(table, experiment)
    write_text(folder / "table.csv", _flat_frame(table, experiment).to_csv(index=False))
    write_text(folder / "table.md", _markdown(table, frame))
    write_text(folder / "table.tex", _latex(table, experiment))
    return table, folder


def _frame(table: dict[str, Any], experiment: Experiment) -> pd.DataFrame:
    """Rows × columns as text: measured | paper (verdict)."""
    lines = []
    for row in table["rows"]:
        line = {"": row["name"]}
        for column in experiment.columns:
            line[column.title] = _text(row["cells"][column.name], column)
        lines.append(line)
    return pd.DataFrame(lines)


def _text(cell: dict[str, Any], column: Column) -> str:
    """A cell: measured | paper (verdict)."""
    return cell_text(cell, column) + (f" ({cell['verdict']})" if cell["verdict"] else "")


def _flat_frame(table: dict[str, Any], experiment: Experiment) -> pd.DataFrame:
    """One line for each cell, with numbers: for other programs."""
    return pd.DataFrame(
        {"row": row["name"], "column": column.name, **row["cells"][column.name]}
        for row in table["rows"]
        for column in experiment.columns
    )


def _markdown(table: dict[str, Any], frame: pd.DataFrame) -> str:
    heads = [head.replace("|", "\\|") for head in frame.columns]
    lines = [f"# {table['id']}: {table['title']}", "", caption(table), ""]
    lines += ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for values in frame.itertuples(index=False):
        lines.append("| " + " | ".join(str(value).replace("|", "/") for value in values) + " |")
    lines += ["", _CELLS, ""]
    if table["claims"]:
        lines += [*claims_table(table["claims"]), ""]
    if table["notes"]:
        lines += ["## Notes", "", *(f"- {note}" for note in table["notes"]), ""]
    return "\n".join(lines)


def _latex(table: dict[str, Any], experiment: Experiment) -> str:
    """A part of the table for each of its panels, with the cells as in Markdown; a dash stands for `not run` here."""
    panels = []
    for name, title in experiment.panels.items():
        columns = [column for column in experiment.columns if column.panel == name]
        if not columns:
            continue
        rows = [
            [row["name"], *(_short(row["cells"][column.name], column) for column in columns)] for row in table["rows"]
        ]
        numeric = [False, *(any(_is_number(row["cells"][column.name]) for row in table["rows"]) for column in columns)]
        panels.append(Panel(title, ["", *(column.title for column in columns)], rows, numeric))
    return tex_table(table["id"], f"{table['title']}. {caption(table)} {_CELLS}", panels)


def _short(cell: dict[str, Any], column: Column) -> str:
    """The text of a cell without the words that its dash stands for."""
    return _text(cell, column).removesuffix(" (not run)")


def _is_number(cell: dict[str, Any]) -> bool:
    return isinstance(cell["measured"], float | int) or isinstance(cell["paper"], float | int)
