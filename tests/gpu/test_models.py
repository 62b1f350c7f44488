"""Models of every architecture, and training runs, on a GPU beside the same on the CPU."""

import pytest
import torch

from hybridlab.config.loading import preset_names
from hybridlab.models.build import build_model
from hybridlab.training.engine import Run
from tests.training import growing, logged, train, train_until

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DEVICE = torch.device("cuda")
ENCODERS = {"bert": "bert-tiny"}
"""Architectures that no decoder's size fits → their size."""


def logits_and_gradients(model, tokens):
    """Heads whose masks are learned are half full and half a window."""
    shape = model.shape
    gates = {layer: torch.full((shape.kv_heads,), 0.5, device=tokens.device) for layer in range(shape.layers)}
    logits = model(tokens, gates=gates).logits
    weight = torch.linspace(-1, 1, logits.numel()).view(logits.shape).to(logits)
    model.zero_grad(set_to_none=True)
    (logits * weight).sum().backward()
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float().cpu()} | gradients


def assert_near(found, wanted, relative):
    """A bias of the keys moves all scores of a query alike: its gradient is zero but for rounding, whose scale is that
    of the other gradients of the layer."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = wanted[name.replace(".k.bias", ".q.bias")].abs().max()
        assert (found[name] - value).abs().max() <= relative * scale.clamp_min(1e-3), name


def on_both(arch, **changes):
    """A model on the CPU and on the GPU, and tokens."""
    size = ENCODERS.get(arch, "tiny")
    models = [build_model(arch, size=size, **changes) for _ in range(2)]
    vocab = models[0].shape.vocab
    return models[0], models[1].to(DEVICE), torch.randint(vocab, (2, 96), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("arch", preset_names("arch"))
def test_logits_and_gradients_equal_those_of_the_cpu(arch):
    cpu, gpu, tokens = on_both(arch)
    assert_near(logits_and_gradients(gpu, tokens.to(DEVICE)), logits_and_gradients(cpu, tokens), 1e-3)


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [*((arch, "auto") for arch in ("vanilla", "rule-swa", "sgt", "spiral-b", "saobp-high")), ("rule-swa", "flex")],
)
def test_compiled_blocks_equal_the_others(arch, kernel):
    _, gpu, tokens = on_both(arch)
    wanted = logits_and_gradients(gpu, tokens.to(DEVICE))
    gpu.compiled, gpu.kernel = True, kernel
    assert_near(logits_and_gradients(gpu, tokens.to(DEVICE)), wanted, 1e-3)


@pytest.mark.parametrize("kernel", ["sdpa", "flex"])
def test_mixed_precision_is_near_fp32(kernel):
    for arch in ("vanilla", "rule-swa"):
        cpu, gpu, tokens = on_both(arch, kernel=kernel)
        with torch.no_grad():
            wanted = cpu(tokens).logits if kernel == "sdpa" else build_model(arch)(tokens).logits
            with torch.autocast("cuda", torch.bfloat16):
                found = gpu(tokens.to(DEVICE)).logits.float().cpu()
        assert (found - wanted).abs().max() <= 3e-2 * wanted.abs().max()


@pytest.mark.parametrize("arch", ["vanilla", "rule-swa", "sgt", "spiral-b", "saobp-high"])
def test_greedy_texts_equal_those_of_the_cpu(arch):
    cpu, gpu, tokens = on_both(arch)
    wanted = cpu.generate(tokens, 24).tokens
    assert torch.equal(gpu.generate(tokens.to(DEVICE), 24).tokens.cpu(), wanted)
    if not gpu.plan.chunked:
        assert torch.equal(gpu.generate(tokens.to(DEVICE), 24, compiled=True).tokens.cpu(), wanted)


@pytest.mark.parametrize("arch", ["sgt", "midas"])
def test_a_run_on_a_gpu_goes_on_after_a_kill(arch, small, tmp_path, runs_dir, monkeypatch):
    """The steps after the kill have the losses of an uninterrupted run; kernels on a GPU may add in another order."""
    config = growing(small, steps=12) if arch == "sgt" else small(arch, shape={"layers": 4}, training={"steps": 12})
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"device": "cuda"})})
    train(config, tmp_path / "whole", runs_dir)
    train_until(config, tmp_path / "killed", runs_dir, monkeypatch, 7)
    train(config, tmp_path / "killed", runs_dir)
    whole, killed = (
        {line["step"]: line["loss"] for line in logged(tmp_path / name) if "loss" in line}
        for name in ("whole", "killed")
    )
    assert whole.keys() == killed.keys()
    assert all(abs(killed[step] - loss) < 1e-2 for step, loss in whole.items())


@pytest.mark.parametrize("arch", ["vanilla", "rule-swa", "consa"])
def test_a_step_waits_for_nothing(arch, small, tmp_path, runs_dir, monkeypatch):
    """An operation that waits for the GPU is an error in the fourth step; the first ones make what is kept."""
    plain = Run.take_step

    def take_step(run):
        if run.step != 3:
            return plain(run)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return plain(run)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Run, "take_step", take_step)
    train(small(arch, runtime={"device": "cuda", "micro_batch_rows": 2}), tmp_path / "run", runs_dir)
