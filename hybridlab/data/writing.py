"""Write the shards of one source, and record every few seconds how far it is.

A preparation that is killed goes on in its folder: the shards are cut back to the last record, the documents before it
are passed without being tokenised again, and what comes out is the same to the last byte.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hybridlab.config.schema import Data
from hybridlab.data.documents import Documents
from hybridlab.data.encoding import Encoded, available_cores, encode_documents
from hybridlab.data.progress import Preparing, Say, silent
from hybridlab.data.shards import FORMAT, SPLITS, ShardWriter
from hybridlab.data.sources import read_documents
from hybridlab.data.splitting import Split
from hybridlab.data.tokenizers import (
    end_token,
    is_trained,
    load_tokenizer,
    make_tokenizer,
    tokenizer_digest,
    vocabulary_size,
)
from hybridlab.data.unfinished import STATE
from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json, write_text

SECONDS_BETWEEN_RECORDS = 5.0
_OF_STATE = ("documents", "place", "splits", "tokenizer")


@dataclass(frozen=True)
class Job:
    """How data are prepared. say: prints a line about progress. bar: show a bar instead if standard error is a
    terminal. workers: threads that tokenize; None: one for each core."""

    say: Say = silent
    bar: bool = False
    workers: int | None = None


def documents_of(data: Data) -> Documents:
    """The documents of a single source."""
    assert data.source is not None
    return read_documents(data.source, data.field, data.max_documents, data.skip_bad_lines or False)


def training_documents(data: Data) -> Iterator[str]:
    """The documents of a single source without those for validation."""
    split = Split.of(data)
    return (text for i, text in enumerate(documents_of(data)) if not split.held_out(i, text))


class CorpusWriter:
    """Prepares a single source in a folder, or goes on with it.

    tokenizer: one that several sources share; None for that of the settings.
    """

    def __init__(self, data: Data, folder: Path, tokenizer: Tokenizer | None, job: Job) -> None:
        assert data.source is not None
        self.data, self.folder, self.job, self.source = data, folder, job, data.source
        self.split = Split.of(data)
        self.tokenizer = self._made() if tokenizer is None else tokenizer
        # The text of the end-of-document token inside a document is encoded as ordinary characters.
        self.tokenizer.encode_special_tokens = True
        self.end, self.vocab = end_token(self.tokenizer), vocabulary_size(self.tokenizer)
        self.dtype = np.dtype("<u2" if self.vocab <= 2**16 else "<u4")

    def _made(self) -> Tokenizer:
        """The tokenizer of the settings; one that is trained on the text is trained once."""
        kept, spec = self.folder / "tokenizer.json", self.data.tokenizer
        if is_trained(spec) and kept.is_file():
            return load_tokenizer(kept)
        self.job.say(f"tokenizer {spec}")
        return make_tokenizer(spec, training_documents(self.data))

    @cached_property
    def digest(self) -> str:
        """Of the tokenizer."""
        return tokenizer_digest(self.tokenizer)

    def write(self) -> None:
        """Write tokenizer.json, the shards and, last, meta.json."""
        state = self._state()
        write_text(self.folder / "tokenizer.json", self.tokenizer.to_str(pretty=True))
        writers = {
            split: ShardWriter(self.folder, split, self.dtype, state.get("splits", {}).get(split)) for split in SPLITS
        }
        documents = documents_of(self.data)
        if state:
            self.job.say(f"{self.source}: goes on after {state['documents']:,} documents")
            documents.go_to(state["place"])
        count = self._write_documents(documents, writers, state.get("documents", 0))
        self._check(count, writers)
        self._write_meta(count, documents.bad, {split: writer.close() for split, writer in writers.items()})
        (self.folder / STATE).unlink(missing_ok=True)

    def _state(self) -> dict[str, Any]:
        """What an earlier session has recorded; empty without a record that fits the tokenizer and the files."""
        try:
            state = read_object(self.folder / STATE, "record of a preparation", _OF_STATE, "remove its folder")
        except FileNotFoundError:
            return {}
        there = all(ShardWriter.has_written(self.folder, name, self.dtype, state["splits"][name]) for name in SPLITS)
        return state if there and state["tokenizer"] == self.digest else {}

    def _write_documents(self, documents: Documents, writers: dict[str, ShardWriter], count: int) -> int:
        """Tokenise the documents after the first `count` into the shards of their splits; returns the number of all."""
        recorded, workers = time.monotonic(), self.job.workers or available_cores()
        done, share = _tokens(writers), documents.share if count else None
        with Preparing(self.source, self.job.say, self.job.bar, count, done, share) as progress:
            for group in encode_documents(self.tokenizer, documents, self.end, self.dtype, workers):
                self._add(group, writers, count)
                count += len(group.texts)
                progress.update(count, _tokens(writers), documents.share, documents.bad)
                if time.monotonic() - recorded >= SECONDS_BETWEEN_RECORDS:
                    self._record(count, group, writers)
                    recorded = time.monotonic()
        return count

    def _add(self, group: Encoded, writers: dict[str, ShardWriter], count: int) -> None:
        for number, (text, tokens) in enumerate(zip(group.texts, group.tokens, strict=True), count):
            split = "validation" if self.split.held_out(number, text) else "train"
            writers[split].add(tokens, len(text.encode()))

    def _record(self, count: int, group: Encoded, writers: dict[str, ShardWriter]) -> None:
        """Write how far the preparation is after a group, once the tokens before have reached the disk."""
        splits = {split: writer.state() for split, writer in writers.items()}
        state = {"documents": count, "place": group.place, "splits": splits, "tokenizer": self.digest}
        write_json(self.folder / STATE, state)

    def _write_meta(self, count: int, bad: int, splits: dict[str, dict[str, Any]]) -> None:
        fingerprint = hashlib.sha256(self.digest.encode())
        for split in SPLITS:
            for shard in splits[split]["shards"]:
                fingerprint.update(shard["sha256"].encode())
        tokenizer = {"spec": self.data.tokenizer, "sha256": self.digest, "vocab": self.vocab, "end": self.end}
        meta = {
            "format": FORMAT,
            "source": self.source,
            "documents": count,
            "validation": self.split.described,
            **({"bad_lines": bad} if self.data.skip_bad_lines else {}),
            "dtype": self.dtype.str,
            "tokenizer": tokenizer,
            "splits": splits,
            "fingerprint": fingerprint.hexdigest(),
        }
        write_json(self.folder / "meta.json", meta)

    def _check(self, count: int, writers: dict[str, ShardWriter]) -> None:
        """UserError if the documents are too few for both splits, or have no text."""
        source = f"data source {self.source}"
        if count == 0:
            raise UserError(f"{source}: it has no documents; give another source")
        if not any(writer.bytes for writer in writers.values()):
            raise UserError(f"{source}: all of its documents are empty; give another source")
        if count < 2:
            raise UserError(
                f"{source}: one short document cannot be split into training and validation; "
                "give more than one document, or a file longer than 32,768 characters"
            )
        for split, writer in writers.items():
            if not writer.tokens:
                raise UserError(
                    f"{source}: by content, none of its {count:,} documents is for {split}; give more documents, "
                    "another validation_fraction, or leave validation_by out"
                )


def _tokens(writers: dict[str, ShardWriter]) -> int:
    return sum(writer.tokens for writer in writers.values())
