"""Training objectives: how rows become inputs and targets, the loss, and the metrics on text.

Engine and validation use only the interface of `Objective`. `NextToken` is the objective of decoders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Batches, Rows
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Output


@dataclass(frozen=True)
class Batch:
    """R examples. inputs: arguments of the model's forward pass by name, each (R, …). targets: (R, T). weights: (R, T),
    the weight of each target in the loss."""

    inputs: dict[str, Tensor]
    targets: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def parts(self, rows: int | None) -> Iterator[Batch]:
        """Slices of at most `rows` rows; None: one slice."""
        for start in range(0, len(self), rows or len(self)):
            chosen = slice(start, start + (rows or len(self)))
            inputs = {name: tensor[chosen] for name, tensor in self.inputs.items()}
            yield Batch(inputs, self.targets[chosen], self.weights[chosen])

    def to(self, device: torch.device) -> Batch:
        """A copy on a device."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.targets.to(device), self.weights.to(device))


class RowSource(Protocol):
    """The source of the rows. They depend on the step alone, so that a resumed run reads the same rows."""

    def rows(self, step: int) -> Any:
        """The rows of optimizer step `step` (0-based), in the type that the objective's `batch` takes."""
        ...


class Objective(ABC):
    """The interface of objectives."""

    name: str

    @abstractmethod
    def source(self, config: RunConfig, corpus: Corpus) -> RowSource:
        """The rows of a run's training steps."""

    @abstractmethod
    def batch(self, rows: Any, seed: int, step: int) -> Batch:
        """Inputs and targets of a step's rows. Random draws are functions of (seed, step)."""

    @abstractmethod
    def losses(self, output: Output, batch: Batch) -> Tensor:
        """The loss of each target (R, T), unweighted, in fp32."""

    def loss(self, output: Output, batch: Batch) -> Tensor:
        """Σ weight · loss over all targets of a batch."""
        return (self.losses(output, batch) * batch.weights).sum()

    def metrics(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """Metrics on text by name, with `loss` among them: one number per row (R,), in fp64."""
        return {"loss": self.losses(output, batch).double().mean(1)}


class NextToken(Objective):
    """Predict each token from the ones before it. Loss: −log p(token | earlier tokens), in nats."""

    name = "next-token"

    def source(self, config: RunConfig, corpus: Corpus) -> Batches:
        return Batches(corpus, config.data, config.training, config.shape.vocab)

    def batch(self, rows: Rows, seed: int, step: int) -> Batch:
        tokens, weights = torch.from_numpy(rows.tokens), torch.from_numpy(rows.weights)
        return Batch({"input_ids": tokens}, tokens[:, 1:], weights[:, 1:])

    def losses(self, output: Output, batch: Batch) -> Tensor:
        predictions = output.logits[:, :-1].float().flatten(0, 1)
        return F.cross_entropy(predictions, batch.targets.flatten(), reduction="none").view(batch.targets.shape)


def make_objective(config: RunConfig) -> Objective:
    """The objective of a run; so far always `NextToken`."""
    return NextToken()
