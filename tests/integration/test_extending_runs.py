"""Runs that are extended: a shorter run and its extension are the longer run, bit for bit."""

import json
import shutil

import pytest

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from hybridlab.models.export import read_model_config
from hybridlab.runs.compose import Request, compose
from hybridlab.runs.extension import extension
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import read_metrics
from tests.integration.test_cli import hybridlab, json_of
from tests.integration.test_engine import LEARN
from tests.training import assert_same_results, assert_same_run, growing, logged, train, train_until

CONSTANT = {"schedule": {"name": "wsd", "decay_fraction": 0.0, "warmup_steps": 2}}
MEASURED = {"validation_windows": 8, "task_rows": 8, "every": 4, "keep_best": True}


def configuration(small, arch, steps):
    """A run of some steps at a constant learning rate."""
    if arch == "sgt":
        controller = {"start_step": 4, "interval": 4, "fade_steps": 6}
        made = growing(small, steps, **controller)
    elif arch == "consa":
        learn = {"controller": {**LEARN["controller"], "schedule": {"name": "wsd", "decay_fraction": 0.0}}}
        made = small("consa", training={"steps": steps}, **learn)
    else:
        mix = {"text": 0.5, "retrieval": 0.5, "assignment": 0.0}
        made = small(training={"steps": steps, "skip_steps": 3}, data={"mix": mix})
        made = made.model_copy(update={"evaluation": small(evaluation=MEASURED).evaluation})
    schedule = small(training=CONSTANT).training.schedule
    return kept(made.model_copy(update={"training": made.training.model_copy(update={"schedule": schedule})}))


def kept(config):
    """The configuration of a run that keeps its optimizer."""
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"keep_optimizer": True})})


def extended(runs, start, steps, *settings):
    """The configuration of an extension, and the runs it was found in."""
    places = Runs(runs)
    return extension(str(start), steps, places, Layer(), list(settings)), places


def go_on(runs, start, steps, name, *settings):
    config, places = extended(runs, start, steps, *settings)
    return train_run(config, RunFolder(runs / name), places)


@pytest.mark.parametrize("arch", ["vanilla", "consa", "sgt"])
def test_a_run_and_its_extension_are_the_longer_run(small, runs, arch):
    """Growth is due after step 12, the last one of the shorter run, which has heads that fade and two more layers to
    grow; the masks that it has fixed are learned further."""
    shorter = train(configuration(small, arch, 12), runs / "shorter", runs)
    said = []
    with heard_by(said.append):
        record = go_on(runs, runs / "shorter", 6, "longer")
    train(configuration(small, arch, 18), runs / "whole", runs)
    assert_same_results(runs / "whole", runs / "longer")
    # The longer run has grown when it writes the line of step 12, the shorter one grows after it.
    logs = [
        [line for line in logged(runs / name) if line.get("step") not in (None, 12)] for name in ("whole", "longer")
    ]
    assert logs[0] == logs[1] and len(logs[0]) == 17
    assert record.extended.run == shorter.hash and record.extended.step == 12 and record.steps == 18
    assert record.parents == [shorter.hash] and record.history["step"] == [float(step) for step in range(1, 19)]
    # Both are rounded to tenths of a second.
    init = {"run": shorter.hash, "load": "all", "step": None}
    assert record.seconds >= shorter.seconds and record.config["init"] == init
    assert any("going on after step 12 of" in line and "a run of 18 steps (wsd): 0.00" in line for line in said), said
    if arch == "vanilla":
        one, two = (json.loads((runs / name / "best" / "config.json").read_text()) for name in ("whole", "longer"))
        assert one["lineage"]["step"] == two["lineage"]["step"] == 18


@pytest.mark.long
def test_an_extension_that_is_killed_resumes_exactly(small, runs, monkeypatch):
    train(configuration(small, "sgt", 12), runs / "shorter", runs)
    go_on(runs, runs / "shorter", 8, "whole")
    config, places = extended(runs, runs / "shorter", 8)
    for step in (13, 17):  # before the first checkpoint of its own, and after it
        train_until(config, runs / "cut", runs, monkeypatch, step)
    shutil.rmtree(runs / "shorter" / "checkpoints")  # it has checkpoints of its own now
    train_run(config, RunFolder(runs / "cut"), places)
    assert_same_run(runs / "whole", runs / "cut")


