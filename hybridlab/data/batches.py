"""The rows of training steps as functions of (seed, step): a resumed run sees the same data without saved state.

Text is cut into windows of S tokens; every epoch is a permutation of all windows, so that each is seen once. Each of
several sources has epochs of its own, and its weight is its share of the training tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridlab.config.schema import Data, RunConfig
from hybridlab.config.training import Training
from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import make_row, task_number, task_offsets
from hybridlab.errors import UserError

# First words of the seed sequences, so that each use of randomness has its own stream.
_ORDER, _TASK, _EVALUATION, _SOURCES = 1, 2, 3, 4
_ONE = 2**53
WHOLE = slice(None)
"""All rows of a step."""


@dataclass(frozen=True)
class Rows:
    """Rows from which an objective makes inputs and targets.

    tokens: (R, S) int64. weights: (R, S) float32, the weight of each token in the loss; 0 for the first of a row, which
    a decoder does not predict. tasks: (R,) bool, the rows of synthetic tasks, where only answers have a weight; None if
    all rows are text. numbers: (R,), that of each row among all rows of its step; None if these are all of them.
    """

    tokens: np.ndarray
    weights: np.ndarray
    tasks: np.ndarray | None = None
    numbers: np.ndarray | None = None


class Windows:
    """All complete windows of `length` tokens in a list of shards. A window lies within one shard."""

    def __init__(self, shards: list[np.ndarray], length: int) -> None:
        self.shards, self.length = shards, length
        self.ends = np.cumsum([len(shard) // length for shard in shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index: int) -> np.ndarray:
        shard = int(np.searchsorted(self.ends, index, side="right"))
        start = (index - (int(self.ends[shard - 1]) if shard else 0)) * self.length
        return self.shards[shard][start : start + self.length].astype(np.int64)

    def rows(self, numbers: Sequence[int] | np.ndarray) -> Rows:
        """The windows of these numbers, to measure with: all of their tokens count."""
        return text_rows(np.stack([self[int(number)] for number in numbers]))


def text_rows(tokens: np.ndarray) -> Rows:
    """Rows of text (R, S) to measure with, all of whose tokens count."""
    return Rows(tokens, np.ones(tokens.shape, dtype=np.float32))


def spaced(total: int, count: int) -> np.ndarray:
    """At most `count` of the numbers 0 … total − 1, evenly spaced."""
    return np.unique(np.linspace(0, max(0, total - 1), min(count, total)).round().astype(int))


class SourceOrder:
    """The sources of text rows, which are numbered from 0 over all steps. weights: positive, their sum is 1.

    The sources take turns as evenly as their weights allow, so their shares are right at every step, and the order
    needs no saved state.
    """

    def __init__(self, weights: list[float], seed: int) -> None:
        # The first source gets its share of all rows, the second one its share of the rest, and so on. Whole numbers,
        # because sums of rounded fractions would drift.
        rest = [sum(weights[number:]) for number in range(len(weights))]
        self.rates = [round(_ONE * weight / left) for weight, left in zip(weights, rest, strict=True)][:-1]
        self.starts = [int(start) for start in np.random.default_rng((_SOURCES, seed)).integers(_ONE, size=len(rest))]

    def place(self, row: int) -> tuple[int, int]:
        """Number of the source of a row, and the number of rows of this source before it."""
        before, after = self.counts(row), self.counts(row + 1)
        number = next(number for number, count in enumerate(before) if after[number] > count)
        return number, before[number]

    def counts(self, rows: int) -> list[int]:
        """How many of the first `rows` rows are from each source."""
        counts = []
        for rate, start in zip(self.rates, self.starts, strict=False):
            counts.append((rows * rate + start) >> 53)
            rows -= counts[-1]
        return [*counts, rows]


def steps_seen(before: RunConfig, now: RunConfig) -> int:
    """Number of steps of `now` that read as many rows, and as many of text, as `before` has read or skipped."""
    steps = before.training.steps + (before.training.skip_steps or 0)
    kinds = ((config.training.rows, row_counts(config.data, config.training.rows)["text"]) for config in (before, now))
    return max(-(-steps * read // each) for read, each in zip(*kinds, strict=True) if each)


class Epochs:
    """The windows of a source, or other items, in the order of training: each epoch is a permutation of all of them.

    number: that of the source in its mixture.
    """

    def __init__(self, windows: Windows | range, seed: int, number: int) -> None:
        self.windows, self.seed, self.number = windows, seed, number
        self.epoch, self.order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, index: int) -> Any:
        epoch, position = divmod(index, len(self.windows))
        if epoch != self.epoch:
            # A single source has the words of the time before there were mixtures.
            words = (_ORDER, self.seed, epoch, self.number) if self.number else (_ORDER, self.seed, epoch)
            self.epoch, self.order = epoch, np.random.default_rng(words).permutation(len(self.windows))
        return self.windows[int(self.order[position])]


class Batches:
    """The rows of a run's training steps."""

    def __init__(self, corpus: Corpus, data: Data, training: Training, vocab: int) -> None:
        self.seed, self.length, self.skipped = training.seed, training.seq_len, training.skip_steps or 0
        self.task_weight = data.task_loss_weight
        self.offsets = {task: corpus.vocab + first for task, first in task_offsets(data.mix.tasks)[0].items()}
        self.counts = row_counts(data, training.rows)
        self.of_tasks = [(task, index) for task in self.offsets for index in range(self.counts[task])]
        self.sources = [
            Epochs(Windows(part.corpus.train, training.seq_len), training.seed, number)
            for number, part in enumerate(corpus.parts)
        ]
        self.order = _source_order(corpus, training)
        check_vocabulary(corpus, data, vocab)
        for task in self.offsets:
            if not len(make_row(task, self.length, task_generator(0, 0)).answers):
                raise UserError(
                    f"training.seq_len = {self.length}: no question of the task {task} fits; use 16 or more"
                )
        if self.counts["text"]:
            for part in corpus.parts:
                _check_length(part.corpus, training.seq_len)
            _check_shares(corpus, data, training)

    def rows(self, step: int, part: slice = WHOLE) -> Rows:
        """The rows of optimizer step `step` (0-based): text first, then each task. part: which of them, by number."""
        step += self.skipped
        texts = self.counts["text"]
        numbers = np.arange(texts + len(self.of_tasks))[part]
        tokens = np.empty((len(numbers), self.length), dtype=np.int64)
        weights = np.zeros(tokens.shape, dtype=np.float32)
        for row, number in enumerate(numbers.tolist()):
            if number < texts:
                tokens[row], weights[row] = self._text(step * texts + number), 1.0
            else:
                task, index = self.of_tasks[number - texts]
                rng = np.random.default_rng((_TASK, self.seed, step, task_number(task), index))
                example = make_row(task, self.length, rng)
                tokens[row] = example.tokens + self.offsets[task]
                weights[row, example.answers] = self.task_weight
        weights[:, 0] = 0.0
        return Rows(tokens, weights, numbers >= texts, numbers)

    def _text(self, index: int) -> np.ndarray:
        """Text row number `index` of the run: the tokens (S,) of a window."""
        source, position = self.order.place(index)
        return self.sources[source][position]


