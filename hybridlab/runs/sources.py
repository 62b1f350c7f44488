"""The sources of a run's data: what the record says of them, and what is said before training."""

from __future__ import annotations

from collections.abc import Iterator

from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Windows, sources_read
from hybridlab.data.shards import Corpus
from hybridlab.runs.record import DataSummary, SourceSummary


def data_summary(corpus: Corpus, config: RunConfig, steps: int, since: int = 0) -> DataSummary:
    """The data of a run that has done so many steps, those after step `since` with this data."""
    return DataSummary(
        source=corpus.meta["source"] if config.data.source is None else config.data.source,
        fingerprint=corpus.fingerprint,
        train_tokens=corpus.tokens("train"),
        validation_tokens=corpus.tokens("validation"),
        sources=list(_sources(corpus, config, steps, since)) if corpus.mixed else None,
    )


def announce_sources(corpus: Corpus, config: RunConfig, since: int = 0) -> Iterator[str]:
    """A line about each source of a mixture: what the whole run will read from it, see `data_summary`."""
    for source in data_summary(corpus, config, config.training.steps, since).sources or ():
        again = f", all of its {source.train_tokens:,} {source.epochs:.1f} times" if source.epochs > 1 else ""
        yield f"{source.name}: {source.weight:.3g} of the text, {source.read:,} tokens to read{again} ({source.source})"


def _sources(corpus: Corpus, config: RunConfig, steps: int, since: int) -> Iterator[SourceSummary]:
    length = config.training.seq_len
    until, before = (sources_read(corpus, config.data, config.training, number) for number in (steps, since))
    for part, whole, other in zip(corpus.mixed, until, before, strict=True):
        tokens = whole - other
        yield SourceSummary(
            name=part.name,
            source=part.corpus.meta["source"],
            weight=part.weight,
            fingerprint=part.corpus.fingerprint,
            train_tokens=part.corpus.tokens("train"),
            validation_tokens=part.corpus.tokens("validation"),
            read=tokens,
            epochs=round(tokens / length / max(1, len(Windows(part.corpus.train, length))), 4),
        )
