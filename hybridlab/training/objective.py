"""The objective of a run: how rows become inputs and targets, the loss, and what is measured.

Engine and validation use only the interface of `Objective`. `NextToken` is the objective of decoders, `MaskedTokens`
that of encoders; the fine-tuning objectives (`FineTuning`) find a class, a number, the right one of several options, a
span or the answers in chats, from labelled examples. `make_objective` chooses that of a run.

    hybridlab pretrain --arch bert --size bert-tiny --data embedded --steps 20
    hybridlab finetune RUN --task sst2 --data train.tsv --validation dev.tsv
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.attention.kernels import at_least_fp32, moved
from hybridlab.config.finetune import Finetune
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import WHOLE, Batches, Epochs, Rows, Windows, check_vocabulary, spaced
from hybridlab.data.finetune.corpus import TRAIN, Encoded, TaskCorpus
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import mask_token, special_tokens
from hybridlab.errors import UserError
from hybridlab.models.decoder import Output
from hybridlab.models.loss import Targets
from hybridlab.registry import FINETUNE_TASKS

_ROWS_AT_ONCE = 32
"""Rows of the model's input in a batch of examples."""
MASKED_SHARE = 0.15
"""Share of the tokens of a text that are chosen to be found."""
_TO_MASK, _TO_RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become [MASK], and a random token; the others stay."""
_MASKS, _MEASURED_MASKS = 5, 6
"""First words of the seeds of these draws, after those of data/batches.py."""


@dataclass(frozen=True)
class Batch:
    """R examples. inputs: arguments of the model's forward pass by name, each (R · rows, …): `rows` rows for each
    example, one after another; more than 1 only in multiple choice, where each option of a question is a row. targets:
    (R, T). weights: (R, T), the weight of each target in the loss. chosen: (N,), which of the R · T targets have one,
    where the objective reads these alone; a device would have to be asked for their number."""

    inputs: dict[str, Tensor]
    targets: Tensor
    weights: Tensor
    rows: int = 1
    chosen: Tensor | None = None

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
            some, own = slice(start, end), slice(start * self.rows, end * self.rows)
            inputs = {name: tensor[own] for name, tensor in self.inputs.items()}
            chosen = None
            if self.chosen is not None:
                place = self.chosen - start * self.targets.shape[1]
                chosen = place[(place >= 0) & (place < self.targets[some].numel())]
            found.append(Batch(inputs, self.targets[some], self.weights[some], self.rows, chosen))
        return found

    def to(self, device: torch.device) -> Batch:
        """A copy on a device."""
        inputs = {name: moved(tensor, device) for name, tensor in self.inputs.items()}
        chosen = None if self.chosen is None else moved(self.chosen, device)
        return Batch(inputs, moved(self.targets, device), moved(self.weights, device), self.rows, chosen)


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

    def source(self, config: RunConfig, corpus: Corpus) -> RowSource:
        """The rows of a run's training steps: here of text."""
        return Batches(corpus, config.data, config.training, config.shape.vocab)

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
            yield self.measured(windows.rows(numbers), numbers.tolist())


