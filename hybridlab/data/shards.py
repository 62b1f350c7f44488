"""Tokenised corpora as memory-mapped shards, prepared once and checked each time they are opened.

A prepared folder holds `tokenizer.json`, `train-00000.bin …`, `validation-00000.bin …` (little-endian token ids) and
`meta.json`, written last. Document i goes to validation when i is a multiple of round(1 / validation_fraction).

    hybridlab data prepare text:book.txt --tokenizer bpe:1024 --out prepared
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hybridlab.config.schema import Data
from hybridlab.data.sources import files_key, read_documents, split_source
from hybridlab.data.tokenizers import end_token, load_tokenizer, make_tokenizer, tokenizer_digest, vocabulary_size
from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json, write_text, writing
from hybridlab.registry import SOURCES

FORMAT = 1
SHARD_TOKENS = 100_000_000
SPLITS = ("train", "validation")
_META = ("format", "dtype", "tokenizer", "splits", "documents", "fingerprint", "source")
_DTYPES = ("<u2", "<u4")
_VERIFIED_BYTES = 4 * 2**30
"""A run that opens a corpus verifies the digests of its shards up to this total size, which takes seconds."""
_DOCUMENTS_AT_ONCE = 256


@dataclass(frozen=True)
class Corpus:
    """An opened folder of prepared data. train, validation: the shards, memory-mapped 1-d arrays of token ids."""

    folder: Path
    meta: dict[str, Any]
    tokenizer: Tokenizer
    train: list[np.ndarray]
    validation: list[np.ndarray]

    @property
    def fingerprint(self) -> str:
        """A digest of all tokens and of the tokenizer."""
        return self.meta["fingerprint"]

    @property
    def vocab(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return self.meta["tokenizer"]["vocab"]

    def tokens(self, split: str) -> int:
        """Number of tokens of a split."""
        return sum(shard["tokens"] for shard in self.meta["splits"][split]["shards"])

    def bytes_per_token(self, *splits: str) -> float:
        """UTF-8 bytes of text per token of these splits, to convert a loss to bits per byte."""
        return sum(self.meta["splits"][s]["bytes"] for s in splits) / max(1, sum(self.tokens(s) for s in splits))


def corpus_for(data: Data, cache: Path, report: Callable[[str], None] = lambda _: None) -> Corpus:
    """Open the corpus of a configuration, after preparing it in `cache` if that has not been done yet."""
    kind, argument = split_source(data.source)
    if kind == "shards":
        return _open_for_run(Path(argument).expanduser())
    folder = cache / _cache_key(data)
    if not (folder / "meta.json").exists():
        prepare(data, folder, report)
    return _open_for_run(folder)


def prepared_corpus(data: Data, cache: Path) -> Corpus | None:
    """The corpus of a configuration if it is prepared, else None; nothing is written. UserError without its source."""
    kind, argument = split_source(data.source)
    folder = Path(argument).expanduser() if kind == "shards" else cache / _cache_key(data)
    return _open_for_run(folder) if kind == "shards" or (folder / "meta.json").exists() else None


def _open_for_run(folder: Path) -> Corpus:
    size = sum(path.stat().st_size for path in folder.glob("*.bin"))
    return open_corpus(folder, verify=size <= _VERIFIED_BYTES)


def _cache_key(data: Data) -> str:
    """Name of the folder of a prepared corpus: a digest of settings, file names, sizes and times, and of the version of
    the plug-in that reads it."""
    settings = data.model_dump(mode="json", exclude={"mix", "task_loss_weight"})
    plugin = SOURCES.plugins.get(split_source(data.source)[0])
    versions = [f"{plugin.name} {plugin.version}"] if plugin else []
    content = json.dumps([FORMAT, settings, files_key(data.source), *versions], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def prepare(data: Data, folder: Path, report: Callable[[str], None] = lambda _: None) -> None:
    """Tokenise a source into `folder`, which appears only when it is complete. UserError if it is not empty."""
    if split_source(data.source)[0] == "shards":
        raise UserError(f"data source {data.source}: it is prepared already; use it as it is")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder is not empty; choose another one with --out")
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    with writing(folder):
        partial.mkdir(parents=True)
        try:
            _write_corpus(data, partial, report)
            _move_into_place(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _move_into_place(partial: Path, folder: Path) -> None:
    try:
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError:
        # Another process has prepared the same data in the meantime; then its folder is used.
        if not (folder / "meta.json").is_file():
            raise


def _write_corpus(data: Data, folder: Path, report: Callable[[str], None]) -> None:
    """Write shards, tokenizer.json and, last, meta.json."""
    period = max(2, round(1 / data.validation_fraction))

    def documents() -> Iterator[str]:
        return read_documents(data.source, data.field, data.max_documents)

    def training_documents() -> Iterator[str]:
        return (text for i, text in enumerate(documents()) if i % period)

    report(f"tokenizer {data.tokenizer}")
    tokenizer = make_tokenizer(data.tokenizer, training_documents())
    vocab, end = vocabulary_size(tokenizer), end_token(tokenizer)
    # The text of the end-of-document token inside a document is encoded as ordinary characters.
    tokenizer.encode_special_tokens = True
    dtype = np.dtype("<u2" if vocab <= 2**16 else "<u4")
    writers = {split: _ShardWriter(folder, split, dtype) for split in SPLITS}
    count = 0
    for texts in _batches(documents(), _DOCUMENTS_AT_ONCE):
        for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
            split = "train" if count % period else "validation"
            writers[split].add([*encoding.ids, end], len(text.encode()))
            count += 1
        report(f"{count:,} documents, {writers['train'].tokens:,} training tokens")
    if count == 0:
        raise UserError(f"data source {data.source}: it has no documents; give another source")
    if not writers["train"].bytes and not writers["validation"].bytes:
        raise UserError(f"data source {data.source}: all of its documents are empty; give another source")
    if count < 2:
        raise UserError(
            f"data source {data.source}: one short document cannot be split into training and validation; "
            "give more than one document, or a file longer than 32,768 characters"
        )
    splits = {split: writer.close() for split, writer in writers.items()}
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    digest = tokenizer_digest(tokenizer)
    fingerprint = hashlib.sha256(digest.encode())
    for split in SPLITS:
        for shard in splits[split]["shards"]:
            fingerprint.update(shard["sha256"].encode())
    meta = {
        "format": FORMAT,
        "source": data.source,
        "documents": count,
        "dtype": dtype.str,
        "tokenizer": {"spec": data.tokenizer, "sha256": digest, "vocab": vocab, "end": end},
        "splits": splits,
        "fingerprint": fingerprint.hexdigest(),
    }
    write_json(folder / "meta.json", meta)


class _ShardWriter:
    """Appends tokens of one split to shards of at most SHARD_TOKENS."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype) -> None:
        self.folder, self.split, self.dtype = folder, split, dtype
        self.shards: list[dict[str, Any]] = []
        self.tokens = self.bytes = 0
        self._open()

    def _open(self) -> None:
        self.name = f"{self.split}-{len(self.shards):05d}.bin"
        self.file = (self.folder / self.name).open("wb")
        self.digest, self.in_shard = hashlib.sha256(), 0

    def add(self, ids: list[int], num_bytes: int) -> None:
        """Append the token ids of a document of so many UTF-8 bytes."""
        raw = np.asarray(ids, dtype=self.dtype).tobytes()
        self.file.write(raw)
        self.digest.update(raw)
        self.in_shard += len(ids)
        self.tokens += len(ids)
        self.bytes += num_bytes
        if self.in_shard >= SHARD_TOKENS:
            self._finish()
            self._open()

    def _finish(self) -> None:
        self.file.close()
        self.shards.append({"file": self.name, "tokens": self.in_shard, "sha256": self.digest.hexdigest()})

    def close(self) -> dict[str, Any]:
        """Finish the last shard; returns the entry of the split in meta.json."""
        self._finish()
        return {"bytes": self.bytes, "shards": self.shards}


