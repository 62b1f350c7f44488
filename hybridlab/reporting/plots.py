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
points             one number of each run against another
distributions      a statistic of the heads of a loop's body by iteration: ridgelines and boxes
head ranges        how far a statistic of each head moves over the iterations
reach              which inputs reach which outputs after each iteration
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hybridlab.reproduction.experiment import Panel, Plot, Series
from hybridlab.reproduction.records import number_at

SHARE_SMOOTHING = 3
"""Layers in the moving average of the window share; the paper does not state its width."""

Record = dict[str, Any]
Line = dict[str, Any]


def panel_data(plot: Plot, panel: Panel, records: dict[str, Record]) -> dict[str, Any]:
    """One panel: its series with their numbers; a series whose runs are missing has none."""
    own = {name: getattr(panel, name) for name in ("metric", "x", "x_label") if getattr(panel, name) is not None}
    plot = plot.model_copy(update=own)
    series = []
    for entry in panel.series:
        found = [records.get(name) for name in entry.named]
        if plot.kind == "points":
            numbers = _points(plot, entry, found)
        else:
            numbers = None if found[0] is None else KINDS[plot.kind](plot, found[0])
        run = [record and record["hash"] for record in found]
        series.append({"label": entry.label, "cell": entry.named, "run": run, "data": numbers})
    return {"title": panel.title, "targets": panel.targets, "x_label": plot.x_label, "series": series}


def _points(plot: Plot, entry: Series, records: list[Record | None]) -> Line | None:
    """Of the runs that there are: x from the series, or from a record; y from a record."""
    points = []
    for place, (name, record) in enumerate(zip(entry.named, records, strict=True)):
        if record is not None:
            x = entry.x[place] if entry.x else number_at(record, plot.x)[0]
            y, error, _ = number_at(record, plot.metric)
            points.append({"run": name, "x": x, "y": y, "stderr": error})
    return {"points": sorted(points, key=lambda point: point["x"])} if points else None


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


def _loops(record: Record) -> Line | None:
    found = record["results"]["probes"]["loops"]
    return None if "skipped" in found else found


def _resolution(chunk: int) -> str:
    return "1" if chunk == 1 else f"1/{chunk}"


def _distributions(plot: Plot, record: Record) -> Line | None:
    """points: every head's value in every iteration."""
    found = _loops(record)
    if found is None:
        return None
    statistic, points = found[plot.metric], []
    for t, table in enumerate(statistic["values"]):
        for row, values in enumerate(table):
            for head, value in enumerate(values):
                if plot.heads == "all" or statistic["dynamic"][row][head]:
                    place = {"layer": found["layers"][row] + 1, "head": head + 1}
                    points.append({"loop": t + 1, "resolution": _resolution(found["chunks"][t]), **place, "y": value})
    return {"points": points, "layers": [{"title": "ridgelines", "style": "ridge"}, {"title": "boxes", "style": "box"}]}


def _head_ranges(plot: Plot, record: Record) -> Line | None:
    """points: each head's range over the iterations, stretched to 0 … 1 over all heads."""
    found = _loops(record)
    if found is None:
        return None
    statistic = found[plot.metric]
    flat = [value for row in statistic["range"] for value in row]
    low, width = min(flat), max(flat) - min(flat)
    points = []
    for row, values in enumerate(statistic["range"]):
        for head, value in enumerate(values):
            place = {"layer": found["layers"][row] + 1, "head": head + 1, "dynamic": statistic["dynamic"][row][head]}
            points.append({**place, "range": value, "y": (value - low) / width if width > 1e-12 else 0.0})
    return {"points": points}


def _reach(plot: Plot, record: Record) -> Line | None:
    found = record["results"]["probes"]["reach"]
    if "skipped" in found:
        return None
    parts = []
    for t, (chunk, rows) in enumerate(zip(found["chunks"], found["maps"], strict=True)):
        parts.append({"title": f"after loop {t + 1}, at {_resolution(chunk)}", "map": rows})
    points = [
        {"loop": t + 1, "output": i, "input": p}
        for t, part in enumerate(parts)
        for i, row in enumerate(part["map"])
        for p, value in enumerate(row)
        if value
    ]
    return {"points": points, "layers": parts}


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
    "distributions": _distributions,
    "head ranges": _head_ranges,
    "reach": _reach,
}
