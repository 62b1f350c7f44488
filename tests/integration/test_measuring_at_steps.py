"""Measurements at several steps of one run: what they are, that training does not change, kills, and refusals."""

import pytest
import torch

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.runs.budget import within_budget
from hybridlab.runs.record import number_at, read_record
from hybridlab.training.engine import Run
from tests.combinations import combinations
from tests.integration.test_engine import LEARN
from tests.training import assert_resumes_exactly, assert_survives_kills, growing, train, train_until, weights

TASKS = {"mix": {"text": 0.5, "retrieval": 0.25, "assignment": 0.0, "chain": 0.25}}
AT = {"at_steps": [0, 5, 12], "task_window": 4, "task_rows": 4, "probes": ["entropy"]}


def made(small, arch="vanilla", **evaluation):
    parts = {"evaluation": {**AT, **evaluation}, "data": TASKS}
    if arch == "spiral-b":
        parts |= {"recurrence": {"pre": 1, "loop": 1, "post": 1}}
    if arch == "sgt":
        grows = growing(small, 12)
        return grows.model_copy(update={name: getattr(small(**parts), name) for name in ("evaluation", "data")})
    return small(arch, **parts, **(LEARN if arch in ("consa", "l1-gates") else {}))


@pytest.mark.parametrize("arch", ["vanilla", "consa", "l1-gates", "sgt", "spiral-b"])
def test_the_bits_of_training_are_the_same_with_and_without(small, tmp_path, runs_dir, arch):
    measured = train(made(small, arch), tmp_path / "measured", runs_dir)
    plain = train(made(small, arch, at_steps=None), tmp_path / "plain", runs_dir)
    one, two = weights(tmp_path / "plain"), weights(tmp_path / "measured")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert measured.results.model_copy(update={"at": {}}) == plain.results and plain.results.at == {}
    assert list(measured.results.at) == ["0", "5", "12"] and "at-steps" not in measured.hooks
    for result in measured.results.at.values():
        assert result.validation.loss.n == 8 and list(result.tasks) == ["retrieval", "chain"]
        assert result.tasks["chain"].loss.far.value > 0 and result.tasks["retrieval"].far.n > 0
        assert "skipped" not in result.probes["entropy"]


def test_the_last_step_is_the_final_result_and_step_0_the_initial_model(small, tmp_path, runs_dir):
    record = train(made(small), tmp_path / "a", runs_dir)
    last, first = record.results.at["12"], record.results.at["0"]
    assert (last.validation, last.tasks) == (record.results.validation, record.results.tasks)
    assert last.probes == record.results.probes != first.probes
    assert first.validation.loss.value > record.results.at["5"].validation.loss.value
    schedule = {"name": "wsd", "decay_fraction": 0.0}
    short = small(data=TASKS, evaluation={**AT, "at_steps": None}, training={"steps": 5, "schedule": schedule})
    config = small(data=TASKS, evaluation=AT, training={"schedule": schedule})
    five = train(short, tmp_path / "five", runs_dir).results
    there = train(config, tmp_path / "twelve", runs_dir).results.at["5"]
    assert (there.validation, there.tasks) == (five.validation, five.tasks)
    read = read_record(tmp_path / "a" / "record.json")
    assert (
        number_at(read, "results.at.5.tasks.retrieval.loss.far").value
        == record.results.at["5"].tasks["retrieval"].loss.far.value
    )


def test_a_run_from_other_weights_begins_with_their_result(small, tmp_path, runs_dir):
    parent = train(small(data=TASKS, evaluation={"task_window": 4}), tmp_path / "parent", runs_dir)
    (runs_dir / parent.hash).symlink_to(tmp_path / "parent")
    child = small(data=TASKS, evaluation=AT, init={"run": parent.hash}, training={"seed": 3})
    record = train(child, tmp_path / "child", runs_dir)
    assert record.results.at["0"].validation == parent.results.validation


