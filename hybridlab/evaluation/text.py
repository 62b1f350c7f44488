"""What a model is measured on: text or examples; and the answers that it gives in rows of a synthetic task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import TaskRow
from hybridlab.models.decoder import Transformer
from hybridlab.training.objective import NextToken, Objective
from hybridlab.training.world import world


@dataclass(frozen=True)
class Text:
    """The text to measure an objective on. context: the precision of the model's computations. inputs: further
    arguments of the forward pass, for a model whose structure is being learned."""

    objective: Objective
    corpus: Corpus
    splits: tuple[str, ...]
    context: AbstractContextManager
    inputs: Mapping[str, Any] = field(default_factory=dict)


# ---- how many sequences at once: limited by the logits, the largest tensor ----

_MOST_LOGITS = 2**28
"""A gibibyte in fp32."""
_MOST_ROWS = 32


def chunks(items: Any, model: Transformer, length: int) -> list[Any]:
    """Slices of a list or array, of at least one row, whose logits fit into a gibibyte."""
    rows = max(1, min(_MOST_ROWS, _MOST_LOGITS // (length * model.shape.vocab)))
    return [items[start : start + rows] for start in range(0, len(items), rows)]


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
    device, context = model.device, context or nullcontext()
    asks = objective or NextToken()

    def answered(part: list[TaskRow]) -> tuple[np.ndarray, np.ndarray]:
        right, losses = [], []
        tokens = torch.from_numpy(np.stack([row.tokens for row in part]) + offset).to(device)
        marked = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, answered in zip(part, marked, strict=True):
            answered[row.answers] = True
        with torch.no_grad(), context:
            logits = model(asks.hidden(tokens, marked.to(device)), **(inputs or {})).logits.float()
        for scores, row in zip(logits, part, strict=True):
            options = torch.from_numpy(row.options + offset).to(device)
            true = torch.from_numpy(row.tokens[row.answers] + offset).to(device)
            among = scores[row.answers - asks.before].gather(1, options)
            right.append((options.gather(1, among.argmax(1, keepdim=True))[:, 0] == true).cpu().numpy())
            place = (options == true[:, None]).int().argmax(1)
            losses.append(F.cross_entropy(among, place, reduction="none").cpu().numpy())
        return np.concatenate(right), np.concatenate(losses)

    right, losses = zip(*world().map(answered, chunks(rows, model, len(rows[0].tokens)), "answers"), strict=True)
    return np.concatenate(right), np.concatenate(losses)
