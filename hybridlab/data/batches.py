"""The rows of training steps as functions of (seed, step): a resumed run sees the same data without saved state.

Text is cut into windows of S tokens; every epoch is a permutation of all windows, so that each is seen once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hybridlab.config.schema import Data, Training
from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import make_row, task_number, task_offsets
from hybridlab.errors import UserError

# First words of the seed sequences, so that each use of randomness has its own stream.
_ORDER, _TASK, _EVALUATION = 1, 2, 3


@dataclass(frozen=True)
class Rows:
    """Rows from which an objective makes inputs and targets.

    tokens: (R, S) int64. weights: (R, S) float32, the weight of each token in the loss; 0 for the first of a row, which
    is not predicted.
    """

    tokens: np.ndarray
    weights: np.ndarray


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


def steps_seen(before: Training, now: Training) -> int:
    """Number of steps of `now` that read as many rows as `before` has read or skipped."""
    return -(-(before.steps + (before.skip_steps or 0)) * before.rows // now.rows)


class Batches:
    """The rows of a run's training steps."""

    def __init__(self, corpus: Corpus, data: Data, training: Training, vocab: int) -> None:
        self.seed, self.length, self.skipped = training.seed, training.seq_len, training.skip_steps or 0
        self.task_weight = data.task_loss_weight
        self.offsets = {task: corpus.vocab + first for task, first in task_offsets(data.mix.tasks)[0].items()}
        self.counts = row_counts(data, training.rows)
        self.windows = Windows(corpus.train, training.seq_len)
        check_vocabulary(corpus, data, vocab)
        for task in self.offsets:
            if not len(make_row(task, self.length, task_generator(0, 0)).answers):
                raise UserError(
                    f"training.seq_len = {self.length}: no question of the task {task} fits; use 16 or more"
                )
        for split, shards in (("training", corpus.train), ("validation", corpus.validation)):
            if self.counts["text"] and not len(Windows(shards, training.seq_len)):
                tokens = sum(len(shard) for shard in shards)
                raise UserError(
                    f"data source {data.source}: the {split} part has {tokens} tokens, less than one sequence of "
                    f"{training.seq_len}; give more text or lower training.seq_len"
                )

    def rows(self, step: int) -> Rows:
        """The rows of optimizer step `step` (0-based): text first, then each task."""
        step += self.skipped
        tokens = np.empty((sum(self.counts.values()), self.length), dtype=np.int64)
        weights = np.zeros(tokens.shape, dtype=np.float32)
        row = 0
        for index in range(self.counts["text"]):
            tokens[row], weights[row] = self._text(step * self.counts["text"] + index), 1.0
            row += 1
        for task, offset in self.offsets.items():
            for index in range(self.counts[task]):
                rng = np.random.default_rng((_TASK, self.seed, step, task_number(task), index))
                made = make_row(task, self.length, rng)
                tokens[row] = made.tokens + offset
                weights[row, made.answers] = self.task_weight
                row += 1
        weights[:, 0] = 0.0
        return Rows(tokens, weights)

    def _text(self, index: int) -> np.ndarray:
        """Text row number `index` of the run: the tokens (S,) of a window."""
        epoch, position = divmod(index, len(self.windows))
        return self.windows[int(_permutation(self.seed, epoch, len(self.windows))[position])]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng((_ORDER, seed, epoch)).permutation(size)


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


def check_vocabulary(corpus: Corpus, data: Data, vocab: int) -> None:
    """UserError if the model's vocabulary is too small for the tokenizer and the reserved ids of the tasks."""
    reserved = task_offsets(data.mix.tasks)[1]
    if corpus.vocab + reserved > vocab:
        tasks = f" and the {reserved} reserved for the tasks" if reserved else ""
        raise UserError(
            f"shape.vocab = {vocab}: the tokenizer of {corpus.folder.name} has {corpus.vocab} tokens{tasks}; "
            f"use a tokenizer of at most {vocab - reserved} tokens, or --set shape.vocab={corpus.vocab + reserved}"
        )
