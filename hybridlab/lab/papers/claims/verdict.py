"""What a claim's test comes to: a word, its evidence, and for an open one what it would take.

A kind that reads trained models returns comparisons (comparison.py), one number for each seed, and the rule of
hybridlab/statistics.py makes the verdict of them. A kind that is about printed or computed numbers returns its
`Verdict`, which needs no seeds.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hybridlab.lab.papers.claims.comparison import Comparison, asked_in_words, effect_of

Word = Literal["holds", "fails", "observed", "opposite observed", "open", "cannot tell here", "not run"]
DIRECTION_ONLY = "direction only"
"""The note of an open verdict from fewer than FEWEST_SEEDS seeds."""


SHORT = 110
"""Characters of a cell in the short form of a claim."""
MOST_SEEDS_HERE = 100
"""A claim that would take more seeds cannot be decided at this size of model and effect."""


class Flag(str):
    """A sentence on what a reader must know of how a verdict came about, with a code: see _MARKS of
    hybridlab/lab/reporting/claims.py."""

    code: str

    def __new__(cls, code: str, text: str) -> Flag:
        flag = super().__new__(cls, text)
        flag.code = code
        return flag


@dataclass(frozen=True)
class Control:
    """A test that must hold for a claim to be read. test: its kind and arguments, as text."""

    test: str
    verdict: Verdict

    @property
    def in_words(self) -> str:
        """What it asks, as its comparisons say; without any, its kind and arguments."""
        return asked_in_words(self.verdict.comparisons) or self.test.replace("_", " ")


@dataclass(frozen=True)
class Verdict:
    """holds: True, False, or None for undecided. evidence: the figures; where comparisons have them, what it takes to
    decide the claim.

    word: by default that of `holds`, of a class of its own where the tests are over the prompts or documents of one
    model. note: what stands behind the word, as `direction only`. n: seeds, the fewest of the comparisons. p: after
    Holm's correction, of the comparison that decides (the largest where all must be resolved). n_needed: seeds for 80 %
    power, None where no number would do or nothing was measured. minutes_needed: for the missing ones, with two jobs.
    scale: what the verdict speaks of. comparisons: those of trained models in numbers, see `Comparison.as_json`.
    deciding: the index of the one that is least as claimed. direction: how the numbers differ from the claim where it
    fails, as `worse than claimed`, and where only a direction is known, which. tests: the comparisons themselves.
    same_as: the number of an earlier claim of the page, counted from 1, that asks the same of the same runs; same_on:
    the id and number of one of an earlier page.
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
    tests: tuple[Comparison, ...] = field(default=(), compare=False, repr=False)
    deciding: int | None = None
    direction: str = ""
    flags: tuple[Flag, ...] = ()
    same_as: int | None = None
    same_on: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if self.holds is not None:
            observed = any(test.observed for test in self.tests)
            words: tuple[Word, Word] = ("observed", "opposite observed") if observed else ("holds", "fails")
            object.__setattr__(self, "word", words[not self.holds])

    def noted(self, note: str) -> Verdict:
        """The verdict with a further note behind its word."""
        return replace(self, note=", ".join(filter(None, (self.note, note))))

    @property
    def short(self) -> str:
        """The evidence in one short line: the effect in the comparison that is least as claimed."""
        if self.deciding is None:
            return textwrap.shorten(self.evidence, SHORT, placeholder=" …")
        return effect_of(self.comparisons[self.deciding], len(self.comparisons), SHORT)

    def as_json(self) -> dict[str, Any]:
        """As a claim of table.json has it, after its text and source."""
        details = "" if self.evidence == self.short else self.evidence
        return {
            "verdict": self.word,
            "note": self.note,
            "direction": self.direction,
            "evidence": self.short,
            "details": details,
            "n": self.n,
            "p": self.p,
            "n_needed": self.n_needed,
            "minutes_needed": None if self.minutes_needed is None else round(self.minutes_needed, 1),
            "scale": self.scale,
            "flags": [{"code": flag.code, "text": str(flag)} for flag in self.flags],
            "deciding": self.deciding,
            "comparisons": list(self.comparisons),
        }
