"""The examples of a task: texts with a class, a number, a right option or answers, from files or the hub, in parts;
and as tokens, as a run reads them, with a fingerprint.

`--data FILE` is the training part; what is measured is `--validation FILE` or, without one, a share of the training
examples, which is drawn once and is the same for all runs. `--data FOLDER` holds train.* and validation.* or dev.*.
Without --data the task's dataset of the Hugging Face hub is read. Files are read by data/files.py; a .txt is a table
that tabs separate, as GLUE releases them, and a .json may be in SQuAD's own layout.

An encoder reads [CLS] a [SEP] b [SEP], with token types 0 up to the first [SEP] and 1 after it; a decoder reads
a END b END, with the end-of-document token. A row holds one or two texts; multiple choice has a row for each option.
Rows that are too long lose tokens of the longer text; the context of a span is read in windows instead.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from hybridlab.config.finetune import Finetune
from hybridlab.data.batches import spaced
from hybridlab.data.benchmark_rows import one_of
from hybridlab.data.files import (
    Layout,
    Record,
    SourceFile,
    files_key,
    located,
    other_separator,
    read_records,
    table_header,
)
from hybridlab.data.finetune.chats import ROLES, ChatTemplate, Document, chat_template, shared_rows
from hybridlab.data.finetune.tasks import Columns, FineTask
from hybridlab.data.hub_access import without_hub
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import (
    READ_BESIDE,
    end_token,
    make_tokenizer,
    stated_beside,
    tokenizer_digest,
    tokenizer_file,
    vocabulary_size,
)
from hybridlab.errors import UserError, first_line
from hybridlab.messages import say
from hybridlab.registry import FINETUNE_TASKS

_AT_ONCE = 1024
_SEED = 20_250_101
"""Of the examples that are held out: the same for all runs."""
_PART = re.compile(r"(train|validation|valid|val|dev)(_matched|_mismatched)?(-\d+-of-\d+)?\.")
TRAIN = "train"
_ENDINGS = (".tsv", ".txt", ".csv", ".jsonl", ".json", ".parquet")
_TABLES = (".tsv", ".txt", ".csv")


@dataclass(frozen=True)
class Example:
    """rows: one or two texts for each row of the model's input; in multiple choice, a row for each option; of a chat,
    role and content of each message. label: the number of the class or option, or the number asked for. answers: of a
    span, the right ones, each with the character of the context at which it begins; none if the question has no answer.
    group: examples on the same passage."""

    rows: tuple[tuple[str, ...], ...]
    label: float
    group: str
    answers: tuple[tuple[str, int], ...] = ()


def examples_of(task: FineTask, rows: Iterable[Record]) -> list[Example]:
    """The examples of a task's rows. UserError with the place of a row that lacks a column, or whose label is wrong."""
    laid_out = ((_layout(task, row), row) for row in rows)
    return [_MAKERS[task.kind](task, columns, item) for columns, row in laid_out for item in _unfolded(columns, row)]


def _layout(task: FineTask, row: Record) -> Columns:
    columns = next((columns for columns in task.layouts if all(name in row.values for name in columns.names)), None)
    if columns is not None:
        return columns
    missing = next(name for name in task.layouts[0].names if name not in row.values)
    raise UserError(
        f"{row.origin}: the task {task.name} needs the columns {task.wanted}; there is no {missing!r} among "
        f"{', '.join(map(str, list(row.values)[:12]))}"
    )


def _unfolded(columns: Columns, row: Record) -> Iterator[Record]:
    """A row for each question of a row with several."""
    if not columns.lists:
        yield row
        return
    first, *rest = columns.names
    lists = {name: row.values[name] for name in rest}
    if not all(isinstance(value, list) for value in lists.values()) or len({len(v) for v in lists.values()}) != 1:
        raise UserError(f"{row.origin}: {', '.join(rest)} must be lists of equal length; correct this row")
    for number in range(len(lists[rest[0]])):
        single = {name: value[number] for name, value in lists.items()}
        yield Record({first: row.values[first], **single}, f"{row.origin}, question {number + 1}")