class FromEarlier(Objective):
    """What objectives share in which each token after the first is a target of the logits before it."""

    def targets(self, batch: Batch) -> Targets:
        # The last position predicts nothing.
        return Targets(F.pad(batch.targets, (0, 1)), F.pad(batch.weights, (0, 1)))

    def losses(self, output: Output, batch: Batch) -> Tensor:
        predictions = output.logits[:, :-1]
        if torch.is_grad_enabled():
            return _cross_entropy(predictions.flatten(0, 1), batch.targets.flatten()).view(batch.targets.shape)
        # Row by row, since all logits at once would need twice their memory for a copy and their softmax.
        return torch.stack([_cross_entropy(*row) for row in zip(predictions, batch.targets, strict=True)])


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each of T tokens. logits (T, V), targets (T,)."""
    return F.cross_entropy(at_least_fp32(logits), targets, reduction="none")


# ---- text ----


class NextToken(FromEarlier):
    """Predict each token from the ones before it. Loss: −log p(token | earlier tokens), in nats."""

    name = "next-token"

    def batch(self, rows: Rows, seed: int, step: int) -> Batch:
        tokens, weights = torch.from_numpy(rows.tokens), torch.from_numpy(rows.weights)
        return Batch({"input_ids": tokens}, tokens[:, 1:], weights[:, 1:])


class MaskedTokens(Objective):
    """Find tokens from those on both sides (BERT, section 3.1, task 1). Loss: −log p(token | the other tokens, some of
    them masked), in nats, over the chosen tokens.

    Of the tokens of a row of text, 15 % are chosen at random, at least one, and never a special one such as [SEP] or
    padding. Of the chosen ones 80 % become [MASK], 10 % a random token of the text's vocabulary, and 10 % stay. The
    share is met on average: a row of n tokens has ⌊0.15 n⌋ or one more. In rows of synthetic tasks exactly the answers
    are chosen, and all become [MASK].

    Rows are windows of text as for decoders, without a [CLS] at their start.
    """

    name, likelihood, before = "masked-tokens", False, 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.mask = mask_token(tokenizer)
        self.special = np.array(special_tokens(tokenizer))
        self.words = np.setdiff1d(np.array(sorted(tokenizer.get_vocab().values())), self.special)

    def batch(self, rows: Rows, seed: int, step: int) -> Batch:
        numbers = range(len(rows.tokens)) if rows.numbers is None else rows.numbers.tolist()
        return self._masked(rows, [(_MASKS, seed, step, number) for number in numbers])

    def measured(self, rows: Rows, numbers: Sequence[int]) -> Batch:
        return self._masked(rows, [(_MEASURED_MASKS, int(number)) for number in numbers])

    def hidden(self, tokens: Tensor, answers: Tensor) -> Tensor:
        return tokens.masked_fill(answers, self.mask)

    def targets(self, batch: Batch) -> Targets:
        return Targets(batch.targets, batch.weights)

    def losses(self, output: Output, batch: Batch) -> Tensor:
        assert batch.chosen is not None, "batches of this objective know their targets"
        logits, targets = (t.flatten(0, 1).index_select(0, batch.chosen) for t in (output.logits, batch.targets))
        found = F.cross_entropy(at_least_fp32(logits), targets, reduction="none")
        return found.new_zeros(batch.targets.numel()).index_copy(0, batch.chosen, found).view(batch.targets.shape)

    def metrics(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """The mean over the chosen tokens of each row; 0 for a row of special tokens alone."""
        chosen = (batch.weights > 0).sum(1).clamp_min(1)
        return {"loss": self.losses(output, batch).double().sum(1) / chosen}

    def _masked(self, rows: Rows, seeds: Sequence[tuple[int, ...]]) -> Batch:
        """seeds: of the draws of each row."""
        shown, weights = rows.tokens.copy(), np.zeros(rows.weights.shape, dtype=np.float32)
        for row, seed in enumerate(seeds):
            if rows.tasks is not None and rows.tasks[row]:
                weights[row] = rows.weights[row]
                shown[row, rows.weights[row] > 0] = self.mask
            else:
                weights[row, self._hide(shown[row], np.random.default_rng(seed))] = 1.0
        inputs = {"input_ids": torch.from_numpy(shown)}
        chosen = torch.from_numpy(np.flatnonzero(weights > 0))
        return Batch(inputs, torch.from_numpy(rows.tokens), torch.from_numpy(weights), chosen=chosen)

    def _hide(self, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose tokens of a row (S,) of text, and replace them in place; returns their positions."""
        candidates = np.flatnonzero(~np.isin(tokens, self.special))
        count = max(1, int(MASKED_SHARE * len(candidates) + rng.random()))
        chosen = rng.permutation(candidates)[:count]
        kinds = rng.random(len(chosen))
        masked, other = kinds < _TO_MASK, (kinds >= _TO_MASK) & (kinds < _TO_MASK + _TO_RANDOM)
        tokens[chosen[masked]] = self.mask
        tokens[chosen[other]] = self.words[rng.integers(len(self.words), size=int(other.sum()))]
        return chosen


# ---- labelled examples ----


class ExampleRows:
    """The training examples of each step."""

    def __init__(self, encoded: Encoded, seed: int, batch: int) -> None:
        self.encoded, self.count = encoded, batch
        self.order = Epochs(range(len(encoded)), seed, 0)

    def rows(self, step: int, part: slice = WHOLE) -> tuple[Encoded, list[int]]:
        """The examples of optimizer step `step` (0-based), by their numbers. part: which of them, by place."""
        return self.encoded, [int(self.order[step * self.count + index]) for index in range(self.count)[part]]


class FineTuning(Objective):
    """What the objectives of all kinds of tasks share. Every epoch is a permutation of the training examples, drawn by
    (seed, epoch), so that the examples of a step are a function of the step alone. Rows are padded on the right to
    `training.seq_len`."""

    name = "fine-tuning"
    likelihood = reads_text = False

    def __init__(self, task: FineTask, settings: Finetune, config: RunConfig) -> None:
        self.task, self.settings, self.length = task, settings, config.training.seq_len
        self.types = config.shape.traits.token_types > 1

    def source(self, config: RunConfig, corpus: Corpus) -> ExampleRows:
        check_vocabulary(corpus, config.data, config.shape.vocab, trained=config.init is not None)
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


def _of_task(corpus: Any) -> TaskCorpus:
    assert isinstance(corpus, TaskCorpus), "the corpus of a fine-tuning objective is that of its task"
    return corpus


# ---- the objective of a run ----


_FINE_TUNING: dict[str, type[FineTuning]] = {
    "classes": Classes,
    "choice": Classes,
    "number": Number,
    "span": Spans,
    "chat": Answers,
}
"""Kind of a fine-tuning task → its objective."""
OBJECTIVES: dict[str, Callable[[Corpus], Objective]] = {
    "next-token": lambda corpus: NextToken(),
    "masked-tokens": lambda corpus: MaskedTokens(corpus.tokenizer),
}
"""Name of an objective → its maker, from the text of a run."""
PREDICTED = {"next-token": 1.0, "masked-tokens": MASKED_SHARE}
"""Name of an objective → the share of the tokens that have a loss."""


def make_objective(config: RunConfig, corpus: Corpus) -> Objective:
    """The objective of a run: that of its fine-tuning task, of its settings or, by default, of its family. UserError
    for text with a model whose output head gives no tokens, and for a tokenizer that an encoder cannot be trained
    with."""
    if config.finetune is not None:
        task: FineTask = FINETUNE_TASKS.get(config.finetune.task)
        return _FINE_TUNING[task.kind](task, config.finetune, config)
    if config.shape.output is not None:
        raise UserError(
            f"shape.output: a head that gives {config.shape.output.kind} is not trained on text, or measured on it; "
            "remove shape.output"
        )
    return OBJECTIVES[config.objective](corpus)
