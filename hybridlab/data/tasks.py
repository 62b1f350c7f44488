"""Synthetic tasks that a small decoder learns in a minute: look up one-token facts earlier in the sequence.

A fact F(key, value) is one token; a query is the token Q(key), and the token after it is the answer V(value) of the
last fact about that key. All tokens are in a block of reserved ids above the tokenizer's vocabulary. Each fact is
queried once: with two queries, the second could be answered from the nearer first answer instead of the fact.

retrieval: facts and queries in random order, so that facts are both inside and outside a window (chance 1/8).
assignment: five facts with different values, 0 to 64 filler tokens, then five queries in random order; a five-way
choice. Only the first query of an episode is measured (chance 1/5): each answer rules out a value for the later ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NUM_KEYS = 8
NUM_VALUES = 8
NUM_FILLERS = 16
RESERVED = 128
"""Number of ids of the tasks, above the tokenizer's vocabulary."""

TASKS = ("retrieval", "assignment")
CHANCE = {"retrieval": 1 / NUM_VALUES, "assignment": 1 / 5}
_ASSIGNED = 5
_MAX_FILLERS = 64
_ASK_EARLY = 0.2
"""Probability of a query while fewer than eight facts wait: 58 % of the distances are then below 16, 36 % below 8."""

_QUERY = NUM_KEYS * NUM_VALUES
_VALUE = _QUERY + NUM_KEYS
_FILLER = _VALUE + NUM_VALUES


@dataclass(frozen=True)
class TaskRow:
    """tokens (S,): ids without the offset of the vocabulary. answers (A,): positions of the answer tokens. distances
    (A,): from each query back to its fact; a window w contains the fact if distance < w. options (A, O): the tokens
    among which each answer is chosen. open (A,): True if no earlier answer has ruled out an option."""

    tokens: np.ndarray
    answers: np.ndarray
    distances: np.ndarray
    options: np.ndarray
    open: np.ndarray


def make_row(task: str, length: int, rng: np.random.Generator) -> TaskRow:
    """One row of a task; the same generator state gives the same row."""
    row = _Row(length)
    if task == "retrieval":
        _fill_retrieval(row, rng)
    else:
        while row.room >= 2 * _ASSIGNED + _ASSIGNED:
            _add_episode(row, rng)
        row.fill(rng)
    width = NUM_VALUES if task == "retrieval" else _ASSIGNED
    return TaskRow(
        row.tokens,
        np.array(row.answers, dtype=np.int64),
        np.array(row.distances, dtype=np.int64),
        np.array(row.options, dtype=np.int64).reshape(-1, width),
        np.array(row.open, dtype=bool),
    )


class _Row:
    """A row in the making. waiting: key → (value, position) of the facts that have not been queried yet."""

    def __init__(self, length: int) -> None:
        self.tokens = np.zeros(length, dtype=np.int64)
        self.used = 0
        self.waiting: dict[int, tuple[int, int]] = {}
        self.answers: list[int] = []
        self.distances: list[int] = []
        self.options: list[list[int]] = []
        self.open: list[bool] = []

    @property
    def room(self) -> int:
        return len(self.tokens) - self.used

    def _add(self, token: int) -> None:
        self.tokens[self.used] = token
        self.used += 1

    def fact(self, key: int, value: int) -> None:
        self.waiting[key] = (value, self.used)
        self._add(key * NUM_VALUES + value)

    def query(self, key: int, values: np.ndarray, is_open: bool) -> None:
        """A query and its answer, one of V(values). is_open: see `TaskRow.open`."""
        value, position = self.waiting.pop(key)
        self.distances.append(self.used - position)
        self._add(_QUERY + key)
        self.answers.append(self.used)
        self.options.append([_VALUE + int(v) for v in values])
        self.open.append(is_open)
        self._add(_VALUE + value)

    def fill(self, rng: np.random.Generator, count: int | None = None) -> None:
        """Add `count` random filler tokens, or fill up the row."""
        for token in rng.integers(NUM_FILLERS, size=min(self.room, self.room if count is None else count)):
            self._add(_FILLER + int(token))


def _fill_retrieval(row: _Row, rng: np.random.Generator) -> None:
    """Up to eight facts wait for their query; the next is chosen at random, so that distances vary widely."""
    while row.room >= 2:
        waiting = sorted(row.waiting)
        full = len(waiting) == NUM_KEYS
        if waiting and (full or rng.random() < _ASK_EARLY):
            row.query(waiting[int(rng.integers(len(waiting)))], np.arange(NUM_VALUES), is_open=True)
        else:
            free = [key for key in range(NUM_KEYS) if key not in row.waiting]
            row.fact(free[int(rng.integers(len(free)))], int(rng.integers(NUM_VALUES)))
    row.fill(rng)


def _add_episode(row: _Row, rng: np.random.Generator) -> None:
    """One episode of the task assignment."""
    keys, values = rng.permutation(NUM_KEYS)[:_ASSIGNED], rng.permutation(NUM_VALUES)[:_ASSIGNED]
    for key, value in zip(keys, values, strict=True):
        row.fact(int(key), int(value))
    row.fill(rng, int(rng.integers(min(_MAX_FILLERS, row.room - 2 * _ASSIGNED) + 1)))
    for number, key in enumerate(rng.permutation(keys)):
        row.query(int(key), values, is_open=number == 0)
