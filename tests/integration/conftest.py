"""Fixtures of the tests that train: a finished run that several files read."""

import shutil
import sys

import pytest

from hybridlab.cli import main
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING
from tests.plugins import fresh_plugins


@pytest.fixture(scope="session")
def trained(tmp_path_factory, text_file):
    """(configuration, folder of runs) of a finished run of three steps in `parent`, whose plan loops one head.

    A test may add other folders, but must not change `parent`.
    """
    runs = tmp_path_factory.mktemp("trained")
    base = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3}}
    base |= {"data": {"source": f"text:{text_file}", "tokenizer": "byte"}, "runtime": {"threads": 1}}
    base |= {"evaluation": {"validation_windows": 4}, "plan": [{"op": "loop_heads", "layer": 1, "heads": [0]}]}
    config = resolve("vanilla", "tiny", layers=[Layer(base)])
    train_run(config, RunFolder(runs / "parent"), Runs(runs))
    return config, runs


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    """The folder of a finished run that the tests of one file may change."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    shutil.copytree(trained[1] / "parent", folder)
    return folder


@pytest.fixture
def no_data_root(monkeypatch):
    """Without the folder of benchmark files that the machine may have."""
    monkeypatch.setenv("HYBRIDLAB_DATA_ROOT", "")


@pytest.fixture
def runs(tmp_path, runs_dir):
    """A folder for the runs of one test, with the data that all tests share."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (runs_dir / "data").mkdir(exist_ok=True)
    (folder / "data").symlink_to(runs_dir / "data")
    return folder


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """A function: the words after `hybridlab` → exit code, standard output and standard error, in an empty folder and
    without plug-ins."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["hybridlab", *words])
        with fresh_plugins(), pytest.raises(SystemExit) as end:
            main.run()
        return (end.value.code or 0, *capsys.readouterr())

    return call