@pytest.mark.long
@combinations("step, arch", [0, 3, 7], ["vanilla", "consa", "sgt"], together=1)
def test_a_resumed_run_has_what_was_measured_before(small, tmp_path, runs_dir, monkeypatch, arch, step):
    config = made(small, arch)
    whole = train(config, tmp_path / "whole", runs_dir)
    record = assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step)
    assert list(record.results.at) == ["0", "5", "12"] and record.results.at == whole.results.at


def test_what_is_in_the_checkpoint_is_not_measured_again(small, tmp_path, runs_dir, monkeypatch):
    train_until(made(small), tmp_path / "a", runs_dir, monkeypatch, 9)
    measured = []
    monkeypatch.setattr("hybridlab.evaluation.while_training.AtSteps._measure", lambda *a: measured.append(a[1].step))
    train(made(small), tmp_path / "a", runs_dir)
    assert measured == [12]


@pytest.mark.long
def test_measurements_survive_real_kills(small, tmp_path, runs_dir):
    assert_survives_kills(made(small), tmp_path, runs_dir, [2, 6, 9])


def test_steps_that_a_run_does_not_have_are_refused(small):
    with pytest.raises(
        UserError, match="evaluation.at_steps: there is no step 13 in a run of 12 steps; leave it out, or"
    ):
        small(settings=["evaluation.at_steps=[0,13]"])
    with pytest.raises(UserError, match="at_steps"):
        small(settings=["evaluation.at_steps=[-1]"])
    with pytest.raises(UserError, match="evaluation.at_steps: budget.flops buys 2 steps, there is no step 12"):
        within_budget(small(settings=["evaluation.at_steps=[12]", "budget.flops=1e8"]))
    with pytest.raises(UserError, match="runtime.keep_steps: budget.flops buys 2 steps, there is no step 3"):
        within_budget(small(settings=["runtime.keep_steps=[3]", "budget.flops=1e8"]))
    assert within_budget(small(settings=["runtime.keep_steps=[20]", "budget.flops=1e9"])).training.steps >= 20


def test_a_step_before_an_extension_is_refused_unless_the_shorter_run_measured_it(small, tmp_path, runs_dir):
    keep = {"runtime": {"keep_optimizer": True}}
    for name, evaluation in (("without", {}), ("with", {"at_steps": [4]})):
        record = train(small(evaluation=evaluation, **keep), tmp_path / name, runs_dir)
        (runs_dir / record.hash).symlink_to(tmp_path / name)
        longer = {"init": {"run": record.hash, "load": "all"}, "training": {"steps": 16}}
        config = small(evaluation={"at_steps": [4, 12, 14]}, **longer, **keep)
        if name == "without":
            with pytest.raises(UserError, match="at_steps: step 4 is over in a run that goes on after step 12"):
                train(config, tmp_path / "longer", runs_dir)
            config = small(evaluation={"at_steps": [12, 14]}, **longer, **keep)
        at = train(config, tmp_path / f"{name}-longer", runs_dir).results.at
        assert list(at) == (["12", "14"] if name == "without" else ["4", "12", "14"])
        assert at["12"].validation == record.results.validation


def test_steps_are_kept_in_order_and_none_is_the_default(small):
    plain = run_hash(small())
    assert run_hash(small(settings=["evaluation.at_steps=[]"])) == plain
    assert run_hash(small(settings=["evaluation.at_steps=null"])) == plain
    ordered = small(settings=["evaluation.at_steps=[5,0,5]"])
    assert ordered.evaluation.at_steps == [0, 5] and run_hash(ordered) != plain


def test_time_of_measurements_is_no_time_of_training(small, tmp_path, runs_dir, monkeypatch):
    paused = Run.paused
    calls = []
    monkeypatch.setattr(Run, "paused", lambda run: calls.append(run.step) or paused(run))
    train(small(evaluation=AT), tmp_path / "a", runs_dir)
    assert calls == [0, 5, 12]
