"""The answers that a model gives in rows of a synthetic task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hybridlab.data.tasks import TaskRow
from hybridlab.evaluation.text import chunks
from hybridlab.models.decoder import Transformer
from hybridlab.training.objective import NextToken, Objective
from hybridlab.training.world import world


def answers(
    model: Transformer,
    rows: list[TaskRow],
    offset: int,
    context: AbstractContextManager | None = None,
    inputs: Mapping[str, Any] | None = None,
    objective: Objective | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Of each answer of these rows, one row after another: whether it is right, and its loss in nats, as a choice among
    the answer's options, so that a guess among n costs ln(n).

    offset: id of the task's first token. context: the precision of the model's computations; by default that of its
    weights. inputs: further arguments of the forward pass. objective: what the model was trained on, by default the
    next token; a model that finds masked tokens reads all answers of a row as masked.
    """
    device, context = next(model.parameters()).device, context or nullcontext()
    asks = objective or NextToken()

    def answered(part: list[TaskRow]) -> tuple[np.ndarray, np.ndarray]:
        right, losses = [], []
        tokens = torch.from_numpy(np.stack([row.tokens for row in part]) + offset).to(device)
        with torch.no_grad(), context:
            logits = model(asks.hidden(tokens, _marked(part).to(device)), **(inputs or {})).logits.float()
        for scores, row in zip(logits, part, strict=True):
            options = torch.from_numpy(row.options + offset).to(device)
            true = torch.from_numpy(row.tokens[row.answers] + offset).to(device)
            among = scores[row.answers - asks.before].gather(1, options)
            right.append((options.gather(1, among.argmax(1, keepdim=True))[:, 0] == true).cpu().numpy())
            place = (options == true[:, None]).int().argmax(1)
            losses.append(F.cross_entropy(among, place, reduction="none").cpu().numpy())
        return np.concatenate(right), np.concatenate(losses)

    right, losses = zip(*world().map(answered, chunks(rows, model, len(rows[0].tokens))), strict=True)
    return np.concatenate(right), np.concatenate(losses)


def _marked(rows: list[TaskRow]) -> torch.Tensor:
    """(R, S) bool: where the answers of these rows are."""
    marked = torch.zeros(len(rows), len(rows[0].tokens), dtype=torch.bool)
    for row, answered in zip(rows, marked, strict=True):
        answered[row.answers] = True
    return marked
