"""A grid of three runs on a real Slurm: one is preempted, one is cancelled, and the same command goes on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridlab.runs.record import read_record
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text

pytestmark = pytest.mark.slurm


@pytest.fixture
def command(slurm, tmp_path):
    """A function: options of `hybridlab` → what the command printed; it must end with exit code 0."""
    write_text(tmp_path / "words.txt")
    runtime = {"log_every": 1, "checkpoint_every": 50, "threads": 1}
    settings = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3000}, "data": {"tokenizer": "byte"}}
    settings |= {"runtime": runtime, "evaluation": {"validation_windows": 8}}
    (tmp_path / "small.yaml").write_text(json.dumps(settings))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def started(*options):
        own = [sys.executable, "-m", "hybridlab", *options]
        done = subprocess.run(own, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done

    return started


def wait_until(condition, seconds=240):
    """Wait for a condition, and fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def test_a_grid_with_a_preemption_and_a_cancelled_job(command, tmp_path):
    grid = ["ablate", "--vary", "training.optimizer.lr=1e-3,2e-3,4e-3", "--seeds", "1", "--config", "small.yaml"]
    grid += ["--data", "text:words.txt", "--launcher", "slurm", "--partition", "test", "--time", "10"]

    def jobs():
        return {job["number"]: job for job in json.loads(command("runs", "--jobs", "--json").stdout)["jobs"]}

    assert "submitted 3 jobs" in command(*grid).stderr
    files = list((tmp_path / "runs" / "jobs").glob("*.json"))
    folders = {json.loads(file.read_text())["job"]: tmp_path / "runs" / file.stem for file in files}
    preempted, cancelled, other = sorted(folders)

    def steps(number):
        log = folders[number] / "metrics.jsonl"
        return log.read_text().count("\n") if log.exists() else 0

    wait_until(lambda: min(steps(preempted), steps(cancelled)) > 60)
    subprocess.run(["scancel", "--signal=USR2", preempted], check=True)
    subprocess.run(["scancel", cancelled], check=True)
    log = tmp_path / "runs" / "jobs" / f"{preempted}_0_log.err"
    wait_until(lambda: "interrupted:" in log.read_text())
    wait_until(lambda: jobs()[preempted]["state"] == "pending")
    again = command(*grid).stderr
    assert "submitted 1 jobs; " in again and "more wait or run already" in again
    # Slurm lets a job that was queued again wait for two minutes.
    subprocess.run(["scontrol", "update", f"JobId={preempted}", "StartTime=now"], check=True)
    wait_until(lambda: all(job["state"] == "finished" for job in jobs().values()))
    assert "resuming after step" in log.read_text()
    done = command(*grid, "--json")
    assert len(json.loads(done.stdout)["rows"]) == 3 and "submitted" not in done.stderr
    for folder in folders.values():
        record = read_record(folder / "record.json")
        assert record.status == "finished" and record.steps == 3000
