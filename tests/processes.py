"""Processes that start in milliseconds: forked from a server that has imported torch and hybridlab once.

What a new interpreter does (which modules an import loads, how the installed command ends) needs one of its own:
`run_python` of conftest.py.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.multiprocessing import start_processes

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["hybridlab.runs.queue", "torch._dynamo", "hybridlab.cli.main", "hybridlab.evaluation.lm_eval_model", "pytest"]
)


class Forked:
    """A function in a process of its own, with what tests use of subprocess.Popen.

    It has the environment of this process, the working folder cwd, and writes to the files `out` and `err`. first: a
    function without arguments that the process calls before.
    """

    def __init__(self, function, *arguments, cwd=".", out=None, err=None, first=None, environment=None):
        self.folder = tempfile.TemporaryDirectory()
        self.files = [str(given or Path(self.folder.name) / name) for given, name in ((out, "out"), (err, "err"))]
        world = {**os.environ, **(environment or {})}
        self._process = CONTEXT.Process(
            target=_in_child, args=(function, arguments, os.path.abspath(cwd), world, self.files, first)
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        """The exit code, negative after a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout=300):
        """Its exit code, once it has ended."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it has not ended in time"
        return self._process.exitcode

    def communicate(self, timeout=300):
        """What it has written to standard output and standard error, once it has ended."""
        self.wait(timeout)
        return tuple(Path(file).read_text() for file in self.files)

    def send_signal(self, number):
        os.kill(self.pid, number)


def _in_child(function, arguments, cwd, environment, files, first):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, file in enumerate(files, start=1):
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    if first is not None:
        first()
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    function(*arguments)


def command(words):
    """The `hybridlab` command, for a process of its own."""
    from hybridlab.lab.cli.main import run

    sys.argv = ["hybridlab", *map(str, words)]
    run()


def forked_command(*words, cwd, **options):
    """Exit code, standard output and standard error of a command in a process of its own."""
    process = Forked(command, words, cwd=cwd, **options)
    return subprocess.CompletedProcess(words, process.wait(), *process.communicate())


def forked_python(code, *arguments, cwd="."):
    """What a program prints in a process of its own; it must end with success."""
    process = Forked(_program, code, arguments, cwd=cwd)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def _program(code, arguments):
    sys.argv = ["-c", *map(str, arguments)]
    exec(code, {"__name__": "__main__"})


def in_ranks(function, *arguments, ranks=2):
    """Call function(rank, *arguments) in so many processes, until all have ended; an error of one is raised."""
    start_processes(function, arguments, nprocs=ranks, start_method="forkserver")
