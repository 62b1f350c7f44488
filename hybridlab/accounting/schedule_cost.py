"""The cost of a whole training run whose structure may change: the ledger, summed over the steps."""

from __future__ import annotations

from typing import Any

from hybridlab.accounting.flops import ledger
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure, forecast, full_structure
from hybridlab.plan.structure import Structure


def training_flops(config: RunConfig, convention: str) -> float:
    """FLOPs of all steps of a run."""
    return sum(_flops(config, structure, steps, convention) for structure, steps in forecast(config))


def _flops(config: RunConfig, structure: Structure, steps: int, convention: str) -> float:
    training = config.training
    return steps * training.rows * ledger(structure, training.seq_len, convention).training


def whole_run(config: RunConfig, convention: str = "executed") -> dict[str, Any]:
    """Steps, tokens, training FLOPs and final plan of a run.

    overhead_percent: against the same run without growth; where layers are added, against one of full depth from the
    start. stages: where layers are added, the depths with the steps and FLOPs of each; else empty.
    """
    full = full_structure(config)
    last = final_structure(config).plan
    spent = training_flops(config, convention)
    start = _flops(config, full, config.training.steps, convention)
    return {
        "steps": config.training.steps,
        "tokens": config.training.steps * config.training.tokens_per_step,
        "convention": convention,
        "training_flops": spent,
        "grows_to": str(last) if last != full.plan else None,
        "overhead_percent": 100 * (spent / start - 1),
        "stages": _stages(config, convention),
    }


def _stages(config: RunConfig, convention: str) -> list[dict[str, Any]]:
    """The depths of a run in order; empty if it has only one. first_step counts from 1."""
    stages: list[dict[str, Any]] = []
    done = 0
    for structure, steps in forecast(config):
        flops = _flops(config, structure, steps, convention)
        if stages and stages[-1]["layers"] == structure.shape.layers:
            stages[-1]["steps"] += steps
            stages[-1]["training_flops"] += flops
        else:
            stages.append(
                {
                    "layers": structure.shape.layers,
                    "first_step": done + 1,
                    "steps": steps,
                    "training_flops": flops,
                    "plan": str(structure.plan),
                }
            )
        done += steps
    return stages if len(stages) > 1 else []
