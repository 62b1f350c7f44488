"""Rows on which probes measure a model: text of the validation part, and synthetic tasks of the run's mix.

The rows of tasks are others than those of the evaluation, so that a map that a probe has chosen is not measured on the
rows that it was chosen on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hybridlab.analysis.probe import spaced_windows
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Rows, task_generator
from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import TaskRow, make_row, task_number, task_offsets
from hybridlab.evaluation.measure import task_window
from hybridlab.evaluation.text import chunks
from hybridlab.models.decoder import Transformer
from hybridlab.training.objective import Objective, make_objective

_FIRST_ROW = 10**6
"""Number of the first row of a task; evaluations count theirs from 0."""


@dataclass(frozen=True)
class Material:
    """text: (N, S) tokens. tasks: the rows of each task, by its name. offsets: the id of a task's first token.
    objective: what the model was trained on."""

    text: Tensor
    tasks: dict[str, list[TaskRow]]
    offsets: dict[str, int]
    objective: Objective

    def tokens(self, task: str) -> Tensor:
        """(N, S): the rows of a task."""
        return torch.from_numpy(np.stack([row.tokens for row in self.tasks[task]]) + self.offsets[task])


def material(model: Transformer, corpus: Corpus, config: RunConfig, length: int, rows: int) -> Material:
    """`rows` windows of text of `length` tokens, and as many rows of each task; UserError if the text is too short."""
    offsets = {name: corpus.vocab + first for name, first in task_offsets(config.data.mix.tasks)[0].items()}
    numbers = range(_FIRST_ROW, _FIRST_ROW + rows)
    tasks = {name: [make_row(name, length, task_generator(task_number(name), i)) for i in numbers] for name in offsets}
    return Material(spaced_windows(model, corpus, length, rows), tasks, offsets, make_objective(config, corpus))


def text_losses(model: Transformer, used: Material) -> np.ndarray:
    """(N,): the mean loss of each window of the text, in nats per token."""
    text, objective, device = used.text.cpu().numpy(), used.objective, next(model.parameters()).device
    losses: list[float] = []
    for numbers in chunks(range(len(text)), model, text.shape[1]):
        tokens = text[numbers]
        batch = objective.measured(Rows(tokens, np.ones(tokens.shape, dtype=np.float32)), numbers).to(device)
        with torch.no_grad():
            losses += objective.metrics(model(**batch.inputs), batch)["loss"].tolist()
    return np.array(losses)


def window_of(model: Transformer, config: RunConfig, window: int | None) -> int | None:
    """The window that a probe asks about: its own setting, that of the evaluation, or the only one of the map."""
    return window if window is not None else task_window(model.attention_map, config)


NO_WINDOW = "this run names no window; set --window N, or evaluation.task_window in the run"
