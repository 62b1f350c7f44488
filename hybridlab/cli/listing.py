"""`hybridlab list`: what can be reproduced, and what has been."""

from __future__ import annotations

from hybridlab.cli import options as o


def list_experiments(results_dir: o.ResultsDir = o.RESULTS, as_json: o.AsJson = False) -> None:
    """Every experiment with its scales and what it needs; done names the scales whose table is complete."""
    from hybridlab.reproduction.listing import entries

    found = entries(results_dir)
    if as_json:
        o.print_json({"entries": found})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("id", "title", "needs", "scales", "done"):
        table.add_column(name, no_wrap=name == "id")
    for entry in found:
        table.add_row(entry["id"], entry["title"], *(", ".join(entry[k]) or "–" for k in ("needs", "scales", "done")))
    o.console().print(table)