def test_the_best_weights_of_the_shorter_run_stay_the_best(small, runs):
    """With a huge learning rate the loss rises after the extension."""
    shorter = train(configuration(small, "vanilla", 12), runs / "shorter", runs)
    record = go_on(runs, runs / "shorter", 4, "longer", "training.optimizer.lr=0.5")
    assert record.hooks["validation-log"]["best_step"] == 12 == shorter.hooks["validation-log"]["best_step"]
    best = [(runs / name / "best" / "model.safetensors").read_bytes() for name in ("shorter", "longer")]
    assert best[0] == best[1]


def test_an_extension_is_extended_and_may_measure_more(small, runs):
    train(kept(small(training=CONSTANT)), runs / "a", runs)
    go_on(runs, runs / "a", 3, "b")
    record = go_on(runs, runs / "b", 3, "c", "evaluation.every=2")
    train(small(training={**CONSTANT, "steps": 18}), runs / "whole", runs)
    lines = [[line["loss"] for line in read_metrics(runs / name / "metrics.jsonl")] for name in ("whole", "c")]
    assert lines[0] == lines[1] and record.steps == 18
    assert record.hooks["validation-log"]["steps"] == [16, 18]


def test_validation_losses_on_other_windows_are_not_joined(small, runs):
    """Neither in the record nor in the log; the lowest loss on the other windows keeps no weights either."""
    train(kept(small(training=CONSTANT, evaluation=MEASURED)), runs / "a", runs)
    for name, setting, steps in [
        ("same", "evaluation.every=2", [4, 8, 12, 14, 16]),
        ("fewer", "evaluation.every_windows=3", [16]),
        ("more", "evaluation.validation_windows=12", [16]),
    ]:
        record = go_on(runs, runs / "a", 4, name, setting, "training.optimizer.lr=0.5")
        assert record.hooks["validation-log"]["steps"] == steps
        lines = read_metrics(runs / name / "metrics.jsonl")
        assert [line["step"] for line in lines if "validation_loss" in line] == steps
        assert all(("validation_loss_stderr" in line) == ("validation_loss" in line) for line in lines)
        assert [line["step"] for line in lines] == list(range(1, 17))
        best = json.loads((runs / name / "best" / "config.json").read_text())["lineage"]["step"]
        assert best == record.hooks["validation-log"]["best_step"] == (12 if name == "same" else 16)


def test_what_would_make_it_another_run_is_refused(small, runs):
    train(kept(small(training=CONSTANT)), runs / "a", runs)
    with pytest.raises(UserError, match="data.mix.text=0.5: a run that is extended can only change evaluation"):
        extended(runs, runs / "a", 3, "data.mix.text=0.5")
    with pytest.raises(UserError, match="training.steps=3: a run that is extended can only change"):
        extended(runs, runs / "a", 3, "training.steps=3")
    config = RunFolder(runs / "a").config()
    same = f"training.seq_len={config.training.seq_len}"
    assert extended(runs, runs / "a", 3, same)[0] == extended(runs, runs / "a", 3)[0]
    saved = runs / "a" / "final" / "config.json"
    content = json.loads(saved.read_text())
    for lineage in ("x", [], {"plugin_places": 3}):
        saved.write_text(json.dumps({**content, "lineage": lineage}))
        with pytest.raises(UserError, match="config.json: lineage is not what hybridlab writes there"):
            read_model_config(runs / "a" / "final")
    saved.write_text(json.dumps(content))
    with pytest.raises(UserError, match="a/best has no optimizer"):
        extended(runs, f"{runs}/a/best", 3)
    config, places = extended(runs, runs / "a", 3)
    seeded = config.model_copy(update={"training": config.training.model_copy(update={"seed": 5})})
    with pytest.raises(UserError, match="training.seed differs from .*a, so this would be another run"):
        train_run(seeded, RunFolder(runs / "b"), places)
    short = config.model_copy(update={"training": config.training.model_copy(update={"steps": 12})})
    with pytest.raises(UserError, match="training.steps = 12: .*a has done 12"):
        train_run(short, RunFolder(runs / "b"), places)
    shutil.rmtree(runs / "a" / "checkpoints")
    with pytest.raises(UserError, match=r"its optimizer is gone .*--from alone, or .*--keep-optimizer"):
        train_run(config, RunFolder(runs / "b"), places)
    assert not (runs / "b").exists()


