"""What a step keeps in memory: activation checkpointing, and the weights that a run starts from."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.config.schema import InitFrom, Runtime
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.runs.hooks import hooks_in_passes
from hybridlab.runs.link import link
from hybridlab.training import machine
from hybridlab.training.engine import Run
from hybridlab.training.machine import pick_recompute
from hybridlab.training.memory import step_memory
from hybridlab.training.store.artifacts import Artifact
from hybridlab.training.store.folders import RunFolder, Runs
from tests.training import assert_same_run, growing, train

MIXED = {"controller": {"rho": 0.5}, "training": {"steps": 3}}


def learning_masks(small):
    return small("consa", **MIXED)


def with_runtime(config, **changes):
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=changes)})


@pytest.mark.parametrize(
    "make",
    [
        lambda small: small("vanilla", training={"steps": 3}),
        learning_masks,
        lambda small: small("block-loop", training={"steps": 3}),
        pytest.param(partial(growing, steps=8), marks=pytest.mark.long),
    ],
    ids=["vanilla", "consa", "block-loop", "sgt"],
)
def test_selective_checkpointing_changes_no_bit(make, small, tmp_path, runs_dir):
    plain = with_runtime(make(small), activation_checkpointing=False)
    selective = with_runtime(plain, activation_checkpointing="selective")
    assert run_hash(plain) == run_hash(selective)
    train(plain, tmp_path / "plain", runs_dir)
    train(selective, tmp_path / "selective", runs_dir)
    assert_same_run(tmp_path / "plain", tmp_path / "selective")


def kept_by_a_layer(arch, recompute):
    """Bytes that one layer keeps for the backward pass in a step of two rows."""

    def kept(layers):
        training = {"seq_len": 512, "tokens_per_step": 1024}
        settings = {"training": training, "window": 64, "shape": {"layers": layers}}
        config = resolve(arch, "tiny", layers=[Layer(settings)])
        hooks = hooks_in_passes(config)
        return step_memory(config, final_structure(config), 2, 1, "fp32", recompute, hooks).activations

    return (kept(10) - kept(6)) / 4


def test_mask_learning_keeps_no_more_than_full_attention():
    """Of the window that is computed beside full attention, the backward pass recomputes everything."""
    vanilla, consa = (kept_by_a_layer(arch, "selective") for arch in ("vanilla", "consa"))
    assert consa == pytest.approx(vanilla, rel=0.01)
    assert consa < 0.4 * kept_by_a_layer("consa", False)
    assert vanilla < 0.6 * kept_by_a_layer("vanilla", False)


def test_large_steps_on_a_cpu_are_recomputed_selectively(monkeypatch):
    monkeypatch.setattr(machine, "_SELECTIVE_FROM", 1000)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")

    def picked(setting=None, device=cpu, compiled=False, tokens=100):
        return pick_recompute(Runtime(activation_checkpointing=setting), device, compiled, tokens, 10)

    assert picked() == "selective"
    assert [picked(tokens=99), picked(device=gpu), picked(compiled=True)] == [False] * 3
    assert [picked(setting) for setting in (True, False)] == [True, False]
    assert picked("selective", gpu, tokens=1) == "selective"
    with pytest.raises(UserError, match=r"selective has no effect on compiled blocks.*leave it out"):
        picked("selective", compiled=True)


def test_a_run_keeps_no_second_copy_of_the_weights_that_it_starts_from(small, tmp_path, runs_dir, monkeypatch):
    before = train(small(training={"steps": 2}), tmp_path / "before", runs_dir)
    sources = []
    weights = Artifact.weights

    def seen(artifact):
        found = weights(artifact)
        sources.extend(weakref.ref(tensor) for tensor in found.values())
        return found

    monkeypatch.setattr(Artifact, "weights", seen)
    config = small(training={"steps": 2}).model_copy(update={"init": InitFrom(run=before.hash)})
    runs = Runs(runs_dir, {before.hash: str(tmp_path / "before")})
    run = Run(link(config, run_hash(config), RunFolder(tmp_path / "run"), runs))
    gc.collect()
    assert sources and not any(source() is not None for source in sources)
    assert run.job.config is config
