"""Triton's kernels of attention refined by belief propagation, against the plain formula.

Their cases run in Triton's interpreter, which needs no GPU, in a process of their own: what Triton has once imported
without the interpreter stays so. Without Triton they are skipped. tests/gpu has the same cases for a GPU.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridlab.attention import kernels
from hybridlab.attention.belief import Belief
from hybridlab.attention.belief import triton as belief_triton
from hybridlab.attention.belief.formula import explicit
from hybridlab.attention.belief.triton import in_triton
from hybridlab.attention.heads import HeadGroup
from hybridlab.attention.kernels import Visible, choose, eager, require_kernel, sdpa
from hybridlab.attention.kinds import Full, Window
from hybridlab.errors import UserError
from hybridlab.models.build import build_model
from tests.conftest import ROOT, SMALL_SHAPE
from tests.models import attended
from tests.unit.test_belief import KINDS, PLACES, peak_bytes, restrictions, sent
from tests.unit.test_kernels import tensors

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
in_interpreter = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's own process")
HIGH, LOW, ELEMMUL = KINDS[:3]
MESSAGES = [kind for kind in KINDS if kind.sends_messages]
SLOTS, TILES_OF = belief_triton.SLOTS, belief_triton.tiles_of
KERNELS = (
    "prior_normalisers",
    "message_sums",
    "refined_rows",
    "output_products",
    "gradient_sums",
    "query_gradients",
    "key_gradients",
)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.skipif(INTERPRETED, reason="is the process that this test starts")
def test_cases_in_the_interpreter():
    pytest.importorskip("triton")
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        command, env={**others, "TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout + run.stderr


@pytest.fixture(autouse=INTERPRETED)
def small_tiles(monkeypatch):
    """The smallest tiles, and two blocks of a decoder's rows at once, so that short sequences have several parts."""
    pytest.importorskip("triton")
    import triton.language as tl
    from triton.runtime import interpreter

    plain = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        plain(tensor, scope)
        # NumPy from 2.4 on makes no number of an array of one element, which Triton 3.6 asks for.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    product = interpreter.InterpreterBuilder.create_dot

    def in_fp32(builder, a, b, *rest):
        # The interpreter holds bf16 as the integers of its bits, and multiplies these.
        operands = (
            interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
            if x.dtype == tl.bfloat16
            else x
            for x in (a, b)
        )
        return product(builder, *operands, *rest)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", in_fp32)
    monkeypatch.setattr(belief_triton, "tiles_of", lambda *arguments: TILES_OF(*arguments) | {"BLOCK": 16})
    monkeypatch.setattr(belief_triton, "SLOTS", 2)


def results(form, inputs, visible, kind):
    """The output, and the gradients of q, k and v."""
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = form(*inputs, visible, kind)
    return out, *torch.autograd.grad((out * weight.to(out)).sum(), inputs)


