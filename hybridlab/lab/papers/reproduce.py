"""`hybridlab reproduce ID …`: run what is missing behind tables and figures, in one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hybridlab.config.resolve import parents
from hybridlab.config.schema import RunConfig
from hybridlab.config.study import Study
from hybridlab.data.files import missing_files
from hybridlab.errors import UserError
from hybridlab.lab.papers.cells import CellRun, cell_runs, keeping, with_runtime
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.loading import experiment_ids
from hybridlab.lab.papers.plans import readers, register
from hybridlab.lab.papers.speed import run_benchmark
from hybridlab.lab.papers.sweep import Pending
from hybridlab.lab.papers.verdicts import check_plan
from hybridlab.messages import say
from hybridlab.runs.cluster import Cluster
from hybridlab.runs.queue import Outcome, run_all
from hybridlab.runs.record import Stamp
from hybridlab.runs.study import missing_tasks, run_study
from hybridlab.training.ranks import Ranks
from hybridlab.training.store.folders import Runs


@dataclass(frozen=True)
class QueuedStudy:
    """seed: of the run that is measured."""

    name: str
    study: Study
    seed: int


@dataclass(frozen=True)
class ExperimentAtScale:
    """An experiment at a scale. seeds: instead of those that its file names. compile: instead of
    `runtime.compile` of all its runs."""

    experiment: Experiment
    scale: str
    seeds: tuple[int, ...] | None = None
    compile: bool | None = None

    def runs(self) -> Pending:
        """Its runs, seed by seed, so that an interrupted queue has whole seeds; parents before children, equal cells
        once. Empty for one that needs no training. Runs whose task files are not here are left out; see `left_out`.
        UserError for seeds or compiling of such a one, and where arms differ that must not."""
        return self._sorted[0]

    def left_out(self) -> dict[str, str]:
        """name → why it cannot be trained here, of the runs whose task files are missing and those that start there."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[Pending, dict[str, str]]:
        runs = self._all_runs()
        runnable, missing = trainable(runs)
        return runnable, {runs[digest][0]: reason for digest, reason in missing.items()}

    def _all_runs(self) -> Pending:
        experiment, scale = self.experiment, self.scale
        if experiment.benchmark is not None or not experiment.needed_cells(scale):
            for option, value in (("--seeds", self.seeds), ("--compile", self.compile)):
                if value is not None:
                    raise UserError(f"{option} has no effect on {experiment.id}, which trains nothing; leave it out")
            return {}
        ordered: Pending = {}
        experiment.refuse_tuning_seed(scale, self._seeds)
        check_plan(experiment, scale)
        for name, _, run in self._named_runs():
            if isinstance(run.config, RunConfig):
                compiled = {} if self.compile is None else {"compile": self.compile}
                ordered.setdefault(run.hash, (name, with_runtime(run.config, **compiled)))
        return ordered

    @property
    def _seeds(self) -> Sequence[int]:
        return self.experiment.at(self.scale).seeds if self.seeds is None else self.seeds

    def _named_runs(self) -> Iterator[tuple[str, int, CellRun]]:
        """(name, seed, run) of every needed cell, seed by seed."""
        for seed in self._seeds:
            for run in cell_runs(self.experiment, self.scale, seed):
                yield f"{run.cell} (seed {seed})" if len(self._seeds) > 1 else run.cell, seed, run

    def places(self) -> dict[str, str]:
        """Digest → file or folder of the pretrained models that its runs start from."""
        experiment, scale = self.experiment, self.scale
        cells = experiment.cells_at(scale)
        needed = (cells[name].pretrained for name in experiment.needed_cells(scale) if name in cells)
        paths = dict(place for place in needed if place is not None)
        shared = experiment.scales[scale].shared if scale in experiment.scales else {}
        others = (ExperimentAtScale(experiment.other(other), scale).places() for other in shared)
        return {digest: path for group in (paths, *others) for digest, path in group.items()}

    def studies(self) -> dict[str, QueuedStudy]:
        """hash → study of a model that is there already, seed by seed, in the order in which they need each other."""
        studies: dict[str, QueuedStudy] = {}
        for name, seed, run in self._named_runs() if self.experiment.needed_cells(self.scale) else ():
            if isinstance(run.config, Study):
                studies.setdefault(run.hash, QueuedStudy(name, run.config, seed))
        return studies


def trainable(runs: Pending) -> tuple[Pending, dict[str, str]]:
    """The runs whose task files are here, and hash → why it cannot be trained of the others, with those that start
    from them."""
    missing: dict[str, str] = {}
    for digest, (_, config) in runs.items():
        reason = missing_files(config.finetune) if config.finetune is not None else None
        lost = next((parent for parent in parents(config) if parent in missing), None)
        if reason is not None or lost is not None:
            missing[digest] = reason or f"it starts from {runs[lost or ''][0]}"
    return {digest: run for digest, run in runs.items() if digest not in missing}, missing


