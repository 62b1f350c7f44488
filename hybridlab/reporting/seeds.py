"""Numbers of a figure over several training seeds: means with one standard error, as bands and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridlab.reporting.figure_kind import Numbers
from hybridlab.statistics import mean_and_error


def merge_lines(by_seed: Mapping[int, Numbers], keys: Sequence[str] = ("y",)) -> Numbers:
    """Lists over the same x become their mean over seeds; `low` and `high` hold the mean of the first key ∓ its error.

    Only the x that all seeds have are kept.
    """
    runs = list(by_seed.values())
    if len(runs) == 1:
        return runs[0]
    common = [at for at in runs[0]["x"] if all(at in run["x"] for run in runs)]
    merged: Numbers = {**runs[0], "x": common, "seeds": len(runs)}
    for key in keys:
        columns = [[run[key][run["x"].index(at)] for run in runs] for at in common]
        means = [mean_and_error(column) for column in columns]
        merged[key] = [mean.value for mean in means]
        if key == keys[0]:
            merged["low"] = [(mean.value or 0.0) - (mean.stderr or 0.0) for mean in means]
            merged["high"] = [(mean.value or 0.0) + (mean.stderr or 0.0) for mean in means]
    return merged


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
    x = [at for at in runs[0]["x"] if all(at in run["x"] for run in runs)]
    return {**runs[0], "x": x, "lines": lines, "bands": bands, "seeds": len(runs)}


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
