"""The training engine: what a run writes, accumulation, exact resume, kills, and refusals."""

import importlib.metadata
import json
import math
import os
import shutil
import signal
from functools import partial

import pytest
import torch

from hybridlab.attention import kernels
from hybridlab.config.resolve import run_hash
from hybridlab.errors import Diverged, Interrupted, RunFailed, UserError
from hybridlab.messages import heard_by
from hybridlab.models.decoder import Decoder
from hybridlab.runs import run as run_module
from hybridlab.runs.run import train_run
from hybridlab.training.engine import Run
from hybridlab.training.store import checkpoints
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import read_metrics
from tests.training import (
    assert_resumes_exactly,
    assert_same_run,
    assert_survives_kills,
    train,
    train_until,
    trained_once,
    weights,
)


def test_a_run_writes_its_folder_metrics_and_record(small, tmp_path, runs_dir):
    config = small(data={"mix": {"text": 0.5, "retrieval": 0.5, "assignment": 0.0}}, evaluation={"task_window": 6})
    record = train(config, tmp_path / "a", runs_dir)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == [".lock", "final", "metrics.jsonl", "record.json", "run.json"]
    assert sorted(p.name for p in (tmp_path / "a" / "final").iterdir()) == [
        "config.json",
        "digests.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert record.hash == run_hash(config) and record.tokens == 12 * 256 and record.steps == 12
    lines = read_metrics(tmp_path / "a" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["flops"] == record.flops
    retrieval = record.results.tasks["retrieval"]
    parts = [share.n for share in (retrieval.inside, retrieval.relayed, retrieval.outside)]
    assert sum(parts) == retrieval.all.n > 0 and all(parts) and retrieval.reach == 3 * 5
    assert record.results.validation.loss.n == 8
    assert record.data.fingerprint and record.libraries["torch"] and record.precision == "fp32"


def test_a_finished_run_is_not_touched_again(small, tmp_path, runs_dir, monkeypatch):
    record = train(small(), tmp_path / "a", runs_dir)
    monkeypatch.setattr(Run, "train", lambda *a: pytest.fail("trained again"))
    assert train(small(), tmp_path / "a", runs_dir) == record


def test_accumulation_gives_the_same_gradient(small, tmp_path, runs_dir):
    mix = {"text": 0.5, "retrieval": 0.5, "assignment": 0.0}
    records = []
    for rows in (8, 3, 1):
        config = small(data={"mix": mix}, runtime={"micro_batch_rows": rows})
        train(config, tmp_path / str(rows), runs_dir)
        records.append(weights(tmp_path / str(rows)))
        assert run_hash(config) == run_hash(small(data={"mix": mix}))
    for other in records[1:]:
        for name, tensor in records[0].items():
            torch.testing.assert_close(other[name], tensor, atol=2e-5, rtol=1e-3)


LEARN = {
    "controller": {
        "kind": "mask-learning",
        "rho": 0.5,
        "granularity": "head-single",
        "mask_lr": 0.5,
        "multiplier_lr": 0.5,
    }
}


@pytest.mark.parametrize("arch", ["vanilla", "consa"])
@pytest.mark.parametrize("step", [2, 5, 11])
def test_resume_is_exact(small, tmp_path, runs_dir, monkeypatch, arch, step):
    config = small(arch, **(LEARN if arch == "consa" else {}))
    whole = trained_once(config, runs_dir)
    record = assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step, whole)
    assert record.redone_steps == step % 4
    if arch == "consa":
        assert (whole / "masks.json").read_text() == (tmp_path / "cut" / "masks.json").read_text()


@pytest.mark.parametrize("arch", ["vanilla", "consa"])
def test_resume_after_sigkill_is_exact(small, tmp_path, runs_dir, arch):
    """A real process, a real SIGKILL, twice; then the same bits as an uninterrupted run."""
    settings = {**(LEARN if arch == "consa" else {}), "training": {"steps": 60}}
    assert_survives_kills(small(arch, **settings), tmp_path, runs_dir, (10, 30))


def test_the_record_names_the_kernels_that_computed_the_steps(small, tmp_path, runs_dir, monkeypatch):
    """Of heads that were mixed in every step, and are not any more when the record is written."""
    ran = set()

    def noted(name, kernel, q, k, v, visible):
        ran.add((visible.window, name))
        return kernel(q, k, v, visible)

    for name, kernel in list(kernels.KERNELS.items()):
        monkeypatch.setitem(kernels.KERNELS, name, partial(noted, name, kernel))
    config = small("consa", training={"seq_len": 64}, **LEARN)
    take_step, in_steps = Run.take_step, set()

    def watched(run):
        ran.clear()
        numbers = take_step(run)
        in_steps.update(ran)
        return numbers

    monkeypatch.setattr(Run, "take_step", watched)
    record = train(config, tmp_path / "a", runs_dir)
    assert in_steps == {(None, record.kernels["full"]), (4, record.kernels["window(4)"])}
    assert record.kernels["window(4)"] == "blocks" and "mixed" not in record.model.map


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_after_the_step_and_resumes_exactly(small, tmp_path, runs_dir, monkeypatch, number):
    config = small("consa", **LEARN)
    train(config, tmp_path / "whole", runs_dir)
    gradients = Run._gradients

    def interrupted(self, batch, step):
        if step == 5:
            os.kill(os.getpid(), number)
        return gradients(self, batch, step)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_gradients", interrupted)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "cut", runs_dir)
    assert RunFolder(tmp_path / "cut").checkpoint_steps[-1] == 6
    record = train(config, tmp_path / "cut", runs_dir)
    assert record.redone_steps == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("arch", ["vanilla", "consa"])
def test_checkpoints_by_time_change_no_bit(small, tmp_path, runs_dir, monkeypatch, arch):
    """A run that is cut and goes on after such a checkpoint equals one with no checkpoint before the last step."""
    parts = LEARN if arch == "consa" else {}
    kept = {"checkpoint_every": 1000, "keep_optimizer": True}
    by_steps = small(arch, **parts, runtime={**kept, "checkpoint_seconds": None})
    by_time = small(arch, **parts, runtime={"checkpoint_every": 1000})
    assert run_hash(by_time) == run_hash(by_steps)
    train(by_steps, tmp_path / "whole", runs_dir)
    assert [p.name for p in (tmp_path / "whole" / "checkpoints").iterdir()] == ["step-00000012"]
    monkeypatch.setattr(checkpoints.Pace, "due", lambda self: True)
    train(by_time, tmp_path / "timed", runs_dir)
    assert_same_run(tmp_path / "whole", tmp_path / "timed")
    assert assert_resumes_exactly(by_time, tmp_path, runs_dir, monkeypatch, 7).redone_steps == 0


def test_a_run_without_a_checkpoint_says_that_it_starts_again(small, tmp_path, runs_dir, monkeypatch):
    config, folder, said = small(), RunFolder(tmp_path / "a"), []
    train_until(config, folder.path, runs_dir, monkeypatch, 3)
    train_until(config, tmp_path / "b", runs_dir, monkeypatch, 6)
    for path in (folder, RunFolder(tmp_path / "b"), RunFolder(tmp_path / "new")):
        with heard_by(said.append):
            train_run(config, path, Runs(runs_dir))
    assert said == [
        "train: starts again from step 0 (it was stopped before its first checkpoint)",
        "train: resuming after step 4",
    ]


def test_control_c_outside_the_training_steps_can_be_continued_too(small, tmp_path, runs_dir, monkeypatch, request):
    """As a second Ctrl-C in a step, or one while the model is measured; SIGTERM then too."""

    def stopped(*_, **__):
        raise KeyboardInterrupt

    def sends(number):
        # In this thread: what another one handles may come after the next line.
        return lambda *_, **__: signal.raise_signal(number)

    config, measuring = small(), (run_module, "measure", "step 12")
    # A shell starts what runs in its background with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for place, name, saved, stop, number in (
        (Run, "take_step", "no step", stopped, signal.SIGINT),
        (*measuring, stopped, signal.SIGINT),
        (*measuring, sends(signal.SIGINT), signal.SIGINT),
        (*measuring, sends(signal.SIGTERM), signal.SIGTERM),
        (run_module, "_save", "step 12", sends(signal.SIGTERM), signal.SIGTERM),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, stop)
            with pytest.raises(Interrupted, match=f"a: stopped at once, with {saved} saved") as ended:
                train(config, tmp_path / "a", runs_dir)
        assert ended.value.signal == number and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    train(config, tmp_path / "whole", runs_dir)
    train(config, tmp_path / "a", runs_dir)
    assert_same_run(tmp_path / "whole", tmp_path / "a")


