"""Which backend torch's fused attention takes, where its gradients are numbers, how far it is off, and how long full
attention and windows take. Writes a JSON file after each part: `python tools/gpu/attention.py OUT.json`.

Without a GPU it measures small sizes on the CPU, so that the script itself can be tried.
"""

import json
import sys
import time
from itertools import product
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.attention import kernels
from hybridlab.attention.kernels import Visible
from hybridlab.training.machine import describe_machine, library_versions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def inputs(heads, kv_heads, queries, keys, dtype, scale=1.0, rows=2, width=64):
    """q, k and v with gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, heads, queries, width), (rows, kv_heads, keys, width), (rows, kv_heads, keys, width))
    made = (scale * torch.randn(shape, generator=generator) for shape in shapes)
    return [t.to(DEVICE, dtype).requires_grad_() for t in made]


class Operators(TorchDispatchMode):
    """The names of the fused attention operators that are called; none for the plain formula."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "scaled_dot_product" in (name := function.name()) and "backward" not in name:
            self.seen.append(name.removeprefix("aten::_scaled_dot_product_"))
        return function(*args, **(kwargs or {}))


def ran(attention, *arguments, **settings):
    """The operator of a call, or why there is none."""
    try:
        with Operators() as operators:
            attention(*arguments, **settings)
    except RuntimeError as error:
        return f"error: {str(error).splitlines()[0]}"
    return operators.seen[0] if operators.seen else "math"


def chosen():
    """The backend of each case as hybridlab asks for it, and as torch chooses by itself."""
    found = []
    dtypes, either = (torch.bfloat16, torch.float32), (False, True)
    for dtype, kv_heads, masked, trained in product(dtypes, (8, 2), either, either):
        q, k, v = (t.detach().requires_grad_(trained) for t in inputs(8, kv_heads, 192, 192, dtype))
        seen = torch.ones(192, 192, dtype=torch.bool, device=DEVICE).tril() if masked else None
        case = {"dtype": str(dtype), "kv_heads": kv_heads, "masked": masked, "trained": trained}
        case["hybridlab"] = ran(kernels.fused, q, k, v, seen, not masked)
        case["torch"] = ran(scaled_dot_product_attention, q, k, v, seen, is_causal=not masked, enable_gqa=kv_heads < 8)
        found.append(case)
    return found


def numbers():
    """Whether gradients under a mask are numbers, by backend, at lengths that leave 64 of 128 and at others, with
    scores far from zero (pytorch issue 196678)."""
    found = []
    for length in (64, 128, 192, 320):
        for backend in BACKENDS:
            q, k, v = inputs(8, 8, length, length, torch.bfloat16, scale=60.0)
            seen = torch.ones(2, 1, length, length, dtype=torch.bool, device=DEVICE).tril()
            seen[0, :, :, length // 2 :] = False
            seen |= torch.eye(length, dtype=torch.bool, device=DEVICE)
            case = {"length": length, "backend": backend.name}
            try:
                with sdpa_kernel(backend):
                    scaled_dot_product_attention(q, k, v, seen).float().square().sum().backward()
                case["finite"] = all(bool(torch.isfinite(t.grad).all()) for t in (q, k, v))
            except RuntimeError as error:
                case["error"] = str(error).splitlines()[0]
            found.append(case)
    return found


def decoded():
    """The largest error of one token over 300 keys, relative to the largest output, by backend and number of KV heads
    (pytorch issue 193893)."""
    found = []
    for kv_heads in (1, 2, 4, 8, 16):
        q, k, v = (t.detach() for t in inputs(16, kv_heads, 1, 300, torch.bfloat16))
        seen = torch.ones(2, 1, 1, 300, dtype=torch.bool, device=DEVICE)
        seen[0, ..., 200:] = False
        wanted = kernels.plain(q.double(), k.double(), v.double(), seen)
        for backend in (*BACKENDS, None):
            case = {"kv_heads": kv_heads, "backend": "hybridlab" if backend is None else backend.name}
            try:
                if backend is None:
                    out = kernels.fused(q, k, v, seen)
                else:
                    with sdpa_kernel(backend):
                        out = scaled_dot_product_attention(q, k, v, seen, enable_gqa=kv_heads < 16)
                case["error_relative"] = float((out.double() - wanted).abs().max() / wanted.abs().max())
            except RuntimeError as error:
                case["error"] = str(error).splitlines()[0]
            found.append(case)
    return found


def seconds(call, repeats):
    """The median time of a call, after two that are not timed."""
    times = []
    for number in range(repeats + 2):
        if ON_GPU:
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if ON_GPU:
            torch.cuda.synchronize()
        if number >= 2:
            times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def timed():
    """Forward and backward pass of 16 query and 4 KV heads of 64 over 32,768 tokens in all: full attention, and a
    window by `banded` and by `flex`, in bf16."""
    tokens, lengths = (32768, (4096, 8192, 16384, 32768)) if ON_GPU else (512, (256, 512))
    found = []
    for length in lengths:
        q, k, v = inputs(16, 4, length, length, torch.bfloat16, rows=tokens // length)
        kinds = [("sdpa", None), *((name, w) for name in ("banded", "flex") for w in (128, 1024) if w < length)]
        for name, window in kinds:
            case = {"length": length, "kernel": name, "window": window}

            def step(name=name, window=window, q=q, k=k, v=v):
                out = kernels.KERNELS[name](q, k, v, Visible(window))
                torch.autograd.grad(out.sum(), (q, k, v))

            try:
                case["seconds"] = seconds(step, 10 if ON_GPU else 2)
            except Exception as error:
                case["error"] = str(error).splitlines()[0]
            found.append(case)
    return found


def broken(results):
    """The cases in which hybridlab's own attention fails; flex has no backward pass on a CPU."""
    found = [case for case in results["chosen"] if case["hybridlab"].startswith("error")]
    found += [case for case in results["decoded"] if case["backend"] == "hybridlab" and "error" in case]
    return found + [case for case in results["timed"] if "error" in case and (ON_GPU or case["kernel"] != "flex")]


def main(out):
    results = {"machine": describe_machine(DEVICE), "libraries": library_versions()}
    for part in (chosen, numbers, decoded, timed):
        started = time.perf_counter()
        results[part.__name__] = part()
        print(
            f"{part.__name__}: {len(results[part.__name__])} cases, {time.perf_counter() - started:.0f} s", flush=True
        )
        part_file = out.with_name(out.name + ".part")
        part_file.write_text(json.dumps(results, indent=1) + "\n")
        part_file.replace(out)
    for case in (failed := broken(results)):
        print(f"FAILED: {case}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
