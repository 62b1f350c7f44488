"""The verdict on a claim of an experiment, by the rule of hybridlab/statistics.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybridlab.config.study import short_name
from hybridlab.lab.papers.calls import ClaimTest, test_in_words
from hybridlab.lab.papers.cells import Records
from hybridlab.lab.papers.claims.comparison import Comparison, least_as_claimed
from hybridlab.lab.papers.claims.kinds import Given
from hybridlab.lab.papers.claims.verdict import DIRECTION_ONLY, MOST_SEEDS_HERE, Control, Verdict
from hybridlab.lab.papers.experiment import Claim, Experiment, with_all
from hybridlab.lab.papers.formula import NotMeasured, NoValue
from hybridlab.plugins import entries, is_own, refuse
from hybridlab.runs.record import BenchmarkRecord
from hybridlab.statistics import FEWEST_SEEDS, LEVEL, MOST_SEEDS, Decision, decide, known, mean_and_error


def judge(
    claim: Claim,
    experiment: Experiment,
    records: Records,
    benchmark: BenchmarkRecord | None = None,
    scale: str | None = None,
    beside: Sequence[float | None] = (),
) -> Verdict:
    """What is known about a claim. scale: the name of the one that the records are of, for the verdict's sentence and
    the values of swept settings there. beside: see `decide`."""
    data = Given(experiment, records, benchmark, scale)
    for test in claim.tests:
        test.check({(): f"{experiment.id}, claim {claim.text!r}"})
    verdict = _judged(claim.test, data, claim.effect, beside, claim.controls)
    if not claim.controls or verdict.word == "not run":
        return verdict
    controls = tuple(Control(test_in_words(test), _judged(test, data)) for test in claim.controls)
    return _under(replace(verdict, controls=controls))


def families(alone: Sequence[Verdict], experiment: Experiment) -> Iterator[list[Comparison]]:
    """For each claim of a page the comparisons of others over which Holm's correction goes too (see
    `Experiment.correction`); those that read the same numbers count once. alone: the verdict on each claim by itself.
    """
    several, page = experiment.correction != "claim", experiment.correction == "page"
    read = [{*claim.test.metrics} for claim in experiment.claims]
    for i, verdict in enumerate(alone):
        counted, beside = {numbers_of(comparison) for comparison in verdict.comparisons}, []
        for other in (judged for j, judged in enumerate(alone) if several and j != i and (page or read[j] == read[i])):
            for comparison, test in zip(other.comparisons, other.tests, strict=True):
                if comparison["n"] < FEWEST_SEEDS or numbers_of(comparison) not in counted:
                    beside.append(test)
                    counted.add(numbers_of(comparison))
        yield beside


def numbers_of(comparison: Mapping[str, Any]) -> tuple[str, str, str]:
    """What identifies the numbers of a comparison and its question. A number that all seeds have says nothing of where
    it comes from, so that the label stands beside it."""
    constant = len(set(comparison["values"].values())) < 2
    return comparison["metric"], either_way(comparison), comparison["label"] if constant else ""


def either_way(comparison: Mapping[str, Any]) -> str:
    """The numbers of a comparison and its question: the same for "A is below B" as for "B is above A", not for "A is at
    most B", which another test answers."""
    values, bounds = comparison["values"], comparison["asked"]
    if bounds is None or comparison["asks"].startswith("at most"):
        return repr((values, comparison["asks"]))
    turned = [None if bound is None else 0.0 - bound for bound in reversed(bounds)]
    return min(repr((values, bounds)), repr(({seed: 0.0 - value for seed, value in values.items()}, turned)))