def _source_order(corpus: Corpus, training: Training) -> SourceOrder:
    return SourceOrder([part.weight for part in corpus.parts], training.seed)


def _check_length(corpus: Corpus, length: int) -> None:
    """UserError if one of a source's parts has no sequence of this length."""
    for split, shards in (("training", corpus.train), ("validation", corpus.validation)):
        if not len(Windows(shards, length)):
            tokens = sum(len(shard) for shard in shards)
            raise UserError(
                f"data source {corpus.meta['source']}: the {split} part has {tokens} tokens, less than one sequence of "
                f"{length}; give more text, lower training.seq_len, or {'lower' if split == 'training' else 'raise'} "
                "data.validation_fraction"
            )


def _check_shares(corpus: Corpus, data: Data, training: Training) -> None:
    """UserError if a source would not give a single row to the whole run."""
    counts = sources_read(corpus, data, training, training.steps)
    for part, tokens in zip(corpus.parts, counts, strict=True):
        if not tokens:
            raise UserError(
                f"data.sources: the weight {part.weight:g} of {part.corpus.meta['source']} gives it no row in "
                f"{training.steps} steps; raise it, or leave the source out"
            )


def sources_read(corpus: Corpus, data: Data, training: Training, steps: int) -> list[int]:
    """The tokens of text that the first `steps` steps of a run read from each source."""
    order, rows = _source_order(corpus, training), row_counts(data, training.rows)["text"]
    first = training.skip_steps or 0
    before, after = order.counts(first * rows), order.counts((first + steps) * rows)
    return [(b - a) * training.seq_len for a, b in zip(before, after, strict=True)]


def task_generator(number: int, row: int) -> np.random.Generator:
    """The generator of an evaluation row: the same for every run, and different from all training rows."""
    return np.random.default_rng((_EVALUATION, number, row))


def row_counts(data: Data, rows: int) -> dict[str, int]:
    """Rows of each kind in a batch: the shares of `data.mix`, rounded by largest remainder."""
    shares = {"text": data.mix.text, **data.mix.tasks}
    counts = {name: int(share * rows) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name] * rows)
    for name in by_remainder[: rows - sum(counts.values())]:
        counts[name] += 1
    for name, share in shares.items():
        if share > 0 and counts[name] == 0:
            raise UserError(
                f"data.mix.{name} = {share:g} of {rows} rows rounds to zero rows; raise it, or tokens_per_step"
            )
    return counts


def check_vocabulary(corpus: Corpus, data: Data, vocab: int, trained: bool = False) -> None:
    """UserError if the model's vocabulary is too small for the tokenizer and the reserved ids of the tasks. trained: it
    is that of weights which are there already."""
    reserved = task_offsets(data.mix.tasks)[1]
    if corpus.vocab + reserved > vocab:
        tasks = f" and the {reserved} reserved for the tasks" if reserved else ""
        raise UserError(
            f"shape.vocab = {vocab}: the tokenizer of {corpus.folder.name} has {corpus.vocab} tokens{tasks}; "
            f"use a tokenizer of at most {vocab - reserved} tokens, or "
            + ("start from other weights" if trained else f"--set shape.vocab={corpus.vocab + reserved}")
        )
