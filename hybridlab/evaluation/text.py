"""The text or the examples that a model is measured on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from hybridlab.data.batches import Windows
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.training.batch import Objective


@dataclass(frozen=True)
class Text:
    """The text to measure an objective on. context: the precision of the model's computations. inputs: further
    arguments of the forward pass, for a model whose structure is being learned."""

    objective: Objective
    corpus: Corpus
    splits: tuple[str, ...]
    context: AbstractContextManager
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def windows(self, length: int) -> Windows:
        """All windows of `length` tokens in the text."""
        return Windows([shard for split in self.splits for shard in getattr(self.corpus, split)], length)


# ---- how many sequences at once: limited by the logits, the largest tensor ----

_MOST_LOGITS = 2**28
"""A gibibyte in fp32."""
_MOST_ROWS = 32


def chunks(items: Any, model: Transformer, length: int) -> Iterator[Any]:
    """Slices of a list or array, of at least one row, whose logits fit into a gibibyte."""
    rows = max(1, min(_MOST_ROWS, _MOST_LOGITS // (length * model.shape.vocab)))
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
