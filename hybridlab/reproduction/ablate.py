"""A grid of settings over seeds: means, standard errors, and differences paired by seed.

    hybridlab ablate --arch rule-swa --vary map.rho=0.25,0.5,0.75 --seeds 3 --steps 200

Equal seeds see the same batches and start from the same weights, so a difference between two settings is taken seed by
seed; its standard error is that of these differences.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.files import write_json, write_text
from hybridlab.reproduction.records import load_record, number_at
from hybridlab.reproduction.reproduce import Outcome, run_all

METRICS = {
    "loss": "results.validation.loss",
    "perplexity": "results.validation.perplexity",
    "inside": "results.retrieval.inside.accuracy",
    "outside": "results.retrieval.outside.accuracy",
    "sparsity": "structure.sparsity",
    "flops": "flops",
}


@dataclass(frozen=True)
class Vary:
    """One axis of the grid: a dotted setting (or arch, size) and its values as they were written."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Vary:
        key, equals, values = text.partition("=")
        parts = tuple(_split_top(values))
        if not key.strip() or not equals or not all(parts):
            raise UserError(f"--vary {text}: write it as name.of.setting=value,value")
        if len(set(parts)) != len(parts):
            raise UserError(f"--vary {text}: a value stands there twice")
        return cls(key.strip(), parts)


def _split_top(text: str) -> list[str]:
    """At commas outside brackets."""
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
    """Train every combination with every seed; returns the table, its folder and what became of the runs."""
    configs = {(i, seed): build(c, seed) for i, c in enumerate(combinations) for seed in range(seeds)}
    pending: dict[str, tuple[str, RunConfig]] = {}
    for (i, seed), config in configs.items():
        pending.setdefault(run_hash(config), (f"{_label(combinations[i])} (seed {seed})", config))
    outcome = run_all(pending, runs_dir, results_dir, say)
    hashes = {key: run_hash(config) for key, config in configs.items()}
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


def _row(combination: dict[str, str], index: int, seeds: int, records: dict[tuple[int, int], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, path in METRICS.items():
        mine = {s: _number(records[index, s], path) for s in range(seeds)}
        base = {s: _number(records[0, s], path) for s in range(seeds)}
        values = [v for v in mine.values() if v is not None]
        pairs = [mine[s] - base[s] for s in range(seeds) if mine[s] is not None and base[s] is not None]
        mean, error = mean_and_error(values)
        difference, difference_error = mean_and_error(pairs) if index else (None, None)
        found[name] = {"mean": mean, "stderr": error, "n": len(values)}
        found[name] |= {"difference": difference, "difference_stderr": difference_error}
    return {"name": _label(combination), "settings": combination, "metrics": found}


def _number(record: dict[str, Any] | None, path: str) -> float | None:
    return None if record is None else number_at(record, path)[0]


def mean_and_error(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and standard error; None for what too few values cannot give."""
    if not values:
        return None, None
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {f"{metric}_{part}": value for metric, parts in row["metrics"].items() for part, value in parts.items()}
