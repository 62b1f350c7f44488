"""The list of experiments, with the scales at which each is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.papers.cells import cell_runs
from hybridlab.papers.experiment import Experiment, benchmark_hash
from hybridlab.papers.ids import KINDS, matches
from hybridlab.papers.loading import experiment_ids, load_experiment
from hybridlab.registry import nearest


@dataclass(frozen=True)
class Filter:
    """Which experiments to list. words: each stands in the id, the paper or the title; one with * or ? must match one
    of them as a whole. Upper and lower case are the same. kind: table or figure. done: whether some scale is done.

    UserError for a kind or a paper that does not exist.
    """

    words: tuple[str, ...] = ()
    kind: str | None = None
    paper: str | None = None
    done: bool | None = None

    def __post_init__(self) -> None:
        papers = list(dict.fromkeys(name.split("-")[0] for name in experiment_ids()))
        for option, value, known in (("kind", self.kind, KINDS), ("paper", self.paper, papers)):
            if value is not None and value not in known:
                raise UserError(f"--{option} {value}: there is no such {option}; {nearest(value, list(known))}")

    def passes(self, experiment: Experiment) -> bool:
        """Whether an experiment passes all but `done`."""
        texts = (experiment.id, experiment.paper, experiment.title)
        own = self.kind in (None, experiment.kind) and self.paper in (None, experiment.paper)
        return own and matches(self.words, texts)


def entries(results_dir: Path, wanted: Filter | None = None) -> list[dict[str, Any]]:
    """id, kind, title, needs, scales and done (scales at which every run of every seed has its record)."""
    listed = []
    wanted = wanted or Filter()
    recorded = {path.stem for path in (results_dir / "records").glob("*.json")}
    for identifier in experiment_ids():
        experiment = load_experiment(identifier)
        if not wanted.passes(experiment):
            continue
        scales = experiment.available_scales()
        entry = {
            "id": identifier,
            "kind": experiment.kind,
            "paper": experiment.paper,
            "title": experiment.title,
            "needs": experiment.needs,
            "scales": scales,
            "done": [scale for scale in scales if _is_done(experiment, scale, results_dir, recorded)],
        }
        if wanted.done in (None, bool(entry["done"])):
            listed.append(entry)
    return listed


def _is_done(experiment: Experiment, scale: str, results_dir: Path, recorded: set[str]) -> bool:
    """recorded: the names of the existing records; a record is written when its run has finished."""
    if experiment.benchmark is not None:
        return f"benchmark-{benchmark_hash(experiment, scale)}" in recorded
    if not experiment.needed_cells():
        return (results_dir / experiment.id / scale / f"{experiment.kind}.json").is_file()
    return all(
        run.hash in recorded for seed in experiment.scales[scale].seeds for run in cell_runs(experiment, scale, seed)
    )
