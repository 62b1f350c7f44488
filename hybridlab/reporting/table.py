"""A table of a paper beside what was measured here: table.json, Markdown, CSV, LaTeX, terminal.

Every cell is measured | paper | verdict. What was not measured prints as "–", never as 0.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridlab.files import write_json, write_text
from hybridlab.reproduction.analytic import compute
from hybridlab.reproduction.claims import judge
from hybridlab.reproduction.experiment import BENCHMARK, Column, Experiment, Row
from hybridlab.reproduction.records import number_at, records_of
from hybridlab.reproduction.verdict import Records

NOT_MEASURED = "–"
WIDTH = 80
_MARK = {True: "holds", False: "fails", None: "open"}


def build_table(experiment: Experiment, scale: str, results_dir: Path) -> dict[str, Any]:
    """The table as data, as DESIGN's contract for table.json has it, with notes and provenance."""
    records = records_of(experiment, scale, results_dir)
    rows = [{"name": row.name, "short": row.short, "cells": {}} for row in experiment.rows]
    for column in experiment.columns:
        measured = {row.short: _measure(column, row, records) for row in experiment.rows}
        reference = next((row for row in experiment.rows if row.short == experiment.reference), None)
        base = (measured[reference.short][0], reference.paper.get(column.name)) if reference else (None, None)
        for target, row in zip(rows, experiment.rows, strict=True):
            target["cells"][column.name] = _cell(column, measured[row.short], row.paper.get(column.name), base)
    claims = []
    for claim in experiment.claims:
        verdict = judge(claim, experiment, records)
        claims.append(
            {"text": claim.text, "source": claim.source, "holds": verdict.holds, "evidence": verdict.evidence}
        )
    return {
        "id": experiment.id,
        "title": experiment.title,
        "source": experiment.source,
        "scale": scale,
        "machine": _machine(experiment, scale, records),
        "seeds": experiment.scales[scale].seeds if scale in experiment.scales else [],
        "rows": rows,
        "claims": claims,
        "notes": experiment.notes,
        "runs": {cell: {str(s): r["hash"] for s, r in by_seed.items()} for cell, by_seed in records.items()},
    }


def _machine(experiment: Experiment, scale: str, records: Records) -> str | None:
    """Where runs are made; of a benchmark, where it was measured."""
    if BENCHMARK in records:
        found = records[BENCHMARK][0]["machine"]
        return f"{experiment.machine(scale)}; measured on {found['name']} ({found['device']})"
    return experiment.machine(scale)


def _measure(column: Column, row: Row, records: Records) -> tuple[float | None, float | None, int]:
    """(value, standard error, n): over seeds where there are several, else the run's own."""
    if column.compute is not None:
        found = compute(column.compute, row.given)
        return found if isinstance(found, str) else found * column.factor, None, 1
    runs = records.get(row.cell or "", {})
    if column.metric is None or not runs:
        return None, None, 0
    path = column.metric.format_map({"short": row.short, **row.given})
    found = [number_at(record, path) for record in runs.values()]
    found = [entry for entry in found if entry[0] is not None]
    values = [value * column.factor for value, _, _ in found]
    if not values:
        return None, None, 0
    mean = sum(values) / len(values)
    if len(values) == 1:
        error, n = found[0][1], found[0][2]
        return mean, None if error is None else error * column.factor, n
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return mean, error, len(values)


def _cell(
    column: Column,
    values: tuple[float | None, float | None, int],
    paper: float | None,
    base: tuple[float | None, float | None],
) -> dict[str, Any]:
    measured, stderr, n = values
    verdict = _verdict(column, measured, stderr, paper, base)
    return {"measured": measured, "paper": paper, "stderr": stderr, "n": n, "class": column.kind, "verdict": verdict}


def _verdict(
    column: Column,
    measured: float | None,
    stderr: float | None,
    paper: float | None,
    base: tuple[float | None, float | None],
) -> str | None:
    """agrees | same direction | differs | not run; None where the paper prints nothing to compare with.

    base: what the reference row measured and prints, against which a direction is judged.
    """
    if paper is None or column.kind == "transcribed":
        return None
    if measured is None:
        return "not run"
    if round(measured, column.digits) == round(paper, column.digits):
        return "agrees"
    if column.kind == "timed" and stderr is None:
        # A speed of another machine: its ratios, which have a spread, can be compared, it cannot.
        return None
    if column.kind == "last digit" and abs(measured - paper) <= 1.5 * 10**-column.digits:
        return "agrees"
    if column.kind not in ("trained", "timed"):
        return "differs"
    if stderr is not None and abs(measured - paper) <= 2 * stderr:
        return "agrees"
    if None in base:
        return "differs"
    return "same direction" if (measured - base[0]) * (paper - base[1]) > 0 else "differs"


# ---- files ----


def write_table(experiment: Experiment, scale: str, results_dir: Path) -> tuple[dict[str, Any], Path]:
    """All forms of the table under results_dir/<id>/<scale>/."""
    table = build_table(experiment, scale, results_dir)
    folder = results_dir / experiment.id / scale
    write_json(folder / "table.json", table)
    frame = _frame(table, experiment)
    write_text(folder / "table.csv", _flat_frame(table, experiment).to_csv(index=False))
    write_text(folder / "table.md", _markdown(table, experiment, frame))
    write_text(folder / "table.tex", frame.map(_tex).rename(columns=_tex).to_latex(index=False, escape=False))
    return table, folder


def shown(cell: dict[str, Any], column: Column) -> str:
    """measured ± error | paper, with – for what is not there; the paper's value only where it has one."""
    if column.kind == "transcribed":
        # Words of the paper, or of this project's code: there is nothing to measure.
        return _number(cell["measured"] if cell["paper"] is None else cell["paper"], column.digits)
    text = _number(cell["measured"], column.digits)
    if cell["stderr"] is not None:
        text += f" ± {_number(cell['stderr'], column.digits)}"
    return text if cell["paper"] is None else f"{text} | {_number(cell['paper'], column.digits)}"


