"""final/, the model of a finished run: written as a whole, checked when it is read, and made again if it is damaged."""

import json
import shutil
import signal

import pytest
import torch
from safetensors.torch import save_file

from hybridlab.config.schema import Runtime
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from hybridlab.models.export import FILES, load_checkpoint, read_weights
from hybridlab.runs.evaluate import analyze_run, evaluate_run
from hybridlab.runs.generate import Prompt, continue_prompts
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.processes import forked_python
from tests.training import assert_same_run, train


@pytest.fixture(scope="module")
def kept(trained, tmp_path_factory):
    """(configuration, folder of runs) of a finished run in `kept`, which keeps its last checkpoint. The folder is its
    own, since the run has the hash of `trained`."""
    config, others = trained
    runs = tmp_path_factory.mktemp("kept")
    (runs / "data").symlink_to(others / "data")
    config = config.model_copy(update={"runtime": Runtime(threads=1, keep_optimizer=True)})
    train(config, runs / "kept", runs)
    return config, runs


@pytest.fixture
def copied(kept, tmp_path):
    """The configuration of that run, a copy of its folder that a test may damage, and the folder of runs."""
    config, runs = kept
    return config, RunFolder(shutil.copytree(runs / "kept", tmp_path / "copy")), runs


def overwrite(path, count=4000):
    """Other bytes in the middle of a file, which keeps its length."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + count] = bytes(count)
    path.write_bytes(raw)


def test_overwritten_weights_are_used_by_nothing(copied, small):
    config, folder, runs = copied
    overwrite(folder.final / "model.safetensors")
    known, run = Runs(runs), str(folder.path)
    child = small(init={"run": folder.digest}, plan=config.model_dump(mode="json")["plan"])
    for use in (
        lambda: load_checkpoint(folder.path),
        lambda: load_checkpoint(folder.final),
        lambda: evaluate_run(run, known, None, []),
        lambda: analyze_run(run, known, "entropy", None, {}),
        lambda: list(continue_prompts(run, known, [Prompt("the cat", "test")], 2, 1)),
        lambda: train_run(child, RunFolder(folder.path.parent / "child"), Runs(runs, {folder.digest: run})),
    ):
        with pytest.raises(UserError, match=r"final: model.safetensors is damaged .*restore the file, or give the com"):
            use()
    assert not (folder.path.parent / "child").exists()


def test_weights_of_something_else_beside_a_model_are_not_read(copied):
    _, folder, _ = copied
    save_file({"adapter": torch.ones(1)}, folder.final / "adapter_model.safetensors")
    assert "adapter" not in read_weights(folder.final)


@pytest.mark.parametrize("name", [*FILES, "digests.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_damaged_final_model_is_made_again_from_the_last_checkpoint(copied, name, damage):
    config, folder, runs = copied
    path, said = folder.final / name, []
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        overwrite(path, 1)
    with heard_by(said.append):
        train_run(config, folder, Runs(runs))
    if (name, damage) == ("digests.json", "missing"):
        # As in folders of older versions, whose files are used as they are.
        assert "finished before" in said[0]
    else:
        assert name in said[0] and "making it again from the last checkpoint" in said[0]
    assert_same_run(runs / "kept", folder.path)
    load_checkpoint(folder.path)
    assert not list(folder.path.glob(".final*"))


def test_a_damaged_final_model_without_checkpoints_is_refused(copied):
    config, folder, runs = copied
    shutil.rmtree(folder.checkpoints)
    (folder.final / "model.safetensors").unlink()
    record = (folder.path / "record.json").read_bytes()
    with pytest.raises(UserError, match="final: model.safetensors is missing, and the checkpoint .* train again"):
        train_run(config, folder, Runs(runs))
    assert (folder.path / "record.json").read_bytes() == record


def test_folders_of_older_versions_are_read(copied):
    _, folder, runs = copied
    (folder.final / "digests.json").unlink()
    assert evaluate_run(str(folder.path), Runs(runs), None, []).validation.loss.value
    path = folder.final / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **config.pop("structure"), "format": 1}))
    load_checkpoint(folder.path)


# Trains a run in a process of its own, which a real SIGKILL ends at every flush to disk after the last step in turn.
KILLED = """
import os, signal, sys
from pathlib import Path
from hybridlab.config.schema import RunConfig
from hybridlab.files import damage
from hybridlab.runs import run as module
from hybridlab.training.store.folders import RunFolder, Runs

config = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())

def in_a_child(number):
    child = os.fork()
    if child == 0:
        flush, measure, left = os.fsync, module.measure, [None]
        def measured(*arguments, **options):
            left[0] = number
            return measure(*arguments, **options)
        def flushed(file):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if left[0] is not None:
                left[0] -= 1
            flush(file)
        os.fsync, module.measure = flushed, measured
        module.train_run(config, RunFolder(Path(sys.argv[2])), Runs(Path(sys.argv[3])))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

ends = []
while not ends or ends[-1]:
    ends.append(in_a_child(len(ends)))
    final = Path(sys.argv[2]) / "final"
    assert not final.exists() or damage(final) is None
print(*ends)
"""


@pytest.mark.long
def test_kills_while_the_final_model_is_written_lose_and_repeat_nothing(small, tmp_path, runs_dir):
    """Each start goes on after the last checkpoint, and only the last one is not killed."""
    config = small("consa", controller={"kind": "mask-learning", "rho": 0.5, "granularity": "head-single"})
    train(config, tmp_path / "whole", runs_dir)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    killed = tmp_path / "killed"
    ends = forked_python(KILLED, str(tmp_path / "config.json"), str(killed), str(runs_dir)).split()
    assert len(ends) > 6 and set(ends[:-1]) == {str(-signal.SIGKILL)} and ends[-1] == "0"
    assert_same_run(tmp_path / "whole", killed)
    assert json.loads((killed / "record.json").read_text())["redone_steps"] == 0
    assert not [path for path in killed.iterdir() if path.name.startswith((".final", ".record"))]
