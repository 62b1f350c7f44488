"""The number of sequences in a batch of an evaluation, limited by the size of the logits, its largest tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridlab.models.decoder import Transformer

_MOST_LOGITS = 2**28
"""A gibibyte in fp32."""
_MOST_ROWS = 32


def chunks(items: Any, model: Transformer, length: int) -> Iterator[Any]:
    """Slices of a list or array, of at least one row, whose logits fit into a gibibyte."""
    rows = max(1, min(_MOST_ROWS, _MOST_LOGITS // (length * model.shape.vocab)))
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
