"""Examples as tokens: one or two texts in a row, a row for each option, windows over long contexts.

An encoder reads [CLS] a [SEP] b [SEP], with token types 0 up to the first [SEP] and 1 after it; a decoder reads
a END b END, with the end-of-document token. Rows that are too long lose tokens of the longer text; the context of a
span is read in windows instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from hybridlab.data.finetune.examples import Example
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.data.tokenizers import end_token
from hybridlab.errors import UserError

_AT_ONCE = 1024


@dataclass(frozen=True)
class Frame:
    """The special tokens of a row: before the texts, after each text, and in the place of padding."""

    start: tuple[int, ...]
    between: int
    padding: int

    @property
    def size(self) -> int:
        """Special tokens of a row with two texts."""
        return len(self.start) + 2


def frame_of(tokenizer: Tokenizer, causal: bool) -> Frame:
    """The special tokens for a decoder (causal) or an encoder; UserError if an encoder's tokenizer lacks one."""
    if causal:
        end = end_token(tokenizer)
        return Frame((), end, end)
    start, between, padding = (_special(tokenizer, name) for name in ("[CLS]", "[SEP]", "[PAD]"))
    return Frame((start,), between, padding)


def _special(tokenizer: Tokenizer, name: str) -> int:
    token = tokenizer.token_to_id(name)
    if token is None:
        raise UserError(
            f"tokenizer: it has no token {name}, which an encoder needs for fine-tuning; use the tokenizer that the "
            "encoder was trained with"
        )
    return token


@dataclass(frozen=True)
class Window:
    """Where a row's context comes from. example: its number. first: index in the row of the first token of the context.
    offsets: (n, 2), first character and the one after the last, in the context, of each of its tokens."""

    example: int
    first: int
    offsets: np.ndarray


@dataclass(frozen=True)
class Encoded:
    """The examples of one part as tokens.

    rows: the token ids of each row, `options` rows for each target. second: for each row, the index at which its second
    text begins; the row's length if there is none. targets: (N, T), class, number, or first and last token of a span
    (both 0 where the window does not hold it). examples: those that the targets are of. windows: of spans, a window for
    each target. cut: examples that have lost tokens. padding: the id in the place of padding.
    """

    rows: list[np.ndarray]
    second: np.ndarray
    targets: np.ndarray
    options: int
    examples: list[Example]
    windows: list[Window]
    cut: int
    padding: int

    def __len__(self) -> int:
        return len(self.targets)


def encode(
    task: FineTask, examples: Sequence[Example], tokenizer: Tokenizer, frame: Frame, length: int, stride: int | None
) -> Encoded:
    """Rows of at most `length` tokens. stride: of spans, tokens from one window to the next."""
    if task.kind == "span":
        return _spans(examples, tokenizer, frame, length, stride)
    rows: list[np.ndarray] = []
    second: list[int] = []
    cut = 0
    for start in range(0, len(examples), _AT_ONCE):
        some = examples[start : start + _AT_ONCE]
        # The options of a question, and often several questions, share a passage.
        texts = list(dict.fromkeys(text for example in some for row in example.rows for text in row))
        encoded = dict(zip(texts, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True))
        for example in some:
            whole = True
            for texts_of_row in example.rows:
                parts = [encoded[text].ids for text in texts_of_row]
                kept = _fitting([len(part) for part in parts], length - len(frame.start) - len(parts))
                whole = whole and kept == [len(part) for part in parts]
                row, begins = _row(frame, [part[:n] for part, n in zip(parts, kept, strict=True)])
                rows.append(row)
                second.append(begins)
            cut += not whole
    kind = np.float32 if task.kind == "number" else np.int64
    targets = np.array([[example.label] for example in examples], dtype=kind).reshape(len(examples), 1)
    return Encoded(rows, np.array(second), targets, task.options, list(examples), [], cut, frame.padding)


def _row(frame: Frame, parts: list[list[int]]) -> tuple[np.ndarray, int]:
    """A row of tokens, and the index at which its second text begins."""
    ids = [*frame.start, *parts[0], frame.between]
    begins = len(ids)
    for part in parts[1:]:
        ids += [*part, frame.between]
    return np.array(ids, dtype=np.int32), begins


def _fitting(lengths: list[int], room: int) -> list[int]:
    """How many tokens of each text are kept, as with `truncation=True` of transformers: the longer one is cut, to the
    length of the other at most. Of an odd room the longer one has one token more, of equal ones the second."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    first, second = lengths
    shorter = min(first, second, room // 2)
    return [room - shorter, shorter] if first > second else [shorter, room - shorter]


def _spans(examples: Sequence[Example], tokenizer: Tokenizer, frame: Frame, length: int, stride: int | None) -> Encoded:
    """Windows over the contexts of questions; a question keeps at most half a row."""
    made = Encoded([], np.empty(0), np.empty(0), 1, list(examples), [], 0, 0)
    second: list[int] = []
    targets: list[tuple[int, int]] = []
    cut = 0
    for start in range(0, len(examples), _AT_ONCE):
        some = examples[start : start + _AT_ONCE]
        questions = tokenizer.encode_batch_fast([e.rows[0][0] for e in some], add_special_tokens=False)
        distinct = list(dict.fromkeys(e.rows[0][1] for e in some))
        contexts = dict(zip(distinct, tokenizer.encode_batch(distinct, add_special_tokens=False), strict=True))
        for number, (example, question) in enumerate(zip(some, questions, strict=True), start):
            context = contexts[example.rows[0][1]]
            offsets = np.array(context.offsets, dtype=np.int64).reshape(-1, 2)
            asked = question.ids[: (length - frame.size) // 2]
            cut += len(asked) < len(question.ids)
            room = length - frame.size - len(asked)
            step = min(stride or max(1, room // 2), room)
            for first in range(0, max(1, len(context.ids) - room + step), step):
                kept = slice(first, first + room)
                row, begins = _row(frame, [asked, context.ids[kept]])
                made.rows.append(row)
                made.windows.append(Window(number, begins, offsets[kept]))
                second.append(begins)
                targets.append(_place(example.answers[0], offsets[kept], begins))
    places = np.array(targets, dtype=np.int64).reshape(-1, 2)
    return Encoded(made.rows, np.array(second), places, 1, made.examples, made.windows, cut, frame.padding)


def _place(answer: tuple[str, int], offsets: np.ndarray, begins: int) -> tuple[int, int]:
    """First and last token of an answer in a row, or (0, 0) if the window does not hold all of it."""
    text, start = answer
    end = start + len(text)
    inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(inside) or offsets[inside[0], 0] > start or offsets[inside[-1], 1] < end:
        return 0, 0
    return begins + int(inside[0]), begins + int(inside[-1])
