"""Fine-tuning objectives: a class, a number, the right one of several options, or a span, from labelled examples; and
the answers in chats.

    hybridlab finetune RUN --task sst2 --data train.tsv --validation dev.tsv

Every epoch is a permutation of the training examples, drawn by (seed, epoch), so that the examples of a step are a
function of the step alone. Rows are padded on the right to `training.seq_len`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.attention.kernels import at_least_fp32
from hybridlab.config.finetune import Finetune
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import WHOLE, Epochs, check_vocabulary
from hybridlab.data.finetune.corpus import TRAIN, Encoded, TaskCorpus
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Output
from hybridlab.registry import FINETUNE_TASKS
from hybridlab.training.batch import Batch, FromEarlier, Objective, spaced

_ROWS_AT_ONCE = 32


class ExampleRows:
    """The training examples of each step."""

    def __init__(self, encoded: Encoded, seed: int, batch: int) -> None:
        self.encoded, self.count = encoded, batch
        self.order = Epochs(range(len(encoded)), seed, 0)

    def rows(self, step: int, part: slice = WHOLE) -> tuple[Encoded, list[int]]:
        """The examples of optimizer step `step` (0-based), by their numbers. part: which of them, by place."""
        return self.encoded, [int(self.order[step * self.count + index]) for index in range(self.count)[part]]


class FineTuning(Objective):
    """What the objectives of all kinds of tasks share."""

    name = "fine-tuning"
    likelihood = reads_text = False

    def __init__(self, task: FineTask, settings: Finetune, config: RunConfig) -> None:
        self.task, self.settings, self.length = task, settings, config.training.seq_len
        self.types = config.shape.traits.token_types > 1

    def source(self, config: RunConfig, corpus: Corpus) -> ExampleRows:
        check_vocabulary(corpus, config.data, config.shape.vocab)
        return ExampleRows(_of_task(corpus).encoded[TRAIN], config.training.seed, self.settings.batch)

    def batch(self, rows: tuple[Encoded, Sequence[int]], seed: int, step: int) -> Batch:
        encoded, chosen = rows
        targets = torch.from_numpy(encoded.targets[list(chosen)])
        return Batch(self._inputs(encoded, chosen), targets, torch.ones(targets.shape), encoded.options)

    def _inputs(self, encoded: Encoded, chosen: Sequence[int]) -> dict[str, Tensor]:
        """input_ids, attention_mask (1 on tokens, 0 on padding) and, in families with token types, token_type_ids: each
        (R · options, S)."""
        k = encoded.options
        numbers = [index * k + option for index in chosen for option in range(k)]
        tokens = np.full((len(numbers), self.length), encoded.padding, dtype=np.int64)
        mask, types = np.zeros_like(tokens), np.zeros_like(tokens)
        for place, number in enumerate(numbers):
            row = encoded.rows[number]
            tokens[place, : len(row)], mask[place, : len(row)] = row, 1
            types[place, encoded.second[number] : len(row)] = 1
        inputs = {"input_ids": tokens, "attention_mask": mask} | ({"token_type_ids": types} if self.types else {})
        return {name: torch.from_numpy(array) for name, array in inputs.items()}

    def examples(self, config: RunConfig, corpus: Corpus, count: int) -> Iterator[Batch]:
        """See `Objective.examples`: examples of the first part that is measured."""
        part = next(iter(_of_task(corpus).measured.values()))
        for _, batch in self.batches(part, spaced(len(part), count)):
            yield batch

    def batches(self, encoded: Encoded, chosen: Sequence[int] | np.ndarray) -> Iterator[tuple[list[int], Batch]]:
        """Numbers of examples in groups, with their batches, for a measurement."""
        count = max(1, _ROWS_AT_ONCE // encoded.options)
        for start in range(0, len(chosen), count):
            some = [int(number) for number in chosen[start : start + count]]
            yield some, self.batch((encoded, some), 0, 0)

    @abstractmethod
    def outcome(self, output: Output, batch: Batch) -> Tensor:
        """What the model answers: for each example a class or the number of an option (R,), a number (R,), or a number
        for each token as the first and the last one of a span (R, S, 2), lowest on padding; in chats the likeliest
        token at each place of the targets (R, T)."""


class Classes(FineTuning):
    """A class of a sequence, or the right one of several options, each of which is a row of its own with one number.
    Loss: −log softmax of the right one, in nats."""

    def losses(self, output: Output, batch: Batch) -> Tensor:
        numbers = at_least_fp32(output.logits).view(len(batch), -1)
        return F.cross_entropy(numbers, batch.targets[:, 0], reduction="none")[:, None]

    def outcome(self, output: Output, batch: Batch) -> Tensor:
        return output.logits.view(len(batch), -1).argmax(1)


class Number(FineTuning):
    """A number for a sequence. Loss: the squared error."""

    def losses(self, output: Output, batch: Batch) -> Tensor:
        return (at_least_fp32(output.logits).view(len(batch), 1) - batch.targets) ** 2

    def outcome(self, output: Output, batch: Batch) -> Tensor:
        return at_least_fp32(output.logits).view(len(batch))


class Spans(FineTuning):
    """First and last token of a span; both are the first token of the row where a window does not hold the answer.
    Loss: the mean of −log softmax over the tokens of the row, for the first and for the last, in nats."""

    def losses(self, output: Output, batch: Batch) -> Tensor:
        ends = self.outcome(output, batch).transpose(1, 2).flatten(0, 1)
        return F.cross_entropy(ends, batch.targets.flatten(), reduction="none").view(batch.targets.shape)

    def outcome(self, output: Output, batch: Batch) -> Tensor:
        padding = batch.inputs["attention_mask"] == 0
        return at_least_fp32(output.logits).masked_fill(padding[..., None], torch.finfo(torch.float32).min)


class Answers(FineTuning, FromEarlier):
    """What the assistant says in chats. Loss: −log p(token | earlier tokens of the same document), in nats, for the
    tokens that are learned."""

    name = "answers"

    def batch(self, rows: tuple[Encoded, Sequence[int]], seed: int, step: int) -> Batch:
        encoded, chosen = rows
        inputs = self._inputs(encoded, chosen)
        if any(len(starts) > 1 for starts in encoded.starts):
            inputs |= self._borders(encoded, chosen)
        targets = torch.from_numpy(encoded.targets[list(chosen), 1:]).long()
        return Batch(inputs, targets.clamp_min(0), (targets >= 0).float())

    def _borders(self, encoded: Encoded, chosen: Sequence[int]) -> dict[str, Tensor]:
        """segment_ids and position_ids (R, S): the number of each token's document, and its place there. Padding is one
        more document."""
        segments = torch.zeros(len(chosen), self.length, dtype=torch.long)
        positions = torch.arange(self.length).repeat(len(chosen), 1)
        for row, number in enumerate(chosen):
            for start in (*encoded.starts[number][1:], len(encoded.rows[number])):
                segments[row, start:] += 1
                positions[row, start:] = torch.arange(self.length - start)
        return {"segment_ids": segments, "position_ids": positions}

    def outcome(self, output: Output, batch: Batch) -> Tensor:
        return output.logits[:, :-1].argmax(-1)


_KINDS: dict[str, type[FineTuning]] = {
    "classes": Classes,
    "choice": Classes,
    "number": Number,
    "span": Spans,
    "chat": Answers,
}


def finetuning(settings: Finetune, config: RunConfig) -> FineTuning:
    """The objective of a task. settings: `config.finetune`."""
    task: FineTask = FINETUNE_TASKS.get(settings.task)
    return _KINDS[task.kind](task, settings, config)


def _of_task(corpus: Any) -> TaskCorpus:
    assert isinstance(corpus, TaskCorpus), "the corpus of a fine-tuning objective is that of its task"
    return corpus
