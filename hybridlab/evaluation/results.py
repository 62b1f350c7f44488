"""Types of a model's evaluation results, in which every number is a `Measurement` {value, stderr, n}, and a paper's own
set of benchmarks: its tasks, their shots and measures, and the columns of its tables, as data.

    load_suite("spiral").asked()    # [("lambada_openai", 0), …]

The suites are the files of presets/suites/. A column is the mean of its parts, in percent if the paper prints percent;
it is not measured if one of its parts is not.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import yaml
from pydantic import Field

from hybridlab.config.loading import preset_folder, preset_names
from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest
from hybridlab.statistics import NOT_MEASURED, Measurement, Typed, block_means, known


class LossResult(Typed):
    """Validation on evenly spaced windows. loss: nats per token. windows: the mean loss of each window. Of a fine-tuned
    model, evenly spaced examples and the loss of each, in the unit of its objective, and nothing else. blocks: the mean
    of each ten neighbours, which a record outside its run has instead of windows.

    perplexity, bits_per_byte: not measured where a model finds masked tokens, since the losses of these do not add up
    to the likelihood of the text. pseudo_perplexity: there, e to the power of the loss over the masked tokens.

    sources: the same for each source of a mixture, by its name; the whole has the sources in their shares of training.
    """

    loss: Measurement
    perplexity: Measurement
    bits_per_byte: Measurement
    windows: list[float]
    sources: dict[str, LossResult] = {}
    pseudo_perplexity: Measurement | None = None
    blocks: list[float] = []

    @property
    def in_blocks(self) -> list[float]:
        """The mean loss of each ten neighbouring windows, from which its error is computed."""
        return self.blocks or block_means(self.windows).tolist()


NO_LOSS = LossResult(loss=NOT_MEASURED, perplexity=NOT_MEASURED, bits_per_byte=NOT_MEASURED, windows=[])


class TaskLoss(Typed):
    """Cross-entropy of the right answer among the options, in nats per answer: a guess among n options costs ln(n).

    all: over all answers. The others are parts by distance; None where a window has no meaning, see `TaskResult`.
    """

    all: Measurement
    inside: Measurement | None = None
    relayed: Measurement | None = None
    outside: Measurement | None = None
    far: Measurement | None = None


class TaskResult(Typed):
    """Accuracy in a synthetic task, over all answers and by the distance to the fact that they depend on.

    window: the w that separates inside from outside; if it is None, there is no split. reach: the number of tokens back
    that the windows of all layers together reach. inside: distance < w. far: all others; of these, relayed are within
    the reach and outside are beyond it. loss: the same parts as losses.

    Answers of one row see the same tokens, so that rows are the units of all standard errors: with N answers, their
    mean m, and the n_r answers of row r that sum up to s_r, the variance is R / (R − 1) · Σ (s_r − n_r m)² / N² over
    the R rows. n counts answers. Older records have no `loss` and no `far`, and binomial errors.
    """

    chance: float
    window: int | None
    reach: int | None = None
    all: Measurement
    inside: Measurement | None = None
    relayed: Measurement | None = None
    outside: Measurement | None = None
    far: Measurement | None = None
    loss: TaskLoss | None = None


class ChoiceResult(Typed):
    """Multiple choice by log-likelihood, on one kind of question.

    accuracy: share of items whose right option is the likeliest. loss: nats among the options; a guess among n costs
    ln(n). shots: solved examples before each item. prompt_tokens: of the longest prompt, with these. training_tokens:
    length of a training sequence; a longer prompt has positions that the model was not trained on. digest: identifies
    the items and examples. The units of the errors are items.
    """

    accuracy: Measurement
    loss: Measurement
    chance: float
    shots: int
    prompt_tokens: int | None = None
    training_tokens: int | None = None
    digest: str | None = None


class FinetuneResult(Typed):
    """How well a fine-tuned model does its task.

    metrics: the task's measures, the main one first, on the part that is measured; those on a second part have its name
    before theirs, as `mismatched_accuracy`. baseline: the same measures for a guess that is the same for all examples:
    the commonest class, option, answer or learned token of the training part, or its mean number; empty if the files of
    that part are gone. examples: number in each part.
    windows: of spans, the windows that their contexts fill. How the errors are made: evaluation/finetuned.py.
    """

    task: str
    metrics: dict[str, Measurement]
    baseline: dict[str, Measurement]
    examples: dict[str, int]
    windows: int | None = None


class BenchmarkResult(Typed):
    """A task of lm-eval, or a group of tasks.

    metrics: the task's measures as lm-eval computes them, each with standard error and n, the number of examples; a
    measure of a filtered answer has the filter's name after its own (`exact_match_strict-match`). parts: of a group,
    the measures of each task. shots: solved examples before each question. limit: only so many examples were asked.
    harness, version: of lm-eval and of the task. max_length: tokens of a row at most; longer ones lost their beginning.
    data: the files of each split below the data root, or the dataset of the hub. examples_from: the split that gave the
    solved examples, where the task's own is not at hand. skipped: broken lines that were left out. options: of
    lm-eval's own options those that change a result. samples: task → lm-eval's file of its questions and answers.
    """

    task: str
    metrics: dict[str, Measurement]
    parts: dict[str, dict[str, Measurement]] = {}
    shots: int
    limit: int | None = None
    harness: str
    version: str | None = None
    max_length: int
    batch_size: int
    data: dict[str, list[str]] = {}
    examples_from: str | None = None
    skipped: int = 0
    options: dict[str, Any] = {}
    samples: dict[str, str] = {}


class AtStep(Typed):
    """What `evaluation.at_steps` measures at one step. choices: the result of each kind of question, probes: of each
    probe, by name; finetune: of the task of a fine-tuned model."""

    validation: LossResult
    tasks: dict[str, TaskResult] = {}
    choices: dict[str, ChoiceResult] = {}
    probes: dict[str, dict[str, Any]] = {}
    finetune: FinetuneResult | None = None


class Results(Typed):
    """All of a run's results. causality: the largest relative change of an earlier logit in the causality probe; for an
    encoder, that the probe does not apply; for a control that lets tokens see later ones on purpose, that it does.

    validation: loss in nats per token, perplexity, bits per byte. extrapolation: the same by multiple of the training
    length. tasks: accuracy and loss by task. choices: the same for questions with options. probes: the result of each
    probe, by its name. at: by step, as text, what was measured then (`evaluation.at_steps`). lm_eval: the result of
    each task of lm-eval by its name, as `arc_easy`, or as `arc_easy@5` with five solved examples;
    lm_eval_missing: why a task that the settings ask for was not measured. suites: of a paper's suite, its columns that
    were measured, in the paper's units.
    finetune: the measures of a fine-tuned model's task; of the others, such a model has only loss and probes. Every
    number is a `Measurement` with value, stderr and n; the value is None if nothing was measured.

        results = hybridlab.evaluate("runs/first")
        results.validation.loss.value, results.validation.loss.stderr, results.validation.loss.n
    """

    causality: dict[str, float | str]
    validation: LossResult
    extrapolation: dict[str, LossResult] = {}
    tasks: dict[str, TaskResult] = {}
    choices: dict[str, ChoiceResult] = {}
    probes: dict[str, dict[str, Any]] = {}
    at: dict[str, AtStep] = {}
    finetune: FinetuneResult | None = None
    lm_eval: dict[str, BenchmarkResult] = {}
    lm_eval_missing: dict[str, str] = {}
    suites: dict[str, dict[str, Measurement]] = {}

    @property
    def choices_mean(self) -> Measurement:
        """The mean accuracy over all kinds of questions; its error is that of a stratified sample."""
        accuracies = [result.accuracy for result in self.choices.values()]
        if not accuracies:
            return NOT_MEASURED
        error = math.hypot(*(accuracy.stderr or 0.0 for accuracy in accuracies)) / len(accuracies)
        value = sum(known(accuracy) for accuracy in accuracies) / len(accuracies)
        return Measurement(value=value, stderr=error, n=sum(accuracy.n for accuracy in accuracies))


# ---- suites ----


class Column(Strict):
    """A column of the paper's table. tasks: of lm-eval, or hybridlab's own; several are averaged. columns: instead, the
    mean of these columns. metric: as lm-eval calls it. percent: whether the paper prints percent. missing: why nothing
    can be measured."""

    name: str
    tasks: list[str] = []
    columns: list[str] = []
    metric: str | None = None
    shots: Annotated[int, Field(ge=0)] = 0
    percent: bool = True
    missing: str | None = None


class Suite(Strict):
    """source: the place in the paper. notes: what the paper leaves open, and how it is done here."""

    name: str
    title: str
    source: str
    notes: list[str] = []
    columns: list[Column]

    def asked(self) -> list[tuple[str, int]]:
        """The tasks with their shots, each once."""
        return list(dict.fromkeys((task, column.shots) for column in self.columns for task in column.tasks))

    @property
    def not_here(self) -> dict[str, str]:
        """Columns that cannot be measured at all, with the reason."""
        return {column.name: column.missing for column in self.columns if column.missing}

    def measured(self, results: dict[str, BenchmarkResult]) -> dict[str, Measurement]:
        """The columns from the results of the tasks."""
        cells: dict[str, Measurement] = {}
        for column in self.columns:
            parts = [cells[name] for name in column.columns] or [_value(results, task, column) for task in column.tasks]
            cells[column.name] = _mean(parts)
        return cells


def load_suite(name: str) -> Suite:
    """A suite by its name; UserError if there is none."""
    names = preset_names("suites")
    if name not in names:
        raise UserError(f"--suite {name}: there is no such suite; {nearest(name, names)}")
    written: dict[str, Any] = yaml.safe_load((preset_folder("suites") / f"{name}.yaml").read_text(encoding="utf-8"))
    return Suite(name=name, **written)


def _value(results: dict[str, BenchmarkResult], task: str, column: Column) -> Measurement:
    result = results.get(f"{task}@{column.shots}" if column.shots else task)
    measured = result.metrics.get(column.metric or "", NOT_MEASURED) if result else NOT_MEASURED
    return measured.scaled(100) if column.percent else measured


def _mean(parts: list[Measurement]) -> Measurement:
    """The mean of measurements with the error of a stratified sample."""
    if not parts or any(part.value is None for part in parts):
        return NOT_MEASURED
    errors = [part.stderr for part in parts if part.stderr is not None]
    error = sum(e * e for e in errors) ** 0.5 / len(parts) if len(errors) == len(parts) else None
    value = sum(map(known, parts)) / len(parts)
    return Measurement(value=value, stderr=error, n=sum(part.n for part in parts))
