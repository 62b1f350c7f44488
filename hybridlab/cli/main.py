"""The entry point: commands, exit codes (0 well, 1 a run failed, 2 a user's mistake), and no tracebacks for either."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from hybridlab import __version__
from hybridlab.cli import (
    ablate,
    analyze,
    data,
    evaluate,
    generate,
    learn_masks,
    listing,
    plan,
    pretrain,
    report,
    reproduce,
)
from hybridlab.errors import Interrupted, RunFailed, UserError

app = typer.Typer(
    name="hybridlab",
    help="Where should a Transformer spend its attention and its depth? Train, compare, reproduce.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("pretrain")(pretrain.pretrain)
app.command("learn-masks")(learn_masks.learn_masks)
app.command("ablate")(ablate.ablate)
app.command("eval")(evaluate.evaluate)
app.command("analyze")(analyze.analyze)
app.command("generate")(generate.generate)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("list")(listing.list_experiments)
app.command("plan")(plan.plan)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Common to all commands."""


def run() -> None:
    """What the installed `hybridlab` command calls."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)
    except (Interrupted, KeyboardInterrupt) as stop:
        print(f"interrupted: {stop or 'nothing is lost'}; the same command goes on from there", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        # The command-line library turns Ctrl-C into 130; here a run that did not end well is 1.
        sys.exit(1 if end.code == 130 else end.code)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        what = f"{error.filename or 'input or output'}: {error.strerror or error}"
        mistaken = isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError | PermissionError)
        mistaken = mistaken or error.errno == errno.ENAMETOOLONG
        print(f"{'error' if mistaken else 'failed'}: {what}", file=sys.stderr)
        sys.exit(2 if mistaken else 1)
