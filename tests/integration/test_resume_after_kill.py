"""Runs that are started again after they were killed at an awkward moment."""

from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs


def test_leftovers_of_a_kill_before_the_first_step_do_not_block_a_start(small, tmp_path, runs_dir):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".run.json.0123abcd").write_text("{")
    assert train_run(small(), RunFolder(folder), Runs(runs_dir)).status == "finished"


def test_a_kill_before_the_record_does_not_repeat_events(small, tmp_path, runs_dir):
    controller = {"kind": "mask-learning", "rho": 0.5}
    folder = RunFolder(tmp_path / "run")
    config = small("consa", shape={"layers": 4}, controller=controller)
    first = train_run(config, folder, Runs(runs_dir))
    (folder.path / "record.json").unlink()
    again = train_run(config, folder, Runs(runs_dir))
    assert again.events == first.events and len(again.events) == 1
    assert (folder.path / "metrics.jsonl").read_text().count("masks-fixed") == 1
