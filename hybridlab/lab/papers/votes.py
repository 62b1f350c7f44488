"""What the verdict on a claim owes to the other claims, and to single seeds: one run has one vote.

- Over all claims that were tested on a page Benjamini and Hochberg's correction stands beside Holm's within each.
- A verdict that does not stand where any one seed is left out hangs on one seed.
- Claims that ask the same of the same numbers of the same runs are one claim, on a page and over all pages: the first
  one counts. Pages of several sizes of a paper often have the same runs here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybridlab.lab.papers.cells import Records, cell_runs
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.judge import either_way, judge, numbers_of, stands_without
from hybridlab.lab.papers.claims.verdict import Flag, Verdict
from hybridlab.lab.papers.experiment import Claim, Experiment, with_all
from hybridlab.lab.papers.ids import experiment_files
from hybridlab.lab.papers.listing import read_sharing
from hybridlab.lab.papers.sweep import metric_in_words
from hybridlab.statistics import FEWEST_SEEDS, survive

# ---- the correction over a page ----


def corrected_over_page(judged: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts after Benjamini and Hochberg's correction over all claims that were tested; those that read the same
    numbers count once."""
    keys = _keys(judged)
    first: dict[Any, int] = {}
    same = [first.setdefault(key, i) for i, key in enumerate(keys)]
    stands = _surviving(keys, judged, [verdict.p for verdict in judged])
    verdicts = []
    for i, verdict in enumerate(judged):
        if verdict.holds is not None and not stands.get(keys[i], True):
            text = f"not resolved after Benjamini and Hochberg's correction over the {len(stands)} claims of this page"
            flags = (*verdict.flags, Flag("page", text))
            verdict = replace(verdict, holds=None, word="open", direction="", flags=flags).noted(
                "after the page's correction"
            )
        if same[i] != i:
            verdict = replace(verdict, flags=(*verdict.flags, Flag("same", f"the same numbers as claim {same[i] + 1}")))
        verdicts.append(verdict)
    return verdicts


def _surviving(keys: Sequence[Any], judged: Sequence[Verdict], p: Sequence[float | None]) -> dict[Any, bool]:
    """Key of the numbers of each claim that is tested → whether it survives the correction. keys, p: of each claim."""
    # One that its controls silence is not tested, and another claim may ask the same of its numbers.
    tested: dict[Any, float] = {}
    for key, verdict, p_value in zip(keys, judged, p, strict=True):
        if p_value is not None and verdict.word != "cannot tell here":
            tested.setdefault(key, p_value)
    return dict(zip(tested, survive([*tested.values()]), strict=True))


def _keys(judged: Sequence[Verdict]) -> list[Any]:
    """What the comparisons of each claim read and ask; of a claim without runs its number."""
    numbers = [
        frozenset(numbers_of(data) for data in verdict.comparisons if data["n"] >= FEWEST_SEEDS) for verdict in judged
    ]
    return [key or i for i, key in enumerate(numbers)]


# ---- single seeds ----


def hanging(judged: Sequence[Verdict], families: Sequence[Sequence[Comparison]], together: bool) -> list[Verdict]:
    """The verdicts, with a flag where one is not the same if a single seed is left out of its comparisons, of those of
    its controls, and of those that it is corrected with. families: of each claim; see `judge.families`. together:
    whether Holm's correction goes over several claims, so that there is no other one over the page."""
    decided = [i for i, verdict in enumerate(judged) if verdict.holds is not None and verdict.tests]
    opened: dict[int, list[int]] = {i: [] for i in decided}
    keys, seeds = _keys(judged), {i: _seeds(judged[i]) for i in decided}
    for seed in sorted({seed for several in seeds.values() for seed in several}):
        p = [stands_without(seed, verdict, beside) for verdict, beside in zip(judged, families, strict=True)]
        stands = {} if together else _surviving(keys, judged, p)
        for i in decided:
            if seed in seeds[i] and (p[i] is None or not stands.get(keys[i], True)):
                opened[i].append(seed)
    return [
        replace(verdict, flags=(*verdict.flags, *_hangs(verdict, opened.get(i, []))))
        for i, verdict in enumerate(judged)
    ]


def _seeds(verdict: Verdict) -> set[int]:
    """The seeds that a claim and its controls read."""
    tests = [*verdict.tests, *(test for control in verdict.controls for test in control.verdict.tests)]
    return {seed for test in tests for seed in test.values}


def _hangs(verdict: Verdict, seeds: Sequence[int]) -> list[Flag]:
    if not seeds:
        return []
    of = verdict.tests[0].of
    return [Flag("seed", f"hangs on one {of}: not resolved without {of} {' or '.join(map(str, seeds))}")]


# ---- claims on the same runs ----


def one_vote(experiment: Experiment, scale: str, records: Records, judged: Sequence[Verdict]) -> Iterator[Verdict]:
    """The verdicts, those that ask the same of the same runs as an earlier claim with its number, and with its page if
    it stands on an earlier one."""
    votes = [
        _vote(experiment, scale, records, claim, verdict)
        for claim, verdict in zip(experiment.claims, judged, strict=True)
    ]
    elsewhere = _of_earlier_pages(experiment, scale, records, votes)
    first: dict[Any, int] = {}
    for i, (vote, verdict) in enumerate(zip(votes, judged, strict=True)):
        same = first.setdefault((verdict.word, verdict.note, vote) if vote else i, i)
        if same != i:
            verdict = replace(verdict, same_as=same + 1)
        if vote in elsewhere:
            identifier, number = elsewhere[vote]
            flag = Flag("same", f"the same runs as claim {number} of {identifier}")
            verdict = replace(verdict, same_on=(identifier, number), flags=(*verdict.flags, flag))
        yield verdict


