"""Speed, memory and MFU of training, for the log. They depend on the machine and enter no result."""

from __future__ import annotations

import resource
import sys
import time

import torch

PEAK_FLOPS = {
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A100": 312e12,
    "A10": 125e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "B200": 2250e12,
}
"""Part of a GPU's name → FLOP/s with bf16 inputs and fp32 sums, dense (without 2:4 sparsity), from NVIDIA's data
sheets. The longest name that fits is used. Others are set by `runtime.peak_flops`."""
_SLOWER = {"Laptop", "Max", "D", "MIG"}
"""Words in the names of slower GPUs of the same number, and of parts of a GPU."""


def peak_flops(name: str) -> float | None:
    """The peak of the GPU of this name; None if it is not in the table."""
    words = name.replace("-", " ").split()
    if not _SLOWER.isdisjoint(words):
        return None
    fitting = [known for known in PEAK_FLOPS if all(word in words for word in known.split())]
    return PEAK_FLOPS[max(fitting, key=len)] if fitting else None


class Speed:
    """Measures from one line of the log to the next. peak: FLOP/s of the device, None for that of a known GPU.

    tokens, flops: what the run has used when the measurement begins.
    """

    def __init__(self, device: torch.device, peak: float | None, tokens: int, flops: float) -> None:
        self.device, self.tokens, self.flops = device, tokens, flops
        known = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        self.peak = known if peak is None else peak
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
        numbers = {
            "tokens_per_second": _rounded((tokens - self.tokens) / seconds),
            "memory_mb": round(self._memory() / 1e6, 1),
            "mfu": None if self.peak is None else _rounded(rate / self.peak),
        }
        self.tokens, self.flops, self.started = tokens, flops, now
        return numbers

    def _memory(self) -> int:
        """Bytes: of the GPU's tensors, or of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Linux counts in KiB, macOS in bytes.
        return used if sys.platform == "darwin" else used * 1024


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
