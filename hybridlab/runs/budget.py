"""What of a configuration follows from others: the steps that a budget of FLOPs buys, and the batches after those of
the run that it starts from. Reports know runs by such configurations, and so no torch is loaded here."""

from __future__ import annotations

from hybridlab.config.edits import LastLayers, TopEntropy
from hybridlab.config.maps import FromRun, FullMap
from hybridlab.config.method import same_kind
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import steps_seen
from hybridlab.errors import UserError
from hybridlab.models.ledger.summary import training_flops

# ---- data after the batches that the parent has read ----


def continued(before: RunConfig, config: RunConfig) -> RunConfig:
    """The configuration of a run that starts from another one: with the batches after those that its weights have
    read, or, where it goes on with the steps of that run, in the same order. before: the settings there."""
    goes_on = config.init is not None and config.init.whole
    skipped = before.training.skip_steps if goes_on else steps_seen(before, config)
    return config.model_copy(update={"training": config.training.model_copy(update={"skip_steps": skipped})})


# ---- a budget of FLOPs, in steps ----


def within_budget(config: RunConfig) -> RunConfig:
    """The configuration with the number of steps that its budget pays for, unchanged if it has no budget. A warm-up
    keeps its share of the steps. What a run costs that grows follows from all of its structures."""
    if config.budget is None:
        return config
    flops, tried = config.budget.flops, dict[int, RunConfig]()
    cost = executed_flops(config) / config.training.steps
    # Growth at fixed steps makes the mean cost of a step depend on their number, which may go to and fro between two.
    while (steps := round(flops / cost)) not in tried:
        if steps < 1:
            raise UserError(f"budget.flops {flops:g} buys {steps} steps; give at least {cost:.3g}")
        tried[steps] = _with_steps(config, steps)
        cost = executed_flops(tried[steps]) / steps
    paid = min(tried.values(), key=lambda candidate: abs(executed_flops(candidate) - flops))
    steps = paid.training.steps
    step_lists = {"evaluation.at_steps": paid.evaluation.at_steps, "runtime.keep_steps": paid.runtime.keep_steps}
    for name, numbers in step_lists.items():
        if (last := max(numbers or [0])) > steps:
            raise UserError(f"{name}: budget.flops buys {steps} steps, there is no step {last}; leave it out")
    return paid


def executed_flops(config: RunConfig) -> float:
    """FLOPs of all steps with all pairs of tokens, for which masks and entropies of other runs need not be known."""
    return training_flops(with_examples(config), "executed")


def with_examples(config: RunConfig) -> RunConfig:
    """The configuration with examples instead of what other runs decide, at the same cost: as many layers as
    entropies will choose, and full attention for masks of another run, which costs the same where all pairs are
    computed."""
    edits = []
    for edit in config.plan:
        choice = getattr(edit, "layers", None)
        if isinstance(choice, TopEntropy):
            edit = edit.model_copy(update={"layers": LastLayers(last=choice.n)})
        edits.append(edit)
    unknown = isinstance(config.map, FromRun)
    return config.model_copy(update={"plan": edits, **({"map": FullMap(kind="full")} if unknown else {})})


def _with_steps(config: RunConfig, steps: int) -> RunConfig:
    """The configuration with another number of steps, and what is a share of them."""
    training, share = config.training, steps / config.training.steps
    training = training.model_copy(update={"steps": steps, "schedule": training.schedule.rescaled(share)})
    paid = config.model_copy(update={"training": training})
    controller = config.controller
    if controller is not None:
        controller = same_kind(controller, controller.rescaled(paid, share), "rescaled")
    return paid.model_copy(update={"controller": controller})
