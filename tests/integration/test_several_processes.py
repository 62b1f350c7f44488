"""A run that two processes train together is the run of one process, up to the rounding of sums over rows."""

import os
import signal

import pytest
import torch
from torch import distributed as dist
from torch.multiprocessing import spawn

from hybridlab.errors import Interrupted, RunFailed
from hybridlab.methods.sgt.training import EntropyGrowth
from hybridlab.models.export import load_checkpoint
from hybridlab.runs.record import read_record
from hybridlab.store import checkpoints
from hybridlab.store.folders import RunFolder
from hybridlab.training.engine import Run
from hybridlab.training.world import world
from tests.integration.test_finetuning import ENCODER, composed, parent, task_file
from tests.training import FIVE_LAYERS, GROWTH_TIMES, train, weights


def joined(rank, jobs, folder):
    """What each of two processes does. jobs: name → (configuration, folder of runs)."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    growing, runs_dir = jobs["growing"]
    try:
        with pytest.MonkeyPatch.context() as patch:
            # The second process alone gets a signal; both stop after the step that it came in.
            patch.setattr(Run, "_gradients", signalled(Run._gradients))
            with pytest.raises(Interrupted):
                train(growing, folder / "growing", runs_dir)
        assert checkpoints.newest_step(folder / "growing" / "checkpoints") == 7
        for name, (config, runs) in jobs.items():
            train(config, folder / name, runs)
        with pytest.MonkeyPatch.context() as patch:
            # Entropies of their own would give each process another structure.
            patch.setattr(
                EntropyGrowth, "_entropies", lambda hook: [[float(layer == 3 + rank)] * 4 for layer in range(5)]
            )
            with pytest.raises(RunFailed, match="loop-added after step 3 is not the same in all processes"):
                train(growing, folder / "apart", runs_dir)
    finally:
        dist.destroy_process_group()


def signalled(gradients):
    def watched(run, batch, step):
        if step == 6 and not world().writer:
            os.kill(os.getpid(), signal.SIGTERM)
        return gradients(run, batch, step)

    return watched


def assert_close_run(alone, together):
    """Two folders hold the same files, and the same record and weights up to rounding."""
    one, two = (read_record(folder / "record.json") for folder in (alone, together))
    assert two.history.keys() == one.history.keys()
    for name, values in one.history.items():
        assert two.history[name] == pytest.approx(values, rel=2e-3, abs=1e-5), name
    a, b = weights(alone), weights(together)
    assert a.keys() == b.keys() and load_checkpoint(alone).structure == load_checkpoint(together).structure
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=2e-3, atol=5e-4)
    for was, now in (
        (one.results, two.results),
        *((one.results.at[step], two.results.at[step]) for step in one.results.at),
    ):
        assert now.validation.windows == pytest.approx(was.validation.windows, abs=1e-3)
        assert now.tasks.keys() == was.tasks.keys()
        for task in was.tasks:
            assert now.tasks[task].loss.all.value == pytest.approx(was.tasks[task].loss.all.value, abs=1e-3)
    if one.results.finetune is not None:
        assert two.results.finetune == one.results.finetune
    for name in one.results.choices:
        assert two.results.choices[name].loss.value == pytest.approx(one.results.choices[name].loss.value, rel=1e-3)
    for name in ("hash", "tokens", "flops", "redone_steps", "status", "structure"):
        assert getattr(two, name) == getattr(one, name), name
    for was, now in zip(one.events, two.events, strict=True):
        assert {**now, "entropies": None, "layer_entropies": None} == {
            **was,
            "entropies": None,
            "layer_entropies": None,
        }
    if "0" in one.results.at:
        # Both have the first weights there.
        assert two.results.at["0"] == one.results.at["0"]
    assert sorted(p.name for p in together.rglob("*")) == sorted(p.name for p in alone.rglob("*"))


def test_two_processes_train_one_run(small, tmp_path, tmp_path_factory, text_file, runs_dir):
    shared = {
        "data": {"mix": {"text": 0.5, "retrieval": 0.5}},
        "observe": {"entropy_every": 3, "each_step": ["loss", "gradient_norm"]},
        "evaluation": {"every": 5, "keep_best": True, "at_steps": [0, 7], "validation_windows": 70, "task_rows": 40},
        "hooks": [{"kind": "entropy-reg", "weight": 0.01}],
    }
    shared["evaluation"]["task_window"] = 4
    runtime = {"micro_batch_rows": 3, "keep_steps": [4]}
    controller = {**GROWTH_TIMES, "max_passes": 2, "max_layers": 2}
    growing = small("sgt", shape=FIVE_LAYERS["shape"], controller=controller, runtime=runtime, **shared)
    rule = {"kind": "mask-learning", "rho": 0.5, "granularity": "head-single", "mask_lr": 0.5, "multiplier_lr": 0.5}
    choices = {"tasks": ["assignment-basic"], "items": 12, "shots": 1}
    learning = small("consa", controller=rule, data=shared["data"], evaluation={"choices": choices})
    masked = {"shape": ENCODER, "data": {"tokenizer": "byte+mask"}}
    encoder = parent(tmp_path_factory, text_file, "bert", "bert-tiny", **masked)
    tuned = composed(encoder, "squad", data=task_file(tmp_path, "squad"), steps=3, lr=1e-3)
    jobs = {"growing": (growing, runs_dir), "learning": (learning, runs_dir)}
    jobs |= {"masked": (RunFolder(encoder).config(), runs_dir), "tuned": (tuned, encoder.parent)}
    for name, (config, runs) in jobs.items():
        train(config, tmp_path / "alone" / name, runs)
    (tmp_path / "together").mkdir()
    spawn(joined, (jobs, tmp_path / "together"), nprocs=2)
    for name in jobs:
        assert_close_run(tmp_path / "alone" / name, tmp_path / "together" / name)
