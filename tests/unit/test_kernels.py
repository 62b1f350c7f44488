import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.attention import kernels
from hybridlab.attention.heads import HeadGroup
from hybridlab.attention.kernels import Visible, banded, blocks, eager, probabilities, sdpa
from hybridlab.attention.kinds import Full, Mixed, Window
from hybridlab.errors import UserError
from hybridlab.models.build import build_model
from hybridlab.models.ledger.flops import ledger
from tests.models import attended


def tensors(batch=2, heads=4, kv_heads=2, length=37, width=8, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, length, width), (batch, kv_heads, length, width), (batch, kv_heads, length, width)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(grad) for shape in shapes]


def by_definition(q, k, v, window, valid=None, segments=None, causal=True, cap=None):
    """Attention by loops, from the definition."""
    batch, heads, length, width = q.shape
    group = heads // k.shape[1]
    out = torch.zeros_like(q)
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                low = 0 if window is None else max(0, i - window + 1)
                high = i + 1 if causal else length if window is None else min(length, i + window)
                keys = [j for j in range(low, high) if valid is None or valid[b, j] or j == i]
                keys = [j for j in keys if segments is None or segments[b, j] == segments[b, i]]
                scores = torch.stack([q[b, h, i] @ k[b, h // group, j] for j in keys]) / width**0.5
                scores = scores if cap is None else cap * torch.tanh(scores / cap)
                out[b, h, i] = torch.softmax(scores, 0) @ v[b, h // group, keys]
    return out


CPU_KERNELS = ["eager", "sdpa", "banded", "blocks", "flex"]
WINDOWS = [1, 2, 5, 17, 36, 37, 100]


@pytest.mark.parametrize(
    ("name", "window"), [(n, w) for n in CPU_KERNELS for w in [None, *WINDOWS] if w or n not in ("banded", "blocks")]
)
def test_kernels_equal_the_definition(name, window, monkeypatch):
    monkeypatch.setattr("hybridlab.attention.kinds.MIN_BLOCK", 4)
    q, k, v = tensors()
    computed = kernels.KERNELS[name](q, k, v, Visible(window))
    torch.testing.assert_close(computed, by_definition(q, k, v, window), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ["auto", "eager", "sdpa", "banded", "blocks", "flex"])
@pytest.mark.parametrize("window", [None, 5, 100])
def test_scores_are_capped_whatever_kernel_is_asked_for(name, window, monkeypatch):
    """Where a kernel cannot, the plain formula stands for it."""
    monkeypatch.setattr("hybridlab.attention.kinds.MIN_BLOCK", 4)
    q, k, v = tensors()
    kind = Full() if window is None else Window(window)
    found = attended(HeadGroup(q, k, v, name, need="full", cap=0.3), [kind, kind])
    wanted = by_definition(q, k, v, window, cap=0.3)
    torch.testing.assert_close(found.out, wanted, atol=1e-12, rtol=1e-10)
    by_weights = kernels.grouped_product(found.weights.double(), v)
    torch.testing.assert_close(by_weights, wanted, atol=1e-5, rtol=1e-5)
    assert (wanted - by_definition(q, k, v, window)).abs().max() > 1e-2


def test_xformers_refuses_a_cap():
    with pytest.raises(UserError, match="kernel xformers cannot cap scores, .* use auto, flex or eager"):
        attended(HeadGroup(*tensors(), "xformers", cap=0.3), [Full(), Full()])


def test_the_kernels_of_a_capped_model_are_those_that_run():
    model = build_model("rule-swa", shape={"score_cap": 3.0}, window=8)
    cpu = torch.device("cpu")
    assert model.kernels_used(128, cpu, low_precision=False) == {"full": {"eager"}, "window(8)": {"blocks"}}


@pytest.mark.parametrize("name", CPU_KERNELS)
def test_kernels_equal_the_definition_with_padding_and_documents(name, monkeypatch):
    monkeypatch.setattr("hybridlab.attention.kinds.MIN_BLOCK", 4)
    q, k, v = tensors(length=21)
    valid = torch.arange(21)[None] < torch.tensor([21, 13])[:, None]
    segments = torch.tensor([[0] * 9 + [1] * 12, [5] * 2 + [6] * 19])
    computed = kernels.KERNELS[name](q, k, v, Visible(5, valid, segments))
    torch.testing.assert_close(computed, by_definition(q, k, v, 5, valid, segments), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("kernel", [banded, blocks])
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1)]), st.integers(1, 3))
def test_blocks_of_a_window_equal_eager_forward_and_backward(kernel, length, window, heads, batch):
    inputs = tensors(batch, *heads, length, 4, grad=True)
    weight = torch.randn_like(inputs[0])
    reference = eager(*inputs, Visible(window))
    wanted = torch.autograd.grad((reference * weight).sum(), inputs)
    computed = kernel(*inputs, Visible(window))
    torch.testing.assert_close(computed, reference, atol=1e-12, rtol=1e-10)
    for got, want in zip(torch.autograd.grad((computed * weight).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_window_holds_exactly_w_keys(window):
    q, k, _ = tensors(length=20)
    seen = (probabilities(q, k, Visible(window)) > 0).sum(-1)
    assert (seen == torch.arange(1, 21).clamp(max=window)).all()


@pytest.mark.parametrize("in_blocks", [banded, blocks])
def test_blocks_of_a_window_never_make_a_square_matrix(in_blocks):
    """The largest tensor that is made grows with S·w, not S²; eager's is the positive control."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else [out]:
                if isinstance(t, torch.Tensor):
                    self.size = max(self.size, t.numel())
            return out

    def largest(kernel, length):
        inputs = [t.float().requires_grad_() for t in tensors(1, 2, 1, length, 8)]
        with Largest() as seen:
            kernel(*inputs, Visible(16)).sum().backward()
        return seen.size

    assert largest(in_blocks, 2048) <= 2.1 * largest(in_blocks, 1024)
    assert largest(in_blocks, 2048) < 2048 * 2048 / 8
    assert largest(eager, 2048) >= 2048 * 2048


@pytest.mark.parametrize("kernel", [banded, blocks])
def test_blocks_of_a_window_refuse_what_they_do_not_compute(kernel):
    for visible in (Visible(None), Visible(4, causal=False)):
        with pytest.raises(UserError, match=f"kernel {kernel.__name__} computes a decoder's windows only"):
            kernel(*tensors(), visible)


def test_an_xformers_without_an_operator_for_the_heads_ends_in_one_sentence(monkeypatch):
    def attention(*tensors, attn_bias):
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs:\n query …")

    ops = SimpleNamespace(
        fmha=SimpleNamespace(attn_bias=SimpleNamespace(LowerTriangularMask=object)),
        memory_efficient_attention=attention,
    )
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    monkeypatch.setattr(kernels, "require_kernel", lambda *given, **more: None)
    with pytest.raises(UserError, match="xformers has no operator for heads of width 8 in torch.float64 .* use auto"):
        kernels.xformers(*tensors(), Visible())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 17, 128, 129, 255, 256, 1000])
def test_the_blocks_of_flex_are_those_that_torch_finds_from_all_pairs(window, causal):
    for length in (1, 100, 128, 129, 300, 512, 640):
        found = kernels._shared_flex_mask(window, causal, length, torch.device("cpu"))
        wanted = create_block_mask(found.mask_mod, None, None, length, length, device="cpu")
        assert torch.equal(found.to_dense(), wanted.to_dense())
        for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), (name, length)
        assert torch.equal(full_blocks(found), full_blocks(wanted))


def full_blocks(mask):
    """Which blocks no mask is applied to: (1, 1, blocks of queries, blocks of keys)."""
    listed = torch.arange(mask.full_kv_indices.shape[-1]) < mask.full_kv_num_blocks[..., None]
    return torch.zeros_like(listed).scatter(-1, mask.full_kv_indices.long(), listed)


@pytest.mark.parametrize("name", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_the_tokens_of_an_encoder_see_both_sides(name, window):
    q, k, v = tensors(length=21)
    valid = torch.arange(21)[None] < torch.tensor([21, 13])[:, None]
    segments = torch.tensor([[0] * 9 + [1] * 12, [5] * 2 + [6] * 19])
    for rows in ((None, None), (valid, None), (valid, segments)):
        computed = kernels.KERNELS[name](q, k, v, Visible(window, *rows, causal=False))
        torch.testing.assert_close(
            computed, by_definition(q, k, v, window, *rows, causal=False), atol=1e-12, rtol=1e-10
        )


def test_windows_to_both_sides_are_computed_by_sdpa():
    for kernel in ("auto", "banded", "blocks"):
        assert kernels.choose(kernel, 8, 512, torch.device("cpu"), False, causal=False) == "sdpa"
        assert kernels.choose(kernel, 8, 512, torch.device("cpu"), False, causal=False, beside=True) == "sdpa"


def test_kernels_that_cannot_run_here_say_why():
    cpu, trained = torch.device("cpu"), tensors(grad=True)
    with pytest.raises(UserError, match="flex has no backward pass on a CPU"):
        kernels.flex(*trained, Visible())
    with torch.no_grad():
        assert kernels.flex(*trained, Visible()).shape == trained[0].shape
    with pytest.raises(UserError, match="xformers runs on a CUDA GPU only"):
        kernels.xformers(*tensors(), Visible())
    with pytest.raises(UserError, match="backward"):
        kernels.require_kernel("flex", cpu, training=True)
    for name in ("auto", "eager", "sdpa", "banded", "blocks"):
        kernels.require_kernel(name, cpu, training=True)


def test_heads_of_different_kinds_each_get_their_own():
    q, k, v = tensors(kv_heads=4, heads=8)
    kinds = [Window(3), Full(), Window(3), Window(9)]
    out = attended(HeadGroup(q, k, v, "eager"), kinds).out
    for kv_head, window in enumerate([3, None, 3, 9]):
        rows = slice(2 * kv_head, 2 * kv_head + 2)
        want = eager(q[:, rows], k[:, [kv_head]], v[:, [kv_head]], Visible(window))
        torch.testing.assert_close(out[:, rows], want)


def test_mixed_heads_are_the_gated_sum_of_full_and_window_attention():
    q, k, v = tensors()
    full, window = eager(q, k, v, Visible()), eager(q, k, v, Visible(3))
    for gate in ([1.0, 1.0], [0.0, 0.0], [0.25, 1.0]):
        z = torch.tensor(gate, dtype=torch.float64)
        out = attended(HeadGroup(q, k, v, "eager", gate=z), [Mixed(3)] * 2).out
        per_head = z.repeat_interleave(2).view(1, -1, 1, 1)
        assert torch.equal(out, per_head * full + (1 - per_head) * window)
    with pytest.raises(ValueError, match="gate"):
        attended(HeadGroup(q, k, v), [Mixed(3)] * 2)


def mixed_gradients(kernel, precision, length, **inputs):
    """The output of mixed heads and the gradients of q, k, v and the gate, at a window of 5."""
    q, k, v = (t.to(precision).requires_grad_() for t in tensors(length=length))
    gate = torch.tensor([0.3, 0.8], dtype=torch.float64).to(torch.promote_types(precision, torch.float32))
    gate.requires_grad_()
    out = attended(HeadGroup(q, k, v, kernel, gate, **inputs), [Mixed(5)] * 2).out
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return out, *torch.autograd.grad((out * weight.to(precision)).sum(), (q, k, v, gate))


@pytest.mark.parametrize(
    ("precision", "atol", "rtol"),
    [(torch.float64, 1e-12, 1e-10), (torch.float32, 1e-4, 1e-5), (torch.bfloat16, 0.3, 0.05)],
)
@pytest.mark.parametrize("length", [37, 64])
@pytest.mark.parametrize("rows", ["whole", "padded", "packed"])
def test_mixed_heads_with_their_fast_window_equal_the_reference(precision, atol, rtol, length, rows):
    inputs = {
        "whole": {},
        "padded": {"valid": torch.arange(length)[None] < torch.tensor([length, 20])[:, None]},
        "packed": {"segments": torch.tensor([[0] * 9 + [1] * (length - 9), [5] * 2 + [6] * (length - 2)])},
    }[rows]
    assert kernels.choose("auto", 5, length, torch.device("cpu"), precision == torch.bfloat16, beside=True) == "blocks"
    reference = mixed_gradients("eager", precision, length, **inputs)
    for got, want in zip(mixed_gradients("auto", precision, length, **inputs), reference, strict=True):
        torch.testing.assert_close(got, want, atol=atol, rtol=rtol)


def test_the_window_of_mixed_heads_takes_the_cheapest_kernel():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for low_precision in (False, True):
        assert kernels.choose("auto", 8, 128, cpu, low_precision, beside=True) == "blocks"
        assert kernels.choose("auto", 64, 128, cpu, low_precision, beside=True) == (
            "eager" if low_precision else "sdpa"
        )
        assert kernels.choose("auto", 8, 128, gpu, low_precision, beside=True) == "banded"
    assert kernels.choose("eager", 8, 128, cpu, True, beside=True) == "eager"
    assert kernels.choose("blocks", None, 128, cpu, True) == "sdpa"


def test_both_softmaxes_of_mixed_heads_are_billed():
    """What mask learning costs in the ledger does not depend on how its window is computed."""
    cost = {arch: ledger(build_model(arch).structure, 128, "executed").forward for arch in ("consa", "vanilla")}
    shape = build_model("vanilla").shape
    scores = 4 * 128 * 128 * shape.heads * shape.head_width * shape.layers
    assert cost["consa"] - cost["vanilla"] == scores
    used = build_model("consa").kernels_used(128, torch.device("cpu"), low_precision=True)
    assert used == {"full": {"eager"}, "window(8)": {"blocks"}}


def test_returned_weights_are_full_or_the_last_row():
    q, k, v = tensors()
    full = attended(HeadGroup(q, k, v, need="full"), [Full(), Window(4)])
    torch.testing.assert_close(
        (full.weights @ v.repeat_interleave(2, 1).float()).double(), full.out, atol=1e-5, rtol=1e-4
    )
    last = attended(HeadGroup(q, k, v, need="last_row"), [Full(), Window(4)])
    torch.testing.assert_close(last.weights[:, :, 0], full.weights[:, :, -1])
    valid = torch.arange(37)[None] < torch.tensor([37, 20])[:, None]
    padded = attended(HeadGroup(q, k, v, need="last_row", valid=valid), [Full(), Window(4)])
    torch.testing.assert_close(padded.weights[1, :, 0], full.weights[1, :, 19])


def test_the_kernel_auto_depends_on_window_length_and_precision():
    cpu = torch.device("cpu")
    assert kernels.choose("auto", None, 128, cpu, low_precision=True) == "eager"
    assert kernels.choose("auto", 16, 4096, cpu, low_precision=False) == "banded"
    assert kernels.choose("auto", None, 4096, cpu, low_precision=False) == "sdpa"
    assert kernels.choose("banded", None, 4096, cpu, low_precision=False) == "sdpa"
    assert kernels.choose("eager", 16, 4096, cpu, low_precision=False) == "eager"


def test_sdpa_has_two_or_four_dimensional_masks():
    assert Visible(3).mask(torch.arange(5), 5).dim() == 2
    assert Visible(3, torch.ones(2, 5, dtype=torch.bool)).mask(torch.arange(5), 5).dim() == 4
    assert sdpa(*tensors(), Visible(3)).shape == (2, 4, 37, 8)


# ---- backends of torch's fused attention on an NVIDIA GPU; tests/gpu asks torch whether it takes them ----


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("dims", ["shared", "rows", "heads"])
def test_queries_of_one_kv_head_as_one_query_give_the_same(heads, dims):
    (q_heads, kv_heads), length = heads, 9
    q, k, v = tensors(heads=q_heads, kv_heads=kv_heads, length=length, grad=True)
    seen = Visible(4).mask(torch.arange(length), length)
    if dims != "shared":
        seen = seen & (torch.arange(2)[:, None, None, None] + torch.arange(length)[:, None] >= torch.arange(length))
    if dims == "heads":
        seen = seen.expand(-1, q_heads, -1, -1)
    rows, mask = kernels.one_query_for_each_kv_head(q, kv_heads, seen)
    ours = torch.nn.functional.scaled_dot_product_attention(rows, k, v, mask).view(q.shape)
    wanted = kernels.plain(q, k, v, seen)
    torch.testing.assert_close(ours, wanted, atol=1e-12, rtol=1e-10)
    weight = torch.randn(ours.shape, dtype=ours.dtype)
    for one, other in zip(*(torch.autograd.grad((t * weight).sum(), (q, k, v)) for t in (ours, wanted)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


class Asked(TorchFunctionMode):
    """In place of torch's fused attention: notes the backends that may be taken and the shapes of the tensors."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.scaled_dot_product_attention:
            q, k, mask = *args[:2], kwargs.get("attn_mask")
            backends = torch.nn.attention._cur_sdpa_kernel_backends(with_priority=True)
            self.found = ([one.name for one in backends], q.shape, k.shape, None if mask is None else mask.shape)
            # The efficient kernel gives the heads of each position one after the other in memory.
            return torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], device=q.device).transpose(1, 2)
        return function(*args, **(kwargs or {}))


FLASH, EFFICIENT = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"], ["EFFICIENT_ATTENTION", "MATH"]
ON_A_GPU = [
    # dtype, trained, rows of the mask, causal → backends in their order, query heads, queries, KV heads, mask
    ("bfloat16", True, 0, True, ["CUDNN_ATTENTION", *FLASH], 8, 192, 2, None),
    ("bfloat16", False, 0, True, FLASH, 8, 192, 2, None),
    ("bfloat16", True, 0, False, FLASH, 8, 192, 2, None),
    # A mask for each row is larger than keys and values.
    ("bfloat16", False, 3, False, EFFICIENT, 8, 192, 8, (3, 1, 192, 192)),
    ("bfloat16", False, 1, False, EFFICIENT, 2, 4 * 192, 2, (1, 1, 4 * 192, 192)),
    ("float32", False, 0, True, EFFICIENT, 8, 192, 8, None),
    ("float32", False, 1, False, EFFICIENT, 2, 4 * 192, 2, (1, 1, 4 * 192, 192)),
]


@pytest.mark.parametrize("case", ON_A_GPU, ids=lambda case: " ".join(map(str, case[:4])))
def test_a_gpu_takes_cudnn_for_causal_training_alone(case):
    """torch without CUDA follows no gradients there, so that masks have none."""
    dtype, trained, masks, causal, *wanted = case
    with FakeTensorMode():
        shapes, options = (
            [(3, heads, 192, 64) for heads in (8, 2, 2)],
            {"device": "cuda", "dtype": getattr(torch, dtype)},
        )
        q, k, v = (torch.empty(shape, requires_grad=trained, **options) for shape in shapes)
        seen = torch.empty(masks, 1, 192, 192, device="cuda", dtype=torch.bool) if masks else None
        with Asked() as asked:
            assert kernels.fused(q, k, v, seen, causal).shape == q.shape
    backends, queries, keys, mask = asked.found
    assert [backends, queries[1], queries[2], keys[1], mask] == wanted


def test_the_choice_of_a_backend_is_compiled_into_the_graph():
    def attend(q, k, v):
        with torch.nn.attention.sdpa_kernel(list(kernels.cuda_backends(True, False, True)), set_priority=True):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    q, k, v = tensors()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), eager(q, k, v, Visible()))


