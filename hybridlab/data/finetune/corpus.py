"""The examples of a task as a run reads them: training and measured parts as tokens, with a fingerprint.

An encoder reads [CLS] a [SEP] b [SEP], with token types 0 up to the first [SEP] and 1 after it; a decoder reads
a END b END, with the end-of-document token. A row holds one or two texts; multiple choice has a row for each option.
Rows that are too long lose tokens of the longer text; the context of a span is read in windows instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hybridlab.config.finetune import Finetune
from hybridlab.data.benchmarks.root import located
from hybridlab.data.finetune.examples import TRAIN, Example, parts_of, source_name
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import end_token, make_tokenizer, tokenizer_digest, vocabulary_size
from hybridlab.errors import UserError
from hybridlab.registry import FINETUNE_TASKS

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


# ---- corpora ----


@dataclass(frozen=True)
class TaskCorpus(Corpus):
    """The examples of a task. encoded: by part, `train` and those that are measured. frame: the special tokens."""

    task: FineTask | None = None
    encoded: dict[str, Encoded] = field(default_factory=dict)
    frame: Frame = Frame((), 0, 0)

    @property
    def measured(self) -> dict[str, Encoded]:
        """The parts to measure with, by name."""
        return {name: part for name, part in self.encoded.items() if name != TRAIN}


def task_corpus(
    settings: Finetune, tokenizer: str, length: int, causal: bool, say: Callable[[str], None]
) -> TaskCorpus:
    """The corpus of a task, with rows of at most `length` tokens. tokenizer: as in `data.tokenizer`, of a file or the
    hub. causal: for a decoder. UserError for files that cannot be used."""
    corpus = _task_corpus(settings, tokenizer, length, causal, _files_key(settings))
    parts = ", ".join(f"{len(part.examples):,} {name}" for name, part in corpus.encoded.items())
    say(f"{settings.task}: examples: {parts}")
    for name, part in corpus.encoded.items():
        if part.cut:
            share = f"{part.cut:,} of the {len(part.examples):,} {name} examples"
            say(f"{settings.task}: {share} are cut to {length} tokens")
    return corpus


def _files_key(settings: Finetune) -> tuple[Any, ...]:
    """Sizes and times of the local files, so that a changed file is read again."""
    paths = [located(path) for path in (settings.data, settings.validation) if path is not None]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.is_file()]
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@lru_cache(maxsize=2)
def _task_corpus(settings: Finetune, spec: str, length: int, causal: bool, key: tuple[Any, ...]) -> TaskCorpus:
    """Kept, since epochs are counted before the run is started. key: of the files, which may change in between."""
    task: FineTask = FINETUNE_TASKS.get(settings.task)
    tokenizer = make_tokenizer(spec, ())
    frame = frame_of(tokenizer, causal)
    smallest = frame.size + (2 if task.kind == "span" else 1)
    if length < smallest:
        raise UserError(f"training.seq_len = {length}: a row of {task.name} needs at least {smallest} tokens; raise it")
    # The text of a special token inside an example is encoded as ordinary characters.
    tokenizer.encode_special_tokens = True
    parts = {name: _spaced(part, settings.max_examples) for name, part in parts_of(task, settings).items()}
    encoded = {name: encode(task, part, tokenizer, frame, length, settings.stride) for name, part in parts.items()}
    digest, vocab = tokenizer_digest(tokenizer), vocabulary_size(tokenizer)
    meta = {
        "source": source_name(task, settings),
        "documents": sum(len(part.examples) for part in encoded.values()),
        "tokenizer": {"spec": spec, "sha256": digest, "vocab": vocab, "end": frame.between},
        "splits": {
            name: {"bytes": 0, "shards": [{"tokens": sum(map(len, rows))}]}
            for name, rows in (("train", encoded[TRAIN].rows), ("validation", _measured_rows(encoded)))
        },
        "fingerprint": _fingerprint(digest, encoded),
    }
    kind, _, path = spec.partition(":")
    folder = Path(path) if kind == "file" else located(settings.data or ".")
    folder = folder if folder.is_dir() else folder.parent
    flat = [np.concatenate(rows).astype(np.int64) for rows in ([*encoded[TRAIN].rows], _measured_rows(encoded))]
    return TaskCorpus(folder, meta, tokenizer, [flat[0]], [flat[1]], (), task, encoded, frame)


def _measured_rows(encoded: dict[str, Encoded]) -> list[np.ndarray]:
    return [row for name, part in encoded.items() if name != TRAIN for row in part.rows]


def _fingerprint(tokenizer: str, encoded: dict[str, Encoded]) -> str:
    """A digest of all rows and targets, and of the tokenizer."""
    digest = hashlib.sha256(tokenizer.encode())
    for name, part in encoded.items():
        digest.update(f"{name} {len(part.rows)}\n".encode())
        for row in part.rows:
            digest.update(len(row).to_bytes(4, "little") + row.astype("<i4").tobytes())
        digest.update(part.targets.tobytes() + part.second.astype("<i8").tobytes())
    return digest.hexdigest()


def _spaced(examples: list[Example], most: int | None) -> list[Example]:
    """At most so many examples, evenly spaced."""
    if most is None or len(examples) <= most:
        return examples
    return [examples[int(i)] for i in np.linspace(0, len(examples) - 1, most).round()]
