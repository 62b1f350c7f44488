"""Trackers get the lines, events and settings of a run, go on when it is resumed, and never stop it."""

import json
import sys

import pytest

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from hybridlab.runs.run import train_run
from hybridlab.training import trackers
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import read_metrics
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.training import growing, train, train_until


def tracked(config, *names):
    runtime = config.runtime.model_copy(update={"track": list(names)})
    return config.model_copy(update={"runtime": runtime})


def test_tensorboard_has_every_line_once_after_a_resume(small, tmp_path, runs_dir, monkeypatch):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = tracked(growing(small, 12), "tensorboard")
    assert run_hash(config) == run_hash(growing(small, 12))
    train_until(config, tmp_path / "a", runs_dir, monkeypatch, 7)
    record = train(config, tmp_path / "a", runs_dir)
    read = event_accumulator.EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    read.Reload()
    lines = [line for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "step" in line]
    assert [point.step for point in read.Scalars("loss")] == list(range(1, 13))
    for name in ("loss", "lr", "tokens_per_second", "extra_passes"):
        assert [point.value for point in read.Scalars(name)] == pytest.approx([line[name] for line in lines], rel=1e-6)
    (final,) = read.Scalars("final/loss")
    assert final.value == pytest.approx(record.results.validation.loss.value) and final.step == 12
    (settings,) = read.Tensors("config/text_summary")
    assert b'"entropy-growth"' in settings.tensor_proto.string_val[0]
    written = [json.loads(e.tensor_proto.string_val[0].split(b"\n")[1]) for e in read.Tensors("events/text_summary")]
    # TensorBoard replaces numbers of repeated steps, but keeps both texts.
    assert [event for i, event in enumerate(written) if event not in written[:i]] == record.events


def test_a_tracker_that_comes_later_gets_the_log_so_far(small, tmp_path, runs_dir, monkeypatch):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_until(small(), tmp_path / "a", runs_dir, monkeypatch, 7)
    train(tracked(small(), "tensorboard"), tmp_path / "a", runs_dir)
    read = event_accumulator.EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    read.Reload()
    assert [point.step for point in read.Scalars("loss")] == list(range(1, 13))


def test_trackio_has_the_run_under_its_hash(small, tmp_path, runs_dir, monkeypatch):
    pytest.importorskip("trackio")
    config = tracked(small(), "trackio")
    if "trackio.utils" not in sys.modules:  # it reads TRACKIO_DIR when it is imported
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    train_until(config, tmp_path / "a", runs_dir, monkeypatch, 6)
    train(config, tmp_path / "a", runs_dir)
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = [run["name"] for run in SQLiteStorage.get_run_records("hybridlab") if run["name"] == run_hash(config)]
    losses = {line["step"]: line["loss"] for line in SQLiteStorage.get_logs("hybridlab", name) if "loss" in line}
    lines = [line for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "step" in line]
    assert losses == {line["step"]: pytest.approx(line["loss"]) for line in lines}
    assert SQLiteStorage.get_run_config("hybridlab", name)["training"]["steps"] == 12


def test_wandb_offline_writes_into_the_run_folder(small, tmp_path, runs_dir, monkeypatch):
    wandb = pytest.importorskip("wandb")
    config = tracked(small(training={"steps": 4, "schedule": {"warmup_steps": 1}}), "wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record = train(config, tmp_path / "a", runs_dir)
    wandb.teardown()
    (folder,) = (tmp_path / "a" / "wandb").glob(f"offline-run-*-{record.hash}")
    content = (folder / f"run-{record.hash}.wandb").read_bytes()
    for name in (b"tokens_per_second", b"gradient_norm", b"final/loss", b"seq_len", record.hash.encode()):
        assert name in content, name


def test_a_tracker_that_fails_ends_with_one_warning(small, tmp_path, runs_dir, monkeypatch):
    calls, said = [], []

    class Failing(trackers.Tracker):
        def open(self, run):
            print("hello")
            return False

        def log(self, step, values):
            calls.append(step)
            if step == 3:
                raise ConnectionError("no network\nat all")

        def close(self, finished):
            calls.append("closed")

    class NotEvenOpen(Failing):
        def open(self, run):
            raise SystemError

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Failing)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", NotEvenOpen)
    monkeypatch.setattr("hybridlab.runs.link.require_trackers", lambda names: None)  # wandb need not be installed
    config = tracked(small(), "tensorboard", "wandb")
    with heard_by(said.append):
        record = train_run(config, RunFolder(tmp_path / "a"), Runs(runs_dir))
    assert record.status == "finished" and calls == [1, 2, 3]
    warnings = [line for line in said if "--track" in line]
    assert warnings == [
        "train: --track wandb has stopped, the run goes on without it: SystemError",
        "train: --track tensorboard has stopped, the run goes on without it: no network",
    ]


def test_a_tracker_that_is_not_installed_is_refused_before_training(small, tmp_path, runs_dir, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"--track wandb: this package is not installed; pip install 'hybridlab\[track\]'"
    ):
        train(tracked(small(), "wandb"), tmp_path / "a", runs_dir)
    assert not (tmp_path / "a").exists()


def test_what_trackers_print_does_not_reach_standard_output(small, tmp_path, runs_dir, monkeypatch, capsys):
    test_a_tracker_that_fails_ends_with_one_warning(small, tmp_path, runs_dir, monkeypatch)
    printed = capsys.readouterr()
    assert "hello" in printed.err and not printed.out


def test_the_commands_that_train_take_track(workdir):
    """The same command with and without --track is the same run."""
    common = ["--data", "text:words.txt", "--config", "small.yaml", "--steps", "4"]
    plain = json_of(hybridlab("pretrain", *common, "--run-dir", "plain", "--json", cwd=workdir))
    tracked = json_of(
        hybridlab("pretrain", *common, "--track", "tensorboard", "--run-dir", "tracked", "--json", cwd=workdir)
    )
    assert plain["hash"] == tracked["hash"] and not (workdir / "plain" / "tensorboard").exists()
    learn = ["--from", "plain", "--window", "4", "--track", "tensorboard", "--run-dir", "masks"]
    assert hybridlab("learn-masks", *common[2:], *learn, cwd=workdir).returncode == 0
    vary = ["--vary", "training.clip=0.5", "--seeds", "1", "--track", "tensorboard"]
    assert hybridlab("ablate", *common, *vary, cwd=workdir).returncode == 0
    assert len([*workdir.glob("*/tensorboard"), *workdir.glob("runs/*/tensorboard")]) == 3
    wrong = hybridlab("pretrain", *common, "--track", "mlflow", cwd=workdir)
    assert wrong.returncode == 2 and "'tensorboard', 'trackio' or 'wandb'" in wrong.stderr


@pytest.fixture
def workdir(tmp_path):
    write_text(tmp_path / "words.txt", 40_000)
    training = {**SMALL_TRAINING, "schedule": {"warmup_steps": 1}}
    settings = {"shape": {**SMALL_SHAPE, "layers": 4}, "training": training, "data": {"tokenizer": "byte"}}
    settings |= {"evaluation": {"validation_windows": 4}}
    (tmp_path / "small.yaml").write_text(json.dumps(settings))
    return tmp_path
