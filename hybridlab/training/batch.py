"""Batches, and the interface of objectives: how rows become inputs and targets, the loss, and what is measured.

Engine and evaluation use only this interface; training/objective.py chooses the objective of a run.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.attention.kernels import at_least_fp32
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import WHOLE, Rows, Windows
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Output
from hybridlab.models.loss import Targets

_ROWS_AT_ONCE = 32
"""Rows of the model's input in a batch of examples."""


@dataclass(frozen=True)
class Batch:
    """R examples. inputs: arguments of the model's forward pass by name, each (R · rows, …): `rows` rows for each
    example, one after another; more than 1 only in multiple choice, where each option of a question is a row. targets:
    (R, T). weights: (R, T), the weight of each target in the loss."""

    inputs: dict[str, Tensor]
    targets: Tensor
    weights: Tensor
    rows: int = 1

    def __len__(self) -> int:
        return len(self.targets)

    def parts(self, rows: int | None, least: int = 1) -> list[Batch]:
        """Slices of at most `rows` rows of input, and of one example at least; None: one slice. least: so many slices,
        where there are examples for them."""
        count = len(self) if rows is None else max(1, rows // self.rows)
        bounds = [*range(0, len(self), count), len(self)]
        if len(bounds) <= least <= len(self):
            bounds = [len(self) * i // least for i in range(least + 1)]
        found = []
        for start, end in itertools.pairwise(bounds):
            chosen, own = slice(start, end), slice(start * self.rows, end * self.rows)
            inputs = {name: tensor[own] for name, tensor in self.inputs.items()}
            found.append(Batch(inputs, self.targets[chosen], self.weights[chosen], self.rows))
        return found

    def to(self, device: torch.device) -> Batch:
        """A copy on a device."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.targets.to(device), self.weights.to(device), self.rows)


class RowSource(Protocol):
    """The source of the rows. They depend on the step alone, so that a resumed run reads the same rows."""

    def rows(self, step: int, part: slice = WHOLE) -> Any:
        """The rows of optimizer step `step` (0-based), in the type that the objective's `batch` takes. part: which of
        them, by their numbers in the step; each process that trains the run reads another part."""
        ...


class Objective(ABC):
    """The interface of objectives.

    likelihood: whether the losses of a text's tokens add up to −log p(text), so that its perplexity and its bits per
    byte have a meaning. reads_text: whether its rows are windows of text and its targets tokens, so that text,
    synthetic tasks and questions by log-likelihood are measured; otherwise only its own loss and metrics are.
    """

    name: str
    likelihood: bool = True
    reads_text: bool = True

    @abstractmethod
    def source(self, config: RunConfig, corpus: Corpus) -> RowSource:
        """The rows of a run's training steps."""

    @abstractmethod
    def batch(self, rows: Any, seed: int, step: int) -> Batch:
        """Inputs and targets of a step's rows, or of a part of them. Random draws are functions of (seed, step) and the
        number of the row in the step, so that they are the same however the rows are divided."""

    def measured(self, rows: Any, numbers: Sequence[int]) -> Batch:
        """Inputs and targets to measure a model on. numbers: of the rows among all that are measured. Random draws are
        functions of these numbers alone, so that they are the same for every model and every size of a batch."""
        return self.batch(rows, 0, 0)

    def hidden(self, tokens: Tensor, answers: Tensor) -> Tensor:
        """Tokens (R, S) as the model reads them where it is asked for some of them. answers: (R, S) bool."""
        return tokens

    before: int = 1
    """How many positions before a token the logits stand that predict it."""

    @abstractmethod
    def losses(self, output: Output, batch: Batch) -> Tensor:
        """The loss of each target (R, T), unweighted, in fp32."""

    def targets(self, batch: Batch) -> Targets | None:
        """The targets of every position, for a model that computes the loss itself; None where the loss is another."""
        return None

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Σ weight · loss over all targets of a batch."""
        return (self.losses(output, batch) * batch.weights).sum() if output.loss is None else output.loss

    def metrics(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """Metrics on text by name, with `loss` among them: one number per row (R,), in fp64."""
        return {"loss": self.losses(output, batch).double().mean(1)}

    def examples(self, config: RunConfig, corpus: Corpus, count: int) -> Iterator[Batch]:
        """At most `count` examples to measure with, evenly spaced and the same for all runs on this data, in batches of
        the model's inputs: here windows of validation text of the length of training."""
        windows = Windows(corpus.validation, config.training.seq_len)
        chosen = spaced(len(windows), count)
        for start in range(0, len(chosen), _ROWS_AT_ONCE):
            numbers = chosen[start : start + _ROWS_AT_ONCE]
            tokens = np.stack([windows[int(i)] for i in numbers])
            yield self.measured(Rows(tokens, np.ones(tokens.shape, dtype=np.float32)), numbers.tolist())


class FromEarlier(Objective):
    """What objectives share in which each token after the first is a target of the logits before it."""

    def targets(self, batch: Batch) -> Targets:
        # The last position predicts nothing.
        return Targets(F.pad(batch.targets, (0, 1)), F.pad(batch.weights, (0, 1)))

    def losses(self, output: Output, batch: Batch) -> Tensor:
        predictions = at_least_fp32(output.logits[:, :-1]).flatten(0, 1)
        return F.cross_entropy(predictions, batch.targets.flatten(), reduction="none").view(batch.targets.shape)


def spaced(total: int, count: int) -> np.ndarray:
    """At most `count` of the numbers 0 … total − 1, evenly spaced."""
    return np.unique(np.linspace(0, max(0, total - 1), min(count, total)).round().astype(int))
