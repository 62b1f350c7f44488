"""Device, precision and software of this machine, chosen once at the start of a run and written into its record; and
the speed that it reaches."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hybridlab.config.schema import RunConfig, Runtime
from hybridlab.errors import RunFailed, UserError
from hybridlab.models.executor import Recompute
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.models.loss import LARGE_VOCABULARY, logits_at_once
from hybridlab.plan.structure import Structure
from hybridlab.training.store.metrics import OF_THE_MACHINE
from hybridlab.training.world import world

_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "hybridlab")

SMALL = 20_000_000
"""A model of fewer parameters trains with one thread where several runs go at once: two runs with one thread each get
more done together than one run with two (measured on two cores with `tiny`: 1.27 times as many tokens)."""


def pick_device(name: str) -> torch.device:
    """The device of this name; `auto` is the GPU if there is one. UserError if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"runtime.device {name!r}: this is not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"runtime.device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"runtime.device {name}: only cpu and cuda are supported")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """`auto` is bf16 if the hardware has bf16 arithmetic, else fp32."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    with suppress(OSError):  # other systems
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        if {"avx512_bf16", "amx_bf16"} & {flag for line in lines if line.startswith("flags") for flag in line.split()}:
            return "bf16"
    return "fp32"


def cpu_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(device: torch.device) -> int:
    """Bytes that a device has: of a GPU its own; else those of the machine, or what the container may use of them."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # other systems, and containers without a limit
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return whole


def pick_recompute(runtime: Runtime, device: torch.device, compiled: bool, tokens: int, width: int) -> Recompute:
    """What a step recomputes in its backward pass, see `runtime.activation_checkpointing`. tokens: in one pass. width:
    of the residual stream. UserError for selective checkpointing of compiled blocks, whose operators cannot be told
    apart."""
    asked = runtime.activation_checkpointing
    if asked == "selective" and compiled:
        raise UserError(
            "runtime.activation_checkpointing = selective has no effect on compiled blocks, whose compiler chooses "
            "itself what to recompute; leave it out, or set runtime.compile=false"
        )
    if asked is not None:
        return asked
    large = device.type == "cpu" and tokens * width >= _SELECTIVE_FROM
    return "selective" if large and not compiled else False


_SELECTIVE_FROM = 2**20
"""Elements of the residual stream in one pass. Below it, the calls of Python for every operator, about 20 µs each, take
more time than a few percent of the step, and activations are small beside everything else."""


