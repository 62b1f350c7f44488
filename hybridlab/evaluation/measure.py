"""Validation loss, perplexity, and accuracy and loss in synthetic tasks, each with n and standard error.

Validation uses evenly spaced windows of text, the same for every model on the same data. Tasks are split by the
distance from a query to the fact that it asks for: inside the attention window w (distance < w); relayed, outside one
window but within the reach of the windows of all visits together; outside this reach (distance > visits · (w − 1)),
where a model without full attention can only guess; far, the last two together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import task_window, window_reach
from hybridlab.data.batches import Windows, check_vocabulary, spaced, task_generator
from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import make_row, task_number, task_offsets
from hybridlab.evaluation.causality import causality
from hybridlab.evaluation.choices import choice_results
from hybridlab.evaluation.finetuned import chat_loss, finetune_result
from hybridlab.evaluation.results import NO_LOSS, LossResult, Results, TaskLoss, TaskResult
from hybridlab.evaluation.text import Text, answers, chunks
from hybridlab.models.decoder import Transformer
from hybridlab.registry import PROBES, TASKS
from hybridlab.statistics import Measurement, clustered_mean, mean_and_error
from hybridlab.training.machine import autocast
from hybridlab.training.objective import Answers, Batch, Objective, make_objective
from hybridlab.training.world import world


def measure(model: Transformer, config: RunConfig, corpus: Corpus, precision: str, whole: bool = False) -> Results:
    """All results of a model under a run's settings, after the causality probe (in fp32).

    whole: use the whole corpus for validation, for a model that was trained on another one.
    """
    device = model.device
    model.eval()
    check_vocabulary(corpus, config.data, model.shape.vocab, trained=True)
    splits = ("train", "validation") if whole else ("validation",)
    text = Text(make_objective(config, corpus), corpus, splits, autocast(device, precision))
    names = config.evaluation.all_probes
    # What gives the model another plan or map takes it apart.
    apart = names or model.attention_map.sealed() != model.attention_map
    probed = world().whole(model) if apart else model
    used = set().union(*model.kernels_used(config.training.seq_len, device, precision != "fp32").values())
    # A kind with a computation of its own runs no kernel by name; the model is probed all the same.
    probe_result = causality(probed, config.training.seq_len, sorted(used) or [model.kernel])
    factors = config.evaluation.length_factors or []
    return Results(
        causality=probe_result,
        extrapolation={str(factor): validation(model, config, text, factor) for factor in factors},
        **at_any_step(model, config, text, names, probed),
    )


def at_any_step(
    model: Transformer, config: RunConfig, text: Text, names: Iterable[str], probed: Transformer
) -> dict[str, Any]:
    """What is measured at the end of a run and between its steps, as the fields of `AtStep`. names: of the probes,
    which measure `probed`, with the settings of `evaluation.probe_settings`; see `Probe.for_record`."""
    settings = config.evaluation.probe_settings or {}
    return {
        "validation": validation(model, config, text),
        "tasks": task_results(model, config, text),
        "choices": choice_results(model, config, text),
        "probes": {n: PROBES.get(n).for_record(probed, text.corpus, config, settings.get(n, {})) for n in names},
        "finetune": finetune_result(model, text),
    }


def validation(
    model: Transformer, config: RunConfig, text: Text, factor: int = 1, most_windows: int | None = None
) -> LossResult:
    """Mean loss in nats per token over evenly spaced windows; the standard error is over windows. Where tokens are
    masked at random, they are the same for every model.

    For an objective that does not read text, over evenly spaced examples, with the loss alone. Of several sources, each
    is measured on its share of the windows, and the whole is their mean by weight. factor:
    length of a window in training lengths; there are fewer windows by this factor, for equally many tokens.
    most_windows: instead of the setting.
    """
    count = max(1, (most_windows or config.evaluation.validation_windows) // factor)
    if not text.objective.reads_text:
        return _example_loss(model, config, text, count)
    if not text.corpus.mixed:
        return _loss(model, config, text, factor, count)
    shares = {part.name: max(1, round(part.weight * count)) for part in text.corpus.mixed}
    sources = {
        part.name: _loss(model, config, replace(text, corpus=part.corpus), factor, shares[part.name])
        for part in text.corpus.mixed
    }
    return _mean_by_weight(sources, text)


def _mean_by_weight(sources: dict[str, LossResult], text: Text) -> LossResult:
    """The loss of a mixture from those of its sources; the standard error is that of a stratified sample."""
    if not all(result.windows for result in sources.values()):
        return NO_LOSS.model_copy(update={"sources": sources})
    loss = error = size = 0.0
    for part in text.corpus.mixed:
        measured = sources[part.name].loss
        loss += part.weight * (measured.value or 0.0)
        error = math.hypot(error, part.weight * (math.nan if measured.stderr is None else measured.stderr))
        size += part.weight * part.corpus.bytes_per_token(*text.splits)
    windows = [value for result in sources.values() for value in result.windows]
    measured = Measurement(value=loss, stderr=None if math.isnan(error) else error, n=len(windows))
    return _result(measured, size, windows, text.objective).model_copy(update={"sources": sources})


def _result(loss: Measurement, size: float, windows: list[float], objective: Objective) -> LossResult:
    """size: bytes of text per token."""
    assert loss.value is not None, "there is at least one window"
    value = math.exp(loss.value) if loss.value < 700 else None  # else it is too large for a float
    # The delta method: the derivative of exp is exp.
    error = None if value is None or loss.stderr is None else value * loss.stderr
    perplexity = Measurement(value=value, stderr=error, n=loss.n)
    if not objective.likelihood:
        return NO_LOSS.model_copy(update={"loss": loss, "windows": windows, "pseudo_perplexity": perplexity})
    bits = Measurement(value=loss.value / math.log(2) / size, n=loss.n)
    return LossResult(loss=loss, perplexity=perplexity, bits_per_byte=bits, windows=windows)


def _loss(model: Transformer, config: RunConfig, text: Text, factor: int, count: int) -> LossResult:
    """The loss on a text of one source, over at most `count` windows."""
    length = factor * config.training.seq_len
    windows = Windows([shard for split in text.splits for shard in getattr(text.corpus, split)], length)
    if not len(windows):
        return NO_LOSS

    def measured(numbers: Sequence[int]) -> list[float]:
        return _losses(model, text, text.objective.measured(windows.rows(numbers), numbers))

    chosen = chunks(spaced(len(windows), count), model, length)
    losses = list(chain(*world().map(measured, chosen, "validation")))
    windows_losses = [round(value, 5) for value in losses]
    return _result(mean_and_error(losses), text.corpus.bytes_per_token(*text.splits), windows_losses, text.objective)


def _example_loss(model: Transformer, config: RunConfig, text: Text, count: int) -> LossResult:
    """The mean loss of an objective that does not read text, over at most `count` of its examples."""
    if isinstance(text.objective, Answers):
        return chat_loss(model, text.objective, text, count)
    examples = text.objective.examples(config, text.corpus, count)
    losses = list(chain(*world().map(lambda batch: _losses(model, text, batch), examples, "examples")))
    windows = [round(value, 5) for value in losses]
    return NO_LOSS.model_copy(update={"loss": mean_and_error(losses), "windows": windows})


def _losses(model: Transformer, text: Text, batch: Batch) -> list[float]:
    batch = batch.to(model.device)
    with torch.no_grad(), text.context:
        return text.objective.metrics(model(**batch.inputs, **text.inputs), batch)["loss"].tolist()


def task_results(model: Transformer, config: RunConfig, text: Text) -> dict[str, TaskResult]:
    """The result of every task in the run's mix, by its name."""
    window = task_window(model.attention_map, config)
    first, offsets = text.corpus.vocab, task_offsets(config.data.mix.tasks)[0]
    return {task: task_result(model, config, text, task, first + offset, window) for task, offset in offsets.items()}


