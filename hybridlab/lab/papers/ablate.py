"""A grid of settings over seeds, beside its first combination: an experiment that a command writes.

    hybridlab ablate --arch rule-swa --vary map.rho=0.25,0.5,0.75 --seeds 3 --steps 200

Runs with equal seeds see the same batches and start from the same weights, so that two settings are compared seed by
seed. Every cell has all settings of its runs; see papers/definition.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

from hybridlab.config.resolve import identity, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure, task_window
from hybridlab.errors import UserError
from hybridlab.lab.papers.definition import (
    SCALE,
    Definition,
    Metric,
    claim_of,
    common_window,
    metrics_of,
    require_rows,
    scaled_column,
)
from hybridlab.lab.papers.ids import GRID
from hybridlab.lab.papers.plans import flat
from hybridlab.lab.papers.verdicts import differences, is_method
from hybridlab.runs.queued_run import run_flops

SEED = "training.seed"
Combination = dict[str, str]
"""Dotted setting (or arch, size) → the text of its value."""


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


def grid(
    axes: Sequence[Vary],
    sets: Sequence[str] = (),
    steps: int | None = None,
    arch: str | None = None,
    size: str | None = None,
) -> list[Combination]:
    """Every combination, the last axis fastest. UserError for axes and settings that exclude each other.

    sets, steps, arch, size: what --set, --steps, --arch and --size fix for every combination.
    """
    keys = [axis.key for axis in axes]
    if len(set(keys)) != len(keys):
        raise UserError("--vary: one setting is varied twice; give all its values in one --vary")
    fixed = {text.partition("=")[0].strip(): f"--set {text}" for text in sets}
    if SEED in fixed:
        seed = fixed[SEED].partition("=")[2]
        raise UserError(f"{fixed[SEED]}: the seeds of a grid are given by --seeds; write --seeds {seed}-{seed} for it")
    for key, option, value in (
        ("training.steps", "--steps", steps),
        ("arch", "--arch", arch),
        ("size", "--size", size),
    ):
        if value is not None:
            fixed[key] = option
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


def defined(
    build: Callable[[Combination, int], RunConfig],
    combinations: Sequence[Combination],
    seeds: Sequence[int],
    metrics: Sequence[str] = (),
    command: str = "hybridlab ablate",
) -> Definition:
    """The grid as an experiment. UserError if two of its runs train the same, which must not count as two.

    build: the configuration of a combination and a seed. metrics: those that are judged, by default the loss, and the
    answers of a retrieval task. command: what was typed.
    """
    names, shorts = _labels(combinations)
    configs = [[build(combination, seed) for seed in seeds] for combination in combinations]
    _refuse_same(names, seeds, configs)
    if len(set(names)) < len(names):
        raise UserError(
            "--vary: two values differ in brackets, quotation marks or @ alone; write one of them otherwise"
        )
    first, *others = names
    ones = {name: of[0] for name, of in zip(names, configs, strict=True)}
    judged, window = _judged(metrics, ones) if metrics else _judged_by_default(ones)
    arms = {name: [_split_by(window, config) for config in of] for name, of in zip(names, configs, strict=True)}
    base = arms[first][0]
    differ = differences(names, {name: flat(of[0].model_dump(mode="json")) for name, of in arms.items()})
    identity = "".join([*(run_hash(config) for of in arms.values() for config in of), *metrics])
    training, data = base.training, base.finetune.task if base.finetune else ", ".join(base.data.written)
    claims = [claim_of(name, first, metric) for name, metric in itertools.product(others, judged)]
    content = {
        "id": GRID + hashlib.sha256(identity.encode()).hexdigest()[:8],
        "title": f"{len(names)} setting{'s' * bool(others)} of {', '.join(combinations[0])}",
        "paper": "own",
        "source": command,
        "differ_in": [name for name in differ if not is_method(name)],
        "reference": shorts[0],
        "correction": "metric",
        "columns": _columns(judged, base, any(name.split(".")[0] in ("map", "controller") for name in differ)),
        "rows": [{"name": name, "short": short, "cell": name} for name, short in zip(names, shorts, strict=True)],
        "cells": {
            # A seed more tells the draws that follow it, also where one seed is asked for.
            name: {"phase": "train", "settings": _settings([*of, _split_by(window, build(values, max(seeds) + 1))])}
            for values, (name, of) in zip(combinations, arms.items(), strict=True)
        },
        "scales": {
            SCALE: {
                "machine": f"{base.arch} {base.size} on {data}, {training.steps:,} steps of "
                f"{training.tokens_per_step:,} tokens in the first row",
                "seeds": list(seeds),
                "phases": {"train": {}},
            }
        },
        "claims": claims,
        "notes": ["Holm's correction goes over all rows, for each metric by itself."] if others[1:] else [],
    }
    return Definition(content, {(): "ablate"})


def _labels(combinations: Sequence[Combination]) -> tuple[list[str], list[str]]:
    """The names of the combinations, and short ones, with the last part of a setting's name where no other has it."""
    last = [key.rpartition(".")[2] for key in combinations[0]]
    short = [part if last.count(part) == 1 else key for key, part in zip(combinations[0], last, strict=True)]

    def labels(keys: Sequence[str]) -> list[str]:
        all_pairs = (zip(keys, combination.values(), strict=True) for combination in combinations)
        return [", ".join(f"{key}={value}" for key, value in pairs).translate(_IN_CLAIMS) for pairs in all_pairs]

    return labels(list(combinations[0])), labels(short)


