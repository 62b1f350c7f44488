"""Triton's kernels of belief propagation on a GPU: against the plain formula in fp64, and their memory and time."""

import statistics
import time

import pytest
import torch

from hybridlab.attention.belief import Belief
from hybridlab.attention.belief.formula import explicit
from hybridlab.attention.belief.triton import in_triton
from hybridlab.attention.kernels import Visible, sdpa
from hybridlab.models.build import build_model
from tests.unit.test_belief import KINDS, PLACES, restrictions, sent
from tests.unit.test_belief_triton import results
from tests.unit.test_kernels import tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
MESSAGES = [kind for kind in KINDS if kind.sends_messages]
DEVICE = torch.device("cuda")
LARGEST_DIFFERENCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Relative to the largest number of a result. In the interpreter, whose exponentials and sums are NumPy's, differences
were up to 1e-6 in fp32."""


def difference(kind, visible, shape, dtype=torch.float32):
    """As in the tests of the interpreter, on the GPU. shape: batch, heads, KV heads, length, width."""
    inputs = [t.to(DEVICE, dtype).requires_grad_() for t in tensors(*shape)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    pairs = zip(results(in_triton, inputs, visible, kind), results(explicit, exact, visible, kind), strict=True)
    return max(float((got.detach().double() - want).abs().max() / want.abs().max().clamp_min(1)) for got, want in pairs)


@pytest.mark.parametrize("dtype", LARGEST_DIFFERENCE, ids=str)
@pytest.mark.parametrize("kind", MESSAGES, ids=str)
@pytest.mark.parametrize(("causal", "send"), PLACES)
def test_output_and_gradients_equal_the_plain_formula(kind, causal, send, dtype):
    for length in (1, 31, 64, 700):
        shape = (2, 4, 2, length, 64)
        assert difference(sent(kind, send), Visible(causal=causal), shape, dtype) < LARGEST_DIFFERENCE[dtype]


@pytest.mark.parametrize("dtype", LARGEST_DIFFERENCE, ids=str)
@pytest.mark.parametrize("width", [16, 24, 32, 80, 128])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)], ids=str)
def test_head_widths(heads, width, dtype):
    for causal in (True, False):
        found = difference(MESSAGES[0], Visible(causal=causal), (1, *heads, 100, width), dtype)
        assert found < LARGEST_DIFFERENCE[dtype]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", MESSAGES, ids=str)
def test_padding_and_packing(kind, causal):
    for restricted in restrictions(100):
        valid, segments = (None if t is None else t.to(DEVICE) for t in restricted)
        assert difference(kind, Visible(None, valid, segments, causal=causal), (2, 4, 2, 100, 32)) < 1e-5


@pytest.mark.parametrize("causal", [True, False])
def test_two_calls_give_the_same_bits(causal):
    inputs = [t.to(DEVICE, torch.bfloat16).requires_grad_() for t in tensors(2, 4, 2, 500, 64)]
    first, second = (results(in_triton, inputs, Visible(causal=causal), MESSAGES[0]) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("strength", [0.05, 0.2, 1.0])
def test_it_stays_finite_at_4096_positions_where_one_key_is_in_every_row(strength, causal):
    q, k, v = (t.to(DEVICE, torch.bfloat16) for t in tensors(1, 1, 1, 4096, 64))
    k[:, :, 0], q[:] = 6, q.abs()
    for factor in ("high", "low"):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        found = results(in_triton, inputs, Visible(causal=causal), Belief(factor, strength))
        assert all(bool(t.isfinite().all()) for t in found)


def peak_bytes(attention, length, dtype):
    """The most bytes held at once in a forward and a backward pass, q, k and v among them."""
    inputs = [torch.randn(1, 8, length, 64, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
    attention(*inputs).sum().backward()
    for t in inputs:
        t.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    others = torch.cuda.memory_allocated() - sum(t.numel() * t.element_size() for t in inputs)
    attention(*inputs).sum().backward()
    return torch.cuda.max_memory_allocated() - others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_peak_memory_is_linear_in_the_length_and_near_that_of_sdpa(causal, dtype):
    """The plain formula is the positive control."""
    visible, kind = Visible(causal=causal), MESSAGES[0]
    peaks = {n: peak_bytes(lambda *x: in_triton(*x, visible, kind), n, dtype) for n in (1024, 2048, 4096)}
    assert peaks[4096] <= 1.5 * peak_bytes(lambda *x: sdpa(*x, visible), 4096, dtype)
    assert all(peak <= 1.02 * length / 1024 * peaks[1024] for length, peak in peaks.items())
    assert peak_bytes(lambda *x: explicit(*x, visible, kind), 1024, dtype) > 2 * 4 * 8 * 1024**2 > peaks[1024]


def timed_step(model, tokens):
    """Milliseconds of a forward and a backward pass."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    model(tokens).logits.float().logsumexp(-1).mean().backward()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


@pytest.mark.long
@pytest.mark.parametrize(("size", "overhead"), [("bert-mini", 1.33), ("bert-small", 1.41), ("bert-medium", 1.14)])
def test_a_step_costs_less_than_the_overhead_that_the_paper_prints(size, overhead):
    """32 rows of 128 tokens, as in table 9, the two models in turn."""
    models = {
        arch: build_model(arch, size=size, kernel=kernel).to(DEVICE)
        for arch, kernel in (("bert", "sdpa"), ("saobp-high", "triton"))
    }
    vocab = models["bert"].shape.vocab
    tokens = torch.randint(0, vocab, (32, 128), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    taken = {arch: [] for arch in models}
    for _ in range(40):
        for arch, model in models.items():
            taken[arch].append(timed_step(model, tokens))
    # The first steps compile the kernels and warm up the device.
    median = {arch: statistics.median(times[10:]) for arch, times in taken.items()}
    assert median["saobp-high"] / median["bert"] < overhead, median