def _number(value: float | str | None, digits: int) -> str:
    if isinstance(value, str):
        return value
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def _frame(table: dict[str, Any], experiment: Experiment) -> pd.DataFrame:
    """Rows × columns as text: measured | paper (verdict)."""
    lines = []
    for row in table["rows"]:
        line = {"": row["name"]}
        for column in experiment.columns:
            cell = row["cells"][column.name]
            verdict = f" ({cell['verdict']})" if cell["verdict"] else ""
            line[column.title] = shown(cell, column) + verdict
        lines.append(line)
    return pd.DataFrame(lines)


def _flat_frame(table: dict[str, Any], experiment: Experiment) -> pd.DataFrame:
    """One line per cell, as numbers: the form for other programs."""
    return pd.DataFrame(
        {"row": row["name"], "column": column.name, **row["cells"][column.name]}
        for row in table["rows"]
        for column in experiment.columns
    )


def _markdown(table: dict[str, Any], experiment: Experiment, frame: pd.DataFrame) -> str:
    heads = list(frame.columns)
    lines = [f"# {table['id']}: {table['title']}", "", caption(table), ""]
    lines += ["| " + " | ".join(h.replace("|", "\\|") for h in heads) + " |", "|" + " --- |" * len(heads)]
    lines += [
        "| " + " | ".join(str(v).replace("|", "/") for v in values) + " |" for values in frame.itertuples(index=False)
    ]
    lines += ["", "Cells: measured / paper (verdict); – was not measured.", ""]
    if table["claims"]:
        lines += ["## Claims", "", "| claim | place | here | evidence |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {c['text']} | {c['source']} | {_MARK[c['holds']]} | {c['evidence'].replace('|', '/')} |"
            for c in table["claims"]
        ]
        lines.append("")
    if table["notes"]:
        lines += ["## Notes", "", *(f"- {note}" for note in table["notes"]), ""]
    return "\n".join(lines)


def caption(table: dict[str, Any]) -> str:
    if table["machine"] is None:
        classes = {cell["class"] for row in table["rows"] for cell in row["cells"].values()}
        origin = "The paper's own words" if classes == {"transcribed"} else "Computed from shapes alone"
        return f"{table['source']}. {origin}; the same at every scale."
    seeds = table["seeds"]
    if not seeds:
        return f"{table['source']}. Scale {table['scale']}: {table['machine']}."
    return f"{table['source']}. Scale {table['scale']}: {table['machine']}; {len(seeds)} seed{'s' * (len(seeds) != 1)}."


def _tex(text: str) -> str:
    for raw, safe in {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$"}.items():
        text = text.replace(raw, safe)
    for raw, safe in {
        "–": "--",
        "±": r"$\pm$",
        "ρ": r"$\rho$",
        "|": r"$\vert$",
        "−": "$-$",
        "×": r"$\times$",
        "Δ": r"$\Delta$",
        "·": r"$\cdot$",
        **{raised: f"$^{digit}$" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    }.items():
        text = text.replace(raw, safe)
    return text


# ---- terminal ----


def print_table(table: dict[str, Any], experiment: Experiment, console: Console) -> None:
    """Panels of at most 80 columns, then the claims with their evidence."""
    console.print(Text(f"{table['id']}: {table['title']}", style="bold"))
    console.print(caption(table), highlight=False)
    for panel, title in experiment.panels.items():
        columns = [column for column in experiment.columns if column.panel == panel]
        for part in _fitting(columns, table):
            console.print(_panel(part, title, table))
    print_claims(table["claims"], console)


def print_claims(claims: list[dict[str, Any]], console: Console) -> None:
    """Each claim with what became of it here, and the evidence."""
    for claim in claims:
        style = {True: "green", False: "red", None: "yellow"}[claim["holds"]]
        console.print(Text.assemble((f"{_MARK[claim['holds']]:>5}  ", style), f"{claim['text']} [{claim['source']}]"))
        console.print(f"       {claim['evidence']}", style="dim", highlight=False)


def _fitting(columns: list[Column], table: dict[str, Any]) -> list[list[Column]]:
    """Columns in groups that fit beside the row names."""
    names = max(len(row["short"]) for row in table["rows"]) + 2
    groups: list[list[Column]] = []
    room = 0
    for column in columns:
        cells = [row["cells"][column.name] for row in table["rows"]]
        needed = max(len(column.title), *(max(len(shown(c, column)), len(c["verdict"] or "")) for c in cells)) + 3
        if not groups or needed > room:
            groups.append([])
            room = WIDTH - names
        groups[-1].append(column)
        room -= needed
    return groups


def _panel(columns: list[Column], title: str, table: dict[str, Any]) -> Table:
    panel = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="italic", pad_edge=False)
    panel.add_column("", no_wrap=True)
    for column in columns:
        panel.add_column(column.title, justify="right", no_wrap=True)
    # A row in which nothing was compared needs no line for verdicts.
    for row in table["rows"]:
        cells = [row["cells"][column.name] for column in columns]
        panel.add_row(row["short"], *(shown(cell, column) for cell, column in zip(cells, columns, strict=True)))
        verdicts = [cell["verdict"] or "" for cell in cells]
        if any(v not in ("", "not run") for v in verdicts):
            panel.add_row("", *(Text(v, style=_style(v)) for v in verdicts))
    return panel


def _style(verdict: str) -> str:
    return {"agrees": "green", "same direction": "cyan", "differs": "red"}.get(verdict, "dim")