def _under(verdict: Verdict) -> Verdict:
    """The verdict as its controls allow it. A control that enough seeds do not resolve holds as little as one that
    fails: where an oracle is not better than a random choice, nothing can be told of the arms between them."""
    waiting = [control.verdict for control in verdict.controls if not control.verdict.holds]
    if not waiting:
        return verdict
    needs = [verdict] * (verdict.n_needed is not None) + waiting
    dearest = max(needs, key=lambda candidate: candidate.n_needed or 0)
    minutes = max((need.minutes_needed for need in needs if need.minutes_needed is not None), default=None)
    silent = any(unmet.holds is False or unmet.word == "open" and _enough(unmet) for unmet in waiting)
    control = "" if dearest is verdict or not dearest.evidence else f"its control: {dearest.evidence}"
    evidence = "; ".join(filter(None, (verdict.evidence, control)))
    direction = verdict.direction if verdict.holds is None else ""
    said = replace(verdict, holds=None, word="open", evidence=evidence, direction=direction)
    said = replace(said, n_needed=dearest.n_needed, minutes_needed=minutes)
    return replace(said, word="cannot tell here", note="", direction="") if silent else said


def _enough(verdict: Verdict) -> bool:
    """Whether there are seeds enough, in all of its comparisons, for a verdict that does not stay open."""
    return (verdict.n or 0) >= FEWEST_SEEDS and all(test.n >= test.fewest for test in verdict.tests)


def _judged(
    test: ClaimTest,
    data: Given,
    effect: float | None = None,
    beside: Sequence[float | None] = (),
    controls: Sequence[ClaimTest] = (),
) -> Verdict:
    """The verdict of one test. controls: tests whose arms need as many seeds."""
    kind, arguments = test.call
    data = replace(data, metric=test.first_metric)
    try:
        result: Verdict | list[Comparison] = kind.run(data, **arguments)
    except NoValue as reason:
        return Verdict(None, str(reason), word="not run" if isinstance(reason, NotMeasured) else "open")
    if isinstance(result, Verdict):
        return result
    if is_own(kind.run):
        _check_comparisons(kind.run, result)
    # Of what is observed in models of which only some are there, the comparisons of these; else all.
    there = [comparison for comparison in result if comparison.observed and comparison.run] or result
    verdict = verdict_of(there, effect, beside)
    if data.scale is not None and verdict.n:
        verdict = replace(verdict, scale=_scale_sentence(data, test.cells, result))
    if verdict.word == "open" and verdict.n_needed is not None:
        read = [*test.cells, *(cell for control in controls for cell in control.cells)]
        minutes = _minutes_for(verdict.n_needed - (verdict.n or 0), data, read)
        return replace(verdict, minutes_needed=minutes, evidence=verdict.evidence + _in_minutes(minutes))
    # Looking several times, before all seeds that the file plans, finds more than 5 % of effects that are not there.
    scales = data.experiment.scales
    planned = len(scales[data.scale].seeds) if data.scale in scales else 0
    if verdict.holds is not None and verdict.n is not None and verdict.n < planned:
        return replace(verdict, note=f"{verdict.n} of {planned} seeds so far")
    return verdict


def _check_comparisons(kind: object, result: object) -> None:
    """UserError for a result of a claim kind that is not comparisons of finite numbers."""
    expected = "a list of comparisons, as `on.compared` gives them, or a Verdict"
    comparisons = [*entries(kind, "", result, expected)]
    for entry in comparisons:
        if not isinstance(entry, Comparison):
            refuse(kind, "", entry, expected, " among its comparisons")
        if not all(math.isfinite(value) for value in entry.values.values()):
            refuse(
                kind, "", dict(entry.values), "finite numbers (raise NoValue for what has none)", f" as {entry.label!r}"
            )
    if not comparisons:
        refuse(kind, "", comparisons, expected)


