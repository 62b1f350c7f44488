"""The commands of the library, and exit codes without tracebacks. The program is lab/cli/main.py.

0: success. 1: a run failed. 2: a mistake of the user. 130 and 143: stopped by Ctrl-C and by SIGTERM.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import warnings
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from hybridlab import __version__
from hybridlab.cli import analyze, check, config, data, evaluate, export, generate, one_run, runs
from hybridlab.cli.options import App
from hybridlab.errors import Interrupted, RunFailed, UserError
from hybridlab.messages import heard_by, print_line
from hybridlab.plugins import in_plugin, load_plugin

_CONTROL_C = 128 + signal.SIGINT

app = App(
    name="hybridlab",
    help="Where should a Transformer spend its attention and its depth? Train, compare, reproduce.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("pretrain")(one_run.pretrain)
app.command("learn-masks")(one_run.learn_masks)
app.command("grow")(one_run.grow)
app.command("finetune")(one_run.finetune)
app.command("check")(check.check)
app.command("eval")(evaluate.evaluate)
app.command("analyze", context_settings=analyze.CONTEXT)(analyze.analyze)
app.command("generate")(generate.generate)
app.command("export")(export.export)
app.add_typer(runs.app, name="runs")
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    plugin: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="Load your own file.py or module first; repeatable.")
    ] = None,
) -> None:
    """Options of all commands."""
    context.with_resource(heard_by(print_line))
    for reference in plugin or []:
        load_plugin(reference)


def run() -> None:
    """The installed `hybridlab` command."""
    open_closed()
    make_tolerant()
    try:
        with warnings.catch_warnings():
            # Without the place in the code, which means nothing to a user.
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            try:
                app()
            finally:
                print(end="", flush=True)
    except UserError as error:
        _end(f"error: {error}", 2)
    except RunFailed as error:
        _end(f"failed: {error}", 1)
    except Interrupted as stop:
        again = shlex.join(["hybridlab", *sys.argv[1:]])
        _end(f"interrupted: {stop}; go on with\n  {again}", 128 + stop.signal)
    except KeyboardInterrupt:
        _end("interrupted", _CONTROL_C)
    except SystemExit as end:
        # Typer turns a KeyboardInterrupt inside a command into this code, without a word.
        if end.code == _CONTROL_C:
            _end("interrupted", _CONTROL_C)
        if not end.code and "torch" in sys.modules:
            from hybridlab.training.ranks import started

            # While the interpreter is taken down, threads of torch can abort a rank that has done its work.
            if started():
                os._exit(0)
        raise
    except OSError as error:
        what = f"{error.filename or 'input or output'}: {error.strerror or error}"
        by_user = isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError | PermissionError)
        by_user = by_user or error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
        _end(f"{'error' if by_user else 'failed'}: {what}", 2 if by_user else 1)
    except Exception as error:  # the code of a plug-in can raise anything
        if (words := in_plugin(error)) is None:
            raise
        _end(f"error: {words}", 2)


def _end(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)


# ---- streams that stay usable when they are closed or their reader has gone, as in `hybridlab plan | head` ----


def open_closed() -> None:
    """Give standard input, output and error the null device where they are closed, as after `2>&-`: what is printed to
    them is dropped. Else the next file that is opened would be standard error, and a library writes into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is that of the stream
        os.set_inheritable(handle, True)
        setattr(sys, name, os.fdopen(handle, "w" if number else "r", encoding="utf-8", closefd=False))


class _Stream(FileIO):
    """The file of a stream. What cannot be written because of an ignored error is dropped, and the command goes on.

    Any other error is raised once; what follows is dropped, so that the exit does not raise it again.
    """

    def __init__(self, number: int, ignored: type[OSError]) -> None:
        super().__init__(number, "wb", closefd=False)
        self.ignored, self.failed = ignored, False

    def write(self, data: Any) -> int:
        if not self.failed:
            try:
                return super().write(data)
            except OSError as error:
                if not isinstance(error, self.ignored):
                    self.failed = True
                    raise
        return memoryview(data).nbytes


def make_tolerant() -> None:
    """Replace both streams of this process. Results may go to a reader that has gone; progress may fail in any way, as
    it must not end a run. Characters that a stream cannot encode are written as ?."""
    for name, ignored in (("stdout", BrokenPipeError), ("stderr", OSError)):
        stream = getattr(sys, name)
        if not isinstance(stream, TextIOWrapper):
            continue
        stream.reconfigure(errors="replace")
        # Under PYTHONUNBUFFERED there is no buffer in between.
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if isinstance(raw, FileIO) and not isinstance(raw, _Stream):
            new = _Stream(stream.fileno(), ignored)
            below: Any = new if stream.buffer is raw else BufferedWriter(new)
            lines, at_once = stream.line_buffering, stream.write_through
            text = TextIOWrapper(below, stream.encoding, "replace", line_buffering=lines, write_through=at_once)
            setattr(sys, name, text)
