"""Which documents are kept for validation: by their number, or by their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hybridlab.config.schema import Data


@dataclass(frozen=True)
class Split:
    """How documents are divided between training and validation."""

    fraction: float
    by_content: bool

    @classmethod
    def of(cls, data: Data) -> Split:
        """That of the settings of a source."""
        return cls(data.validation_fraction, data.validation_by == "content")

    def held_out(self, number: int, text: str) -> bool:
        """Whether a document goes to validation. number: counted from 0 in its source.

        By content, the hash of the text without its case and its white space decides, so that equal documents, also
        those of several sources, are on the same side. A copy that differs in a word is not found.
        """
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
        if self.by_content:
            return f"by content: {self.fraction:g} of all texts"
        return f"by number: one of {self.period} documents"
