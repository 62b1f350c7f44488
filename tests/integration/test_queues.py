"""Queues of runs: several at once, beside other processes, stopped and killed, checked and previewed."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time

import pytest

from hybridlab.config.resolve import run_hash
from hybridlab.errors import Diverged, UserError
from hybridlab.files import read_object
from hybridlab.messages import heard_by
from hybridlab.runs import queue as queue_module
from hybridlab.runs.queue import default_jobs, run_all, run_before_all, threads_by_run
from hybridlab.runs.queued_run import queued
from hybridlab.runs.record import read_record
from hybridlab.runs.run import train_run
from hybridlab.training.machine import cpu_cores
from hybridlab.training.store.folders import Busy, RunFolder, Runs
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.processes import Forked, command
from tests.training import assert_same_run, train


def named(*configs):
    return {run_hash(config): (f"run {i}", config) for i, config in enumerate(configs)}


def recorded(results):
    """The hashes of all records of one's own."""
    return {path.name.removesuffix(".json.zst") for path in (results / "records").iterdir()}


def seeded(small, *seeds, **parts):
    return [small(settings=[f"training.seed={seed}"], **parts) for seed in seeds]


def child_of(small, parent, **parts):
    return small(init={"run": run_hash(parent)}, **parts)


# ---- several at once ----


def test_runs_in_processes_give_the_same_bits_and_children_wait_for_parents(small, tmp_path, runs, runs_dir):
    parent, other = seeded(small, 0, 1)
    child = child_of(small, parent)
    said = []
    with heard_by(said.append):
        outcome = run_all(named(parent, child, other), runs, tmp_path / "results", jobs=2)
    assert sorted(outcome.finished) == ["run 0", "run 1", "run 2"] and not outcome.failed
    assert any("training 2 runs at once" in line for line in said)
    train(parent, tmp_path / "here", runs_dir)
    assert_same_run(tmp_path / "here", runs / run_hash(parent))
    assert recorded(tmp_path / "results") == set(named(parent, child, other))
    with heard_by(said.append):
        again = run_all(named(parent, child, other), runs, tmp_path / "results", jobs=2)
    assert len(again.finished) == 3 and sum("finished before" in line for line in said) == 3