def _wrong(row: Record, problem: str) -> UserError:
    return UserError(f"{row.origin}: {problem}; correct or remove this row")


def _text(row: Record, name: str) -> str:
    value = row.values[name]
    if not isinstance(value, str):
        raise _wrong(row, f"{name} is {value!r}, and must be a text")
    return value


def _class_of(task: FineTask, row: Record, name: str) -> int:
    """The number of the class that a cell names, or whose number it is."""
    try:
        return one_of(row.values[name], len(task.classes), task.classes)
    except ValueError:
        classes = ", ".join(f"{number} ({word})" for number, word in enumerate(task.classes))
        raise _wrong(
            row, f"the label {row.values[name]!r} in {name} is none of the task {task.name}: {classes}"
        ) from None


def _classes(task: FineTask, columns: Columns, row: Record) -> Example:
    texts = tuple(_text(row, name) for name in columns.texts)
    return Example((texts,), _class_of(task, row, columns.label), row.origin)


def _number(task: FineTask, columns: Columns, row: Record) -> Example:
    try:
        value = float(row.values[columns.label])
    except (TypeError, ValueError):
        value = math.nan
    low, high = task.limits or (-math.inf, math.inf)
    if not low <= value <= high:
        cell = repr(row.values[columns.label])
        raise _wrong(row, f"{columns.label} is {cell}, and must be a number from {low:g} to {high:g}")
    return Example((tuple(_text(row, name) for name in columns.texts),), value, row.origin)


def _choice(task: FineTask, columns: Columns, row: Record) -> Example:
    assert columns.options is not None
    options = row.values[columns.options]
    if not isinstance(options, list) or len(options) != task.options or not all(isinstance(o, str) for o in options):
        required = f"a list of {task.options} texts"
        raise _wrong(row, f"{columns.options} must be {required}, and is {str(options)[:80]!r}")
    passage, *question = (_text(row, name) for name in columns.texts)
    # An option replaces the question's blank, or stands after it (as for RACE in BERT's line of work).
    blank = "_" if task.fill and question and "_" in question[0] else None
    seconds = [question[0].replace(blank, o) if blank else " ".join([*question, o]) for o in options]
    return Example(tuple((passage, second) for second in seconds), _class_of(task, row, columns.label), passage)


def _span(task: FineTask, columns: Columns, row: Record) -> Example:
    question, context = (_text(row, name) for name in columns.texts)
    if row.values.get("is_impossible"):
        raise UserError(
            f"{row.origin}: this question has no answer (SQuAD 2.0), and {task.name} asks for one in every paragraph; "
            "remove the questions with is_impossible"
        )
    answers = tuple(_answers(row, columns.label))
    if not answers:
        raise UserError(f"{row.origin}: the question has no answers; remove it, or add one")
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise UserError(
                f"{row.origin}: the answer {text[:40]!r} is not at character {start} of the context; correct "
                "answer_start"
            )
    return Example(((question, context),), 0.0, context, answers)


