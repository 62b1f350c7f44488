"""Prepare corpora: read a source, tokenise it, write its shards into a folder.

    hybridlab data prepare text:book.txt --tokenizer bpe:1024 --out prepared

Each of several sources is prepared by itself, with a tokenizer that they share. data/split.py divides its documents
between training and validation.

Every few seconds it is recorded how far the preparation is. One that is killed goes on with the same command: the
shards are cut back to the last record, the documents before it are passed without being tokenised again, and what comes
out is the same to the last byte, for any number of workers. The workers are threads: the tokenizers library encodes
without Python's lock, and threads proved faster than both its own parallelism and processes (two cores: 1.9 million
tokens/s, against 1.5 and 1.8).
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import TaskProgressColumn
from tokenizers import Tokenizer

from hybridlab.bars import WithBar
from hybridlab.config.schema import Data, RunConfig, WeightedSource
from hybridlab.config.structures import keeps_documents_apart
from hybridlab.data.files import files_key
from hybridlab.data.finetune.corpus import task_corpus
from hybridlab.data.hub_access import environment
from hybridlab.data.shards import FORMAT, SPLITS, Corpus, Part, ShardWriter, open_for_run
from hybridlab.data.sources import Documents, NoSuchField, Place, source_files, source_labels, split_source
from hybridlab.data.split import divided
from hybridlab.data.tokenizers import (
    TRAINING_CHARACTERS,
    end_token,
    in_proportion,
    is_trained,
    load_tokenizer,
    make_tokenizer,
    stated_beside,
    tokenizer_digest,
    tokenizer_file,
    tokenizer_key,
    vocabulary_size,
)
from hybridlab.errors import UserError
from hybridlab.files import followed, read_object, sync, user_path, write_json, write_text, writing
from hybridlab.messages import on_screen, say
from hybridlab.registry import SOURCES

SECONDS_BETWEEN_RECORDS = 5.0
_SECONDS_BETWEEN_LINES = 10.0
_STATE = "state.json"
"""How far the preparation of a source is, in its folder."""
_OF_STATE = ("documents", "splits", "tokenizer")
_PREPARED = ".prepared.json"
"""Of what a folder was made, so that the same command finds it finished."""
_ADDED = ("validation_by", "skip_bad_lines")
"""Settings that data which were prepared before them have at None; they need not be prepared again."""
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""That this process may use."""
_CHARACTERS_AT_ONCE = 200_000
_DOCUMENTS_AT_ONCE = 64

_Group = tuple[list[str], list[np.ndarray], Place]
"""Several documents: their texts, the ids of each, with the end-of-document token, and the place after the last."""


def _say(line: str) -> None:
    say(f"data: {line}")


# ---- the data of a run ----


def corpus_of(config: RunConfig, cache: Path) -> Corpus:
    """The corpus of a run's settings, after preparing in `cache` what text has not been prepared yet."""
    if config.finetune is None:
        return corpus_for(config.data, cache)
    spec = original = config.data.tokenizer
    if is_trained(spec) or spec == "shards":
        # It is made from the text, which is the same for the run that the model comes from.
        spec = f"file:{corpus_for(config.data, cache).parts[0].corpus.folder / 'tokenizer.json'}"
    causal, apart = config.shape.traits.causal, keeps_documents_apart(config)
    corpus = task_corpus(config.finetune, spec, config.training.seq_len, causal, apart)
    return replace(corpus, meta={**corpus.meta, "tokenizer": {**corpus.meta["tokenizer"], "spec": original}})


class _NotPreparedYet(Exception):
    """Something would have to be prepared first."""


def prepared_corpus(data: Data, cache: Path) -> Corpus | None:
    """The corpus of a configuration if all of it is prepared, else None; nothing is written. UserError without its
    source."""
    try:
        return corpus_for(data, cache, make=False)
    except _NotPreparedYet:
        return None


