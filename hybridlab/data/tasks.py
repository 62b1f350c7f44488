"""Synthetic tasks that a small model learns in a minute: find one-token facts or symbols elsewhere in the sequence.

Of facts, which a small decoder learns; an encoder of this size does not within minutes, because a masked answer has to
learn its key first. A fact F(key, value) is one token; a query is the token Q(key), and the token after it is the
answer V(value) of the last fact about that key. Each fact is queried once: with two queries, the second could be
answered from the nearer first answer instead of the fact.

retrieval: facts and queries in random order, so that facts are both inside and outside a window (chance 1/8).
assignment: five facts with different values, 0 to 64 filler tokens, then five queries in random order; a five-way
choice. Only the first query of an episode is measured (chance 1/5): each answer rules out a value for the later ones.
chain: two hops. Five facts with different values and three aliases A(name, key) in random order, 0 to 32 filler tokens,
then the three queries QA(name) in random order; the answer is the value of the key that the alias names. It is a choice
among the five values, so that the facts without the alias say nothing (chance 1/5); only the first query is measured.

Of symbols, which a small encoder learns too, since positions say where to look (chance 1/64):
repeat: the second half of the row is the first half once more; its symbols are the answers.
scattered: four parts of equal length. Each column has one symbol, in one of the first three parts and once more, as the
answer, in the fourth; fillers stand in the two places left. Attention has to find the place that holds a symbol.

Of symbols, for decoders of two layers or more (chance 1/32):
induction: sequences of 6 to 20 different symbols of 32, each written twice, one after another; the second writing is
the answers, from its second symbol on. As lengths differ, no position says where to look: a head must find in the first
writing the symbol before the answer and read the one behind it, which takes two layers of attention.

The tokens of a task are in a block of reserved ids above the tokenizer's vocabulary.

Each task is a `Task` in the registry TASKS. A plug-in adds one in the same way, and a configuration mixes it in with
`data: {mix: {text: 0.5, my-task: 0.5}}`:

    TASKS.add("my-task", Task(my_row, chance=1 / 8))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hybridlab.errors import UserError
from hybridlab.plugins import is_own, refuse
from hybridlab.registry import TASKS

NUM_KEYS = 8
NUM_VALUES = 8
NUM_FILLERS = 16
RESERVED = 128
"""Number of ids of the tasks, above the tokenizer's vocabulary."""

_ASSIGNED = 5
_MAX_FILLERS = 64
_ASK_EARLY = 0.2
"""Probability of a query while fewer than eight facts wait: 58 % of the distances are then below 16, 36 % below 8."""

_ALIASES = 3
_MAX_CHAIN_FILLERS = 32
_SHORTEST_CHAIN = _ASSIGNED + 3 * _ALIASES
"""Tokens of an episode of the task chain without fillers: a query and its answer are two."""

_QUERY = NUM_KEYS * NUM_VALUES
_VALUE = _QUERY + NUM_KEYS
_FILLER = _VALUE + NUM_VALUES
_ALIAS = _FILLER + NUM_FILLERS
_ALIAS_QUERY = _ALIAS + _ALIASES * NUM_KEYS
assert _ALIAS_QUERY + _ALIASES <= RESERVED

_SYMBOLS = 64
_PARTS = 4
_COPIED = 32
_SHORTEST_COPY, _LONGEST_COPY = 6, 20
assert _SYMBOLS + NUM_FILLERS <= RESERVED


@dataclass(frozen=True)
class TaskRow:
    """tokens (S,): ids without the offset of the vocabulary. answers (A,): positions of the answer tokens. distances
    (A,): from each query back to its fact; a window w contains the fact if distance < w. Where an answer needs several
    facts, it is the distance to the farthest: within it, no hop from fact to fact or to the query is longer. options
    (A, O): the tokens among which each answer is chosen. open (A,): True if no earlier answer has ruled out an
    option."""

    tokens: np.ndarray
    answers: np.ndarray
    distances: np.ndarray
    options: np.ndarray
    open: np.ndarray


@dataclass(frozen=True)
class Task:
    """A synthetic task.

    row: (length S, generator) → a `TaskRow`; equal states of the generator give equal rows. chance: accuracy of
    guessing. ids: its tokens are numbers from 0 to ids − 1; the model's ids follow those of the tokenizer. block: tasks
    of one block share these ids; by default each task has its own. number: begins the seeds of its rows; by default it
    follows from the name.
    """

    row: Callable[[int, np.random.Generator], TaskRow]
    chance: float
    ids: int = RESERVED
    block: str | None = None
    number: int | None = None


def make_row(task: str, length: int, rng: np.random.Generator) -> TaskRow:
    """One row of a task; the same generator state gives the same row. UserError for a row that does not fit it."""
    entry = TASKS.get(task)
    row: TaskRow = entry.row(length, rng)
    if is_own(entry.row):
        _check_row(entry, row)
    if row.tokens.shape != (length,) or row.tokens.min() < 0 or row.tokens.max() >= entry.ids:
        found = f"{row.tokens.size} from {row.tokens.min()} to {row.tokens.max()}" if row.tokens.size else "none"
        raise UserError(f"task {task!r}: its row must have {length} tokens from 0 to {entry.ids - 1}; it has {found}")
    return row


