"""Numbers over training seeds: the cells of tables, and the series of figures.

A cell is the mean over seeds, its error, and the paired difference to another row. The unit is the training seed. With
three seeds or more errors are over seeds. With fewer, errors are over the validation windows of these seeds, in blocks,
since neighbouring windows are correlated; they say nothing about what another seed would change. A series is the mean
over seeds with one standard error, as a band or bars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hybridlab.evaluation.results import LossResult
from hybridlab.lab.reporting.figure_kind import Numbers
from hybridlab.runs.record import BenchmarkRecord, Record, number_at, part_at
from hybridlab.statistics import FEWEST_SEEDS, LEVEL, Measurement, Typed, known, mean_and_error, paired_t

# ---- cells of tables ----


Over = Literal["seeds", "prompts", "documents", "windows", "answers", "rounds", "samples"]
"""What an error is over. windows: in blocks of ten. answers: of a task, or of questions with options. rounds: of a
benchmark."""
Sources = Mapping[int, Record | BenchmarkRecord]
"""seed → record of a cell."""
BySeed = Mapping[int, Measurement]
"""seed → number."""


class Measured(Typed):
    """A cell's value, None if it was not measured. n: the number of seeds (of rounds, for a benchmark)."""

    value: float | None
    stderr: float | None = None
    over: Over | None = None
    n: int = 0


class Difference(Typed):
    """A cell less its reference, paired by seed. interval: of 95 %, from Student's t over n seeds; None for fewer than
    three. stderr: over seeds with an interval, else over blocks of validation windows."""

    value: float
    stderr: float | None = None
    over: Over | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    n: int

    @property
    def sign(self) -> int:
        """1 or −1 where the interval leaves out 0, else 0."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return 0
        return 1 if self.value > 0 else -1


def measured(sources: Sources, path: str, factor: float = 1.0) -> Measured:
    """The number at a dotted path of the records: the mean over their seeds."""
    numbers = numbers_at(sources, path, factor)
    if not numbers or len(numbers) >= FEWEST_SEEDS:
        return measured_numbers(numbers)
    value = _mean(numbers)
    blocks = _mean_blocks([blocks_of(sources[seed], path, factor) for seed in numbers])
    if blocks is not None:
        error = mean_and_error(blocks).stderr
        return Measured(value=value, stderr=error, over="windows" if error else None, n=len(numbers))
    (first, *others), record = numbers.values(), next(iter(sources.values()))
    if others or first.stderr is None or isinstance(part_at(record, path.rpartition(".")[0]), LossResult):
        return Measured(value=value, n=len(numbers))
    if isinstance(record, BenchmarkRecord):
        return Measured(value=value, stderr=first.stderr, over="rounds", n=first.n)
    of_answers = any(part in f".{path}" for part in (".tasks.", ".choices."))
    return Measured(value=value, stderr=first.stderr, over="answers" if of_answers else "samples", n=1)


def measured_numbers(numbers: BySeed) -> Measured:
    """The mean of a number over seeds; with one or two of them, a single one's own error."""
    if not numbers:
        return Measured(value=None)
    if len(numbers) >= FEWEST_SEEDS:
        mean = mean_and_error([known(number) for number in numbers.values()])
        return Measured(value=mean.value, stderr=mean.stderr, over="seeds", n=len(numbers))
    error = next(iter(numbers.values())).stderr if len(numbers) == 1 else None
    over: Over | None = None if error is None else "samples"
    return Measured(value=_mean(numbers), stderr=error, over=over, n=len(numbers))


def difference_of_numbers(left: BySeed, right: BySeed) -> Difference | None:
    """left − right, on the seeds that both have; None if there are none. Without an error for fewer than three."""
    seeds = sorted({*left} & {*right})
    if not seeds:
        return None
    ours, theirs = ([known(side[seed]) for seed in seeds] for side in (left, right))
    value = float(np.mean(ours) - np.mean(theirs))
    if len(seeds) < FEWEST_SEEDS:
        return Difference(value=value, n=len(seeds))
    test = paired_t(ours, theirs)
    spread = test.difference.stderr
    return Difference(value=value, stderr=spread, over="seeds", interval=test.interval, p=test.p, n=len(seeds))


def mean_numbers(parts: Sequence[BySeed]) -> dict[int, Measurement]:
    """seed → the mean of several numbers, such as the scores of several runs, with the error of a stratified sample, of
    the seeds that have each of them."""
    seeds = set.intersection(*(set(part) for part in parts)) if parts else set()
    means = {}
    for seed in sorted(seeds):
        numbers = [part[seed] for part in parts]
        errors = [number.stderr for number in numbers]
        error = None if None in errors else math.hypot(*(error or 0.0 for error in errors)) / len(numbers)
        value = sum(known(number) for number in numbers) / len(numbers)
        means[seed] = Measurement(value=value, stderr=error, n=sum(number.n for number in numbers))
    return means


