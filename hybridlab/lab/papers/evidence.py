"""`hybridlab reproduce --until 8h`: the runs for which undecided claims wait, those of the cheapest claims first.

Only what plans ask for is trained: planned seeds, and the runs of a search that comes before them. Runs that are
published count as made. See undecided.py for the order, and docs/evidence.md for why no seeds are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridlab.config.study import RUN
from hybridlab.errors import UserError
from hybridlab.lab.papers.cells import with_runtime
from hybridlab.lab.papers.claim_list import Listed, claims_of, with_vote
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.listing import Filter
from hybridlab.lab.papers.obstacles import DESK, UNDECIDED
from hybridlab.lab.papers.reproduce import ExperimentAtScale, QueuedStudy, joined, run_studies, stamps, trainable
from hybridlab.lab.papers.sweep import Pending, keep_diverged
from hybridlab.lab.papers.undecided import Cost, Need, Needs, Step, takes
from hybridlab.lab.papers.verdicts import check_plan
from hybridlab.runs.preview import Speeds, cost_of
from hybridlab.runs.queue import Deadline, Outcome, run_all, threads_of
from hybridlab.runs.record import record_name
from hybridlab.training.machine import cpu_cores, pick_device
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.results import listed


@dataclass(frozen=True)
class Evidence:
    """What undecided claims wait for. claims: these, each question once. steps: what plans ask for, in the order in
    which it is trained. new: what takes a new plan with new seeds. needs: of the claims in steps, by place. costs: of
    the runs in steps and new, by hash. left_out: experiment → why its runs cannot be known. unread: the experiments
    that have all records, and a page that was not made of them. unmeasured: those that have all trained runs, and not
    all of their studies."""

    scale: str
    experiments: Mapping[str, Experiment]
    claims: Sequence[Listed]
    steps: Sequence[Step]
    new: Sequence[Step]
    needs: Mapping[int, Need]
    costs: Mapping[str, Cost]
    left_out: Mapping[str, str]
    unread: Sequence[str]
    unmeasured: Sequence[str]

    def elsewhere(self) -> list[Listed]:
        """The claims that no step decides, by what stands in their way; those that are too small for any number of
        seeds last."""
        in_steps = {place for step in (*self.steps, *self.new) for place in step.places}
        left = [claim for place, claim in enumerate(self.claims) if place not in in_steps]
        return sorted(left, key=lambda claim: _LAST.index(claim.in_the_way.what) if claim.in_the_way else 0)

    def start(self, step: Step) -> Pending:
        """The runs of a step that can be started, parents first."""
        runs: Pending = {}
        for place in step.places:
            runs |= {digest: run for digest, run in self.needs[place].start.items() if digest in step.amounts}
        return runs

    def queue(self, compile: bool | None = None) -> Pending:
        """All runs of the steps in their order, without those whose task files are not here."""
        queue: Pending = {}
        for step in self.steps:
            joined(queue, self.start(step))
        runnable, _ = trainable(queue)
        changed = {} if compile is None else {"compile": compile}
        return {digest: (name, with_runtime(config, **changed)) for digest, (name, config) in runnable.items()}

    def searches(self, *steps: Step) -> list[str]:
        """The experiments whose search these steps begin with; without any, all steps."""
        places = (place for step in steps or self.steps for place in step.places)
        return list(dict.fromkeys(identifier for place in places for identifier in self.needs[place].searches))

    def reproduced(self) -> list[ExperimentAtScale]:
        """The experiments whose planned seeds are among the runs, or whose models are not all measured."""
        ids = {self.claims[place].id for step in self.steps for place in step.places if not self.needs[place].searches}
        ids |= {*self.unmeasured}
        return [ExperimentAtScale(entry, self.scale) for entry in self.experiments.values() if entry.id in ids]


_LAST = ("rate", "mechanism", "design", "runs", "seeds", "speed", "GPU", "not here", "effect")
"""The order of what stands in the way, where no run can be started."""


def evidence(
    experiments: Sequence[Experiment],
    results_dir: Path,
    runs_dir: Path,
    filters: Filter,
    scale: str = DESK,
    verdict: str | None = None,
) -> Evidence:
    """What the undecided claims of these experiments wait for at a scale, those that pass the filter. verdict: see
    `claims_of`."""
    listed_claims = claims_of(experiments, results_dir, filters, verdict, scale)
    undecided = [claim for claim in listed_claims if claim.verdict in UNDECIDED]
    claims, needs = with_vote(undecided), Needs(experiments, results_dir, scale)
    speeds = Speeds([*listed(results_dir, record_name("*")), *runs_dir.glob("*/record.json")])
    costs: dict[str, Cost] = {}
    by_config: dict[str, Cost] = {}

    def cost(digest: str) -> Cost:
        """The runs of all seeds cost the same."""
        config = needs.configs[digest]
        key = config.model_dump_json(exclude={"training": {"seed"}, "init": {"run"}})
        if key not in by_config:
            threads = threads_of(config, cpu_cores())
            at_once = max(1, cpu_cores() // threads) if pick_device(config.runtime.device).type == "cpu" else 1
            flops, minutes = cost_of(config, threads, speeds)
            by_config[key] = Cost(None if minutes is None else minutes / at_once, flops)
        return costs.setdefault(digest, by_config[key])

    steps, new, of_claims = takes(claims, needs, cost)
    by_id = {experiment.id: experiment for experiment in experiments}
    left_over = needs.unread(results_dir), needs.unmeasured()
    return Evidence(scale, by_id, claims, steps, new, of_claims, costs, needs.left_out, *left_over)


def fitting(missing: Evidence, minutes: float) -> list[int]:
    """Of each step the number of runs that by their estimates finish within `minutes`, in their order; a run
    without an estimate counts, since it is started."""
    used, numbers = 0.0, list[int]()
    for step in missing.steps:
        number = 0
        for digest in missing.start(step):
            duration = missing.costs[digest].minutes or 0.0
            if used + duration <= minutes:
                used, number = used + duration, number + 1
        numbers.append(number)
    return numbers


def run_evidence(
    missing: Evidence, queue: Pending, runs_dir: Path, results_dir: Path, jobs: int | None, deadline: Deadline
) -> Outcome:
    """Train the queue until the deadline, then measure what studies ask for whose models are there. queue: see
    `Evidence.queue`."""
    reproduced = missing.reproduced()
    for target in reproduced:
        check_plan(target.experiment, target.scale)
    plans = stamps(reproduced, results_dir)
    outcome = run_all(queue, runs_dir, results_dir, jobs, plans=plans, deadline=deadline) if queue else Outcome()
    keep_diverged(outcome, queue, runs_dir, results_dir)
    for target in reproduced:
        studies = {digest: study for digest, study in target.studies().items() if _trained(study, runs_dir)}
        run_studies(studies, runs_dir, results_dir, outcome, plans)
    return outcome


def _trained(queued: QueuedStudy, runs_dir: Path) -> bool:
    """Whether a study is of a run that has finished here."""
    model = queued.study.model
    return model.startswith(RUN) and RunFolder(runs_dir / model.removeprefix(RUN)).finished()


def decided(missing: Evidence, results_dir: Path) -> list[Listed]:
    """The claims that were undecided and are decided now."""
    ids = {missing.claims[place].id for step in missing.steps for place in step.places}
    ids |= {*missing.unread, *missing.unmeasured}
    before = {(claim.id, claim.number) for claim in missing.claims}
    touched = [entry for entry in missing.experiments.values() if entry.id in ids]
    now = claims_of(touched, results_dir, Filter(), scale=missing.scale)
    return [claim for claim in now if (claim.id, claim.number) in before and claim.verdict not in UNDECIDED]


def of_desk(experiments: Sequence[Experiment], scale: str) -> list[Experiment]:
    """The experiments that train something at a scale; UserError if none does."""
    chosen = [one for one in experiments if one.benchmark is None and scale in one.scales and one.needed_cells(scale)]
    if not chosen:
        raise UserError(f"--until: nothing is trained at scale {scale} by {', '.join(one.id for one in experiments)}")
    return chosen
