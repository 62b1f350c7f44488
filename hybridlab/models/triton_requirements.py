"""What the kernel `triton` (models/belief_triton.py) needs of a machine and of heads; imports no Triton."""

from __future__ import annotations

import importlib.util
import os

import torch

from hybridlab.errors import UserError
from hybridlab.plan.kinds import AttentionKind

WIDEST = 128
"""The largest head width: the tiles of wider heads would not fit into the shared memory of every GPU."""


def require_triton(device: torch.device) -> None:
    """UserError if Triton's kernels cannot run on this device. Without a GPU they run in Triton's interpreter only,
    as a check, with TRITON_INTERPRET=1 in the environment."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError(f"kernel triton runs on a CUDA GPU only, not on {device.type}; use auto, blocks or eager")
    if importlib.util.find_spec("triton") is None:
        raise UserError("kernel triton needs Triton, which is not installed; pip install triton, or use auto or blocks")


def require_messages(kind: AttentionKind) -> None:
    """UserError if heads of a kind that refines its weights do so by anything but messages."""
    if kind.refines and not kind.sends_messages:
        raise UserError(
            f"kernel triton computes weights that messages refine, not those of {kind}; use auto, blocks or eager"
        )


def require_numbers(head_width: int, dtype: torch.dtype) -> None:
    """UserError if the kernel does not compute heads of this width, or this type of numbers."""
    if head_width > WIDEST:
        raise UserError(
            f"kernel triton computes heads of a width of {WIDEST} at most, not {head_width}; use auto, blocks or eager"
        )
    if dtype == torch.float64:
        raise UserError("kernel triton computes in fp32, not in fp64; use auto, blocks or eager")