def corpus_for(data: Data, cache: Path, make: bool = True) -> Corpus:
    """Open the corpus of a configuration, of one source or of several, after preparing in `cache` what has not been
    prepared yet. make: False to open only what is prepared, otherwise _NotPreparedYet."""
    _check_lines(data)
    if data.sources is None:
        return _opened(data, cache, None, make)
    try:
        common = _common_tokenizer(data, cache, make)
        corpora = [_opened(part, cache, common, make) for part in data.each_source()]
    except NoSuchField as error:
        way = "--set data.field=NAME for all sources, or with `field: NAME` beside this one in data.sources"
        raise UserError(f"{error.problem}; name it with {way}") from None
    return _mixed(data.sources, corpora)


def _check_lines(data: Data) -> None:
    """UserError if broken lines are to be left out, and no source has lines."""
    kinds = [split_source(source)[0] for source in data.all_sources]
    if data.skip_bad_lines and not any(SOURCES.get(kind).has_lines for kind in kinds):
        raise UserError(
            f"data.skip_bad_lines has no effect on {data.all_sources[0]}, which has no lines that could be broken; "
            "leave it out"
        )


def _opened(data: Data, cache: Path, tokenizer: Tokenizer | None, make: bool) -> Corpus:
    """The corpus of a single source. tokenizer: one that several sources share, otherwise that of the settings."""
    assert data.source is not None
    kind, argument = split_source(data.source)
    if kind == "shards":
        return open_for_run(user_path(argument))
    folder = _prepared_folder(data, cache / _cache_key(data, tokenizer))
    if not (folder / "meta.json").exists():
        if not make:
            raise _NotPreparedYet
        with _unfinished(folder, "data") as partial:
            # Another process may have prepared it while this one waited for it.
            if not (folder / "meta.json").exists():
                _CorpusWriter(data, partial, tokenizer).write()
    return open_for_run(folder)


def _prepared_folder(data: Data, folder: Path) -> Path:
    """`folder`, or another one beside it if that was prepared when the file of the tokenizer had another content, or
    another end of a document. One that is no longer there leaves what was prepared with it."""
    file = tokenizer_file(data.tokenizer)
    if file is None or not file.is_file() or not (folder / "meta.json").exists():
        return folder
    now, then = tokenizer_key(file), tokenizer_key(folder / "tokenizer.json")
    return folder if now == then else folder.with_name(f"{folder.name}-{now[:8]}{now[64:]}")


