"""Measuring the model of a run between two of its steps, without an effect on its training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hybridlab.evaluation.text import Text
from hybridlab.training.engine import autocast
from hybridlab.training.hooks import TrainingRun


@contextmanager
def as_measured(run: TrainingRun, step: int) -> Iterator[Text]:
    """A context in which `run.model` is to be measured as optimizer step `step` runs it; its time is no time of
    training. Yields the validation text, with the arguments of the forward pass."""
    with run.paused():
        context = autocast(run.device, run.precision)
        training = run.model.training
        run.model.eval()
        try:
            yield Text(run.objective, run.corpus, ("validation",), context, run.evaluation_inputs(step))
        finally:
            run.model.train(training)
