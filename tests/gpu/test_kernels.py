"""Attention kernels on a GPU, with their gradients, against the plain formula in fp64."""

import importlib.util

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.attention import kernels
from hybridlab.attention.heads import HeadGroup
from hybridlab.attention.kernels import Visible, eager
from hybridlab.attention.kinds import Full, Window
from tests.models import attended
from tests.unit.test_kernels import ON_A_GPU, tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DEVICE = torch.device("cuda")
LARGEST_DIFFERENCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative to the largest number of a result."""
LENGTH, WIDTH = 300, 64


def results(attention, inputs, visible):
    """The output, and the gradients of q, k and v."""
    out = attention(*inputs, visible)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad((out * weight).sum(), inputs)]


def assert_equal_the_formula(name, visible, dtype, rows=2, length=LENGTH):
    inputs = [t.to(DEVICE, dtype).requires_grad_() for t in tensors(rows, 4, 2, length, WIDTH)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    found = results(kernels.KERNELS[name], inputs, visible)
    for got, want in zip(found, results(eager, exact, visible), strict=True):
        assert (got.double() - want).abs().max() <= LARGEST_DIFFERENCE[dtype] * want.abs().max().clamp_min(1)


def needs(name):
    if name == "xformers" and importlib.util.find_spec("xformers") is None:
        pytest.skip("needs xformers; pip install 'hybridlab[gpu]'")
    if name == "xformers" and not importlib.import_module("xformers.ops.fmha.cutlass").FwOp.is_available():
        pytest.skip("this build of xformers has no kernels for CUDA")


@pytest.mark.parametrize("dtype", LARGEST_DIFFERENCE, ids=str)
@pytest.mark.parametrize("window", [None, 1, 17, 128, 1000])
@pytest.mark.parametrize("name", ["eager", "sdpa", "banded", "blocks", "flex", "xformers"])
def test_outputs_and_gradients_equal_the_formula(name, window, dtype):
    needs(name)
    if name in ("banded", "blocks") and window is None:
        pytest.skip("computes windows only")
    assert_equal_the_formula(name, Visible(window), dtype)


@pytest.mark.parametrize("dtype", LARGEST_DIFFERENCE, ids=str)
@pytest.mark.parametrize("name", ["eager", "sdpa", "flex", "xformers"])
def test_attention_to_both_sides(name, dtype):
    needs(name)
    for window in (None, 17):
        assert_equal_the_formula(name, Visible(window, causal=False), dtype)


@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("name", ["eager", "sdpa", "banded", "blocks", "flex"])
def test_padding_and_documents_that_share_a_row(name, window):
    if name in ("banded", "blocks") and window is None:
        pytest.skip("computes windows only")
    place = torch.arange(LENGTH, device=DEVICE)
    valid = place[None] < torch.tensor([LENGTH, 190], device=DEVICE)[:, None]
    segments = torch.stack([(place > 70).long(), (place > 128).long()])
    for restricted in (Visible(window, valid), Visible(window, None, segments), Visible(window, valid, segments)):
        assert_equal_the_formula(name, restricted, torch.float32)


@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("name", ["auto", "eager", "flex"])
def test_capped_scores(name, window):
    q, k, v = (t.to(DEVICE, torch.float32) for t in tensors(2, 4, 2, LENGTH, WIDTH))
    kind = Full() if window is None else Window(window)
    found = attended(HeadGroup(q, k, v, name, need="none", cap=0.3), [kind, kind]).out
    wanted = eager(q.double(), k.double(), v.double(), Visible(window, cap=0.3))
    assert (found.double() - wanted).abs().max() < 1e-5


@pytest.mark.parametrize(("name", "window"), [("sdpa", None), ("flex", None), ("banded", 128), ("flex", 128)])
def test_long_sequences_hold_no_square_of_the_length(name, window):
    """A forward and a backward pass over 16,384 tokens; the scores of its four heads would be 2 GB in bf16."""
    inputs = [t.to(DEVICE, torch.bfloat16).requires_grad_() for t in tensors(1, 4, 4, 16_384, WIDTH)]
    torch.cuda.reset_peak_memory_stats()
    results(kernels.KERNELS[name], inputs, Visible(window))
    assert torch.cuda.max_memory_allocated() < 1e9


OPERATORS = {"CUDNN_ATTENTION": "cudnn", "FLASH_ATTENTION": "flash", "EFFICIENT_ATTENTION": "efficient"}


class Operators(TorchDispatchMode):
    """The names of torch's fused attention operators that are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in (name := function.name()):
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", ON_A_GPU, ids=lambda case: " ".join(map(str, case[:4])))
def test_torch_takes_the_first_of_the_backends(case):
    """Where the GPU or this torch has no cuDNN attention, the next one."""
    dtype, trained, masks, causal, backends, *_ = case
    q, k, v = (t.to(DEVICE, getattr(torch, dtype)).requires_grad_(trained) for t in tensors(3, 8, 2, 192, 64))
    seen = torch.ones(masks, 1, 192, 192, device=DEVICE, dtype=torch.bool).tril() if masks else None
    with Operators() as operators:
        kernels.fused(q, k, v, seen, causal)
    [ran] = operators.seen
    first = [OPERATORS[name] for name in backends if name != "MATH"]
    has_cudnn = torch.backends.cudnn.is_available() and torch.cuda.get_device_capability()[0] >= 9
    assert first[0 if has_cudnn or first[0] != "cudnn" else 1] in ran


@pytest.mark.parametrize("length", [64, 192, 320])
def test_padded_gradients_are_numbers_where_cudnn_gave_none(length):
    """Lengths that leave 64 of 128, a mask, and scores far below zero: pytorch issue 196678."""
    q, k, v = (t.to(DEVICE, torch.bfloat16) for t in tensors(2, 8, 2, length, 64))
    q, k, v = ((60 * t).detach().requires_grad_() for t in (q, k, v))
    valid = torch.ones(2, length, dtype=torch.bool, device=DEVICE)
    valid[0, length // 2 :] = False
    for name, window in (("sdpa", None), ("banded", 32), ("banded", 96)):
        found = results(kernels.KERNELS[name], (q, k, v), Visible(window, valid))
        assert all(torch.isfinite(t).all() for t in found), (name, window)
