"""LN-Scaling: both norms of layer l, counted from 1, times 1 / sqrt(l), in every family, pass and file."""

import math
from dataclasses import replace

import pytest
import torch

from hybridlab.evaluation.causality import require_causal
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.models.export import load_checkpoint, save_model
from hybridlab.models.huggingface import load_hf
from hybridlab.models.ledger.flops import ledger
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from tests.contract.test_parity import FIRST, folder_of, theirs
from tests.models import cached_logits, padding_mask, random_ids

SCALED = {"norm_scaling": "inverse-sqrt-depth"}
FAMILIES = {
    "llama": {"family": "llama"},
    "qwen3": {"family": "qwen3"},
    "neox": {"family": "neox", "rotary_fraction": 0.5},
    "gpt2": {"family": "gpt2", "max_positions": 64},
}


def build(family, plan=lambda plan: plan, scaled=True):
    shape = Shape(
        layers=4,
        width=24,
        heads=4,
        kv_heads=2,
        head_width=8,
        ffn_width=40,
        vocab=61,
        init={"std": 0.2},
        **FAMILIES[family],
        **(SCALED if scaled else {}),
    )
    made = plan(Plan.plain(4, shape.traits.parallel))
    model = Decoder(Structure(shape, made, AttentionMap.from_masks([[0, 1], [1, 1], [0, 0], [1, 0]], 5)))
    draw_weights(model, 0)
    return model


def with_scaled_weights(model):
    """The same tensors, where weight and bias of the norms of layer l are multiplied by 1 / sqrt(l)."""
    tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    for name, tensor in tensors.items():
        parts = name.split(".")
        if parts[0] == "blocks" and parts[2] in ("attention_norm", "mlp_norm"):
            tensor.mul_(1 / math.sqrt(int(parts[1]) + 1))
    return tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_scaled_weights_of_the_norms(family):
    """Also for a plan in another order: the factor belongs to the layer of the parameters."""
    for plan in (lambda p: p, lambda p: p.swap(0, 3).skip(1)):
        scaled = build(family, plan)
        plain = Decoder.from_tensors(build(family, plan, scaled=False).structure, with_scaled_weights(scaled))
        with torch.no_grad():
            torch.testing.assert_close(scaled(random_ids(30, vocab=61)).logits, plain(random_ids(30, vocab=61)).logits)
    one, other = build(family), build(family, scaled=False)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    with torch.no_grad():
        assert not torch.allclose(one(random_ids(30, vocab=61)).logits, other(random_ids(30, vocab=61)).logits)


@pytest.mark.parametrize("family", [family for family in FIRST if family in FAMILIES])
def test_parity_with_transformers_models_of_scaled_norms(family, tmp_path):
    """An imported model has no scaling; scaling ours equals scaling the norms inside theirs."""
    reference = theirs(FIRST[family], tied=True)
    ours = load_hf(folder_of(reference, tmp_path / "model"))
    assert ours.shape.norm_scaling is None
    shape = replace(ours.shape, **SCALED)
    structure = Structure(shape, ours.plan, ours.attention_map)
    scaled = Decoder.from_tensors(structure, dict(ours.named_parameters()))
    blocks = next(module for name, module in reference.named_modules() if name.endswith((".layers", ".h")))
    for layer, block in enumerate(blocks):
        norms = [module for name, module in block.named_children() if "norm" in name or name.startswith("ln_")]
        assert len(norms) == 2
        for norm in norms:
            norm.register_forward_hook(lambda module, given, out, depth=layer + 1: out / math.sqrt(depth))
    ids = torch.randint(97, (2, 41), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(scaled(ids).logits, reference(ids).logits, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(ours(ids).logits, reference(ids).logits, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_causality_cache_gradients_and_files(family, tmp_path):
    model = build(family, lambda plan: plan.loop_heads(2, (1, 2), 1))
    assert require_causal(model, 40) < 1e-5
    mask, ids = padding_mask([30, 17]), random_ids(30, vocab=61)
    double = build(family, lambda plan: plan.loop_heads(2, (1, 2), 1)).double()
    with torch.no_grad():
        cached, _ = cached_logits(double, ids, mask, [3, 4, 19])
        full = double(ids, attention_mask=mask).logits
        torch.testing.assert_close(cached[mask], full[mask], atol=1e-10, rtol=1e-10)
    model(ids).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    save_model(tmp_path, model, {"parents": []})
    again = load_checkpoint(tmp_path)
    assert again.shape.norm_scaling == "inverse-sqrt-depth" and again.structure == model.structure
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
        # Neither moving nor copying a model loses the factor, which is no tensor.
        assert torch.equal(model.with_plan(model.plan).to(torch.float32)(ids).logits, model(ids).logits)
    assert ledger(model.structure, 30, "executed") == ledger(
        build(family, lambda plan: plan.loop_heads(2, (1, 2), 1), scaled=False).structure, 30, "executed"
    )
