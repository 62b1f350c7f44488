"""Random settings, experiment files and command lines: each runs, or ends in one sentence; no traceback, no hang.

    pytest tests/integration/test_fuzzing.py --faults 100 --fault-seed 7

asks for 500 of each kind; a failing one is shrunk by hypothesis.
"""

import json
import signal
import time
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hybridlab.config.resolve import resolve
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers.loading import experiment_ids
from tests.conftest import ROOT, SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab
from tests.integration.test_several_processes import METHODS

_SECONDS = 60
"""A command that takes longer hangs."""


@pytest.fixture
def fuzz(request):
    """A decorator of a check with random arguments: calls it with so many of them as were asked for."""

    def run(**strategies):
        def decorated(check):
            count, first = (request.config.getoption(name) for name in ("--faults", "--fault-seed"))
            quiet = settings(max_examples=5 * count, deadline=None, database=None, suppress_health_check=HealthCheck)
            quiet(seed(first)(given(**strategies)(check)))()

        return decorated

    return run


@pytest.fixture
def folder(tmp_path):
    """A working folder with a text and the settings of a small run of one step."""
    write_text(tmp_path / "words.txt", 20_000)
    runtime = {"threads": 1, "checkpoint_seconds": None}
    evaluation = {"validation_windows": 2, "task_rows": 2}
    base = {"shape": {**SMALL_SHAPE, "layers": 4}, "training": {**SMALL_TRAINING, "steps": 1}, "window": 4}
    base["training"] |= {"schedule": {"name": "cosine", "warmup_steps": 0}}
    settings = {**base, "data": {"tokenizer": "byte"}, "evaluation": evaluation, "runtime": runtime}
    (tmp_path / "small.yaml").write_text(json.dumps(settings))
    return tmp_path


@contextmanager
def in_time():
    def late(*_):
        raise AssertionError(f"no end after {_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends_well(*arguments, cwd):
    """A command ends with success, or with a message of what was wrong. Every other error escapes from here."""
    with in_time():
        done = hybridlab(*arguments, cwd=cwd)
    assert done.returncode in (0, 1, 2), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith(("error:", "failed:", "Error", "Usage:"))]
    assert done.returncode == 0 or said, done.stderr
    assert "Traceback" not in done.stderr


def test_a_traceback_and_a_hang_are_noticed(tmp_path, monkeypatch):
    """Positive control of all tests here."""
    monkeypatch.setattr("hybridlab.lab.papers.listing.entries", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ends_well("list", cwd=tmp_path)
    monkeypatch.setattr("tests.integration.test_fuzzing._SECONDS", 1)
    monkeypatch.setattr("hybridlab.lab.papers.listing.entries", lambda *_: time.sleep(5))
    with pytest.raises(AssertionError, match="no end after"):
        ends_well("list", cwd=tmp_path)


def leaves(values, before=""):
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


ODD = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([2**31, 2**63, 10**30, -1, 0, 0.5, -0.0, 1e-300, 1e300]),
    st.sampled_from(
        ["", "null", "true", "[]", "{}", "[1,2]", "{a: 1}", "nan", "inf", "-inf", ".5", "1e3", "12:30", "~"]
    ),
    st.sampled_from(
        ["full", "cosine", "fp32", "bf16", "adamw", "auto", "cpu", "cuda", "head-single", "text:words.txt"]
    ),
    st.floats(allow_nan=False).map(repr),
    st.text(max_size=8),
)


def test_settings(fuzz, folder):
    names = sorted(
        {leaf for arch in METHODS for leaf in leaves(resolve(arch, "tiny").model_dump(mode="json"))}
        | {"training.stepz", "shape", "map", "plan", "hooks", "plan.0", "data.sources", ".", "training.", "a.b.c.d"}
    )
    one = st.tuples(st.sampled_from(names), ODD).map(lambda pair: f"--set={pair[0]}={pair[1]}")
    runs = iter(range(10**6))

    @fuzz(arch=st.sampled_from(sorted(METHODS)), sets=st.lists(one, min_size=1, max_size=3))
    def check(arch, sets):
        method = ["--masks", "masks.json"] if arch == "consa" else []
        own = ["--config", "small.yaml", "--data", "text:words.txt", "--run-dir", f"run-{next(runs)}"]
        ends_well("pretrain", "--arch", arch, *own, *method, *sets, cwd=folder)


def test_experiment_files(fuzz, folder):
    files = {path.stem: path.read_text() for path in sorted((ROOT / "experiments").rglob("*.yaml"))}
    change = st.tuples(st.sampled_from(["drop", "double", "value", "indent", "cut", "swap"]), st.floats(0, 1), ODD)

    @fuzz(name=st.sampled_from(sorted(files)), changes=st.lists(change, min_size=1, max_size=3))
    def check(name, changes):
        text = files[name]
        for kind, place, value in changes:
            lines = text.split("\n")
            number = min(int(place * len(lines)), len(lines) - 1)
            if kind == "drop":
                del lines[number]
            elif kind == "double":
                lines.insert(number, lines[number])
            elif kind == "value":
                lines[number] = f"{lines[number].partition(':')[0]}: {value}"
            elif kind == "indent":
                lines[number] = f"  {lines[number]}"
            elif kind == "swap":
                lines[number], lines[0] = lines[0], lines[number]
            text = "\n".join(lines)[: int(place * len(text)) if kind == "cut" else None]
        (folder / "mine.yaml").write_text(text, errors="replace")
        ends_well("reproduce", "./mine.yaml", "--dry-run", cwd=folder)


@pytest.mark.long
def test_command_lines(fuzz, folder):
    import typer

    commands = typer.main.get_command(app).commands
    options = {
        name: [o for p in command.params for o in p.opts if o.startswith("--")] for name, command in commands.items()
    }
    words = st.one_of(
        st.sampled_from(
            [".", "..", "/", "nowhere", "words.txt", "small.yaml", "run", "-", "--", "=", *experiment_ids()[:5]]
        ),
        ODD.map(str),
    )
    # What could train for long, or load what is not there.
    left_out = {"--ranks", "--launcher", "--jobs", "--plugin", "--help", "--steps", "--extend"}

    @fuzz(name=st.sampled_from(sorted(options)), data=st.data())
    def check(name, data):
        arguments = [name]
        known = sorted(set(options[name]) - left_out)
        for _ in range(data.draw(st.integers(0, 4))):
            if known and data.draw(st.booleans()):
                arguments.append(data.draw(st.sampled_from(known)))
            arguments.append(data.draw(words))
        if name in ("pretrain", "grow", "learn-masks", "finetune", "ablate"):
            arguments += ["--steps", "1"]
        if name in ("reproduce", "compare"):
            arguments += ["--dry-run"]
        ends_well(*arguments, cwd=folder)
