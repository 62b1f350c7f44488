"""Block sizes of the kernels `banded` and `blocks`, used by them and by their FLOPs count; no torch."""

from __future__ import annotations

MIN_BLOCK = 16
"""Smallest block of these kernels; smaller ones take more time in calls than they save in keys."""


def band_block(width: int) -> int:
    """Number of queries in a block.

    The keys of a block are the block itself and the one before it, so a block needs at least w − 1 queries.
    """
    return max(width, MIN_BLOCK)
