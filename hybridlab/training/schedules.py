"""Learning-rate schedules as a factor of the peak, a function of the step alone.

cosine: from 1 to `final_ratio` after the warm-up. wsd: constant, then linear to `final_ratio`.
trapezoidal: constant, then 1 − sqrt(progress) to `final_ratio`. All warm up linearly from 1 / warmup_steps.
"""

from __future__ import annotations

import math

from hybridlab.config.controllers import Schedule


def learning_rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """The factor in optimizer step `step` (0-based) of `steps`."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    start = schedule.warmup_steps
    if schedule.name != "cosine":
        start = max(start, steps - round(schedule.decay_fraction * steps))
    if step < start or steps - start <= 0:
        return 1.0
    # The last step reaches the final ratio: progress runs over the steps that decay, 1/n … 1.
    progress = (step - start + 1) / (steps - start)
    shape = {
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "wsd": 1 - progress,
        "trapezoidal": 1 - math.sqrt(progress),
    }[schedule.name]
    return schedule.final_ratio + (1 - schedule.final_ratio) * shape