def test_a_user_error_creates_no_folder(small, tmp_path, runs_dir):
    config = small(settings=["data.source=text:/no/such/file"])
    with pytest.raises(UserError, match="no such file"):
        train(config, tmp_path / "new" / "deeper", runs_dir)
    assert not (tmp_path / "new" / "deeper").exists()
    with pytest.raises(UserError, match="no such file"):
        train(config, tmp_path, runs_dir)
    assert not (tmp_path / ".lock").exists()


def test_another_run_in_the_folder_is_refused_and_nothing_changes(small, tmp_path, runs_dir):
    train(small(), tmp_path / "a", runs_dir)
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"another run .*training.seed \(0 there, 5 here\)"):
        train(small(settings=["training.seed=5"]), tmp_path / "a", runs_dir)
    assert {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()} == before


def test_a_folder_with_other_things_is_refused(small, tmp_path, runs_dir):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="not empty and holds no run"):
        train(small(), tmp_path, runs_dir)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_two_processes_cannot_share_a_folder(small, tmp_path, runs_dir):
    with RunFolder(tmp_path / "a").locked(), pytest.raises(UserError, match="another process"):
        train(small(), tmp_path / "a", runs_dir)


def test_changed_data_is_refused(small, tmp_path, runs_dir, monkeypatch):
    config = small()
    train_until(config, tmp_path / "a", runs_dir, monkeypatch, 6)
    info = json.loads((tmp_path / "a" / "run.json").read_text())
    (tmp_path / "a" / "run.json").write_text(json.dumps(info | {"data_fingerprint": "other"}))
    with pytest.raises(UserError, match="data has changed"):
        train(config, tmp_path / "a", runs_dir)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(small, tmp_path, runs_dir, monkeypatch):
    config = small()
    train(config, tmp_path / "whole", runs_dir)
    train_until(config, tmp_path / "a", runs_dir, monkeypatch, 10)
    newest = tmp_path / "a" / "checkpoints" / "step-00000008"
    (newest / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(UserError, match="go on from step-00000004"):
        train(config, tmp_path / "a", runs_dir)
    shutil.rmtree(newest)
    train(config, tmp_path / "a", runs_dir)
    assert_same_run(tmp_path / "whole", tmp_path / "a")


def test_a_loss_that_is_not_finite_ends_the_run(small, tmp_path, runs_dir):
    config = small(settings=["training.optimizer.lr=1e30", "training.clip=1e30", "training.schedule.warmup_steps=0"])
    with pytest.raises(Diverged, match="(loss|gradient norm) is"):
        train(config, tmp_path / "a", runs_dir)
    record = json.loads((tmp_path / "a" / "record.json").read_text())
    assert record["status"] == "diverged" and record["results"] is None
    assert not (tmp_path / "a" / "final").exists()


def test_a_number_of_a_controller_that_is_not_finite_ends_the_run(small, tmp_path, runs_dir):
    settings = ["map.window=4", "controller.multiplier_lr=1e39", "runtime.log_every=1", "training.steps=4"]
    with pytest.raises(Diverged, match="the lagrangian is inf at step 1; lower"):
        train(small("consa", settings=settings), tmp_path / "a", runs_dir)
    assert json.loads((tmp_path / "a" / "record.json").read_text())["status"] == "diverged"


def test_starting_from_another_run(small, runs):
    parent = small()
    train(parent, runs / "parent", runs)
    child = small(init={"run": run_hash(parent)}, settings=["training.steps=2", "training.optimizer.lr=1e-12"])
    record = train(child, runs / "child", runs)
    assert record.parents == [run_hash(parent)]
    one, two = weights(runs / "parent"), weights(runs / "child")
    assert all(torch.allclose(one[k], two[k], atol=1e-6) for k in one)
    wider = small(init={"run": run_hash(parent)}, shape={"ffn_width": 48})
    with pytest.raises(UserError, match="weights of another architecture: .*mlp"):
        train(wider, runs / "wider", runs)
    assert not (runs / "wider" / "run.json").exists()
    other_tokenizer = small(init={"run": run_hash(parent)}, data={"tokenizer": "bpe:300"})
    with pytest.raises(UserError, match="trained with another tokenizer"):
        train(other_tokenizer, runs / "other", runs)


def test_a_parent_must_be_finished(small, tmp_path, runs_dir, monkeypatch):
    train_until(small(), tmp_path / "half", runs_dir, monkeypatch, 6)
    with pytest.raises(UserError, match="has not finished"):
        Runs(tmp_path).finished(str(tmp_path / "half"))


def test_runs_are_found_by_path_and_by_prefix(small, tmp_path, runs_dir):
    config = small()
    train(config, tmp_path / "a", runs_dir)
    for reference in (str(tmp_path / "a"), str(tmp_path / "a" / "final"), run_hash(config)[:6]):
        assert Runs(tmp_path).find(reference).path.resolve() == (tmp_path / "a").resolve()
    with pytest.raises(UserError, match="neither a run folder nor the start of the hash"):
        Runs(tmp_path).find("zzz")


def test_a_model_that_fails_the_causality_probe_gets_no_results(small, tmp_path, runs_dir, monkeypatch):
    forward = Decoder.forward

    def leak(self, input_ids, **arguments):
        out = forward(self, input_ids, **arguments)
        return type(out)(out.logits + out.logits.mean(1, keepdim=True), out.attention)

    monkeypatch.setattr(Decoder, "forward", leak)
    with pytest.raises(RunFailed, match="sees the future"):
        train(small(), tmp_path / "a", runs_dir)
    assert json.loads((tmp_path / "a" / "record.json").read_text())["results"] is None


def test_a_loss_that_is_no_number_is_told_with_its_step_and_rows(small, tmp_path, runs_dir, monkeypatch):
    """Also where it is noticed later, at the next line of the log or checkpoint."""
    gradients = Run._gradients
    monkeypatch.setattr(
        Run, "_gradients", lambda run, batch, step: gradients(run, batch, step) + (math.nan if step == 6 else 0.0)
    )
    config = small(runtime={"log_every": 10, "checkpoint_every": 10})
    with pytest.raises(RunFailed, match="the loss is nan at step 7, which read the rows 48 to 55 of the run; lower"):
        train(config, tmp_path / "run", runs_dir)


def test_a_program_that_is_not_installed_trains_and_says_so(small, tmp_path, runs_dir, monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    record = train(small(), tmp_path / "run", runs_dir)
    assert record.libraries["hybridlab"] == "unknown" and record.libraries["python"]


@pytest.mark.parametrize("name", ["program_facts", "model_facts", "data_summary"])
def test_what_a_record_needs_is_collected_before_the_first_step(small, tmp_path, runs_dir, monkeypatch, name):
    def failing(*_):
        raise OSError("nothing is known")

    monkeypatch.setattr(run_module, name, failing)
    with pytest.raises(OSError, match="nothing is known"):
        train(small(), tmp_path / "run", runs_dir)
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and not (tmp_path / "run" / "checkpoints").exists()