def _answers(row: Record, name: str) -> Iterator[tuple[str, int]]:
    """Answers as SQuAD has them, [{text, answer_start}], or as the hub has them, {text: […], answer_start: […]}."""
    cell: Any = row.values[name]
    try:
        if isinstance(cell, dict):
            pairs = list(zip(cell["text"], cell["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in cell]
        for text, start in pairs:
            if not isinstance(text, str) or type(start) is not int or start < 0:
                raise TypeError
            yield text, start
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{row.origin}: {name} must be a list of {{text, answer_start}}, and is {str(cell)[:80]}; correct it"
        ) from None


def _chat(task: FineTask, columns: Columns, row: Record) -> Example:
    if columns.texts:
        prompt = "\n\n".join(text for name in columns.texts if (text := _text(row, name)))
        messages: list[tuple[str, ...]] = [("user", prompt), ("assistant", _text(row, columns.label))]
    else:
        messages = list(_messages(row, columns.label))
    answers = [number for number, (role, _) in enumerate(messages) if role == "assistant"]
    if not answers:
        raise _wrong(row, "the chat has no message of the assistant, whose answers are learned")
    for number in answers:
        if not messages[number][1].strip():
            raise _wrong(row, "the answer is empty")
    return Example(tuple(messages[: answers[-1] + 1]), 0.0, row.origin)


def _messages(row: Record, name: str) -> Iterator[tuple[str, str]]:
    cell = row.values[name]
    for message in cell if isinstance(cell, list) and cell else [None]:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            excerpt = str(cell if message is None else message)[:80]
            raise _wrong(row, f"{name} must be a list of {{role, content}} with texts, and has {excerpt}")
        if message.get("role") not in ROLES:
            raise _wrong(row, f"the role {message.get('role')!r} is none of {', '.join(ROLES)}")
        yield message["role"], message["content"]


_MAKERS = {"classes": _classes, "number": _number, "choice": _choice, "span": _span, "chat": _chat}


# ---- rows of files ----


def read_rows(path: Path, task: FineTask) -> list[Record]:
    """All rows of a file of a task, at least one. UserError with the place of the first mistake."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give the path of a task file")
    file = SourceFile(path)
    if file.ending not in _ENDINGS:
        ending = file.ending or "no ending"
        raise UserError(f"{path}: {ending} is no format of task files; use {', '.join(_ENDINGS)}")
    if file.ending in _TABLES:
        table = read_records(file, _table_layout(file, task))
        rows = [Record({name.strip(): cell for name, cell in row.values.items()}, row.origin) for row in table]
    else:
        rows = []
        for row in read_records(file):
            if not isinstance(row.values, dict):
                raise UserError(f"{row.origin}: this is no JSON object; write one object for each example")
            is_squad = row.origin == str(path) and isinstance(row.values.get("data"), list)
            rows += _squad(path, row.values["data"]) if is_squad else [row]
    if not rows:
        raise UserError(f"{path}: the file has no examples; give another file")
    return rows


def _squad(path: Path, articles: list[Any]) -> Iterator[Record]:
    """SQuAD's data[].paragraphs[].qas[] as rows with the columns of the hub."""
    place = "data"
    try:
        for a, article in enumerate(articles):
            for p, paragraph in enumerate(article["paragraphs"]):
                place = f"data[{a}].paragraphs[{p}]"
                for question in paragraph["qas"]:
                    origin = f"{path}: {place}, question {question.get('id', '?')}"
                    yield Record({"context": paragraph["context"], **question}, origin)
    except (KeyError, TypeError, AttributeError) as error:
        missing = f" (it has no {error})" if isinstance(error, KeyError) else ""
        raise UserError(
            f"{path}: {place} is not in SQuAD's layout{missing}; each paragraph needs context and qas"
        ) from None


def _table_layout(file: SourceFile, task: FineTask) -> Layout:
    """With the columns of a table without a header, if the task knows such tables and this is one."""
    ending = ".csv" if file.ending == ".csv" else ".tsv"
    first = table_header(file, Layout(ending))
    if not first:
        raise UserError(f"{file.path}: the file is empty; give a file with examples")
    header = [name.strip() for name in first]
    if any(set(columns.names) <= set(header) for columns in task.layouts):
        return Layout(ending)
    if len(header) == len(task.headerless):
        return Layout(ending, columns=task.headerless)
    has = ", ".join(name[:40] for name in header[:12])
    raise UserError(
        f"{file.path}:1: the header needs the columns {task.wanted}, and has {has}; "
        f"{other_separator(first, ending) or 'rename the columns'}"
    )


# ---- parts ----


def source_name(task: FineTask, settings: Finetune) -> str:
    """Where the examples come from, in words."""
    if settings.data is None and task.hub is not None:
        return ":".join(filter(None, ("hub", task.hub.name, task.hub.config)))
    return f"{task.name}:{settings.data}"


def parts_of(task: FineTask, settings: Finetune) -> dict[str, list[Example]]:
    """The examples by part: train first, then those that are measured. UserError if one is empty."""
    if settings.data is None:
        parts = _from_hub(task, source_name(task, settings), own_validation=settings.validation is None)
    else:
        parts = _local(task, located(settings.data))
    if settings.validation is not None:
        parts = {TRAIN: parts[TRAIN], task.measured: _read(task, [located(settings.validation)])}
    elif len(parts) == 1:
        return _held_out(parts[TRAIN], settings, task.measured)
    elif settings.validation_fraction is not None:
        raise UserError(
            "finetune.validation_fraction has no effect: "
            f"{settings.data or source_name(task, settings)} has a part to measure with; leave it out"
        )
    return parts


def _read(task: FineTask, files: list[Path]) -> list[Example]:
    return [example for file in files for example in examples_of(task, read_rows(file, task))]


def _local(task: FineTask, path: Path) -> dict[str, list[Example]]:
    """The parts of a file, which is all training, or of a folder with files named after its parts."""
    if not path.exists():
        raise UserError(f"--data {path}: there is no such file or folder; give a file of the task {task.name}")
    if not path.is_dir():
        return {TRAIN: _read(task, [path])}
    files: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        match = _PART.match(file.name)
        if match and SourceFile(file).ending in _ENDINGS:
            part = TRAIN if match[1] == TRAIN else "mismatched" if match[2] == "_mismatched" else "validation"
            files.setdefault(part, []).append(file)
    if TRAIN not in files:
        names = ", ".join(file.name for file in sorted(path.iterdir())[:8]) or "nothing"
        raise UserError(
            f"--data {path}: the folder has no train.tsv, train.jsonl … (it has {names}); give the training file itself"
        )
    if "mismatched" in files and "validation" not in files:
        files["validation"] = files.pop("mismatched")
    return {part: _read(task, files[part]) for part in (TRAIN, "validation", "mismatched") if part in files}


def _from_hub(task: FineTask, name: str, own_validation: bool) -> dict[str, list[Example]]:
    """name: of the dataset, for errors."""
    assert task.hub is not None, "settings without a file are of a task with a dataset"
    splits = {TRAIN: "train"} | (task.hub.splits if own_validation else {})
    rows: dict[str, list[Record]] = {}
    try:
        with without_hub(wanted=False):
            import datasets

            for part, split in splits.items():
                dataset = datasets.load_dataset(task.hub.name, task.hub.config, split=split)
                rows[part] = [Record(dict(row), f"{name} {split} {number}") for number, row in enumerate(dataset)]
    except Exception as error:  # the library raises errors of many types, for network and files
        offline = isinstance(error, ConnectionError)
        why = "hub cannot be reached, and this dataset is not in its cache" if offline else "dataset cannot be read"
        raise UserError(
            f"{name}: the {why} ({first_line(error)}); give local files of the task with --data PATH"
        ) from None
    return {part: examples_of(task, rows[part]) for part in splits}


def _held_out(examples: list[Example], settings: Finetune, name: str) -> dict[str, list[Example]]:
    """The examples without and with a share of them, in groups on the same passage."""
    target, count = settings.held_out * len(examples), 0
    taken: set[str] = set()
    sizes = Counter(example.group for example in examples)
    groups = list(sizes)
    for index in np.random.default_rng(_SEED).permutation(len(groups)):
        if count >= max(1.0, target) or len(taken) == len(groups) - 1:
            break
        taken.add(groups[index])
        count += sizes[groups[index]]
    if not taken:
        raise UserError(
            f"--data {settings.data}: {len(examples)} example{'s' * (len(examples) > 1)} on one text cannot be split "
            "into a part to train and one to measure with; add --validation FILE"
        )
    parts: dict[str, list[Example]] = {TRAIN: [], name: []}
    for example in examples:
        parts[name if example.group in taken else TRAIN].append(example)
    return parts


# ---- examples as tokens ----


@dataclass(frozen=True)
class Frame:
    """The special tokens of a row: before the texts, after each text, and instead of padding."""

    start: tuple[int, ...]
    between: int
    padding: int

    @property
    def size(self) -> int:
        """Special tokens of a row with two texts."""
        return len(self.start) + 2


def frame_of(tokenizer: Tokenizer, causal: bool, file: Path | None = None) -> Frame:
    """The special tokens for a decoder (causal) or an encoder; UserError if an encoder's tokenizer lacks one. file: the
    tokenizer.json."""
    if causal:
        end = end_token(tokenizer, file)
        return Frame((), end, end)
    ids: list[int] = []
    for name in ("[CLS]", "[SEP]", "[PAD]"):
        token = tokenizer.token_to_id(name)
        if token is None:
            raise UserError(
                f"tokenizer: it has no token {name}, which an encoder needs for fine-tuning; use the tokenizer that "
                "the encoder was trained with"
            )
        ids.append(token)
    return Frame((ids[0],), ids[1], ids[2])


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
    (both 0 where the window does not hold it); of chats, for each place of a row the token that is learned there, −1
    for none. examples: those that the targets are of. windows: of spans, a window for each target. cut: examples that
    have lost tokens. padding: the id instead of padding. left_out: chats whose answers begin too late. starts: of
    chats, where in each row its documents begin.
    """

    rows: list[np.ndarray]
    second: np.ndarray
    targets: np.ndarray
    options: int
    examples: list[Example]
    windows: list[Window]
    cut: int
    padding: int
    left_out: int = 0
    starts: list[list[int]] = field(default_factory=list)

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
    for example, encoded in _encodings(examples, tokenizer.encode_batch_fast):
        uncut = True
        for texts_of_row in example.rows:
            parts = [encoded[text].ids for text in texts_of_row]
            lengths = _fitting([len(part) for part in parts], length - len(frame.start) - len(parts))
            uncut = uncut and lengths == [len(part) for part in parts]
            row, begins = _row(frame, [part[:n] for part, n in zip(parts, lengths, strict=True)])
            rows.append(row)
            second.append(begins)
        cut += not uncut
    kind = np.float32 if task.kind == "number" else np.int64
    targets = np.array([[example.label] for example in examples], dtype=kind).reshape(len(examples), 1)
    return Encoded(rows, np.array(second), targets, task.options, list(examples), [], cut, frame.padding)


def _encodings(
    examples: Sequence[Example], encode_batch: Callable[..., list[Encoding]]
) -> Iterator[tuple[Example, dict[str, Encoding]]]:
    """Each example with the tokens of its texts. Equal texts of neighbours are encoded once: the options of a question,
    and often several questions, share a passage."""
    for start in range(0, len(examples), _AT_ONCE):
        some = examples[start : start + _AT_ONCE]
        texts = list(dict.fromkeys(text for example in some for row in example.rows for text in row))
        encoded = dict(zip(texts, encode_batch(texts, add_special_tokens=False), strict=True))
        yield from ((example, encoded) for example in some)


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
    rows: list[np.ndarray] = []
    windows: list[Window] = []
    targets: list[tuple[int, int]] = []
    cut = 0
    # Not `encode_batch_fast`, which leaves out the offsets.
    for number, (example, encoded) in enumerate(_encodings(examples, tokenizer.encode_batch)):
        question, context = (encoded[text] for text in example.rows[0])
        offsets = np.array(context.offsets, dtype=np.int64).reshape(-1, 2)
        question_ids = question.ids[: (length - frame.size) // 2]
        cut += len(question_ids) < len(question.ids)
        room = length - frame.size - len(question_ids)
        step = min(stride or max(1, room // 2), room)
        for first in range(0, max(1, len(context.ids) - room + step), step):
            span = slice(first, first + room)
            row, begins = _row(frame, [question_ids, context.ids[span]])
            rows.append(row)
            windows.append(Window(number, begins, offsets[span]))
            targets.append(_place(example.answers[0], offsets[span], begins))
    places, second = np.array(targets, dtype=np.int64).reshape(-1, 2), np.array([window.first for window in windows])
    return Encoded(rows, second, places, 1, list(examples), windows, cut, frame.padding)


def _place(answer: tuple[str, int], offsets: np.ndarray, begins: int) -> tuple[int, int]:
    """First and last token of an answer in a row, or (0, 0) if the window does not hold all of it."""
    text, start = answer
    end = start + len(text)
    inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(inside) or offsets[inside[0], 0] > start or offsets[inside[-1], 1] < end:
        return 0, 0
    return begins + int(inside[0]), begins + int(inside[-1])


def encode_chats(
    examples: Sequence[Example], template: ChatTemplate, frame: Frame, length: int, shared: bool
) -> Encoded:
    """Chats in rows of at most `length` tokens, which lose what stands beyond. shared: several in one row."""
    documents: list[Document] = []
    used: list[Example] = []
    cut = 0
    for example in examples:
        uncut = template.documents(example.rows, example.group)
        fitting = [Document(document.tokens[:length], document.learned[:length]) for document in uncut]
        fitting = [document for document in fitting if document.learned.any()]
        documents += fitting
        used += [example] if fitting else []
        cut += bool(fitting) and any(len(document.tokens) > length for document in uncut)
    sizes = [len(document.tokens) for document in documents]
    together = shared_rows(sizes, length) if shared else [[number] for number in range(len(sizes))]
    targets = np.full((len(together), length), -1, dtype=np.int32)
    rows, starts = [], []
    for row, numbers in enumerate(together):
        tokens, learned = (np.concatenate([getattr(documents[n], of) for n in numbers]) for of in ("tokens", "learned"))
        targets[row, np.flatnonzero(learned)] = tokens[learned]
        rows.append(tokens)
        starts.append([0, *np.cumsum([sizes[n] for n in numbers])[:-1].tolist()])
    second, left_out = np.zeros(len(rows), dtype=np.int64), len(examples) - len(used)
    return Encoded(rows, second, targets, 1, used, [], cut, frame.padding, left_out, starts)


# ---- corpora ----


@dataclass(frozen=True)
class TaskCorpus(Corpus):
    """The examples of a task. encoded: by part, `train` and those that are measured. template: of chats."""

    task: FineTask | None = None
    encoded: dict[str, Encoded] = field(default_factory=dict)
    template: ChatTemplate | None = None

    @property
    def measured(self) -> dict[str, Encoded]:
        """The parts to measure with, by name."""
        return {name: part for name, part in self.encoded.items() if name != TRAIN}


def task_corpus(settings: Finetune, tokenizer: str, length: int, causal: bool, shared: bool = True) -> TaskCorpus:
    """The corpus of a task, with rows of at most `length` tokens. tokenizer: as in `data.tokenizer`, of a file or the
    hub. causal: for a decoder. shared: chats may share a row. UserError for files that cannot be used."""
    corpus = _task_corpus(settings, tokenizer, length, causal, shared, _files_key(settings, tokenizer))
    parts = ", ".join(f"{len(part.examples):,} {name}" for name, part in corpus.encoded.items())
    say(f"data: {settings.task}: examples: {parts}")
    for name, part in corpus.encoded.items():
        if part.cut:
            share = f"{part.cut:,} of the {len(part.examples):,} {name} examples"
            say(f"data: {settings.task}: {share} are cut to {length} tokens")
        if part.left_out:
            say(f"data: {settings.task}: {part.left_out:,} more are left out: no answer begins within {length} tokens")
    if corpus.template is not None:
        template = "the chat template of the tokenizer" if corpus.template.own else "the plain chat template"
        count = sum(len(part) for part in corpus.encoded.values())
        rows = (
            f"in {count:,} rows" if shared else "each in a row of its own, as this model cannot keep them apart in one"
        )
        say(f"data: {settings.task}: written with {template}, {rows}")
    return corpus


def _files_key(settings: Finetune, spec: str) -> str:
    """Of the local files, with those of the tokenizer, so that a changed file is read again."""
    paths = [located(path) for path in (settings.data, settings.validation) if path is not None]
    if (tokenizer_path := tokenizer_file(spec)) is not None:
        paths += [tokenizer_path, *(tokenizer_path.parent / name for name in READ_BESIDE)]
    files = (file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path]))
    return files_key(file for file in files if file.is_file())


@lru_cache(maxsize=2)
def _task_corpus(settings: Finetune, spec: str, length: int, causal: bool, shared: bool, key: str) -> TaskCorpus:
    """Kept, since epochs are counted before the run is started. key: of the files, which may change in between."""
    task: FineTask = FINETUNE_TASKS.get(settings.task)
    tokenizer = make_tokenizer(spec, ())
    file = tokenizer_file(spec)
    frame = frame_of(tokenizer, causal, file)
    smallest = frame.size + (2 if task.kind == "span" else 1)
    if length < smallest:
        raise UserError(f"training.seq_len = {length}: a row of {task.name} needs at least {smallest} tokens; raise it")
    parts = parts_of(task, settings)
    if settings.max_examples is not None:
        parts = {name: [part[i] for i in spaced(len(part), settings.max_examples)] for name, part in parts.items()}
    template = chat_template(file, tokenizer) if task.kind == "chat" else None
    # The text of a special token inside an example is encoded as ordinary characters, but for those of a template.
    tokenizer.encode_special_tokens = template is None
    encoded = {
        name: encode(task, part, tokenizer, frame, length, settings.stride)
        if template is None
        else encode_chats(part, template, frame, length, shared)
        for name, part in parts.items()
    }
    for name, part in encoded.items():
        if not len(part):
            raise UserError(
                f"training.seq_len = {length}: no answer of the {name} examples begins within so many tokens; raise it"
            )
    digest, vocab = tokenizer_digest(tokenizer), vocabulary_size(tokenizer)
    rows = {"train": encoded[TRAIN].rows}
    rows["validation"] = [row for name, part in encoded.items() if name != TRAIN for row in part.rows]
    meta = {
        "source": source_name(task, settings),
        "documents": sum(len(part.examples) for part in encoded.values()),
        "tokenizer": {"spec": spec, "sha256": digest, "vocab": vocab, "end": frame.between},
        "splits": {name: {"bytes": 0, "shards": [{"tokens": sum(map(len, split))}]} for name, split in rows.items()},
        "fingerprint": _fingerprint(digest, encoded),
    }
    folder = located(settings.data or ".") if file is None else file.parent
    folder = folder if folder.is_dir() else folder.parent
    train, validation = ([np.concatenate(split).astype(np.int64)] for split in rows.values())
    stated = {} if file is None else stated_beside(file, tokenizer)
    beside = stated if template is None else template.beside
    return TaskCorpus(folder, meta, tokenizer, train, validation, (), beside, task, encoded, template)


def _fingerprint(tokenizer: str, encoded: dict[str, Encoded]) -> str:
    """A digest of all rows and targets, and of the tokenizer."""
    digest = hashlib.sha256(tokenizer.encode())
    for name, part in encoded.items():
        digest.update(f"{name} {len(part.rows)}\n".encode())
        for row in part.rows:
            digest.update(len(row).to_bytes(4, "little") + row.astype("<i4").tobytes())
        digest.update(part.targets.tobytes() + part.second.astype("<i8").tobytes())
        for starts in part.starts:
            digest.update(np.array(starts, dtype="<i8").tobytes())
    return digest.hexdigest()
