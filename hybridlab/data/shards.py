"""Tokenised corpora as memory-mapped shards, checked each time they are opened.

A prepared folder holds `tokenizer.json` and what belongs beside it, `train-00000.bin …`, `validation-00000.bin …`
(little-endian token ids) and `meta.json`, written last. data/preparing.py makes it.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hybridlab.data.tokenizers import load_tokenizer, stated_beside, tokenizer_digest
from hybridlab.errors import UserError
from hybridlab.files import read_object

FORMAT = 1
SHARD_TOKENS = 100_000_000
_READ_AT_ONCE = 2**24
"""Bytes."""
_SAMPLE = 24
"""Tokens of text that `describe` shows."""
SPLITS = ("train", "validation")
_META = ("format", "dtype", "tokenizer", "splits", "documents", "fingerprint", "source")
_DTYPES = ("<u2", "<u4")
_VERIFIED_BYTES = 4 * 2**30
"""A run that opens a corpus verifies the digests of its shards up to this total size, which takes seconds."""


@dataclass(frozen=True)
class Corpus:
    """An opened folder of prepared data, or several together.

    train, validation: the shards, memory-mapped 1-d arrays of token ids. mixed: the sources of a mixture. beside: file
    → content, what belongs beside the tokenizer of a model that is trained on it.
    """

    folder: Path
    meta: dict[str, Any]
    tokenizer: Tokenizer
    train: list[np.ndarray]
    validation: list[np.ndarray]
    mixed: tuple[Part, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sources with their shares of the training tokens; one, if it is no mixture."""
        return self.mixed or (Part("", 1.0, self),)

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


@dataclass(frozen=True)
class Part:
    """A source in a mixture. name: unique in it. weight: its share of the training tokens."""

    name: str
    weight: float
    corpus: Corpus


