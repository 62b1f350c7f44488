"""The attention entropy of every head over training: a panel for each layer, and one with the variance in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run
from hybridlab.reporting.lines import draw_ordered, draw_unordered, name_lines, named_lines
from hybridlab.reporting.readings import chosen_layers, entropies_of, entropy_variances
from hybridlab.reporting.style import label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """x: steps. layers: title and lines of each panel. marks: steps at which a layer began to loop.

    A plot with a depth shows the layer at that depth and, with a count, only the heads whose entropy changes most. A
    plot without a depth ends with the variance in each layer.
    """
    log = entropies_of(record)
    if log is None:
        return None
    steps, tables = log
    layers: list[Numbers] = []
    for layer in chosen_layers(plot, len(tables[0])):
        lines = {head: [table[layer][head] for table in tables] for head in range(len(tables[0][layer]))}
        if plot.depth is not None and plot.count is not None:
            most = sorted(lines, key=lambda head: -_movement(lines[head]))[: plot.count]
            lines = {head: lines[head] for head in sorted(most)}
        named = {f"head {head + 1}": line for head, line in lines.items()}
        layers.append({"title": f"layer {layer + 1}", "lines": named})
    if plot.depth is None:
        layers.append({"title": "variance in each layer", **(entropy_variances(plot, record) or {})})
    grown = [event["step"] for event in record.events if event["kind"] == "loop-added"]
    return {"x": steps, "layers": layers, "marks": grown}


def _movement(values: list[float]) -> float:
    return sum(abs(b - a) for a, b in zip(values, values[1:], strict=False))


def parts(plot: Plot, numbers: Numbers) -> list[Numbers]:
    """The layers; the last panel of a plot without a depth is marked as the variance."""
    *layers, last = numbers["layers"]
    return [*layers, {**last, "variance": plot.depth is None}]


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    for part in numbers["layers"]:
        yield from named_lines(numbers["x"], part["lines"], part["title"])


def draw(ax: Axes, picture: Picture) -> None:
    """Lines of heads are unordered, those of layers ordered. With several rows, panels of heads share one legend."""
    numbers = picture.numbers
    variance = numbers.get("variance", False)
    (draw_ordered if variance else draw_unordered)(ax, numbers)
    for step in numbers["marks"]:
        ax.axvline(step, color="0.6", linewidth=0.7, linestyle=(0, (1, 2)))
    label_axes(ax, picture.x_label, "variance of entropy" if variance else picture.y_label)
    if variance or picture.rows == 1:
        name_lines(ax, numbers)


def legend(figure: Figure, axes: Sequence[Axes], rows: int) -> None:
    """The names of the heads, below all panels if there are several rows of panels."""
    if rows > 1:
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, fontsize=7, frameon=False, ncols=8, loc="outside lower center")


FIGURE_KINDS.add("head entropies", FigureKind(one_run(numbers_of), draw, csv_lines, parts=parts, legend=legend))
