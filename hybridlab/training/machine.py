"""What this machine can do, decided once at a run's start and written into its record."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from hybridlab.errors import UserError

_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "hybridlab")


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one. A device that is not here is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"runtime.device {name!r}: it is no device; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"runtime.device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"runtime.device {name}: only cpu and cuda are supported")
    return device


def pick_precision(asked: str, device: torch.device) -> str:
    """`auto`: bf16 where the hardware multiplies it, else fp32; never fp16."""
    if asked != "auto":
        return asked
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    flags = _cpu_flags()
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32"


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def describe_machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": device.type, "name": name, "threads": torch.get_num_threads(), "platform": platform.platform()}


def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    return versions | {name: importlib.metadata.version(name) for name in _LIBRARIES}


def git_revision() -> str | None:
    """The commit of the checkout that this code lies in, with + where the code has changed; None without one."""
    if _git("ls-files", "--error-unmatch", __file__) is None:
        return None
    return f"{_git('rev-parse', 'HEAD')}{'+' if _git('status', '--porcelain', '.') else ''}"


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
