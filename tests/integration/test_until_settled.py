"""`learn-masks --until-settled`: runs that go on until their masks have settled, the limit, and stops in between."""

import json
import re

import pytest

from hybridlab.runs.settling import LIMIT
from hybridlab.training.engine import Run
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of, words
from tests.training import Stop, assert_same_run

LEARN = words("learn-masks --from base --rho 0.5 --window 4 --set training.schedule.warmup_steps=1")
SETTLES = [*LEARN, *words("--steps 12 --set controller.alpha_init=-2.1 --set controller.mask_lr=0.03")]
"""Settles in 32 steps: 12, and the 20 that these estimate."""
STAYS = [*LEARN, *words("--steps 3 --set controller.mask_lr=0.001")]
"""Hardly moves."""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A working folder with a text and a trained run."""
    folder = tmp_path_factory.mktemp("settling")
    write_text(folder / "words.txt", 40_000)
    settings = {"shape": {**SMALL_SHAPE, "layers": 4}, "training": {**SMALL_TRAINING, "tokens_per_step": 64}}
    settings |= {"data": {"tokenizer": "byte"}, "evaluation": {"validation_windows": 2}}
    (folder / "small.yaml").write_text(json.dumps(settings))
    pretrain = words("pretrain --data text:words.txt --config small.yaml --run-dir base")
    done = hybridlab(*pretrain, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def names(folder):
    """Name → steps of every run in a folder of runs, and the steps of those without a name."""
    infos = [json.loads(path.read_text()) for path in folder.glob("*/run.json")]
    named = {info["name"]: info["config"]["training"]["steps"] for info in infos if info.get("name")}
    return named, sorted(info["config"]["training"]["steps"] for info in infos if not info.get("name"))


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("*/checkpoints/*"))


def test_an_unsettled_run_goes_on_with_the_same_command_until_its_masks_have_settled(workdir):
    runs = workdir / "one"
    command = [*SETTLES, *words("--runs-dir one --name masks --tag learned --json")]
    first = hybridlab(*command, cwd=workdir)
    results = json_of(first)["hooks"]["mask-learning"]
    assert (results["settled"], results["more_steps"]) == (False, 20)
    assert "learn them with about 20 steps more" in first.stderr
    assert "--extend 20`; `learn-masks --until-settled` goes on by itself" in first.stderr.splitlines()[-1]
    assert names(runs) == ({"masks": 12}, []) and checkpoints(runs) == ["step-00000012"]

    last = hybridlab(*command, "--until-settled", cwd=workdir)
    record = json_of(last)
    assert record["steps"] == 32 and record["hooks"]["mask-learning"]["settled"] is True
    assert record["extended"]["step"] == 12 and record["tags"] == ["learned"]
    assert "the masks have not settled: 20 steps more, 32 in all (at most 48)" in last.stderr
    assert "--extend" not in last.stderr
    assert names(runs) == ({"masks": 32}, [12]) and checkpoints(runs) == []

    again = hybridlab(*command, "--until-settled", cwd=workdir)
    assert json_of(again)["hash"] == record["hash"] and "finished before, nothing to do" in again.stderr
    assert (
        "not settled" not in again.stderr and "not kept" not in again.stderr and len(list(runs.glob("*/run.json"))) == 2
    )

    use = words("pretrain --arch consa --from masks --masks masks --steps 2 --runs-dir one --json")
    used = json_of(hybridlab(*use, "--set", "training.schedule.warmup_steps=1", cwd=workdir))
    masks = json.loads((runs / record["hash"] / "masks.json").read_text())["masks"]
    assert used["config"]["map"]["masks"] == masks and used["parents"] == [record["hash"]]


def test_it_ends_at_four_times_the_first_steps_and_says_how_to_go_on(workdir):
    command = [*STAYS, *words("--runs-dir two --until-settled --json")]
    done = hybridlab(*command, cwd=workdir)
    record = json.loads(done.stdout)
    folder = f"two/{record['hash']}"
    end = (
        f"failed: {folder}: the masks have not settled after 12 steps, and --until-settled ends at 4 times the first "
        f"3; go on with `hybridlab pretrain --from {folder} --extend 3`"
    )
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == end
    assert names(workdir / "two") == ({}, [3, 5, 8, 12]), "half of the steps so far, where an estimate is impossible"
    assert checkpoints(workdir / "two") == ["step-00000012"]
    again = hybridlab(*command, cwd=workdir)
    assert again.returncode == 1 and json.loads(again.stdout)["hash"] == record["hash"] and end in again.stderr
    assert f"{LIMIT} times --steps" in " ".join(hybridlab("learn-masks", "--help", cwd=workdir).stdout.split())
    further = hybridlab(*words(f"pretrain --from {folder} --extend 3 --runs-dir two --json"), cwd=workdir)
    assert json_of(further)["steps"] == 15


def test_a_stop_in_a_later_run_is_resumed_by_the_same_command_to_the_same_bits(workdir, monkeypatch):
    whole = json_of(hybridlab(*SETTLES, *words("--runs-dir whole --until-settled --json"), cwd=workdir))
    take_step, command = Run.take_step, [*SETTLES, *words("--runs-dir cut --name cut --until-settled --json")]
    command += words("--set runtime.checkpoint_every=4")
    for stop in (7, 12, 22):

        def stopping(run, stop=stop):
            if run.step == stop:
                raise Stop
            return take_step(run)

        with monkeypatch.context() as patch, pytest.raises(Stop):
            patch.setattr(Run, "take_step", stopping)
            hybridlab(*command, cwd=workdir)
    done = hybridlab(*command, cwd=workdir)
    assert json_of(done)["hash"] == whole["hash"] and "resuming after step 20" in done.stderr
    assert_same_run(workdir / "whole" / whole["hash"], workdir / "cut" / whole["hash"])
    assert names(workdir / "cut")[0] == {"cut": 32}


def test_the_optimizer_of_masks_that_have_not_settled_is_kept_by_cleaning(workdir):
    for arguments, kept in (([], True), (["--set", "runtime.keep_optimizer=false"], False)):
        name = f"clean-{kept}"
        learn = [*STAYS, *arguments, "--runs-dir", name, "--json"]
        done = hybridlab(*learn, cwd=workdir)
        assert done.returncode == 0 and ("--extend" in done.stderr) is kept
        assert bool(checkpoints(workdir / name)) is kept
        cleaned = json_of(hybridlab("runs", "clean", "--runs-dir", name, "--json", cwd=workdir))
        assert cleaned["items"] == [] and bool(checkpoints(workdir / name)) is kept


def test_without_the_optimizer_it_cannot_go_on_and_changes_nothing(workdir):
    command = [*STAYS, *words("--runs-dir gone --name gone")]
    first = hybridlab(*command, cwd=workdir)
    assert re.search(r"settled +False\s+more steps +–", first.stdout) and "--extend STEPS`" in first.stderr
    assert json_of(hybridlab(*words("runs clean --kept --yes --runs-dir gone --json"), cwd=workdir))["items"]
    done = hybridlab(*command, "--until-settled", cwd=workdir)
    assert done.returncode == 2 and "its optimizer is gone (no checkpoint of step 3)" in done.stderr
    assert names(workdir / "gone") == ({"gone": 3}, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--run-dir somewhere", "--run-dir: --until-settled can make several runs, in RUNS-DIR; name the last one"),
        ("--launcher slurm", "--launcher slurm: --until-settled waits for every run; leave one of the two out"),
        ("--set runtime.keep_optimizer=false", "--until-settled: runtime.keep_optimizer = false leaves no optimizer"),
    ],
)
def test_options_that_do_not_go_together(workdir, arguments, message):
    done = hybridlab(*STAYS, *words(f"--runs-dir three --until-settled {arguments}"), cwd=workdir)
    assert done.returncode == 2 and f"error: {message}" in done.stderr and not list(workdir.glob("three/*/run.json"))


def test_masks_of_a_run_that_has_learned_none(workdir):
    done = hybridlab(*words("pretrain --arch consa --from base --masks base"), cwd=workdir)
    assert done.returncode == 2 and "error: --masks base: base has learned no masks; name a run of" in done.stderr
