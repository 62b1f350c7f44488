"""Types of a model's evaluation results: every number is a `Measurement` {value, stderr, n}."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from hybridlab.statistics import NOT_MEASURED, Measurement


class _Typed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LossResult(_Typed):
    """Validation on evenly spaced windows. loss: nats per token. windows: the mean loss of each window.

    sources: the same for each source of a mixture, by its name; the whole has the sources in their shares of training.
    """

    loss: Measurement
    perplexity: Measurement
    bits_per_byte: Measurement
    windows: list[float]
    sources: dict[str, LossResult] = {}


NO_LOSS = LossResult(loss=NOT_MEASURED, perplexity=NOT_MEASURED, bits_per_byte=NOT_MEASURED, windows=[])


class TaskResult(_Typed):
    """Accuracy in a synthetic task, over all answers and by the distance to the fact that they depend on.

    window: the w that separates inside from outside; if it is None, there is no split. reach: the number of tokens back
    that the windows of all layers together reach.
    """

    chance: float
    window: int | None
    reach: int | None = None
    all: Measurement
    inside: Measurement | None = None
    relayed: Measurement | None = None
    outside: Measurement | None = None


class Results(_Typed):
    """All of a run's results. causality: the largest relative change of an earlier logit in the causality probe.

    validation: loss in nats per token, perplexity, bits per byte. extrapolation: the same by multiple of the training
    length. tasks: accuracy by task. probes: the result of each probe, by its name. Every number is a `Measurement` with
    value, stderr and n; the value is None if nothing was measured.

        results = hybridlab.evaluate("runs/first")
        results.validation.loss.value, results.validation.loss.stderr, results.validation.loss.n
    """

    causality: dict[str, float]
    validation: LossResult
    extrapolation: dict[str, LossResult] = {}
    tasks: dict[str, TaskResult] = {}
    probes: dict[str, dict[str, Any]] = {}
