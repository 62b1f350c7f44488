"""A table as files: table.json, table.csv (a line for each cell), table.md, table.tex, and its claims as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hybridlab.files import write_json, write_text
from hybridlab.papers.experiment import Experiment
from hybridlab.papers.rows import Column
from hybridlab.reporting.claims import claims_panel, claims_table, counted, differ_lines
from hybridlab.reporting.claims_figure import write_claims_figure
from hybridlab.reporting.entry_data import caption
from hybridlab.reporting.latex import Panel, tex_table
from hybridlab.reporting.table import build_table
from hybridlab.reporting.table_cells import cell_text
from hybridlab.reporting.table_layout import Part, below, folded, parts, tally_text


def write_table(
    experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None, all_columns: bool = False
) -> tuple[dict[str, Any], Path]:
    """The table as JSON, CSV, Markdown and LaTeX under results_dir/<id>/<scale>/, with a picture of its claims where
    their comparisons have intervals over seeds; returns its data and that folder.

    all_columns: also show the columns that nothing here can measure; table.json always has them.
    """
    table = build_table(experiment, scale, results_dir, runs_dir)
    folder = results_dir / experiment.id / scale
    write_json(folder / "table.json", table)
    write_text(folder / "table.csv", _flat_frame(table, experiment, all_columns).to_csv(index=False))
    drawn = write_claims_figure(table, folder)
    write_text(folder / "table.md", _markdown(table, experiment, all_columns, drawn))
    write_text(folder / "table.tex", _latex(table, experiment, all_columns))
    return table, folder


def _text(cell: dict[str, Any], column: Column) -> str:
    """A cell: measured | paper (verdict)."""
    return cell_text(cell, column) + (f" ({cell['verdict']})" if cell["verdict"] else "")


def _flat_frame(table: dict[str, Any], experiment: Experiment, all_columns: bool) -> pd.DataFrame:
    """One line for each cell, with numbers: for other programs."""
    hidden = {column.name for column in folded(table, experiment, all_columns)}
    return pd.DataFrame(
        {"row": row["name"], "column": column.name, **_flat(row["cells"][column.name])}
        for row in table["rows"]
        for column in experiment.columns
        if column.name not in hidden
    )


def _flat(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with the parts of its difference as columns of their own."""
    found = cell["difference"] or {}
    low, high = found.get("interval") or (None, None)
    parts = {"difference": found.get("value"), "difference_stderr": found.get("stderr"), "low": low, "high": high}
    verdict = {"class": cell["class"], "verdict": cell["verdict"]}
    own = {key: value for key, value in cell.items() if key not in ("difference", *verdict)}
    return {**own, **parts, "difference_over": found.get("over"), "p": found.get("p"), **verdict}


def _markdown(table: dict[str, Any], experiment: Experiment, all_columns: bool, drawn: bool = False) -> str:
    lines = [f"# {table['id']}: {table['title']}", "", caption(table), ""]
    lines += [tally_text(table), ""] if tally_text(table) else []
    for part in parts(table, experiment, all_columns):
        lines += [f"**{_safe(part.title)}**", ""] if part.title else []
        lines += [*_grid(part), ""]
    for line in below(table, experiment, all_columns):
        lines += [_safe(line), ""]
    if table["claims"]:
        lines += [*claims_table(table["claims"]), "", *differ_lines(table)]
        picture = "![differences behind the claims, with 95 % intervals over seeds](claims.png)"
        lines += [picture, ""] if drawn else []
    if table["notes"]:
        lines += ["## Notes", "", *(f"- {note}" for note in table["notes"]), ""]
    return "\n".join(lines)


def _grid(part: Part) -> list[str]:
    """A panel as a table of Markdown."""
    heads = ["", *(column.title for column in part.columns)]
    lines = ["| " + " | ".join(map(_safe, heads)) + " |", "|" + " --- |" * len(heads)]
    for row in part.rows:
        texts = [part.row_name(row), *(_text(row["cells"][column.name], column) for column in part.columns)]
        lines.append("| " + " | ".join(map(_safe, texts)) + " |")
    return lines


def _safe(text: str) -> str:
    """A bar would end a cell of Markdown."""
    return text.replace("|", "/")


def _latex(table: dict[str, Any], experiment: Experiment, all_columns: bool) -> str:
    """A part of the table for each of its panels, with the cells as in Markdown; a dash stands for `not run` here."""
    panels = []
    for part in parts(table, experiment, all_columns):
        rows = [
            [part.row_name(row), *(_short(row["cells"][column.name], column) for column in part.columns)]
            for row in part.rows
        ]
        numeric = [any(_is_number(row["cells"][column.name]) for row in part.rows) for column in part.columns]
        panels.append(Panel(part.title, ["", *(column.title for column in part.columns)], rows, [False, *numeric]))
    heading = ". ".join(filter(None, (table["title"], caption(table).removesuffix("."), tally_text(table))))
    text = tex_table(table["id"], f"{heading}.", panels, list(below(table, experiment, all_columns)))
    if not table["claims"]:
        return text
    claims = tex_table(
        f"{table['id']}-claims",
        f"{table['title']}: claims of the text. {counted(table['claims'])}. p: after Holm's correction.",
        [claims_panel(table["claims"])],
    )
    return f"{text}\n{claims}"


def _short(cell: dict[str, Any], column: Column) -> str:
    """The text of a cell without the words that its dash stands for."""
    return _text(cell, column).removesuffix(" (not run)")


def _is_number(cell: dict[str, Any]) -> bool:
    return isinstance(cell["measured"], float | int) or isinstance(cell["paper"], float | int)
