"""A grid of settings over seeds: means, standard errors, and differences paired by seed.

    hybridlab ablate --arch rule-swa --vary map.rho=0.25,0.5,0.75 --seeds 3 --steps 200

Runs with equal seeds see the same batches and start from the same weights, so two settings are compared seed by seed;
the standard error is that of these differences.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.files import write_json, write_text
from hybridlab.runs.queue import Outcome, run_all
from hybridlab.runs.record import Record, load_record, number_at
from hybridlab.statistics import NOT_MEASURED, mean_and_error, paired_difference

METRICS = {
    "loss": "results.validation.loss",
    "perplexity": "results.validation.perplexity",
    "inside": "results.tasks.retrieval.inside",
    "outside": "results.tasks.retrieval.outside",
    "sparsity": "model.sparsity",
    "flops": "flops",
}


@dataclass(frozen=True)
class Vary:
    """One axis of the grid: a dotted setting (or arch, size) and the texts of its values."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Vary:
        """The axis written as `name.of.setting=value,value`."""
        key, equals, values = text.partition("=")
        parts = tuple(_split_top(values))
        if not key.strip() or not equals or not all(parts):
            raise UserError(f"--vary {text}: write it as name.of.setting=value,value")
        if len(set(parts)) != len(parts):
            raise UserError(f"--vary {text}: a value is written twice; write each once")
        return cls(key.strip(), parts)


def _split_top(text: str) -> list[str]:
    """The text split at commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def grid(axes: list[Vary]) -> list[dict[str, str]]:
    """Every combination, the last axis fastest."""
    keys = [axis.key for axis in axes]
    if len(set(keys)) != len(keys):
        raise UserError("--vary: one setting is varied twice; give all its values in one --vary")
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def run_grid(
    build: Callable[[dict[str, str], int], RunConfig],
    combinations: list[dict[str, str]],
    seeds: int,
    runs_dir: Path,
    results_dir: Path,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], Path, Outcome]:
    """Train every combination with every seed; returns the table, its folder and the outcome of the runs.

    build: the configuration of a combination and a seed.
    """
    configs = {(i, seed): build(c, seed) for i, c in enumerate(combinations) for seed in range(seeds)}
    hashes = {key: run_hash(config) for key, config in configs.items()}
    pending: dict[str, tuple[str, RunConfig]] = {}
    for (i, seed), digest in hashes.items():
        pending.setdefault(digest, (f"{_label(combinations[i])} (seed {seed})", configs[i, seed]))
    outcome = run_all(pending, runs_dir, results_dir, say)
    records = {key: load_record(digest, results_dir) for key, digest in hashes.items()}
    rows = [_row(c, i, seeds, records) for i, c in enumerate(combinations)]
    name = "ablate-" + hashlib.sha256("".join(hashes.values()).encode()).hexdigest()[:8]
    table = {"id": name, "seeds": seeds, "baseline": _label(combinations[0]), "rows": rows}
    folder = results_dir / name
    write_json(folder / "table.json", table)
    flat = pd.DataFrame({**row["settings"], **_flat(row)} for row in rows)
    write_text(folder / "table.csv", flat.to_csv(index=False))
    return table, folder, outcome


def _label(combination: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in combination.items()) or "as it is"


def _row(
    combination: dict[str, str], index: int, seeds: int, records: dict[tuple[int, int], Record | None]
) -> dict[str, Any]:
    """A row of the table: each metric's mean over seeds, and its difference to the first combination."""
    metrics: dict[str, Any] = {}
    for name, path in METRICS.items():
        mine, base = ({s: _number(records[i, s], path) for s in range(seeds)} for i in (index, 0))
        values = [value for value in mine.values() if value is not None]
        pairs = [(mine[s], base[s]) for s in range(seeds) if mine[s] is not None and base[s] is not None]
        mean = mean_and_error(values)
        difference = paired_difference(*zip(*pairs, strict=True)) if index and pairs else NOT_MEASURED
        metrics[name] = {"mean": mean.value, "stderr": mean.stderr, "n": mean.n}
        metrics[name] |= {"difference": difference.value, "difference_stderr": difference.stderr}
    return {"name": _label(combination), "settings": combination, "metrics": metrics}


def _number(record: Record | None, path: str) -> float | None:
    return None if record is None else number_at(record, path).value


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {f"{metric}_{part}": value for metric, parts in row["metrics"].items() for part, value in parts.items()}