def require_memory(config: RunConfig, first: Structure, structure: Structure, device: torch.device) -> None:
    """UserError for a run that cannot fit on a device: by its weights, gradients and optimizer, and the logits of the
    rows that are computed at once, which are the least that it needs. first: of the model at the start. structure: at
    its largest."""
    training, size = config.training, 8 if config.training.precision == "fp64" else 4
    weights = size * count_parameters(structure.shape, structure.plan).total
    ranks = world().size if config.runtime.sharding == "fsdp2" else 1
    # Adapters and their moments are small beside the weights, which have none then.
    states = (4 if config.lora is None else 1) * weights // ranks
    if structure != first:  # a change gathers weights and moments on every rank
        states = max(states, 3 * weights)
    rows = min(config.runtime.micro_batch_rows or training.rows, -(-training.rows // world().size))
    tokens = 16 * training.tokens_per_step // world().size
    numbers = rows * training.seq_len * structure.shape.vocab if structure.shape.gives_tokens else 0
    if structure.shape.vocab >= LARGE_VOCABULARY:
        numbers = min(numbers, logits_at_once(device.type))
    logits = 8 * numbers
    if (needed := states + tokens + logits) <= (there := memory(device)):
        return
    advice = {states: "a smaller shape", tokens: "fewer tokens_per_step", logits: "fewer runtime.micro_batch_rows"}
    raise UserError(
        f"this run needs {needed / 1e9:,.0f} GB at least, of which {states / 1e9:,.0f} GB are weights, gradients and "
        f"optimizer and {logits / 1e9:,.0f} GB logits, and this device ({device.type}) has {there / 1e9:,.0f} GB; "
        f"set {advice[max(advice)]}"
    )


@contextmanager
def within_memory() -> Iterator[None]:
    """A context in which memory that cannot be had is a RunFailed."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        short = str(error).partition("\n")[0]
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in short
        if not known:
            raise
        raise RunFailed(
            f"out of memory ({short}); set fewer runtime.micro_batch_rows, runtime.activation_checkpointing, or a "
            "smaller shape"
        ) from None


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory of freed tensors for the next ones; False where the C library has no switch.

    By default glibc gives every tensor of some megabytes back to the system and fetches its pages again: 11,000 page
    faults in each step of `tiny`, and an eighth of the step's time. Numbers do not depend on it. Tensors above 64 MB
    are still given back, and so is what lies free at the end beyond 1 GB.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # a C library without it, such as musl
    return all([mallopt(switch, value) == 1 for switch, value in _MALLOPT.items()])


def give_back_freed_memory() -> None:
    """Give the memory of freed tensors, which this process keeps for the next ones, back to the system: before a
    measurement, whose tensors have other sizes than those of a step. It does nothing where the C library cannot."""
    if keep_freed_memory():
        ctypes.CDLL(None).malloc_trim(0)


_MALLOPT = {-3: 2**26, -1: 2**30, -2: 2**26}
"""M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of glibc's malloc.h."""


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with so many threads; afterwards with as many as before, so that a run does not change the next one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Device, processor, threads and operating system, for a record, and the ranks where there are several."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    own = {"device": device.type, "name": name, "threads": torch.get_num_threads(), "platform": platform.platform()}
    return own | ({"ranks": world().size} if world().size > 1 else {})


def library_versions() -> dict[str, str]:
    """The versions of Python and of the libraries that determine results, for a record."""
    return {"python": platform.python_version()} | {name: version_of(name) for name in _LIBRARIES}


def version_of(package: str) -> str:
    """The version of a package; `unknown` of one that runs from its source without being installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def program_facts(device: torch.device) -> dict[str, Any]:
    """The fields of a record that say which program it is from, and which machine. They are collected before what takes
    long, so that whatever cannot be had is known then, and the commit is that of the code that runs."""
    return {"git": git_revision(), "libraries": library_versions(), "machine": describe_machine(device)}


def git_revision() -> str | None:
    """The git commit of this code, with + if files have changed since; None if this is not a git checkout."""
    commit = _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", __file__) is not None else None
    return commit and f"{commit}{'+' if _git('status', '--porcelain', '.') else ''}"


def _git(*arguments: str) -> str | None:
    """The output of a git command, None if it fails."""
    folder = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def dtype_of(precision: str) -> torch.dtype:
    """The type of the weights in training: those of bf16 are in fp32, too."""
    return torch.float64 if precision == "fp64" else torch.float32


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """A context in which a forward pass computes in this precision."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


# ---- speed, memory and MFU, which depend on the machine and enter no result ----


@dataclass(frozen=True)
class Gpu:
    """flops: FLOP/s with bf16 inputs and fp32 sums, dense (without 2:4 sparsity). gb: memory in 10^9 bytes. link,
    network: bytes per second that it sends to another GPU of its node, and of another node."""

    flops: float
    gb: int
    link: float = 32e9
    network: float = 50e9


GPUS = {
    "RTX 4090": Gpu(165.2e12, 24),
    "RTX 3090": Gpu(71e12, 24),
    "L40S": Gpu(362e12, 48),
    "L4": Gpu(121e12, 24),
    "A100": Gpu(312e12, 80, 300e9),
    "A10": Gpu(125e12, 24),
    "H100 PCIe": Gpu(756e12, 80, 64e9),
    "H100 NVL": Gpu(835e12, 94, 300e9),
    "H100": Gpu(989e12, 80, 450e9),
    "H200 NVL": Gpu(835e12, 141, 450e9),
    "H200": Gpu(989e12, 141, 450e9),
    "B200": Gpu(2250e12, 180, 900e9),
}
"""Part of a GPU's name → its data, from NVIDIA's data sheets; `network` is that of a card of 400 Gbit/s for each GPU.
The longest name that fits is used. The speed of others is set by `runtime.peak_flops`."""
_SLOWER = {"Laptop", "Max", "D", "MIG"}
"""Words in the names of slower GPUs of the same number, and of parts of a GPU."""


def peak_flops(name: str) -> float | None:
    """The peak of the GPU of this name; None if it is not in the table."""
    words = name.replace("-", " ").split()
    if not _SLOWER.isdisjoint(words):
        return None
    fitting = [known for known in GPUS if all(word in words for word in known.split())]
    return GPUS[max(fitting, key=len)].flops if fitting else None


def peak_of(device: torch.device) -> float | None:
    """The peak of a device in FLOP/s; None if it is not known, as for every CPU."""
    return peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


class Speed:
    """Measures from one line of the log to the next. peak: FLOP/s of a device, None for that of a known GPU; each
    process of the run has one.

    tokens, flops: what the run has used when the measurement begins.
    """

    def __init__(self, device: torch.device, peak: float | None, tokens: int, flops: float) -> None:
        self.device, self.tokens, self.flops = device, tokens, flops
        one = peak_of(device) if peak is None else peak
        self.peak = None if one is None else one * world().size
        self.started = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Leave out these seconds, in which the run did not train."""
        self.started += seconds

    def measure(self, tokens: int, flops: float) -> dict[str, float | None]:
        """The numbers since the last call, for totals of the run. mfu: FLOPs of the ledger as a share of what the
        device could have done; None if its peak is not known. memory_mb: the highest use so far, in 10^6 bytes."""
        now = time.monotonic()
        seconds = max(now - self.started, 1e-9)
        rate = (flops - self.flops) / seconds
        mfu = None if self.peak is None else _rounded(rate / self.peak)
        found = (_rounded((tokens - self.tokens) / seconds), round(self._memory() / 1e6, 1), mfu)
        self.tokens, self.flops, self.started = tokens, flops, now
        return dict(zip(OF_THE_MACHINE, found, strict=True))

    def _memory(self) -> int:
        """Bytes: of the GPU's tensors, or of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Linux counts in KiB, macOS in bytes.
        return used if sys.platform == "darwin" else used * 1024


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
