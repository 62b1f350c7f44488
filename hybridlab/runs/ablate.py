"""A grid of settings over seeds: which runs it has; reporting/ablation.py makes its table and figure.

    hybridlab ablate --arch rule-swa --vary map.rho=0.25,0.5,0.75 --seeds 3 --steps 200

Runs with equal seeds see the same batches and start from the same weights, so two settings are compared seed by seed:
the unit of every error, interval and test is the training seed. See `paired_t` and `holm` in statistics.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridlab.config.resolve import identity, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.statistics import MOST_SEEDS

PREFIX = "ablate-"
"""How the id of a grid begins."""


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


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds written as a number of them (3: 0, 1, 2), a range (5-7) or a list (5,8,9)."""
    first, dash, last = text.partition("-")
    parts = text.split(",")
    seeds: Sequence[int]
    if text.isdecimal():
        seeds = range(int(text))
    elif dash and first.isdecimal() and last.isdecimal():
        seeds = range(int(first), int(last) + 1)
    elif all(part.strip().isdecimal() for part in parts):
        seeds = tuple(int(part) for part in parts)
    else:
        seeds = ()
    # A range is not written out before its size is known.
    if seeds and (seeds[-1] - seeds[0] if isinstance(seeds, range) else len(seeds)) >= MOST_SEEDS:
        raise UserError(f"--seeds {text}: these are more than {MOST_SEEDS:,} seeds; ask for fewer")
    if not seeds or len(set(seeds)) != len(seeds):
        raise UserError(f"--seeds {text}: write how many (3), a range (5-7) or a list of different seeds (5,8,9)")
    return tuple(seeds)


SEED = "training.seed"


def grid(axes: Sequence[Vary], sets: Sequence[str] = (), steps: int | None = None) -> list[dict[str, str]]:
    """Every combination, the last axis fastest. UserError for axes and settings that exclude each other.

    sets, steps: what --set and --steps fix for every combination.
    """
    keys = [axis.key for axis in axes]
    if len(set(keys)) != len(keys):
        raise UserError("--vary: one setting is varied twice; give all its values in one --vary")
    fixed = {text.partition("=")[0].strip(): f"--set {text}" for text in sets}
    if SEED in fixed:
        seed = fixed[SEED].partition("=")[2]
        raise UserError(f"{fixed[SEED]}: the seeds of a grid are given by --seeds; write --seeds {seed}-{seed} for it")
    if steps is not None:
        fixed["training.steps"] = "--steps"
    for axis in axes:
        if axis.key == SEED:
            raise UserError(
                f"--vary {SEED}: the seeds of a grid are given by --seeds; write --seeds {','.join(axis.values)}"
            )
        if axis.key.split(".")[0] == "runtime":
            raise UserError(
                f"--vary {axis.key}: settings under runtime do not change which run it is, so that all values name the "
                f"same run; train each value with `hybridlab pretrain --set {axis.key}=VALUE --run-dir FOLDER`"
            )
        if axis.key in fixed:
            raise UserError(f"{fixed[axis.key]}: --vary gives {axis.key} its values; remove one of the two")
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


@dataclass(frozen=True)
class Grid:
    """A grid of different runs. runs: (index of the combination, seed) → hash and configuration."""

    combinations: list[dict[str, str]]
    seeds: tuple[int, ...]
    runs: dict[tuple[int, int], tuple[str, RunConfig]]

    @property
    def id(self) -> str:
        """A name that the hashes of all runs decide."""
        joined = "".join(digest for digest, _ in self.runs.values())
        return PREFIX + hashlib.sha256(joined.encode()).hexdigest()[:8]

    def pending(self) -> dict[str, tuple[str, RunConfig]]:
        """The runs for a queue: hash → (name, configuration)."""
        return {
            digest: (f"{label(self.combinations[i])} (seed {seed})", config)
            for (i, seed), (digest, config) in self.runs.items()
        }

    def definition(self, command: str) -> dict[str, Any]:
        """The grid as JSON: what `hybridlab report` makes its table from. settings: those of the first combination."""
        rows = []
        for i, combination in enumerate(self.combinations):
            hashes = {str(seed): self.runs[i, seed][0] for seed in self.seeds}
            rows.append({"name": label(combination), "settings": combination, "runs": hashes})
        first = self.runs[0, self.seeds[0]][1]
        settings = {"arch": first.arch, "size": first.size, **identity(first)}
        return {"id": self.id, "command": command, "seeds": list(self.seeds), "settings": settings, "rows": rows}


def make_grid(
    build: Callable[[dict[str, str], int], RunConfig], combinations: list[dict[str, str]], seeds: Sequence[int]
) -> Grid:
    """Every combination with every seed. UserError if two of them train the same, which must not count as two.

    build: the configuration of a combination and a seed.
    """
    runs: dict[tuple[int, int], tuple[str, RunConfig]] = {}
    known: dict[str, str] = {}
    for i, combination in enumerate(combinations):
        for seed in seeds:
            config = build(combination, seed)
            name, trained = f"{label(combination)} (seed {seed})", _trained(config)
            if trained in known:
                raise UserError(
                    f"--vary: {known[trained]} and {name} are the same training, which must not count twice; "
                    "leave one of the two values out"
                )
            known[trained] = name
            runs[i, seed] = run_hash(config), config
    return Grid(combinations, tuple(seeds), runs)


def _trained(config: RunConfig) -> str:
    """What the final weights depend on: the identity of the run without what it measures, and how its steps were
    chosen."""
    content = identity(config)
    return json.dumps(
        {key: content[key] for key in content.keys() - {"evaluation", "observe", "budget"}}, sort_keys=True
    )


def label(combination: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in combination.items()) or "as it is"
