"""The costs of a plan, and of a whole training run whose structure may change: the ledger, summed over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import forecast, full_structure
from hybridlab.models.ledger.drawing import rows
from hybridlab.models.ledger.flops import CONVENTIONS, Convention, adapted_training, ledger
from hybridlab.models.ledger.parameters import count_parameters, kv_bytes
from hybridlab.plan.loop import Loop
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
    # The same with every iteration of the loops on all tokens.
    whole = [
        replace(item, chunks=(1,) * item.iterations, offset="half", shift="overlap") if isinstance(item, Loop) else item
        for item in plan.visits
    ]
    full = structure.changed(replace(plan, visits=tuple(whole)))
    caches = {"kv_bytes": structure, "kv_bytes_at_full_resolution": full}
    return {
        "arch": config.arch,
        "size": config.size,
        "seq_len": seq_len,
        "plan": str(plan),
        "map": str(structure.map),
        "drawing": [asdict(row) for row in rows(structure)],
        "parameters": {**asdict(count), "total": count.total},
        "flops": {name: {**asdict(c), "counts": CONVENTIONS[name].source} for name, c in costs.items()},
        **{name: kv_bytes(cached, seq_len) if structure.caches else None for name, cached in caches.items()},
        "loops": [_recurrence(loop) for loop in plan.loops.values()],
    }


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


# ---- whole runs ----


def training_flops(config: RunConfig, convention: str | Convention) -> float:
    """FLOPs of all steps of a run."""
    return sum(flops for _, _, flops in _stretches(config, convention))


def whole_run(config: RunConfig, convention: str = "executed") -> dict[str, Any]:
    """Steps, tokens, training FLOPs and final plan of a run.

    overhead_percent: against the same run without growth; where layers are added, against one of full depth from the
    start. stages: where layers are added, the depths with the steps and FLOPs of each; else empty.
    """
    full, training = full_structure(config), config.training
    stretches = list(_stretches(config, convention))
    spent, last = sum(flops for _, _, flops in stretches), stretches[-1][0].plan
    return {
        "steps": training.steps,
        "tokens": training.steps * training.tokens_per_step,
        "convention": convention,
        "training_flops": spent,
        "grows_to": str(last) if last != full.plan else None,
        "overhead_percent": 100 * (spent / _flops(config, full, training.steps, convention) - 1),
        "stages": _stages(stretches),
    }


def sequence_flops(config: RunConfig, structure: Structure, convention: str | Convention) -> float:
    """FLOPs of training on one sequence in a run; where it trains adapters, of these and what they need."""
    length = config.training.seq_len
    cost = ledger(structure, length, convention)
    return cost.training if config.lora is None else adapted_training(structure, length, cost, config.lora)


def _flops(config: RunConfig, structure: Structure, steps: int, convention: str | Convention) -> float:
    return steps * config.training.rows * sequence_flops(config, structure, convention)


def _stretches(config: RunConfig, convention: str | Convention) -> Iterator[tuple[Structure, int, float]]:
    """The structures of a run in order, each with its steps and their FLOPs."""
    for structure, steps in forecast(config):
        yield structure, steps, _flops(config, structure, steps, convention)


def _stages(stretches: list[tuple[Structure, int, float]]) -> list[dict[str, Any]]:
    """The depths of a run in order; empty if it has only one. first_step counts from 1."""
    stages: list[dict[str, Any]] = []
    done = 0
    for structure, steps, flops in stretches:
        layers = structure.shape.layers
        if not stages or stages[-1]["layers"] != layers:
            new = {"layers": layers, "first_step": done + 1, "steps": 0, "training_flops": 0}
            stages.append(new | {"plan": str(structure.plan)})
        stages[-1]["steps"] += steps
        stages[-1]["training_flops"] += flops
        done += steps
    return stages if len(stages) > 1 else []
