"""How many sequences an evaluation runs at once: logits are by far its largest tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridlab.models.decoder import Decoder

_MOST_LOGITS = 2**28
"""A gibibyte in fp32."""
_MOST_ROWS = 32


def chunks(items: Any, model: Decoder, length: int) -> Iterator[Any]:
    """Slices of a list or array, so small that the logits of each fit into a gibibyte (one row at least)."""
    rows = max(1, min(_MOST_ROWS, _MOST_LOGITS // (length * model.shape.vocab)))
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
