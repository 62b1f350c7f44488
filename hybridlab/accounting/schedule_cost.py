"""The cost of a whole training run whose structure may change: the ledger, summed over the steps."""

from __future__ import annotations

from typing import Any

from hybridlab.accounting.flops import ledger
from hybridlab.config.schema import RunConfig
from hybridlab.plan.forecast import final_structure, forecast
from hybridlab.plan.from_config import plan_of


def training_flops(config: RunConfig, convention: str) -> float:
    """FLOPs of all steps of a run."""
    training = config.training
    return sum(
        steps * training.rows * ledger(structure, training.seq_len, convention).training
        for structure, steps in forecast(config)
    )


def whole_run(config: RunConfig, convention: str = "executed") -> dict[str, Any]:
    """Steps, tokens, training FLOPs and final plan of a run. overhead_percent: against the same run without growth."""
    base = plan_of(config)
    last = final_structure(config).plan
    spent = training_flops(config, convention)
    start = training_flops(config.model_copy(update={"controller": None}), convention)
    return {
        "steps": config.training.steps,
        "tokens": config.training.steps * config.training.tokens_per_step,
        "convention": convention,
        "training_flops": spent,
        "grows_to": str(last) if last != base else None,
        "overhead_percent": 100 * (spent / start - 1),
    }
