"""The data of a run: its text, or the examples of its fine-tuning task."""

from __future__ import annotations

from pathlib import Path

from hybridlab.config.schema import RunConfig
from hybridlab.data.finetune.corpus import task_corpus
from hybridlab.data.preparing import ALL_CORES, Job, corpus_for
from hybridlab.data.shards import Corpus


def corpus_of(config: RunConfig, cache: Path, job: Job = ALL_CORES) -> Corpus:
    """The corpus of a run's settings, after preparing in `cache` what text has not been prepared yet."""
    if config.finetune is None:
        return corpus_for(config.data, cache, job)
    length, causal = config.training.seq_len, config.shape.traits.causal
    return task_corpus(config.finetune, config.data.tokenizer, length, causal, job.say)
