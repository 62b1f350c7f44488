"""One entry of a paper, table or figure, written and printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hybridlab.reporting.figures import write_figure
from hybridlab.reporting.table import caption, print_claims, print_table, write_table
from hybridlab.reproduction.experiment import Experiment


def write_entry(experiment: Experiment, scale: str, results_dir: Path) -> tuple[dict[str, Any], Path]:
    """Its files under results_dir/<id>/<scale>/; returns its data and that folder."""
    write = write_table if experiment.plot is None else write_figure
    return write(experiment, scale, results_dir)


def print_entry(data: dict[str, Any], experiment: Experiment, console: Console) -> None:
    """A table with its claims; for a figure, its series and claims."""
    if experiment.plot is None:
        print_table(data, experiment, console)
        return
    console.print(Text(f"{data['id']}: {data['title']}", style="bold"))
    console.print(caption(data), highlight=False)
    for panel in data["panels"]:
        for series in panel["series"]:
            name = ", ".join(part for part in (panel["title"], series["label"]) if part)
            console.print(f"  {name}: {'drawn' if series['data'] else '– (not run)'}", highlight=False)
    print_claims(data["claims"], console)
