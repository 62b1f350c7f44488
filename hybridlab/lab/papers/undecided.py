"""What deciding the claims costs that are not decided, the cheapest first.

A claim is decided by runs. Either its plan asks for runs that have no record, or all of these are there and, by their
spread, more seeds would decide it. The second kind needs a new plan with new seeds: seeds that are added because p was
near 0.05 are a change of plan. Claims that read the same runs are decided together, so that a run is paid for once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hybridlab.config.resolve import parents
from hybridlab.config.schema import RunConfig
from hybridlab.config.study import Study
from hybridlab.errors import UserError
from hybridlab.lab.papers.cells import CellRun, cell_runs
from hybridlab.lab.papers.claim_list import Listed
from hybridlab.lab.papers.experiment import Experiment, with_all
from hybridlab.lab.papers.obstacles import DESK, arms_at
from hybridlab.lab.papers.pages import pages_in
from hybridlab.lab.papers.sweep import Pending, sweep_runs, with_parents
from hybridlab.training.store.results import listed

# ---- what deciding costs ----


@dataclass(frozen=True)
class Cost:
    """Of one run. minutes: by the speed of this machine, with as many runs at once as it takes; None where it has
    trained nothing of that shape. flops: None where they depend on masks that are not known yet."""

    minutes: float | None = None
    flops: float | None = None


@dataclass(frozen=True)
class Need:
    """What would decide a claim. amounts: run → how many of it, by the run's hash; of a new plan the run of the first
    planned seed stands for one of each new seed. start: the runs that can be started now, parents first: those of the
    plan, or of the search that comes before them. searches: the experiments whose search that is."""

    amounts: Mapping[str, int]
    start: Pending = field(default_factory=dict)
    searches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """Runs that decide claims together. amounts: of its need, without those that an earlier step trains too. minutes,
    flops: of all these runs, None where that of one is not known. places: indices of the claims in the list."""

    places: tuple[int, ...]
    amounts: Mapping[str, int]
    minutes: float | None
    flops: float | None

    @property
    def runs(self) -> int:
        """How many runs it takes."""
        return sum(self.amounts.values())

    @property
    def order(self) -> tuple[int, float]:
        """By what a claim costs: those whose minutes are known first, then those whose FLOPs are."""
        claims = len(self.places)
        if self.minutes is not None:
            return 0, self.minutes / claims
        return (1, self.flops / claims) if self.flops is not None else (2, self.runs / claims)


def in_order(needs: Mapping[int, Need], cost: Callable[[str], Cost]) -> list[Step]:
    """The steps that decide all claims, each time the one that costs least for each claim that it decides. What an
    earlier step trains is free for a later one. needs: of each claim, by its place. cost: of the run with a hash."""
    left, trained, steps = dict(needs), dict[str, int](), list[Step]()
    costs = {run: cost(run) for need in needs.values() for run in need.amounts}
    by_place: dict[int, Step] = {}
    while left:
        for place, need in left.items():
            if place not in by_place:
                by_place[place] = _step(need, left, trained, costs)
        best = min(by_place.values(), key=lambda step: (step.order, min(step.places)))
        steps.append(best)
        trained |= {run: trained.get(run, 0) + number for run, number in best.amounts.items()}
        left = {place: need for place, need in left.items() if place not in best.places}
        # The others cost what they did before, unless they share runs with this one.
        by_place = {
            place: step
            for place, step in by_place.items()
            if place in left
            and not {*best.places} & {*step.places}
            and best.amounts.keys().isdisjoint(left[place].amounts)
        }
    return steps


def _step(need: Need, left: Mapping[int, Need], trained: Mapping[str, int], costs: Mapping[str, Cost]) -> Step:
    """What a need takes beside what is there already, and all claims that this decides."""
    after = {**trained} | {run: max(trained.get(run, 0), number) for run, number in need.amounts.items()}
    decided = [
        place
        for place, other in left.items()
        if all(after.get(run, 0) >= number for run, number in other.amounts.items())
    ]
    new = {run: number - trained.get(run, 0) for run, number in need.amounts.items() if number > trained.get(run, 0)}
    minutes = [_times(costs[run].minutes, number) for run, number in new.items()]
    flops = [_times(costs[run].flops, number) for run, number in new.items()]
    return Step(tuple(decided), new, _sum(minutes), _sum(flops))


def _times(value: float | None, number: int) -> float | None:
    return None if value is None else value * number


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [*values]
    return None if None in numbers else sum(value for value in numbers if value is not None)


# ---- what each claim needs ----


class Needs:
    """What would decide the claims of a list at a scale. configs: run → its configuration, of all runs that the needs
    name. left_out: experiment → why none of its runs can be known. complete: the experiments with a claim that waits
    for runs although all of them have records."""

    def __init__(self, experiments: Iterable[Experiment], results_dir: Path, scale: str = DESK) -> None:
        self.scale, self.configs, self.left_out = scale, dict[str, RunConfig](), dict[str, str]()
        self._experiments = {experiment.id: experiment for experiment in experiments}
        self.complete = set[str]()
        self._recorded = {path.name.partition(".")[0] for path in listed(results_dir, "records/*")}
        self._runs: dict[tuple[str, int], list[CellRun]] = {}
        self._searches: dict[str, Pending] = {}

    def planned(self, claim: Listed) -> Need | None:
        """The runs of a claim's plan that have no record, with those that they start from, and of a search that comes
        before them; None if there is none, or the plan has no such runs."""
        experiment = self._experiments[claim.id]
        arms = self._arms(experiment, claim)
        start: Pending = {}
        for seed in experiment.scales[self.scale].seeds if arms else ():
            runs = self._of_arms(experiment, seed, arms)
            start |= self._missing({run.hash: (f"{run.cell} (seed {seed})", run.config) for run in runs})
        if not start:
            if arms and not any(owner.unsearched(self.scale) for owner in self._owners(experiment)):
                self.complete.add(claim.id)
            return None
        amounts = dict.fromkeys(start, 1)
        searches = [owner for owner in self._owners(experiment) if owner.unsearched(self.scale)]
        if not searches:
            return Need(amounts, {run: (f"{claim.id}: {name}", config) for run, (name, config) in start.items()})
        start = {}
        for owner in searches:
            start |= self._search(owner)
        return Need(amounts | dict.fromkeys(start, 1), start, tuple(owner.id for owner in searches))

    def new(self, claim: Listed) -> Need | None:
        """As many runs of each arm of a claim as it needs new seeds; None where it needs none that can be counted."""
        experiment = self._experiments[claim.id]
        arms = self._arms(experiment, claim)
        if not arms or claim.n_needed is None:
            return None
        runs = self._of_arms(experiment, min(experiment.scales[self.scale].seeds), arms)
        trained = {run.hash: run.config for run in runs if isinstance(run.config, RunConfig)}
        self.configs |= trained
        return Need(dict.fromkeys(trained, claim.n_needed)) if trained else None

    def unread(self, results_dir: Path) -> list[str]:
        """The experiments among those that are complete whose page was not made of all of their records, or of all of
        their claims."""
        pages = {
            entry.id: page
            for entry in pages_in(results_dir, self.complete)
            for page in entry.pages
            if page.scale == self.scale
        }
        stale = []
        for identifier in sorted(self.complete):
            experiment, page = self._experiments[identifier], pages.get(identifier)
            data = {"runs": {}, "claims": []} if page is None else page.data
            read = {digest for by_seed in data["runs"].values() for digest in by_seed.values()}
            judged = {(claim["text"], claim["source"]) for claim in data["claims"]}
            recorded = {run.hash for run in self._planned_runs(experiment)} & self._recorded
            if not recorded <= read or not {(claim.text, claim.source) for claim in experiment.claims} <= judged:
                stale.append(identifier)
        return stale

    def unmeasured(self) -> list[str]:
        """The experiments among those that are complete of whose trained models a study has no record."""
        return [
            identifier
            for identifier in sorted(self.complete)
            for runs in [self._planned_runs(self._experiments[identifier])]
            if any(isinstance(run.config, Study) and run.hash not in self._recorded for run in runs)
        ]

    def _planned_runs(self, experiment: Experiment) -> list[CellRun]:
        return [run for seed in experiment.scales[self.scale].seeds for run in self._all(experiment, seed)]

    def _arms(self, experiment: Experiment, claim: Listed) -> set[str]:
        """See `arms_at`; empty where the runs cannot be known."""
        if experiment.id in self.left_out:
            return set()
        return arms_at(experiment, experiment.claims[claim.number - 1], self.scale)

    def _of_arms(self, experiment: Experiment, seed: int, arms: set[str]) -> Iterator[CellRun]:
        """The runs of these arms, and all that they start from."""
        of_seed = self._all(experiment, seed)
        runs = {run.hash: run for run in of_seed}

        def starts(digest: str) -> list[str]:
            config = runs[digest].config
            return [parent for parent in parents(config) if parent in runs] if isinstance(config, RunConfig) else []

        # Equal cells are one run.
        needed = {*with_all([run.hash for run in of_seed if run.cell in arms], starts)}
        yield from (run for digest, run in runs.items() if digest in needed)

    def _all(self, experiment: Experiment, seed: int) -> list[CellRun]:
        """The runs of a seed."""
        if (key := (experiment.id, seed)) not in self._runs:
            try:
                self._runs[key] = [*cell_runs(experiment, self.scale, seed)]
            except UserError as error:
                self.left_out[experiment.id], self._runs[key] = str(error), []
        return self._runs[key]

    def _owners(self, experiment: Experiment) -> Iterator[Experiment]:
        """The experiment, and those whose runs some of its arms are."""
        yield experiment
        yield from (experiment.other(identifier) for identifier in experiment.scales[self.scale].shared)

    def _search(self, experiment: Experiment) -> Pending:
        """What is missing of a search."""
        if experiment.id not in self._searches:
            assert experiment.sweep is not None, "what is unsearched has a search"
            runs = self._missing(dict(sweep_runs(experiment, experiment.sweep)))
            labelled = {digest: (f"{experiment.id}: {name}", config) for digest, (name, config) in runs.items()}
            self._searches[experiment.id] = labelled
        return self._searches[experiment.id]

    def _missing(self, runs: Mapping[str, tuple[str, object]]) -> Pending:
        """The runs without a record, and those that they start from, whose weights no record has."""
        trained = {digest: (name, config) for digest, (name, config) in runs.items() if isinstance(config, RunConfig)}
        missing = with_parents(trained, {digest for digest in trained if digest not in self._recorded})
        self.configs |= {digest: config for digest, (_, config) in missing.items()}
        return missing


def takes(
    claims: Sequence[Listed], needs: Needs, cost: Callable[[str], Cost]
) -> tuple[list[Step], list[Step], dict[int, Need]]:
    """The steps that plans ask for, those that take a new plan, and the needs of all claims among these, by their
    places in the list."""
    planned: dict[int, Need] = {}
    new: dict[int, Need] = {}
    for place, claim in enumerate(claims):
        what = claim.in_the_way.what if claim.in_the_way is not None else None
        if what == "runs" and (need := needs.planned(claim)) is not None:
            planned[place] = need
        elif what == "seeds" and (need := needs.new(claim)) is not None:
            new[place] = need
    return in_order(planned, cost), in_order(new, cost), planned | new


# ---- times ----

_TIME = re.compile(r"(?=\d)(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?")


def seconds_of(text: str) -> float:
    """Seconds of a time as 8h, 90m or 1h30m; UserError for others."""
    match = _TIME.fullmatch(text.strip())
    seconds = 3600 * float(match[1] or 0) + 60 * float(match[2] or 0) if match else 0.0
    if not seconds:
        raise UserError(f"--until {text}: write a time above 0 such as 8h, 90m or 1h30m")
    return seconds
