"""Several sources of text, mixed by weight.

A weight is a share of the training tokens. The text rows of a run are numbered from 0 over all steps; `SourceOrder`
says for any number which source the row is from, and how many rows of that source came before. The sources take turns
as evenly as their weights allow, so their shares are right at every step, and the order needs no saved state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from hybridlab.data.tokenizers import first_characters
from hybridlab.registry import SOURCES

_SOURCES = 4
"""First word of the seed sequence; see data/batches.py."""
_ONE = 2**53


class SourceOrder:
    """The sources of text rows. weights: positive, their sum is 1."""

    def __init__(self, weights: list[float], seed: int) -> None:
        # The first source gets its share of all rows, the second one its share of the rest, and so on. Whole numbers,
        # because sums of rounded fractions would drift.
        rest = [sum(weights[number:]) for number in range(len(weights))]
        self.rates = [round(_ONE * weight / left) for weight, left in zip(weights, rest, strict=True)][:-1]
        self.starts = [int(start) for start in np.random.default_rng((_SOURCES, seed)).integers(_ONE, size=len(rest))]

    def place(self, row: int) -> tuple[int, int]:
        """Number of the source of a row, and the number of rows of this source before it."""
        for number in range(len(self.rates)):
            before = self._count(number, row)
            if self._count(number, row + 1) > before:
                return number, before
            row -= before
        return len(self.rates), row

    def counts(self, rows: int) -> list[int]:
        """How many of the first `rows` rows are from each source."""
        counts = []
        for number in range(len(self.rates)):
            counts.append(self._count(number, rows))
            rows -= counts[-1]
        return [*counts, rows]

    def _count(self, number: int, rows: int) -> int:
        return (rows * self.rates[number] + self.starts[number]) >> 53


def source_labels(sources: list[str]) -> list[str]:
    """A short name for each source, from its last part: `text:books/old.txt` is `old`. Equal ones are numbered."""
    labels: list[str] = []
    for source in sources:
        kind, _, argument = source.partition(":")
        named = SOURCES.get(kind).label(argument) if kind in SOURCES else argument
        last = named.rstrip("/").rpartition("/")[2]
        name = re.sub(r"[^\w-]+", "-", re.sub(r"(\.[A-Za-z]\w*)+$", "", last)).strip("-") or kind
        label, number = name, 1
        while label in labels:
            number += 1
            label = f"{name}-{number}"
        labels.append(label)
    return labels


def in_proportion(sources: list[Callable[[], Iterable[str]]], weights: list[float], most: int) -> Iterator[str]:
    """Texts of all sources, at most `most` characters in all, in which each source has its weight's share.

    A source that is too short for its share is repeated, as it is in training.
    """
    lengths = [sum(map(len, first_characters(source(), most))) for source in sources]
    total = min(most, max(length / weight for length, weight in zip(lengths, weights, strict=True)))
    for source, weight, length in zip(sources, weights, lengths, strict=True):
        if length:
            yield from first_characters(_repeated(source), round(total * weight))


def _repeated(source: Callable[[], Iterable[str]]) -> Iterator[str]:
    while True:
        yield from source()
