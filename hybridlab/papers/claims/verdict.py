"""The result of a claim's test, and the comparison of two trained models that many tests use.

A difference between trained models counts only if it is more than twice its standard error. With three seeds or more
the error is over seeds; with fewer it is over the validation windows of these seeds, which does not cover the variation
between seeds, so the evidence gives n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridlab.runs.record import Record
from hybridlab.statistics import Measurement, known, mean_and_error, paired_difference, resolved

Runs = Mapping[int, Record]
"""seed → record."""


@dataclass(frozen=True)
class Verdict:
    """holds: True, False, or None for open. evidence: numbers, with n."""

    holds: bool | None
    evidence: str


class Open(Exception):
    """Raised by a test whose data is missing: the claim stays open. Its text is the evidence."""


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Holds if all parts hold, fails if one fails, open otherwise."""
    outcomes = [part.holds for part in parts]
    holds = None if None in outcomes and False not in outcomes else all(outcomes)
    return Verdict(holds, "; ".join(part.evidence for part in parts))


def below_zero(difference: Measurement) -> bool | None:
    """Whether a difference is below 0; None if it is not resolved."""
    return known(difference) < 0 if resolved(difference) else None


def unresolved(holds: bool | None) -> str:
    """The addition to the evidence for a difference that is not resolved."""
    return ", not resolved" if holds is None else ""


def lower_loss(
    left: tuple[str, Runs], right: tuple[str, Runs], multiple: str | None = None, or_equal: bool = False
) -> Verdict:
    """Validation loss of one (label, runs) below that of another, on the same windows and seeds.

    multiple: for the loss on windows of this multiple of the training length. or_equal: a difference that is not
    resolved holds too.
    """
    label = f"{left[0]} − {right[0]}"
    pairs = [[_windows(runs[seed], multiple) for _, runs in (left, right)] for seed in sorted({*left[1]} & {*right[1]})]
    pairs = [pair for pair in pairs if all(pair)]
    seeds = len(pairs)
    if not seeds:
        return Verdict(None, f"{label}: not run")
    if seeds >= 3:
        sides = [[known(mean_and_error(windows)) for windows in side] for side in zip(*pairs, strict=True)]
        n = f"{seeds} seeds"
    else:
        sides = [[loss for windows in side for loss in windows] for side in zip(*pairs, strict=True)]
        n = f"{len(sides[0])} windows, {seeds} seed{'s' * (seeds > 1)}"
    difference = paired_difference(*sides)
    if difference.stderr is None:
        return Verdict(None, f"{label}: {difference.n} windows are too few")
    holds = below_zero(difference)
    evidence = f"{label} = {difference.value:+.4f} ± {difference.stderr:.4f} nats ({n}{unresolved(holds)})"
    return Verdict(True if or_equal and holds is None else holds, evidence)


def _windows(record: Record, multiple: str | None) -> list[float]:
    """The loss of each validation window; empty if it was not measured."""
    if record.results is None:
        return []
    if multiple is None:
        return record.results.validation.windows
    measured = record.results.extrapolation.get(multiple)
    return measured.windows if measured else []
