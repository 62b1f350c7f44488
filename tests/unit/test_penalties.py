"""Entropy-Reg and Eigen-Reg: their values by hand, their gradients, and that they act on training alone."""

import json

import pytest
import torch

from hybridlab import build_model
from hybridlab.config.resolve import resolve
from hybridlab.errors import UserError
from hybridlab.methods.saobp import EigenRegConfig, EntropyRegConfig
from hybridlab.methods.saobp.training import EntropyReg, mean_entropies, spectra
from hybridlab.models.decoder import Output, Transformer
from hybridlab.training.store.metrics import read_metrics
from tests.conftest import SMALL_SHAPE
from tests.models import random_ids
from tests.training import assert_resumes_exactly, train, weights


def entropy_reg(threshold=0.5, weight=1.0):
    return EntropyReg(EntropyRegConfig(kind="entropy-reg", weight=weight, threshold=threshold))


def test_entropies_of_uniform_and_of_sharp_rows():
    uniform, sharp = torch.full((1, 1, 4, 4), 0.25), torch.eye(4)[None, None]
    keys = torch.full((1, 1, 4), 4)
    assert mean_entropies(uniform, keys).item() == pytest.approx(1)
    assert mean_entropies(sharp, keys).item() == pytest.approx(0)
    # A query with one key does not count.
    causal = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [1, 0, 0, 0], [0.25] * 4])[None, None]
    assert mean_entropies(causal, torch.tensor([[[1, 2, 3, 4]]])).item() == pytest.approx(2 / 3)


def test_only_heads_below_the_threshold_are_penalised():
    places = {(0,): torch.stack([torch.full((4, 4), 0.25), torch.eye(4)])[None]}
    output = Output(torch.zeros(1), places, {(0,): torch.full((1, 2, 4), 4)})
    assert entropy_reg(0.6, 2.0).after_forward(0, output, 0.5).item() == pytest.approx(0.5 * 2 * 0.36 / 2)
    assert entropy_reg(0.0).after_forward(0, output, 1.0).item() == 0


@pytest.mark.parametrize(("arch", "size"), [("vanilla", "tiny"), ("bert", "bert-tiny"), ("saobp-high", "tiny")])
def test_padding_does_not_count(arch, size):
    model = build_model(arch, size, shape={"layers": 2})
    tokens, valid = random_ids(12, rows=2), torch.ones(2, 12, dtype=torch.bool)
    alone = entropy_reg(1.0).after_forward(0, model(tokens, need="full"), 1.0)
    longer, padded = torch.cat([tokens, random_ids(8, rows=2)], dim=1), torch.cat([valid, ~valid[:, :8]], dim=1)
    output = model(longer, attention_mask=padded, need="full")
    torch.testing.assert_close(entropy_reg(1.0).after_forward(0, output, 1.0), alone, atol=1e-6, rtol=1e-5)
    assert all((keys[..., 12:] == 0).all() and (keys[..., :12] > 0).all() for keys in output.keys.values())


@pytest.mark.parametrize("arch", ["vanilla", "rule-swa"])
def test_the_gradient_raises_the_entropy(arch):
    window = {"window": 5} if arch == "rule-swa" else {}
    model = build_model(arch, shape={**SMALL_SHAPE, "layers": 2, "init": {"std": 1.0}}, **window)
    hook, tokens = entropy_reg(1.0), random_ids(20)
    for expected in (False, True):
        penalty = hook.after_forward(0, model(tokens, need="full"), 1.0)
        if not expected:
            first = penalty.item()
            penalty.backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is None or parameter.grad.isfinite().all(), name
            with torch.no_grad():
                for block in model.blocks:
                    for part in (block.attention.q_norm.weight, block.attention.k_norm.weight):
                        part -= 0.1 * part.grad / part.grad.norm()
    assert penalty.item() < first