def difference(kind, visible, heads=(2, 1), length=37, width=8, batch=1, dtype=torch.float32):
    """The largest differences between Triton's results and the plain formula's in fp64, each relative to the largest
    number among the latter, or to 1."""
    inputs = [t.detach().to(dtype).requires_grad_() for t in tensors(batch, *heads, length, width)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    pairs = zip(results(in_triton, inputs, visible, kind), results(explicit, exact, visible, kind), strict=True)
    return [float((got.detach().double() - want).abs().max() / want.abs().max().clamp_min(1)) for got, want in pairs]


# ---- in the interpreter ----

# Measured: 5e-7 at most in fp32, 8.2e-3 in bf16, whose last digit is up to 8e-3 of a number.
FP32, BF16 = 3e-6, 1e-2


@in_interpreter
@pytest.mark.parametrize(("causal", "send"), PLACES)
@pytest.mark.parametrize("factor", ["high", "low"])
def test_output_and_gradients_equal_the_plain_formula(factor, causal, send):
    for length in (1, 37):
        assert max(difference(Belief(factor, 0.7, send), Visible(causal=causal), length=length)) < FP32


@in_interpreter
def test_messages_matter_to_what_is_compared():
    """The positive control of the comparison above: without messages, or with a leak, it would fail."""
    inputs = [t.float().requires_grad_() for t in tensors(1, 2, 1, 37, 8)]
    refined = results(in_triton, inputs, Visible(), HIGH)
    for other in (Belief("high", 0), sent(HIGH, "leaking"), Belief("high", 0.7, detach_messages=True)):
        changed = [
            float((a - b).detach().abs().max())
            for a, b in zip(refined, results(explicit, inputs, Visible(), other), strict=True)
        ]
        assert max(changed) > 1e-2


@in_interpreter
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", range(1, 5))
def test_padding_and_packing(case, causal):
    valid, segments = restrictions(37)[case]
    kind = Belief("low", 0.3, length_ref=7)
    assert max(difference(kind, Visible(None, valid, segments, causal=causal), (1, 1), batch=2)) < FP32


@in_interpreter
@pytest.mark.parametrize("kind", [kind for kind in MESSAGES[2:] if kind.in_triton], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_settings_of_messages(kind, causal):
    assert max(difference(kind, Visible(causal=causal))) < FP32


@in_interpreter
@pytest.mark.parametrize(("heads", "length", "width"), [((3, 3), 16, 20), ((4, 2), 33, 16), ((2, 2), 17, 64)], ids=str)
def test_heads_lengths_and_widths(heads, length, width):
    assert max(difference(LOW, Visible(), heads, length, width)) < FP32


@in_interpreter
def test_numbers_of_16_bits():
    for causal in (True, False):
        assert max(difference(HIGH, Visible(causal=causal), dtype=torch.bfloat16)) < BF16


@in_interpreter
def test_gradients_of_the_prior_that_fp16_cannot_hold_leave_a_finite_one():
    q, k, v = (t.detach().half().requires_grad_() for t in tensors(1, 1, 1, 64, 32))
    out = in_triton(q * 6, k, v, Visible(), Belief("high", 6.0))
    (gradient,) = torch.autograd.grad(out, q, torch.full_like(out, 1e3))
    assert gradient.isfinite().all()


@in_interpreter
def test_the_logarithm_keeps_the_digits_of_small_and_large_messages(monkeypatch):
    import triton
    import triton.language as tl

    from hybridlab.attention.belief import triton_kernels

    # The interpreter finds no names of the function around a kernel.
    monkeypatch.setitem(globals(), "triton_kernels", triton_kernels)

    @triton.jit
    def logarithms(x, y, SIZE: tl.constexpr):
        place = tl.arange(0, SIZE)
        tl.store(y + place, triton_kernels._log1p(tl.load(x + place)))

    small = torch.logspace(-30, 0, 1500)
    x = torch.cat([small, -small, 1 - small, small * 3e4, torch.tensor([0.0, -0.0, -0.25, 0.5, 2**-24 - 1, 22025.5])])
    x = torch.cat([x, x.new_zeros(8192 - len(x))]).clamp_min(2**-24 - 1)
    logarithms[(1,)](x, y := torch.empty_like(x), SIZE=8192)
    exact = torch.log1p(x.double())
    assert float(((y - exact) / exact.abs().clamp_min(1e-38)).abs().max()) < 3e-7


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("type_", ["bf16", "fp32"])
def test_compiled_for_a_hopper_gpu_no_kernel_keeps_many_registers_in_memory(type_, width, tmp_path):
    """Without a GPU: the instructions are Triton's, the registers and the stack those of NVIDIA's assembler."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hybridlab.attention.belief import triton_kernels

    assembler = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    integers = ("length", "heads", "group", "first", "stop", "slots")
    numbers = dict.fromkeys(
        ("prior_ptr", "refined_ptr", "factor_ptr", "before_ptr", "after_ptr", "delta_ptr", "mean_ptr"), "*fp32"
    )
    types = dict.fromkeys(integers, "i32") | numbers | {"scale": "fp32", "sums_ptr": "*fp64", "dsums_ptr": "*fp64"}
    for name in KERNELS:
        kernel = getattr(triton_kernels, name)
        tiles = belief_triton.tiles_of(width, type_ == "bf16")
        rules = {"CAUSAL": True, "EARLIER": True, "DETACHED": False, "valid": None, "segments": None}
        fixed = rules | {"D": width, "WIDTH": width, "BLOCK": tiles["BLOCK"]}
        fixed["PRECISION"] = "tf32" if type_ == "bf16" else "ieee"
        signature = {n: "constexpr" if n in fixed else types.get(n, f"*{type_}") for n in kernel.arg_names}
        places = {n: (i,) for i, n in enumerate(kernel.arg_names)}
        aligned = {places[n]: [["tt.divisibility", 16]] for n, kind in signature.items() if kind[0] == "*"}
        source = ASTSource(kernel, signature, {places[n]: fixed[n] for n in places if n in fixed}, aligned)
        warps = {name: tiles[name] for name in ("num_warps", "num_stages")}
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=warps).asm["ptx"]
        (tmp_path / "kernel.ptx").write_text(code)
        command = [assembler, "-v", "--gpu-name=sm_90a", "kernel.ptx", "-o", "kernel.cubin"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        assert int(re.search(r"(\d+) bytes stack frame", said)[1]) <= 32, (name, said)
        if type_ == "bf16" and name != "output_products":
            assert "f32.bf16.bf16.f32" in code, name


@in_interpreter
@pytest.mark.parametrize("strength", [10.0, 1e-3])
def test_the_strongest_and_the_weakest_messages(strength):
    """exp(−10) − 1 has lost digits that fp32 cannot hold, in the plain formula too."""
    for factor in ("high", "low"):
        assert max(difference(Belief(factor, strength), Visible(), length=33)) < (1e-2 if strength > 1 else FP32)


@in_interpreter
def test_strength_0_is_softmax_attention():
    inputs = [t.float() for t in tensors(1, 2, 1, 37, 8)]
    torch.testing.assert_close(in_triton(*inputs, Visible(), Belief("high", 0)), eager(*inputs, Visible()))


@in_interpreter
def test_heads_of_other_kinds_take_their_kernels_beside_it():
    q, k, v = (t.float() for t in tensors(1, 4, 2, 20))
    mixed = attended(HeadGroup(q, k, v, "triton"), [HIGH, Window(3)]).out
    torch.testing.assert_close(mixed, attended(HeadGroup(q, k, v, "eager"), [HIGH, Window(3)]).out)


@in_interpreter
@pytest.mark.parametrize("causal", [True, False])
def test_what_is_allocated_is_linear_in_the_length_and_near_that_of_sdpa(causal, monkeypatch):
    """Tensors alone, which is all that is held between kernels: these are not run here, and allocate nothing."""
    monkeypatch.setattr(belief_triton, "tiles_of", TILES_OF)
    monkeypatch.setattr(belief_triton, "SLOTS", SLOTS)
    monkeypatch.setattr(belief_triton._Launches, "_run", lambda *arguments, **settings: None)
    visible = Visible(causal=causal)
    peaks = {length: peak_bytes(lambda *x: in_triton(*x, visible, HIGH), length) for length in (1024, 2048, 4096)}
    assert peaks[4096] <= 1.5 * peak_bytes(lambda *x: sdpa(*x, visible), 4096)
    assert all(peak <= 1.02 * length / 1024 * peaks[1024] for length, peak in peaks.items())


# ---- selection ----


def test_it_is_chosen_by_name_and_on_a_gpu_by_auto(monkeypatch):
    monkeypatch.setattr(belief_triton, "can_be_built", lambda: True)
    places = (("cuda", 128), ("cuda", 160), ("cpu", 64))
    taken = [kind.kernel_for("auto", *place) for kind in (HIGH, ELEMMUL) for place in places]
    assert taken == ["triton", "auto", "auto", "auto", "auto", "auto"]
    model = build_model("saobp-high", shape=SMALL_SHAPE)
    assert model.kernels_used(64, GPU, True) == {"belief": {"triton"}}
    assert model.kernels_used(64, CPU, True) == {"belief": {"eager"}}
    monkeypatch.setattr(belief_triton, "can_be_built", lambda: False)
    assert HIGH.kernel_for("auto", "cuda", 64) == "auto"


@pytest.mark.parametrize("missing", [None, "triton", "compiler", "kernels"])
def test_triton_is_taken_where_its_kernels_can_be_built(missing, monkeypatch, tmp_path):
    """Models that were exported leave without the kernels."""
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: missing != "triton")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name if missing != "compiler" and name == "clang" else None)
    if missing == "kernels":
        monkeypatch.setattr(belief_triton, "__file__", str(tmp_path / "hybridlab_attention_belief_triton.py"))
    assert belief_triton.can_be_built.__wrapped__() is (missing is None)


def test_the_kernels_are_chosen_by_name():
    assert HIGH.own_kernel("triton", 16, True) == "triton"
    assert {HIGH.own_kernel("auto", length, True) for length in (16, 4096)} == {"eager", "blocks"}
    for device in (CPU, GPU):
        for setting in ((None, 128), (8, 128), (8, 4096)):
            assert choose("triton", *setting, device, True) == choose("auto", *setting, device, True)
        assert choose("triton", 8, 128, device, False, beside=True) == choose(
            "auto", 8, 128, device, False, beside=True
        )


def test_a_model_names_it_for_its_belief_heads():
    model = build_model("saobp-high", size="bert-tiny", kernel="triton")
    assert model.kernels_used(128, GPU, low_precision=True) == {"belief": {"triton"}}


def test_it_needs_a_gpu_triton_and_messages(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    inputs = [t.float() for t in tensors(1, 2, 1, 5)]
    with pytest.raises(UserError, match="kernel triton runs on a CUDA GPU only, not on cpu; use auto"):
        attended(HeadGroup(*inputs, "triton"), [HIGH])
    with pytest.raises(UserError, match="kernel triton runs on a CUDA GPU only"):
        require_kernel("triton", CPU, training=False, kinds=[Full()])
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs Triton, which is not installed; pip install triton"):
        require_kernel("triton", GPU, training=True)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: importlib.util)
    require_kernel("triton", GPU, training=True, kinds=[Full(), HIGH, LOW])
    with pytest.raises(UserError, match=r"not those of belief\(elemmul\); use auto, blocks or eager"):
        require_kernel("triton", GPU, training=True, kinds=[HIGH, ELEMMUL])


def test_what_it_does_not_compute_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setattr(belief_triton, "require_triton", lambda device: None)
    with pytest.raises(UserError, match="heads of a width of 128 at most, not 130"):
        in_triton(*(t.float() for t in tensors(1, 1, 1, 4, 130)), Visible(), HIGH)
    with pytest.raises(UserError, match="computes in fp32, not in fp64"):
        in_triton(*tensors(1, 1, 1, 4, 8), Visible(), HIGH)
    with pytest.raises(UserError, match="not those of belief"):
        in_triton(*(t.float() for t in tensors(1, 1, 1, 4, 8)), Visible(), ELEMMUL)
