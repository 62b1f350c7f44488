"""A full disk: one sentence with the path and the bytes, nothing half written, and the same command goes on."""

import errno
import json
import os
import re
import resource
from functools import partial
from pathlib import Path

import pytest

from hybridlab.errors import NoRoom
from hybridlab.files import write_text
from hybridlab.models import export
from hybridlab.runs.run import train_run
from hybridlab.training.store import checkpoints
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import MetricsLog
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING
from tests.conftest import write_text as write_text_file
from tests.integration.test_cli import hybridlab
from tests.processes import forked_command
from tests.training import assert_same_run, train


@pytest.fixture
def small_folder(tmp_path):
    """A working folder with a text and settings; the files of its optimizer have 200 KB, those of its model 100 KB."""
    write_text_file(tmp_path / "words.txt")
    settings = {"shape": SMALL_SHAPE, "training": SMALL_TRAINING, "evaluation": {"validation_windows": 4}}
    (tmp_path / "small.yaml").write_text(json.dumps(settings))
    return tmp_path


def limited(largest, *arguments, cwd):
    """A command in a process whose files may have at most so many bytes: the operating system refuses longer ones."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest, largest))
    return forked_command(*arguments, cwd=cwd, first=limit)


def fill_up_at(monkeypatch, module, name, call):
    """From its n-th call on, a function of a module fails as on a full disk."""
    original, calls = getattr(module, name), []

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, failing)


def test_a_checkpoint_without_room_is_one_sentence_and_the_run_goes_on(small, tmp_path, runs_dir, monkeypatch):
    config, folder = small(), RunFolder(tmp_path / "run")
    train(config, tmp_path / "whole", runs_dir)
    with monkeypatch.context() as patch:
        fill_up_at(patch, checkpoints, "save_tensors", 4)
        with pytest.raises(NoRoom) as full:
            train_run(config, folder, Runs(runs_dir))
    said = str(full.value)
    assert re.search(r"step-00000008: it cannot be written \(No space left on device; [\d,]+ bytes are needed, ", said)
    assert said.endswith("make room, then give the same command again, which goes on after step 4")
    needed = int(re.search(r"([\d,]+) bytes are needed", said)[1].replace(",", ""))
    written = sum(path.stat().st_size for path in (folder.checkpoints / "step-00000004").glob("*.safetensors"))
    assert 0.8 * written < needed <= written
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000004"]
    assert folder.record() is None
    train(config, folder.path, runs_dir)
    assert_same_run(tmp_path / "whole", folder.path)


def test_a_final_model_without_room_leaves_none_and_the_run_goes_on(small, tmp_path, runs_dir, monkeypatch):
    config, run = small(), tmp_path / "run"
    train(config, tmp_path / "whole", runs_dir)
    with monkeypatch.context() as patch:
        fill_up_at(patch, export, "save_tensors", 1)
        with pytest.raises(NoRoom, match="run/final: it cannot be written .*which goes on after step 12"):
            train(config, run, runs_dir)
    assert not (run / "final").exists() and not (run / "record.json").exists() and not list(run.glob(".final*"))
    train(config, run, runs_dir)
    assert_same_run(tmp_path / "whole", run)


def test_a_line_of_the_log_without_room_names_the_log():
    with pytest.raises(NoRoom, match="/dev/full: it cannot be written .No space left on device; 12 bytes are needed"):
        MetricsLog(Path("/dev/full")).write({"step": 1})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_every_error_of_a_write_names_the_file(tmp_path, monkeypatch, number):
    def failing(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises((NoRoom, OSError)) as raised:
        write_text(tmp_path / "a.json", "0123456789")
    if number == errno.EIO:
        assert raised.value.filename == str(tmp_path / "a.json")
    else:
        assert f"a.json: it cannot be written ({os.strerror(number)}; 10 bytes are needed, " in str(raised.value)
    assert not any(tmp_path.iterdir())


def test_a_real_limit_in_data_and_in_training(small_folder):
    """safetensors reports errors of the operating system in a type of its own."""
    folder = small_folder
    prepare = ["data", "prepare", "text:words.txt", "--tokenizer", "byte", "--out", "prepared"]
    done = limited(150_000, *prepare, cwd=folder)
    assert done.returncode == 1 and len(done.stderr.splitlines()[1:]) == 1
    assert re.search(r"failed: prepared: it cannot be written \(File too large; .* free\); make room, ", done.stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["small.yaml", "words.txt"]
    assert hybridlab(*prepare, cwd=folder).returncode == 0

    pretrain = ["pretrain", "--data", "shards:prepared", "--config", "small.yaml", "--run-dir", "run"]
    done = limited(150_000, *pretrain, cwd=folder)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.search(
        r"^failed: run/checkpoints/step-0+12: it cannot be written \(File too large; .* after step 0$", last
    )
    assert not any((folder / "run" / "checkpoints").iterdir())
    again = hybridlab(*pretrain, cwd=folder)
    assert again.returncode == 0 and "starts again from step 0 (it was stopped before its first" in again.stderr
