"""Parts of a record that several kinds of figures show: learned masks, entropy log, probes, named statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridlab.errors import UserError, nearest
from hybridlab.papers.plot import Plot
from hybridlab.reporting.figure_kind import Numbers
from hybridlab.reporting.lines import moving_average
from hybridlab.runs.record import Record


def masks_of(record: Record) -> list[list[int]] | None:
    """The masks that a run's controller learned, [layer][KV head], 1 = full; None if it learned none."""
    return record.controller.get("masks")


def probe_of(record: Record, name: str) -> dict[str, Any] | None:
    """The result of a probe on a run; None if the probe was not run, or was skipped."""
    measured = record.results.probes.get(name) if record.results else None
    return None if measured is None or "skipped" in measured else measured


def grown_block(record: Record) -> int | None:
    """The layers that each growth step of a run added; None for a run that did not grow in depth by blocks."""
    return (record.config.get("controller") or {}).get("block")


def named(known: Mapping[str, Any], name: str | None, setting: str, record: Record) -> Any:
    """The value that a setting of the plot names. UserError with the nearest known name for an unknown one."""
    if name is None or name not in known:
        raise UserError(f"{setting} is {name!r}, which run {record.hash} does not have; {nearest(str(name), [*known])}")
    return known[name]


def statistic_of(plot: Plot, loops: dict[str, Any], record: Record) -> dict[str, Any]:
    """The statistic of the probe `loops` that the plot's metric names."""
    statistics = {name: part for name, part in loops.items() if isinstance(part, dict) and "range" in part}
    return named(statistics, plot.metric, "plot.metric", record)


def resolution(chunk: int) -> str:
    """The resolution of an iteration over chunks of this many tokens, as a fraction."""
    return "1" if chunk == 1 else f"1/{chunk}"


def entropies_of(record: Record) -> tuple[list[int], list[list[list[float]]]] | None:
    """Steps, and the entropy of every head at each, [step][layer][head]; None if the run did not log them."""
    log = record.hooks.get("entropy-log")
    return None if not log or not log["steps"] else (log["steps"], log["entropies"])


def chosen_layers(plot: Plot, num_layers: int) -> list[int]:
    """The layers that a plot shows: the one at a depth, some evenly spaced, or all."""
    if plot.depth is not None:
        return [round(plot.depth * (num_layers - 1))]
    if plot.count is None or plot.count >= num_layers:
        return list(range(num_layers))
    return sorted({round(i * (num_layers - 1) / max(1, plot.count - 1)) for i in range(plot.count)})


def entropy_variances(plot: Plot, record: Record) -> Numbers | None:
    """The variance of the entropy over the heads of each chosen layer: x the steps, lines by layer."""
    log = entropies_of(record)
    if log is None:
        return None
    steps, tables = log
    lines = {}
    for layer in chosen_layers(plot, len(tables[0])):
        values = [_variance(table[layer]) for table in tables]
        lines[f"layer {layer + 1}"] = moving_average(values, plot.smooth)
    return {"x": steps, "lines": lines}


def _variance(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
