"""What a whole training run costs when its plan grows on the way: the ledger, integrated over the steps.

The growth operator of the run itself is driven with entropies that are all equal. Which layers it then takes does not
matter to the cost, since all layers of a shape cost the same; when it takes them does, and follows from the settings
(as long as the newest layer stays in the pool of candidates, and outside loops, which run some layers more often). Where query heads share KV heads, a run's own cost also
depends on which heads it keeps; here they are the first ones, which share the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridlab.accounting.flops import ledger
from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.config.schema import RunConfig
from hybridlab.plan.from_config import map_of, plan_of
from hybridlab.plan.plan import Plan
from hybridlab.structure.growth import Growth, growable_layers


def planned(config: RunConfig) -> Iterator[tuple[Plan, int]]:
    """(plan, for how many steps), in order, over all steps of a run."""
    base, steps = plan_of(config), config.training.steps
    if not isinstance(config.controller, EntropyGrowthConfig):
        yield base, steps
        return
    controller = config.controller
    growth = Growth(controller, config.shape.heads, growable_layers(base))
    entropies = [[1.0] * config.shape.heads] * config.shape.layers
    plan, since, done = base, 0, controller.start_step
    while done < steps:
        if growth.due(done):
            growth.act(done, entropies)
        growth.settle(done)
        following = growth.plan(base, done)
        if following != plan:
            yield plan, done - since
            plan, since = following, done
        # Nothing changes between the ends of windows and of fades.
        ends = {start + controller.fade_steps for found in growth.looped for start in found.dropped.values()}
        if growth.frozen is None:
            ends.add(done + controller.interval - (done - controller.start_step) % controller.interval)
        done = min((end for end in ends if end > done), default=steps)
    yield plan, steps - since


def final_plan(config: RunConfig) -> Plan:
    """The plan that a run ends with, with layers and heads standing for any."""
    *_, (plan, _) = planned(config)
    return plan


def training_flops(config: RunConfig, convention: str) -> float:
    """FLOPs of all steps of a run."""
    shape, training = config.shape, config.training
    attention_map = map_of(config.map, shape)
    per_step = training.rows
    return sum(
        steps * per_step * ledger(shape, plan, attention_map, training.seq_len, convention).training
        for plan, steps in planned(config)
    )


def whole_run(config: RunConfig, convention: str = "executed") -> dict[str, Any]:
    """What a run's own settings come to: tokens, training FLOPs, and what it grows to."""
    base = plan_of(config)
    last = final_plan(config)
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
