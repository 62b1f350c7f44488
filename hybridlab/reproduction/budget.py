"""A budget of training FLOPs turned into steps: `--set budget.flops=2e14`."""

from __future__ import annotations

from hybridlab.accounting.flops import ledger
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.plan.from_config import map_of, plan_of


def within_budget(config: RunConfig) -> RunConfig:
    """The configuration with as many steps as its budget buys, or as it is where it has none; the warm-up keeps its
    share of the steps.

    The plan's cost at the start of the run is what counts; a plan that grows spends more.
    """
    if config.budget is None:
        return config
    shape, training = config.shape, config.training
    cost = ledger(shape, plan_of(config), map_of(config.map, shape), training.seq_len, "executed").training
    steps = round(config.budget.flops / (cost * training.rows))
    if steps < 1:
        raise UserError(f"budget.flops {config.budget.flops:g} buys {steps} steps; give more")
    warmup = round(training.schedule.warmup_steps * steps / training.steps)
    schedule = training.schedule.model_copy(update={"warmup_steps": warmup})
    return config.model_copy(update={"training": training.model_copy(update={"steps": steps, "schedule": schedule})})
