"""Learning-rate schedules: the factor of the peak rate as a function of the step.

All warm up linearly from 1 / warmup_steps to 1 and end at `final_ratio`. cosine: falls along a half cosine. wsd:
constant, then falls linearly. trapezoidal: constant, then falls as 1 − sqrt(progress).
"""

from __future__ import annotations

import math

from hybridlab.config.schedule import Schedule


def learning_rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """The factor of optimizer step `step` (0-based) of `steps`."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    start = schedule.warmup_steps
    if schedule.name != "cosine":
        start = max(start, steps - round(schedule.decay_fraction * steps))
    if step < start or steps - start <= 0:
        return 1.0
    # Over the n steps of the decay, progress is 1/n … 1, so that the last step has the final ratio.
    progress = (step - start + 1) / (steps - start)
    shape = {
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "wsd": 1 - progress,
        "trapezoidal": 1 - math.sqrt(progress),
    }[schedule.name]
    return schedule.final_ratio + (1 - schedule.final_ratio) * shape