def verdict_of(
    comparisons: Sequence[Comparison], effect: float | None = None, beside: Sequence[float | None] = ()
) -> Verdict:
    """The verdict on a claim that makes these comparisons, each of them one number for each seed.

    effect: the size of the effect that an open claim is to be able to see; by default the observed one. beside: see
    `decide`.
    """
    decision = decided(comparisons, beside)
    numbers = tuple(comparison.as_json(p) for comparison, p in zip(comparisons, decision.p, strict=True))
    verdict = Verdict(decision.outcome, "", n=0, comparisons=numbers, tests=tuple(comparisons))
    measured = [comparison.n for comparison in comparisons if comparison.n]
    if not measured:
        not_run = any(not comparison.run for comparison in comparisons)
        missing = "; ".join(dict.fromkeys(comparison.missing for comparison in comparisons))
        return replace(verdict, evidence=missing, word="not run" if not_run else "open")
    least = least_as_claimed(comparisons, decision.p)
    verdict = replace(verdict, n=min(measured), p=p_of(comparisons, decision), deciding=least)
    if decision.outcome is False:
        return replace(verdict, direction=comparisons[least].direction)
    if decision.outcome:
        return verdict
    if max(measured) < comparisons[0].fewest:
        verdict = replace(verdict, note=DIRECTION_ONLY, direction=_direction(comparisons))
    pairs = zip(comparisons, decision.resolved, strict=True)
    waiting = [comparison for comparison, clear in pairs if comparison.needed and not clear]
    if waiting and not any(comparison.n for comparison in waiting):
        return replace(verdict, evidence="; ".join(dict.fromkeys(comparison.missing for comparison in waiting)))
    n_needed = _seeds_needed(waiting, effect, LEVEL / (len(comparisons) + len(beside)))
    takes = _takes(n_needed, min(measured), effect, comparisons[0].of)
    return replace(verdict, evidence=takes, n_needed=n_needed)


def decided(comparisons: Sequence[Comparison], beside: Sequence[float | None] = ()) -> Decision:
    """What the comparisons of one claim come to. beside: see `decide`."""
    return decide([test.found for test in comparisons], [test.needed for test in comparisons], beside)


def p_of(comparisons: Sequence[Comparison], decision: Decision) -> float | None:
    """The p, after Holm's correction, on which a decision rests: where one comparison is resolved the other way that of
    the clearest, else the largest of those that have to be resolved; None if one of these has none."""
    if decision.outcome is False:
        return decision.p[least_as_claimed(comparisons, decision.p)]
    needed = [p for comparison, p in zip(comparisons, decision.p, strict=True) if comparison.needed]
    known_p = [p for p in needed if p is not None]
    return max(known_p) if known_p and len(known_p) == len(needed) else None


def stands_without(seed: int, verdict: Verdict, beside: Sequence[Comparison] = ()) -> float | None:
    """The p of a claim that is resolved as it is without one of its seeds too, and whose controls hold without it; None
    where the seed that is left out leaves it open, or turns it round. beside: see `families`."""
    tests = [test.without(seed) for test in verdict.tests]
    decision = decided(tests, [test.without(seed).found.p for test in beside])
    controls = (control.verdict for control in verdict.controls)
    controls_hold = all(
        decided([test.without(seed) for test in control.tests]).outcome if control.tests else control.holds
        for control in controls
    )
    return p_of(tests, decision) if controls_hold and decision.outcome is verdict.holds else None


def _direction(comparisons: Sequence[Comparison]) -> str:
    """How many of the comparisons point where the claim says."""
    sides = [comparison.found.side for comparison in comparisons if comparison.n]
    if len(sides) == 1:
        return {1: "as claimed", -1: "the opposite of the claim", 0: "neither way"}[sides[0]]
    return f"as claimed in {sides.count(1)} of {len(sides)} comparisons"


def _seeds_needed(waiting: Sequence[Comparison], effect: float | None, level: float) -> int | None:
    """Seeds with which every comparison that is measured would be resolved, each at an equal part of LEVEL."""
    needed = [comparison.seeds(effect, level) for comparison in waiting if comparison.n]
    return None if not needed or None in needed else max(number for number in needed if number is not None)


