"""What the code of users returns is checked where hybridlab gets it, and an exception of it is told by its line."""

import math
import re

import numpy as np
import pytest
import torch

import hybridlab
from hybridlab.analysis.probe import Probe
from hybridlab.data.primitives import ChoiceItem, Primitive, items
from hybridlab.data.sources import Source, read_documents
from hybridlab.data.tasks import Task, TaskRow, make_row
from hybridlab.registry import CHOICES, PROBES, SOURCES, TASKS
from hybridlab.training.store.metrics import TAKEN, read_metrics
from tests.conftest import SMALL_SHAPE
from tests.integration.test_cli import hybridlab as command
from tests.plugins import fresh_plugins

SETTINGS = {
    "shape": {**SMALL_SHAPE, "layers": 2},
    "training": {"tokens_per_step": 256, "seq_len": 32, "schedule.warmup_steps": 2},
    "data.tokenizer": "byte",
    "evaluation.validation_windows": 8,
}


@pytest.fixture
def train(tmp_path, text_file, runs):
    """A function: the methods of a hook, as functions or what they return → a run of two steps with it."""

    def small(settings=None, **methods):
        made = {name: method if callable(method) else lambda self, *a, m=method: m for name, method in methods.items()}
        hook = type("Mine", (hybridlab.Hook,), {"name": "mine", "version": "1", **made})()
        more = {"data": f"text:{text_file}", "runs_dir": runs, "run_dir": tmp_path / "run", "quiet": True}
        return hybridlab.train(steps=2, settings={**SETTINGS, **(settings or {})}, hooks=[hook], **more)

    return small


def test_the_names_that_no_hook_can_take_are_those_of_the_log(train):
    """None from a method is what the base class returns."""
    nothing = ("after_step", "penalty", "forward_inputs", "state", "finish", "parameter_groups", "logs")
    run = train(**dict.fromkeys(nothing))
    logged = {name for line in read_metrics(run.path / "metrics.jsonl") for name in line}
    assert logged | {"event", "redone"} == TAKEN and run.record.hooks == {"mine": {}}


@pytest.mark.parametrize("name", [*sorted(TAKEN), "final/loss"])
def test_a_number_of_the_run_is_not_overwritten(train, name):
    with pytest.raises(hybridlab.UserError, match=rf"Mine.after_step .*py:\d+\) returned a number called '{name}'"):
        train(after_step={name: 1.0})


def test_a_number_of_another_hook_is_not_overwritten(train):
    with pytest.raises(hybridlab.UserError, match="called 'validation_loss_of_mine', as another hook logs one"):
        train({"evaluation.every": 2}, after_step={"validation_loss_of_mine": 1.0})


def test_numbers_of_all_kinds_are_logged(train):
    given = {"a": torch.ones(1), "b": np.float32(2), "c": np.int64(3), "d": np.ones(1), "e": True, "f": 4}
    run = train(after_step=given)
    line = read_metrics(run.path / "metrics.jsonl")[-1]
    assert {name: line[name] for name in given} == {"a": 1, "b": 2, "c": 3, "d": 1, "e": 1, "f": 4}


TERM = "it must return a tensor of one number that is computed from parameters"


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("after_step", 3, "returned 3 (int); it must return a dict"),
        ("after_step", {"a": "x"}, "returned {'a': 'x'} (dict); it must return a dict"),
        ("after_step", {"a": torch.ones(2)}, "it must return a dict with the names of numbers"),
        ("after_step", {1: 2.0}, "it must return a dict with the names of numbers"),
        ("penalty", 0.1, f"Mine.penalty (x) returned 0.1 (float); {TERM}"),
        ("penalty", torch.tensor(1.0), "returned Tensor of shape () and type float32 without a gradient"),
        ("penalty", torch.ones(3, requires_grad=True), f"returned Tensor of shape (3,) and type float32; {TERM}"),
        ("penalty", torch.ones((), dtype=torch.complex64, requires_grad=True), TERM),
        ("after_forward", 0.1, f"Mine.after_forward (x) returned 0.1 (float); {TERM}"),
        ("after_forward", torch.tensor(1.0), "without a gradient, which would change nothing"),
        ("forward_inputs", {"gatez": 1}, "returned an argument 'gatez' of the forward pass; it can give"),
        ("forward_inputs", {"input_ids": 1}, "returned an argument 'input_ids' of the forward pass"),
        ("parameter_groups", [3], "it must return a list of hybridlab.training.optimizer.Group"),
        ("logs", "x", "it must return True or False"),
        ("state", {"x": torch.ones(2)}, "under 'x', which cannot be written as JSON"),
        ("finish", {"x": {"y": math.nan}}, "returned nan (float) under 'x.y', which cannot be written as JSON"),
        ("finish", [1], "Mine.finish (x) returned [1] (list)"),
        ("finish", {"warnings": "no"}, "it must return its `warnings` as a list of sentences"),
    ],
)
def test_a_wrong_value_of_a_hook_is_one_sentence(train, method, value, message):
    with pytest.raises(hybridlab.UserError) as told:
        train(**{method: lambda self, *arguments: value})
    said = re.sub(r"\(\S*test_code_of_users.py:\d+\)", "(x)", str(told.value))
    assert message in said


def test_a_hook_is_not_called_as_a_measurement_is(runs):
    hook = type("Mine", (hybridlab.Hook,), {"name": "validation-log", "version": "1"})()
    with pytest.raises(hybridlab.UserError, match="Mine .*is called 'validation-log'; its name must be a text"):
        hybridlab.train(steps=2, settings=SETTINGS, hooks=[hook], data="embedded", runs_dir=runs, quiet=True)


