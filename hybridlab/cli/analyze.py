"""`hybridlab analyze`: analyse a trained model with a probe.

The settings of a probe are options too, but they are known only after the probe is loaded. Therefore Typer passes on
the options that it does not know, in their order, and this file reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.errors import UserError, nearest
from hybridlab.registry import PROBES

if TYPE_CHECKING:
    from hybridlab.analysis.probe import Probe

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of the command, for `app.command`."""


def analyze(
    context: typer.Context,
    run: o.ModelReference,
    probe: Annotated[
        str, typer.Option(help=f"One of: {', '.join(PROBES.names(installed=False))}.", autocompletion=completion.probes)
    ],
    data: o.OtherText = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Analyse a trained model with a probe.

    The settings of a probe are options as well, such as --rows N for the number of sequences. The error about an
    unknown option suggests the nearest one, or lists all options of the probe.
    """
    from hybridlab.runs.evaluate import analyze_run
    from hybridlab.training.store.folders import Runs

    chosen: Probe = PROBES.get(probe)
    run, settings = _run_and_settings([run, *context.args], probe, chosen)
    numbers = analyze_run(run, Runs(runs_dir), probe, data, settings)
    if "skipped" in numbers:
        raise UserError(f"{run}: --probe {probe} has no result: {numbers['skipped']}")
    if as_json:
        o.print_json(numbers)
        return
    out = o.console()
    for part in chosen.parts(numbers):
        if isinstance(part, str):
            out.print(part)
        else:
            rows = [[o.number(value, 3) for value in row] for row in part.rows]
            out.print(o.table(part.title, numbers=part.columns, rows=rows, pad_edge=False))


def _run_and_settings(words: list[str], name: str, probe: Probe) -> tuple[str, dict[str, str]]:
    """The run, and the probe's settings as text, from words such as RUN, `--rows 3` and `--rows=3`."""
    runs: list[str] = []
    settings: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            runs.append(word)
            continue
        option, equals, value = word.partition("=")
        setting = option.removeprefix("--").replace("-", "_")
        if setting not in probe.settings:
            takes = [f"--{field.replace('_', '-')}" for field in probe.settings]
            hint = nearest(option, takes, f"it takes {', '.join(takes) or 'no settings'}")
            raise UserError(f"{option} has no effect on --probe {name}; {hint}")
        if setting in settings:
            raise UserError(f"{option} is given twice, and only one value can count; leave one out")
        settings[setting] = value if equals else next(rest, "")
    if len(runs) != 1:
        raise UserError(f"give one run to analyse, not {len(runs)}: hybridlab analyze RUN --probe {name}")
    return runs[0], settings
