"""The loss of a large vocabulary in chunks is that of whole logits, with the same gradients."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab import build_model
from hybridlab.models import loss as module
from hybridlab.models.loss import Targets, loss_in_chunks


def _inputs(tokens: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], Targets]:
    torch.manual_seed(0)
    x, table, bias = (torch.randn(shape, dtype=dtype) for shape in ((2, tokens, 8), (50, 8), (50,)))
    return [t.requires_grad_() for t in (x, table, bias)], Targets(
        torch.randint(50, (2, tokens)), torch.rand(2, tokens, dtype=dtype)
    )


def _whole(
    x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor | None, targets: Targets, cap: float | None = None
) -> torch.Tensor:
    logits = F.linear(x, table, bias).flatten(0, 1)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (F.cross_entropy(logits, targets.tokens.flatten(), reduction="none") * targets.weights.flatten()).sum()


@pytest.mark.parametrize("aligned", [1, 64], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("at_once", [1, 50 * 3, 50 * 14, 10**9], ids=["1", "3", "14", "all"])
def test_the_loss_and_its_gradients_are_those_of_whole_logits(
    with_bias: bool, at_once: int, cap: float | None, aligned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.ALIGNED, "cpu", aligned)
    monkeypatch.setitem(module.LOGITS_AT_ONCE, "cpu", at_once)
    (x, table, bias), targets = _inputs(7, torch.float64)
    given = bias if with_bias else None
    wanted = [t for t in (x, table, given) if t is not None]
    expected = _whole(x, table, given, targets, cap) * 0.3
    found = loss_in_chunks(x, table, given, targets, cap=cap) * 0.3
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for one, other in zip(torch.autograd.grad(expected, wanted), torch.autograd.grad(found, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_table_that_is_not_trained_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LOGITS_AT_ONCE, "cpu", 50 * 3)
    (x, table, bias), targets = _inputs(7, torch.float64)
    kept, gradients = [], []
    for trained in (True, False):
        table.requires_grad_(trained), bias.requires_grad_(trained)
        loss = loss_in_chunks(x, table, bias, targets)
        kept.append([None if t is None else t.shape for t in cast(Any, loss.grad_fn).saved_tensors])
        gradients.append(torch.autograd.grad(loss, x)[0])
    assert torch.equal(*gradients)
    assert kept == [[(14, 8), (50, 8), (50,)], [(14, 8), None, None]]


def test_the_table_is_cast_once_and_chunks_of_a_gpu_are_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LOGITS_AT_ONCE, "cpu", 50 * 3)
    (x, table, bias), targets = _inputs(7, torch.float32)

    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += function.overloadpacket.__name__ == "_to_copy" and args[0].shape == table.shape
            return function(*args, **(kwargs or {}))

    with Casts() as casts, torch.autocast("cpu", torch.bfloat16):
        loss_in_chunks(x, table, bias, targets)
    assert casts.count == 1, "five chunks"
    rows = [module.rows_at_once(vocab, "cuda") for vocab in (50_304, 49_152, 151_936, 2**27)]
    assert rows == [5120, 5376, 1536, 2] and module.rows_at_once(50, "cpu") == 3


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_numbers_are_rounded_where_whole_logits_round_them(compiled: bool) -> None:
    (x, table, _), targets = _inputs(7, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = _whole(x, table, None, targets), loss_in_chunks(x, table, None, targets, compiled)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [torch.autograd.grad(loss, (x, table)) for loss in (expected, found, _whole(x, table, None, targets))]
    for one, other, exact in zip(*gradients, strict=True):
        assert other.dtype == one.dtype
        assert (one - other).norm() < 2e-3 * one.norm()
        assert (exact - one).norm() > 0, "control: autocast does round"


@pytest.mark.parametrize("cap", [None, 0.5])
def test_logits_are_not_made_beside_the_loss(cap: float | None) -> None:
    model, tokens = build_model("vanilla", shape={"logit_cap": cap}), torch.zeros(2, 8, dtype=torch.long)
    output = model(tokens, targets=Targets(tokens, torch.ones(2, 8)))
    assert output.logits.shape == (2, 0, 1024) and output.loss is not None
    expected = F.cross_entropy(model(tokens).logits.flatten(0, 1), tokens.flatten(), reduction="sum")
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
