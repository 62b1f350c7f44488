"""What each kind of figure shows, as data: pure functions of records. Drawing them is reporting/figures.py's.

history        a logged number against training steps
layer masks    one row per run: which layers attend in full
head masks     one heat map per run: which KV heads attend in full
window share   the share of window heads in each layer, raw and as a moving average
scores         the learned score of each layer (or the mean over its heads)
stages         the tokens of each stage, and what the masks of one layer came to
"""

from __future__ import annotations

from collections.abc import Callable
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
    return {"x": found["step"], "y": moving_average(found[plot.metric], plot.smooth)}


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


KINDS: dict[str, Callable[[Plot, Record], Line]] = {
    "history": _history,
    "layer masks": _masks,
    "head masks": _masks,
    "window share": _window_share,
    "scores": _scores,
    "stages": _stages,
}
