"""`reproduce --until`: what undecided claims wait for, the cheapest first, until the time is over."""

import json
import time

import pytest
from typer.testing import CliRunner

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers import loading as loading_module
from hybridlab.lab.papers.plans import history
from hybridlab.runs.queue import Deadline, run_all
from hybridlab.training.store.folders import RunFolder
from tests.conftest import SMALL_TRAINING
from tests.integration.test_queues import child_of, named, seeded
from tests.integration.test_reproduce import toy  # noqa: F401

BOUNDED = [
    {"text": "dense learns something", "source": "x", "test": "loss[dense] < 100"},
    {"text": "base learns something", "source": "x", "test": "loss[base] < 100"},
    {"text": "needs a benchmark", "source": "x", "test": {"kind": "not_here", "needs": "MMLU"}},
]


def claimed(content):
    content["claims"] = BOUNDED
    content["rows"] = content["rows"][:1]
    content["scales"]["smoke"]["phases"]["two"]["training"]["steps"] = 40


@pytest.fixture
def until(toy, tmp_path):  # noqa: F811
    """A function that calls `reproduce --until` on the toy file, with three seeds."""
    toy(claimed, seeds=(0, 1, 2))
    folders = ["--runs-dir", str(tmp_path / "runs"), "--results-dir", str(tmp_path / "results")]

    def call(*arguments, ids=("toy-table1",), scale=("--scale", "smoke")):
        command = ["reproduce", *ids, *scale, *arguments, *folders]
        return CliRunner().invoke(app, command, catch_exceptions=True)

    return call


def test_a_dry_run_shows_the_order_and_what_fits_and_writes_nothing(until, tmp_path):
    done = until("--until", "1h30m", "--dry-run")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and any("toy-table1" in line and "in 1h30m" not in line for line in lines)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "results").exists()
    data = json.loads(until("--until", "1h30m", "--dry-run", "--json").stdout)
    # The run of `base` is that of `same as base`: what dense starts from is not paid for again.
    first, second = data["planned"]
    assert [data["claims"][place]["text"] for place in first["claims"]] == ["base learns something"]
    assert (first["runs"], second["runs"]) == (3, 3) and first["fit"] == first["startable"] == 3
    assert [data["claims"][place]["in_the_way"]["what"] for place in second["claims"]] == ["runs"]
    assert first["minutes"] is None and first["flops"] < second["flops"] and data["new_plan"] == []


