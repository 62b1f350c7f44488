"""Low-rank adapters in every architecture: they add nothing at first, only they learn, and merged they are the same."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hybridlab.config.finetune import Lora
from hybridlab.models.adapters import Adapted, adapt, drawn_adapters, has_adapters, merged
from hybridlab.models.decoder import Transformer
from hybridlab.models.ledger.flops import adapted_training, ledger
from tests.contract.test_architectures import ARCHS, PLANS, build
from tests.models import random_ids

LORA = Lora(rank=3)


def adapted(model, lora=LORA, random=True):
    """A copy of a model with adapters, which are random or as they are before the first step."""
    other = Transformer.without_weights(model.structure, model.kernel, model.factors)
    adapt(other, lora, head=False)
    other.make_room(torch.device("cpu"))
    weights = dict(model.named_parameters())
    drawn = drawn_adapters(weights, lora, seed=0)
    if random:
        generator = torch.Generator().manual_seed(1)
        drawn = {name: torch.randn(tensor.shape, generator=generator) * 0.2 for name, tensor in drawn.items()}
    other.put(weights | drawn)
    return other


@pytest.mark.parametrize("plan", ["plain", "head loop", "dropped heads"])
@pytest.mark.parametrize("arch", ARCHS)
def test_merged_adapters_give_the_same_logits(arch, plan):
    model = build(arch, biases=["qkv", "output"])
    model, tokens = model.with_plan(PLANS[plan](model.plan)), random_ids(20)
    other = adapted(model)
    with torch.no_grad():
        found = other(tokens).logits
        whole = Transformer.from_tensors(model.structure, merged(other, dict(other.named_parameters())))
        torch.testing.assert_close(whole(tokens).logits, found, atol=1e-5, rtol=1e-5)
        assert (found - model(tokens).logits).abs().max() > 1e-2
        torch.testing.assert_close(adapted(model, random=False)(tokens).logits, model(tokens).logits)
    assert has_adapters(other) and not has_adapters(whole)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_adapter_gets_a_gradient_and_nothing_else_does(arch):
    model = adapted(build(arch))
    model(random_ids(20)).logits.square().mean().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    adapters = {name for name in found if name.endswith((".down", ".up"))}
    layers = [module for module in model.modules() if isinstance(module, Adapted)]
    assert len(adapters) == 2 * len(layers) == 2 * model.shape.layers * (6 + model.shape.traits.gated)
    assert {name for name, gradient in found.items() if gradient is not None} == adapters
    assert all(found[name].abs().sum() > 0 for name in adapters)


def test_projections_rank_and_alpha_are_those_of_the_settings():
    lora = Lora(rank=2, alpha=3.0, projections=["q", "down"])
    model = adapted(build("vanilla"), lora)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Adapted)}
    assert len(layers) == 8 and all(name.endswith(("attention.q", "mlp.down")) for name in layers)
    assert all(module.factor == 1.5 and len(module.down) == 2 for module in layers.values())
    assert Lora(rank=5).factor == 2.0


@pytest.mark.parametrize("plan", ["plain", "head loop"])
def test_flops_of_adapters_are_those_that_torch_counts(plan):
    model = build("vanilla")
    model = model.with_plan(PLANS[plan](model.plan))
    other, tokens = adapted(model), random_ids(32, rows=1)
    with FlopCounterMode(display=False) as counter:
        other(tokens).logits.square().mean().backward()
    cost = ledger(model.structure, 32, "executed")
    found, counted = adapted_training(model.structure, 32, cost, LORA), counter.get_total_flops()
    # The first layer reads embeddings, which are frozen, so that nothing asks for their gradients.
    assert 0.95 < counted / found < 1 and found < 0.95 * cost.training
