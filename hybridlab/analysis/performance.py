"""How well a changed model still does: loss on text, synthetic tasks of its run, and multiple choice.

`suite` gathers what is measured, once; `performance` measures one model on it, `table` several as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hybridlab.analysis.material import Material, material, text_losses
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.evaluation.text import answers
from hybridlab.models.decoder import Transformer
from hybridlab.registry import TASKS


@dataclass(frozen=True)
class Suite:
    """text and tasks: see `Material`. questions: name of a multiple choice task → (items, solved examples)."""

    config: RunConfig
    tokenizer: Tokenizer
    used: Material
    questions: dict[str, tuple[Sequence[Any], Sequence[Any]]]

    @property
    def chance(self) -> dict[str, dict[str, float]]:
        """tasks, choices: the accuracy of guessing."""
        choices = {name: 1 / len(asked[0].options) for name, (asked, _) in self.questions.items()}
        return {"tasks": {name: TASKS.get(name).chance for name in self.used.tasks}, "choices": choices}


@dataclass(frozen=True)
class Performance:
    """text (N,): the loss of each window, in nats per token. tasks, choices: by name (right, loss in nats among the
    options) of each answer."""

    text: np.ndarray
    tasks: dict[str, tuple[np.ndarray, np.ndarray]]
    choices: dict[str, tuple[np.ndarray, np.ndarray]]


def suite(model: Transformer, corpus: Corpus, config: RunConfig, seq_len: int, rows: int, items: int) -> Suite:
    """`rows` windows of validation text and rows of each of the run's tasks; the first `items` of each of the multiple
    choice tasks that the run's evaluation asks, with as many solved examples."""
    return Suite(config, corpus.tokenizer, material(model, corpus, config, seq_len, rows), _questions(config, items))


def _questions(config: RunConfig, count: int) -> dict[str, tuple[Sequence[Any], Sequence[Any]]]:
    settings = getattr(config.evaluation, "choices", None)
    if settings is None:
        return {}
    from hybridlab.data.primitives import items, solved_examples

    return {
        name: (
            items(name, min(count, settings.items), settings.seed),
            solved_examples(name, settings.shots, settings.seed),
        )
        for name in settings.tasks
    }


def performance(measured: Suite, model: Transformer) -> Performance:
    """One model on everything."""
    tasks = {}
    for name, rows in measured.used.tasks.items():
        right, losses = answers(model, rows, measured.used.offsets[name], objective=measured.used.objective)
        is_open = np.concatenate([row.open for row in rows])
        tasks[name] = (right[is_open], losses[is_open])
    choices = {name: _chosen(measured, model, *asked) for name, asked in measured.questions.items()}
    return Performance(text_losses(model, measured.used), tasks, choices)


def _chosen(
    measured: Suite, model: Transformer, asked: Sequence[Any], before: Sequence[Any]
) -> tuple[np.ndarray, np.ndarray]:
    from hybridlab.evaluation.choices import score_choices, tokenized

    scores = score_choices(model, tokenized(measured.tokenizer, asked, before))
    correct = np.array([item.answer for item in asked])
    highest = scores.max(1, keepdims=True)
    among = scores - highest - np.log(np.exp(scores - highest).sum(1, keepdims=True))
    return scores.argmax(1) == correct, -among[np.arange(len(correct)), correct]


def table(found: Sequence[Performance], base: Performance | None = None) -> dict[str, Any]:
    """loss [i] of the models in nats per token; tasks.NAME and choices.NAME, each accuracy [i] and loss [i]. With
    `base`, also stderr [i]: of the rise of the loss over that of `base`, paired by window."""
    result: dict[str, Any] = {"loss": [_mean(one.text) for one in found]}
    if base is not None:
        rises = [one.text - base.text for one in found]
        result["stderr"] = [
            round(float(rise.std(ddof=1) / len(rise) ** 0.5), 5) if len(rise) > 1 else None for rise in rises
        ]
    for part in ("tasks", "choices"):
        names = getattr(found[0], part) if found else {}
        result[part] = {
            name: {
                "accuracy": [_mean(getattr(one, part)[name][0]) for one in found],
                "loss": [_mean(getattr(one, part)[name][1]) for one in found],
            }
            for name in names
        }
    return result


def _mean(values: np.ndarray) -> float | None:
    """None if nothing was measured."""
    return round(float(values.mean()), 5) if len(values) else None
