"""Branches: runs that go on from a middle step of another one, with its optimizer."""

import json
import shutil

import numpy as np
import pytest

from hybridlab.config.loading import Layer
from hybridlab.config.method import register_hook
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.data.batches import Batches
from hybridlab.errors import UserError
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale, run_cells
from hybridlab.messages import heard_by
from hybridlab.runs.compose import Request, compose
from hybridlab.runs.run import train_run
from hybridlab.training.engine import Hook
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import read_metrics
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.experiments import cell_configs
from tests.integration.test_cli import hybridlab, json_of
from tests.integration.test_engine import LEARN
from tests.plugins import fresh_plugins
from tests.training import assert_same_results, assert_same_run, growing, logged, train, train_until

MEASURED = {"validation_windows": 8, "task_rows": 8, "every": 3, "keep_best": True}


def keeping(config, *steps):
    """The configuration of a run that keeps the checkpoints of these steps."""
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"keep_steps": list(steps)})})


def branched(config, parent, step, **parts):
    """The configuration of a branch after a step of a run, with these settings changed."""
    init = {"run": parent.hash, "load": "all", "step": step}
    own = config.model_dump(mode="json", exclude={"plugins", "runtime"}) | {"init": init}
    own["runtime"] = {"threads": 1, "log_every": 1, "checkpoint_every": 4}
    names = {name: own.pop(name) for name in ("arch", "size")}
    for name, values in parts.items():
        own[name] = {**own[name], **values} if isinstance(values, dict) and isinstance(own[name], dict) else values
    return resolve(names["arch"], "tiny", layers=[Layer(own)])


def configuration(small, kind):
    if kind == "growth":
        return growing(small, 18, start_step=4, interval=4, fade_steps=6)
    if kind == "masks":
        return small("consa", training={"steps": 18}, **LEARN)
    mix = {"text": 0.5, "retrieval": 0.5, "assignment": 0.0}
    return small(
        training={"steps": 18, "skip_steps": 3}, data={"mix": mix}, evaluation={**MEASURED, "at_steps": [0, 7, 18]}
    )