@pytest.mark.parametrize(
    ("method", "value", "named"),
    [
        ("after_step", {"a": math.nan}, "returned nan as 'a' at step 2"),
        ("after_step", {"a": torch.tensor(math.inf)}, "returned inf as 'a' at step 2"),
        ("penalty", torch.tensor(math.nan, requires_grad=True), "returned nan at step 1"),
        ("after_forward", torch.tensor(math.nan, requires_grad=True), "returned nan at step 1"),
    ],
)
def test_what_is_not_finite_is_named_for_its_hook(train, tmp_path, method, value, named):
    with pytest.raises(hybridlab.RunFailed) as told:
        train(**{method: lambda self, *arguments: value})
    assert named in str(told.value) and "learning rate" not in str(told.value) and "py:" in str(told.value)
    assert '"status": "failed"' in (tmp_path / "run" / "record.json").read_text()


@pytest.mark.parametrize("method", ["penalty", "after_step", "finish"])
def test_an_exception_of_a_hook_is_a_failed_run(train, tmp_path, method):
    def broken(self, *arguments):
        return {}["k"]

    with pytest.raises(
        hybridlab.RunFailed, match=r"broken \(.*test_code_of_users.py:\d+\) raised KeyError: 'k'"
    ) as told:
        train(**{method: broken})
    trace = told.value.__cause__.__traceback__
    assert trace.tb_frame.f_code is broken.__code__, "the traceback of the cause begins in the user's code"
    assert '"status": "failed"' in (tmp_path / "run" / "record.json").read_text()


def test_the_command_says_it_in_a_line(tmp_path, text_file):
    (tmp_path / "bad.py").write_text(
        "from hybridlab import Hook, register_hook\n\n@register_hook('bad')\nclass Bad(Hook):\n"
        "    def after_step(self, run, step):\n        return {}['k']\n"
    )
    words = ["--steps", 2, "--data", f"text:{text_file}", "--set", "data.tokenizer=byte", "--run-dir", "run"]
    sets = [f"shape.{name}={value}" for name, value in {**SMALL_SHAPE, "layers": 2}.items()]
    words += [word for text in [*sets, "training.seq_len=32", "hooks=[{kind: bad}]"] for word in ("--set", text)]
    done = command("--plugin", "bad.py", "pretrain", *words, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "failed: Bad.after_step (bad.py:6) raised KeyError: 'k'"


# ---- other code ----


@pytest.fixture
def own():
    with fresh_plugins():
        yield


def a_row(**parts):
    whole = {"tokens": np.zeros(8, dtype=int), "answers": np.array([7]), "distances": np.array([4])}
    whole |= {"options": np.array([[0, 1]]), "open": np.ones(1, dtype=bool), **parts}
    return TaskRow(**whole)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "returned None; it must return a TaskRow"),
        (a_row(tokens=[0] * 8), "must return a TaskRow whose tokens are a numpy array of whole numbers"),
        (a_row(answers=np.array([9])), "it must return answers that are positions in the row"),
        (a_row(distances=np.array([1, 2])), "whose distances are a numpy array of whole numbers, one for each answer"),
        (a_row(open=np.ones(1)), "whose open are a numpy array of truth values"),
        (a_row(options=np.array([[1, 2]])), "options among which the token of each answer is"),
    ],
)
def test_a_row_of_a_task(own, row, message):
    TASKS.add("mine", Task(lambda length, rng: row, chance=0.5, ids=8))
    with pytest.raises(hybridlab.UserError) as told:
        make_row("mine", 8, np.random.default_rng(0))
    assert message in str(told.value) and "test_code_of_users.py:" in str(told.value)


@pytest.mark.parametrize(("given", "message"), [("abc", "returned 'abc'"), (3, "returned 3"), ([3], "as document 1")])
def test_documents_of_a_source(own, given, message):
    SOURCES.add("mine", Source("mine:X", lambda argument, field: given))
    with pytest.raises(hybridlab.UserError, match="must return an iterator of texts") as told:
        next(read_documents("mine:x"))
    assert message in str(told.value)


def test_documents_of_a_source_as_a_list(own):
    SOURCES.add("mine", Source("mine:X", lambda argument, field: ["a", "b"]))
    assert list(read_documents("mine:x")) == ["a", "b"]


@pytest.mark.parametrize("item", [None, ChoiceItem("q", ("a",), 0), ChoiceItem("q", ("a", "b"), 2)])
def test_an_item_of_a_primitive(own, item):
    CHOICES.add("mine", Primitive(lambda rng: item, chance=0.5))
    try:
        with pytest.raises(hybridlab.UserError, match="it must return a ChoiceItem"):
            items("mine", 1, 0)
    finally:
        CHOICES.remove("mine")


@pytest.mark.parametrize(
    ("found", "message"),
    [(None, "returned None"), ({"x": torch.ones(2)}, "under 'x', which cannot be written as JSON")],
)
def test_the_result_of_a_probe(found, message):
    model = hybridlab.build_model("vanilla", shape={"layers": 2})
    probe = Probe(lambda model, corpus, seq_len: found, print)
    with pytest.raises(hybridlab.UserError) as told:
        probe.run(model, None, 8)
    assert message in str(told.value)
    with pytest.raises(hybridlab.UserError, match="must return texts and hybridlab.analysis.probe.Table"):
        list(Probe(print, lambda found: [3]).parts({}))


def test_what_is_registered_is_of_its_kind(own):
    for registry, kind in ((PROBES, "Probe"), (TASKS, "Task"), (SOURCES, "Source")):
        with pytest.raises(hybridlab.UserError, match=f"'mine' is .*; it must be a {kind} "):
            registry.add("mine", print)
