"""The program `hybridlab`: the commands of the library and those of the lab."""

from __future__ import annotations

from hybridlab.cli.main import app, run
from hybridlab.lab.cli import ablate, audit, bench, compare, listing, plan, report, reproduce

__all__ = ["app", "run"]

app.command("compare")(compare.compare)
app.command("ablate")(ablate.ablate)
app.command("bench")(bench.bench)
app.command("plan")(plan.plan)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("list")(listing.list_entries)
app.command("audit")(audit.audit_numbers)
