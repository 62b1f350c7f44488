"""Growth in depth: the model after each growth step as a row of layers, and where each layer comes from. A panel for
each run, from the lineage in its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.plan.lineage import growth_steps, lineage_from_json
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run, whole
from hybridlab.reporting.readings import grown_block
from hybridlab.reporting.style import COLOURS, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGE = 16
"""With more layers than this, boxes are small, and so are their numbers."""


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """steps: the model at the start, then after each growth step: layer → source, the layer of the model before that it
    continues or was copied from, from 0; at the start, itself. copied: whether it was copied. block: layers of a block.
    None for a run without growth in depth."""
    stored, block = record.structure.get("lineage"), grown_block(record)
    if not stored or not block:
        return None
    lineage = lineage_from_json(stored)
    first = sum(origin.stage == 0 for origin in lineage)
    steps = [{"sources": list(range(first)), "copied": [False] * first}]
    for stage, sources in enumerate(growth_steps(lineage), start=1):
        now = [origin for origin in lineage if origin.stage <= stage]
        steps.append({"sources": list(sources), "copied": [origin.stage == stage for origin in now]})
    return {"steps": steps, "block": block}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Layers are counted from 1, as in the picture."""
    for number, step in enumerate(numbers["steps"]):
        for layer, (source, copied) in enumerate(zip(step["sources"], step["copied"], strict=True)):
            yield {"growth step": number, "layer": layer + 1, "source": source + 1, "copied": copied}


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """The width of a page, or half of it for models of few layers; as high as the growth steps need."""
    steps = [picture.numbers["steps"] for picture in pictures]
    layers = max(len(each[-1]["sources"]) for each in steps)
    return (3.4 if layers <= _LARGE and len(pictures) > 1 else 7.0), 0.7 + 0.5 * max(map(len, steps))


def draw(ax: Axes, picture: Picture) -> None:
    """A row of boxes for each model, the first at the top, with a line to each layer from its source. Colours are the
    blocks of the model before, the number in a box is the source."""
    steps, block = picture.numbers["steps"], picture.numbers["block"]
    widest = len(steps[-1]["sources"])
    for row, step in enumerate(steps):
        _draw_model(ax, row, step, block, widest)
        if row:
            _draw_copies(ax, row, step, len(steps[row - 1]["sources"]), widest)
    ax.set_xlim(0, widest)
    ax.set_ylim(len(steps) - 0.5, -0.15)
    ax.set_xticks([])
    names = [
        f"start: {len(steps[0]['sources'])}",
        *(f"step {i}: {len(step['sources'])}" for i, step in _numbered(steps)),
    ]
    ax.set_yticks([row + 0.18 for row in range(len(steps))], names)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    label_axes(ax, picture.x_label, picture.y_label)
    ax.fill_between([], [], facecolor="white", edgecolor="black", linewidth=1.5, label="copied in this step")


def _numbered(steps: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((i, step) for i, step in enumerate(steps) if i)


def _left(layer: int, count: int, widest: int) -> float:
    """Where a layer's box begins: rows of fewer layers stand in the middle."""
    return layer + (widest - count) / 2


def _draw_model(ax: Axes, row: int, step: dict[str, Any], block: int, widest: int) -> None:
    from matplotlib.patches import Rectangle

    count = len(step["sources"])
    for layer, (source, copied) in enumerate(zip(step["sources"], step["copied"], strict=True)):
        place = (_left(layer, count, widest) + 0.06, row)
        colour = COLOURS[source // block % (len(COLOURS) - 1)]
        edge: dict[str, Any] = {"edgecolor": "black" if copied else colour, "linewidth": 1.4 if copied else 0.5}
        ax.add_patch(Rectangle(place, 0.88, 0.36, facecolor=_light(colour), **edge))
        small = 4.0 if widest > _LARGE else 6.0
        ax.text(place[0] + 0.44, row + 0.19, str(source + 1), fontsize=small, ha="center", va="center")


def _light(colour: str) -> tuple[float, float, float]:
    """A colour mixed with white, so that a number in it can be read."""
    from matplotlib.colors import to_rgb

    red, green, blue = (0.5 + 0.5 * part for part in to_rgb(colour))
    return red, green, blue


def _draw_copies(ax: Axes, row: int, step: dict[str, Any], before: int, widest: int) -> None:
    count = len(step["sources"])
    for layer, (source, copied) in enumerate(zip(step["sources"], step["copied"], strict=True)):
        ends = (_left(source, before, widest) + 0.5, _left(layer, count, widest) + 0.5)
        style: dict[str, Any] = {"color": "black", "linewidth": 0.8} if copied else {"color": "0.82", "linewidth": 0.5}
        ax.plot(ends, (row - 0.64, row), zorder=1, **style)


FIGURE_KINDS.add("lineage", FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, size=size))
