"""A table as files: table.json, table.csv (a line for each cell), table.md and table.tex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hybridlab.files import write_json, write_text
from hybridlab.papers.experiment import Experiment
from hybridlab.reporting.entry_data import caption, claims_table
from hybridlab.reporting.table import build_table
from hybridlab.reporting.table_cells import cell_text


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
    write_text(folder / "table.tex", frame.map(_tex).rename(columns=_tex).to_latex(index=False, escape=False))
    return table, folder


def _frame(table: dict[str, Any], experiment: Experiment) -> pd.DataFrame:
    """Rows × columns as text: measured | paper (verdict)."""
    lines = []
    for row in table["rows"]:
        line = {"": row["name"]}
        for column in experiment.columns:
            cell = row["cells"][column.name]
            verdict = f" ({cell['verdict']})" if cell["verdict"] else ""
            line[column.title] = cell_text(cell, column) + verdict
        lines.append(line)
    return pd.DataFrame(lines)


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
    lines += ["", "Cells: measured / paper (verdict); – was not measured.", ""]
    if table["claims"]:
        lines += [*claims_table(table["claims"]), ""]
    if table["notes"]:
        lines += ["## Notes", "", *(f"- {note}" for note in table["notes"]), ""]
    return "\n".join(lines)


_ESCAPED = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$"}
_SYMBOLS = {
    "–": "--",
    "±": r"$\pm$",
    "ρ": r"$\rho$",
    "|": r"$\vert$",
    "−": "$-$",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "·": r"$\cdot$",
    **{raised: f"$^{digit}$" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}


def _tex(text: str) -> str:
    for raw, safe in (_ESCAPED | _SYMBOLS).items():
        text = text.replace(raw, safe)
    return text