@pytest.mark.parametrize(("arch", "size"), [("vanilla", "tiny"), ("bert", "bert-tiny")])
def test_spectra_are_those_of_the_whole_matrix(arch, size):
    model = build_model(arch, size=size).double()
    trace, spread = spectra(model)
    shape, attention = model.shape, model.blocks[1].attention
    for head in (0, 3):
        q = attention.q.weight.view(shape.heads, shape.head_width, -1)[head]
        k = attention.k.weight.view(shape.kv_heads, shape.head_width, -1)[head // shape.group]
        whole = q.T @ k / shape.head_width**0.5
        values = torch.linalg.eigvalsh((whole + whole.T) / 2)
        assert trace[1, head].item() == pytest.approx(values.sum().item(), abs=1e-10)
        assert spread[1, head].item() == pytest.approx((values - values.mean()).square().sum().item(), abs=1e-10)


def test_the_settings_of_the_presets():
    assert resolve("entropy-reg", "tiny").hooks == [EntropyRegConfig(kind="entropy-reg")]
    assert resolve("eigen-reg", "bert-tiny").hooks == [EigenRegConfig(kind="eigen-reg")]
    with pytest.raises(UserError, match="weight"):
        resolve("vanilla", "tiny", settings=["hooks=[{kind: entropy-reg, weight: 0}]"])
    with pytest.raises(UserError, match="threshold"):
        resolve("vanilla", "tiny", settings=["hooks=[{kind: entropy-reg, threshold: 1.5}]"])
    with pytest.raises(UserError, match="entropy-rg"):
        resolve("vanilla", "tiny", settings=["hooks=[{kind: entropy-rg}]"])


def test_the_address_and_the_strides_of_the_weights_change_no_bit():
    """Tensors of a mapped file lie at any multiple of four bytes, where matrix products can have other last bits."""
    model = build_model("vanilla", shape=SMALL_SHAPE)
    given = dict(model.named_parameters())
    for offset in (1, 2, 3):
        moved = {name: torch.empty(p.numel() + offset)[offset:].view(p.shape) for name, p in given.items()}
        for name, tensor in moved.items():
            tensor.copy_(given[name].detach())
        turned = {name: p.detach().T.clone().T if p.dim() == 2 else p.detach() for name, p in given.items()}
        for tensors in (moved, turned):
            other = Transformer.from_tensors(model.structure, tensors)
            assert all(map(torch.equal, spectra(model), spectra(other)))
    same = Transformer.from_tensors(model.structure, given)
    assert all(one is other for one, other in zip(model.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("arch", ["entropy-reg", "eigen-reg"])
def test_a_penalised_run_resumes_exactly_and_is_measured_without_it(arch, small, tmp_path, runs_dir, monkeypatch):
    strong = {"entropy-reg": {"weight": 5.0, "threshold": 1.0}, "eigen-reg": {"weight": 0.5}}[arch]
    config = small(arch, hooks=[{"kind": arch, **strong}])
    record = train(config, tmp_path / "whole", runs_dir)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 6)
    train(small(), tmp_path / "plain", runs_dir)
    name = arch.replace("-reg", "_penalty")
    logged = [line[name] for line in read_metrics(tmp_path / "whole" / "metrics.jsonl") if name in line]
    assert len(logged) == 12 and logged[-1] < logged[0]
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "plain")
    assert any(not torch.equal(one[name], two[name]) for name in one)
    assert record.results.validation.loss.value is not None
    first = [
        json.loads((tmp_path / run / "record.json").read_text())["history"]["loss"][0] for run in ("whole", "plain")
    ]
    assert first[0] == pytest.approx(first[1], abs=1e-6), "the logged loss is that of the objective"


@pytest.mark.parametrize("arch", ["entropy-reg", "eigen-reg"])
def test_micro_batches_do_not_matter(arch, small, tmp_path, runs_dir):
    for rows in (8, 3):
        config = small(arch, training={"steps": 4}, runtime={"micro_batch_rows": rows})
        train(config, tmp_path / str(rows), runs_dir)
    a, b = weights(tmp_path / "8"), weights(tmp_path / "3")
    assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)
