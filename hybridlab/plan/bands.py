"""Block sizes of the banded kernel, used by the kernel and by its FLOPs count; no torch."""

from __future__ import annotations

MIN_BLOCK = 16
"""Smallest block of the banded kernel; smaller ones take more time in calls than they save in keys."""


def band_block(width: int) -> int:
    """Number of queries in a block of the banded kernel.

    The keys of a block are the block itself and the one before it, so a block needs at least w − 1 queries.
    """
    return max(width, MIN_BLOCK)