def _takes(n_needed: int | None, n: int, effect: float | None, unit: str) -> str:
    of = "the observed effect" if effect is None else f"an effect of {abs(effect):g}"
    if n_needed is None:
        return f"no number of {unit}s up to {MOST_SEEDS:,} would resolve {of}"
    if n < 2:
        return f"at least {n_needed} {unit}s, since the spread over {unit}s is not known"
    beyond = "not at this size: " if n_needed > MOST_SEEDS_HERE else ""
    return f"{beyond}{n_needed:,} {unit}s for 80 % power at {of}"


def _in_minutes(minutes: float | None) -> str:
    if minutes is None:
        return ""
    if 0 < minutes < 0.5:
        return " (less than a minute more)"
    if minutes >= 300:
        return f" (about {minutes / 60:,.0f} hours more)"
    return f" (about {minutes:.0f} minutes more)" if minutes else " (there are as many)"


# ---- what the verdict speaks of, and what more seeds would cost ----


JOBS = 2
"""Runs that are trained at the same time, as in `reproduce --jobs 2`."""


def _minutes_for(seeds: int, data: Given, cells: Sequence[str]) -> float | None:
    """Minutes to train and measure these cells, and all that they start from, with so many more seeds and two jobs.
    None if a record is missing."""
    # A scale may have cells of its own.
    specs = data.experiment.cells_at(data.scale)
    needed = with_all(cells, lambda name: specs[name].parents if name in specs else [])
    if not needed or any(not data.runs(cell) for cell in needed):
        return None
    continued = {run.extended.run for cell in needed for run in data.runs(cell).values() if run.extended}
    seconds = 0.0
    for cell in needed:
        # The seconds of a run that was continued are in those of its continuation.
        runs = [run for run in data.runs(cell).values() if run.hash not in continued]
        run_seconds = [run.seconds + (run.evaluation_seconds or 0.0) for run in runs]
        seconds += known(mean_and_error(run_seconds)) if run_seconds else 0.0
    return max(0, seeds) * seconds / JOBS / 60


def _scale_sentence(data: Given, cells: Sequence[str], comparisons: Sequence[Comparison]) -> str:
    """As "at desk scale (1M parameters, 2M tokens, n = 5)": sizes and tokens of the arms, and seeds."""
    runs = [run for cell in dict.fromkeys(cells) for run in data.runs(cell).values()]
    counts = sorted({comparison.n for comparison in comparisons if comparison.n})
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {max(counts)}"
    if not runs:
        return f"at {data.scale} scale ({n} {comparisons[0].of}s)"
    sizes = [run.parameters.get("total", 0) for run in runs]
    if comparisons[0].observed:
        behind = (data.experiment.pretrained_behind(str(data.scale), cell) for cell in cells if data.runs(cell))
        models = " and ".join(dict.fromkeys(map(short_name, behind)))
        return f"in {models} ({_range(sizes)} parameters), over {n.removeprefix('n = ')} {comparisons[0].of}s"
    tokens = [None if run.weights is None else run.weights.tokens for run in runs]
    token_counts = [count for count in tokens if count is not None]
    of_tokens = f", {_range(token_counts)} tokens" if len(token_counts) == len(tokens) else ""
    return f"at {data.scale} scale ({_range(sizes)} parameters{of_tokens}, {n})"


def _range(counts: Sequence[int]) -> str:
    """1.7B, 46M, 0.4M to 0.6M, 46M to 1.7B, 1,000."""
    low, high = _short(min(counts)), _short(max(counts))
    if high.endswith("M") and min(counts) >= 5e4:
        low = _in_millions(min(counts))
    return low if low == high else f"{low} to {high}"


def _short(count: int) -> str:
    if count >= 5e8:
        return f"{count / 1e9:.1f}".removesuffix(".0") + "B"
    return _in_millions(count) if count >= 5e5 else f"{count:,}"


def _in_millions(count: int) -> str:
    return f"{count / 1e6:.1f}".removesuffix(".0") + "M"