@pytest.mark.parametrize(("kind", "step"), [("plain", 7), ("plain", 12), ("masks", 6), ("growth", 8), ("growth", 10)])
def test_a_branch_with_the_same_settings_is_the_run_itself(small, runs, kind, step):
    """After step 8 the growth acts, in step 10 heads fade."""
    config = configuration(small, kind)
    parent = train(keeping(config, step), runs / "whole", runs)
    assert [path.name for path in (runs / "whole" / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    record = train(branched(config, parent, step), runs / "branch", runs)
    assert_same_run(runs / "whole", runs / "branch")
    assert record.hash != parent.hash and record.parents == [parent.hash] and record.redone_steps == 0
    assert record.extended.run == parent.hash and record.extended.step == step
    assert record.history == parent.history and not (runs / "branch" / "checkpoints").exists()


def test_a_branch_that_is_killed_resumes_exactly(small, runs, monkeypatch):
    config = small(training={"steps": 18})
    parent = train(keeping(config, 6), runs / "parent", runs)
    child = branched(config, parent, 6, plan=[{"op": "loop_heads", "layer": 1, "heads": [2]}])
    train(child, runs / "whole", runs)
    for step in (7, 14):  # before the first checkpoint of its own, and after it
        train_until(child, runs / "cut", runs, monkeypatch, step)
    shutil.rmtree(runs / "parent" / "checkpoints")  # it has checkpoints of its own now
    train(child, runs / "cut", runs)
    assert_same_run(runs / "whole", runs / "cut")


def test_a_branch_has_the_numbers_of_every_step_of_its_trunk(small, runs):
    config = small(training={"steps": 8}, observe={"each_step": ["loss"]})
    parent = train(keeping(config, 5), runs / "parent", runs)
    record = train(branched(config, parent, 5, plan=[{"op": "skip", "layers": [1]}]), runs / "same", runs)
    both = [one.hooks["each-step"]["loss"] for one in (parent, record)]
    assert both[0][:5] == both[1][:5] and both[0][5] != both[1][5] and len(both[1]) == 8
    later = branched(config, parent, 5, observe={"each_step": ["loss", "lr"]})
    assert train(later, runs / "more", runs).hooks["each-step"]["first"] == 6


def test_a_branch_has_the_plan_of_its_own_settings_from_its_first_step_on(small, runs):
    config = small(training={"steps": 12})
    parent = train(keeping(config, 6), runs / "parent", runs)
    edit = {"op": "loop_heads", "layer": 1, "heads": [0, 3], "extra_passes": 1}
    record = train(branched(config, parent, 6, plan=[edit]), runs / "looped", runs)
    assert [(event["step"], event["kind"]) for event in record.events] == [(6, "branched")]
    lines = [[line for line in logged(runs / name) if "step" in line] for name in ("parent", "looped")]
    assert lines[0][:6] == lines[1][:6]
    assert all(a["loss"] != b["loss"] for a, b in zip(lines[0][6:], lines[1][6:], strict=True))
    # The learning rate is that of the whole run, and the FLOPs of the first steps are those of the plain plan.
    assert [line["lr"] for line in lines[0]] == [line["lr"] for line in lines[1]]
    assert lines[1][6]["flops"] - lines[1][5]["flops"] > lines[0][6]["flops"] - lines[0][5]["flops"]
    assert len(record.structure["plan"]["visits"]) > 3


def test_another_controller_begins_anew_and_counts_steps_from_the_start(small, runs):
    config = small(shape={"layers": 5}, training={"steps": 20}, evaluation={"task_window": None})
    parent = train(keeping(config, 8), runs / "parent", runs)
    grows = growing(small, 20, start_step=3, interval=3, fade_steps=0, layers=[4, 2], max_layers=None, max_passes=1)
    controller = grows.controller.model_dump(mode="json")
    record = train(branched(config, parent, 8, controller=controller), runs / "grown", runs)
    kinds = [(event["step"], event["kind"], event.get("layer")) for event in record.events]
    assert kinds == [(9, "loop-added", 4), (12, "loop-added", 2), (12, "growth-frozen", None)]
    # Without the controller, the run that has grown goes on with a plain plan.
    again = train(keeping(grows, 14), runs / "grows", runs)
    plain = train(branched(grows, again, 14, controller=None), runs / "plain", runs)
    assert [e["kind"] for e in plain.events] == ["loop-added", "loop-added", "growth-frozen", "branched"]
    assert len(plain.structure["plan"]["visits"]) == 5


def test_a_branch_is_measured_where_it_begins_with_its_own_plan(small, runs):
    config = small(training={"steps": 8}, evaluation={"at_steps": [4, 8]})
    parent = train(keeping(config, 4), runs / "parent", runs)
    skip = [{"op": "skip", "layers": [1]}]
    record = train(branched(config, parent, 4, plan=skip), runs / "shorter", runs)
    assert record.results.at["4"].validation.loss.value != parent.results.at["4"].validation.loss.value
    assert record.results.at["8"].validation == record.results.validation
    with pytest.raises(UserError, match=r"step 2 is over in .* after step 4; write evaluation.at_steps=\[8\]"):
        train(branched(config, parent, 4, plan=skip, evaluation={"at_steps": [2, 8]}), runs / "late", runs)


def test_a_controller_goes_on_with_its_structure_where_a_hook_is_gone(small, runs):
    with fresh_plugins():
        register_hook("watch")(type("Watch", (Hook,), {}))
        controller = growing(small, 20).controller.model_dump(mode="json", exclude_none=True)
        hooks = [{"kind": "watch"}]
        config = small("sgt", shape={"layers": 5}, controller=controller, training={"steps": 20}, hooks=hooks)
        parent = train(keeping(config, 10), runs / "parent", runs)
        record = train(branched(config, parent, 10, hooks=None), runs / "branch", runs)
    assert "branched" not in [event["kind"] for event in record.events]
    assert record.events == parent.events and record.results == parent.results


def test_steps_that_are_measured_are_not_inherited(small, runs):
    parent = train(keeping(small(evaluation={"at_steps": [2, 12]}), 4), runs / "parent", runs)
    for start in ("parent", "parent@4"):
        assert compose(Request(arch="vanilla", start=f"{runs}/{start}"), Runs(runs)).evaluation.at_steps is None
    with pytest.raises(UserError, match=f"--from {runs}/parent@0: init.step = 0"):
        compose(Request(arch="vanilla", start=f"{runs}/parent@0"), Runs(runs))
    assert parent.results.at.keys() == {"2", "12"}


def test_another_schedule_and_more_steps(small, runs):
    config = small(training={"steps": 12})
    parent = train(keeping(config, 6), runs / "parent", runs)
    schedule = {"name": "wsd", "warmup_steps": 0, "decay_fraction": 0.5, "final_ratio": 0.0}
    record = train(branched(config, parent, 6, training={"steps": 16, "schedule": schedule}), runs / "longer", runs)
    rates = [line["lr"] for line in logged(runs / "longer") if "step" in line]
    peak = config.training.optimizer.lr
    assert record.steps == 16 and rates[6:8] == [peak, peak] and rates[-1] == 0 and rates[0] == peak / 2


def test_other_data_is_read_from_the_place_of_the_step(small, runs, tmp_path, monkeypatch):
    """Two cooldowns from one checkpoint: one on the same text, one on another."""
    config = small(training={"steps": 12}, evaluation={"validation_windows": 8, "every": 4})
    parent = train(keeping(config, 6), runs / "parent", runs)
    other = {"source": f"text:{write_text(tmp_path / 'other.txt', seed=5)}"}
    asked, rows_of = [], Batches.rows

    def watched(self, step, part):
        asked.append((step, rows_of(self, step, part).tokens))
        return rows_of(self, step, part)

    monkeypatch.setattr(Batches, "rows", watched)
    on_it = train(small(training={"steps": 12}, data=other), runs / "alone", runs)
    record = train(branched(config, parent, 6, data=other), runs / "other", runs)
    # A validation loss on another text is not one of this run.
    assert record.hooks["validation-log"]["steps"] == [8, 12]
    lines = read_metrics(runs / "other" / "metrics.jsonl")
    assert [line["step"] for line in lines if "validation_loss" in line] == [8, 12]
    assert record.data.fingerprint == on_it.data.fingerprint != parent.data.fingerprint
    assert [step for step, _ in asked] == list(range(12)) + list(range(6, 12))
    assert all(np.array_equal(rows, alone) for (_, rows), (_, alone) in zip(asked[12:], asked[6:12], strict=True))
    with pytest.raises(UserError, match="trained with another tokenizer than the data"):
        train(branched(config, parent, 6, data={"tokenizer": "bpe:300"}), runs / "bad", runs)


def test_validation_losses_on_other_windows_are_not_joined(small, runs):
    """What counts is the number of windows while the run trains, not the setting that gives it."""
    config = small(evaluation={"validation_windows": 8, "every": 4})
    parent = train(keeping(config, 6), runs / "parent", runs)
    for name, evaluation, steps in [
        ("fewer", {"every_windows": 3}, [8, 12]),
        ("as many", {"validation_windows": 9, "every_windows": 8}, [4, 8, 12]),
    ]:
        record = train(branched(config, parent, 6, evaluation=evaluation), runs / name, runs)
        assert record.hooks["validation-log"]["steps"] == steps
        lines = read_metrics(runs / name / "metrics.jsonl")
        assert [line["step"] for line in lines if "validation_loss" in line] == steps


def test_what_a_branch_cannot_change_and_what_is_missing(small, runs):
    config = small()
    parent = train(keeping(config, 6), runs / "a", runs)
    for parts, message in [
        ({"training": {"seed": 5}}, "training.seed differs from .*a, so this would be another run"),
        ({"training": {"tokens_per_step": 512}}, "training.tokens_per_step differs"),
        ({"shape": {"ffn_width": 48}}, "shape.ffn_width differs"),
    ]:
        with pytest.raises(UserError, match=message):
            train(branched(config, parent, 6, **parts), runs / "b", runs)
    with pytest.raises(UserError, match=r"not kept the checkpoint of step 5; .* with --set runtime.keep_steps=\[5\]"):
        train(branched(config, parent, 5), runs / "b", runs)
    with pytest.raises(UserError, match="the run begins after step 12 of another"):
        branched(config, parent, 12)
    with pytest.raises(UserError, match="init.step = 13: .* has only 12 steps"):
        train(branched(config, parent, 13, training={"steps": 20}), runs / "b", runs)
    loop = [{"op": "recur", "first": 1, "size": 1, "chunks": [2, 1], "topology": "mesh"}]
    with pytest.raises(UserError, match=r"the plan needs recurrences.0.* which step 6 of .*a does not have"):
        train(branched(config, parent, 6, plan=loop), runs / "b", runs)
    assert not (runs / "b").exists()


def test_settings_that_do_not_fit():
    def made(**parts):
        return resolve("vanilla", "tiny", layers=[Layer(parts)])

    with pytest.raises(UserError, match="step 3 needs `load: all`"):
        made(init={"run": "abc", "step": 3})
    with pytest.raises(UserError, match="runtime.keep_steps 700: this run does the steps 1 to 600"):
        made(runtime={"keep_steps": [700]})
    with pytest.raises(UserError, match="runtime.keep_steps 3: this run does the steps 5 to 600"):
        made(runtime={"keep_steps": [3]}, init={"run": "abc", "step": 4, "load": "all"})
    assert run_hash(made()) == run_hash(made(runtime={"keep_steps": [100]}))


def test_the_best_weights_of_a_later_step_are_not_those_of_the_branch(small, runs):
    config = small(training={"steps": 12}, evaluation=MEASURED)
    parent = train(keeping(config, 6), runs / "parent", runs)
    losses = parent.hooks["validation-log"]["loss"]
    assert min(losses) == losses[-1]
    worse = branched(config, parent, 6, training={"optimizer": {**config.training.optimizer.model_dump(), "lr": 0.5}})
    train(worse, runs / "worse", runs)
    best = json.loads((runs / "worse" / "best" / "config.json").read_text())["lineage"]
    assert best["step"] in (9, 12)
    with pytest.raises(UserError, match="parent/best@STEP: it has no optimizer; name a run"):
        compose(Request(arch="vanilla", start=f"{runs}/parent/best@6"), Runs(runs))


def test_branches_as_commands(small, runs):
    parent = train(keeping(small(), 4, 8), runs / "a", runs)
    shown = hybridlab("runs", "show", "a", "--runs-dir", ".", cwd=runs)
    assert f"checkpoints of steps 4, 8; --from {parent.hash}@STEP goes on there" in shown.stdout
    assert json_of(hybridlab("runs", "clean", "--runs-dir", ".", "--dry-run", "--json", cwd=runs))["items"] == []
    go = ["pretrain", "--runs-dir", ".", "--from", "a@8", "--set", "runtime.threads=1"]
    record = json_of(hybridlab(*go, "--run-dir", "b", "--json", cwd=runs))
    assert record["steps"] == 12 and record["extended"] == {"run": parent.hash, "step": 8}
    assert_same_results(runs / "a", runs / "b")
    looped = [*go, "--arch", "attention-loop", "--steps", "14", "--run-dir", "c"]
    assert json_of(hybridlab(*looped, "--json", cwd=runs))["events"][0]["kind"] == "branched"
    longer = compose(Request(start=str(runs / "a@8"), settings=["training.steps=40"]), Runs(runs))
    assert longer.training.schedule.warmup_steps == parent.config["training"]["schedule"]["warmup_steps"]
    missing = hybridlab("pretrain", "--runs-dir", ".", "--from", "a@5", cwd=runs)
    assert missing.returncode == 2 and "not kept the checkpoint of step 5" in missing.stderr
    gone = json_of(hybridlab("runs", "clean", "--runs-dir", ".", "--kept", "--yes", "--json", cwd=runs))
    assert gone["removed"] == ["a/checkpoints"]
    again = train(keeping(small(), 4), runs / "a", runs)
    assert again.hash == parent.hash


def test_a_branch_of_a_grown_run_takes_the_plan_of_its_settings(small, runs):
    """Not the plan that it had grown at its end."""
    parent = train(keeping(growing(small, 20), 5), runs / "grown", runs)
    child = compose(Request(arch="vanilla", start=str(runs / "grown@5")), Runs(runs))
    assert child.plan == [] and child.init.step == 5 and child.init.run == parent.hash
    assert child.training.skip_steps is None


def test_kept_checkpoints_survive_the_newer_ones_and_the_end(small, runs):
    config = keeping(small(runtime={"keep_optimizer": True, "keep_checkpoints": 1}), 2, 5)
    train_run(config, RunFolder(runs / "a"), Runs(runs))
    assert RunFolder(runs / "a").checkpoint_steps == [2, 5, 12]
    (runs / "a" / "checkpoints" / "step-00000003").mkdir()  # left by a kill
    removed = json_of(hybridlab("runs", "clean", "--runs-dir", ".", "--yes", "--json", cwd=runs))["removed"]
    assert removed == ["a/checkpoints/step-00000003"]
    assert RunFolder(runs / "a").checkpoint_steps == [2, 5, 12]


def test_a_step_that_is_over_cannot_be_kept_any_more(small, runs, monkeypatch):
    config, said = small(runtime={"checkpoint_every": 4, "keep_checkpoints": 1}), []
    train_until(config, runs / "a", runs, monkeypatch, 9)
    for _ in range(2):
        with heard_by(said.append):
            train_run(keeping(config, 3, 8, 10), RunFolder(runs / "a"), Runs(runs))
    note = "; the checkpoint of step 3 was not kept, which needs another training in an empty folder"
    assert [note in line for line in said if "resuming" in line or "finished before" in line] == [True, True]
    assert RunFolder(runs / "a").checkpoint_steps == [8, 10]


EXPERIMENT = """
id: mine-branches
title: Branches from one trunk
paper: mine
source: my notes
columns: [{name: loss, title: loss, kind: trained, metric: results.validation.loss, digits: 2}]
rows:
  - {name: Goes on, short: Goes on, cell: same}
  - {name: Looped, short: Looped, cell: looped}
cells:
  trunk: {arch: vanilla, phase: train}
  same: {arch: vanilla, phase: train, start: trunk, config: {init: {step: 4, load: all}}}
  looped: {arch: attention-loop, phase: later, start: trunk}
scales:
  smoke:
    machine: a laptop
    size: tiny
    data: "text:words.txt"
    seeds: [0]
    phases: {train: {}, later: {init: {load: all}}}
    overrides: {looped: {init: {step: 6}}}
    config: CONFIG
"""


def test_the_trunk_of_an_experiment_keeps_what_its_branches_begin_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "words.txt")
    config = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 8}, "data": {"tokenizer": "byte"}}
    config |= {"runtime": {"threads": 1, "log_every": 1}}
    (tmp_path / "mine.yaml").write_text(EXPERIMENT.replace("CONFIG", json.dumps(config)))
    experiment = load_experiment("./mine.yaml")
    made = cell_configs(experiment, "smoke", 0)
    assert made["trunk"].runtime.keep_steps == [4, 6] and made["same"].runtime.keep_steps == []
    assert made["looped"].init.step == 6 and made["same"].training.skip_steps is None
    plain = made["trunk"].model_copy(update={"runtime": made["same"].runtime})
    assert run_hash(plain) == run_hash(made["trunk"])
    wanted = ExperimentAtScale(experiment, "smoke")
    outcome = run_cells([wanted], tmp_path / "runs", tmp_path / "results")
    assert outcome.failed == {} and len(outcome.finished) == 3
    folders = {name: tmp_path / "runs" / run_hash(config) for name, config in made.items()}
    assert_same_run(folders["trunk"], folders["same"])
    assert RunFolder(folders["trunk"]).checkpoint_steps == [4, 6]
    # Without the checkpoint the queue says so before it trains anything.
    shutil.rmtree(folders["looped"])
    shutil.rmtree(folders["trunk"] / "checkpoints")
    with pytest.raises(UserError, match=r"^looped: .*not kept the checkpoint of step 6"):
        run_cells([wanted], tmp_path / "runs", tmp_path / "results")
