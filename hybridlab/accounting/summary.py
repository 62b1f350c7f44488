"""Everything a plan costs in one mapping, for `hybridlab plan`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hybridlab.accounting.cache import kv_bytes
from hybridlab.accounting.drawing import rows
from hybridlab.accounting.flops import CONVENTIONS, ledger
from hybridlab.accounting.parameters import count_parameters
from hybridlab.config.schema import RunConfig
from hybridlab.plan.from_config import map_of, plan_of


def summarize(config: RunConfig, seq_len: int) -> dict[str, Any]:
    """Plan, map, parameters, FLOPs of one sequence by convention, KV-cache bytes after it."""
    shape, plan, attention_map = config.shape, plan_of(config), map_of(config.map, config.shape)
    count = count_parameters(shape, plan)
    costs = {name: ledger(shape, plan, attention_map, seq_len, name) for name in CONVENTIONS}
    return {
        "arch": config.arch,
        "size": config.size,
        "seq_len": seq_len,
        "plan": str(plan),
        "map": str(attention_map),
        "drawing": [asdict(row) for row in rows(shape, plan, attention_map)],
        "parameters": {**asdict(count), "total": count.total},
        "flops": {name: {**asdict(c), "counts": CONVENTIONS[name].source} for name, c in costs.items()},
        "kv_bytes": kv_bytes(shape, plan, attention_map, seq_len),
    }
