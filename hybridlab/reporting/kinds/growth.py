"""The layers that loop at each step, with passes and number of heads: a panel for each run, from its events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import HEIGHT, WIDTH, FigureKind, Numbers, Picture, fixed_size, one_run, whole
from hybridlab.reporting.style import COLOURS, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """segments: layer, first and last step, passes, heads that run and heads that are kept; None for a run without
    growth."""
    fade = (record.config.get("controller") or {}).get("fade_steps")
    if fade is None:
        return None
    shape, end = record.config["shape"], record.steps
    layers: dict[int, list[dict[str, Any]]] = {}
    for event in record.events:
        if event["kind"] in ("loop-added", "loop-deepened", "heads-chosen"):
            layers.setdefault(event["layer"], []).append(event)
    segments = [
        {"layer": layer + 1, **segment}
        for layer, events in layers.items()
        for segment in _segments(events, shape["heads"], fade, end)
    ]
    return {"segments": segments, "steps": end, "layers": shape["layers"], "heads": shape["heads"]}


def _segments(events: list[dict[str, Any]], num_heads: int, fade: int, end: int) -> Iterator[dict[str, Any]]:
    """A layer's steps, split where its passes or running heads change; heads are removed when the last fade ends."""
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


def csv_lines(numbers: Numbers) -> list[dict[str, Any]]:
    return numbers["segments"]


def draw(ax: Axes, picture: Picture) -> None:
    """A bar for each segment, labelled with its passes; its height is the share of the layer's heads that run."""
    numbers = picture.numbers
    for layer in range(1, numbers["layers"] + 1):
        ax.axhline(layer - 0.4, color="0.9", linewidth=0.6, zorder=0)
    for segment in numbers["segments"]:
        _draw_segment(ax, segment, numbers)
    ax.set_xlim(0, numbers["steps"])
    ax.set_ylim(0.4, numbers["layers"] + 0.8)
    ax.set_yticks(range(1, numbers["layers"] + 1))
    label_axes(ax, picture.x_label, picture.y_label)
    _name_colours(ax, numbers["segments"])


def _draw_segment(ax: Axes, segment: dict[str, Any], numbers: Numbers) -> None:
    length = segment["until"] - segment["since"]
    fading = segment["running"] > segment["kept"]
    height = 0.8 * segment["running"] / numbers["heads"]
    colour = COLOURS[5] if fading else COLOURS[segment["passes"] - 1]
    style: dict[str, Any] = {"color": colour, "hatch": "///" if fading else None, "edgecolor": "white", "linewidth": 0}
    ax.barh(segment["layer"] - 0.4, length, left=segment["since"], height=height, align="edge", **style)
    if length > 0.06 * numbers["steps"]:
        text = f"{segment['passes']} ×"
        ax.text(segment["since"] + length / 2, segment["layer"] - 0.35 + height, text, fontsize=6, ha="center")


def _name_colours(ax: Axes, segments: list[dict[str, Any]]) -> None:
    """Names for the legend, on areas without a size."""
    style: dict[str, Any] = {"hatch": "///", "edgecolor": "white", "facecolor": COLOURS[5]}
    ax.fill_between([], [], label="all heads, those not kept fading", **style)
    for passes in sorted({s["passes"] for s in segments if s["running"] == s["kept"]}):
        name = f"kept heads, {passes} extra pass{'es' * (passes > 1)}"
        ax.fill_between([], [], facecolor=COLOURS[passes - 1], label=name)


FIGURE_KINDS.add(
    "growth",
    FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, size=fixed_size(1.6 * WIDTH, HEIGHT)),
)
