"""The command in a shell: completion, short help, `python -m`, the width of tables, and the filters of `list`."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest

from hybridlab.config.resolve import run_hash
from hybridlab.lab.papers.ids import experiment_ids, natural
from tests.conftest import ROOT
from tests.integration.test_cli import hybridlab, json_of

HEAVY = ("torch", "pandas", "matplotlib", "numpy")


def complete(*words, cwd=ROOT, modules=False):
    """What a shell is offered for the last of the words."""
    code = "from hybridlab.lab.cli.main import run\nimport sys\ntry: run()\nexcept SystemExit: pass\n"
    code += f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    asked = {"_HYBRIDLAB_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", f"import sys; sys.argv = ['hybridlab']\n{code}"]
    done = subprocess.run(program, capture_output=True, text=True, cwd=cwd, env=environment, timeout=60)
    assert done.stderr.strip() == "[]", "completion must be fast"
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pretrain", "--arch", "spi"], ["spiral-b", "spiral-l"]),
        (["learn-masks", "--from", "runs/", "--arch", "l1"], ["l1-gates"]),
        (["grow", "--method", ""], ["midas", "lidas", "top", "random"]),
        (["plan", "--size", "consa-"], ["consa-0.6b", "consa-1.7b"]),
        (["reproduce", "consa-fig1"], [f"consa-fig1{n}" for n in ("", *range(8))]),
        (["analyze", "run", "--probe", "con"], ["contributions", "convergence"]),
        (["report", "--scale", "s"], ["smoke", "small"]),
        (["list", "--kind", ""], ["table", "figure"]),
        (["plan", "--arch", "./pyproj"], []),
        (["plan", "--arch", "./exp"], ["./experiments/"]),
        (["pretrain", "--masks", "./exp"], ["./experiments/"]),
        (["pretrain", "--masks", "./tests/golden/r"], ["./tests/golden/runs.json"]),
    ],
)
def test_values_are_completed(words, offered):
    assert complete("hybridlab", *words) == offered


def test_runs_are_completed(trained):
    config, runs = trained
    digest = run_hash(config)
    assert str(runs / "parent") in complete("hybridlab", "eval", "--runs-dir", str(runs), str(runs / "pa"))
    assert complete("hybridlab", "generate", "--runs-dir", str(runs), digest[:12]) == [digest]


def test_completion_is_installed_on_request():
    assert "--install-completion" in hybridlab("--help", cwd=ROOT).stdout


@pytest.mark.parametrize("words", [[], ["pretrain"], ["data"], ["data", "prepare"], ["analyze"]])
def test_short_help(words):
    done = hybridlab(*words, "-h", cwd=ROOT)
    assert done.returncode == 0 and done.stdout == hybridlab(*words, "--help", cwd=ROOT).stdout != ""


@pytest.mark.parametrize("words", [[], ["runs"], ["data"], ["config"]])
def test_help_shows_the_first_sentence_of_each_command_whole_in_80_columns(words):
    lines = hybridlab(*words, "--help", cwd=ROOT).stdout.splitlines()
    commands = " ".join(lines[lines.index("Commands:") :])
    assert max(map(len, lines)) <= 80 and "..." not in commands
    assert words or "for `pretrain --arch consa --masks`." in commands


def test_python_m_hybridlab():
    done = subprocess.run(
        [sys.executable, "-m", "hybridlab", "reproduce", "consa-tabel4"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "did you mean 'consa-table4'" in done.stderr


# ---- list ----


def ids(*arguments):
    return [entry["id"] for entry in json_of(hybridlab("list", *arguments, "--json", cwd=ROOT))["entries"]]


def test_ids_are_in_the_order_of_their_numbers():
    names = ["b-fig10", "b-fig2", "a-table1", "b-2", "b-fig", "a-table1b"]
    assert sorted(names, key=natural) == ["a-table1", "a-table1b", "b-2", "b-fig", "b-fig2", "b-fig10"]
    assert ids() == experiment_ids()
    figures = [name for name in experiment_ids() if name.startswith("sgt-fig")]
    assert figures == [f"sgt-fig{number}" for number in range(1, 16)]


@pytest.mark.long
def test_lists_are_filtered():
    assert ids("SGT", "fig1") == ["sgt-fig1", *(f"sgt-fig{number}" for number in range(10, 16))]
    assert ids("sgt-fig?") == [f"sgt-fig{number}" for number in range(1, 10)]
    own = ["allocation", "answers", "depth", "ladder", "pretrained"]
    tables = [f"consa-{name}" for name in (*own, *(f"table{number}" for number in (1, 2, 3, 4)))]
    assert ids("--kind", "table", "--paper", "consa") == tables
    assert "consa-table4" in ids("FLOPs") and ids("nothing like this") == []
    divided = ids("--paper", "consa", "--not-done") + ids("--paper", "consa", "--done")
    assert sorted(divided, key=natural) == [name for name in experiment_ids() if name.startswith("consa")]
    assert ids("consa-fig1", "--done") and ids("consa-fig1", "--done", "--results-dir", "/nowhere") == []


def test_an_empty_list_says_so():
    done = hybridlab("list", "nothing like this", cwd=ROOT)
    assert done.returncode == 0 and done.stdout == "" and "nothing matches" in done.stderr


def test_archs_and_sizes_are_filtered():
    archs = json_of(hybridlab("list", "--archs", "SpiralFormer-*", "--json", cwd=ROOT))["archs"]
    assert [row["name"] for row in archs] == ["spiral-b", "spiral-l"]
    sizes = json_of(hybridlab("list", "--sizes", "consa", "--json", cwd=ROOT))["sizes"]
    assert {"consa-0.6b", "consa-1.7b"} <= {row["name"] for row in sizes}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kind", "figur"], "--kind figur: there is no such kind; did you mean 'figure'?"),
        (["--paper", "consaa"], "--paper consaa: there is no such paper; did you mean 'consa'?"),
        (["--archs", "--kind", "table"], "--kind has no effect on --archs; leave it out"),
        (["--sizes", "--done"], "--done has no effect on --sizes; leave it out"),
    ],
)
def test_wrong_filters(words, message):
    done = hybridlab("list", *words, cwd=ROOT)
    assert done.returncode == 2 and done.stderr == f"error: {message}\n"


# ---- widths ----


def on_terminal(columns, *words):
    """The lines that a command prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    program = [sys.executable, "-m", "hybridlab", *words]
    child = subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environment)
    os.close(slave)
    received, ends = b"", time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal is closed when the command has ended
            break
        if not part:
            break
        received += part
    os.close(master)
    assert child.wait(10) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received.decode())
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.long
def test_tables_are_as_wide_as_the_terminal():
    narrow, wide = on_terminal(80, "list", "sgt"), on_terminal(160, "list", "sgt")
    assert max(map(len, narrow)) <= 80 < max(map(len, wide)) <= 160 and len(wide) < len(narrow)


def test_without_a_terminal_tables_have_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(len(line.rstrip()) for line in hybridlab("list", cwd=ROOT).stdout.splitlines()) <= 80
    monkeypatch.setenv("COLUMNS", "130")
    lines = hybridlab("list", cwd=ROOT).stdout.splitlines()
    assert 80 < max(len(line.rstrip()) for line in lines) <= 130


def test_a_report_has_fewer_panels_where_there_is_room(tmp_path, monkeypatch):
    """Tables are split into panels of columns that fit beside the names of the rows."""
    lines = {}
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        arguments = ["report", "consa-table4", "--results-dir", tmp_path]
        lines[columns] = hybridlab(*arguments, cwd=ROOT).stdout.splitlines()
        assert max(len(line.rstrip()) for line in lines[columns]) <= columns
    assert len(lines[200]) < len(lines[80])
