"""Numbers of a figure over several training seeds: means with one standard error, as bands and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridlab.reporting.figure_kind import Numbers
from hybridlab.statistics import mean_and_error


def merge_lines(by_seed: Mapping[int, Numbers], keys: Sequence[str] = ("y",)) -> Numbers:
    """Lists over the same x become their mean over seeds; `low` and `high` hold the mean of the first key ∓ its error.

    The x are those of the first seed that lie within all others; between their points, as for FLOPs that differ from
    seed to seed, the others are read off straight lines.
    """
    runs = [run for run in by_seed.values() if run["x"]]
    if len(runs) < 2:
        return runs[0] if runs else next(iter(by_seed.values()))
    common = _within_all(runs)
    merged: Numbers = {**runs[0], "x": common, "seeds": len(runs)}
    for key in keys:
        means = [mean_and_error(values) for values in zip(*(_read_off(run, key, common) for run in runs), strict=True)]
        merged[key] = [mean.value for mean in means]
        if key == keys[0]:
            merged["low"] = [(mean.value or 0.0) - (mean.stderr or 0.0) for mean in means]
            merged["high"] = [(mean.value or 0.0) + (mean.stderr or 0.0) for mean in means]
    return merged


def _within_all(runs: Sequence[Numbers]) -> list[float]:
    """The x of the first run that no other one begins after or ends before."""
    first, last = max(run["x"][0] for run in runs), min(run["x"][-1] for run in runs)
    return [at for at in runs[0]["x"] if first <= at <= last]


def _read_off(run: Numbers, key: str, xs: list[float]) -> list[float]:
    return [float(value) for value in np.interp(xs, run["x"], run[key])]


def merge_named(by_seed: Mapping[int, Numbers]) -> Numbers:
    """The same for `lines`, named lines over one x; their bands are under `bands`, (low, high) by name."""
    runs = list(by_seed.values())
    if len(runs) == 1:
        return runs[0]
    lines: dict[str, list[float]] = {}
    bands: dict[str, tuple[list[float], list[float]]] = {}
    for name in (name for name in runs[0]["lines"] if all(name in run["lines"] for run in runs)):
        parts = {seed: {"x": run["x"], "y": run["lines"][name]} for seed, run in by_seed.items()}
        merged = merge_lines(parts)
        lines[name], bands[name] = merged["y"], (merged["low"], merged["high"])
    return {**runs[0], "x": _within_all(runs), "lines": lines, "bands": bands, "seeds": len(runs)}


def merge_points(by_seed: Mapping[int, Numbers]) -> Numbers:
    """`points` of the same run become one, with its error over seeds."""
    if len(by_seed) == 1:
        return next(iter(by_seed.values()))
    grouped: dict[str, list[dict[str, Any]]] = {}
    for numbers in by_seed.values():
        for point in numbers["points"]:
            grouped.setdefault(point["run"], []).append(point)
    points = []
    for name, group in grouped.items():
        if len(group) == 1:
            points.append(group[0])
            continue
        x, y = (mean_and_error([point[key] for point in group]) for key in ("x", "y"))
        points.append({"run": name, "x": x.value, "y": y.value, "stderr": y.stderr, "over": "seeds", "n": y.n})
    return {"points": sorted(points, key=lambda point: point["x"]), "seeds": len(by_seed)}