def open_corpus(folder: Path, verify: bool = False) -> Corpus:
    """Open a folder of prepared data. Sizes of shards are always checked, with `verify` also their digests."""
    try:
        meta = read_object(folder / "meta.json", "data folder", _META, "prepare the data again")
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no meta.json, so this is not prepared data; make it with `hybridlab data prepare`"
        ) from None
    if meta["format"] != FORMAT or meta["dtype"] not in _DTYPES:
        raise UserError(f"{folder}/meta.json: its format is not {FORMAT}; prepare the data again")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    if tokenizer_digest(tokenizer) != meta["tokenizer"]["sha256"]:
        raise UserError(
            f"{folder}/tokenizer.json: this is not the tokenizer that the shards were made with; "
            "prepare the data again or restore the file"
        )
    try:
        arrays = {split: _open_split(folder, meta, split, verify) for split in SPLITS}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder}/meta.json: it is damaged; prepare the data again") from None
    return Corpus(folder, meta, tokenizer, arrays["train"], arrays["validation"])


def _open_split(folder: Path, meta: dict[str, Any], split: str, verify: bool) -> list[np.ndarray]:
    dtype = np.dtype(meta["dtype"])
    arrays: list[np.ndarray] = []
    for shard in meta["splits"][split]["shards"]:
        path = folder / shard["file"]
        expected = shard["tokens"] * dtype.itemsize
        actual = path.stat().st_size if path.is_file() else -1
        if actual != expected:
            problem = "is missing" if actual < 0 else f"has {actual} bytes, but meta.json says {expected}"
            raise UserError(f"{path}: the shard {problem}; prepare the data again")
        if expected == 0:
            continue
        array = np.memmap(path, dtype=dtype, mode="r")
        if verify and hashlib.sha256(array.data).hexdigest() != shard["sha256"]:
            raise UserError(f"{path}: the shard is damaged (its digest is not the one in meta.json); prepare it again")
        arrays.append(array)
    return arrays


def _batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def describe(folder: Path) -> dict[str, Any]:
    """A summary of a folder of prepared data, after verifying every digest."""
    corpus = open_corpus(folder, verify=True)
    first = corpus.train[0][:24].tolist() if corpus.train else []
    return {
        "source": corpus.meta["source"],
        "documents": corpus.meta["documents"],
        "tokenizer": corpus.meta["tokenizer"]["spec"],
        "vocabulary": corpus.vocab,
        "train_tokens": corpus.tokens("train"),
        "validation_tokens": corpus.tokens("validation"),
        "bytes_per_token": round(corpus.bytes_per_token(*SPLITS), 3),
        "fingerprint": corpus.fingerprint,
        "begins_with": corpus.tokenizer.decode(first),
    }
