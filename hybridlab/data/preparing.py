"""Prepare corpora: read a source, tokenise it, write its shards into a folder.

    hybridlab data prepare text:book.txt --tokenizer bpe:1024 --out prepared

Document i goes to validation when i is a multiple of round(1 / validation_fraction), or as its content says with
`validation_by: content` (data/splitting.py). Each of several sources is
prepared by itself, with a tokenizer that they share. A preparation that was killed goes on with the same command.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from hybridlab.config.schema import Data, WeightedSource
from hybridlab.data.mixture import in_proportion, source_labels
from hybridlab.data.readers import NoSuchField
from hybridlab.data.shards import FORMAT, SPLITS, Corpus, Part, open_for_run
from hybridlab.data.sources import files_key, split_source
from hybridlab.data.tokenizers import (
    TRAINING_CHARACTERS,
    is_trained,
    load_tokenizer,
    make_tokenizer,
    tokenizer_digest,
    tokenizer_file,
)
from hybridlab.data.unfinished import others, unfinished
from hybridlab.data.writing import CorpusWriter, Job, training_documents
from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json, write_text
from hybridlab.registry import SOURCES

ALL_CORES = Job()
_ADDED = ("validation_by", "skip_bad_lines")
"""Settings that data which were prepared before them have at None; they need not be prepared again."""


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
    _check_lines(data)
    if data.sources is None:
        return _opened(data, cache, None, job)
    try:
        common = _common_tokenizer(data, cache, job)
        corpora = [_opened(part, cache, common, job) for part in data.each_source()]
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


def _opened(data: Data, cache: Path, tokenizer: Tokenizer | None, job: Job | None) -> Corpus:
    """The corpus of a single source. tokenizer: one that several sources share, otherwise that of the settings."""
    assert data.source is not None
    kind, argument = split_source(data.source)
    if kind == "shards":
        return open_for_run(Path(argument).expanduser())
    folder = _prepared_folder(data, cache / _cache_key(data, tokenizer))
    if not (folder / "meta.json").exists():
        if job is None:
            raise _NotPreparedYet
        with unfinished(folder, "data", job.say) as partial:
            # Another process may have prepared it while this one waited for it.
            if not (folder / "meta.json").exists():
                CorpusWriter(data, partial, tokenizer, job).write()
    return open_for_run(folder)


def _prepared_folder(data: Data, folder: Path) -> Path:
    """`folder`, or another one beside it if that was prepared when the file of the tokenizer had another content. One
    that is no longer there leaves what was prepared with it."""
    file = tokenizer_file(data.tokenizer)
    if file is None or not file.is_file() or not (folder / "meta.json").exists():
        return folder
    now, then = (tokenizer_digest(load_tokenizer(path)) for path in (file, folder))
    return folder if now == then else folder.with_name(f"{folder.name}-{now[:8]}")


def _cache_key(data: Data, tokenizer: Tokenizer | None = None) -> str:
    """Name of the folder of a prepared corpus: a digest of settings, file names, sizes and times, of the version of the
    plug-in that reads it, and of a tokenizer that sources share."""
    assert data.source is not None
    settings = data.model_dump(mode="json", exclude={"mix", "task_loss_weight", "sources"})
    settings = {name: value for name, value in settings.items() if value is not None or name not in _ADDED}
    plugin = SOURCES.plugins.get(split_source(data.source)[0])
    also = [f"{plugin.name} {plugin.version}"] if plugin else []
    also += [tokenizer_digest(tokenizer)] if tokenizer is not None else []
    content = json.dumps([FORMAT, settings, files_key(data.source), *also], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _common_tokenizer(data: Data, cache: Path, job: Job | None) -> Tokenizer | None:
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
    if job is None:
        raise _NotPreparedYet
    job.say(f"tokenizer {data.tokenizer}, trained on {len(parts)} sources")
    weights = [source.weight for source in data.sources]
    texts = in_proportion([partial(training_documents, part) for part in parts], weights, TRAINING_CHARACTERS)
    tokenizer = make_tokenizer(data.tokenizer, texts)
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


_PREPARED = ".prepared.json"
"""Of what a folder was made, so that the same command finds it finished."""


def prepare(data: Data, folder: Path, job: Job = ALL_CORES) -> None:
    """Tokenise a source into `folder`, or each of several sources into a folder of its own in `folder`, which appears
    only when all is complete. What an earlier call with equal settings has done, in part or whole, is not done again.
    UserError if the folder has something else."""
    for source in data.all_sources:
        if split_source(source)[0] == "shards":
            raise UserError(f"data source {source}: it is prepared already; use it as it is")
    _check_lines(data)
    key = _key_of_all(data)
    if _is_done(folder, key):
        job.say(f"{folder}: finished before, nothing to do")
        return
    _check_empty(folder)
    for other in others(folder, key):
        job.say(f"{other}: an unfinished preparation with other settings; remove it if it is no longer needed")
    with unfinished(folder, key, job.say) as partial:
        _check_empty(folder)
        if data.sources is None:
            CorpusWriter(data, partial, None, job).write()
        else:
            _prepare_each(data, partial, job)
        write_json(partial / _PREPARED, {"key": key})


def _is_done(folder: Path, key: str) -> bool:
    """Whether `prepare` has made this folder, from the same files with the same settings."""
    path = folder / _PREPARED
    return path.is_file() and read_object(path, "data folder", ("key",), "prepare the data again")["key"] == key


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: the folder is not empty; choose another one with --out")


def _prepare_each(data: Data, partial: Path, job: Job) -> None:
    """Prepare what is not complete yet of several sources; the tokenizer that they share is kept until all are."""
    common = _common_tokenizer(data, partial, job)
    names = source_labels(data.all_sources)
    for name, part in zip(names, data.each_source(), strict=True):
        if not (partial / name / "meta.json").is_file():
            (partial / name).mkdir(exist_ok=True)
            CorpusWriter(part, partial / name, common, job).write()
    for kept in partial.glob("tokenizer-*.json"):
        kept.unlink()


def _key_of_all(data: Data) -> str:
    """A digest of all that decides what is prepared."""
    parts = [data] if data.sources is None else data.each_source()
    weights = [source.weight for source in data.sources or ()]
    return hashlib.sha256(json.dumps([weights, *map(_cache_key, parts)]).encode()).hexdigest()[:16]
