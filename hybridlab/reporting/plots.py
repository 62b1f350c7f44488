"""What each kind of figure shows, as data: pure functions of records. Drawing them is reporting/figures.py's.

history        a logged number against training steps
layer masks    one row per run: which layers attend in full
head masks     one heat map per run: which KV heads attend in full
window share   the share of window heads in each layer, raw and as a moving average
scores         the learned score of each layer (or the mean over its heads)
stages         the tokens of each stage, and what the masks of one layer came to
head entropies     the attention entropy of every head over training, one picture per layer
entropy variance   its variance inside each layer over training
layer entropy      its mean in each layer, one line per reading early in training
growth             which layers loop when, on how many heads, from the run's events
contributions      where the last token of a looped head looks, pass by pass
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hybridlab.reproduction.experiment import Panel, Plot

SHARE_SMOOTHING = 3
"""Layers in the moving average of the window share; the paper does not state its width."""

Record = dict[str, Any]
Line = dict[str, Any]


def panel_data(plot: Plot, panel: Panel, records: dict[str, Record]) -> dict[str, Any]:
    """One panel: its series with their numbers; a series whose run is missing has none."""
    series = []
    for entry in panel.series:
        record = records.get(entry.cell)
        numbers = None if record is None else KINDS[plot.kind](plot, record)
        series.append({"label": entry.label, "cell": entry.cell, "run": record and record["hash"], "data": numbers})
    return {"title": panel.title, "targets": panel.targets, "series": series}


def moving_average(values: list[float], width: int) -> list[float]:
    """Centred, over what there is at the ends."""
    half = width // 2
    windows = (values[max(0, i - half) : i - half + width] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def learned(record: Record) -> dict[str, Any]:
    """What the controller of a run that learned an allocation has left."""
    return next(iter(record["controllers"].values()))


def window_shares(masks: list[list[int]]) -> list[float]:
    """Share of window heads by layer."""
    return [row.count(0) / len(row) for row in masks]


def _history(plot: Plot, record: Record) -> Line:
    found = record["history"]
    smooth = moving_average(found[plot.metric], plot.smooth)
    return {"x": found[plot.x], "y": [math.exp(y) for y in smooth] if plot.exponential else smooth}


def _masks(plot: Plot, record: Record) -> Line:
    return {"masks": learned(record)["masks"]}


def _window_share(plot: Plot, record: Record) -> Line:
    shares = window_shares(learned(record)["masks"])
    layers = [layer + 1 for layer in range(len(shares))]
    return {"x": layers, "y": shares, "smooth": moving_average(shares, SHARE_SMOOTHING)}


def _scores(plot: Plot, record: Record) -> Line:
    scores = learned(record)["scores"]
    return {"x": [layer + 1 for layer in range(len(scores))], "y": [sum(row) / len(row) for row in scores]}


def _stages(plot: Plot, record: Record) -> Line:
    config = record["config"]
    found = {"tokens": record["tokens"], "steps": record["steps"], "map": record["structure"]["map"]}
    if record["controllers"]:
        controller = learned(record)
        found |= {"scores": controller["scores"], "masks": controller["masks"], "window": config["map"]["window"]}
        found["seq_len"] = config["training"]["seq_len"]
    return found


def _entropies(record: Record) -> tuple[list[int], list[list[list[float]]]]:
    """Steps and [step][layer][head]."""
    found = record["controllers"]["entropy-log"]
    return found["steps"], found["entropies"]


def _chosen(plot: Plot, num_layers: int) -> list[int]:
    """The layers that a plot shows: one at a depth, some evenly spaced, or all."""
    if plot.depth is not None:
        return [round(plot.depth * (num_layers - 1))]
    if plot.count is None or plot.count >= num_layers:
        return list(range(num_layers))
    return sorted({round(i * (num_layers - 1) / max(1, plot.count - 1)) for i in range(plot.count)})


def _head_entropies(plot: Plot, record: Record) -> Line:
    steps, tables = _entropies(record)
    layers = []
    for layer in _chosen(plot, len(tables[0])):
        lines = {head: [table[layer][head] for table in tables] for head in range(len(tables[0][layer]))}
        if plot.depth is not None and plot.count is not None:
            restless = sorted(lines, key=lambda head: -_movement(lines[head]))[: plot.count]
            lines = {head: lines[head] for head in sorted(restless)}
        named = {f"head {head + 1}": line for head, line in lines.items()}
        layers.append({"title": f"layer {layer + 1}", "lines": named})
    if plot.depth is None:
        layers.append({"title": "variance in each layer", **_entropy_variance(plot, record)})
    grown = [event["step"] for event in record["events"] if event["kind"] == "loop-added"]
    return {"x": steps, "layers": layers, "marks": grown}


def _movement(values: list[float]) -> float:
    return sum(abs(b - a) for a, b in zip(values, values[1:], strict=False))


def _entropy_variance(plot: Plot, record: Record) -> Line:
    steps, tables = _entropies(record)
    lines = {}
    for layer in _chosen(plot, len(tables[0])):
        values = [_variance(table[layer]) for table in tables]
        lines[f"layer {layer + 1}"] = moving_average(values, plot.smooth)
    return {"x": steps, "lines": lines}


def _variance(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


EARLY = 0.05
"""Readings of the layer entropies are this share of the run apart: 250 of the paper's 5,035 steps."""