def task_result(
    model: Transformer, config: RunConfig, text: Text, task: str, offset: int, window: int | None
) -> TaskResult:
    """Accuracy and loss among the possible answers, split by distance if the window is known. offset: id of the task's
    first token."""
    length, number = config.training.seq_len, task_number(task)
    rows = [make_row(task, length, task_generator(number, i)) for i in range(config.evaluation.task_rows)]
    right, losses = answers(model, rows, offset, text.context, text.inputs, text.objective)
    distances = np.concatenate([row.distances for row in rows])
    numbers = np.repeat(np.arange(len(rows)), [len(row.answers) for row in rows])
    chosen = {"all": np.concatenate([row.open for row in rows])}
    reach = None
    if window is not None:
        reach = window_reach(model.plan, window)
        inside, outside = distances < window, distances > reach
        places = {"inside": inside, "relayed": ~inside & ~outside, "outside": outside & ~inside, "far": ~inside}
        chosen |= {name: chosen["all"] & place for name, place in places.items()}
    accuracy = {name: clustered_mean(right[part], numbers[part]) for name, part in chosen.items()}
    loss = TaskLoss(**{name: clustered_mean(losses[part], numbers[part]) for name, part in chosen.items()})
    return TaskResult(chance=TASKS.get(task).chance, window=window, reach=reach, loss=loss, **accuracy)
