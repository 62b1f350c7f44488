"""The logged numbers of runs over training, also of runs that have not finished. No torch.

hybridlab runs curves base stage2 --x flops
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hybridlab.errors import UserError, nearest
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.metrics import read_metrics

AXES = {
    "steps": "optimizer steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "training time (s)",
}
"""What curves can be drawn over, with the label of the axis."""
_FIELDS = {"steps": "step", "tokens": "tokens", "flops": "flops"}
LABELS = {"loss": "training loss (nats/token)", "gradient_norm": "gradient norm", "lr": "learning rate"}
"""Labels of logged numbers; others are labelled with their names."""
VALIDATION = "validation_loss"


@dataclass(frozen=True)
class Curve:
    """The points of one run. validation: further points, of the validation loss; empty if it was not logged."""

    label: str
    x: list[float]
    y: list[float]
    validation_x: list[float]
    validation: list[float]


def read_curves(folders: list[RunFolder], x: str = "steps", metric: str = "loss") -> list[Curve]:
    """A curve for each run. UserError for a number that a run has not logged."""
    if x not in AXES:
        raise UserError(f"--x {x}: there is no such axis; {nearest(x, list(AXES))}")
    labels = [folder.started().get("name") or folder.path.resolve().name for folder in folders]
    return [_curve(folder, label, x, metric) for folder, label in zip(folders, labels, strict=True)]


def _curve(folder: RunFolder, label: str, x: str, metric: str) -> Curve:
    lines = [line for line in read_metrics(folder.path / "metrics.jsonl") if "step" in line]
    if not lines:
        raise UserError(f"{folder.path}: nothing is logged yet, so there is no curve to draw")
    names = list(dict.fromkeys(name for line in lines for name in line if name not in ("step", "tokens", "flops")))
    if metric not in names:
        raise UserError(f"--metric {metric}: {folder.path} has no such number in its log; {nearest(metric, names)}")
    at = _seconds(folder, lines) if x == "seconds" else [float(line[_FIELDS[x]]) for line in lines]
    more = _points(lines, at, VALIDATION) if metric == "loss" else ([], [])
    return Curve(label, *_points(lines, at, metric), *more)


def _seconds(folder: RunFolder, lines: list[dict[str, Any]]) -> list[float]:
    """The time of training up to each line, from the tokens and the rate since the line before."""
    if not all(line.get("tokens_per_second") for line in lines):
        raise UserError(
            f"--x seconds: {folder.path} has no rates in its log (an older version wrote it); use --x steps"
        )
    before = [0, *(line["tokens"] for line in lines)]
    parts = ((line["tokens"] - b) / line["tokens_per_second"] for line, b in zip(lines, before, strict=False))
    return list(accumulate(parts))


def _points(lines: list[dict[str, Any]], x: list[float], name: str) -> tuple[list[float], list[float]]:
    """The places and values of a number, where it was logged."""
    points = [(at, float(line[name])) for at, line in zip(x, lines, strict=True) if line.get(name) is not None]
    return [at for at, _ in points], [value for _, value in points]