def difference(left: Sources, right: Sources, path: str, factor: float = 1.0) -> Difference | None:
    """left − right, on the seeds that both have; None if there are none."""
    sides = [numbers_at(sources, path, factor) for sources in (left, right)]
    gap = difference_of_numbers(*sides)
    if gap is None or gap.n >= FEWEST_SEEDS:
        return gap
    seeds = sorted({*sides[0]} & {*sides[1]})
    pairs = [[blocks_of(sources[seed], path, factor) for sources in (left, right)] for seed in seeds]
    blocks = _mean_blocks([a - b if a is not None and b is not None and len(a) == len(b) else None for a, b in pairs])
    error = None if blocks is None else mean_and_error(blocks).stderr
    return gap.model_copy(update={"stderr": error, "over": "windows" if error else None})


def from_neutral(cell: Measured, neutral: float) -> Difference | None:
    """How far a ratio, which is a comparison itself, lies from its value without a difference."""
    if cell.value is None:
        return None
    value, interval = cell.value - neutral, None
    if cell.stderr is not None and cell.n >= FEWEST_SEEDS:
        from scipy import stats

        half = float(stats.t.ppf(1 - LEVEL / 2, cell.n - 1)) * cell.stderr
        interval = (value - half, value + half)
    return Difference(value=value, stderr=cell.stderr, over=cell.over, interval=interval, n=cell.n)


def blocks_of(record: Record | BenchmarkRecord, path: str, factor: float = 1.0) -> np.ndarray | None:
    """What each block of ten validation windows adds to a loss, a perplexity or bits per byte: its own loss times the
    slope of the number in the mean loss. None for other numbers, and where there is no block."""
    parent, _, field = path.rpartition(".")
    result = part_at(record, parent)
    value = number_at(record, path).value
    if not isinstance(result, LossResult) or value is None or not result.in_blocks:
        return None
    mean = result.loss.value or math.nan
    slope = {"loss": 1.0, "perplexity": value, "pseudo_perplexity": value, "bits_per_byte": value / mean}.get(field)
    return None if slope is None else np.asarray(result.in_blocks) * slope * factor


def numbers_at(sources: Sources, path: str, factor: float) -> dict[int, Measurement]:
    """seed → the number at a dotted path of its record, of the seeds that measured it."""
    numbers = {seed: number_at(record, path).scaled(factor) for seed, record in sources.items()}
    return {seed: number for seed, number in numbers.items() if number.value is not None}


def _mean(numbers: BySeed) -> float:
    return sum(known(number) for number in numbers.values()) / len(numbers)


def _mean_blocks(blocks: list[np.ndarray | None]) -> np.ndarray | None:
    """The mean over seeds for each block; None if a seed has none, or another number of them."""
    present = [block for block in blocks if block is not None]
    if not present or len(present) < len(blocks) or len({len(block) for block in present}) > 1:
        return None
    return np.mean(present, axis=0)


# ---- series of figures ----


def merge_lines(by_seed: Mapping[int, Numbers], keys: Sequence[str] = ("y",)) -> Numbers:
    """Lists over the same x become their mean over seeds; `low` and `high` hold the mean of the first key ∓ its error.

    The x are those of the first seed that lie within all others; between their points, as for FLOPs that differ from
    seed to seed, the others are read off straight lines.
    """
    runs = [run for run in by_seed.values() if run["x"]]
    if len(runs) < 2:
        return runs[0] if runs else next(iter(by_seed.values()))
    first, last = max(run["x"][0] for run in runs), min(run["x"][-1] for run in runs)
    common = [at for at in runs[0]["x"] if first <= at <= last]
    merged: Numbers = {**runs[0], "x": common, "seeds": len(runs)}
    for key in keys:
        read_off = np.array([np.interp(common, run["x"], run[key]) for run in runs])
        means = [mean_and_error(values) for values in read_off.T]
        merged[key] = [mean.value for mean in means]
        if key == keys[0]:
            merged["low"] = [(mean.value or 0.0) - (mean.stderr or 0.0) for mean in means]
            merged["high"] = [(mean.value or 0.0) + (mean.stderr or 0.0) for mean in means]
    return merged


def merge_points(by_seed: Mapping[int, Numbers]) -> Numbers:
    """`points` at the same place of a series become one, with its error over seeds."""
    grouped: dict[int, list[dict[str, Any]]] = {}
    for numbers in by_seed.values():
        for point in numbers["points"]:
            grouped.setdefault(point["place"], []).append(point)
    points = []
    for group in grouped.values():
        if len(group) == 1:
            points.append(group[0])
            continue
        x, y = (mean_and_error([point[key] for point in group]) for key in ("x", "y"))
        points.append(
            {"run": group[0]["run"], "x": x.value, "y": y.value, "stderr": y.stderr, "over": "seeds", "n": y.n}
        )
    return {"points": sorted(points, key=lambda point: point["x"]), "seeds": len(by_seed)}
