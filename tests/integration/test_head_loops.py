"""Head loops of a model: which matrices they multiply, and what their factors do to logits and gradients."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.models.build import build_model
from hybridlab.plan.plan import Plan
from tests.conftest import SMALL_SHAPE


class Products(TorchDispatchMode):
    """The shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.shapes.append((tuple(args[0].shape), tuple(args[1].shape)))
        return function(*args, **(kwargs or {}))


def test_a_loop_multiplies_the_matrices_of_its_heads_only():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "layers": 3, "heads": 6, "kv_heads": 3})
    tokens = torch.randint(400, (1, 16))

    def products(plan):
        mode = Products()
        with torch.no_grad(), mode:
            model.with_plan(plan)(tokens)
        return mode.shapes

    plain, looped = products(model.plan), products(model.plan.loop_heads(1, (1, 4), 1))
    extra = list(looped)
    for shape in plain:
        extra.remove(shape)
    width, head = 24, 8
    wanted = [
        ((16, width), (width, 2 * head)),  # q of two heads
        ((16, width), (width, 2 * head)),  # k: they read two KV heads
        ((16, width), (width, 2 * head)),  # v
        ((2, 16, head), (2, head, 16)),  # scores
        ((2, 16, 16), (2, 16, head)),  # values
        ((16, 2 * head), (2 * head, width)),  # W_O
    ]
    assert sorted(extra) == sorted(wanted)
    shared = products(model.plan.loop_heads(1, (2, 3), 1))
    for shape in plain:
        shared.remove(shape)
    assert shared.count(((16, width), (width, head))) == 2, "two heads of one group project its K and V once"


def test_the_change_of_the_plan_at_the_end_of_a_fade_changes_no_logit():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "layers": 3, "init": {"std": 0.3}}).double()
    tokens = torch.randint(400, (2, 16))
    whole = model.plan.loop_heads(1, range(4), 2)
    kept = model.with_plan(model.plan.loop_heads(1, (0, 3), 2))
    factors = torch.tensor([1.0, 0.0, 0.0, 1.0])
    with torch.no_grad():
        ended = model.with_plan(whole)(tokens, factors={(2,): factors, (3,): factors}).logits
        torch.testing.assert_close(ended, kept(tokens).logits, atol=1e-12, rtol=1e-12)
        faded = model.with_plan(whole)(tokens, factors={(2,): 0.5 + factors / 2, (3,): 0.5 + factors / 2}).logits
        assert (faded - ended).abs().max() > 1e-3


def test_heads_that_fade_get_their_share_of_the_gradient_and_the_others_none():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "layers": 1, "kv_heads": 4})
    # Attention of the loop alone: what reaches q of a head comes through its factor.
    plan = Plan((*model.plan.loop_heads(0, range(4), 1).visits[1:2],), 1)
    looped = model.with_plan(plan)
    looped(
        torch.randint(400, (2, 16)), factors={(0,): torch.tensor([1.0, 0.5, 0.0, 0.0])}
    ).logits.square().mean().backward()
    by_head = model.blocks[0].attention.v.weight.grad.view(4, 8, -1).abs().sum((1, 2))
    assert (by_head[:2] > 0).all() and (by_head[2:] == 0).all()
