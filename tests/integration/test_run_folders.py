"""Run folders: how a run is found, and what a start may do to a folder."""

import json

import pytest

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.training import train


def test_a_reference_that_is_no_run_never_finds_the_working_directory(trained, monkeypatch):
    config, runs = trained
    monkeypatch.chdir(runs / "parent")
    with pytest.raises(UserError, match="neither a run folder"):
        Runs(runs / "nowhere").find("deadbeef")
    with pytest.raises(UserError, match="neither a run folder"):
        Runs(runs / "nowhere").find(str(runs / "parent" / "nonsense"))
    assert Runs(runs).find(run_hash(config)[:5]).path.name == "parent"


def test_finding_a_run_skips_damaged_ones(trained):
    config, runs = trained
    for name, content in (("bad", "garbage"), ("worse", "{}")):
        (runs / name).mkdir(exist_ok=True)
        (runs / name / "run.json").write_text(content)
    assert Runs(runs).find(run_hash(config)).path.name == "parent"


def test_a_folder_with_other_files_is_refused_and_left_unchanged(small, tmp_path, runs_dir):
    (tmp_path / ".lock").write_text("precious")
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        train_run(small(), RunFolder(tmp_path), Runs(runs_dir))
    assert (tmp_path / ".lock").read_text() == "precious" and (tmp_path / "notes").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError):
        train_run(small(settings=["data.source=text:/no/such"]), RunFolder(empty), Runs(runs_dir))
    assert empty.is_dir() and not any(empty.iterdir())


def test_a_finished_run_of_another_version_is_not_called_done(small, tmp_path, runs_dir):
    config, said = small(training={"steps": 3}), []
    train(config, tmp_path / "a", runs_dir)
    path = tmp_path / "a" / "record.json"
    record = json.loads(path.read_text())
    del record["model"]
    path.write_text(json.dumps(record))
    with (
        pytest.raises(UserError, match="another version of hybridlab .*train again in another folder"),
        heard_by(said.append),
    ):
        train_run(config, RunFolder(tmp_path / "a"), Runs(runs_dir))
    assert said == []
