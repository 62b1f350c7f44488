"""Continuing in the data after the batches that the parent run has read."""

from __future__ import annotations

from hybridlab.config.schema import RunConfig, Training
from hybridlab.data.batches import steps_seen


def after(before: Training, config: RunConfig) -> RunConfig:
    """The configuration that skips the batches which its parent has read. before: the parent's training settings."""
    training = config.training.model_copy(update={"skip_steps": steps_seen(before, config.training)})
    return config.model_copy(update={"training": training})
