"""Records under results/records/: what tables and figures are made of, one small JSON file per run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json
from hybridlab.reproduction.experiment import BENCHMARK, Experiment, benchmark_hash, cell_configs
from hybridlab.training.folders import RunFolder


def save_record(record: dict[str, Any], results_dir: Path) -> None:
    write_json(results_dir / "records" / f"{record['hash']}.json", record)


def load_record(digest: str, results_dir: Path) -> dict[str, Any] | None:
    path = results_dir / "records" / f"{digest}.json"
    try:
        record = read_object(path, "record", ("status", "hash"), "remove it and reproduce again")
    except FileNotFoundError:
        return None
    if record["status"] != "finished":
        return None
    lost = [key for key in ("results", "controllers", "structure", "config", "history") if key not in record]
    if lost:
        raise UserError(f"{path}: this record lacks {lost[0]!r}; remove it and reproduce again")
    return record


def gather_records(experiment: Experiment, scale: str, runs_dir: Path, results_dir: Path) -> None:
    """Copy the records of finished runs that RESULTS-DIR lacks, so that deleted results can be made again."""
    for seed in experiment.scales[scale].seeds if experiment.needed_cells(scale) else []:
        for config in cell_configs(experiment, scale, seed).values():
            folder = RunFolder(runs_dir / run_hash(config))
            if load_record(run_hash(config), results_dir) is None and folder.finished():
                save_record(folder.record(), results_dir)


def records_of(experiment: Experiment, scale: str, results_dir: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """cell → seed → record, of the cells whose runs are there."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    if experiment.benchmark is not None and scale in experiment.benchmark.sizes:
        record = load_record(f"benchmark-{benchmark_hash(experiment, scale)}", results_dir)
        return {BENCHMARK: {0: record}} if record else {}
    if not experiment.needed_cells() or scale not in experiment.scales:
        return found
    for seed in experiment.scales[scale].seeds:
        for cell, config in cell_configs(experiment, scale, seed).items():
            record = load_record(run_hash(config), results_dir)
            if record is not None:
                found.setdefault(cell, {})[seed] = record
    return found


def number_at(record: dict[str, Any], path: str) -> tuple[float | None, float | None, int]:
    """(value, standard error, n) at a dotted path: a number, or a mapping with a standard error beside it.

    A step that is not there gives (None, None, 0): not measured.
    """
    here: Any = record
    around: dict[str, Any] = {}
    for part in path.split("."):
        if not isinstance(here, dict) or part not in here:
            return None, None, 0
        around, here = here, here[part]
    if not isinstance(here, int | float) or isinstance(here, bool):
        return None, None, 0
    last = path.rsplit(".", 1)[-1]
    error = around.get("stderr") if last in ("accuracy", "loss") else around.get(f"{last}_stderr")
    return float(here), error, around.get("n", 1) or 1
