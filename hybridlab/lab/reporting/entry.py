"""One entry of a paper, table or figure: its files, its page in Markdown and in LaTeX, and on the terminal.

hybridlab report consa-fig10    # results/consa-fig10/smoke/figure.md, figure.json, figure.png
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridlab.files import compact_json, write_text
from hybridlab.lab.papers.experiment import Column, Experiment
from hybridlab.lab.papers.pages import as_written
from hybridlab.lab.papers.plans import history, register
from hybridlab.lab.reporting.claims import (
    claims_panel,
    claims_section,
    controls_in_words,
    counted,
    differ_lines,
    markdown_table,
    print_claims,
    write_claims_figure,
)
from hybridlab.lab.reporting.entry_data import Also, asked, caption, file_name, is_table, write_picture
from hybridlab.lab.reporting.figures import build_figure, csv_lines, draw, has_numbers, marks_in_words
from hybridlab.lab.reporting.latex import Panel, packed, tex_table
from hybridlab.lab.reporting.table import CellText, Part, below, build_table, frame_of, parts, tally_text

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
    """Its files under results_dir/<id>/<scale>/: JSON, Markdown, and a picture of a figure, or of a table's claims,
    where there is something to draw; returns its data and that folder.

    runs_dir: see `load_record`. all_columns: also show the columns that nothing here can measure; table.json always has
    them. also: endings of further files, .csv, .pdf, .svg and .tex. A plan that has changed since runs were started is
    added to its history first, which gives the change a date.
    """
    if history(experiment.id, scale, results_dir):
        register(experiment, scale, results_dir)
    build = build_table if experiment.plot is None else build_figure
    data = build(experiment, scale, results_dir, runs_dir)
    folder = results_dir / experiment.id / scale
    file = folder / file_name(data)
    write_text(file, compact_json(as_written(data)) + "\n")
    if is_table(data):
        drawn = write_claims_figure(data, folder, also)
        if asked(latex_file := file.with_suffix(".tex"), also):
            write_text(latex_file, latex(data, all_columns))
    else:
        drawn = has_numbers(data)
        write_picture(file.with_suffix(""), (lambda: draw(data)) if drawn else None, also)
    write_text(file.with_suffix(".md"), markdown(data, all_columns, drawn))
    if asked(numbers := file.with_suffix(".csv"), also):
        import pandas as pd  # here, so that a report without --csv starts fast

        frame = frame_of(data, all_columns) if is_table(data) else pd.DataFrame(csv_lines(data))
        write_text(numbers, frame.to_csv(index=False))
    return data, folder


# ---- Markdown and LaTeX ----


def markdown(data: dict[str, Any], all_columns: bool = False, drawn: bool = False) -> str:
    """The page of an entry. drawn: whether the claims of a table have a picture."""
    lines = [caption(data)]
    if is_table(data):
        lines += [tally_text(data)] if tally_text(data) else []
        for part in parts(data, all_columns):
            lines += [f"**{_safe(part.title)}**"] if part.title else []
            lines += ["\n".join(markdown_table(part.heads, part.grid(lambda cell: cell.full), _safe))]
        lines += map(_safe, below(data, all_columns))
    else:
        lines += ["![figure](figure.png)"]
        lines += [f"{data['shown'][0].upper()}{data['shown'][1:]}."] if data["shown"] else []
        if printed := marks_in_words(data):
            lines += [f"In grey, what the paper prints: {'; '.join(printed)}."]
    lines = [f"# {data['id']}: {data['title']}", "", *(part for line in lines for part in (line, ""))]
    lines += [*claims_section(data), *differ_lines(data)]
    notes = [*(f"- {note}" for note in data["notes"]), ""]
    if not is_table(data):
        return "\n".join([*lines, *notes])
    over = f"{data.get('unit', 'seed')}s"
    lines += [f"![differences behind the claims, with 95 % intervals over {over}](claims.png)", ""] if drawn else []
    return "\n".join([*lines, *(["## Notes", "", *notes] if data["notes"] else [])])


def _safe(text: str) -> str:
    """A bar would end a cell of Markdown."""
    return text.replace("|", "/")


def latex(table: dict[str, Any], all_columns: bool = False) -> str:
    """A part of the table for each of its panels, with the cells as in Markdown; a dash stands for `not run` here."""
    panels = []
    for part in parts(table, all_columns):
        columns = [[row["cells"][column.name] for row in part.rows] for column in part.columns]
        values = [[cell[of] for cell in cells for of in ("measured", "paper")] for cells in columns]
        numeric = [any(isinstance(value, float | int) for value in column) for column in values]
        texts = part.grid(lambda cell: cell.full.removesuffix(" (not run)"))
        panels.append(Panel(part.title, part.heads, texts, [False, *numeric]))
    heading = ". ".join(filter(None, (table["title"], caption(table).removesuffix("."), tally_text(table))))
    text = tex_table(table["id"], f"{heading}.", panels, list(below(table, all_columns)))
    if not table["claims"]:
        return text
    title = f"{table['title']}: claims of the text. {counted(table)}."
    claims = tex_table(f"{table['id']}-claims", title, [claims_panel(table)], controls_in_words(table))
    return f"{text}\n{claims}"


# ---- the terminal ----


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
    for title, *cells in zip(*[part.heads, *part.grid(_lines)], strict=True):
        needed.append(max([len(title), *(len(line) for cell in cells for line in cell)]) + 3)
    return [[part.columns[i] for i in group] for group in packed(needed[1:], width - names)]


def _lines(cell: CellText) -> tuple[str, str, str]:
    """A cell in three lines: the numbers, the difference or error, the verdict."""
    return cell.short, cell.error, cell.verdict


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
