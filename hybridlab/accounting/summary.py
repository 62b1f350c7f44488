"""The costs of a plan in one mapping, for `hybridlab plan`."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from hybridlab.accounting.cache import kv_bytes
from hybridlab.accounting.drawing import rows
from hybridlab.accounting.flops import CONVENTIONS, ledger
from hybridlab.accounting.parameters import count_parameters
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import full_structure
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure

_SHOWN = 64
"""Most positions of a pattern that are shown."""


def summarize(config: RunConfig, seq_len: int) -> dict[str, Any]:
    """Plan, map and parameters; FLOPs of one sequence under each convention, and its KV-cache bytes, None for a model
    that continues no text."""
    structure = full_structure(config)
    plan = structure.plan
    count = count_parameters(structure.shape, plan)
    costs = {name: ledger(structure, seq_len, name) for name in CONVENTIONS}
    loops = [_recurrence(loop) for loop in plan.loops.values()]
    return {
        "arch": config.arch,
        "size": config.size,
        "seq_len": seq_len,
        "plan": str(plan),
        "map": str(structure.map),
        "drawing": [asdict(row) for row in rows(structure)],
        "parameters": {**asdict(count), "total": count.total},
        "flops": {name: {**asdict(c), "counts": CONVENTIONS[name].source} for name, c in costs.items()},
        **(_cache(structure, seq_len) if structure.caches else {"kv_bytes": None, "kv_bytes_at_full_resolution": None}),
        "loops": loops,
    }


def _cache(structure: Structure, seq_len: int) -> dict[str, int]:
    full = structure.changed(_at_full_resolution(structure.plan))
    return {"kv_bytes": kv_bytes(structure, seq_len), "kv_bytes_at_full_resolution": kv_bytes(full, seq_len)}


def _recurrence(loop: Loop) -> dict[str, Any]:
    """A loop in decoding. triggers: for each position of a period, how many iterations run their body (SpiralFormer,
    Eq. 31); at full resolution all of them do."""
    period = min(math.lcm(*loop.chunks), _SHOWN)
    iterations = range(loop.iterations)
    return {
        "chunks": list(loop.chunks),
        "offsets": [loop.offset_of(t) for t in iterations],
        "shifts": [loop.shift_of(t) for t in iterations],
        "triggers": [sum(loop.triggers(t, position) for t in iterations) for position in range(period)],
    }


def _at_full_resolution(plan: Plan) -> Plan:
    """The same plan with every iteration of its loops on all tokens."""
    visits = [
        replace(item, chunks=(1,) * item.iterations, offset="half", shift="overlap") if isinstance(item, Loop) else item
        for item in plan.visits
    ]
    return replace(plan, visits=tuple(visits))
