"""The records behind an experiment, by cell and seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from hybridlab.papers.cells import cell_runs
from hybridlab.papers.experiment import Experiment, benchmark_hash
from hybridlab.papers.ids import TUNING
from hybridlab.runs.record import (
    BenchmarkRecord,
    Record,
    load_record,
    read_benchmark,
    read_record,
    record_path,
    save_record,
)
from hybridlab.store.folders import RunFolder

Records = dict[str, dict[int, Record]]
"""cell → seed → record."""
_SEED = re.compile(r'^ "seed": (\d+),?$', re.MULTILINE)
"""A record's own seed, at the outermost level of the file."""


def records_of(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> Records:
    """The records of the cells whose runs have finished: of the file's seeds, and of further seeds that are complete.

    A further seed is one below 100 that the file names neither as reported nor as an earlier one, such as `reproduce
    --seeds` trains, and of which every cell has its record. runs_dir: a record that RESULTS-DIR lacks is copied from
    its run in this folder, so that deleted results come back.
    """
    records: Records = {}
    if scale not in experiment.scales or not experiment.needed_cells(scale):
        return records
    asked, earlier = experiment.scales[scale].seeds, experiment.scales[scale].earlier_seeds
    for seed in asked:
        for cell, record in _of_seed(experiment, scale, seed, results_dir, runs_dir):
            if record is not None:
                records.setdefault(cell, {})[seed] = record
    further = recorded_seeds(results_dir, runs_dir) - {*asked, *earlier}
    for seed in sorted(seed for seed in further if seed < TUNING):
        found: dict[str, Record] = {}
        for cell, record in _of_seed(experiment, scale, seed, results_dir, runs_dir):
            if record is None:
                break
            found[cell] = record
        else:
            for cell, record in found.items():
                records.setdefault(cell, {})[seed] = record
    return records


def _of_seed(
    experiment: Experiment, scale: str, seed: int, results_dir: Path, runs_dir: Path | None
) -> Iterator[tuple[str, Record | None]]:
    """(cell, its record or None) for every needed cell of one seed; each is read only when it is asked for."""
    for run in cell_runs(experiment, scale, seed):
        record = load_record(run.hash, results_dir)
        if record is None and runs_dir is not None:
            record = copied_record(RunFolder(runs_dir / run.hash), results_dir)
        yield run.cell, record


def recorded_seeds(results_dir: Path, runs_dir: Path | None = None) -> set[int]:
    """The seeds of all records at hand, whatever they belong to."""
    paths = [*(results_dir / "records").glob("*.json"), *(runs_dir.glob("*/record.json") if runs_dir else ())]
    stats = ((path, path.stat()) for path in paths)
    return {seed for path, stat in stats if (seed := _seed_in(path, stat.st_mtime_ns, stat.st_size)) is not None}


@lru_cache(maxsize=4096)
def _seed_in(path: Path, _modified: int, _size: int) -> int | None:
    """Read from the text alone, which is much faster than to check a whole record."""
    found = _SEED.search(path.read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) if found else None


def best_scale(experiment: Experiment, results_dir: Path, runs_dir: Path | None = None) -> str:
    """The dearest scale at which at least one seed of the file is complete; without one, and for an experiment that
    needs no training, the cheapest that it has."""

    def recorded(name: str) -> bool:
        if record_path(name, results_dir).is_file():
            return True
        return runs_dir is not None and RunFolder(runs_dir / name).finished()

    scales = experiment.available_scales()
    for scale in reversed(scales):
        if experiment.benchmark is not None and recorded(f"benchmark-{benchmark_hash(experiment, scale)}"):
            return scale
        seeds = experiment.scales[scale].seeds if experiment.needed_cells(scale) and scale in experiment.scales else []
        if any(all(recorded(run.hash) for run in cell_runs(experiment, scale, seed)) for seed in seeds):
            return scale
    return scales[0]


def complete_seeds(experiment: Experiment, scale: str, records: Records) -> list[int]:
    """The seeds of which every needed cell has a record."""
    cells = experiment.needed_cells(scale)
    seeds = {seed for by_seed in records.values() for seed in by_seed}
    return sorted(seed for seed in seeds if all(seed in records.get(cell, {}) for cell in cells))


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