def test_a_killed_process_is_named_and_the_others_go_on(small, tmp_path, runs):
    victim, other = seeded(small, 0, 1)
    victim = small(training={"steps": 100_000, "schedule": {"warmup_steps": 2}})
    child = child_of(small, victim)

    def kill():
        metrics = runs / run_hash(victim) / "metrics.jsonl"
        while not metrics.exists() or not metrics.stat().st_size:
            time.sleep(0.02)
        first = min(multiprocessing.active_children(), key=lambda process: process.pid)
        os.kill(first.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    outcome = run_all(named(victim, other, child), runs, tmp_path / "results", jobs=2)
    assert outcome.finished == ["run 1"] and set(outcome.failed) == {"run 0", "run 2"}
    assert "SIGKILL" in outcome.failed["run 0"] and "run 0" in outcome.failed["run 2"]


def test_a_process_that_alone_is_stopped_is_a_failed_run(small, tmp_path, runs):
    """Neither is it finished, nor does what starts from it wait for it."""
    victim, other = small(training={"steps": 100_000, "schedule": {"warmup_steps": 2}}), seeded(small, 1)[0]
    child = child_of(small, victim)

    def stop():
        metrics = runs / run_hash(victim) / "metrics.jsonl"
        while not metrics.exists() or not metrics.stat().st_size:
            time.sleep(0.02)
        first = min(multiprocessing.active_children(), key=lambda process: process.pid)
        os.kill(first.pid, signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    outcome = run_all(named(victim, other, child), runs, tmp_path / "results", jobs=2)
    assert outcome.finished == ["run 1"] and set(outcome.failed) == {"run 0", "run 2"}
    assert "its process was stopped" in outcome.failed["run 0"] and "goes on with it" in outcome.failed["run 0"]
    assert RunFolder(runs / run_hash(victim)).checkpoint_steps


@pytest.mark.parametrize("measured", [{"every": 1}, {"at_steps": [1]}, {}])
def test_weights_that_a_measurement_finds_to_be_nan_have_diverged(small, tmp_path, runs_dir, measured):
    """The loss of the last step is of the weights before it."""
    settings = ["training.optimizer.lr=1e15", "training.schedule.warmup_steps=0"]
    config = small(settings=[*settings, "training.clip=1e30", "training.steps=1"], evaluation=measured)
    with pytest.raises(Diverged):
        train(config, tmp_path / "run", runs_dir)
    assert read_record(tmp_path / "run" / "record.json").status == "diverged"


@pytest.mark.long
def test_control_c_stops_every_run_with_a_checkpoint(tmp_path):
    write_text(tmp_path / "words.txt")
    settings = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 100_000}, "data": {"tokenizer": "byte"}}
    (tmp_path / "long.yaml").write_text(json.dumps(settings | {"runtime": {"threads": 1, "log_every": 1}}))
    (tmp_path / "plugin.py").write_text(
        "import os\nwith open('pids', 'a') as file:\n    file.write(f'{os.getpid()} ')\n"
    )
    arguments = ["--plugin", "plugin.py", "ablate", "--vary", "training.clip=1.0,2.0", "--seeds", "1", "--jobs", "2"]
    arguments += ["--config", "long.yaml", "--data", "text:words.txt"]
    process = Forked(command, arguments, cwd=tmp_path, first=os.setsid)
    while len(list(tmp_path.glob("runs/*/metrics.jsonl"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, 2) and "Traceback" not in err
    assert "interrupted: 2 runs stopped, 0 of 2 have finished" in err and err.count("stopped after step") == 2
    assert len(set((tmp_path / "pids").read_text().split())) == 3, "every process loads the plug-ins"
    for folder in tmp_path.glob("runs/*/checkpoints"):
        assert RunFolder(folder.parent).checkpoint_steps
    assert all(not RunFolder(path.parent).trained_elsewhere() for path in tmp_path.glob("runs/*/run.json"))


# ---- beside other processes ----


def test_a_run_that_another_process_trains_is_taken_when_it_has_finished(small, tmp_path, runs, monkeypatch):
    monkeypatch.setattr(queue_module, "_SECONDS_BETWEEN_LOOKS", 0.05)
    elsewhere, own = seeded(small, 0, 1)
    folder, said, waits = RunFolder(runs / run_hash(elsewhere)), [], threading.Event()

    def say(text):
        said.append(text)
        if "waiting" in text:
            waits.set()

    def hold():
        with folder.locked():
            held.set()
            waits.wait(60)
        train_run(elsewhere, folder, Runs(runs))

    held = threading.Event()
    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    with heard_by(say):
        outcome = run_all(named(elsewhere, own), runs, tmp_path / "results")
    other.join()
    assert outcome.finished == ["run 1", "run 0"] and not outcome.failed
    assert sum("waiting for this run, which another process trains" in line for line in said) == 1
    assert len(list((tmp_path / "results" / "records").iterdir())) == 2


def test_a_single_command_does_not_wait(small, runs):
    folder = RunFolder(runs / "a")
    with folder.locked(), pytest.raises(Busy, match="wait until it has finished, or choose another --run-dir"):
        train_run(small(), folder, Runs(runs))
    assert not folder.trained_elsewhere()


def test_a_lock_is_not_taken_on_a_file_that_was_removed(tmp_path):
    """The first process ends without a run and removes the folder, while a second one waits for its lock."""
    folder, inside, order = RunFolder(tmp_path / "run"), threading.Event(), []

    def second():
        inside.wait()
        with folder.locked():
            order.append((folder.path / ".lock").exists())

    thread = threading.Thread(target=second)
    thread.start()
    with folder.locked():
        inside.set()
        time.sleep(0.1)
    thread.join()
    assert order == [True]


# ---- threads ----


def test_a_resumed_run_keeps_the_threads_of_its_first_start(small, tmp_path, runs_dir, monkeypatch):
    import torch

    from tests.training import train_until

    config = small(runtime={"threads": None, "checkpoint_every": 4, "log_every": 1})
    train_until(config, tmp_path / "run", runs_dir, monkeypatch, 6)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        record = train(config, tmp_path / "run", runs_dir)
        assert record.machine["threads"] == before and torch.get_num_threads() == before + 1
        asked = config.model_copy(update={"runtime": config.runtime.model_copy(update={"threads": before + 2})})
        assert train(asked, tmp_path / "other", runs_dir).machine["threads"] == before + 2
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_run_that_all_others_wait_for_gets_the_threads_of_all_jobs(small, runs, monkeypatch):
    monkeypatch.setattr(queue_module, "cpu_cores", lambda: 4)
    parent, other = seeded(small, 0, 1, runtime={"threads": None})
    child = child_of(small, parent, runtime={"threads": None})
    grandchild = child_of(small, child, runtime={"threads": None})
    left = queued(named(parent, child, grandchild), runs)
    assert list(threads_by_run(left.values(), 2).values()) == [2, 1, 1]
    assert list(threads_by_run(left.values(), 8).values())[0] == 4, "not more than there are cores"
    two_roots = queued(named(parent, child, other), runs)
    assert set(threads_by_run(two_roots.values(), 2).values()) == {1}
    assert run_before_all(queued(named(parent), runs)) is None
    fixed = small(runtime={"threads": 1})
    assert set(threads_by_run(queued(named(fixed, child_of(small, fixed)), runs).values(), 2).values()) == {1}


def test_the_time_left_goes_by_work_and_counts_what_is_running(small, tmp_path, runs, monkeypatch):
    short, long = seeded(small, 0, 1)
    long = small(settings=["training.seed=1"], training={"steps": 3 * short.training.steps})
    queue = queue_module._Queue(queued(named(short, long), runs), tmp_path / "results")
    monkeypatch.setattr(queue_module.time, "monotonic", lambda: queue.started + 10)
    queue.work_done = queue.work[run_hash(short)]
    assert queue._seconds_left() == pytest.approx(30)
    queue.in_progress = lambda: {run_hash(long): 1 / 3}
    assert queue._seconds_left() == pytest.approx(10)


# ---- before the first run ----


def test_a_bad_cell_is_found_before_the_first_one_trains(small, tmp_path, runs):
    good, bad = seeded(small, 0, 1)
    bad = bad.model_copy(update={"data": bad.data.model_copy(update={"source": f"text:{tmp_path / 'none.txt'}"})})
    with pytest.raises(UserError, match=r"^run 1: data source .*no such file"):
        run_all(named(good, bad), runs, tmp_path / "results")
    small_vocabulary = small(shape={"vocab": 200})
    with pytest.raises(UserError, match=r"^run 1: shape.vocab = 200"):
        run_all(named(good, small_vocabulary), runs, tmp_path / "results")
    with pytest.raises(UserError, match=r"^run 1: .*neither a run folder"):
        orphan = small(init={"run": "f" * 16})
        run_all(named(good, orphan), runs, tmp_path / "results")
    assert not list(runs.glob("*/run.json"))


def test_the_default_number_of_jobs(small, runs, monkeypatch):
    monkeypatch.setattr(queue_module, "cpu_cores", lambda: 4)
    configs = seeded(small, 0, 1, 2)
    assert default_jobs(queued(named(*configs), runs).values()) == 1, "a queue of a few seconds"
    monkeypatch.setattr(queue_module, "_WORTH_PROCESSES", 0)
    assert default_jobs(queued(named(*configs), runs).values()) == 3
    assert default_jobs(queued(named(configs[0], child_of(small, configs[0])), runs).values()) == 1
    wide = seeded(small, 0, 1, 2, runtime={"threads": 2})
    assert default_jobs(queued(named(*wide), runs).values()) == 2
    assert default_jobs([]) == 1 and cpu_cores() >= 1


def test_a_dry_run_shows_the_cost_and_writes_nothing(tmp_path):
    write_text(tmp_path / "words.txt")
    settings = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 20}, "data": {"tokenizer": "byte"}}
    (tmp_path / "s.yaml").write_text(json.dumps(settings | {"runtime": {"threads": 1}}))
    grid = ["ablate", "--vary", "training.clip=1.0,2.0", "--seeds", "2", "--config", "s.yaml"]
    grid += ["--data", "text:words.txt"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = json_of(hybridlab(*grid, "--dry-run", "--json", cwd=tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert [run["state"] for run in found["runs"]] == ["new"] * 4 and found["total"]["runs"] == 4
    assert found["total"]["tokens"] == 4 * 20 * 256 and found["total"]["minutes"] is None
    done = hybridlab(*("1" if word == "2" else word for word in grid), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json_of(hybridlab(*grid, "--dry-run", "--json", cwd=tmp_path))
    states = {run["name"]: run["state"] for run in found["runs"]}
    assert states["training.clip=1.0 (seed 0)"] == "done" and states["training.clip=1.0 (seed 1)"] == "new"
    record = read_object(next(tmp_path.glob("results/records/*")), "record")
    assert [run["flops"] for run in found["runs"]] == [0, 0, *[pytest.approx(record["flops"])] * 2], "seed by seed"
    assert found["total"]["minutes"] > 0 and found["total"]["steps"] == 40
    shown = hybridlab(*grid, "--dry-run", cwd=tmp_path)
    assert "to do: 2 of 4" in shown.stdout and all(len(line) <= 80 for line in shown.stdout.splitlines())


def test_a_dry_run_of_a_paper_knows_the_cost_of_its_committed_runs(tmp_path):
    found = json_of(hybridlab("reproduce", "consa-table1", "--dry-run", "--json", cwd=tmp_path))
    assert all(run["state"] == "new" for run in found["runs"]) and not list(tmp_path.iterdir())
    # A run with masks that another learns costs what its windows cost, unless the kernel of this processor's precision
    # computes all keys.
    unknown = {run["name"] for run in found["runs"] if not run["flops"]}
    assert unknown <= {"layer-50/2", "head-all-50/2", "head-single-50/2"}
    assert "benchmark" in hybridlab("reproduce", "spiral-speed", "--dry-run", cwd=tmp_path).stderr
    assert json_of(hybridlab("reproduce", "consa-table4", "--dry-run", "--json", cwd=tmp_path))["runs"] == []
    assert "no run is needed" in hybridlab("reproduce", "consa-table4", "--dry-run", cwd=tmp_path).stdout


# ---- the files of a grid ----


@pytest.mark.long
def test_report_makes_the_files_of_a_grid_again(tmp_path):
    write_text(tmp_path / "words.txt")
    settings = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3}, "data": {"tokenizer": "byte"}}
    (tmp_path / "s.yaml").write_text(json.dumps(settings | {"runtime": {"threads": 1}}))
    grid = ["ablate", "--arch", "rule-swa", "--vary", "map.rho=0,0.5", "--seeds", "3", "--config", "s.yaml"]
    table = json_of(hybridlab(*grid, "--set", "window=4", "--data", "text:words.txt", "--json", cwd=tmp_path))
    folder = tmp_path / "results" / table["id"]
    assert sorted(path.name for path in folder.iterdir()) == ["ablate.yaml", "desk"]
    folder /= "desk"
    assert sorted(path.name for path in folder.iterdir()) == ["claims.png", "table.json", "table.md"]
    json_of(hybridlab("report", table["id"], "--pdf", "--latex", "--csv", "--json", cwd=tmp_path))
    names = ["claims.csv", "claims.pdf", "claims.png", "table.csv", "table.json", "table.md", "table.tex"]
    assert sorted(path.name for path in folder.iterdir()) == names
    page, data = (folder / "table.md").read_text(), (folder / "table.json").read_text()
    hashes = {path.name.partition(".")[0] for path in (tmp_path / "results" / "records").iterdir()}
    assert len(hashes) == 6 and all(digest in data for digest in hashes)
    assert "hybridlab ablate --arch rule-swa" in page and "95 % interval" in page and "by seed: 0 " in page
    assert "map.rho=0.5,loss," in (folder / "table.csv").read_text()
    assert "map.rho=0.5 − map.rho=0" in (folder / "claims.csv").read_text()
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("claims.png", "table.json", "table.md"):
        (folder / name).unlink()
    for record in (tmp_path / "results" / "records").iterdir():
        record.unlink()
    assert json_of(hybridlab("report", table["id"], "--json", cwd=tmp_path)) == table
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written
    shown = hybridlab("report", table["id"], cwd=tmp_path).stdout
    assert "Δ: difference to rho=0" in shown and all(len(line) <= 80 for line in shown.splitlines())
    unknown = hybridlab("report", "ablate-00000000", cwd=tmp_path)
    assert unknown.returncode == 2 and f"known: {table['id']}" in unknown.stderr
    done = hybridlab(*grid, "--set", "window=4", "--data", "text:words.txt", "--results-dir", "more", cwd=tmp_path)
    published = hybridlab("report", table["id"], "--results-dir", "more", "--publish", cwd=tmp_path)
    assert "published in more/published (11 new files" in published.stderr, done.stderr + published.stderr
    for part in ("records", table["id"]):
        shutil.rmtree(tmp_path / "more" / part)
    again = json_of(hybridlab("report", table["id"], "--results-dir", "more", "--json", cwd=tmp_path))
    assert again["rows"] == table["rows"]
