"""KV-cache bytes from plan and map: a full head keeps every position, a window head the last w (ConSA, section 3)."""

from __future__ import annotations

from hybridlab.config.schema import Shape
from hybridlab.plan.attention_map import AttentionMap, Window
from hybridlab.plan.plan import Plan

BYTES_PER_VALUE = {"bf16": 2, "fp16": 2, "fp32": 4}


def kv_bytes(shape: Shape, plan: Plan, attention_map: AttentionMap, context: int, dtype: str = "bf16") -> int:
    """Bytes of keys and values of one sequence after `context` tokens; every attention visit has its own slot, in a loop over
    chunks with one entry for each chunk."""
    positions = 0
    for place, visit in plan.places():
        entries = plan.tokens_at(place, context)
        if visit.part == "mlp":
            continue
        heads = visit.heads or range(shape.heads)
        for kv_head in {h // shape.group for h in heads}:
            kind = attention_map.layers[visit.layer][kv_head]
            positions += min(kind.width, entries) if isinstance(kind, Window) else entries
    return 2 * positions * shape.head_width * BYTES_PER_VALUE[dtype]