class Calls(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_heads_of_several_kinds_are_permuted_and_nothing_is_added_up():
    """A selection of heads for each kind would add its gradients into zeros: on a GPU a slow kernel with atomics."""
    q, k, v = tensors(heads=8, kv_heads=4, grad=True)
    gate = torch.rand(4, dtype=torch.float64).requires_grad_()
    kinds = (Mixed(5), Window(3), Full(), Mixed(5))
    with Calls() as calls:
        out = attended(HeadGroup(q, k, v, gate=gate), kinds).out
        grads = torch.autograd.grad(out.pow(2).sum(), (q, k, v, gate))
    assert not {"index_add", "index_add_", "index_put_", "_index_put_impl_"} & {*calls.counts}
    assert calls.counts["index_select"] == 4 * 3 + 1 + 4 + 1, "q, k, v, gates by kind, the output; and back"
    for head, kind in enumerate(kinds):
        of, rows = slice(head, head + 1), slice(2 * head, 2 * head + 2)
        own = attended(HeadGroup(q[:, rows], k[:, of], v[:, of], gate=gate[of]), (kind,)).out
        torch.testing.assert_close(own, out[:, rows])
        wanted = torch.autograd.grad(own.pow(2).sum(), (q, k, v, gate), allow_unused=True)
        for found, want, part in zip(grads, wanted, (rows, of, of, None), strict=True):
            here = (of,) if part is None else (slice(None), part)
            torch.testing.assert_close(found[here], torch.zeros_like(found[here]) if want is None else want[here])


@pytest.mark.parametrize("visible", [Visible(), Visible(5), Visible(5, causal=False), Visible(5, cap=2.0)])
def test_flex_is_a_part_of_the_graph_that_calls_it(visible):
    """A CPU has its forward pass only."""

    def attend(q, k, v):
        return 2 * kernels.flex(q, k, v, visible)

    q, k, v = tensors()
    compiled = torch.compile(attend, fullgraph=True, backend="eager", dynamic=False)
    torch.testing.assert_close(compiled(q, k, v), 2 * eager(q, k, v, visible))


@pytest.mark.parametrize("restricted", ["valid", "segments"])
def test_flex_in_a_graph_hides_padding_and_other_documents(restricted):
    mask = torch.arange(37).expand(2, -1) // 20
    given = {"valid": mask == 0} if restricted == "valid" else {"segments": mask}
    compiled = torch.compile(kernels.flex, fullgraph=True, backend="eager", dynamic=False)
    q, k, v = tensors()
    torch.testing.assert_close(compiled(q, k, v, Visible(5, **given)), eager(q, k, v, Visible(5, **given)))


@pytest.mark.parametrize("dims", [(1, 1), (2, 1)])
def test_kernels_of_a_gpu_give_the_formula_in_their_layout(dims, monkeypatch):
    """The branch of a GPU on a CPU, with fused attention replaced by one with the layout of the efficient kernel."""

    def efficient(q, k, v, attn_mask=None, is_causal=False, enable_gqa=False):
        assert q.shape[1] == k.shape[1] and not enable_gqa, "it knows no KV head that serves several query heads"
        q = q.as_subclass(torch.Tensor)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else attn_mask
        return kernels.plain(q, k, v, seen).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", efficient)
    q, k, v = tensors(length=16)
    valid = torch.arange(16) < torch.tensor([16, 9])[:, None]
    seen = Visible(5, valid if dims[0] == 2 else None).mask(torch.arange(16), 16)
    seen = seen if seen.dim() == 4 else seen[None, None]

    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    for mask, causal in ((seen, False), (seen[..., -1:, :], False), (None, True)):
        queries = q if mask is None or mask.shape[2] > 1 else q[:, :, -1:]
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "cuda_backends", lambda *case: (torch.nn.attention.SDPBackend.MATH,))
            found = kernels.fused(queries.as_subclass(OnGpu), k, v, mask, causal)
        wanted = kernels.plain(queries, k, v, torch.ones(16, 16, dtype=torch.bool).tril() if mask is None else mask)
        torch.testing.assert_close(found.as_subclass(torch.Tensor), wanted, atol=1e-12, rtol=1e-10)


def test_heads_of_several_kinds_are_differentiable_in_every_way():
    q, k, v = tensors(batch=1, length=5)
    kinds = (Window(2), Full())

    def out(q):
        return attended(HeadGroup(q, k, v, kernel="eager"), kinds).out

    tangent = torch.randn_like(q)
    near = (out(q + 1e-6 * tangent) - out(q - 1e-6 * tangent)) / 2e-6
    torch.testing.assert_close(torch.func.jvp(out, (q,), (tangent,))[1], near, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(torch.func.vmap(out)(torch.stack([q, 2 * q])), torch.stack([out(q), out(2 * q)]))
    gradient = torch.func.grad(lambda q: out(q).square().sum())(q)
    q.requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(out(q).square().sum(), q)[0])
    assert torch.autograd.gradgradcheck(out, q)
