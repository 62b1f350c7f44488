"""`hybridlab check`: is an attention kind or an architecture sound, before anything is trained?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.errors import RunFailed

if TYPE_CHECKING:
    from hybridlab.evaluation.check import Checked


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="KIND|ARCH|FILE.py",
            help="An attention kind, an arch (a preset or ./mine.yaml), or a file of yours with attention kinds.",
            autocompletion=completion.checked,
        ),
    ],
    size: Annotated[
        str | None, typer.Option(help="Size of an arch; default: tiny, or bert-tiny.", autocompletion=completion.sizes)
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A=B",
            help="A setting of the kind (a whole number that has no default is 3), or of the arch; repeatable.",
        ),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Check an attention kind or an arch on tiny inputs: shapes, causality, mask, padding, cache, gradients, cost.

    Each line is ok, or one sentence about what is wrong and where to look. The exit code is 1 if a check has failed.
    """
    from hybridlab.evaluation.check import check_named

    checked = check_named(target, size, sets or ())
    if as_json:
        o.print_json([result.to_json() for result in checked])
    else:
        for result in checked:
            _print(result)
    if failed := sum(result.failed for result in checked):
        raise RunFailed(f"check {target}: {failed} of {sum(len(result.findings) for result in checked)} checks")


def _print(checked: Checked) -> None:
    settings = ", ".join(f"{name} {value}" for name, value in checked.settings.items())
    title = f"{checked.what} {checked.name}{f' ({settings})' if settings else ''}"
    verdicts = {"ok": "ok", "failed": "failed", "not applicable": "–", "not reached": "–"}
    rows = [(finding.check, verdicts[finding.verdict], finding.text) for finding in checked.findings]
    o.console().print(o.table(title, rows=rows, show_header=False))