class ShardWriter:
    """Appends tokens of one split to shards of at most SHARD_TOKENS. state: of an earlier writer, see `state`."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, state: dict[str, Any] | None = None) -> None:
        self.folder, self.split, self.dtype = folder, split, dtype
        self.shards: list[dict[str, Any]] = list(state["shards"]) if state else []
        self.bytes: int = state["bytes"] if state else 0
        self.tokens = sum(shard["tokens"] for shard in self.shards)
        self._open(state["open"] if state else 0)

    def _open(self, tokens: int = 0) -> None:
        """Open the next shard, or again one with so many tokens; what follows them is cut off."""
        self.name = f"{self.split}-{len(self.shards):05d}.bin"
        self.digest, self.in_shard = hashlib.sha256(), tokens
        self.file = (self.folder / self.name).open("r+b" if tokens else "wb")
        if tokens:
            self.tokens += tokens
            self.file.truncate(tokens * self.dtype.itemsize)
            while part := self.file.read(_READ_AT_ONCE):
                self.digest.update(part)

    def add(self, tokens: np.ndarray, num_bytes: int) -> None:
        """Append the token ids of a document of so many UTF-8 bytes."""
        self.file.write(tokens.data)
        self.digest.update(tokens.data)
        self.in_shard += len(tokens)
        self.tokens += len(tokens)
        self.bytes += num_bytes
        if self.in_shard >= SHARD_TOKENS:
            self._finish()
            self._open()

    def _flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def _finish(self) -> None:
        self._flush()
        self.file.close()
        self.shards.append({"file": self.name, "tokens": self.in_shard, "sha256": self.digest.hexdigest()})

    def close(self) -> dict[str, Any]:
        """Finish the last shard; returns the entry of the split in meta.json."""
        self._finish()
        return {"bytes": self.bytes, "shards": self.shards}

    def state(self) -> dict[str, Any]:
        """What has been written, after it has reached the disk: another writer goes on from there."""
        self._flush()
        return {"bytes": self.bytes, "shards": list(self.shards), "open": self.in_shard}

    @staticmethod
    def has_written(folder: Path, split: str, dtype: np.dtype, state: dict[str, Any]) -> bool:
        """Whether the files of a folder hold what a state says."""
        shards = [*state["shards"], {"file": f"{split}-{len(state['shards']):05d}.bin", "tokens": state["open"]}]
        paths = [folder / shard["file"] for shard in shards]
        sizes = [path.stat().st_size if path.is_file() else -1 for path in paths]
        expected = [shard["tokens"] * dtype.itemsize for shard in shards]
        return sizes[:-1] == expected[:-1] and sizes[-1] >= expected[-1]


def open_for_run(folder: Path) -> Corpus:
    """Open a folder of prepared data; the digests of a small one are verified."""
    size = sum(path.stat().st_size for path in folder.glob("*.bin"))
    return open_corpus(folder, verify=size <= _VERIFIED_BYTES)


def open_corpus(folder: Path, verify: bool = False) -> Corpus:
    """Open a folder of prepared data. Sizes of shards are always checked, with `verify` also their digests."""
    try:
        meta = read_object(folder / "meta.json", "data folder", _META, "prepare the data again")
    except FileNotFoundError:
        inside, way = [path.name for path in _prepared_inside(folder)], "; make it with `hybridlab data prepare`"
        if inside:
            way = f", but its folders are ({', '.join(inside)}); give one of them, or mix several: "
            way += f"--data shards:{folder / inside[0]}@WEIGHT …"
        raise UserError(f"{folder}: no meta.json, so this is not prepared data{way}") from None
    if meta["format"] != FORMAT or meta["dtype"] not in _DTYPES:
        raise UserError(f"{folder}/meta.json: its format is not {FORMAT}; prepare the data again")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    made_with = meta["tokenizer"]
    if not isinstance(made_with, dict) or tokenizer_digest(tokenizer) != made_with.get("sha256"):
        raise UserError(
            f"{folder}/tokenizer.json: this is not the tokenizer that the shards were made with; "
            "prepare the data again or restore the file"
        )
    try:
        arrays = {split: _open_split(folder, meta, split, verify) for split in SPLITS}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder}/meta.json: it is damaged; prepare the data again") from None
    beside = stated_beside(folder / "tokenizer.json", tokenizer)
    return Corpus(folder, meta, tokenizer, arrays["train"], arrays["validation"], beside=beside)


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


def describe(folder: Path) -> dict[str, Any]:
    """A summary of a folder of prepared data, after verifying every digest.

    Of a folder with several prepared sources: `sources`, the summary of each by its name, and the tokens of all.
    """
    prepared = _prepared_inside(folder)
    if prepared:
        sources = {path.name: describe(path) for path in prepared}
        totals = ("documents", "train_tokens", "validation_tokens")
        return {"sources": sources} | {name: sum(source[name] for source in sources.values()) for name in totals}
    corpus = open_corpus(folder, verify=True)
    firsts = [shards[0][:_SAMPLE].tolist() if shards else [] for shards in (corpus.train, corpus.validation)]
    begins, validation_begins = (corpus.tokenizer.decode(tokens) for tokens in firsts)
    return {
        "source": corpus.meta["source"],
        "documents": corpus.meta["documents"],
        **{name: corpus.meta[name] for name in ("bad_lines",) if name in corpus.meta},
        "validation_split": corpus.meta.get("validation", "by number"),
        **_repeated(corpus),
        "tokenizer": corpus.meta["tokenizer"]["spec"],
        "vocabulary": corpus.vocab,
        "documents_end_with": corpus.tokenizer.id_to_token(corpus.meta["tokenizer"]["end"]),
        "train_tokens": corpus.tokens("train"),
        "validation_tokens": corpus.tokens("validation"),
        "bytes_per_token": round(corpus.bytes_per_token(*SPLITS), 3),
        "fingerprint": corpus.fingerprint,
        "begins_with": begins,
        "validation_begins_with": validation_begins,
    }


def _prepared_inside(folder: Path) -> list[Path]:
    """The prepared folders in a folder that holds nothing else; empty for any other folder."""
    inside = sorted(path for path in folder.glob("*") if not path.name.startswith("."))
    return inside if all((path / "meta.json").is_file() for path in inside) else []


def _repeated(corpus: Corpus) -> dict[str, int]:
    """The number of validation documents, and of those whose tokens are also a training document."""
    end = corpus.meta["tokenizer"]["end"]
    held_out = Counter(_digests(corpus.validation, end))
    also = held_out.keys() & {digest for digest in _digests(corpus.train, end) if digest in held_out}
    repeated = sum(held_out[digest] for digest in also)
    return {"validation_documents": held_out.total(), "validation_documents_in_training": repeated}


def _digests(shards: list[np.ndarray], end: int) -> Iterator[bytes]:
    """Of the tokens of each document; the end-of-document token stands nowhere else."""
    for shard in shards:
        begin = 0
        for stop in np.flatnonzero(shard == end).tolist():
            yield hashlib.blake2b(shard[begin:stop].data, digest_size=16).digest()
            begin = stop + 1
