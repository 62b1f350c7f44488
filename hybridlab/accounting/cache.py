"""KV-cache bytes of a structure: a full head stores every position, a window head the last w (ConSA, section 3)."""

from __future__ import annotations

from hybridlab.plan.structure import Structure

BYTES_PER_VALUE = {"bf16": 2, "fp16": 2, "fp32": 4}


def kv_bytes(structure: Structure, context: int, dtype: str = "bf16") -> int:
    """Bytes of keys and values of one sequence after `context` tokens.

    Every attention visit has its own cache; in a loop over chunks it has one entry per chunk.
    """
    positions = 0
    for place, visit in structure.attention_places():
        entries = structure.plan.tokens_at(place, context)
        positions += sum(kind.cached(entries) for kind in structure.kinds(visit))
    return 2 * positions * structure.shape.head_width * BYTES_PER_VALUE[dtype]
