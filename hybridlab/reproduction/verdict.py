"""What a test of a claim is given and returns, and the comparison of two trained models that most of them make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Records = dict[str, dict[int, dict[str, Any]]]
"""cell → seed → record."""


@dataclass(frozen=True)
class Verdict:
    """holds: True, False, or None where it cannot be said. evidence: figures, with n."""

    holds: bool | None
    evidence: str


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Holds where all parts hold, fails where one fails."""
    outcomes = [part.holds for part in parts]
    holds = None if None in outcomes and False not in outcomes else all(outcomes)
    return Verdict(holds, "; ".join(part.evidence for part in parts))


def missing(records: Records, cells: Sequence[str]) -> Verdict | None:
    """The verdict where a cell has not been run."""
    lost = [cell for cell in cells if not records.get(cell)]
    return Verdict(None, f"not run: {', '.join(lost)}") if lost else None


def first_seed(records: Records, cell: str) -> dict[str, Any]:
    by_seed = records[cell]
    return by_seed[min(by_seed)]


def paired_difference(
    records: Records, left: tuple[str, str], right: tuple[str, str], result: Sequence[str] = ("validation",)
) -> Verdict:
    """Validation loss of one (label, cell) below that of another, on the same windows and seeds.

    result: where among a record's results the loss by window stands.
    """
    first, second = records.get(left[1], {}), records.get(right[1], {})
    seeds = sorted(set(first) & set(second))
    label = f"{left[0]} − {right[0]}"
    if not seeds:
        return Verdict(None, f"{label}: not run")
    windows = [np.subtract(*(_windows(found[s], result) for found in (first, second))) for s in seeds]
    over_seeds = len(seeds) >= 3
    samples = np.array([w.mean() for w in windows]) if over_seeds else np.concatenate(windows)
    if len(samples) < 2:
        return Verdict(None, f"{label}: {len(samples)} windows are too few")
    mean, error = float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))
    n = f"{len(seeds)} seeds" if over_seeds else f"{len(samples)} windows, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    holds = None if abs(mean) <= 2 * error else mean < 0
    unresolved = "" if holds is not None else ", not resolved"
    return Verdict(holds, f"{label} = {mean:+.4f} ± {error:.4f} nats ({n}{unresolved})")


def _windows(record: dict[str, Any], result: Sequence[str]) -> list[float]:
    found = record["results"]
    for key in result:
        found = found[key]
    return found["windows"]
