"""The list of experiments, with the scales at which each is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.papers.cells import cell_runs
from hybridlab.papers.experiment import Experiment, benchmark_hash
from hybridlab.papers.loading import experiment_ids, load_experiment


def entries(results_dir: Path) -> list[dict[str, Any]]:
    """id, kind, title, needs, scales and done (scales at which every run of every seed has its record)."""
    listed = []
    recorded = {path.stem for path in (results_dir / "records").glob("*.json")}
    for identifier in experiment_ids():
        experiment = load_experiment(identifier)
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
