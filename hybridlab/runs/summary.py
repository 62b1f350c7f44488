"""A structure in words and numbers, for records."""

from __future__ import annotations

from hybridlab.accounting.cache import kv_bytes
from hybridlab.accounting.flops import ledger
from hybridlab.attention.kinds import Full
from hybridlab.plan.structure import Structure
from hybridlab.runs.record import ForwardFlops, KVBytes, ModelSummary

KV_CONTEXT = 8192
"""Context of the KV-cache bytes and forward FLOPs in a record: ConSA's sequence length."""


def summary(structure: Structure) -> ModelSummary:
    """Plan and map as text, sparsity, and the structure's cost at a context of 8,192 tokens."""
    attention_map = structure.map
    forward = ledger(structure, KV_CONTEXT, "pairs").forward
    cache = kv_bytes(structure, KV_CONTEXT) if structure.caches else None
    return ModelSummary(
        plan=str(structure.plan),
        map="full" if set(attention_map.each_kind()) == {Full()} else str(attention_map),
        sparsity=None if attention_map.learning else attention_map.sparsity(),
        kv_bytes=None if cache is None else KVBytes(context=KV_CONTEXT, dtype="bf16", bytes=cache),
        forward_flops=ForwardFlops(context=KV_CONTEXT, convention="pairs", flops=forward),
    )