def joined(queue: Pending, runs: Pending, before: str = "") -> None:
    """Add runs to a queue; one that is there already keeps its name, and the steps that either keeps. before: in front
    of the names."""
    for digest, (name, config) in runs.items():
        first = queue.setdefault(digest, (before + name, config))
        queue[digest] = (first[0], keeping(first[1], config.runtime.keep_steps))


def one_queue(targets: Sequence[ExperimentAtScale]) -> Pending:
    """The runs of several experiments, one experiment after the other; a run that two share belongs to the first."""
    queue: Pending = {}
    for target in targets:
        before = f"{target.experiment.id}: " if len(targets) > 1 else ""
        joined(queue, target.runs(), before)
    return queue


def places_of(targets: Sequence[ExperimentAtScale]) -> dict[str, str]:
    """Digest → file or folder of the pretrained models that the runs of several experiments start from."""
    return {digest: path for target in targets for digest, path in target.places().items()}


def stamps(targets: Sequence[ExperimentAtScale], results_dir: Path) -> dict[str, list[Stamp]]:
    """hash → the plans of all experiments that read this run, which are added to their histories before it starts.
    UserError for one whose sweep has not chosen yet."""
    plans: dict[str, list[Stamp]] = {}

    def stamp(experiment: Experiment, scale: str, seeds: Sequence[int], cells: Sequence[str]) -> None:
        planned = register(experiment, scale, results_dir)
        for seed in seeds:
            for run in cell_runs(experiment, scale, seed, cells):
                of_run = plans.setdefault(run.hash, [])
                of_run += [planned] if planned not in of_run else []

    for target in targets:
        experiment, scale = target.experiment, target.scale
        if not (cells := experiment.needed_cells(scale)) or experiment.benchmark is not None:
            continue
        experiment.refuse_unsearched(scale)
        seeds = target.seeds or experiment.at(scale).seeds
        stamp(experiment, scale, seeds, cells)
        if experiment.id in experiment_ids():
            for other in readers(experiment, scale):
                # Its own runs are no matter of this queue.
                places = other.at(scale).places
                stamp(other, scale, seeds, [cell for cell in other.needed_cells(scale) if cell in places])
    return plans


def run_cells(
    targets: Sequence[ExperimentAtScale],
    runs_dir: Path,
    results_dir: Path,
    jobs: int | Ranks | Cluster | None = 1,
    done: Callable[[ExperimentAtScale], None] = lambda _: None,
    places: Mapping[str, str] = {},
) -> Outcome:
    """Train every cell that the experiments need, then run their benchmarks. jobs: see `run_all`; what a cluster trains
    is waited for by nobody, and the next call goes on. places: see `QueuedRun`.

    done: is called with each experiment as soon as its last run has finished, and after the queue for those of which
    runs failed. If it raises an error while others train, that is said, and it is called again after the queue.
    """
    queue = one_queue(targets)
    left = {target.experiment.id: set(target.runs()) for target in targets}
    waiting = [target for target in targets if target.experiment.benchmark is None and not target.studies()]

    def finished(digest: str) -> None:
        """Call `done` for the experiments that waited for this run alone."""
        for target in list(waiting):
            runs = left[target.experiment.id]
            if digest in runs and not (runs := runs - {digest}):
                try:
                    done(target)
                    waiting.remove(target)
                except Exception as error:
                    say(f"{target.experiment.id}: {error}; trying again after the last run")
            left[target.experiment.id] = runs

    plans, places = stamps(targets, results_dir), {**places_of(targets), **places}
    outcome = run_all(queue, runs_dir, results_dir, jobs, finished, plans, places) if queue else Outcome()
    if outcome.left:
        return outcome
    for target in waiting:
        done(target)
    for target in targets:
        if studies := target.studies():
            run_studies(studies, runs_dir, results_dir, outcome, plans)
            done(target)
    for target in targets:
        if target.experiment.benchmark is not None:
            run_benchmark(target.experiment, target.scale, results_dir)
            done(target)
    return outcome


def run_studies(
    studies: dict[str, QueuedStudy],
    runs_dir: Path,
    results_dir: Path,
    outcome: Outcome,
    plans: Mapping[str, Sequence[Stamp]],
) -> None:
    """Measure what has no record yet; a study that cannot be measured is noted, and the others go on."""
    for number, (digest, queued) in enumerate(studies.items(), 1):
        title = f"[{number}/{len(studies)}] {queued.name}"
        say(f"{title}: {queued.study.model}")
        try:
            record = run_study(queued.study, digest, queued.seed, Runs(runs_dir), results_dir, plans.get(digest, ()))
        except UserError as error:
            outcome.failed[queued.name] = str(error)
            say(f"{title}: failed: {error}")
            continue
        outcome.finished.append(queued.name)
        for task, reason in missing_tasks(record).items():
            say(f"{title}: not measured: {task}: {reason}")
