"""Prepare corpora: read a source, tokenise it, write its shards into a folder.

    hybridlab data prepare text:book.txt --tokenizer bpe:1024 --out prepared

Document i goes to validation when i is a multiple of round(1 / validation_fraction). Each of several sources is
prepared by itself, with a tokenizer that they share.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from hybridlab.config.schema import Data, WeightedSource
from hybridlab.data.encoding import available_cores, encode_documents
from hybridlab.data.mixture import in_proportion, source_labels
from hybridlab.data.progress import Preparing, Say, silent
from hybridlab.data.readers import NoSuchField
from hybridlab.data.shards import FORMAT, SPLITS, Corpus, Part, ShardWriter, open_for_run
from hybridlab.data.sources import Documents, files_key, read_documents, split_source
from hybridlab.data.tokenizers import (
    TRAINING_CHARACTERS,
    end_token,
    is_trained,
    load_tokenizer,
    make_tokenizer,
    tokenizer_digest,
    vocabulary_size,
)
from hybridlab.errors import UserError
from hybridlab.files import write_json, write_text, writing
from hybridlab.registry import SOURCES

_ABANDONED_AFTER = 60.0
"""Seconds."""


@dataclass(frozen=True)
class Job:
    """How data are prepared. say: prints a line about progress. bar: show a bar instead if standard error is a
    terminal. workers: threads that tokenize; None: one for each core."""

    say: Say = silent
    bar: bool = False
    workers: int | None = None


ALL_CORES = Job()


def corpus_for(data: Data, cache: Path, job: Job = ALL_CORES) -> Corpus:
    """Open the corpus of a configuration, after preparing in `cache` what has not been prepared yet."""
    return _corpus(data, cache, job)


def prepared_corpus(data: Data, cache: Path) -> Corpus | None:
    """The corpus of a configuration if all of it is prepared, else None; nothing is written. UserError without its
    source."""
    try:
        return _corpus(data, cache, None)
    except _NotPreparedYet:
        return None


class _NotPreparedYet(Exception):
    """Something would have to be prepared first."""


def _corpus(data: Data, cache: Path, job: Job | None) -> Corpus:
    """The corpus of one source or of several. job: None to open only what is prepared, otherwise _NotPreparedYet."""
    if data.sources is None:
        return _opened(data, cache, None, job)
    try:
        common = _common_tokenizer(data, cache, job)
        corpora = [_opened(part, cache, common, job) for part in data.each_source()]
    except NoSuchField as error:
        way = "--set data.field=NAME for all sources, or with `field: NAME` beside this one in data.sources"
        raise UserError(f"{error.problem}; name it with {way}") from None
    return _mixed(data.sources, corpora)


def _opened(data: Data, cache: Path, tokenizer: Tokenizer | None, job: Job | None) -> Corpus:
    """The corpus of a single source. tokenizer: one that several sources share, otherwise that of the settings."""
    assert data.source is not None
    kind, argument = split_source(data.source)
    if kind == "shards":
        return open_for_run(Path(argument).expanduser())
    folder = cache / _cache_key(data, tokenizer)
    if not (folder / "meta.json").exists():
        if job is None:
            raise _NotPreparedYet
        with _new_folder(folder) as partial:
            _write_corpus(data, partial, tokenizer, job)
    return open_for_run(folder)


def _cache_key(data: Data, tokenizer: Tokenizer | None = None) -> str:
    """Name of the folder of a prepared corpus: a digest of settings, file names, sizes and times, of the version of the
    plug-in that reads it, and of a tokenizer that sources share."""
    assert data.source is not None
    settings = data.model_dump(mode="json", exclude={"mix", "task_loss_weight", "sources"})
    plugin = SOURCES.plugins.get(split_source(data.source)[0])
    also = [f"{plugin.name} {plugin.version}"] if plugin else []
    also += [tokenizer_digest(tokenizer)] if tokenizer is not None else []
    content = json.dumps([FORMAT, settings, files_key(data.source), *also], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _common_tokenizer(data: Data, cache: Path | None, job: Job | None) -> Tokenizer | None:
    """The tokenizer that is trained on all sources in proportion to their weights; None for one that is not trained.

    It is kept in `cache`, if that is given.
    """
    assert data.sources is not None
    if data.prepared or not is_trained(data.tokenizer):
        return None
    parts = list(data.each_source())
    prepared = next((source for source in data.all_sources if split_source(source)[0] == "shards"), None)
    if prepared is not None:
        raise UserError(
            f"data.tokenizer {data.tokenizer}: the data of {prepared} have a tokenizer already, and another would not "
            f"fit them; use --set data.tokenizer=file:{prepared.removeprefix('shards:')}"
        )
    weights = [source.weight for source in data.sources]
    key = hashlib.sha256(json.dumps([weights, *map(_cache_key, parts)]).encode()).hexdigest()[:16]
    path = cache / f"tokenizer-{key}.json" if cache is not None else None
    if path is not None and path.is_file():
        return load_tokenizer(path)
    if job is None:
        raise _NotPreparedYet
    job.say(f"tokenizer {data.tokenizer}, trained on {len(parts)} sources")
    texts = in_proportion([partial(_training_documents, part) for part in parts], weights, TRAINING_CHARACTERS)
    tokenizer = make_tokenizer(data.tokenizer, texts)
    if path is not None:
        write_text(path, tokenizer.to_str(pretty=True))
    return tokenizer


def _mixed(sources: list[WeightedSource], corpora: list[Corpus]) -> Corpus:
    """Several corpora as one. UserError if their tokenizers differ."""
    first = corpora[0]
    for source, corpus in zip(sources, corpora, strict=True):
        if corpus.meta["tokenizer"]["sha256"] != first.meta["tokenizer"]["sha256"]:
            raise UserError(
                f"data sources {sources[0].source} and {source.source}: their tokenizers differ; prepare both with the "
                f"same, for example --tokenizer file:{first.folder}"
            )
    names = source_labels([source.source for source in sources])
    fingerprint = hashlib.sha256("".join(corpus.fingerprint for corpus in corpora).encode()).hexdigest()
    splits = {
        split: {
            "bytes": sum(corpus.meta["splits"][split]["bytes"] for corpus in corpora),
            "shards": [shard for corpus in corpora for shard in corpus.meta["splits"][split]["shards"]],
        }
        for split in SPLITS
    }
    described = " + ".join(f"{source.weight:g} × {source.source}" for source in sources)
    documents = sum(corpus.meta["documents"] for corpus in corpora)
    meta = first.meta | {"source": described, "documents": documents, "splits": splits, "fingerprint": fingerprint}
    return Corpus(
        folder=first.folder,
        meta=meta,
        tokenizer=first.tokenizer,
        train=[shard for corpus in corpora for shard in corpus.train],
        validation=[shard for corpus in corpora for shard in corpus.validation],
        mixed=tuple(
            Part(name, source.weight, corpus) for name, source, corpus in zip(names, sources, corpora, strict=True)
        ),
    )


def prepare(data: Data, folder: Path, job: Job = ALL_CORES) -> None:
    """Tokenise a source into `folder`, or each of several sources into a folder of its own in `folder`, which appears
    only when all is complete. UserError if it is not empty."""
    for source in data.all_sources:
        if split_source(source)[0] == "shards":
            raise UserError(f"data source {source}: it is prepared already; use it as it is")
    with _new_folder(folder) as new:
        if data.sources is None:
            _write_corpus(data, new, None, job)
            return
        common = _common_tokenizer(data, None, job)
        names = source_labels(data.all_sources)
        for name, part in zip(names, data.each_source(), strict=True):
            (new / name).mkdir()
            _write_corpus(part, new / name, common, job)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its place at the end, or is removed after an error.

    One that a process left behind when it was killed is removed too: its lock is free.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder is not empty; choose another one with --out")
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"):
        with suppress(BlockingIOError, FileNotFoundError), _locked(left):
            # A younger one may be that of a process that is about to lock it.
            if time.time() - left.stat().st_mtime > _ABANDONED_AFTER:
                shutil.rmtree(left, ignore_errors=True)
    new = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    with writing(folder):
        new.mkdir(parents=True)
        try:
            with _locked(new):
                yield new
                _move_into_place(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; BlockingIOError if another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _move_into_place(partial: Path, folder: Path) -> None:
    try:
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError:
        # Another process has prepared the same data in the meantime; then its folder is used.
        if not (folder / "meta.json").is_file():
            raise


def _period(data: Data) -> int:
    """Document i goes to validation when i is a multiple of this."""
    return max(2, round(1 / data.validation_fraction))


def _documents(data: Data) -> Documents:
    assert data.source is not None
    return read_documents(data.source, data.field, data.max_documents)


def _training_documents(data: Data) -> Iterator[str]:
    return (text for i, text in enumerate(_documents(data)) if i % _period(data))


def _write_corpus(data: Data, folder: Path, tokenizer: Tokenizer | None, job: Job) -> None:
    """Write shards, tokenizer.json and, last, meta.json. tokenizer: None for that of the settings."""
    assert data.source is not None
    if tokenizer is None:
        job.say(f"tokenizer {data.tokenizer}")
        tokenizer = make_tokenizer(data.tokenizer, _training_documents(data))
    vocab, end = vocabulary_size(tokenizer), end_token(tokenizer)
    # The text of the end-of-document token inside a document is encoded as ordinary characters.
    tokenizer.encode_special_tokens = True
    dtype = np.dtype("<u2" if vocab <= 2**16 else "<u4")
    writers = {split: ShardWriter(folder, split, dtype) for split in SPLITS}
    count = _write_documents(data, writers, tokenizer, end, job)
    _check_documents(data.source, count, writers)
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


def _write_documents(data: Data, writers: dict[str, ShardWriter], tokenizer: Tokenizer, end: int, job: Job) -> int:
    """Tokenise all documents into the shards of their splits; returns their number."""
    documents, period, count = _documents(data), _period(data), 0
    dtype, workers = writers["train"].dtype, job.workers or available_cores()
    with Preparing(data.source or "", job.say, job.bar) as progress:
        for group in encode_documents(tokenizer, documents, end, dtype, workers):
            for tokens, num_bytes in group:
                writers["train" if count % period else "validation"].add(tokens, num_bytes)
                count += 1
            progress.update(count, sum(writer.tokens for writer in writers.values()), documents.share)
    return count


def _check_documents(source: str, count: int, writers: dict[str, ShardWriter]) -> None:
    """UserError if the documents are too few for both splits, or have no text."""
    if count == 0:
        raise UserError(f"data source {source}: it has no documents; give another source")
    if not any(writer.bytes for writer in writers.values()):
        raise UserError(f"data source {source}: all of its documents are empty; give another source")
    if count < 2:
        raise UserError(
            f"data source {source}: one short document cannot be split into training and validation; "
            "give more than one document, or a file longer than 32,768 characters"
        )
