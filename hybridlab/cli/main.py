"""The entry point: commands, and exit codes (0 success, 1 a run failed, 2 a user's mistake) without tracebacks."""

from __future__ import annotations

import errno
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from hybridlab import __version__
from hybridlab.cli import (
    ablate,
    analyze,
    config,
    data,
    evaluate,
    generate,
    learn_masks,
    listing,
    plan,
    pretrain,
    report,
    reproduce,
    runs,
)
from hybridlab.errors import Interrupted, RunFailed, UserError
from hybridlab.plugins import load_plugin

app = typer.Typer(
    name="hybridlab",
    help="Where should a Transformer spend its attention and its depth? Train, compare, reproduce.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("pretrain")(pretrain.pretrain)
app.command("learn-masks")(learn_masks.learn_masks)
app.command("ablate")(ablate.ablate)
app.command("eval")(evaluate.evaluate)
app.command("analyze", context_settings=analyze.CONTEXT)(analyze.analyze)
app.command("generate")(generate.generate)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("list")(listing.list_entries)
app.command("plan")(plan.plan)
app.add_typer(runs.app, name="runs")
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="MODULE", help="Load your own file.py or module first; repeatable."),
    ] = None,
) -> None:
    """Options of all commands."""
    for reference in plugin or []:
        load_plugin(reference)


def run() -> None:
    """The installed `hybridlab` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
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
        reason = f": {stop}" if str(stop) else ""
        print(f"interrupted{reason}; run the same command again to continue", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        # Click exits with 130 after Ctrl-C; here the exit code of an interrupted run is 1.
        sys.exit(1 if end.code == 130 else end.code)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        what = f"{error.filename or 'input or output'}: {error.strerror or error}"
        by_user = isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError | PermissionError)
        by_user = by_user or error.errno == errno.ENAMETOOLONG
        print(f"{'error' if by_user else 'failed'}: {what}", file=sys.stderr)
        sys.exit(2 if by_user else 1)