Place = tuple[str, int]
"""The id of a page and the number of a claim there."""


def repeated(claims: Mapping[Place, tuple[Any, Place | None]]) -> set[Place]:
    """The claims that have no vote of their own, since the one that asks the same of the same runs is there too, with
    the same verdict. claims: place → the verdict with its scale, and the place of the one that asks the same."""
    return {
        place
        for place, (word, same) in claims.items()
        if same is not None and same in claims and claims[same][0] == word
    }


Vote = frozenset[str]
"""What a claim asks of which numbers of which runs; empty where nothing is measured."""


def _vote(experiment: Experiment, scale: str, records: Records, claim: Claim, verdict: Verdict) -> Vote:
    read = claim.test.kind, sorted(_titles(experiment, claim))

    def question(comparison: Mapping[str, Any]) -> str:
        runs = [records.get(experiment.arm(scale, cell, claim.test.first_metric), {}) for cell in comparison["cells"]]
        hashes = sorted({run.hash for by_seed in runs for run in by_seed.values()})
        return repr((comparison["metric"] or read, comparison["unit"], either_way(comparison), hashes))

    return frozenset(question(comparison) for comparison in verdict.comparisons if comparison["n"])


def _of_earlier_pages(experiment: Experiment, scale: str, records: Records, votes: Sequence[Vote]) -> dict[Vote, Place]:
    """Which of these votes stand on an earlier page of the paper at this scale: its id and the number of the claim
    there. votes: of each claim. Only claims from as many seeds as decide are looked for."""
    seeds = max((len(by_seed) for by_seed in records.values()), default=0)
    files = experiment_files()
    ids = [*files]
    if not any(votes) or seeds < FEWEST_SEEDS or experiment.id not in ids:
        return {}
    read = {
        _reads(experiment, scale, records, claim) for claim, vote in zip(experiment.claims, votes, strict=True) if vote
    }
    paper, ours = f"{experiment.paper}-", {_owner(experiment, scale, arm): runs for arm, runs in records.items()}
    places: dict[Vote, Place] = {}
    earlier = [name for name in ids[: ids.index(experiment.id)] if name.startswith(paper)]
    beside = {name for name in earlier if files[name] == files[experiment.id]}
    shared = {*_with_runs_of({owner for owner, _ in ours}, earlier, experiment, scale)}
    for identifier in (name for name in earlier if name in beside | shared):
        other = experiment.other(identifier)
        names = [*other.cells_at(scale), *other.scales[scale].places] if scale in other.scales else []
        its_records = {arm: ours[place] for arm in names if (place := _owner(other, scale, arm)) in ours}
        # Entries of one file often have equal cells, whose runs are one.
        if identifier in beside and names:
            its_records |= _equal_runs(other, scale, records, experiment.scales[scale].seeds)
        for i, claim in enumerate(other.claims if its_records else ()):
            # To compute the numbers of all claims would take longer than to make a page.
            if _reads(other, scale, its_records, claim) in read:
                verdict = judge(claim.model_copy(update={"controls": []}), other, its_records, None, scale)
                vote = _vote(other, scale, its_records, claim, verdict)
                if vote in votes:
                    places.setdefault(vote, (identifier, i + 1))
    return places


def _equal_runs(other: Experiment, scale: str, records: Records, seeds: Sequence[int]) -> Records:
    """The arms of another experiment with the same seeds whose runs are those of these records, with these. seeds:
    of this experiment."""
    if {*other.scales[scale].seeds} != {*seeds}:
        return {}
    seed = min(seed for by_seed in records.values() for seed in by_seed)
    hashes = {by_seed[seed].hash: by_seed for by_seed in records.values() if seed in by_seed}
    return {run.cell: hashes[run.hash] for run in cell_runs(other, scale, seed) if run.hash in hashes}


def _with_runs_of(owners: Collection[str], ids: Iterable[str], experiment: Experiment, scale: str) -> Iterator[str]:
    """Those of these experiments of its paper that are among the owners, or share runs of one, directly or through
    another one."""
    of_paper = {entry.id: entry for entry in read_sharing(experiment.paper)}

    def shared(name: str) -> Iterable[str]:
        if name in of_paper:
            return of_paper[name].shared(scale)
        scales = experiment.other(name).scales
        return scales[scale].shared if scale in scales else ()

    return (name for name in ids if not {*owners}.isdisjoint(with_all([name], shared)))


def _reads(experiment: Experiment, scale: str, records: Records, claim: Claim) -> frozenset[str]:
    """The runs that a claim reads, and what of them: claims that ask the same agree in this."""
    runs = [records.get(experiment.arm(scale, cell, claim.test.first_metric), {}) for cell in claim.test.cells]
    return frozenset(_titles(experiment, claim) | {run.hash for by_seed in runs for run in by_seed.values()})


def _titles(experiment: Experiment, claim: Claim) -> set[str]:
    """What a claim reads of its runs, in words that files which share no names have in common."""
    return {metric_in_words(experiment, metric) for metric in claim.test.metrics}


def _owner(experiment: Experiment, scale: str, arm: str) -> tuple[str, str]:
    """The experiment whose run an arm is, and its name there."""
    places = experiment.scales[scale].places if scale in experiment.scales else {}
    if arm not in places:
        return experiment.id, arm
    identifier, name = places[arm]
    return _owner(experiment.other(identifier), scale, name)
