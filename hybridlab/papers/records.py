"""The records behind an experiment, by cell and seed."""

from __future__ import annotations

from pathlib import Path

from hybridlab.papers.cells import cell_runs
from hybridlab.papers.experiment import Experiment, benchmark_hash
from hybridlab.runs.record import (
    BenchmarkRecord,
    Record,
    load_record,
    read_benchmark,
    read_record,
    record_path,
    save_record,
)
from hybridlab.training.folders import RunFolder

Records = dict[str, dict[int, Record]]
"""cell → seed → record."""


def records_of(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> Records:
    """The records of the cells whose runs have finished.

    runs_dir: a record that RESULTS-DIR lacks is copied from its run in this folder, so that deleted results come back.
    """
    records: Records = {}
    if not experiment.needed_cells() or scale not in experiment.scales:
        return records
    for seed in experiment.scales[scale].seeds:
        for run in cell_runs(experiment, scale, seed):
            record = load_record(run.hash, results_dir)
            if record is None and runs_dir is not None:
                record = copied_record(RunFolder(runs_dir / run.hash), results_dir)
            if record is not None:
                records.setdefault(run.cell, {})[seed] = record
    return records


def copied_record(folder: RunFolder, results_dir: Path) -> Record | None:
    """The record of a finished run, written to RESULTS-DIR; None if the run has not finished."""
    record = read_record(folder.path / "record.json") if folder.finished() else None
    if record is not None:
        save_record(record, results_dir)
    return record


def benchmark_record(experiment: Experiment, scale: str, results_dir: Path) -> BenchmarkRecord | None:
    """The record of an experiment's benchmark at a scale; None if it has no benchmark, or has not been run."""
    if experiment.benchmark is None or scale not in experiment.benchmark.sizes:
        return None
    name = f"benchmark-{benchmark_hash(experiment, scale)}"
    return read_benchmark(record_path(name, results_dir))
