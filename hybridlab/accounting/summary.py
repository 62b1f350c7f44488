"""Everything a plan costs in one mapping, for `hybridlab plan`."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from hybridlab.accounting.cache import kv_bytes
from hybridlab.accounting.drawing import rows
from hybridlab.accounting.flops import CONVENTIONS, ledger
from hybridlab.accounting.parameters import count_parameters
from hybridlab.config.schema import RunConfig
from hybridlab.plan.from_config import map_of, plan_of
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan

_SHOWN = 64
"""Positions of a pattern, where its period is longer."""


def summarize(config: RunConfig, seq_len: int) -> dict[str, Any]:
    """Plan, map, parameters, FLOPs of one sequence by convention, KV-cache bytes after it."""
    shape, plan, attention_map = config.shape, plan_of(config), map_of(config.map, config.shape)
    count = count_parameters(shape, plan)
    costs = {name: ledger(shape, plan, attention_map, seq_len, name) for name in CONVENTIONS}
    loops = [_recurrence(loop) for loop in plan.loops.values()]
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
        "kv_bytes_at_full_resolution": kv_bytes(shape, _at_full_resolution(plan), attention_map, seq_len),
        "loops": loops,
    }


def _recurrence(loop: Loop) -> dict[str, Any]:
    """What a loop does in decoding: at each position of a period, how many iterations run their body (SpiralFormer,
    Eq. 31). A loop at full resolution runs all of them at all positions."""
    period = min(math.lcm(*loop.chunks), _SHOWN)
    iterations = range(loop.iterations)
    return {
        "chunks": list(loop.chunks),
        "offsets": [loop.offset_of(t) for t in iterations],
        "shifts": [loop.shift_of(t) for t in iterations],
        "triggers": [sum(loop.triggers(t, position) for t in iterations) for position in range(period)],
    }


def _at_full_resolution(plan: Plan) -> Plan:
    """The same bodies as often, with every iteration on all tokens."""
    visits = [
        replace(item, chunks=(1,) * item.iterations, offset="half", shift="overlap") if isinstance(item, Loop) else item
        for item in plan.visits
    ]
    return replace(plan, visits=tuple(visits))
