"""Linear layers are called as modules: what is put in their place, or beside them, takes part in every pass."""

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from hybridlab.models.blocks import is_plain
from hybridlab.models.build import build_model
from tests.conftest import SMALL_SHAPE
from tests.contract.test_architectures import ARCHS, PLANS, build
from tests.models import random_ids

PARTS = ["plain", "head loop", "dropped heads"]
BIASES = {"biases": ["qkv", "output"]}


def linear_layers(model):
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def with_adapters(model, names=("q", "k", "v", "o"), seed=0):
    """Random LoRA adapters on these layers of a model, in its place."""
    settings = LoraConfig(r=3, lora_alpha=6, target_modules=list(names), lora_dropout=0.0)
    torch.manual_seed(seed)
    inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.2)
    return model


def merge(model):
    """Add the adapters to the weights."""
    for module in model.modules():
        if hasattr(module, "merge"):
            module.merge()


@pytest.mark.parametrize("plan", PARTS)
@pytest.mark.parametrize("arch", ARCHS)
def test_adapters_on_the_attention_change_what_their_merged_weights_change(arch, plan):
    model = build(arch, **BIASES)
    model, tokens = model.with_plan(PLANS[plan](model.plan)), random_ids(20)
    with torch.no_grad():
        without = model(tokens).logits
        found = with_adapters(model)(tokens).logits
        merge(model)
        merged = model(tokens).logits
    assert (found - without).abs().max() > 1e-2
    torch.testing.assert_close(found, merged, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layer", ["q", "k", "v", "o"])
def test_an_adapter_takes_part_in_every_pass_of_looped_heads(layer):
    model = build("vanilla", **BIASES)
    model = model.with_plan(model.plan.truncate(1).loop_heads(0, (0, 3), 2))
    projection = with_adapters(model, [f"blocks.0.attention.{layer}"]).blocks[0].attention.get_submodule(layer)
    calls = []
    projection.register_forward_hook(lambda *_: calls.append(1))
    model(random_ids(20))
    assert len(calls) == len(list(model.structure.attention_places())) == 3


@pytest.mark.parametrize("plan", PARTS)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_adapter_gets_a_gradient(arch, plan):
    model = build(arch)
    model = model.with_plan(PLANS[plan](model.plan))
    with_adapters(model, linear_layers(model))(random_ids(20)).logits.square().mean().backward()
    adapters = {name: parameter for name, parameter in model.named_parameters() if "lora_" in name}
    assert len(adapters) == 2 * sum(hasattr(module, "lora_A") for module in model.modules()) > 0
    for name, parameter in adapters.items():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_an_adapter_on_the_first_token_type_takes_part():
    model = build_model("bert", size="bert-tiny", shape={"vocab": SMALL_SHAPE["vocab"]})
    tokens = random_ids(20)
    with torch.no_grad():
        without = model(tokens).logits
        assert (with_adapters(model, ["token_type_embedding"])(tokens).logits - without).abs().max() > 1e-3


def test_a_layer_with_anything_beside_its_weights_is_not_plain():
    assert is_plain(nn.Linear(3, 2)) and is_plain(nn.Embedding(3, 2))
    hooked, replaced = nn.Linear(3, 2), nn.Linear(3, 2)
    hooked.register_forward_hook(lambda *_: None)
    replaced.forward = lambda x: x
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    for module in (hooked, replaced, normed, nn.Bilinear(2, 2, 2)):
        assert not is_plain(module)