def _cache_key(data: Data, tokenizer: Tokenizer | None = None) -> str:
    """Name of the folder of a prepared corpus: a digest of settings, file names, sizes and times, of the version of the
    plug-in that reads it, and of a tokenizer that sources share."""
    assert data.source is not None
    settings = data.model_dump(mode="json", exclude={"mix", "task_loss_weight", "sources"})
    settings = {name: value for name, value in settings.items() if value is not None or name not in _ADDED}
    plugin = SOURCES.plugins.get(split_source(data.source)[0])
    also = [f"{plugin.name} {plugin.version}"] if plugin else []
    also += [tokenizer_digest(tokenizer)] if tokenizer is not None else []
    content = json.dumps([FORMAT, settings, files_key(source_files(data.source)), *also], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _common_tokenizer(data: Data, cache: Path, make: bool = True) -> Tokenizer | None:
    """The tokenizer that is trained on all sources in proportion to their weights, and kept in `cache`; None for one
    that is not trained."""
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
    path = cache / f"tokenizer-{_key_of_all(data)}.json"
    if path.is_file():
        return load_tokenizer(path)
    if not make:
        raise _NotPreparedYet
    _say(f"tokenizer {data.tokenizer}, trained on {len(parts)} sources")
    weights = [source.weight for source in data.sources]
    texts = in_proportion([partial(_training_documents, part) for part in parts], weights, TRAINING_CHARACTERS)
    tokenizer = make_tokenizer(data.tokenizer, texts)
    write_text(path, tokenizer.to_str(pretty=True))
    return tokenizer


def _mixed(sources: list[WeightedSource], corpora: list[Corpus]) -> Corpus:
    """Several corpora as one. UserError if their tokenizers differ."""
    first = corpora[0]
    for source, corpus in zip(sources, corpora, strict=True):
        if any(corpus.meta["tokenizer"][what] != first.meta["tokenizer"][what] for what in ("sha256", "end")):
            raise UserError(
                f"data sources {sources[0].source} and {source.source}: their tokenizers differ, or what ends a "
                f"document; prepare both with the same, for example --tokenizer file:{first.folder}"
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
        beside=first.beside,
    )


# ---- folders that a user names ----


def prepare(data: Data, folder: Path, workers: int | None = None) -> None:
    """Tokenise a source into `folder`, or each of several sources into a folder of its own in `folder`, which appears
    only when all is complete. What an earlier call with equal settings has done, in part or whole, is not done again.
    workers: threads that tokenize; None: one for each core. UserError if the folder has something else."""
    for source in data.all_sources:
        if split_source(source)[0] == "shards":
            raise UserError(f"data source {source}: it is prepared already; use it as it is")
    _check_lines(data)
    folder = followed(folder)
    key = _key_of_all(data)
    done, what = folder / _PREPARED, ("data folder", ("key",), "prepare the data again")
    if done.is_file() and read_object(done, *what)["key"] == key:
        _say(f"{folder}: finished before, nothing to do")
        return
    _check_empty(folder)
    for leftover in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.partial")):
        if leftover != _partial(folder, key):
            _say(f"{leftover}: an unfinished preparation with other settings; remove it if it is no longer needed")
    with _unfinished(folder, key) as partial:
        _check_empty(folder)
        if data.sources is None:
            _CorpusWriter(data, partial, None, workers).write()
        else:
            common = _common_tokenizer(data, partial)
            for name, part in zip(source_labels(data.all_sources), data.each_source(), strict=True):
                if not (partial / name / "meta.json").is_file():
                    (partial / name).mkdir(exist_ok=True)
                    _CorpusWriter(part, partial / name, common, workers).write()
            for file in partial.glob("tokenizer-*.json"):
                file.unlink()
        write_json(partial / _PREPARED, {"key": key})


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder is not empty; choose another one with --out")


def _key_of_all(data: Data) -> str:
    """A digest of all that decides what is prepared."""
    parts = [data] if data.sources is None else data.each_source()
    weights: list[Any] = [source.weight for source in data.sources or ()]
    file = tokenizer_file(data.tokenizer)
    # One of the hub may not have been fetched yet.
    if file is not None and file.is_file() and data.tokenizer.startswith("file:"):
        weights.append(tokenizer_key(file))
    return hashlib.sha256(json.dumps([weights, *map(_cache_key, parts)]).encode()).hexdigest()[:16]


# ---- folders whose content is being prepared: kept where a preparation stops, found again by the next one ----


@contextmanager
def _unfinished(folder: Path, key: str) -> Iterator[Path]:
    """The hidden folder beside `folder` that takes its place at the end. key: the digest of what is prepared.

    It is that of an earlier preparation of the same that was stopped or killed, if there is one. After an error it
    stays only if a state is recorded in it, or one of several sources is complete. Another process that prepares the
    same is waited for.
    """
    partial = _partial(folder, key)
    with writing(folder), _alone(partial):
        try:
            yield partial
            _move_into_place(partial, folder)
        except BaseException:
            if any(partial.rglob(_STATE)) or any(partial.glob("*/meta.json")):
                _say(f"{folder}: what is done so far is kept; the same command goes on from there")
            else:
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _partial(folder: Path, key: str) -> Path:
    return folder.parent / f".{folder.name}.{key}.partial"


@contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """Make a folder if it is not there, and hold its lock, which ends with the process."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say("another process prepares the same data; waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            # While this process waited, the folder may have been moved into its place, or removed.
            if partial.is_dir() and partial.stat().st_ino == os.fstat(handle).st_ino:
                yield
                return
        finally:
            os.close(handle)


def _move_into_place(partial: Path, folder: Path) -> None:
    """Rename the folder; not if another process has prepared the same in the meantime."""
    if (folder / "meta.json").is_file():
        shutil.rmtree(partial)
        return
    if folder.exists():
        _check_empty(folder)
        folder.rmdir()
    partial.rename(folder)
    sync(folder.parent)


# ---- one source ----


def _training_documents(data: Data) -> Iterator[str]:
    """The documents of a single source without those for validation."""
    documents, split = divided(data)
    return (text for i, text in enumerate(documents) if not split.held_out(i, text))


class _CorpusWriter:
    """Prepares a single source in a folder, or goes on with it.

    tokenizer: one that several sources share; None for that of the settings.
    """

    def __init__(self, data: Data, folder: Path, tokenizer: Tokenizer | None, workers: int | None = None) -> None:
        assert data.source is not None
        self.data, self.folder, self.source, self.workers = data, folder, data.source, workers or _CORES
        self.documents, self.split = divided(data)
        self.tokenizer = self._made() if tokenizer is None else tokenizer
        # The text of the end-of-document token inside a document is encoded as ordinary characters.
        self.tokenizer.encode_special_tokens = True
        file = tokenizer_file(data.tokenizer)
        self.end, self.vocab = end_token(self.tokenizer, file), vocabulary_size(self.tokenizer)
        self.beside = {} if file is None else stated_beside(file, self.tokenizer)
        self.dtype = np.dtype("<u2" if self.vocab <= 2**16 else "<u4")
        self.digest = tokenizer_digest(self.tokenizer)
        # A token that ends documents is a part of what a record of a preparation is of.
        self.key = f"{self.digest}-{self.end}"

    def _made(self) -> Tokenizer:
        """The tokenizer of the settings; one that is trained on the text is trained once."""
        path, spec = self.folder / "tokenizer.json", self.data.tokenizer
        if is_trained(spec) and path.is_file():
            return load_tokenizer(path)
        _say(f"tokenizer {spec}")
        return make_tokenizer(spec, _training_documents(self.data))

    def write(self) -> None:
        """Write tokenizer.json with what belongs beside it, the shards and, last, meta.json."""
        state = self._state()
        for name, text in {"tokenizer.json": self.tokenizer.to_str(pretty=True), **self.beside}.items():
            write_text(self.folder / name, text)
        writers = {
            split: ShardWriter(self.folder, split, self.dtype, state.get("splits", {}).get(split)) for split in SPLITS
        }
        documents = self.documents
        if state:
            _say(f"{self.source}: goes on after {state['documents']:,} documents")
            documents.go_to(state["after"])
        count = self._write_documents(documents, writers, state.get("documents", 0))
        self._check(count, writers)
        self._say_share({split: writer.bytes for split, writer in writers.items()})
        self._write_meta(count, documents.bad, {split: writer.close() for split, writer in writers.items()})
        (self.folder / _STATE).unlink(missing_ok=True)

    def _state(self) -> dict[str, Any]:
        """What an earlier session has recorded; empty without a record that fits the tokenizer and the files."""
        try:
            state = read_object(self.folder / _STATE, "record of a preparation", _OF_STATE, "remove its folder")
        except FileNotFoundError:
            return {}
        if "after" not in state:
            say(f"data: {self.folder} was begun by an earlier version: this source is prepared from its start")
            return {}
        complete = all(ShardWriter.has_written(self.folder, name, self.dtype, state["splits"][name]) for name in SPLITS)
        return state if complete and state["tokenizer"] == self.key else {}

    def _write_documents(self, documents: Documents, writers: dict[str, ShardWriter], count: int) -> int:
        """Tokenise the documents after the first `count` into the shards of their splits; returns the number of all.
        Every few seconds it is written how far this is, once the tokens before have reached the disk."""
        recorded = time.monotonic()
        with _Progress(self.source, documents, count, _tokens(writers)) as progress:
            for texts, encoded, place in self._encoded(documents):
                for text, tokens in zip(texts, encoded, strict=True):
                    split = "validation" if self.split.held_out(count, text) else "train"
                    writers[split].add(tokens, len(text.encode()))
                    count += 1
                progress.update(count, _tokens(writers))
                if time.monotonic() - recorded >= SECONDS_BETWEEN_RECORDS:
                    splits = {split: writer.state() for split, writer in writers.items()}
                    state = {"documents": count, "after": place, "splits": splits, "tokenizer": self.key}
                    write_json(self.folder / _STATE, state)
                    recorded = time.monotonic()
        _say(progress.line())
        return count

    def _encoded(self, documents: Documents) -> Iterator[_Group]:
        """The documents in groups, in their order, each with the end-of-document token."""

        def encode(texts: list[str], place: Place) -> _Group:
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return texts, [np.asarray([*encoding.ids, self.end], dtype=self.dtype) for encoding in encodings], place

        waiting: deque[Future[_Group]] = deque()
        # Without the library's own parallelism each call to it keeps to one core.
        with environment(TOKENIZERS_PARALLELISM="false"), ThreadPoolExecutor(self.workers) as pool:
            try:
                for group in _groups(documents):
                    # Reading is ahead of encoding, so the place is noted here.
                    waiting.append(pool.submit(encode, group, documents.place))
                    if len(waiting) > 2 * self.workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

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
                "give more than one document, or a longer one"
            )
        for split, writer in writers.items():
            if not writer.tokens:
                raise UserError(
                    f"{source}: by content, none of its {count:,} documents is for {split}; give more documents, "
                    "another validation_fraction, or leave validation_by out"
                )

    def _say_share(self, sizes: dict[str, int]) -> None:
        """Say what validation came to where that is far from what is set."""
        share = sizes["validation"] / sum(sizes.values())
        if not self.split.near(share):
            _say(
                f"{self.source}: {share:.2%} of the text is for validation, where {self.split.fraction:.2%} is set: "
                "its documents are too few, or too unequal"
            )


def _tokens(writers: dict[str, ShardWriter]) -> int:
    return sum(writer.tokens for writer in writers.values())


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == _DOCUMENTS_AT_ONCE or sum(map(len, group)) >= _CHARACTERS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


class _Progress(WithBar):
    """Progress over the documents of a source, of which `count` with so many tokens were done in earlier sessions;
    rates and the time left are those of this one."""

    def __init__(self, source: str, documents: Documents, count: int, tokens: int) -> None:
        self.source, self.documents = source, documents
        self.done = self.before = (count, tokens)
        share = documents.share if count else None
        self.share_before = share or 0.0
        self.started = self.printed = time.monotonic()
        super().__init__(on_screen(), 10, TaskProgressColumn())
        if self.bar:
            total, name = None if share is None else 1.0, f"data: {source.rpartition('/')[2][-20:]}"
            # With the share from the start, which is no progress of this session.
            self.task = self.bar.add_task(name, total=total, completed=share or 0.0, note="")  # type: ignore[arg-type]

    def update(self, count: int, tokens: int) -> None:
        """Show that so many documents and tokens in all are done."""
        self.done, share = (count, tokens), self.documents.share
        if self.bar:
            total = None if share is None else 1.0
            self.bar.update(self.task, total=total, completed=share or 0.0, note=self._rates("docs/s", "tok/s"))
        elif time.monotonic() - self.printed >= _SECONDS_BETWEEN_LINES:
            self.printed = time.monotonic()
            _say(f"{self.line()}{self._left(share)}")

    def line(self) -> str:
        """How much has been done, and how fast."""
        (count, tokens), bad = self.done, self.documents.bad
        left_out = f", bad lines left out: {bad:,}" if bad else ""
        return f"{self.source}: {count:,} documents, {tokens:,} tokens, {self._rates()}{left_out}"

    def _rates(self, *units: str) -> str:
        seconds = max(1e-3, time.monotonic() - self.started)
        new = ((now - before) / seconds for now, before in zip(self.done, self.before, strict=True))
        words = units or ("documents/s", "tokens/s")
        return ", ".join(f"{rate:,.0f} {unit}" for rate, unit in zip(new, words, strict=True))

    def _left(self, share: float | None) -> str:
        if share is None or share <= self.share_before:
            return ""
        seconds = (time.monotonic() - self.started) * (1 - share) / (share - self.share_before)
        return f", {share:.0%} read, about {seconds:,.0f} s left"