def test_steps_before_an_extension_are_those_of_the_shorter_run(small, runs):
    config = kept(small(training=CONSTANT))
    runtime = config.runtime.model_copy(update={"keep_steps": [6]})
    train(config.model_copy(update={"runtime": runtime}), runs / "a", runs)
    with pytest.raises(UserError, match="runtime.keep_steps 6: this run begins after step 12; name later steps"):
        go_on(runs, runs / "a", 3, "b", "runtime.keep_steps=[6]")
    assert not (runs / "b").exists()
    go_on(runs, runs / "a", 3, "b", "runtime.keep_steps=[14]")
    assert RunFolder(runs / "b").checkpoint_steps == [14, 15]
    branch = compose(Request(start=str(runs / "b@6")), places := Runs(runs))
    with pytest.raises(UserError, match=r"b: it begins after step 12 of another run; .* --from .*/a@6"):
        train_run(branch, RunFolder(runs / "c"), places)


def test_an_unfinished_run_is_resumed_instead(small, runs, monkeypatch):
    train_until(small(), runs / "half", runs, monkeypatch, 6)
    with pytest.raises(UserError, match="has not finished"):
        extended(runs, runs / "half", 3)


def test_a_run_starts_from_the_best_weights_of_another(small, runs):
    config = small(training={**CONSTANT, "steps": 8}, evaluation=MEASURED)
    parent = train(config, runs / "parent", runs)
    path = runs / "parent" / "best" / "config.json"
    saved = json.loads(path.read_text())
    saved["lineage"]["step"] = 5
    path.write_text(json.dumps(saved))
    (path.parent / "digests.json").unlink()
    for start in (f"{runs}/parent/best", f"{parent.hash[:6]}/best"):
        child = compose(Request(arch="vanilla", start=start, settings=["training.steps=2"]), Runs(runs))
        assert child.init.run == parent.hash and child.init.load == "best" and child.training.skip_steps == 5
        assert child.evaluation.every == 4 and child.evaluation.keep_best is None
    final = compose(Request(arch="vanilla", start=str(runs / "parent"), settings=["training.steps=2"]), Runs(runs))
    assert final.init.load is None and final.training.skip_steps == 8 and run_hash(final) != run_hash(child)
    record = train_run(child, RunFolder(runs / "child"), Runs(runs))
    assert record.parents == [parent.hash]
    assert "best" in json.loads((runs / "child" / "run.json").read_text())["config"]["init"]["load"]


def test_extend_as_a_command(small, runs):
    parent = train(kept(small(training=CONSTANT)), runs / "a", runs)
    go = ["pretrain", "--runs-dir", runs, "--from", "a", "--extend", "3"]
    record = json_of(hybridlab(*go, "--run-dir", "b", "--json", cwd=runs))
    assert record["steps"] == 15 and record["extended"] == {"run": parent.hash, "step": 12}
    assert "finished before" in hybridlab(*go, "--run-dir", "b", cwd=runs).stderr
    cases = [
        (["pretrain", "--extend", "3"], "--extend: name the run to train longer with --from RUN"),
        ([*go, "--arch", "vanilla"], "--arch has no effect with --extend"),
        ([*go, "--steps", "3"], "--steps has no effect with --extend"),
    ]
    for arguments, message in cases:
        done = hybridlab(*arguments, cwd=runs)
        assert done.returncode == 2 and message in done.stderr, done.stderr


def test_weights_are_kept_from_the_extension_on_where_the_shorter_run_kept_none(small, runs):
    """Its lowest loss is the shorter run's, whose weights of that step are gone."""
    constant = {**CONSTANT, "steps": 8}
    train(kept(small(training=constant, evaluation={"every": 4})), runs / "a", runs)
    settings = ("evaluation.keep_best=true", "training.optimizer.lr=0.5")
    record = go_on(runs, runs / "a", 8, "b", *settings)
    losses = dict(zip(*(record.hooks["validation-log"][name] for name in ("steps", "loss")), strict=True))
    assert min(losses, key=losses.get) == 8
    best = json.loads((runs / "b" / "best" / "config.json").read_text())["lineage"]
    assert best["validation_loss"] == losses[best["step"]] == min(losses[12], losses[16])
