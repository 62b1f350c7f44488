"""KV-cache bytes of a structure: a full head stores every position, a window head the last w (ConSA, section 3), some
kinds also sums."""

from __future__ import annotations

from hybridlab.plan.structure import Structure

BYTES_PER_VALUE = {"bf16": 2, "fp16": 2, "fp32": 4}


def kv_bytes(structure: Structure, context: int, dtype: str = "bf16") -> int:
    """Bytes of keys and values of one sequence after `context` tokens, and of the sums that some kinds keep in fp32.

    Every attention visit has its own cache; in a loop over chunks it has one entry per chunk.
    """
    positions, sums, width = 0, 0, structure.shape.head_width
    for place, visit in structure.attention_places():
        entries, kinds = structure.plan.tokens_at(place, context), structure.kinds(visit)
        positions += sum(kind.cached(entries) for kind in kinds)
        sums += sum(kinds[kv].sums(entries, width) for kv in structure.heads(visit).serving)
    return 2 * positions * width * BYTES_PER_VALUE[dtype] + sums * BYTES_PER_VALUE["fp32"]
