"""What of a table is shown: its panels with their columns and rows, and the lines below them.

Columns that nothing here can measure, and rows that a scale does not train, are named in a line; table.json has all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hybridlab.papers.experiment import Experiment
from hybridlab.papers.rows import BENCHMARK, Column, Row
from hybridlab.reporting.models import model_text, models_text


@dataclass(frozen=True)
class Part:
    """A panel as it is shown. title: "" for none; rows: of table.json. measured: whether it has numbers of runs."""

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    measured: bool

    def row_name(self, row: dict[str, Any], key: str = "name") -> str:
        """A row's name; in a measured panel with the model that stands there. key: name, or short for narrow lines."""
        model = row["model"]
        if not self.measured or model is None or not model["in_place_of"]:
            return str(row[key])
        return f"{row[key]} [{model_text(model) if key == 'name' else model['size']}]"


def parts(table: dict[str, Any], experiment: Experiment, all_columns: bool = False) -> list[Part]:
    """The panels that have something to show. all_columns: also columns that nothing here can measure."""
    shown = []
    for name, title in experiment.panels.items():
        hidden = folded(table, experiment, all_columns)
        columns = [column for column in experiment.columns if column.panel == name and column not in hidden]
        if not columns:
            continue
        measured = any(column.metric is not None for column in columns)
        rows = [row for row in table["rows"] if not measured or not _absent(row, columns, experiment, table["scale"])]
        models = models_text(row["model"] for row in rows) if measured else ""
        where = f"Scale {table['scale']}: {models}" if models else ""
        shown.append(Part(". ".join(filter(None, (title, where))), columns, rows, measured))
    return shown


def _absent(row: dict[str, Any], columns: list[Column], experiment: Experiment, scale: str) -> bool:
    """Whether a row's model is not trained at this scale, and the paper prints nothing in these columns."""
    cell = experiment.row(row["short"]).cell
    trained = row["model"] is not None or cell in (None, BENCHMARK) or scale not in experiment.scales
    printed = any(row["cells"][column.name]["paper"] is not None for column in columns)
    return not trained and not printed


def folded(table: dict[str, Any], experiment: Experiment, all_columns: bool = False) -> list[Column]:
    """The columns that are left out: those that nothing here can measure, and benchmarks that no run has been asked."""
    return [] if all_columns else [column for column in experiment.columns if not _has_numbers(column, table)]


def _has_numbers(column: Column, table: dict[str, Any]) -> bool:
    if not column.of_benchmarks:
        return column.measurable
    return any(row["cells"][column.name]["measured"] is not None for row in table["rows"])


def below(table: dict[str, Any], experiment: Experiment, all_columns: bool = False) -> Iterator[str]:
    """The lines below a table: how to read a cell, and what is left out."""
    yield _how_to_read(table)
    if hidden := folded(table, experiment, all_columns):
        yield f"not measured here: {', '.join(column.title for column in hidden)} (the paper's values: --all-columns)"
    shown = parts(table, experiment, all_columns)
    measured = [row["short"] for part in shown if part.measured for row in part.rows]
    left_out = [row for row in experiment.rows if row.short not in measured]
    if left_out and any(part.measured for part in shown):
        there = {_group(row, experiment) for row in experiment.rows if row not in left_out}
        groups = [(_group(row, experiment), row.short) for row in left_out]
        names = [f"the rows of {group}" if group and group not in there else short for group, short in groups]
        yield f"not trained at this scale: {', '.join(dict.fromkeys(names))}"


def _group(row: Row, experiment: Experiment) -> str | None:
    """The paper's model that a row is of, as `cells` group them."""
    return experiment.cells[row.cell].group if row.cell in experiment.cells else None


def _how_to_read(table: dict[str, Any]) -> str:
    cells = [cell for row in table["rows"] for cell in row["cells"].values()]
    text = "Cells: measured | paper (verdict); – was not measured."
    found = [cell["difference"] for cell in cells if cell["difference"] and not cell["same_as"]]
    compared = [row for row in table["rows"] if any(cell["difference"] for cell in row["cells"].values())]
    references = list(dict.fromkeys(row["reference"] for row in compared if row["reference"]))
    if references and found:
        text += f" Δ: difference to {' or '.join(references)}, paired by seed"
        text += ", with its 95 % t-interval." if any(one["interval"] for one in found) else "."
    if any(one["over"] == "windows" for one in (*found, *cells)):
        text += (
            " ± … over windows: validation windows in blocks of ten, from fewer than three seeds; it leaves out what "
            "another seed would change, and decides nothing."
        )
    return text


def tally_text(table: dict[str, Any]) -> str:
    """How many cells with a printed value come out, by class; "" if there are none."""
    texts = []
    for kind, found in table.get("tally", {}).items():
        if kind in ("trained", "timed"):
            texts.append(f"{kind}: " + ", ".join(f"{word} {count}" for word, count in found.items()))
        else:
            texts.append(f"{kind} {found.get('agrees', 0)} of {sum(found.values())}")
    return f"Against the paper's values: {' · '.join(texts)}" if texts else ""