def test_planned_runs_are_trained_and_what_they_decide_is_printed(until, tmp_path):
    done = until("--until", "60m", "--jobs", "2", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert len(data["finished"]) == 6 and data["late"] == []
    assert {one["text"]: one["verdict"] for one in data["decided"]}["dense learns something"] == "holds"
    page = json.loads((tmp_path / "results" / "toy-table1" / "smoke" / "table.json").read_text())
    assert page["complete_seeds"] == [0, 1, 2] and page["claims"][0]["verdict"] == "holds"
    assert not any(flag["code"] == "plan" for claim in page["claims"] for flag in claim.get("flags", []))
    assert len(history("toy-table1", "smoke", tmp_path / "results")) == 1
    again = until("--until", "1h")
    assert again.exit_code == 0 and "0 runs finished; decided: 0 claims" in again.stdout, again.output
    assert "no undecided claim waits" in until("--until", "1h", "--dry-run").stdout


def test_what_a_killed_command_left_unread_is_read_by_the_next(until, tmp_path):
    """All runs have records, and the page does not know of them."""
    assert until("--until", "60m", "--jobs", "2").exit_code == 0
    page = tmp_path / "results" / "toy-table1" / "smoke" / "table.json"
    page.unlink()
    listed = until("--until", "1h", "--dry-run")
    assert "toy-table1: its page lacks records or claims: `hybridlab report toy-table1 --scale smoke`" in listed.stderr
    done = until("--until", "1h", "--json")
    data = json.loads(done.stdout)
    assert data["finished"] == [] and {one["text"] for one in data["decided"]} == {
        "dense learns something",
        "base learns something",
    }
    assert page.exists()
    # A page with an earlier sentence lacks the one of today.
    text = page.read_text()
    page.write_text(text.replace("dense learns something", "dense learns a lot"))
    assert "its page lacks records or claims" in until("--until", "1h", "--dry-run").stderr
    assert (
        until("--until", "1h").exit_code == 0 and json.loads(page.read_text())["claims"] == json.loads(text)["claims"]
    )


def test_a_study_that_a_killed_command_left_is_measured_by_the_next(toy, until, tmp_path):  # noqa: F811
    """All runs have records, and the study of one of them has none."""

    def studied(content):
        claimed(content)
        phases, cells = content["scales"]["smoke"]["phases"], content["cells"]
        phases["looked"] = {"text": True, "evaluation": {"validation_windows": 2}}
        cells["looked"] = {"model": "cell:dense", "phase": "looked"}
        control = "results.validation.loss[looked] < 100"
        content["claims"] = [{**BOUNDED[0], "controls": [control]}]

    toy(studied, seeds=(0, 1, 2))
    assert until("--until", "60m", "--jobs", "2").exit_code == 0
    page = tmp_path / "results" / "toy-table1" / "smoke" / "table.json"
    data = json.loads(page.read_text())
    assert data["claims"][0]["verdict"] == "holds"
    for digest in data["runs"]["looked"].values():
        (tmp_path / "results" / "records" / f"{digest}.json.zst").unlink()
    page.unlink()
    asked = until("--until", "1h", "--dry-run")
    assert "toy-table1: not all of its trained models are measured" in asked.stderr, asked.stderr
    assert until("--until", "1h").exit_code == 0
    assert json.loads(page.read_text())["claims"][0]["verdict"] == "holds"


def test_without_ids_all_experiments_are_taken(until, monkeypatch):
    one = loading_module.load_experiment("toy-table1")
    monkeypatch.setattr(loading_module, "all_experiments", lambda paper=None: [one])
    done = until("--until", "1h", "--dry-run", ids=())
    assert done.exit_code == 0 and "toy-table1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--until", "8"], "--until 8: write a time above 0 such as 8h, 90m or 1h30m"),
        (["--until", "1h", "--seeds", "5"], "--seeds has no effect on --until"),
        (["--until", "1h", "--sweep"], "--sweep has no effect on --until"),
        (["--until", "1h", "--all-columns"], "--all-columns has no effect on --until"),
        (["--until", "1h", "--ranks", "2"], "--until has no effect with --ranks"),
        (["--until", "1h", "--launcher", "slurm"], "--until has no effect with --launcher slurm"),
        (["--until", "1h", "--scale", "pretrained"], "--until trains at one of the scales"),
        (["--until", "1h", "--scale", "paper"], "toy-table1 has the scales smoke"),
    ],
)
def test_what_does_not_fit_is_one_sentence(until, arguments, part):
    done = until(*arguments, scale=() if "--scale" in arguments else ("--scale", "smoke"))
    assert isinstance(done.exception, UserError) and part in str(done.exception)


def test_without_until_an_id_is_needed(until):
    done = until(ids=())
    assert isinstance(done.exception, UserError) and "reproduce needs an ID" in str(done.exception)


# ---- the deadline of a queue ----


class Once(Deadline):
    """A deadline that comes when a run has done steps."""

    metrics = None

    @property
    def left(self):
        return 0.0 if self.metrics.exists() and self.metrics.stat().st_size else 1000.0


def test_runs_that_would_not_finish_in_time_are_not_started_nor_what_starts_from_them(small, tmp_path, runs):
    long, short = seeded(small, 0, 1)
    child = child_of(small, long)
    deadline = Deadline(time.monotonic() + 600, {run_hash(long): 601.0, run_hash(short): 1.0, run_hash(child): 1.0})
    outcome = run_all(named(long, child, short), runs, tmp_path / "results", jobs=1, deadline=deadline)
    assert outcome.finished == ["run 2"] and outcome.late == ["run 0", "run 1"] and not outcome.failed
    assert not (runs / run_hash(long)).exists() or not RunFolder(runs / run_hash(long)).checkpoint_steps


def test_at_the_deadline_runs_stop_with_a_checkpoint_and_the_same_queue_goes_on(small, tmp_path, runs):
    long = small(training={**SMALL_TRAINING, "steps": 100_000})
    other = child_of(small, long)
    deadline = Once(time.monotonic())
    object.__setattr__(deadline, "metrics", runs / run_hash(long) / "metrics.jsonl")
    outcome = run_all(named(long, other), runs, tmp_path / "results", jobs=1, deadline=deadline)
    assert not outcome.finished and not outcome.failed and sorted(outcome.late) == ["run 0", "run 1"]
    assert RunFolder(runs / run_hash(long)).checkpoint_steps


def test_a_queue_whose_time_is_over_starts_nothing(small, tmp_path, runs):
    (config,) = seeded(small, 0)
    outcome = run_all(named(config), runs, tmp_path / "results", jobs=2, deadline=Deadline(time.monotonic() - 1))
    assert outcome.late == ["run 0"] and not outcome.finished and not outcome.failed
