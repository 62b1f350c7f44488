"""Runs as jobs: with submitit's own processes in the place of Slurm (tests/slurm has the real one)."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridlab.cli.options import Launching
from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from hybridlab.runs.cluster import Cluster, Training, jobs
from hybridlab.runs.queue import run_all
from hybridlab.runs.queued_run import queued
from hybridlab.training.store.jobs import JobFiles
from tests.integration.test_cli import hybridlab
from tests.integration.test_queues import child_of, named, recorded, seeded
from tests.training import assert_same_run, train

submitit = pytest.importorskip("submitit")
LOCAL = Cluster("local", time="10")


@pytest.mark.long
def test_jobs_train_what_is_missing_and_the_same_call_collects(small, tmp_path, runs, runs_dir):
    parent, other = seeded(small, 0, 1)
    child, pending, said = child_of(small, parent), {}, []
    pending = named(parent, child, other)
    with heard_by(said.append):
        first = run_all(pending, runs, tmp_path / "results", LOCAL)
    assert sorted(first.left) == ["run 0", "run 1", "run 2"] and not first.finished and not first.failed
    assert said[-1].startswith("submitted 3 jobs; `hybridlab runs --jobs` shows them")
    assert recorded(tmp_path / "results") == set(pending)
    assert {(job.name, job.state) for job in jobs(runs)} == {(f"run {i}", "finished") for i in range(3)}
    train(child, tmp_path / "here", runs)
    assert_same_run(tmp_path / "here", runs / run_hash(child))
    with heard_by(said.append):
        again = run_all(pending, runs, tmp_path / "results", LOCAL)
    assert sorted(again.finished) == ["run 0", "run 1", "run 2"] and not again.left
    shown = hybridlab("runs", "--jobs", "--json", "--runs-dir", runs, cwd=tmp_path)
    assert [job["state"] for job in json.loads(shown.stdout)["jobs"]] == ["finished"] * 3


def test_a_queue_that_does_not_answer_is_no_empty_queue(tmp_path, monkeypatch):
    """Else the jobs in it would be submitted again."""
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Socket timed out' >&2\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    JobFiles(tmp_path).write("0123456789abcdef", {"job": "100_0", "run": {"name": "run 0"}})
    with pytest.raises(UserError, match="queue does not answer \\(slurm_load_jobs error: Socket timed out\\)"):
        jobs(tmp_path)


@pytest.mark.long
def test_a_job_that_fails_says_why(small, tmp_path, runs):
    (config,) = seeded(small, 0, training={"optimizer": {"lr": 1e30}})
    run_all(named(config), runs, tmp_path / "results", LOCAL)
    (job,) = jobs(runs)
    assert job.state == "failed" and "lower the learning rate" in job.reason


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for the job's process in /proc")
@pytest.mark.long
def test_a_preempted_job_saves_its_state_and_goes_on(small, tmp_path, runs):
    (config,) = seeded(small, 0, training={"steps": 400})
    digest = run_hash(config)
    folder, file = runs / digest, tmp_path / f"{digest}.json"
    run = queued(named(config), runs)[digest]
    results = str(tmp_path / "results")
    file.write_text(json.dumps({"run": run.to_json(), "results_dir": results, "plugins": [], "wait": 60}))
    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=10)
    job = executor.submit(Training([sys.executable, "-m", "hybridlab.runs.job", str(file)]))
    log = folder / "metrics.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 40):
        time.sleep(0.02)
        assert job.state != "FINISHED", job.stderr()
    (process,) = Path(f"/proc/{job._process.pid}/task/{job._process.pid}/children").read_text().split()
    os.kill(int(process), signal.SIGUSR2)
    job.wait()
    assert job.state == "FINISHED", job.stderr()
    assert "interrupted:" in job.stderr() and "resuming after step" in job.stderr()
    train(config, tmp_path / "whole", runs)
    assert_same_run(tmp_path / "whole", folder)


@pytest.mark.parametrize(
    "time, minutes", [("90", 90), ("24:00:00", 1440), ("1-0", 1440), ("2-12:30", 3630), ("00:10:00", 10)]
)
def test_times_are_read_as_slurm_reads_them(time, minutes):
    assert Cluster(time=time).minutes == minutes


@pytest.mark.parametrize("time", ["soon", "", "0", "1:2:3:4", "-5", "1-2-3"])
def test_times_that_are_none(time):
    with pytest.raises(UserError, match="--time"):
        assert Cluster(time=time).minutes


@pytest.mark.parametrize(
    "options, said",
    [
        ({"launcher": "slrum"}, "did you mean 'slurm'?"),
        ({"partition": "gpu"}, "--partition has no effect without --launcher slurm"),
        ({"launcher": "slurm", "slurm": ["mem"]}, "write NAME=VALUE"),
        ({"launcher": "slurm", "time": "soon"}, "write MINUTES"),
    ],
)
def test_options_that_do_not_fit(options, said):
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        Launching(**options).cluster()


@pytest.mark.long
def test_mistakes_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ["ablate", "--vary", "training.seed=0,1", "--launcher", "slurm"]
    jobs = hybridlab(*command, "--jobs", "2", cwd=tmp_path)
    assert jobs.returncode == 2 and "--array-parallelism" in jobs.stderr
    nowhere = hybridlab("pretrain", "--launcher", "slurm", "--steps", "2", cwd=tmp_path)
    assert nowhere.returncode == 2 and "there is no sbatch here" in nowhere.stderr
    both = hybridlab("pretrain", "--launcher", "slurm", "--ranks", "2", cwd=tmp_path)
    assert both.returncode == 2 and "--gpus-per-node" in both.stderr
    named_run = hybridlab("pretrain", "--launcher", "slurm", "--name", "mine", cwd=tmp_path)
    assert named_run.returncode == 2 and "leave them out" in named_run.stderr
    other = hybridlab("runs", "--jobs", "--state", "finished", cwd=tmp_path)
    assert other.returncode == 2 and "--state has no effect on --jobs" in other.stderr
    none = hybridlab("runs", "--jobs", cwd=tmp_path)
    assert none.returncode == 0 and "no jobs in runs" in none.stderr


@pytest.mark.parametrize("name", ["a b.json", "an o'clock.json"])
def test_the_command_of_several_gpus_starts_a_rank_for_each(name, tmp_path, monkeypatch):
    from hybridlab.runs.cluster import _command

    monkeypatch.setattr(sys, "executable", "/my envs/bin/python")
    shell = _command(tmp_path / name, Cluster(nodes=2, gpus_per_node=8))[-1]
    words = shlex.split(shell.replace("$(scontrol", "(scontrol"))
    assert words[:4] == ["exec", "/my envs/bin/python", "-m", "torch.distributed.run"]
    assert "--nnodes 2 --nproc-per-node 8" in shell and words[-1] == str(tmp_path / name)
    assert subprocess.run(["bash", "-n", "-c", shell], check=True).returncode == 0
