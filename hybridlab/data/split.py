"""How the documents of a source are divided between training and validation.

Document i goes to validation when i is a multiple of round(1 / validation_fraction), or as its content says with
`validation_by: content`. By number, a source of few documents would give far more or far less than its share: a text
of 40 kB is cut into two documents, of which one would be 41 %. Such a source is divided inside its documents, so that
validation has its share in several places, and what is between them stays together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hybridlab.config.schema import Data
from hybridlab.data.sources import Documents, read_documents

_PLACES = 4
"""Of validation text in a small source."""
_SHORTEST = 64
"""Characters of a block at least."""
_MOST_CHARACTERS = 50_000_000
"""A source with more text is not small, however few its documents are: dividing takes all of it into memory."""


@dataclass(frozen=True)
class Split:
    """How documents are divided between training and validation. inside: of a source that is divided inside its
    documents, the numbers of the parts for validation."""

    fraction: float
    by_content: bool
    inside: frozenset[int] | None = None

    def held_out(self, number: int, text: str) -> bool:
        """Whether a document goes to validation. number: counted from 0 in its source.

        By content, the hash of the text without its case and its white space decides, so that equal documents, also
        those of several sources, are on the same side. A copy that differs in a word is not found.
        """
        if self.inside is not None:
            return number in self.inside
        if not self.by_content:
            return number % self.period == 0
        content = " ".join(text.casefold().split())
        digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < self.fraction * 2**64

    @property
    def period(self) -> int:
        """By number: document i goes to validation when i is a multiple of this."""
        return max(2, round(1 / self.fraction))

    @property
    def described(self) -> str:
        """For people."""
        if self.inside is not None:
            return f"inside documents, of which there are few: {self.fraction:g} of the text"
        if self.by_content:
            return f"by content: {self.fraction:g} of all texts"
        return f"by number: one of {self.period} documents"

    def near(self, share: float) -> bool:
        """Whether validation has at most twice and at least half of what is set."""
        return self.fraction / 2 <= share <= 2 * self.fraction


def divided(data: Data) -> tuple[Documents, Split]:
    """The documents of a single source, or their parts where it is small, and how they are divided."""
    split, documents = Split(data.validation_fraction, data.validation_by == "content"), _documents_of(data)
    if split.by_content:
        return documents, split
    first, texts, characters = _documents_of(data), list[str](), 0
    for text in first:
        texts.append(text)
        characters += len(text)
        if len(texts) > 2 * split.period or characters > _MOST_CHARACTERS:
            return documents, split
    held_out = sum(map(len, texts[:: split.period]))
    if not characters or split.near(held_out / characters):
        return documents, split
    parts = _parts(texts, split.fraction)
    inside = frozenset(number for number, (_, held) in enumerate(parts) if held)
    return Documents(iter([text for text, _ in parts]), bad=first.bad), replace(split, inside=inside)


def _documents_of(data: Data) -> Documents:
    assert data.source is not None
    return read_documents(data.source, data.field, data.max_documents, data.skip_bad_lines or False)


def _parts(texts: Sequence[str], fraction: float) -> list[tuple[str, bool]]:
    """The texts in parts, each with whether it goes to validation: what brings validation nearest to its share of all
    text so far. Neighbours of one text on one side are one part."""
    size = max(_SHORTEST, int(sum(map(len, texts)) * fraction / _PLACES))
    blocks = [(number, block) for number, text in enumerate(texts) for block in _blocks(text, size)]
    held, total, validation = [False] * len(blocks), 0, 0
    for place, (_, block) in enumerate(blocks):
        total += len(block)
        held[place] = fraction * total - validation >= len(block) / 2
        validation += len(block) * held[place]
    held[-1] = held[-1] or not validation
    sides = groupby(zip(blocks, held, strict=True), key=lambda placed: (placed[0][0], placed[1]))
    return [("".join(block for (_, block), _ in placed), side) for (_, side), placed in sides]


def _blocks(text: str, size: int) -> Iterator[str]:
    """A text in blocks of half to all of `size` characters, which end at a line end or, without one, at a space."""
    start = 0
    while len(text) - start > size:
        room = start + size // 2, start + size
        end = text.rfind("\n", *room) + 1 or text.rfind(" ", *room) + 1 or start + size
        yield text[start:end]
        start = end
    yield text[start:]
