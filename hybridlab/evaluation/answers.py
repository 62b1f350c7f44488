"""The answers that a model gives in rows of a synthetic task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hybridlab.data.tasks import TaskRow
from hybridlab.evaluation.rows import chunks
from hybridlab.models.decoder import Decoder


def answers(
    model: Decoder,
    rows: list[TaskRow],
    offset: int,
    context: AbstractContextManager | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Of each answer of these rows, one row after another: whether it is right, and its loss in nats, as a choice among
    the answer's options, so that a guess among n costs ln(n).

    offset: id of the task's first token. context: the precision of the model's computations; by default that of its
    weights. inputs: further arguments of the forward pass.
    """
    device, context = next(model.parameters()).device, context or nullcontext()
    right, losses = [], []
    for part in chunks(rows, model, len(rows[0].tokens)):
        tokens = torch.from_numpy(np.stack([row.tokens for row in part]) + offset).to(device)
        with torch.no_grad(), context:
            logits = model(tokens, **(inputs or {})).logits.float()
        for scores, row in zip(logits, part, strict=True):
            options = torch.from_numpy(row.options + offset).to(device)
            true = torch.from_numpy(row.tokens[row.answers] + offset).to(device)
            among = scores[row.answers - 1].gather(1, options)
            right.append((options.gather(1, among.argmax(1, keepdim=True))[:, 0] == true).cpu().numpy())
            place = (options == true[:, None]).int().argmax(1)
            losses.append(F.cross_entropy(among, place, reduction="none").cpu().numpy())
    return np.concatenate(right), np.concatenate(losses)
