"""The list of experiments and of what is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.reproduction.experiment import experiment_ids, load_experiment
from hybridlab.reproduction.records import records_of


def entries(results_dir: Path) -> list[dict[str, Any]]:
    """id, kind, title, needs, scales and done (scales at which every run of every seed has its record)."""
    found = []
    for identifier in experiment_ids():
        experiment = load_experiment(identifier)
        scales = experiment.available_scales()
        done = []
        for scale in scales:
            if experiment.benchmark is not None:
                complete = bool(records_of(experiment, scale, results_dir))
            elif experiment.needed_cells():
                records = records_of(experiment, scale, results_dir)
                wanted = len(experiment.needed_cells(scale)) * len(experiment.scales[scale].seeds)
                complete = sum(len(by_seed) for by_seed in records.values()) == wanted
            else:
                complete = (results_dir / identifier / scale / f"{experiment.kind}.json").is_file()
            if complete:
                done.append(scale)
        entry = {
            "id": identifier,
            "kind": experiment.kind,
            "paper": experiment.paper,
            "title": experiment.title,
            "needs": experiment.needs,
        }
        found.append({**entry, "scales": scales, "done": done})
    return found
