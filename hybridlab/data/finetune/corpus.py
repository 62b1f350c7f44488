"""The examples of a task as a run reads them: training and measured parts, tokenized, with a fingerprint.

`--data FILE` is the training part; what is measured is `--validation FILE` or, without one, a share of the training
examples, which is drawn once and is the same for all runs. `--data FOLDER` holds train.* and validation.* or dev.*.
Without --data the task's dataset of the Hugging Face hub is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hybridlab.config.finetune import Finetune
from hybridlab.data.finetune.encoding import Encoded, Frame, encode, frame_of
from hybridlab.data.finetune.examples import Example, examples_of
from hybridlab.data.finetune.places import located
from hybridlab.data.finetune.rows import ENDINGS, Row, read_rows
from hybridlab.data.finetune.tasks import FineTask
from hybridlab.data.hub_access import without_hub
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import make_tokenizer, tokenizer_digest, vocabulary_size
from hybridlab.errors import UserError
from hybridlab.registry import FINETUNE_TASKS

_SEED = 20_250_101
"""Of the examples that are held out: the same for all runs."""
_PART = re.compile(r"(train|validation|valid|val|dev)(_matched|_mismatched)?(-\d+-of-\d+)?\.")
TRAIN = "train"


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
    parts = {name: _spaced(part, settings.max_examples) for name, part in _parts(task, settings).items()}
    encoded = {name: encode(task, part, tokenizer, frame, length, settings.stride) for name, part in parts.items()}
    digest, vocab = tokenizer_digest(tokenizer), vocabulary_size(tokenizer)
    meta = {
        "source": _source_name(task, settings),
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


def _source_name(task: FineTask, settings: Finetune) -> str:
    """Where the examples come from, in words."""
    if settings.data is None:
        return f"hub:{task.hub.name}" + (f":{task.hub.config}" if task.hub.config else "")
    return f"{task.name}:{settings.data}"


# ---- parts ----


def _parts(task: FineTask, settings: Finetune) -> dict[str, list[Example]]:
    """The examples by part: train first, then those that are measured. UserError if one is empty."""
    if settings.data is None:
        parts = _from_hub(task, own_validation=settings.validation is None)
    else:
        parts = _local(task, located(settings.data))
    if settings.validation is not None:
        parts = {TRAIN: parts[TRAIN], next(iter(task.hub.splits)): _read(task, [located(settings.validation)])}
    elif len(parts) == 1:
        return _held_out(parts[TRAIN], settings, next(iter(task.hub.splits)))
    elif settings.validation_fraction is not None:
        raise UserError(
            "finetune.validation_fraction has no effect: "
            f"{settings.data or _source_name(task, settings)} has a part to measure with; leave it out"
        )
    return parts


def _read(task: FineTask, files: list[Path]) -> list[Example]:
    layouts = [columns.names for columns in task.layouts]
    return [one for file in files for one in examples_of(task, read_rows(file, layouts, task.headerless))]


def _local(task: FineTask, path: Path) -> dict[str, list[Example]]:
    """The parts of a file, which is all training, or of a folder with files named after its parts."""
    if not path.exists():
        raise UserError(f"--data {path}: there is no such file or folder; give a file of the task {task.name}")
    if not path.is_dir():
        return {TRAIN: _read(task, [path])}
    files: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        found = _PART.match(file.name)
        if found and file.name.removesuffix(".gz").removesuffix(".zst").endswith(ENDINGS):
            part = TRAIN if found[1] == TRAIN else "mismatched" if found[2] == "_mismatched" else "validation"
            files.setdefault(part, []).append(file)
    if TRAIN not in files:
        names = ", ".join(file.name for file in sorted(path.iterdir())[:8]) or "nothing"
        raise UserError(
            f"--data {path}: the folder has no train.tsv, train.jsonl … (it has {names}); give the training file itself"
        )
    if "mismatched" in files and "validation" not in files:
        files["validation"] = files.pop("mismatched")
    return {part: _read(task, files[part]) for part in (TRAIN, "validation", "mismatched") if part in files}


def _from_hub(task: FineTask, own_validation: bool) -> dict[str, list[Example]]:
    splits = {TRAIN: "train"} | (task.hub.splits if own_validation else {})
    name = f"hub:{task.hub.name}" + (f":{task.hub.config}" if task.hub.config else "")
    try:
        with without_hub(wanted=False):
            import datasets

            found = {
                part: datasets.load_dataset(task.hub.name, task.hub.config, split=split)
                for part, split in splits.items()
            }
        rows = {
            part: [Row(dict(values), f"{name} {splits[part]} {number}") for number, values in enumerate(found[part])]
            for part in splits
        }
    except Exception as error:  # the library raises errors of many types, for network and files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        offline = isinstance(error, ConnectionError)
        why = "hub cannot be reached, and this dataset is not in its cache" if offline else "dataset cannot be read"
        raise UserError(f"{name}: the {why} ({reason[:160]}); give local files of the task with --data PATH") from None
    return {part: examples_of(task, rows[part]) for part in splits}


def _held_out(examples: list[Example], settings: Finetune, name: str) -> dict[str, list[Example]]:
    """The examples without and with a share of them, in groups on the same passage."""
    groups = list(dict.fromkeys(example.group for example in examples))
    wanted, count = settings.held_out * len(examples), 0
    taken: set[str] = set()
    sizes: dict[str, int] = {}
    for example in examples:
        sizes[example.group] = sizes.get(example.group, 0) + 1
    for index in np.random.default_rng(_SEED).permutation(len(groups)):
        if count >= max(1.0, wanted) or len(taken) == len(groups) - 1:
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


def _spaced(examples: list[Example], most: int | None) -> list[Example]:
    """At most so many examples, evenly spaced."""
    if most is None or len(examples) <= most:
        return examples
    return [examples[int(i)] for i in np.linspace(0, len(examples) - 1, most).round()]
