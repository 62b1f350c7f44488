"""A budget of training FLOPs turned into steps: `--set budget.flops=2e14`."""

from __future__ import annotations

from hybridlab.accounting.flops import ledger
from hybridlab.accounting.schedule_cost import training_flops
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import structure_of
from hybridlab.errors import UserError


def within_budget(config: RunConfig) -> RunConfig:
    """The configuration with the number of steps that its budget pays for, unchanged if it has no budget. A warm-up
    keeps its share of the steps.

    The cost of a step is that of the first plan; a run that grows loops uses more than its budget. Where layers are
    added in stages, which are shares of the run, it is the mean over the stages.
    """
    if config.budget is None:
        return config
    training = config.training
    cost = _cost_of_a_step(config)
    steps = round(config.budget.flops / cost)
    if steps < 1:
        raise UserError(f"budget.flops {config.budget.flops:g} buys {steps} steps; give at least {cost:.3g}")
    last = max(config.evaluation.at_steps or [0])
    if last > steps:
        raise UserError(f"evaluation.at_steps: budget.flops buys {steps} steps, there is no step {last}; leave it out")
    share = steps / training.steps
    training = training.model_copy(update={"steps": steps, "schedule": training.schedule.rescaled(share)})
    paid = config.model_copy(update={"training": training})
    controller = config.controller and config.controller.rescaled(paid, share)
    return paid.model_copy(update={"controller": controller})


def _cost_of_a_step(config: RunConfig) -> float:
    """Training FLOPs, as executed."""
    training = config.training
    if config.controller is not None and config.controller.adds_layers:
        return training_flops(config, "executed") / training.steps
    return ledger(structure_of(config), training.seq_len, "executed").training * training.rows