def _check_row(task: Task, row: object) -> None:
    """UserError for what is no `TaskRow`, and for arrays that do not fit each other."""
    if not isinstance(row, TaskRow):
        refuse(task.row, "", row, "a TaskRow (hybridlab/data/tasks.py)")
    count = len(row.answers) if isinstance(row.answers, np.ndarray) else -1
    shapes: dict[str, tuple[int, ...]] = {"tokens": (len(row.tokens),) if np.ndim(row.tokens) else ()}
    shapes |= {"answers": (count,), "distances": (count,)}
    shapes |= {"options": (count, np.shape(row.options)[-1] if np.ndim(row.options) else 0), "open": (count,)}
    for name, shape in shapes.items():
        array, kinds = getattr(row, name), "b" if name == "open" else "iu"
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.kind not in kinds:
            what = "truth values" if kinds == "b" else "whole numbers"
            of = "token" if name == "tokens" else "answer"
            expected = f"a TaskRow whose {name} are a numpy array of {what}, one for each {of}"
            refuse(task.row, "", array, expected, f" as {name}")
    places = row.answers
    if count and (places.min() < 1 or places.max() >= len(row.tokens)):
        refuse(task.row, "", places, "answers that are positions in the row, after its first token", " as answers")
    if count and not (row.options == row.tokens[places][:, None]).any(1).all():
        refuse(task.row, "", row.options, "options among which the token of each answer is", " as options")


def task_number(task: str) -> int:
    """The number that begins the seeds of a task's rows."""
    number = TASKS.get(task).number
    return int(hashlib.sha256(task.encode()).hexdigest()[:8], 16) if number is None else number


def task_offsets(tasks: Iterable[str]) -> tuple[dict[str, int], int]:
    """The first id of each task, relative to the end of the tokenizer's, and the number of ids of all of them."""
    blocks: dict[str, int] = {}
    offsets: dict[str, int] = {}
    used = 0
    for name in tasks:
        task = TASKS.get(name)
        block = task.block or name
        if block not in blocks:
            blocks[block], used = used, used + task.ids
        offsets[name] = blocks[block]
    return offsets, used


def _facts(
    episode: Callable[[_Row, np.random.Generator], None],
    shortest: int,
    width: int,
    length: int,
    rng: np.random.Generator,
) -> TaskRow:
    """A row of episodes, of at least `shortest` tokens each. width: number of options of a question."""
    row = _Row(length)
    while row.room >= shortest:
        episode(row, rng)
    row.fill(rng)
    return row.done(width)


def _repeat(length: int, rng: np.random.Generator) -> TaskRow:
    half = length // 2
    return _symbol_row(length, np.tile(rng.integers(_SYMBOLS, size=half), 2), np.full(half, half))


