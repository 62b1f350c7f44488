"""Continuing in the data after the batches that the parent run has read."""

from __future__ import annotations

from hybridlab.config.schema import RunConfig
from hybridlab.config.training import Training
from hybridlab.data.batches import steps_seen


def continued(before: Training, config: RunConfig) -> RunConfig:
    """The configuration of a run that starts from another one: with the batches after those that its weights have
    read, or, where it goes on with the steps of that run, in the same order. before: the training settings there."""
    if config.init is None or not config.init.whole:
        return after(before, config)
    training = config.training.model_copy(update={"skip_steps": before.skip_steps})
    return config.model_copy(update={"training": training})


def after(before: Training, config: RunConfig) -> RunConfig:
    """The configuration that skips the batches which its parent has read. before: the parent's training settings."""
    training = config.training.model_copy(update={"skip_steps": steps_seen(before, config.training)})
    return config.model_copy(update={"training": training})
