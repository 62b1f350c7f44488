"""The entry point: commands, exit codes (0 well, 1 a run failed, 2 a user's mistake), and no tracebacks for either."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hybridlab import __version__
from hybridlab.cli import data, evaluate, learn_masks, listing, plan, pretrain, report, reproduce
from hybridlab.errors import RunFailed, UserError

app = typer.Typer(
    name="hybridlab",
    help="Where should a Transformer spend its attention and its depth? Train, compare, reproduce.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("pretrain")(pretrain.pretrain)
app.command("learn-masks")(learn_masks.learn_masks)
app.command("eval")(evaluate.evaluate)
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
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        print(f"failed: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