_IN_CLAIMS = str.maketrans({"[": "(", "]": ")", '"': "'", "@": "×"})
"""Letters with a meaning in the test of a claim, and what stands for them in the name of a cell."""


def _refuse_same(names: Sequence[str], seeds: Sequence[int], configs: Sequence[Sequence[RunConfig]]) -> None:
    """UserError where two runs train the same, and where a setting gives another seed."""
    earlier: dict[str, str] = {}
    runs = zip(itertools.product(names, seeds), itertools.chain(*configs), strict=True)
    for (name, seed), config in runs:
        if config.training.seed != seed:
            raise UserError(f"{name}: {SEED} is {config.training.seed}; the seeds of a grid are given by --seeds")
        run, trained = f"{name} (seed {seed})", _trained(config)
        if trained in earlier:
            raise UserError(
                f"--vary: {earlier[trained]} and {run} are the same training, which must not count twice; "
                "leave one of the two values out"
            )
        earlier[trained] = run


def _trained(config: RunConfig) -> str:
    """What the final weights depend on: the identity of the run without what it measures, and how its steps were
    chosen."""
    content = identity(config)
    return json.dumps(
        {key: content[key] for key in content.keys() - {"evaluation", "observe", "budget"}}, sort_keys=True
    )


def _settings(of_seeds: Sequence[RunConfig]) -> dict[str, Any]:
    """The settings of a cell, without the seeds of draws that follow the seed of the run. of_seeds: at least two."""
    settings, *others = (config.model_dump(mode="json") for config in of_seeds)
    written = flat(settings)
    for name in {name for other in others for name, value in flat(other).items() if value != written[name]} - {SEED}:
        *path, last = name.split(".")
        reduce(getitem, path, settings)[last] = None
    return settings


def _judged(texts: Sequence[str], configs: Mapping[str, RunConfig]) -> tuple[list[Metric], int | None]:
    """The metrics of which there are claims, and their `common_window`. UserError for one that a run does not
    measure."""
    metrics = metrics_of(texts)
    for metric, config in itertools.product(metrics, configs.values()):
        require_rows(metric, config)
    return metrics, common_window(metrics, configs)


def _judged_by_default(configs: Mapping[str, RunConfig]) -> tuple[list[Metric], int | None]:
    """The loss, and the answers of a retrieval task."""
    for parts in (["inside", "outside"], ["inside", "far"]):
        with suppress(UserError):
            return _judged(["loss", *parts], configs)
    return _judged(["loss"], configs)


def _split_by(window: int | None, config: RunConfig) -> RunConfig:
    """The configuration with its answers to tasks split by a window, if by any."""
    if window is None or task_window(final_structure(config).map, config) == window:
        return config
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"task_window": window})})


def _columns(judged: Sequence[Metric], base: RunConfig, sparse: bool) -> list[dict[str, Any]]:
    """Of each metric its numbers, then perplexity, sparsity and FLOPs. sparse: whether the sparsity may differ."""
    perplexity = "perplexity" if base.shape.traits.causal else "pseudo-perplexity"
    metrics = dict.fromkeys([*judged, *metrics_of([perplexity] if base.finetune is None else [])])
    columns = [metric.column for metric in metrics]
    sparsity = {"name": "sparsity", "title": "sparsity", "kind": "exact", "metric": "model.sparsity", "digits": 3}
    flops = scaled_column("FLOPs", "flops", run_flops(base) or 1.0)
    return [*columns, *([sparsity | {"bare": True}] if sparse else []), flops]
