"""What a claim's test comes to: a word, its evidence, and for an open one what it would take.

A kind that reads trained models returns comparisons (comparison.py), one number for each seed, and the rule of
hybridlab/statistics.py makes the verdict of them. A kind that is about printed or computed numbers returns its
`Verdict`, which needs no seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hybridlab.runs.record import Record

Runs = Mapping[int, Record]
"""seed → record."""
Word = Literal["holds", "fails", "open", "cannot tell here", "not run"]
DIRECTION_ONLY = "direction only"
"""The note of an open verdict from fewer than FEWEST_SEEDS seeds."""
_WORDS: dict[bool | None, Word] = {True: "holds", False: "fails", None: "open"}


@dataclass(frozen=True)
class Control:
    """A test that must hold for a claim to be read. test: its kind and arguments, as text."""

    test: str
    verdict: Verdict


@dataclass(frozen=True)
class Verdict:
    """holds: True, False, or None for undecided. evidence: the figures.

    word: by default that of `holds`. note: what stands behind the word, as `direction only`. n: seeds, the fewest of
    the comparisons. p: after Holm's correction, of the comparison that decides (the largest where all must be
    resolved). n_needed: seeds for 80 % power, None where no number would do or nothing was measured. minutes_needed:
    for the missing ones, with two jobs. scale: what the verdict speaks of. comparisons: those of trained models in
    numbers, see `Comparison.as_json`. flags: what a reader must know of how the verdict came about, in sentences.
    """

    holds: bool | None
    evidence: str
    word: Word = "open"
    note: str = ""
    n: int | None = None
    p: float | None = None
    n_needed: int | None = None
    minutes_needed: float | None = None
    scale: str | None = None
    controls: tuple[Control, ...] = ()
    comparisons: tuple[dict[str, Any], ...] = field(default=(), compare=False)
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.holds is not None:
            object.__setattr__(self, "word", _WORDS[self.holds])

    def noted(self, note: str) -> Verdict:
        """The verdict with a further note behind its word."""
        return replace(self, note=", ".join(filter(None, (self.note, note))))

    @property
    def shown(self) -> str:
        """The word with its note: open (direction only)."""
        return f"{self.word} ({self.note})" if self.note else self.word

    def as_json(self) -> dict[str, Any]:
        """As a claim of table.json has it, after its text and source."""
        return {
            "verdict": self.word,
            "note": self.note,
            "evidence": self.evidence,
            "n": self.n,
            "p": self.p,
            "n_needed": self.n_needed,
            "minutes_needed": None if self.minutes_needed is None else round(self.minutes_needed, 1),
            "scale": self.scale,
            "flags": list(self.flags),
            "comparisons": list(self.comparisons),
            "controls": [{"test": control.test, **control.verdict.as_json()} for control in self.controls],
        }


class Open(Exception):
    """Raised where a test cannot be made of what was measured: the claim stays open. Its text is the evidence."""


class NotRun(Open):
    """Raised where runs or measurements are missing: the verdict is `not run`."""