def _layer_entropy(plot: Plot, record: Record) -> Line:
    steps, tables = _entropies(record)
    wanted = [EARLY * steps[-1] * (i + 1) for i in range(plot.count or 6)]
    places = sorted({min(range(len(steps)), key=lambda i: abs(steps[i] - at)) for at in wanted})
    lines = {f"step {steps[i]}": [sum(row) / len(row) for row in tables[i]] for i in places}
    return {"x": [layer + 1 for layer in range(len(tables[0]))], "lines": lines}


def _growth(plot: Plot, record: Record) -> Line:
    """segments: layer, from step, to step, passes, heads that run and heads that are kept, as the events tell."""
    shape, end, fade = record["config"]["shape"], record["steps"], record["config"]["controller"]["fade_steps"]
    layers: dict[int, list[dict[str, Any]]] = {}
    for event in record["events"]:
        if event["kind"] in ("loop-added", "loop-deepened", "heads-chosen"):
            layers.setdefault(event["layer"], []).append(event)
    segments = [
        {"layer": layer + 1, **segment}
        for layer, events in layers.items()
        for segment in _segments(events, shape["heads"], fade, end)
    ]
    return {"segments": segments, "steps": end, "layers": shape["layers"], "heads": shape["heads"]}


def _segments(events: list[dict[str, Any]], num_heads: int, fade: int, end: int) -> Iterator[dict[str, Any]]:
    """One layer's time cut where its passes or the heads that run change: heads leave once no fade runs any more."""
    choices = [event for event in events if "heads" in event]
    cuts = sorted({step for event in events for step in (event["step"], event["step"] + fade)} | {end})
    running = num_heads
    for since, until in zip(cuts, cuts[1:], strict=False):
        past = [event for event in choices if event["step"] <= since]
        if since >= end or not past:
            continue
        kept = len(past[-1]["heads"])
        if past[-1]["step"] + fade <= since:
            running = kept
        passes = [event["passes"] for event in events if event["step"] <= since][-1]
        yield {"since": since, "until": min(until, end), "passes": passes, "running": running, "kept": kept}


def _contributions(plot: Plot, record: Record) -> Line | None:
    found = record["results"]["probes"]["contributions"]
    if "skipped" in found:
        return None
    return {key: found["examples"][plot.example][key] for key in ("tokens", "loops", "layer", "head")}


KINDS: dict[str, Callable[[Plot, Record], Line | None]] = {
    "history": _history,
    "layer masks": _masks,
    "head masks": _masks,
    "window share": _window_share,
    "scores": _scores,
    "stages": _stages,
    "head entropies": _head_entropies,
    "entropy variance": _entropy_variance,
    "layer entropy": _layer_entropy,
    "growth": _growth,
    "contributions": _contributions,
}
