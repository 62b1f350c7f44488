"""`hybridlab audit`: does the arithmetic of printed numbers hold?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError, nearest
from hybridlab.lab.cli import completion
from hybridlab.lab.cli import options as lab
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.lab.papers.audit import Check


def audit_numbers(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PAPER|ID|FILE",
            help="A paper, an entry that `hybridlab list` shows, or a table of your own, as ./mine.yaml or ./mine.csv "
            "(docs/audit.md). Without any, all five papers.",
            autocompletion=completion.papers,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT",
            help="Only checks that end so: agrees, rounding, 'rounded twice', truncated, 'hangs on one row', disagrees "
            "or 'cannot be checked'.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also list the checks that agree and those that cannot be made.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Recompute every printed number that follows from others: means, differences, ratios, counts, scores.

    Correlations are also computed without each row, and speeds compared with the batch or the model that they go with.

    A printed 36.41 stands for 36.405 to 36.415. A check disagrees where no numbers that round to the printed ones can
    give what is printed; nothing is trained or downloaded.
    """
    from hybridlab.lab.papers import audit

    if only not in (None, *audit.VERDICTS):
        raise UserError(f"--only {only}: there is no such verdict; {nearest(only or '', list(audit.VERDICTS))}")
    if only and every:
        raise UserError("--all lists every check and --only those of one verdict; leave one of them out")
    checks = audit.audit(audit.asked(what or []))
    chosen = [check for check in checks if only in (None, check.verdict)]
    counted = audit.counts(checks)
    if as_json:
        o.print_json({"checks": [asdict(check) for check in chosen], "counts": counted})
        return
    listed = [check for check in chosen if only or every or _is_striking(check)]
    lab.print_groups([(check.entry, check.verdict, in_words(check)) for check in listed], gap=True)
    _show_counts(counted)
    if not checks:
        say("audit: nothing that is printed there follows from other numbers")
    elif not listed:
        say("audit: no check ends so" if only else "audit: no check disagrees")
    elif not (only or every):
        say("audit: checks that agree, or that cannot be made, are listed with --all")


def _is_striking(check: Check) -> bool:
    """Whether a check does not agree; a score that has the verdict of a sentence stands there already."""
    return check.verdict not in ("agrees", "cannot be checked") and not (check.about == "score" and check.claim)


def in_words(check: Check) -> str:
    """A check as one sentence: place, formula, and why."""
    said = f"{check.quote} " if check.quote else ""
    printed = check.printed if check.printed.startswith("required") else f"printed {check.printed}"
    numbers = f"{printed}, recomputed {check.recomputed}" if check.printed and check.recomputed else ""
    if check.about == "row":
        numbers = f"{check.printed}; {check.recomputed}"
    parts = (numbers, check.formula, check.why, check.claim)
    return f"{said}({check.place}): {'; '.join(part for part in parts if part)}"


def _show_counts(counted: dict[str, dict[str, int]]) -> None:
    from rich.table import Table

    from hybridlab.lab.papers.audit import VERDICTS

    words = [word for word in VERDICTS if any(word in row for row in counted.values())]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("checks")
    for word in words:
        table.add_column(word, justify="right")
    for name, row in counted.items():
        table.add_row(name, *(f"{row.get(word, 0):,}" for word in words))
    o.console().print(table)
