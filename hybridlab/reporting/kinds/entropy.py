"""Kinds of figures of attention entropy. All but `task entropy` read the entropy log of a run.

layer entropy     the mean of each layer: a line for each of some steps early in training, a panel for each run
task entropy      the mean of each layer on prompts of tasks: a line for each task, a panel for each model
entropy variance  the variance inside each layer over training: a line for each layer, a panel for each run
head entropies    every head over training: a panel for each layer, and one with the variance in each
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybridlab.papers.experiment import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import (
    FigureKind,
    Numbers,
    Picture,
    moving_average,
    named_lines,
    one_run,
    probe_of,
    whole,
)
from hybridlab.reporting.seeds import merge_named
from hybridlab.reporting.style import MANY_COLOURS, STYLES, draw_ordered, draw_unordered, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def lines_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    return named_lines(numbers["x"], numbers["lines"])


# ---- layer entropy ----


EARLY = 0.05
"""Share of the run between two lines: 250 of the 5,035 steps in SGT's paper."""


def layer_entropy_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. lines: the mean over a layer's heads, by step."""
    log = entropies_of(record)
    if log is None:
        return None
    steps, tables = log
    wanted = [EARLY * steps[-1] * (i + 1) for i in range(plot.count or 6)]
    chosen = sorted({min(range(len(steps)), key=lambda i: abs(steps[i] - at)) for at in wanted})
    lines = {f"step {steps[i]}": [sum(row) / len(row) for row in tables[i]] for i in chosen}
    return {"x": [layer + 1 for layer in range(len(tables[0]))], "lines": lines}


def draw_layer_entropy(ax: Axes, picture: Picture) -> None:
    draw_ordered(ax, picture.numbers, marker="o")
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "layer entropy",
    FigureKind(one_run(layer_entropy_of), draw_layer_entropy, lines_csv, parts=whole, merge=merge_named, shared=True),
)


# ---- task entropy ----


MEAN = "mean over tasks"


def task_entropy_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. lines: the mean over a layer's heads, by task, and the mean over tasks. None without tasks."""
    measured = probe_of(record, "entropy")
    if measured is None or "tasks" not in measured:
        return None
    lines = {task: found["layer_means"] for task, found in measured["tasks"].items()}
    return {"x": list(range(1, len(measured["heads"]) + 1)), "lines": {**lines, MEAN: measured["layer_means"]}}


def draw_task_entropy(ax: Axes, picture: Picture) -> None:
    """Tasks in colours, their mean in black."""
    from matplotlib.ticker import MaxNLocator

    numbers = picture.numbers
    tasks = {name: line for name, line in numbers["lines"].items() if name != MEAN}
    for i, (name, line) in enumerate(tasks.items()):
        # Dashes show a line below one that lies on it.
        style: dict[str, Any] = {"color": MANY_COLOURS[i % len(MANY_COLOURS)], "linestyle": STYLES[i % len(STYLES)]}
        ax.plot(numbers["x"], line, label=name, linewidth=1.2, **style)
    ax.plot(numbers["x"], numbers["lines"][MEAN], color="black", linewidth=1.8, label=MEAN, zorder=3)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "task entropy", FigureKind(one_run(task_entropy_of), draw_task_entropy, lines_csv, parts=whole, shared=True)
)


# ---- entropy variance ----


def draw_entropy_variance(ax: Axes, picture: Picture) -> None:
    draw_ordered(ax, picture.numbers)
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "entropy variance",
    FigureKind(
        one_run(entropy_variances), draw_entropy_variance, lines_csv, parts=whole, merge=merge_named, shared=True
    ),
)


# ---- head entropies ----


def head_entropies_of(plot: Plot, record: Record) -> Numbers | None:
    """x: steps. layers: title and lines of each panel. marks: steps at which a layer began to loop.

    A plot with a depth shows the layer at that depth. A plot without a depth ends with the variance in each layer.
    """
    log = entropies_of(record)
    if log is None:
        return None
    steps, tables = log
    layers: list[Numbers] = []
    for layer in chosen_layers(plot, len(tables[0])):
        lines = {head: [table[layer][head] for table in tables] for head in range(len(tables[0][layer]))}
        named = {f"head {head + 1}": line for head, line in lines.items()}
        layers.append({"title": f"layer {layer + 1}", "lines": named})
    if plot.depth is None:
        layers.append({"title": "variance in each layer", **(entropy_variances(plot, record) or {})})
    grown = [event["step"] for event in record.events if event["kind"] == "loop-added"]
    return {"x": steps, "layers": layers, "marks": grown}


def align_head_entropies(plot: Plot, runs: list[Numbers]) -> list[Numbers]:
    """For a plot with a depth and a count: in all runs the same heads, those whose entropy changes most over them."""
    if plot.depth is None or plot.count is None or not runs:
        return runs
    heads = list(runs[0]["layers"][0]["lines"])
    moved = {head: sum(_movement(run["layers"][0]["lines"].get(head, [])) for run in runs) for head in heads}
    most = sorted(heads, key=lambda head: -moved[head])[: plot.count]
    chosen = [head for head in heads if head in most]
    return [
        {**run, "layers": [{**part, "lines": {head: part["lines"][head] for head in chosen}} for part in run["layers"]]}
        for run in runs
    ]


def _movement(values: list[float]) -> float:
    return sum(abs(b - a) for a, b in zip(values, values[1:], strict=False))


def head_entropies_parts(plot: Plot, numbers: Numbers) -> list[Numbers]:
    """The layers; the last panel of a plot without a depth is marked as the variance."""
    *layers, last = numbers["layers"]
    return [*layers, {**last, "variance": plot.depth is None}]


def head_entropies_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    for part in numbers["layers"]:
        yield from named_lines(numbers["x"], part["lines"], part["title"])


def draw_head_entropies(ax: Axes, picture: Picture) -> None:
    """Lines of heads are unordered, those of layers ordered. Dotted lines: a layer begins to loop."""
    numbers = picture.numbers
    variance = numbers.get("variance", False)
    (draw_ordered if variance else draw_unordered)(ax, numbers)
    for step in numbers["marks"]:
        ax.axvline(step, color="0.4", linewidth=0.8, linestyle=(0, (1, 2)), label="a layer begins to loop")
    label_axes(ax, picture.x_label, "variance of entropy" if variance else picture.y_label)


FIGURE_KINDS.add(
    "head entropies",
    FigureKind(
        one_run(head_entropies_of),
        draw_head_entropies,
        head_entropies_csv,
        parts=head_entropies_parts,
        align=align_head_entropies,
        shared=True,
    ),
)
