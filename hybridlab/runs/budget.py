"""A budget of training FLOPs turned into steps: `--set budget.flops=2e14`."""

from __future__ import annotations

from hybridlab.accounting.flops import ledger
from hybridlab.config.controllers import MaskLearningConfig, Schedule
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.plan.from_config import structure_of


def within_budget(config: RunConfig) -> RunConfig:
    """The configuration with the number of steps that its budget pays for, unchanged if it has no budget. A warm-up
    keeps its share of the steps.

    The cost of a step is that of the first plan; a run whose plan grows uses more than its budget.
    """
    if config.budget is None:
        return config
    training = config.training
    cost = ledger(structure_of(config), training.seq_len, "executed").training
    steps = round(config.budget.flops / (cost * training.rows))
    if steps < 1:
        raise UserError(
            f"budget.flops {config.budget.flops:g} buys {steps} steps; give at least {cost * training.rows:.3g}"
        )
    last = max(config.evaluation.at_steps or [0])
    if last > steps:
        raise UserError(f"evaluation.at_steps: budget.flops buys {steps} steps, there is no step {last}; leave it out")
    share = steps / training.steps
    training = training.model_copy(update={"steps": steps, "schedule": _stretched(training.schedule, share)})
    controller = config.controller
    if isinstance(controller, MaskLearningConfig):
        controller = controller.model_copy(update={"schedule": _stretched(controller.schedule, share)})
    return config.model_copy(update={"training": training, "controller": controller})


def _stretched(schedule: Schedule, share: float) -> Schedule:
    return schedule.model_copy(update={"warmup_steps": round(schedule.warmup_steps * share)})