def _induction(length: int, rng: np.random.Generator) -> TaskRow:
    row = _Row(length)
    while row.room >= 2 * _SHORTEST_COPY:
        longest = min(_LONGEST_COPY, row.room // 2)
        count = int(rng.integers(_SHORTEST_COPY, longest + 1))
        written = rng.permutation(_COPIED)[:count].tolist()
        for symbol in [*written, written[0]]:
            row.add(symbol)
        for symbol in written[1:]:
            row.answer(symbol, count, range(_COPIED), is_open=True)
    while row.room:
        row.add(_COPIED)
    return row.done(_COPIED)


def _scattered(length: int, rng: np.random.Generator) -> TaskRow:
    columns = length // _PARTS
    symbols, parts = rng.integers(_SYMBOLS, size=columns), rng.integers(_PARTS - 1, size=columns)
    tokens = _SYMBOLS + rng.integers(NUM_FILLERS, size=(_PARTS, columns))
    tokens[parts, np.arange(columns)] = symbols
    tokens[-1] = symbols
    return _symbol_row(length, tokens.ravel(), (_PARTS - 1 - parts) * columns)


def _symbol_row(length: int, tokens: np.ndarray, distances: np.ndarray) -> TaskRow:
    """A row that ends in these tokens, the last of which are the answers, one for each distance; fillers before it."""
    count = len(distances)
    before = np.full(length - len(tokens), _SYMBOLS)
    options = np.tile(np.arange(_SYMBOLS), (count, 1))
    answers = np.arange(length - count, length)
    return TaskRow(np.concatenate([before, tokens]), answers, distances, options, np.ones(count, dtype=bool))


class _Row:
    """A row in the making.

    waiting: key → (value, position) of the facts that have not been queried yet. named: name → (key, position) of the
    aliases that have not been queried yet.
    """

    def __init__(self, length: int) -> None:
        self.tokens = np.zeros(length, dtype=np.int64)
        self.used = 0
        self.waiting: dict[int, tuple[int, int]] = {}
        self.named: dict[int, tuple[int, int]] = {}
        self.answers: list[int] = []
        self.distances: list[int] = []
        self.options: list[Sequence[int]] = []
        self.open: list[bool] = []

    @property
    def room(self) -> int:
        return len(self.tokens) - self.used

    def add(self, token: int) -> None:
        self.tokens[self.used] = token
        self.used += 1

    def fact(self, key: int, value: int) -> None:
        self.waiting[key] = (value, self.used)
        self.add(key * NUM_VALUES + value)

    def alias(self, name: int, key: int) -> None:
        self.named[name] = (key, self.used)
        self.add(_ALIAS + name * NUM_KEYS + key)

    def query(self, key: int, values: np.ndarray, is_open: bool, alias: int | None = None) -> None:
        """A query of a fact and its answer, one of V(values). is_open: see `TaskRow.open`. alias: the name by which the
        query asks for the key, of an alias that is forgotten."""
        value, farthest = self.waiting.pop(key)
        if alias is not None:
            farthest = min(farthest, self.named.pop(alias)[1])
        self.add(_QUERY + key if alias is None else _ALIAS_QUERY + alias)
        self.answer(_VALUE + value, self.used - 1 - farthest, [_VALUE + int(v) for v in values], is_open)

    def answer(self, token: int, distance: int, options: Sequence[int], is_open: bool) -> None:
        """A token that is asked for. distance, options, is_open: see `TaskRow`."""
        self.answers.append(self.used)
        self.distances.append(distance)
        self.options.append(options)
        self.open.append(is_open)
        self.add(token)

    def fill(self, rng: np.random.Generator, count: int | None = None) -> None:
        """Add `count` random filler tokens, or fill up the row."""
        for token in rng.integers(NUM_FILLERS, size=min(self.room, self.room if count is None else count)):
            self.add(_FILLER + int(token))

    def done(self, width: int) -> TaskRow:
        """The finished row. width: number of options of a question."""
        return TaskRow(
            self.tokens,
            np.array(self.answers, dtype=np.int64),
            np.array(self.distances, dtype=np.int64),
            np.array(self.options, dtype=np.int64).reshape(-1, width),
            np.array(self.open, dtype=bool),
        )


def _retrieval(row: _Row, rng: np.random.Generator) -> None:
    """Up to eight facts wait for their query; the next is chosen at random, so that distances vary widely."""
    waiting = sorted(row.waiting)
    full = len(waiting) == NUM_KEYS
    if waiting and (full or rng.random() < _ASK_EARLY):
        row.query(waiting[int(rng.integers(len(waiting)))], np.arange(NUM_VALUES), is_open=True)
    else:
        free = [key for key in range(NUM_KEYS) if key not in row.waiting]
        row.fact(free[int(rng.integers(len(free)))], int(rng.integers(NUM_VALUES)))


def _assignment(row: _Row, rng: np.random.Generator) -> None:
    keys, values = rng.permutation(NUM_KEYS)[:_ASSIGNED], rng.permutation(NUM_VALUES)[:_ASSIGNED]
    for key, value in zip(keys, values, strict=True):
        row.fact(int(key), int(value))
    row.fill(rng, int(rng.integers(min(_MAX_FILLERS, row.room - 2 * _ASSIGNED) + 1)))
    for number, key in enumerate(rng.permutation(keys)):
        row.query(int(key), values, is_open=number == 0)


def _chain(row: _Row, rng: np.random.Generator) -> None:
    keys, values = rng.permutation(NUM_KEYS)[:_ASSIGNED], rng.permutation(NUM_VALUES)[:_ASSIGNED]
    # Name n stands for the n-th of the keys in their random order. Facts of the episode before are forgotten.
    row.waiting.clear()
    for number in rng.permutation(_ASSIGNED + _ALIASES):
        if number < _ASSIGNED:
            row.fact(int(keys[number]), int(values[number]))
        else:
            row.alias(int(number) - _ASSIGNED, int(keys[number - _ASSIGNED]))
    row.fill(rng, int(rng.integers(min(_MAX_CHAIN_FILLERS, row.room - 2 * _ALIASES) + 1)))
    for number, name in enumerate(rng.permutation(_ALIASES)):
        row.query(row.named[int(name)][0], values, is_open=number == 0, alias=int(name))


TASKS.add("retrieval", Task(partial(_facts, _retrieval, 2, NUM_VALUES), 1 / NUM_VALUES, block="facts", number=0))
TASKS.add("assignment", Task(partial(_facts, _assignment, 3 * _ASSIGNED, _ASSIGNED), 1 / 5, block="facts", number=1))
TASKS.add("chain", Task(partial(_facts, _chain, _SHORTEST_CHAIN, _ASSIGNED), 1 / _ASSIGNED, block="facts", number=2))
TASKS.add("repeat", Task(_repeat, 1 / _SYMBOLS, block="symbols", number=3))
TASKS.add("induction", Task(_induction, 1 / _COPIED, ids=_COPIED + 1, number=5))
TASKS.add("scattered", Task(_scattered, 1 / _SYMBOLS, block="symbols", number=4))
