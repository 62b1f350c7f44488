"""The data of a run: its text, or the examples of its fine-tuning task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hybridlab.config.schema import RunConfig
from hybridlab.data.finetune.corpus import task_corpus
from hybridlab.data.preparing import ALL_CORES, Job, corpus_for
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import is_trained


def corpus_of(config: RunConfig, cache: Path, job: Job = ALL_CORES) -> Corpus:
    """The corpus of a run's settings, after preparing in `cache` what text has not been prepared yet."""
    if config.finetune is None:
        return corpus_for(config.data, cache, job)
    length, causal = config.training.seq_len, config.shape.traits.causal
    corpus = task_corpus(config.finetune, _tokenizer_of(config, cache, job), length, causal, job.say)
    tokenizer = {**corpus.meta["tokenizer"], "spec": config.data.tokenizer}
    return replace(corpus, meta={**corpus.meta, "tokenizer": tokenizer})


def _tokenizer_of(config: RunConfig, cache: Path, job: Job) -> str:
    """The model's tokenizer as `data.tokenizer` names it; one that is made from the text, which is the same for the run
    that the model comes from, is read from the prepared text."""
    spec = config.data.tokenizer
    if not is_trained(spec) and spec != "shards":
        return spec
    prepared = corpus_for(config.data, cache, job).parts[0].corpus
    return f"file:{prepared.folder / 'tokenizer.json'}"
